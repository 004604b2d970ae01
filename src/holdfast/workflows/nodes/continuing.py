"""Conversations that go on: an agent node with `session: continue` forks the session it had before.

Each execution has a session of its own, which starts with the transcript and the namespace that the
one before it ended with. So a retry or a rewind goes on from the same place.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from holdfast.core.facts import CallResolved
from holdfast.core.payloads import Slot, manifest_slots
from holdfast.core.run_facts import NodeFinished
from holdfast.runtime.forks import Derived, derive
from holdfast.stores.port import SessionStore
from holdfast.views.values import hydrate, read_value

PAGE_EVENTS = 100


@dataclass(frozen=True, slots=True)
class Continued:
    """What the session of a node starts with that goes on from an earlier one."""

    derived: Derived
    payloads: list[Slot]


async def continued(
    store: SessionStore, run: str, seq: int, fact: NodeFinished, resolved: CallResolved | None
) -> Continued | None:
    """Return what a node's next session starts with, by how the node ended last."""
    if fact.reused is not None:  # the conversation is one of the run that it was taken over from
        run, seq = str(fact.reused["session"]), int(fact.reused["seq"])
        (event,) = await store.read_events(run, after=seq - 1, limit=1)
        there = event.fact()
        assert isinstance(there, NodeFinished)
        return await continued(store, run, seq, there, None)
    if resolved is None:
        resolved = await _resolved(store, run, seq, f"{fact.node}.{fact.execution}.")
    if resolved is None or resolved.result is None:
        return None  # a person gave the value
    said: Any = await read_value(store, run, resolved.result)
    if not isinstance(said, dict) or not said.get("session") or not said.get("head"):
        return None
    session = str(said["session"])
    derived = await derive(store, session, str(said["head"]))
    payloads = [derived.transcript, *derived.payloads]
    for item in (derived.transcript, derived.vars):
        if item is not None:
            have = {one.id for one in payloads}
            payloads += [part async for part in _whole(store, session, item, have)]
    return Continued(derived, payloads)


async def _resolved(store: SessionStore, run: str, seq: int, calls: str) -> CallResolved | None:
    """Return the last outcome of an execution's calls, which stands before its end."""
    before = seq
    types = [CallResolved.TYPE]
    while page := await store.read_events(
        run, before=before, limit=PAGE_EVENTS, reverse=True, types=types
    ):
        for event in page:
            fact = event.fact()
            if isinstance(fact, CallResolved) and fact.call_id.startswith(calls):
                return fact
        before = page[-1].seq
    return None


async def _whole(
    store: SessionStore, session: str, item: Slot, have: set[str]
) -> AsyncIterator[Slot]:
    """Yield a value of another session with its bytes, and all that it refers to."""
    if item.erased is not None:
        return
    found = await hydrate(store, session, item)
    yield found
    if found.encoding == "manifest":
        for part in manifest_slots(found, found.data or b""):
            if part.data is None and part.id not in have:
                async for inner in _whole(store, session, part, have):
                    yield inner
