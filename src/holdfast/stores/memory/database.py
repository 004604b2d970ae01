"""The database of memory stores: what they hold, and what may be done with it under its lock."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from holdfast.core.errors import InboxConflict, SessionDeleted, SessionNotFound
from holdfast.core.events import Event, now
from holdfast.core.ids import check_id, check_key
from holdfast.core.log import Batch
from holdfast.core.payloads import Reachable, Slot, check_size, walk
from holdfast.core.state import State
from holdfast.stores import rows, waits
from holdfast.stores.feed import Feed
from holdfast.stores.port import (
    DueSession,
    InboxDraft,
    InboxItem,
    Lease,
    LeaseInfo,
    PendingWait,
    SessionInfo,
)
from holdfast.stores.tenancy import Address


@dataclass(slots=True)
class Log:
    """One session as it is kept."""

    order: int
    events: list[Event]
    state: State
    refs: set[str] = field(default_factory=set)
    erased: dict[str, tuple[str, str]] = field(default_factory=dict)
    inbox: dict[str, InboxItem] = field(default_factory=dict)
    audit: list[tuple[int, str, bytes]] = field(default_factory=list)
    owner: str | None = None
    epoch: int = 0
    imported: bool = False

    @property
    def waiting(self) -> int:
        """Return how many inbox items nobody has consumed."""
        return sum(item.consumed_seq is None for item in self.inbox.values())


@dataclass(slots=True)
class Payload:
    """Bytes as they are kept, and when they were put last."""

    data: bytes
    put_at: float


class MemoryDatabase:
    """What memory stores hold; `clock` lets a test say when leases run out and payloads are old."""

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        self.clock = clock or time.monotonic
        self.leases_run_out = clock is not None
        self.lock = threading.RLock()
        self.logs: dict[Address, Log] = {}
        self.deleted: set[Address] = set()
        self.payloads: dict[tuple[str, str], Payload] = {}
        self.owners: dict[str, float] = {}
        self.feeds: list[Feed] = []
        self.orders = 0

    def log(self, address: Address) -> Log:
        """Return a session; SessionNotFound or SessionDeleted where there is none."""
        check_id(address.id)
        if address in self.deleted:
            raise SessionDeleted(f"session {address.id!r} was deleted")
        log = self.logs.get(address)
        if log is None:
            raise SessionNotFound(f"there is no session {address.id!r} in this store")
        return log

    def is_alive(self, owner: str) -> bool:
        """Tell whether a handle must be taken for alive."""
        return self.owners.get(owner, float("-inf")) > self.clock()

    def check_lease(self, log: Log, lease: Lease) -> None:
        """Raise LeaseLost where a lease is no longer the session's."""
        if not lease.is_of(log.owner, log.epoch):
            holder = None if log.owner is None else self.lease_info(log)
            raise rows.lost_error(lease, holder)

    def lease_info(self, log: Log) -> LeaseInfo:
        """Return who holds a session, as others see it."""
        owner = log.owner or ""
        until = self.owners.get(owner, 0.0)
        left = None if until == math.inf else until - self.clock()
        return LeaseInfo(
            log.state.session, owner, log.epoch, self.is_alive(owner), f"owner {owner}", left
        )

    def info(self, log: Log) -> SessionInfo:
        """Return what a listing shows of a session."""
        live = log.owner is not None and self.is_alive(log.owner)
        return rows.info_of(log.state, live, log.imported, log.waiting)

    def consumed(self, log: Log, keys: Sequence[str], seq: int) -> dict[str, InboxItem]:
        """Return the inbox items that an append consumes, as they are after it."""
        taken: dict[str, InboxItem] = {}
        for key in keys:
            item = log.inbox.get(check_key(key, "inbox key"))
            rows.check_consumable(log.state.session, key, taken.get(key, item))
            assert item is not None
            taken[key] = replace(item, consumed_seq=seq)
        return taken

    def put(self, log: Log, draft: InboxDraft) -> InboxItem:
        """Return the stored item that a draft is, new or known."""
        session_id = log.state.session
        stored = log.inbox.get(draft.key)
        if stored is not None:
            return rows.shown_item(rows.same_item(stored, draft))
        wait = draft.wait
        if draft.call_id is not None and draft.kind in waits.ABOUT_WAITS:
            call = log.state.calls.get(draft.call_id)
            call = call if waits.is_waiting(call) else None
            wait = waits.number_of(draft, call)
            decided = next((i for i in log.inbox.values() if waits.decides(i, draft, wait)), None)
            in_wait = call is not None and call.wait == wait
            due_at = waits.milliseconds(call.deadline) if call is not None and in_wait else None
            same = waits.admit(session_id, draft, decided, wait, due_at, int(time.time() * 1000))
            if same is not None:
                return rows.shown_item(same)
        content = draft.content
        if content is not None and not content.inline:
            if content.data is not None:
                self.keep(log.state.tenant, content)
            log.refs.add(content.id)
            content = content.bare()
        item = InboxItem(
            session_id, draft.key, draft.kind, now(), draft.call_id, content, None, wait, draft.by
        )
        log.inbox[draft.key] = item
        return item

    def check_posts(self, log: Log, batch: Batch, drafts: Sequence[InboxDraft]) -> None:
        """Refuse items for other sessions whose content is not the sender's to pass on."""
        for content in (draft.content for draft in drafts):
            bare = content is not None and content.data is None and not content.inline
            if content is not None and bare and content.id not in log.refs | batch.refs.keys():
                raise rows.foreign_error(log.state.session, content.id)

    def post(self, sender: Log, session_id: str, draft: InboxDraft) -> tuple[str, int] | None:
        """Put an item into another session's inbox; return that session's position."""
        try:
            target = self.log(Address(sender.state.tenant, session_id))
            self.put(target, draft)
        except (SessionNotFound, SessionDeleted, InboxConflict) as error:
            rows.log_dropped_post(sender.state.session, session_id, draft, error)
            return None
        return Address(target.state.tenant, session_id).key, target.state.seq

    def waits(self, log: Log) -> list[PendingWait]:
        """Return the calls of a session that wait."""
        begun = [event for event in reversed(log.events) if event.type == waits.SUSPENDED]
        return list(waits.waits_of(log.state, begun))

    def due(self, log: Log, clock: int) -> DueSession | None:
        """Return a session that nobody drives and that has work."""
        live = log.owner is not None and self.is_alive(log.owner)
        deadlines = [call.deadline for call in waits.waiting(log.state)]
        late = any(waits.is_past(deadline, clock) for deadline in deadlines)
        return None if live or log.imported else rows.due_of(log.state, log.waiting > 0, late)

    def prove(self, log: Log, tenant: str, batch: Batch, source: Log | None) -> None:
        """Check that every payload referred to is here and may be referred to."""
        reachable = Reachable(item for item in batch.refs.values() if item.id not in batch.payloads)
        adopted: set[str] = set()
        for item in reachable:
            if item.erased is not None:
                continue
            if item.id in batch.payloads:
                check_size(item, batch.payloads[item.id].size)
                continue
            if item.id in log.refs and (tenant, item.id) in self.payloads:
                pass
            elif item.id in log.erased:
                if item.id in batch.refs:
                    raise rows.erased_error(item.id, *log.erased[item.id])
                continue
            elif source is None or source.state.tenant != tenant or item.id not in source.refs:
                raise rows.foreign_error(log.state.session, item.id)
            else:
                adopted.add(item.id)
            data = self.payloads[tenant, item.id].data
            check_size(item, len(data))
            reachable.follow(item, data)
        log.refs |= adopted

    def store(self, log: Log, batch: Batch) -> None:
        """Make a batch part of a session's log."""
        for item in batch.payloads.values():
            self.keep(batch.state.tenant, item)
        log.refs.update(batch.refs)
        log.events.extend(batch.events)
        log.state = batch.state

    def keep(self, tenant: str, item: Slot) -> None:
        """Keep the bytes of a payload."""
        assert item.data is not None
        kept = self.payloads.setdefault((tenant, item.id), Payload(item.data, 0.0))
        kept.put_at = self.clock()

    def gone(self, log: Log) -> dict[str, tuple[str, str]]:
        """Return what was erased from a session and has not been said again since."""
        slots = [item for event in log.events for item in walk(event.data)]
        said = {item.id for item in slots if item.erased is None} | log.refs
        return {key: mark for key, mark in log.erased.items() if key not in said}

    def used(self, log: Log) -> set[str]:
        """Return the payload ids that a session's events and inbox refer to, manifests followed."""
        tenant = log.state.tenant
        found: set[str] = set()
        slots = [slot for event in log.events for slot in walk(event.data)]
        slots += [item.content for item in log.inbox.values() if item.content is not None]
        reachable = Reachable(slots)
        for item in reachable:
            if item.erased is None and not (item.id in log.erased and item.id not in log.refs):
                found.add(item.id)
                kept = self.payloads.get((tenant, item.id))
                if kept is not None:
                    reachable.follow(item, kept.data)
        return found

    def forget_unused(self, before: float, tenant: str | None) -> None:
        """End the rights of sessions to what they do not use and was last put before a moment."""
        for log in (log for log in self.logs.values() if tenant in (None, log.state.tenant)):
            for payload_id in log.refs - self.used(log):
                kept = self.payloads.get((log.state.tenant, payload_id))
                if kept is None or kept.put_at <= before:
                    log.refs.discard(payload_id)

    def orphans(self, before: float) -> dict[tuple[str, str], Payload]:
        """Return the payloads, by tenant and id, that no session needs, put before a moment."""
        used = {(log.state.tenant, id) for log in self.logs.values() for id in self.used(log)}
        return {
            key: kept
            for key, kept in self.payloads.items()
            if key not in used and kept.put_at <= before
        }

    def drop(self, tenant: str, payload_id: str) -> None:
        """Forget a payload."""
        del self.payloads[tenant, payload_id]
        for log in self.logs.values():
            if log.state.tenant == tenant:
                log.refs.discard(payload_id)

    def is_referred(self, tenant: str, payload_id: str) -> bool:
        """Tell whether a session refers to a payload."""
        return any(
            log.state.tenant == tenant and payload_id in log.refs for log in self.logs.values()
        )

    def wake(self, key: str, seq: int) -> None:
        """Tell every handle that a session has moved."""
        for feed in list(self.feeds):
            feed.wake(key, seq)
