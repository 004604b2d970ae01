"""Heads and lineage edges as readers see them: all that the log has of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

from holdfast.core import facts
from holdfast.core.payloads import Slot
from holdfast.stores.port import SessionStore

PAGE_EVENTS = 500


@dataclass(frozen=True, slots=True)
class HeadView:
    """A head: a position to go on from, which proves every event before it."""

    seq: int
    at: str
    id: str
    version: int
    session: str
    kind: str
    turn: int | None
    basis: str | None
    range: tuple[int, ...]
    digest: str
    vars: Slot | None
    final: Slot | None
    compact_from: int | None
    fact: facts.HeadPublished


def head_view(seq: int, at: str, fact: facts.HeadPublished) -> HeadView:
    """Return the view of a head."""
    return HeadView(
        seq=seq,
        at=at,
        id=fact.id,
        version=fact.version,
        session=fact.session,
        kind=fact.kind,
        turn=fact.turn,
        basis=fact.basis,
        range=tuple(fact.range),
        digest=fact.digest,
        vars=fact.vars,
        final=fact.final,
        compact_from=fact.compact_from,
        fact=fact,
    )


@dataclass(frozen=True, slots=True)
class EdgeView:
    """A lineage edge: the head of one session that led to the head of another."""

    seq: int
    at: str
    id: str
    version: int
    type: str
    from_session: str
    from_head: str | None
    to_session: str
    to_head: str
    call_id: str | None
    fact: facts.LineageAdded


def edge_view(seq: int, at: str, fact: facts.LineageAdded) -> EdgeView:
    """Return the view of an edge."""
    return EdgeView(
        seq=seq,
        at=at,
        id=fact.id,
        version=fact.version,
        type=fact.type,
        from_session=fact.from_session,
        from_head=fact.from_head,
        to_session=fact.to_session,
        to_head=fact.to_head,
        call_id=fact.call_id,
        fact=fact,
    )


async def read_edges(store: SessionStore, session_id: str) -> AsyncIterator[EdgeView]:
    """Yield the edges that a session's log holds, oldest first; one added twice counts once."""
    after, seen = 0, set[str]()
    while page := await store.read_events(
        session_id, after=after, limit=PAGE_EVENTS, types=[facts.LineageAdded.TYPE]
    ):
        for event in page:
            fact = event.fact() if event.known else None
            if isinstance(fact, facts.LineageAdded) and fact.id not in seen:
                seen.add(fact.id)
                yield edge_view(event.seq, event.at, fact)
        after = page[-1].seq


async def head_end(store: SessionStore, session_id: str, head: str) -> int | None:
    """Return the last position that a head of a session covers; None where it has no such head."""
    before: int | None = None
    while page := await store.read_events(
        session_id,
        before=before,
        limit=PAGE_EVENTS,
        reverse=True,
        types=[facts.HeadPublished.TYPE],
    ):
        for event in page:
            fact = event.fact() if event.known else None
            if isinstance(fact, facts.HeadPublished) and fact.id == head:
                return fact.range[1]
        before = page[-1].seq
    return None
