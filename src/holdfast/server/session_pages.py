"""What the pages of one session share: its head, the limits left, the barcode, its turns."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from holdfast.core.errors import NotFound
from holdfast.core.facts import SessionConfigured, SessionStarted
from holdfast.core.state import State
from holdfast.server.as_of import States
from holdfast.server.barcode import stripes
from holdfast.stores.port import SessionStore
from holdfast.views.costs import cost_of
from holdfast.views.transcript import TurnTranscript, transcript
from holdfast.views.values import value_or_erased

TURNS = 5
"""Turns on one page: the page stays small however long the session is."""

FOR_PEOPLE = ("question", "approval", "client", "unknown", "signal")
LIMITS = ("max_usd", "max_tokens", "max_steps", "max_seconds", "model")


async def head_values(store: SessionStore, session_id: str) -> dict[str, Any]:
    """Return what the head of each page shows."""
    info = await store.session_info(session_id)
    state = await store.load_state(session_id)
    cost = cost_of(state)
    limits = await limits_of(store, state)
    lease = await store.lease_of(session_id)
    asked = [call for call in state.calls.values() if call.waits_for in FOR_PEOPLE]
    return {
        "info": info,
        "cost": cost,
        "state": state,
        "limits": limits,
        "meter_part": _meter(
            Decimal(cost.known_usd), Decimal(cost.reserved_usd), limits["max_usd"]
        ),
        "driven": lease is not None and lease.live,
        "driver": lease.owner if lease is not None and lease.live else None,
        "questions": asked[:1],
        "waiting": len(asked),
        "at": None,
        "tip": state.seq,
        "selected": "",
        "stripes": [],
    }


async def page_values(
    store: SessionStore, states: States, session_id: str, at: int | None, selected: str
) -> tuple[SessionStore, dict[str, Any]]:
    """Return the store to read from and the values of a page, now or as of an event."""
    values = await head_values(store, session_id)
    tip = values["tip"]
    values |= {"stripes": await stripes(store, session_id, tip), "selected": selected}
    if at is None or at >= tip:
        return store, values
    then = await states.store_at(store, session_id, at)
    state = await then.load_state(session_id)
    calls = [call for call in state.calls.values() if call.waits_for in FOR_PEOPLE]
    (event,) = await store.read_events(session_id, after=at - 1, limit=1)
    past = {
        "at": at,
        "state": state,
        "info": await then.session_info(session_id),
        "cost": cost_of(state),
        "when_at": event.at,
        "event_type": event.type,
        "questions": [],
        "waiting": len(calls),
    }
    return then, values | past


def _meter(known: Decimal, held: Decimal, limit: Any) -> tuple[float, float] | None:
    """Return how much of a limit is used and held, in percent."""
    if not limit or not Decimal(str(limit)):
        return None
    whole = Decimal(str(limit))
    used = min(100.0, float(known / whole * 100))
    return used, min(100.0 - used, float(held / whole * 100))


async def limits_of(store: SessionStore, state: State) -> dict[str, Any]:
    """Return the limits in force, as the settings of the session have them."""
    events = await store.read_events(state.session, after=state.configured - 1, limit=1)
    fact = events[0].fact() if events and events[0].known else None
    slot = fact.settings if isinstance(fact, SessionStarted | SessionConfigured) else None
    record: Any = None if slot is None else await value_or_erased(store, state.session, slot)
    settings = record.get("settings", {}) if isinstance(record, dict) else {}
    return {name: settings.get(name) or None for name in LIMITS}


async def turns_window(store: SessionStore, session_id: str, last: int | None) -> dict[str, Any]:
    """Return a window of turns that ends with `last`, by default the newest ones."""
    newest = (await store.session_info(session_id)).turns
    end = newest if last is None else min(max(1, last), newest)
    begin = max(1, end - TURNS + 1)
    turns: list[TurnTranscript] = []
    for number in range(begin, end + 1):
        try:
            async for item in transcript(store, session_id, turn=number):
                if isinstance(item, TurnTranscript):
                    turns.append(item)
        except NotFound:
            continue  # only events that this release does not know say something of it
    older = begin - 1 if begin > 1 else None
    return {"turns": turns, "older": older, "newer": end < newest}
