"""The agent: what is needed to drive a session. Reading a session never needs it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.core.errors import InvalidSettings, check_kind
from holdfast.core.ids import check_id
from holdfast.runtime import brokers
from holdfast.runtime.tools import Toolset


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """A name and version under which sessions are driven, with its tools and settings."""

    name: str = "default"
    version: str = "1"
    toolsets: tuple[Toolset, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_id(self.name, "agent name")
        check_kind(self.settings, Mapping, "set of settings")
        check_kind(self.toolsets, Sequence, "list of toolsets")
        for toolset in self.toolsets:
            check_kind(toolset, Toolset, "toolset")
            if toolset.name == brokers.MODULE:
                raise InvalidSettings(
                    f"toolset {toolset.name!r} has the name of the brokers; choose another name"
                )


def by_name(agents: Iterable[Agent]) -> dict[str, Agent]:
    """Return agents by name; refuse two of one name, by which sessions find theirs again."""
    check_kind(agents, Iterable, "list of agents")
    known: dict[str, Agent] = {}
    for agent in agents:
        check_kind(agent, Agent, "agent")
        if known.setdefault(agent.name, agent) is not agent:
            raise InvalidSettings(f"two agents have the one name {agent.name!r}; give each its own")
    return known
