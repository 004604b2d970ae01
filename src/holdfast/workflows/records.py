"""Records of runs, read from any store: everything about a run in one typed value."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from holdfast.core.events import Event
from holdfast.core.payloads import Slot
from holdfast.core.run_record import Checkpoint, Position, RunRecord, events_of, record_of
from holdfast.core.state import State
from holdfast.stores.port import SessionStore
from holdfast.views.values import value_or_erased

__all__ = ["Checkpoint", "Position", "RunRecord", "load_record"]

NEAR = 64
"""Events that are not further apart than this are read in one page."""


async def load_record(store: SessionStore, state: State) -> RunRecord:
    """Return the record of a run at a state of it."""
    events = await _events(store, state.session, events_of(state))
    lease = await store.lease_of(state.session)
    live = lease is not None and lease.live
    wanted: list[Slot] = []
    record_of(state, events, wanted.append, live=live)
    values: dict[tuple[str, str], Any] = {}
    for item in wanted:
        key = (item.id, item.encoding)
        if key not in values:
            values[key] = await value_or_erased(store, state.session, item)
    return record_of(state, events, lambda item: values[(item.id, item.encoding)], live=live)


async def _events(store: SessionStore, run: str, seqs: Iterable[int]) -> dict[int, Event]:
    found: dict[int, Event] = {}
    wanted = list(seqs)
    while wanted:
        last = max(seq for seq in wanted if seq - wanted[0] < NEAR)
        for event in await store.read_events(run, after=wanted[0] - 1, before=last + 1, limit=NEAR):
            found[event.seq] = event
        wanted = [seq for seq in wanted if seq > last]
    return found
