"""Interactions: what people were asked in a run, by whom they were asked, and what they said.

Each ask is a call with an id of its own, so that none overwrites another. Questions of an agent in
the middle of its work stand in the log of the session that it works in; they are found from here.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

from holdfast.core.errors import SessionNotFound
from holdfast.core.facts import CallRequested, CallResolved, CallSuspended
from holdfast.core.payloads import Slot
from holdfast.stores.port import SessionStore

PAGE_EVENTS = 500
_TYPES = (CallRequested.TYPE, CallSuspended.TYPE, CallResolved.TYPE)
_ASKS = ("question", "approval", "unknown", "signal")


@dataclass(frozen=True, slots=True)
class Interaction:
    """One ask: the call, where it came from, the question and, once there is one, the answer."""

    id: str  # of the call
    run: str
    session: str  # whose call it is: the run, or the session of an agent in it
    node: str
    seq: int
    requested_at: str
    kind: str
    question: Slot | None
    schema: Slot | None
    deadline: str | None
    assignee: str | None
    answered_at: str | None = None
    outcome: str | None = None
    answer: Slot | None = None
    by: str | None = None

    @property
    def open(self) -> bool:
        """Tell whether it still waits for an answer."""
        return self.outcome is None


def node_of(call_id: str) -> str:
    """Return the node whose call an id of a run is."""
    return call_id.split(".", 1)[0]


async def interactions(store: SessionStore, run: str) -> list[Interaction]:
    """Return everything that people were asked in a run, in the order of asking."""
    found, children = await _of(store, run, run, None)
    for node, child in children:
        try:
            asked, _ = await _of(store, run, child, node)
        except SessionNotFound:
            continue  # it has not begun yet
        found += asked
    return sorted(found, key=lambda one: (one.requested_at, one.session, one.seq))


async def _of(
    store: SessionStore, run: str, session: str, node: str | None
) -> tuple[list[Interaction], list[tuple[str, str]]]:
    found: dict[str, Interaction] = {}
    requested: dict[str, CallRequested] = {}
    children: list[tuple[str, str]] = []
    async for seq, at, fact in _facts(store, session):
        match fact:
            case CallRequested():
                requested[fact.call_id] = fact
                if fact.child is not None and node is None:
                    children.append((node_of(fact.call_id), fact.child))
            # What an agent asks stands in its own log; its call here only waits along.
            case CallSuspended() if (
                fact.kind in _ASKS and fact.on is None and fact.call_id in requested
            ):
                asked = requested[fact.call_id]
                found[fact.call_id] = Interaction(
                    id=fact.call_id,
                    run=run,
                    session=session,
                    node=node or node_of(fact.call_id),
                    seq=seq,
                    requested_at=at,
                    kind=fact.kind,
                    question=fact.prompt or asked.arguments,
                    schema=fact.schema,
                    deadline=fact.deadline or asked.deadline,
                    assignee=fact.assignee,
                )
            case CallResolved() if fact.call_id in found:
                found[fact.call_id] = replace(
                    found[fact.call_id],
                    answered_at=at,
                    outcome=fact.outcome,
                    answer=fact.result,
                    by=fact.by,
                )
    return list(found.values()), children


async def _facts(
    store: SessionStore, session: str
) -> AsyncIterator[tuple[int, str, CallRequested | CallSuspended | CallResolved]]:
    after = 0
    while page := await store.read_events(session, after=after, limit=PAGE_EVENTS, types=_TYPES):
        for event in page:
            fact = event.fact() if event.known else None
            if isinstance(fact, CallRequested | CallSuspended | CallResolved):
                yield event.seq, event.at, fact
        after = page[-1].seq
