"""The agent: what is needed to drive a session. Reading a session never needs it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Literal, TypeVar, Union, overload

from holdfast.core.errors import InvalidInput, InvalidSettings, check_kind
from holdfast.core.ids import check_id
from holdfast.models.port import Model
from holdfast.runtime import brokers, schemas
from holdfast.runtime import budget as budgets
from holdfast.runtime.hooks import Hook, check_hooks
from holdfast.runtime.schemas import Schema
from holdfast.runtime.settings import Limits, resolve
from holdfast.runtime.tools import Delegate, Tool, Toolset, make_tool, tool_of

T = TypeVar("T")

HarnessName = Literal["code", "tools"]
AnyTool = Union[Callable[..., Any], Tool, Toolset, "Agent[Any]"]
"""What an agent takes as a tool: a function, one that was declared, a group, another agent."""

MODEL_NEEDS = ("name", "ceiling_usd", "request", "close")


@dataclass(frozen=True, slots=True, init=False)
class Agent(Generic[T]):
    """A name and version under which sessions are driven, with all that drives them.

    `tools` are functions, which code calls by name, toolsets, and other agents. A final value fits
    `output_type`, a Python type or a JSON schema; without one it may be anything. A `pinned` agent
    refuses sessions that were driven with another form of it, instead of recording the change.
    Sessions of an `external` agent are driven by another program: they need no model, take no
    messages, and hold what that program records and calls.
    """

    name: str
    version: str
    model: str | Model | None
    instructions: str | None
    tools: tuple[AnyTool, ...]
    output_type: Any
    output_schema: Schema | None
    limits: Limits | None
    harness: HarnessName | None
    pinned: bool
    external: bool
    settings: Mapping[str, Any]
    hooks: tuple[Hook, ...]

    @overload
    def __init__(
        self: Agent[Any],
        name: str = ...,
        *,
        version: str = ...,
        model: str | Model | None = ...,
        instructions: str | None = ...,
        tools: Sequence[AnyTool] = ...,
        output_type: None = ...,
        limits: Limits | None = ...,
        harness: HarnessName | None = ...,
        pinned: bool = ...,
        external: bool = ...,
        settings: Mapping[str, Any] | None = ...,
        hooks: Sequence[Hook] = ...,
    ) -> None: ...

    @overload
    def __init__(
        self,
        name: str = ...,
        *,
        version: str = ...,
        model: str | Model | None = ...,
        instructions: str | None = ...,
        tools: Sequence[AnyTool] = ...,
        output_type: type[T],
        limits: Limits | None = ...,
        harness: HarnessName | None = ...,
        pinned: bool = ...,
        external: bool = ...,
        settings: Mapping[str, Any] | None = ...,
        hooks: Sequence[Hook] = ...,
    ) -> None: ...

    @overload
    def __init__(
        self: Agent[Any],
        name: str = ...,
        *,
        version: str = ...,
        model: str | Model | None = ...,
        instructions: str | None = ...,
        tools: Sequence[AnyTool] = ...,
        output_type: object,
        limits: Limits | None = ...,
        harness: HarnessName | None = ...,
        pinned: bool = ...,
        external: bool = ...,
        settings: Mapping[str, Any] | None = ...,
        hooks: Sequence[Hook] = ...,
    ) -> None: ...

    def __init__(
        self,
        name: str = "default",
        *,
        version: str = "1",
        model: str | Model | None = None,
        instructions: str | None = None,
        tools: Sequence[AnyTool] = (),
        output_type: Any = None,
        limits: Limits | None = None,
        harness: HarnessName | None = None,
        pinned: bool = False,
        external: bool = False,
        settings: Mapping[str, Any] | None = None,
        hooks: Sequence[Hook] = (),
    ) -> None:
        check_kind(tools, Sequence, "list of tools")
        check_kind(settings or {}, Mapping, "set of settings")
        check_kind(version, str, "version of an agent")
        if limits is not None:
            check_kind(limits, Limits, "set of limits")
        schema = None if output_type is None else schemas.of(output_type)
        for field, value in (
            ("name", check_id(name, "agent name")),
            ("version", version),
            ("model", check_model_of("model", model)),
            ("instructions", instructions),
            ("tools", tuple(tools)),
            ("output_type", output_type),
            ("output_schema", schema),
            ("limits", limits),
            ("harness", harness),
            ("pinned", pinned),
            ("external", external),
            ("settings", dict(settings or {})),
            ("hooks", check_hooks(hooks)),
        ):
            object.__setattr__(self, field, value)
        for toolset in self.toolsets:
            if toolset.name == brokers.MODULE:
                raise InvalidSettings(
                    f"toolset {toolset.name!r} has the name of the brokers; choose another name"
                )
        resolve(self.given(), environment={})  # refused here, where it was written

    @property
    def toolsets(self) -> tuple[Toolset, ...]:
        """Return the tools as toolsets; plain functions stand in one without a name."""
        grouped = tuple(item for item in self.tools if isinstance(item, Toolset))
        plain = tuple(tool_of(item) for item in self.tools if not isinstance(item, Toolset))
        return (Toolset("", 1, plain), *grouped) if plain else grouped

    def as_tool(
        self,
        name: str | None = None,
        doc: str | None = None,
        *,
        output: Any = None,
        budget: Mapping[str, Any] | None = None,
    ) -> Tool:
        """Return a tool that gives a task to this agent, in a child session of whoever calls it.

        `doc` is what the calling model is told. `output` is "text", "json" or a schema that the
        value must fit, `budget` what one call may spend: usd, tokens, calls, seconds.
        """
        schema = output if output in (None, "text", "json") else schemas.of(output)
        try:
            budgets.wishes(budget or {})
        except (TypeError, ValueError) as error:
            raise InvalidSettings(
                f"the budget of agent {self.name!r} as a tool: {error}"
            ) from error
        made = make_tool(_task, name=name or re.sub(r"\W", "_", self.name), effect="idempotent")
        about = f"Give a task to the agent {self.name!r}, which works on it by itself."
        return replace(made, doc=doc or about, delegate=Delegate(self, schema, budget))

    def given(self) -> dict[str, Any]:
        """Return the settings that the agent brings; None is "not given" here as everywhere."""
        model = self.model if self.model is None or isinstance(self.model, str) else self.model.name
        named = {
            **self.settings,
            "model": model or self.settings.get("model"),
            "instructions": self.instructions or self.settings.get("instructions"),
            "harness": self.harness or self.settings.get("harness"),
            **({} if self.limits is None else self.limits.given()),
        }
        return {name: value for name, value in named.items() if value is not None}


def _task(task: str, inputs: dict[str, Any] | None = None) -> dict[str, Any]:
    raise InvalidInput(
        "an agent is given a task by a model or by code; from a program, start a session of it"
    )


def check_model_of(what: str, given: str | Model | None) -> str | Model | None:
    """Return a model or its name; refuse what is neither."""
    if given is None or isinstance(given, str | Model):
        return given
    lacking = [need for need in MODEL_NEEDS if not hasattr(given, need)]
    raise InvalidSettings(
        f"{what} is a {type(given).__name__}, not a valid name or model: it lacks "
        f"{', '.join(lacking)}"
    )


def by_name(agents: Iterable[Agent[Any]]) -> dict[str, Agent[Any]]:
    """Return agents by name; refuse two of one name, by which sessions find theirs again."""
    check_kind(agents, Iterable, "list of agents")
    known: dict[str, Agent[Any]] = {}
    for agent in agents:
        check_kind(agent, Agent, "agent")
        if known.setdefault(agent.name, agent) is not agent:
            raise InvalidSettings(f"two agents have the one name {agent.name!r}; give each its own")
    return known
