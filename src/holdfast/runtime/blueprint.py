"""The blueprint: what a session is driven with, as stored in its first event.

Model names, limits, capability, the prompt's text by payload and hash, and the stamps of agent and
tools: revival reads this, never today's defaults. Functions and keys are never part of it; a
driver that lacks what the stamps name refuses instead of guessing.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from holdfast.core.capability import Capability, profile
from holdfast.core.errors import AgentMissing, InvalidSettings
from holdfast.core.facts import SessionStarted
from holdfast.core.payloads import Slot, from_record, manifest, slot, to_record
from holdfast.runtime import prompt
from holdfast.runtime import tools as tool_module
from holdfast.runtime.agent import Agent
from holdfast.runtime.brokers import work_tools
from holdfast.runtime.settings import Settings
from holdfast.runtime.tools import Toolset
from holdfast.stores.choose import STORE_FOLDER
from holdfast.stores.port import SessionStore
from holdfast.views.values import hydrate


@dataclass(frozen=True, slots=True, kw_only=True)
class Blueprint:
    """The settings snapshot of a session."""

    settings: Settings
    capability: Capability
    prompt: str
    stamps: tuple[dict[str, Any], ...] = ()
    seed: int = 0

    def slots(self) -> tuple[Slot, list[Slot]]:
        """Return the manifest that stores this, and what it refers to."""
        text = slot(self.prompt, "settings")
        record = {
            "v": 2,
            "settings": self.settings.to_record(),
            "capability": self.capability.to_record(),
            "prompt": to_record(text),
            "prompt_stamp": prompt.stamp(self.prompt),
            "toolsets": list(self.stamps),
            "seed": self.seed,
        }
        return manifest(record, "settings"), [text]


def hidden_paths(store: SessionStore, work_area: str) -> tuple[str, ...]:
    """Return what no session may read or write though it lies in its work area: the stores."""
    kind, _, place = store.flags.url.partition(":")
    places = {os.path.realpath(os.path.join(work_area, STORE_FOLDER))}
    if kind != "memory" and place:
        places.add(os.path.realpath(place))
    return tuple(sorted(filter(os.path.exists, places)))


def draft(
    settings: Settings,
    agent: Agent[Any],
    *,
    kernel_card: str,
    capability: Capability | None,
    seed: int,
    store: SessionStore,
    depth: int = 0,
) -> Blueprint:
    """Return the blueprint of a new session, which has so many above it."""
    if settings.work_area and not os.path.isdir(settings.work_area):
        raise InvalidSettings(
            f"work_area is {settings.work_area!r}, which is no folder; make it, or name another"
        )
    area = str(Path(settings.work_area or ".").resolve())
    settings = replace(settings, work_area=area)
    allowed = tuple(tool_module.path(item, one) for item in agent.toolsets for one in item.tools)
    gates = capability or profile(settings.profile, area, allowed)  # type: ignore[arg-type]
    admitted = offered(agent, gates, area, store)
    text = prompt.compose(
        kernel_card=kernel_card,
        model_calls=gates.model_calls,
        max_fanout=settings.max_fanout,
        depth_left=settings.max_depth - depth,
        tool_card=tool_module.card(admitted),
        instructions=settings.instructions,
        harness=settings.harness,
        output_schema=agent.output_schema,
    )
    return Blueprint(
        settings=settings,
        capability=gates,
        prompt=text,
        stamps=tuple(item.stamp() for item in admitted),
        seed=seed,
    )


async def load(store: SessionStore, session_id: str) -> Blueprint:
    """Return the blueprint of a session, as its first event has it."""
    first = (await store.read_events(session_id, limit=1))[0].fact()
    assert isinstance(first, SessionStarted)
    if first.settings is None:
        raise AgentMissing(
            f"session {session_id!r} was stored without settings; it can be read, not driven"
        )
    record: Any = (await hydrate(store, session_id, first.settings)).value()
    text: Any = (await hydrate(store, session_id, from_record(record["prompt"]))).value()
    return Blueprint(
        settings=Settings.from_record(record["settings"]),
        capability=Capability.from_record(record["capability"]),
        prompt=text,
        stamps=tuple(_stamps(record)),
        seed=record["seed"],
    )


def _stamps(record: Any) -> list[dict[str, Any]]:
    if record["v"] == 1:  # which called them surfaces, with an id beside the module's name
        return [
            {
                "name": stamp["module"],
                "version": stamp["version"],
                "tools": stamp["functions"],
                "card": stamp["card"],
            }
            for stamp in record["surfaces"]
        ]
    return list(record["toolsets"])


def offered(
    agent: Agent[Any], capability: Capability, work_area: str, store: SessionStore
) -> tuple[Toolset, ...]:
    """Return what code may call: the agent's toolsets and the brokers of open gates."""
    return (
        *tool_module.admit(agent.toolsets, capability),
        *work_tools(capability, work_area, hidden_paths(store, work_area)),
    )


def match_tools(
    store: SessionStore, session_id: str, blueprint: Blueprint, agent: Agent[Any]
) -> tuple[Toolset, ...]:
    """Return the agent's toolsets that a session was started with; refuse where they differ."""
    admitted = offered(agent, blueprint.capability, blueprint.settings.work_area, store)
    have = {item.name: item.stamp() for item in admitted}
    for stamp in blueprint.stamps:
        if have.get(stamp["name"]) != stamp:
            raise AgentMissing(
                f"session {session_id!r} was started with toolset {stamp['name']!r} version "
                f"{stamp['version']}, which agent {agent.name!r} does not offer in this form here; "
                "register it, or fork the session"
            )
    wanted = {stamp["name"] for stamp in blueprint.stamps}
    return tuple(item for item in admitted if item.name in wanted)
