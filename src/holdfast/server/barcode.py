"""The log drawn as a barcode: a stripe for each event by its family, the scrubber of every page.

A long log is not read for it: then only what is rare and matters is drawn, such as turns, heads,
revivals and waits, the newest of each.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.stores.port import SessionStore

MOST_EVENTS = 600
MOST_MARKS = 150

FAMILIES = {
    "step": ("model", 12),
    "message": ("say", 9),
    "eval": ("code", 10),
    "leaf": ("leaf", 7),
    "call": ("tool", 10),
    "turn": ("fg", 14),
    "head": ("fg", 18),
    "node": ("model", 12),
    "edge": ("code", 6),
    "branch": ("child", 10),
    "run": ("fg", 16),
    "artifact": ("child", 14),
}
"""Colour and height by the first word of a type; anything else is book-keeping."""

MARKS = {
    "session.revived": ("cut", 18),
    "call.suspended": ("wait", 18),
    "budget.exceeded": ("bad", 18),
    "run.paused": ("wait", 18),
    "run.failed": ("bad", 18),
    "session.compacted": ("child", 18),
}
RARE = ("turn.started", "head.published", *MARKS)


@dataclass(frozen=True, slots=True)
class Stripe:
    """One event of the barcode."""

    x: int
    tone: str
    height: int


def tone_of(type_name: str) -> tuple[str, int]:
    """Return the colour and height of an event."""
    if type_name in MARKS:
        return MARKS[type_name]
    return FAMILIES.get(type_name.partition(".")[0], ("book", 5))


async def stripes(store: SessionStore, session_id: str, seq: int) -> list[Stripe]:
    """Return the stripes of a log whose last event is `seq`."""
    if seq <= MOST_EVENTS:
        found = await store.read_events(session_id, limit=MOST_EVENTS)
    else:
        found = await store.read_events(
            session_id, limit=MOST_MARKS, reverse=True, types=list(RARE)
        )
        found.reverse()
    return [Stripe(event.seq - 1, *tone_of(event.type)) for event in found if event.seq <= seq]
