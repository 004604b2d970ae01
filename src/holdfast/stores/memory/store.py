"""The memory store: the whole contract in one process, and the plainest statement of it.

What is stored lives in a `MemoryDatabase`, not in the handle, so it outlives the Runtime that uses
it and two handles on one database see each other as two processes would. No handle can be suspended
or die without the other, so one that is open is alive: leases run out only by a clock that a test
brings.
"""

from __future__ import annotations

import asyncio
import math
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from msgspec import structs

from holdfast.core.errors import (
    PayloadNotFound,
    PositionConflict,
    SessionDeleted,
)
from holdfast.core.events import Event, now
from holdfast.core.facts import Fact, SessionStarted
from holdfast.core.fold import fold
from holdfast.core.heads import EdgeDraft, HeadDraft
from holdfast.core.ids import check_content_id, check_id, check_key, new_owner_id
from holdfast.core.log import extend
from holdfast.core.payloads import Slot, check_bytes
from holdfast.core.replay import Copy
from holdfast.core.state import State, empty
from holdfast.stores import checks, rows
from holdfast.stores.feed import Feed, HintSubscription, SessionSubscription
from holdfast.stores.memory.database import Log, MemoryDatabase
from holdfast.stores.owner import check_process
from holdfast.stores.port import (
    GC_GRACE_SECONDS,
    LEASE_SECONDS,
    ROW_PAYLOAD_BYTES,
    Appended,
    AuditRow,
    DuePage,
    GcReport,
    ImportOutcome,
    InboxDraft,
    InboxItem,
    Lease,
    LeaseInfo,
    PendingFilter,
    PendingPage,
    SessionFilter,
    SessionInfo,
    SessionPage,
    StoreFlags,
    Transient,
)
from holdfast.stores.tenancy import Address, TenantHandle


