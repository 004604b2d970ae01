"""The context of a session: what a model would be sent now, and why each part is in or out.

Read from the log alone. A message that is out was left out by a compaction, which is named, so that
whoever misses a fact in an answer can tell whether the model had it before its eyes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from holdfast.core.facts import (
    MessageAppended,
    SessionCompacted,
    SessionConfigured,
    SessionStarted,
)
from holdfast.core.payloads import from_record
from holdfast.core.state import State
from holdfast.stores.port import SessionStore
from holdfast.views.messages import (
    CHARACTERS_PER_TOKEN,
    PAGE_EVENTS,
    Kept,
    covered,
    estimate_tokens,
    kept_entries,
    read_message,
)
from holdfast.views.values import hydrate, value_or_erased

WHY = {
    "inherited": "the fork began with it",
    "frame": "written by the compaction at event {boundary}",
    "repeated": "carried over by the compaction at event {boundary}",
    "evicted": "its output was evicted by the compaction at event {boundary}; a stub is shown",
    "message": "said since the boundary",
}


@dataclass(frozen=True, slots=True)
class ContextPart:
    """One part of the context, or one that is left out of it."""

    seq: int
    role: str
    part: str  # system, inherited, frame, repeated, evicted, message
    turn: int | None
    included: bool
    why: str
    tokens: int
    text: str | None  # None where it is left out


@dataclass(frozen=True, slots=True)
class ContextView:
    """What a model would be sent now; `tokens` is a rough count of it."""

    session: str
    tokens: int
    window: int | None
    boundary: int | None
    parts: tuple[ContextPart, ...]


@dataclass(frozen=True, slots=True)
class _Boundary:
    """One compaction of the log: for what it stands, and what it carried over."""

    seq: int
    last: int
    strategy: str
    carried: frozenset[int]


async def read_context(store: SessionStore, session_id: str) -> ContextView:
    """Return what the model would be sent now, after what it would not be sent any more."""
    state = await store.load_state(session_id)
    system, window = await _system(store, state)
    kept = [item async for item in kept_entries(store, session_id, state.compact_from, state.seq)]
    inside = [await _included(store, state, item) for item in kept]
    out = await _left_out(store, session_id, {item.seq for item in kept if item.part != "frame"})
    included = [*system, *inside]
    return ContextView(
        session=session_id,
        tokens=sum(part.tokens for part in included),
        window=window,
        boundary=state.compact_from,
        parts=(*system, *out, *inside),
    )


async def _included(store: SessionStore, state: State, item: Kept) -> ContextPart:
    message = await read_message(store, state.session, item.role, item.content)
    why = WHY[item.part].format(boundary=state.compact_from)
    if item.part == "repeated" and state.turn is not None and item.turn == state.turn.turn:
        why = "the message of the open turn"
    elif item.part == "message" and state.compact_from is None:
        why = "nothing was compacted"
    elif item.part == "message" and item.seq < (state.compact_from or 0):
        why = f"recent when the compaction at event {state.compact_from} was made"
    text = message.text
    return ContextPart(
        item.seq, item.role, item.part, item.turn, True, why, estimate_tokens(text), text
    )


async def _system(store: SessionStore, state: State) -> tuple[list[ContextPart], int | None]:
    """Return the system text in force, and the size of the window."""
    events = await store.read_events(state.session, after=state.configured - 1, limit=1)
    fact = events[0].fact()
    slot = fact.settings if isinstance(fact, SessionStarted | SessionConfigured) else None
    if slot is None:
        return [], None
    record: Any = await value_or_erased(store, state.session, slot)
    if not isinstance(record, dict):
        return [], None
    text = str(await value_or_erased(store, state.session, from_record(record["prompt"])))
    why = f"the session's system text, as stored by event {state.configured}"
    window = record.get("settings", {}).get("context_tokens") or None
    seq, tokens = state.configured, estimate_tokens(text)
    return [ContextPart(seq, "system", "system", None, True, why, tokens, text)], window


async def _left_out(store: SessionStore, session_id: str, kept: set[int]) -> list[ContextPart]:
    boundaries = await _boundaries(store, session_id)
    if not boundaries:
        return []
    last, after = boundaries[-1].last, 0
    parts: list[ContextPart] = []
    while page := await store.read_events(
        session_id,
        after=after,
        before=last + 1,
        limit=PAGE_EVENTS,
        types=[MessageAppended.TYPE],
    ):
        for event in page:
            fact = event.fact()
            if isinstance(fact, MessageAppended) and event.seq not in kept:
                why = _left_out_by(boundaries, event.seq)
                tokens = -(-fact.content.size // CHARACTERS_PER_TOKEN)
                parts.append(
                    ContextPart(
                        event.seq, fact.role, "message", fact.turn, False, why, tokens, None
                    )
                )
        after = page[-1].seq
    return parts


def _left_out_by(boundaries: list[_Boundary], seq: int) -> str:
    for item in boundaries:
        if item.last >= seq and seq not in item.carried:
            return f"left out by the compaction at event {item.seq} ({item.strategy})"
    return "left out by a compaction"


async def _boundaries(store: SessionStore, session_id: str) -> list[_Boundary]:
    found: list[_Boundary] = []
    after = 0
    while page := await store.read_events(
        session_id, after=after, limit=PAGE_EVENTS, types=[SessionCompacted.TYPE]
    ):
        for event in page:
            fact = event.fact()
            if not isinstance(fact, SessionCompacted):
                continue
            carried: list[int] = []
            if fact.content.kind == "transcript":
                record: Any = (await hydrate(store, session_id, fact.content)).value()
                carried = [entry["seq"] for entry in record["messages"] if "seq" in entry]
            last = covered(fact, event.seq)
            found.append(_Boundary(event.seq, last, fact.strategy, frozenset(carried)))
        after = page[-1].seq
    return found
