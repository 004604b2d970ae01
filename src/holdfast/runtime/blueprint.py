"""The blueprint: what a session is driven with, as stored in its first event.

Model names, limits, capability, the prompt's text by payload and hash, and the stamps of agent and
tools: revival reads this, never today's defaults. Functions and keys are never part of it. Software
changes while sessions live: what an agent has become is compared when a turn begins, recorded as
`session.configured`, and holds from there on.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

from holdfast.core.capability import Capability, profile
from holdfast.core.errors import AgentMissing, InvalidSettings
from holdfast.core.facts import SessionConfigured, SessionStarted
from holdfast.core.payloads import Slot, from_record, manifest, slot, to_record
from holdfast.runtime import prompt
from holdfast.runtime import tools as tool_module
from holdfast.runtime.agent import Agent
from holdfast.runtime.brokers import work_tools
from holdfast.runtime.settings import NAMES, Settings, resolve
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
    agent: dict[str, Any] | None = None  # the settings that the agent brought
    output_schema: dict[str, Any] | None = None

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
        # Names of settings and of schemas are the user's: as a value they cannot be taken for refs.
        texts = {"agent": self.agent, "output_schema": self.output_schema}
        slots = {
            name: slot(value, "settings") for name, value in texts.items() if value is not None
        }
        record |= {name: to_record(item) for name, item in slots.items()}
        return manifest(record, "settings"), [text, *slots.values()]


def hidden_paths(store: SessionStore, work_area: str) -> tuple[str, ...]:
    """Return what no session may read or write though it lies in its work area: the stores."""
    kind, _, place = store.flags.url.partition(":")
    places = {os.path.realpath(os.path.join(work_area, STORE_FOLDER))}
    if kind != "memory" and place:
        places.add(os.path.realpath(place))
    return tuple(sorted(filter(os.path.exists, places)))


def tool_paths(agent: Agent[Any]) -> tuple[str, ...]:
    """Return the tools that sessions of an agent may use or hand on to children.

    Its own, and those of the agents among them: a child gets no tool that its parent may not use.
    """
    own = [(tool_module.path(item, one), one) for item in agent.toolsets for one in item.tools]
    below = (tool_paths(one.delegate.agent) for _, one in own if one.delegate is not None)
    return tuple(
        dict.fromkeys((*(name for name, _ in own), *(n for names in below for n in names)))
    )


def _prompt(
    settings: Settings,
    gates: Capability,
    admitted: Sequence[Toolset],
    agent: Agent[Any],
    kernel_card: str,
    depth: int,
) -> str:
    """Return the system text of a session, which has so many above it."""
    return prompt.compose(
        kernel_card=kernel_card,
        model_calls=gates.model_calls,
        max_fanout=settings.max_fanout,
        depth_left=settings.max_depth - depth,
        tool_card=tool_module.card(admitted),
        instructions=settings.instructions,
        harness=settings.harness,
        output_schema=agent.output_schema,
    )


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
            f"work_area is {settings.work_area!r}, which is not a folder; make it, or name another"
        )
    area = str(Path(settings.work_area or ".").resolve())
    settings = replace(settings, work_area=area)
    gates = capability or profile(settings.profile, area, tool_paths(agent))  # type: ignore[arg-type]
    admitted = offered(agent, gates, area, store)
    text = _prompt(settings, gates, admitted, agent, kernel_card, depth)
    return Blueprint(
        settings=settings,
        capability=gates,
        prompt=text,
        stamps=tuple(item.stamp() for item in admitted),
        seed=seed,
        agent=agent.given(),
        output_schema=agent.output_schema,
    )


def renewed(
    blueprint: Blueprint,
    agent: Agent[Any],
    *,
    kernel_card: str,
    store: SessionStore,
    depth: int = 0,
    explicit: Mapping[str, Any] | None = None,
) -> tuple[Blueprint, dict[str, Any]]:
    """Return the blueprint that an agent's present form leads to, and each change: old, new.

    By itself a changed agent widens nothing: no limit grows and no tool is added to those that the
    session's capability names. `explicit` is what someone asks for, who may widen both.
    """
    old = blueprint.settings
    given = {} if blueprint.agent is None else _changed(blueprint.agent, agent.given())
    given = {name: value for name, value in given.items() if _applies(old, name, value)}
    settings = resolve({**old.to_record(), **given, **(explicit or {})}, environment={}).settings
    gates = blueprint.capability
    if explicit is not None:
        gates = replace(gates, tools=tuple(dict.fromkeys((*gates.tools, *tool_paths(agent)))))
    admitted = offered(agent, gates, settings.work_area, store)
    stamps = tuple(item.stamp() for item in admitted)
    changes: dict[str, Any] = {
        name: [getattr(old, name), getattr(settings, name)]
        for name in NAMES
        if getattr(old, name) != getattr(settings, name)
    }
    if list(stamps) != list(blueprint.stamps):
        changes["tools"] = [_tools(blueprint.stamps), _tools(stamps)]
    if blueprint.agent is not None and agent.output_schema != blueprint.output_schema:
        changes["output_type"] = [blueprint.output_schema, agent.output_schema]
    text = blueprint.prompt
    if changes.keys() & {"tools", "output_type", "instructions", "harness", "max_fanout"}:
        text = _prompt(settings, gates, admitted, agent, kernel_card, depth)
    plan = replace(
        blueprint,
        settings=settings,
        capability=gates,
        prompt=text,
        stamps=stamps,
        agent=agent.given(),
        output_schema=agent.output_schema,
    )
    return plan, changes


NEVER_BY_ITSELF = frozenset({"profile", "work_area", "kernel", "harness"})
"""Settings of reach and of what is in the namespace, which only an explicit act changes."""


def _changed(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in now.items() if before.get(name) != value}


def _applies(settings: Settings, name: str, value: Any) -> bool:
    """Tell whether a changed agent may bring a setting by itself: a limit only if it is lower."""
    if name in NEVER_BY_ITSELF:
        return False
    if not name.startswith("max_") and not name.endswith(("_seconds", "_concurrency")):
        return True
    old, new = Decimal(str(getattr(settings, name) or 0)), Decimal(str(value or 0))
    return new != 0 and (old == 0 or new < old)  # 0 is no limit


def _tools(stamps: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return tools as a change tells them: names, and a digest of what the model reads of them."""
    return [
        f"{stamp['name']}.{item['name']}".lstrip(".") + f" {item['signature']} {stamp['card'][:19]}"
        for stamp in stamps
        for item in stamp["tools"]
    ]


