"""What changes a session: creating, appending, asking, driving and deleting, each as one plan.

A plan finds the session's row, checks everything against it, then writes.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import msgspec

from holdfast.core.errors import Corruption, PositionConflict
from holdfast.core.events import now
from holdfast.core.facts import Fact, SessionStarted
from holdfast.core.heads import EdgeDraft, HeadDraft
from holdfast.core.log import Batch, extend
from holdfast.core.payloads import Slot
from holdfast.core.state import State, empty
from holdfast.stores import rows, snapshots
from holdfast.stores.owner import Heartbeat
from holdfast.stores.port import Appended, InboxDraft, InboxItem, Lease, LeaseInfo
from holdfast.stores.relational import derived, events, inbox, leases, payloads, pending, sessions
from holdfast.stores.relational.events import States
from holdfast.stores.relational.plan import Plan
from holdfast.stores.relational.sessions import SessionRow
from holdfast.stores.tenancy import Address

logger = logging.getLogger("holdfast.stores")


class Request(msgspec.Struct, frozen=True, gc=False):
    """What a caller asks to append."""

    lease: Lease
    after_seq: int
    facts: Sequence[Fact]
    head: HeadDraft | None
    edges: Sequence[EdgeDraft]
    consumes: Sequence[str]
    payloads: Sequence[Slot]
    adopt_from: str | None
    release: bool
    posts: Sequence[tuple[str, InboxDraft]] = ()


def create(
    states: States,
    address: Address,
    started: SessionStarted,
    given: Sequence[Slot],
    adopt_from: str | None,
) -> Plan[State]:
    """Create a session by its first event, or return the existing one's state."""
    row = yield from sessions.look_up(address, lock=True)
    batch = extend(empty(address.id), [started], at=now(), payloads=given)
    if row is not None:
        found = yield from events.page(row, limit=1)
        if not found or found[0].seq != 1:
            raise events.gap(row, 1)
        rows.check_same_start(found[0], batch.events[0])
        return (yield from states.load(row))
    source = None
    if adopt_from is not None:
        source = yield from sessions.find(Address(address.tenant, adopt_from))
    row = yield from sessions.insert(batch.state)
    yield from _store(states, row, batch, source, empty(address.id))
    return batch.state


Positions = list[tuple[str, int]]
"""Sessions that moved, and where they are."""


def append(states: States, tenant: str, request: Request) -> Plan[tuple[Appended, Positions]]:
    """Append one batch, checked against the session's row; return also which sessions moved."""
    lease = request.lease
    row = yield from sessions.find(Address(tenant, lease.session), lock=True)
    yield from leases.check(row, lease)
    before = yield from states.load(row)
    if before.seq != request.after_seq:
        raise PositionConflict(
            f"session {row.id!r} is at event {before.seq}, not {request.after_seq}; load its state "
            "again",
            seq=before.seq,
        )
    batch = extend(
        before,
        request.facts,
        at=now(),
        head=request.head,
        edges=request.edges,
        payloads=request.payloads,
    )
    source = None
    if request.adopt_from is not None:
        source = yield from sessions.find(Address(tenant, request.adopt_from))
    for key in request.consumes:
        yield from inbox.consume(row, key, batch.state.seq)
    yield from _store(states, row, batch, source, before)
    yield from sessions.move(row.key, batch.state)
    yield from pending.follow(row, before, batch.state, batch.events)
    moved = [(row.address.key, batch.state.seq)]
    for target, draft in sorted(request.posts, key=lambda post: (post[0], post[1].key)):
        position = yield from inbox.post(row, target, draft)
        moved += [] if position is None else [position]
    waiting = None
    if request.release:
        yield from leases.release(row.address, lease)
        waiting = yield from inbox.count_waiting(row)
    return Appended(batch.events, batch.state, batch.head, waiting), moved


def _store(
    states: States, row: SessionRow, batch: Batch, source: SessionRow | None, before: State
) -> Plan[None]:
    unused = batch.unreferenced
    if len(batch.refs) > len(batch.payloads):
        unused -= yield from payloads.prove(row, batch, source, before, used=True)
        yield from payloads.prove(row, batch, source, before, used=False)
    if batch.payloads:
        yield from payloads.keep(row, batch.payloads.values(), used=True, unused=unused)
    yield from events.insert(row.key, batch.events)
    due = snapshots.is_due(batch.events[0].seq - 1, batch.state.seq)
    if states.needs_snapshot(row.key) or due:
        yield from events.take_snapshot(row.key, batch.state)
    states.remember(row.key, batch.state)


def is_stored(state: State) -> Plan[bool]:
    """Tell whether a state's last event is in the log."""
    row = yield from sessions.look_up(Address(state.tenant, state.session))
    return (yield from events.is_stored(state, row))


def put_payload(address: Address, item: Slot) -> Plan[Slot]:
    """Store a payload for later appends."""
    row = yield from sessions.find(address)
    yield from payloads.keep(row, [item], used=False)
    return item.bare()


def put_inbox(address: Address, draft: InboxDraft) -> Plan[tuple[InboxItem, int]]:
    """Store an inbox item; return it with the session's position."""
    # Locked: whoever gives the lease back in the same moment counts this item, or comes before it.
    row = yield from sessions.find(address, lock=True)
    item, new = yield from inbox.put(row, draft)
    if new and draft.content is not None and not draft.content.inline:
        yield from payloads.keep(row, [draft.content], used=True)
    return item, row.seq


class Claim(msgspec.Struct, frozen=True, gc=False):
    """What a caller asks who wants to drive a session.

    `sign` is a sign of life to store with the lease. `uncertain` is the epoch of a lease of this
    owner whose commit seemed to fail: it was never handed out, so nobody drives by it.
    """

    address: Address
    owner: str
    sign: Heartbeat | None
    uncertain: int | None
    takeover: bool


def acquire(states: States, claim: Claim) -> Plan[tuple[Lease, LeaseInfo | None]]:
    """Take the right to drive a session; return also the lease of a dead owner that it ends."""
    row = yield from sessions.find(claim.address, lock=True)
    if claim.sign is not None:
        yield from leases.beat(claim.sign)
    dead = None
    if row.owner != claim.owner or row.epoch != claim.uncertain:
        try:
            dead = yield from leases.check_free(row)
        except Corruption:
            if not claim.takeover:
                raise
    if row.imported and not claim.takeover:
        raise rows.imported_error(row.id)
    seq = yield from derived.restore(states, row)
    epoch = yield from leases.take(row, claim.owner)
    waiting = yield from inbox.count_waiting(row)
    return Lease(row.id, claim.owner, epoch, seq, waiting), dead


def is_held(tenant: str, lease: Lease) -> Plan[bool]:
    """Tell whether a lease is in the session's row."""
    row = yield from sessions.look_up(Address(tenant, lease.session))
    return row is not None and lease.is_of(row.owner, row.epoch)


def renew(tenant: str, lease: Lease, sign: Heartbeat) -> Plan[None]:
    """Prove that a lease still holds, and store a sign of life."""
    row = yield from sessions.find(Address(tenant, lease.session))
    yield from leases.check(row, lease)
    yield from leases.beat(sign)


def delete(address: Address) -> Plan[None]:
    """Delete a session that nobody drives."""
    row = yield from sessions.find(address, lock=True)
    yield from leases.check_free(row)
    yield from sessions.delete(row)
