"""Erasing a value from a session: from its events, its inbox, and its payloads."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core.errors import Corruption, InvalidInput
from holdfast.core.events import now
from holdfast.core.payloads import Slot, walk
from holdfast.stores import rows
from holdfast.stores.relational import events, inbox, payloads, sessions
from holdfast.stores.relational.plan import Change, Plan
from holdfast.stores.relational.sessions import SessionRow
from holdfast.stores.tenancy import Address


def erase(address: Address, payload_id: str, rule: str) -> Plan[int]:
    """Erase a value; return in how many places. Its blob may be unused then."""
    row = yield from sessions.find(address, lock=True)
    at = now()
    slots: list[Slot] = []
    for event in (yield from events.whole(row)):
        here = list(walk(event.data))
        slots += here
        if any(item.id == payload_id and item.erased is None for item in here):
            text = events.data_text(rows.erase_in(event, payload_id, at, rule))
            yield Change("rewrite_event", (text, row.key, event.seq))
    places = [item for item in slots if item.id == payload_id and item.erased is None]
    asked = [item for item in (yield from inbox.items(row)) if item.content is not None]
    holding = [item for item in asked if rows.holds(item, payload_id)]
    found = yield from payloads.find(row, payload_id)
    referred = found is not None and found.used is not None
    if not places and not holding and not referred:
        if (yield from payloads.erasure(row, payload_id)) is not None:
            return 0
        raise rows.foreign_error(row.id, payload_id)
    for item in holding:
        yield from inbox.rewrite(row, rows.erase_item(item, payload_id, at, rule))
    parts = yield from _parts(row, payload_id, found, places)
    yield from payloads.mark_erased(row, payload_id, at, rule)
    if found is not None and referred:
        yield from payloads.let_go(row, payload_id, found)
    if parts:
        slots += [item.content for item in asked if item.content is not None]
        yield from _leave_to_gc(row, parts, [s for s in slots if s.id != payload_id])
    return max(len(places), 1)


def _parts(
    row: SessionRow, payload_id: str, found: payloads.Found | None, places: Sequence[Slot]
) -> Plan[set[str]]:
    """Return what a value leads to as a manifest; a part of another has no place itself."""
    if found is None or (places and all(item.encoding != "manifest" for item in places)):
        return set()
    whole = Slot(payload_id, "manifest", "chunk", found.size)
    try:
        return (yield from payloads.closure(row, [whole])) - {payload_id}
    except (Corruption, InvalidInput):
        return set()  # not a manifest, or a damaged one


def _leave_to_gc(row: SessionRow, parts: set[str], slots: Sequence[Slot]) -> Plan[None]:
    """Mark those parts of an erased manifest as unused that nothing else leads to."""
    try:
        parts = parts - (yield from payloads.closure(row, slots))
    except (Corruption, InvalidInput):
        return  # what a damaged manifest leads to cannot be told
    for part in parts:
        found = yield from payloads.find(row, part)
        if found is not None:
            yield from payloads.unuse(row, part, found)