class MemorySessionStore(TenantHandle):
    """A handle on a memory database."""

    def __init__(
        self, database: MemoryDatabase | None = None, lease_seconds: float = LEASE_SECONDS
    ) -> None:
        self.database = database or MemoryDatabase()
        self._owner = new_owner_id()
        self._pid = os.getpid()
        self._lease_seconds = lease_seconds
        self._feed = Feed()
        self._closed = threading.Event()  # views share it
        self.database.feeds.append(self._feed)
        self._beat()

    @property
    def flags(self) -> StoreFlags:
        """Return what this store is."""
        return StoreFlags("memory", durable=False, multi_process=False, url="memory:")

    @property
    def owner(self) -> str:
        """Return this handle's owner id."""
        return self._owner

    async def create_session(
        self,
        session_id: str,
        started: SessionStarted,
        *,
        payloads: Iterable[Slot] = (),
        adopt_from: str | None = None,
    ) -> State:
        """Create a session by its first event, or return the existing one's state."""
        address = Address(self.tenant, check_id(session_id))
        checks.check_started(started)
        self.check_tenant(started.tenant)
        if adopt_from is not None:
            check_id(adopt_from)
        (payloads,) = checks.as_tuples(payloads)
        with self._locked():
            if address in self.database.deleted:
                raise SessionDeleted(f"session {session_id!r} was deleted; choose another id")
            batch = extend(empty(session_id), [started], at=now(), payloads=payloads)
            existing = self.database.logs.get(address)
            if existing is not None:
                rows.check_same_start(existing.events[0], batch.events[0])
                return existing.state
            source = None if adopt_from is None else self._log(adopt_from)
            self.database.orders += 1
            log = Log(self.database.orders, [], batch.state)
            self.database.prove(log, started.tenant, batch, source)
            self.database.store(log, batch)
            self.database.logs[address] = log
        self.database.wake(address.key, log.state.seq)
        return log.state

    async def append(
        self,
        lease: Lease,
        after_seq: int,
        facts: Sequence[Fact],
        *,
        head: HeadDraft | None = None,
        edges: Sequence[EdgeDraft] = (),
        consumes: Sequence[str] = (),
        payloads: Iterable[Slot] = (),
        adopt_from: str | None = None,
        release: bool = False,
        posts: Sequence[tuple[str, InboxDraft]] = (),
    ) -> Appended:
        """Append one atomic batch."""
        checks.check_lease(lease)
        facts, edges, consumes, payloads = checks.as_tuples(facts, edges, consumes, payloads)
        (posts,) = checks.as_tuples(posts)
        checks.check_posts(posts)
        for _, draft in posts:
            if draft.content is not None and draft.content.data is not None:
                await _check(draft.content, draft.content.data)
        with self._locked():
            log = self._log(lease.session)
            self.database.check_lease(log, lease)
            self._beat()
            if log.state.seq != after_seq:
                raise PositionConflict(
                    f"session {lease.session!r} is at event {log.state.seq}, not {after_seq}; "
                    "load its state again",
                    seq=log.state.seq,
                )
            batch = extend(log.state, facts, at=now(), head=head, edges=edges, payloads=payloads)
            source = None if adopt_from is None else self._log(adopt_from)
            taken = self.database.consumed(log, consumes, batch.state.seq)
            self.database.prove(log, log.state.tenant, batch, source)
            self.database.check_posts(log, batch, [draft for _, draft in posts])
            self.database.store(log, batch)
            log.inbox.update(taken)
            if release:
                log.owner = None
            inbox = log.waiting if release else None
            posted = [self.database.post(log, *post) for post in posts]
        for position in [(self._key(lease.session), batch.state.seq), *posted]:
            if position is not None:
                self.database.wake(*position)
        return Appended(batch.events, batch.state, batch.head, inbox)

    async def put_payload(self, session_id: str, item: Slot) -> Slot:
        """Make a payload known for later appends of this session."""
        await _check(item, checks.check_payload(item))
        with self._locked():
            log = self._log(session_id)
            self.database.keep(log.state.tenant, item)
            log.refs.add(item.id)
        return item.bare()

    async def get_payload(self, session_id: str, payload_id: str) -> bytes:
        """Return a payload that this session refers to."""
        check_content_id(payload_id)
        with self._locked():
            log = self._log(session_id)
            if payload_id not in log.refs:
                if payload_id in log.erased:
                    raise rows.erased_error(payload_id, *log.erased[payload_id])
                raise rows.foreign_error(session_id, payload_id)
            kept = self.database.payloads.get((log.state.tenant, payload_id))
        if kept is None:
            raise PayloadNotFound(f"payload {payload_id!r} was collected before it was used")
        return await _check(Slot(payload_id, "bytes", "chunk", len(kept.data)), kept.data)

    async def load_state(self, session_id: str) -> State:
        """Return the state at the tip."""
        with self._locked():
            return self._log(session_id).state

    async def read_events(
        self,
        session_id: str,
        *,
        after: int = 0,
        before: int | None = None,
        limit: int = 1000,
        reverse: bool = False,
        types: Sequence[str] | None = None,
    ) -> list[Event]:
        """Return a page of events."""
        checks.check_page(after, before, limit, types)
        with self._locked():
            events = self._log(session_id).events
            stop = len(events) if before is None else min(before - 1, len(events))
            found = events[after:stop]
        if reverse:
            found = found[::-1]
        if types is not None:
            found = [event for event in found if event.type in types]
        return found[:limit]

    async def session_info(self, session_id: str) -> SessionInfo:
        """Return one session's row of a listing."""
        with self._locked():
            return self.database.info(self._log(session_id))

    async def list_sessions(
        self,
        where: SessionFilter | None = None,
        *,
        limit: int = 100,
        cursor: str | None = None,
    ) -> SessionPage:
        """Return one page of sessions, newest created first."""
        checks.check_page(0, None, limit)
        checks.check_filter(where)
        below = rows.read_cursor(cursor)
        with self._locked():
            logs = sorted(self._scoped(where), key=lambda log: -log.order)
            infos = [(log.order, self.database.info(log)) for log in logs if log.order < below]
        wanted = None if where is None else replace(where, tenant=None)
        found = [(order, info) for order, info in infos if rows.matches(info, wanted)]
        page = found[:limit]
        more = rows.write_cursor(page[-1][0]) if len(found) > limit else None
        return SessionPage(tuple(info for _, info in page), more)

    async def pending(
        self,
        where: PendingFilter | None = None,
        *,
        due_before: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> PendingPage:
        """Return one page of the calls that wait for someone."""
        rows.check_pending(where, due_before, limit)
        with self._locked():
            logs = self._scoped(where)
            found = [wait for log in logs for wait in self.database.waits(log)]
        wanted = None if where is None else replace(where, tenant=None)
        return rows.page_of_waits(found, wanted, due_before, limit, cursor)

    async def work_due(
        self, now: str, *, tenant: str | None = None, limit: int = 100, cursor: str | None = None
    ) -> DuePage:
        """Return one page of the sessions that nobody drives and that have work."""
        clock = checks.check_moment(now)
        checks.check_page(0, None, limit)
        checks.check_scope(tenant)
        after = rows.read_cursor(cursor, 0)
        with self._locked():
            logs = [log for log in self._scoped(SessionFilter(tenant)) if log.order > after]
            due = [(log.order, self.database.due(log, clock)) for log in logs]
        found = [(order, session) for order, session in due if session is not None]
        page = found[:limit]
        more = rows.write_cursor(page[-1][0]) if len(found) > limit else None
        return DuePage(tuple(session for _, session in page), more)

    async def put_inbox(self, session_id: str, draft: InboxDraft) -> InboxItem:
        """Ask something of a session."""
        checks.check_draft(draft)
        if draft.content is not None and draft.content.data is not None:
            await _check(draft.content, draft.content.data)
        with self._locked():
            log = self._log(session_id)
            item = self.database.put(log, draft)
            seq = log.state.seq
        self.database.wake(self._key(session_id), seq)
        return item

    async def list_inbox(self, session_id: str, *, pending: bool = True) -> list[InboxItem]:
        """Return inbox items in order of arrival."""
        with self._locked():
            items = [rows.shown_item(i) for i in self._log(session_id).inbox.values()]
        return [item for item in items if not pending or item.consumed_seq is None]

    async def acquire(self, session_id: str, *, takeover: bool = False) -> Lease:
        """Take the right to drive a session."""
        with self._locked():
            log = self._log(session_id)
            self._beat()
            if log.owner is not None and self.database.is_alive(log.owner):
                raise rows.held_error(self.database.lease_info(log))
            if log.imported and not takeover:
                raise rows.imported_error(session_id)
            log.imported = False
            dead = None if log.owner is None else self.database.lease_info(log)
            log.owner, log.epoch = self._owner, log.epoch + 1
            lease = Lease(session_id, self._owner, log.epoch, log.state.seq, log.waiting)
        if dead is not None:
            rows.log_stolen(lease, dead)
        return lease

    async def renew(self, lease: Lease) -> None:
        """Prove that the lease still holds."""
        with self._locked():
            self.database.check_lease(self._log(checks.check_lease(lease)), lease)
            self._beat()

    async def release(self, lease: Lease) -> None:
        """Give the lease back."""
        checks.check_lease(lease)
        with self._locked():
            log = self.database.logs.get(Address(self.tenant, lease.session))
            if log is not None and lease.is_of(log.owner, log.epoch):
                log.owner = None

    async def lease_of(self, session_id: str) -> LeaseInfo | None:
        """Return who holds the session."""
        with self._locked():
            log = self._log(session_id)
            return None if log.owner is None else self.database.lease_info(log)

    def subscribe(self, session_id: str, *, after: int = 0) -> SessionSubscription:
        """Follow one session from a position."""
        check_process(self._pid)
        address = Address(self.tenant, check_id(session_id))
        return self._feed.subscribe(address, after, self._page)

    def subscribe_all(self, *, tenant: str | None = None) -> HintSubscription:
        """Follow all sessions by hints."""
        check_process(self._pid)
        checks.check_scope(tenant)
        return self._feed.subscribe_all(self.scope(tenant))

    def notify(self, item: Transient) -> None:
        """Hand a live-only item to this handle's subscribers."""
        check_process(self._pid)
        self._feed.notify(self.tenant, item)

    async def delete(self, session_id: str) -> None:
        """Delete a session that nobody drives."""
        with self._locked():
            log = self._log(session_id)
            if log.owner is not None and self.database.is_alive(log.owner):
                raise rows.held_error(self.database.lease_info(log))
            address = Address(self.tenant, session_id)
            del self.database.logs[address]
            self.database.deleted.add(address)
        self.database.wake(address.key, 0)

    async def erase(self, session_id: str, payload_id: str, rule: str) -> int:
        """Erase one value from a session."""
        check_content_id(payload_id)
        check_key(rule, "erasure rule")
        with self._locked():
            log = self._log(session_id)
            at = now()
            places = rows.count_places(log.events, payload_id)
            asked = any(rows.holds(item, payload_id) for item in log.inbox.values())
            if not places and not asked and payload_id not in log.refs:
                if payload_id in log.erased:
                    return 0
                raise rows.foreign_error(session_id, payload_id)
            log.events = [rows.erase_in(event, payload_id, at, rule) for event in log.events]
            log.inbox = {
                key: rows.erase_item(item, payload_id, at, rule) for key, item in log.inbox.items()
            }
            log.erased[payload_id] = (at, rule)
            log.refs.discard(payload_id)
            tenant = log.state.tenant
            if not self.database.is_referred(tenant, payload_id):
                self.database.payloads.pop((tenant, payload_id), None)
        return max(places, 1)

    async def erased(self, session_id: str) -> dict[str, tuple[str, str]]:
        """Return the erased payload ids of a session."""
        with self._locked():
            return dict(self._log(session_id).erased)

    async def gc(
        self, *, dry_run: bool = False, grace_seconds: float = GC_GRACE_SECONDS
    ) -> GcReport:
        """Remove payloads that no session refers to."""
        with self._locked():
            before = self.database.clock() - checks.check_grace(grace_seconds)
            scope = self.tenant if self.is_view else None
            found = self.database.orphans(before)
            orphans = {key: kept for key, kept in found.items() if scope in (None, key[0])}
            there = [tenant for tenant, _ in self.database.payloads if scope in (None, tenant)]
            left = len(there) - len(orphans)
            if not dry_run:
                self.database.forget_unused(before, scope)
                for tenant, payload_id in orphans:
                    self.database.drop(tenant, payload_id)
        size = sum(len(orphan.data) for orphan in orphans.values())
        ids = tuple(sorted(payload_id for _, payload_id in orphans))
        return GcReport(len(orphans), size, left, dry_run, ids)

    async def put_audit(self, session_id: str, record: Mapping[str, Any]) -> AuditRow:
        """Add a row to a session's audit."""
        data = checks.check_audit(record)
        with self._locked():
            log = self._log(session_id)
            number = log.audit[-1][0] + 1 if log.audit else 1
            log.audit.append((number, now(), data))
            return rows.audit_row(session_id, *log.audit[-1])

    async def list_audit(
        self, session_id: str, *, after: int = 0, limit: int = 100
    ) -> list[AuditRow]:
        """Return audit rows of a session, in order."""
        checks.check_page(after, None, limit)
        with self._locked():
            kept = [row for row in self._log(session_id).audit if row[0] > after]
        return [rows.audit_row(session_id, *row) for row in kept[:limit]]

    async def gc_audit(self, *, before: str | None = None, keep: int | None = None) -> int:
        """Remove old audit rows, and those beyond the number to keep."""
        moment = checks.check_audit_bounds(before, keep)
        gone = 0
        with self._locked():
            for address, log in self.database.logs.items():
                if not self.is_view or address.tenant == self.tenant:
                    kept = [row for row in log.audit if row[1] >= moment]
                    if keep is not None:
                        kept = kept[max(0, len(kept) - keep) :]
                    gone += len(log.audit) - len(kept)
                    log.audit = kept
        return gone

    async def import_log(self, copy: Copy) -> ImportOutcome:
        """Store a copy of a session's log."""
        checks.check_copy(copy)
        self.check_tenant(rows.tenant_of(copy))
        session_id, address = copy.session, Address(self.tenant, copy.session)
        with self._locked():
            if address in self.database.deleted:
                raise SessionDeleted(f"session {session_id!r} was deleted here; it stays deleted")
            existing = self.database.logs.get(address)
            have = [] if existing is None else existing.events
            new = rows.forward(session_id, have, copy.events)
            if not new:
                return ImportOutcome(session_id, "unchanged", 0)
            if existing is not None and existing.owner and self.database.is_alive(existing.owner):
                raise rows.held_error(self.database.lease_info(existing))
            gone = {} if existing is None else self.database.gone(existing)
            new = rows.erase_again(new, gone)
            state = fold(empty(session_id) if existing is None else existing.state, new)
            slots = list(rows.slots_with_inner(new, copy.payloads, {**copy.erased, **gone}))
            log = existing
            if log is None:
                self.database.orders += 1
                log = Log(self.database.orders, [], state)
            for item in slots:
                if item.erased is not None:
                    log.erased[item.id] = (item.erased.at, item.erased.rule)
                elif not item.inline:
                    self.database.keep(
                        state.tenant, structs.replace(item, data=copy.payloads[item.id])
                    )
                    log.refs.add(item.id)
            log.events = [*log.events, *new]
            log.state = state
            log.imported = rows.has_open_work(state)
            self.database.logs[address] = log
        self.database.wake(address.key, state.seq)
        outcome = "created" if existing is None else "forwarded"
        return ImportOutcome(session_id, outcome, len(new))

    async def close(self) -> None:
        """Release this handle's leases; the database stays."""
        check_process(self._pid)
        if self.is_view:
            return
        with self.database.lock:
            self._closed.set()
            self.database.owners.pop(self._owner, None)
            for log in self.database.logs.values():
                if log.owner == self._owner:
                    log.owner = None
            if self._feed in self.database.feeds:
                self.database.feeds.remove(self._feed)
        self._feed.close()

    def _log(self, session_id: str) -> Log:
        return self.database.log(Address(self.tenant, session_id))

    def _key(self, session_id: str) -> str:
        return Address(self.tenant, session_id).key

    def _scoped(self, where: SessionFilter | PendingFilter | None) -> list[Log]:
        """Return the sessions of the tenant, or of all, that a listing is of."""
        scope = self.scope(None if where is None else where.tenant)
        return [
            log for address, log in self.database.logs.items() if scope in (None, address.tenant)
        ]

    @contextmanager
    def _locked(self) -> Iterator[None]:
        check_process(self._pid)
        if self._closed.is_set():
            raise rows.closed_error("memory:")
        with self.database.lock:
            yield

    async def _page(self, session_id: str, *, after: int, limit: int) -> list[Event]:
        return await self.read_events(session_id, after=after, limit=limit)

    def _beat(self) -> None:
        seconds = self._lease_seconds if self.database.leases_run_out else math.inf
        self.database.owners[self._owner] = self.database.clock() + seconds


async def _check(item: Slot, data: bytes) -> bytes:
    """Return bytes once their digest is proven; large ones are hashed beside the event loop."""
    if len(data) <= ROW_PAYLOAD_BYTES:
        return check_bytes(item, data)
    return await asyncio.to_thread(check_bytes, item, data)
