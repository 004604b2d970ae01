"""Importing a copy of a session's log, and restoring with it what is damaged here."""

from __future__ import annotations

from msgspec import structs

from holdfast.core.events import Event
from holdfast.core.fold import fold
from holdfast.core.payloads import Slot, walk
from holdfast.core.replay import Copy, replay
from holdfast.core.state import State, empty
from holdfast.stores import rows
from holdfast.stores.port import ImportOutcome
from holdfast.stores.relational import events, leases, payloads, pending, sessions
from holdfast.stores.relational.events import States
from holdfast.stores.relational.plan import Change, Plan, Query
from holdfast.stores.relational.sessions import SessionRow
from holdfast.stores.tenancy import Address


def import_log(states: States, tenant: str, copy: Copy) -> Plan[tuple[ImportOutcome, State | None]]:
    """Store a copy of a log; the state is None where nothing changed."""
    row = yield from sessions.look_up(Address(tenant, copy.session), lock=True)
    stored = [] if row is None else (yield from _stored(row, copy))
    new = rows.forward(copy.session, stored, copy.events)
    if row is not None:
        row = yield from _heal(states, row, copy)
    if not new:
        return ImportOutcome(copy.session, "unchanged", 0), None
    gone: dict[str, tuple[str, str]] = {}
    before = empty(copy.session)
    if row is None:
        outcome = "created"
        state = fold(before, new)
        row = yield from sessions.insert(state)
    else:
        outcome = "forwarded"
        yield from leases.check_free(row)
        log = yield from events.whole(row)
        slots = [item for event in log for item in walk(event.data)]
        said = {item.id for item in slots if item.erased is None}
        gone = yield from payloads.gone(row, said)
        new = rows.erase_again(new, gone)
        before = yield from states.load(row)
        state = fold(before, new)
        yield from sessions.move(row.key, state)
    for item in rows.slots_with_inner(new, copy.payloads, {**copy.erased, **gone}):
        if item.erased is not None:
            yield from _mark_erased(row, item)
        elif not item.inline:
            whole = structs.replace(item, data=copy.payloads[item.id])
            yield from payloads.keep(row, [whole], used=True)
    yield from events.insert(row.key, new)
    yield from events.take_snapshot(row.key, state)
    yield from pending.follow(row, before, state, tuple(new))
    yield Change("mark_imported", (int(rows.has_open_work(state)), row.key))
    states.remember(row.key, state)
    return ImportOutcome(copy.session, outcome, len(new)), state


def _heal(states: States, row: SessionRow, copy: Copy) -> Plan[SessionRow]:
    """Restore what is damaged here of the part that both logs have."""
    known = copy.events[: row.seq]
    whole = len(known) == row.seq
    wrong = yield from events.damaged(row, known)
    if wrong or (whole and row.digest != bytes.fromhex(known[-1].digest)):
        state = replay(empty(copy.session), known)  # what heals must prove itself
        good = rows.erase_again(wrong, (yield from payloads.gone(row, set())))
        yield from events.heal(row.key, good)
        for item in (item for event in good for item in walk(event.data)):
            if item.erased is not None:
                yield from _mark_erased(row, item)
    elif whole:
        state = yield from states.load(row)
    if whole:
        row = yield from sessions.heal(row, state)
    for item in rows.slots_with_inner(known, copy.payloads, copy.erased):
        if item.erased is None and not item.inline:
            given = structs.replace(item, data=copy.payloads[item.id])
            yield from payloads.heal(row, given)
    return row


def _mark_erased(row: SessionRow, item: Slot) -> Plan[None]:
    """Record an erasure that a log brings along."""
    assert item.erased is not None
    yield from payloads.mark_erased(row, item.id, item.erased.at, item.erased.rule)


def _stored(row: SessionRow, copy: Copy) -> Plan[list[Event]]:
    """Return the stored log as far as comparing goes; a lost event counts as the copy's."""
    rowed = yield Query("event_digests", (row.key,))
    found = {seq: digest for seq, digest in rowed if isinstance(digest, bytes)}
    theirs = {event.seq: bytes.fromhex(event.digest) for event in copy.events}
    if row.digest == theirs.get(row.seq):
        found[row.seq] = row.digest
    digests = [found.get(seq, theirs.get(seq, b"")) for seq in range(1, row.seq + 1)]
    return [Event(row.id, seq, "", 0, "", {}, d.hex()) for seq, d in enumerate(digests, 1)]
