"""The agent: what is needed to drive a session. Reading a session never needs it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.core.errors import InvalidSettings, check_kind
from holdfast.core.ids import check_id
from holdfast.runtime import brokers
from holdfast.runtime.tools import Toolset, tool_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """A name and version under which sessions are driven, with its tools and settings."""

    name: str = "default"
    version: str = "1"
    tools: Sequence[Any] = ()  # functions, which code calls by name, and toolsets
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_id(self.name, "agent name")
        check_kind(self.settings, Mapping, "set of settings")
        check_kind(self.tools, Sequence, "list of tools")
        for toolset in self.toolsets:
            if toolset.name == brokers.MODULE:
                raise InvalidSettings(
                    f"toolset {toolset.name!r} has the name of the brokers; choose another name"
                )

    @property
    def toolsets(self) -> tuple[Toolset, ...]:
        """Return the tools as toolsets; plain functions stand in one without a name."""
        grouped = tuple(item for item in self.tools if isinstance(item, Toolset))
        plain = tuple(tool_of(item) for item in self.tools if not isinstance(item, Toolset))
        return (Toolset("", 1, plain), *grouped) if plain else grouped


def by_name(agents: Iterable[Agent]) -> dict[str, Agent]:
    """Return agents by name; refuse two of one name, by which sessions find theirs again."""
    check_kind(agents, Iterable, "list of agents")
    known: dict[str, Agent] = {}
    for agent in agents:
        check_kind(agent, Agent, "agent")
        if known.setdefault(agent.name, agent) is not agent:
            raise InvalidSettings(f"two agents have the one name {agent.name!r}; give each its own")
    return known
