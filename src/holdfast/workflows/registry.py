"""The registry: what a process has for workflows beside agents, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.core.errors import InvalidSettings
from holdfast.runtime.tools import Tool, tool_of
from holdfast.workflows.known import Known, Signature
from holdfast.workflows.model import Workflow
from holdfast.workflows.schema_reading import SchemaProblem, read_document
from holdfast.workflows.schemas import Field, ObjectOf, Schema


@dataclass(frozen=True, slots=True)
class Registry:
    """The names that the workflows of a process may use.

    `programs` are those that `run` nodes may start; without one, none may. `secrets` are resolved
    when a tool is called, and stored by name alone.
    """

    tools: Mapping[str, Tool] = field(default_factory=dict)
    functions: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    programs: frozenset[str] = frozenset()
    secrets: Mapping[str, Any] = field(default_factory=dict)
    workflows: Mapping[str, Workflow] = field(default_factory=dict)

    def known(self, agents: Iterable[str]) -> Known:
        """Return what a check holds names against."""
        return Known(
            agents=frozenset(agents),
            secrets=frozenset(self.secrets),
            tools={name: _of_tool(one) for name, one in self.tools.items()},
            functions={name: Signature() for name in self.functions},
            workflows={name: _of_workflow(one) for name, one in self.workflows.items()},
        )


def registry(
    tools: Iterable[Any] = (),
    functions: Mapping[str, Callable[..., Any]] | Iterable[Callable[..., Any]] = (),
    programs: Iterable[str] = (),
    secrets: Mapping[str, Any] | None = None,
    workflows: Iterable[Workflow] = (),
) -> Registry:
    """Return a registry of what is given; refuse two of one name."""
    found: dict[str, Tool] = {}
    for one in map(tool_of, tools):
        if found.setdefault(one.name, one) is not one:
            raise InvalidSettings(f"two tools have the one name {one.name!r}; rename one of them")
    named = (
        dict(functions)
        if isinstance(functions, Mapping)
        else {one.__name__: one for one in functions}
    )
    return Registry(
        tools=found,
        functions=named,
        programs=frozenset(programs),
        secrets=dict(secrets or {}),
        workflows={one.name: one for one in workflows},
    )


def _schema(document: Any) -> Schema | None:
    try:
        return None if document is None else read_document(dict(document))
    except SchemaProblem:
        return None  # it says more than is checked here


def _of_tool(one: Tool) -> Signature:
    takes = _schema(one.parameters)
    plain = isinstance(takes, ObjectOf) and bool(takes.fields)
    return Signature(takes if plain else None, _schema(one.returns))


def _of_workflow(one: Workflow) -> Signature:
    takes = ObjectOf({name: Field(v.schema, v.required) for name, v in one.vars.items()})
    return Signature(takes, one.output)
