"""What the pages of one session show: its head, a window of its turns, what a model was sent."""

from __future__ import annotations

from typing import Any

from holdfast.core.errors import NotFound
from holdfast.core.facts import SessionCompacted
from holdfast.runtime.runtime import Runtime
from holdfast.stores.port import SessionStore
from holdfast.views.context import WHY
from holdfast.views.costs import cost_of
from holdfast.views.messages import kept_entries, read_message
from holdfast.views.transcript import TurnTranscript

TURNS = 5
"""Turns on one page: the page stays small however long the session is."""


async def head_values(store: SessionStore, session_id: str) -> dict[str, Any]:
    """Return what the head of each page shows."""
    info = await store.session_info(session_id)
    state = await store.load_state(session_id)
    return {"info": info, "cost": cost_of(state)}


async def session_page(runtime: Runtime, session_id: str, last: int | None) -> dict[str, Any]:
    """Return a window of turns that ends with `last`, by default the newest ones."""
    values = await head_values(runtime.store, session_id)
    newest = values["info"].turns
    end = newest if last is None else min(max(1, last), newest)
    begin = max(1, end - TURNS + 1)
    turns: list[TurnTranscript] = []
    for number in range(begin, end + 1):
        try:
            async for item in runtime.transcript(session_id, turn=number):
                if isinstance(item, TurnTranscript):
                    turns.append(item)
        except NotFound:
            continue  # only events that this release does not know say something of it
    older = begin - 1 if begin > 1 else None
    return values | {"tab": "transcript", "turns": turns, "older": older, "newer": end < newest}


async def step_parts(
    runtime: Runtime, session_id: str, number: int
) -> tuple[list[str], list[tuple[str, str, str]]]:
    """Return what the model was sent at a step, derived from the log, and how sure that is."""
    store = runtime.store
    after = 0
    while True:
        found = await runtime.steps(session_id, after=after, limit=500)
        if not found:
            raise NotFound(f"session {session_id!r} has no step {number}")
        step = next((item for item in found if item.step == number), None)
        if step is not None:
            break
        after = found[-1].seq
    compacted = await store.read_events(
        session_id, before=step.seq, reverse=True, limit=1, types=[SessionCompacted.TYPE]
    )
    boundary = compacted[0].seq if compacted else None
    parts: list[tuple[str, str, str]] = []
    async for kept in kept_entries(store, session_id, boundary, step.seq):
        message = await read_message(store, session_id, kept.role, kept.content)
        why = WHY[kept.part].format(boundary=boundary)
        parts.append((kept.role, message.text, why))
    notes = [
        f"{step.model or 'no model'}, {step.status}; {len(parts)} messages, derived from the log.",
        "The system text and texts added to one call alone are not among them.",
    ]
    if boundary is not None:
        notes.append(f"The compaction at event {boundary} stands for what was said before it.")
    if step.started.request is not None:
        notes.append(f"The log keeps the digest of the whole request: {step.started.request}.")
    return notes, parts