async def load(store: SessionStore, session_id: str, configured: int = 1) -> Blueprint:
    """Return the blueprint of a session, as the event has it that configured it last."""
    page = await store.read_events(session_id, after=configured - 1, limit=1)
    first = page[0].fact()
    assert isinstance(first, SessionStarted | SessionConfigured)
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
        agent=await _value(store, session_id, record.get("agent")),
        output_schema=await _value(store, session_id, record.get("output_schema")),
    )


async def _value(store: SessionStore, session_id: str, record: Any) -> Any:
    if record is None:
        return None
    return (await hydrate(store, session_id, from_record(record))).value()


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
    store: SessionStore, blueprint: Blueprint, agent: Agent[Any]
) -> tuple[Toolset, ...]:
    """Return the tools that the settings in force name; for those that are gone, a stand-in.

    A turn that is open goes on with these; what the agent has changed is taken up by the next one.
    """
    admitted = offered(agent, blueprint.capability, blueprint.settings.work_area, store)
    here = {(item.name, one.name): one for item in admitted for one in item.tools}
    known = {item.name: item for item in admitted}
    kept = []
    for stamp in blueprint.stamps:
        name = stamp["name"]
        tools = tuple(
            here.get((name, item["name"])) or tool_module.stand_in(item) for item in stamp["tools"]
        )
        group = known.get(name)
        kept.append(
            Toolset(name, stamp["version"], tools) if group is None else replace(group, tools=tools)
        )
    return tuple(kept)
