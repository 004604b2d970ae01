"""The async face of a store on an SQL database: what changes it; `reading` is what shows it.

What happens inside a transaction is in the plans of this package, how they are run in the engine.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from holdfast.core.errors import NothingWritten, OutcomeUnknown, StoreFailed
from holdfast.core.facts import Fact, SessionStarted
from holdfast.core.heads import EdgeDraft, HeadDraft
from holdfast.core.ids import check_content_id, check_id, check_key
from holdfast.core.log import values_in
from holdfast.core.payloads import Slot, check_bytes
from holdfast.core.replay import Copy
from holdfast.core.state import State
from holdfast.stores import checks, rows
from holdfast.stores.closing import CloseOnce
from holdfast.stores.owner import Heartbeat, Owner
from holdfast.stores.port import (
    GC_GRACE_SECONDS,
    ROW_PAYLOAD_BYTES,
    Appended,
    AuditRow,
    GcReport,
    ImportOutcome,
    InboxDraft,
    InboxItem,
    Lease,
    LeaseInfo,
)
from holdfast.stores.relational import (
    audit,
    collecting,
    derived,
    erasing,
    importing,
    leases,
    payloads,
    sessions,
    writes,
)
from holdfast.stores.relational.engine import Engine
from holdfast.stores.relational.plan import Job, Plan
from holdfast.stores.relational.reading import RelationalReading
from holdfast.stores.relational.writes import Request
from holdfast.stores.tenancy import Address

logger = logging.getLogger("holdfast.stores")

T = TypeVar("T")
_Taken = tuple[Lease, LeaseInfo | None]

BLOB_TRIES = 20


class RelationalSessionStore(RelationalReading):
    """A handle on a store in an SQL database."""

    def __init__(self, engine: Engine, lease_seconds: float) -> None:
        super().__init__(engine, Owner(self._beat, lease_seconds=lease_seconds))
        self._uncertain: dict[Address, int] = {}
        """Epochs of leases, by session, whose acquiring had an unknown outcome."""
        self._end = CloseOnce(self._close)

    async def repair(self) -> None:
        """Make anew what is derived and was lost, as far as one query shows."""
        if await self._engine.read(derived.has_lost_pending):
            await self._engine.write(Job(partial(derived.repair_pending, self._states)))

    @property
    def owner(self) -> str:
        """Return this handle's owner id."""
        return self._owner.id

    async def create_session(
        self,
        session_id: str,
        started: SessionStarted,
        *,
        payloads: Iterable[Slot] = (),
        adopt_from: str | None = None,
    ) -> State:
        """Create a session by its first event, or return the existing one's state."""
        address = self._at(session_id)
        checks.check_started(started)
        self.check_tenant(started.tenant)
        if adopt_from is not None:
            check_id(adopt_from)
        (given,) = checks.as_tuples(payloads)
        large = _large(values_in([started], None, given))
        plan = partial(writes.create, self._states, address, started, given, adopt_from)

        def job() -> Job[State]:
            return Job(plan, session_id, stored=writes.is_stored, moved=_positions)

        return await self._with_blobs(large, job)

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
        session_id = self._at_lease(lease).id
        facts, edges, consumes, given = checks.as_tuples(facts, edges, consumes, payloads)
        (posts,) = checks.as_tuples(posts)
        checks.check_posts(posts)
        if adopt_from is not None:
            check_id(adopt_from)
        request = Request(
            lease, after_seq, facts, head, edges, consumes, given, adopt_from, release, posts
        )
        large = _large(values_in(facts, head, [*given, *_check_contents(posts)]))
        plan = partial(writes.append, self._states, self.tenant, request)

        def job() -> Job[tuple[Appended, writes.Positions]]:
            return Job(plan, session_id, stored=_is_appended, moved=lambda done: done[1])

        done, _ = await self._with_blobs(large, job)
        return done

    async def put_payload(self, session_id: str, item: Slot) -> Slot:
        """Make a payload durable for later appends of this session."""
        address = self._at(session_id)
        data = checks.check_payload(item)
        await self._engine.read(partial(sessions.find, address), session_id)
        if item.size <= ROW_PAYLOAD_BYTES:
            check_bytes(item, data)
        plan = partial(writes.put_payload, address, item)
        return await self._with_blobs(_large([item]), lambda: Job(plan, session_id))

    async def put_inbox(self, session_id: str, draft: InboxDraft) -> InboxItem:
        """Ask something of a session, without its lease."""
        address = self._at(session_id)
        checks.check_draft(draft)
        content = draft.content
        large = _large([] if content is None else [content])
        if content is not None and content.data is not None and not large:
            check_bytes(content, content.data)
        if large:
            await self._engine.read(partial(sessions.find, address), session_id)
        plan = partial(writes.put_inbox, address, draft)

        def job() -> Job[tuple[InboxItem, int]]:
            return Job(plan, session_id, moved=lambda done: [(address.key, done[1])])

        item, _ = await self._with_blobs(large, job)
        return item

    async def acquire(self, session_id: str, *, takeover: bool = False) -> Lease:
        """Take the right to drive a session."""
        address = self._at(session_id)
        sign = None if self._owner.is_fresh() else self._owner.heartbeat()

        def taken(_: _Taken) -> None:
            self._uncertain.pop(address, None)
            if sign is not None:
                self._owner.stored(sign)
            self._owner.start()

        def plan() -> Plan[_Taken]:
            uncertain = self._uncertain.get(address)
            claim = writes.Claim(address, self.owner, sign, uncertain, takeover)
            return writes.acquire(self._states, claim)

        def stored(done: _Taken) -> Plan[bool]:
            return writes.is_held(self.tenant, done[0])

        job: Job[_Taken] = Job(plan, session_id, taken, stored)
        try:
            lease, dead = await self._engine.write(job)
        except OutcomeUnknown:
            if job.result is not None:
                self._uncertain[address] = job.result[0].epoch
            raise
        except asyncio.CancelledError:
            if job.result is not None and job.error is None:
                await self.release(job.result[0])
            raise
        if dead is not None:
            rows.log_stolen(lease, dead)
        return lease

    async def renew(self, lease: Lease) -> None:
        """Prove that the lease still holds."""
        address = self._at_lease(lease)
        plan = partial(writes.renew, self.tenant, lease, self._owner.heartbeat())
        await self._engine.write(Job(plan, address.id))

    async def release(self, lease: Lease) -> None:
        """Give the lease back."""
        address = self._at_lease(lease)
        if type(lease.epoch) is not int or type(lease.owner) is not str:
            return  # a database could take the text of a number for it
        plan = partial(leases.release, address, lease)
        with suppress(TypeError, OverflowError, UnicodeEncodeError):  # nobody holds such a one
            await self._engine.write(Job(plan, lease.session))

    async def delete(self, session_id: str) -> None:
        """Delete a session that nobody drives."""
        address = self._at(session_id)
        plan = partial(writes.delete, address)
        await self._engine.write(Job(plan, session_id, moved=lambda _: [(address.key, 0)]))

    async def erase(self, session_id: str, payload_id: str, rule: str) -> int:
        """Erase one value from a session, from what the database keeps of it too."""
        address = self._at(session_id)
        check_content_id(payload_id)
        check_key(rule, "erasure rule")
        plan = partial(erasing.erase, address, payload_id, rule)
        job: Job[int] = Job(plan, session_id, scrubs=True, collects=True)
        try:
            places = await self._engine.write(job)
        except asyncio.CancelledError:
            if job.result is not None and job.error is None:
                await self._sweep([(self.tenant, payload_id)])
            raise
        try:
            # Also where it was erased before: an earlier call may not have come as far as this.
            await self._sweep([(self.tenant, payload_id)])
        except StoreFailed as error:
            raise OutcomeUnknown(
                f"payload {payload_id!r} was erased from session {session_id!r}, but its bytes may "
                f"be left in a blob: {error}; erase it again"
            ) from error
        return places

    async def gc(
        self, *, dry_run: bool = False, grace_seconds: float = GC_GRACE_SECONDS
    ) -> GcReport:
        """Remove payloads that no session refers to and that are older than the grace."""
        self._owner.check_process()
        engine, scope = self._engine, self.tenant if self.is_view else None
        before = time.time() - checks.check_grace(grace_seconds)
        cutoff = int(before * 1000)
        gone: list[collecting.Orphan] = []
        dead: list[collecting.StaleRef] = []
        stale = await engine.read(partial(collecting.stale, cutoff, scope))
        for address, candidates in stale.items():
            dead += await engine.read(partial(collecting.unused, address, candidates))
        if dry_run:
            gone = await engine.read(partial(collecting.orphans, cutoff, scope, dead))
        else:
            await engine.write(Job(partial(collecting.drop, dead, cutoff), collects=True))
            take = partial(collecting.collect, cutoff, scope)
            while batch := await engine.write(Job(take, collects=True)):
                gone += batch
                await self._sweep([(o.tenant, o.id) for o in batch if o.in_blob])
            await engine.write(Job(leases.forget_dead_owners, scrubs=True))
        entries = [e for e in await engine.list_blobs() if scope in (None, e.tenant)]
        old = [entry for entry in entries if entry.modified <= before]
        strays = await engine.read(partial(collecting.without_rows, old))
        if not dry_run:
            await self._sweep([(entry.tenant, entry.id) for entry in strays])
            # A put that is under way has a temporary file too, whatever grace was asked for.
            await engine.sweep_blobs(min(before, time.time() - GC_GRACE_SECONDS))
        kept = await engine.read(partial(collecting.count, scope))
        return GcReport(
            payloads=len(gone) + len(strays),
            bytes=sum(o.size for o in gone) + sum(entry.size for entry in strays),
            kept=kept - len(gone) if dry_run else kept,
            dry_run=dry_run,
            ids=tuple(sorted([o.id for o in gone] + [entry.id for entry in strays])),
        )

    async def put_audit(self, session_id: str, record: Mapping[str, Any]) -> AuditRow:
        """Add a row to a session's audit."""
        address, data = self._at(session_id), checks.check_audit(record)
        return await self._engine.write(Job(partial(audit.put, address, data), session_id))

    async def list_audit(
        self, session_id: str, *, after: int = 0, limit: int = 100
    ) -> list[AuditRow]:
        """Return audit rows of a session, in order."""
        address = self._at(session_id)
        checks.check_page(after, None, limit)
        return await self._engine.read(partial(audit.page, address, after, limit), session_id)

    async def gc_audit(self, *, before: str | None = None, keep: int | None = None) -> int:
        """Remove old audit rows, and those beyond the number to keep."""
        self._owner.check_process()
        moment = checks.check_audit_bounds(before, keep)
        scope = self.tenant if self.is_view else None
        return await self._engine.write(Job(partial(audit.collect, scope, moment, keep)))

    async def import_log(self, copy: Copy) -> ImportOutcome:
        """Store a copy of a session's log."""
        self._owner.check_process()
        checks.check_copy(copy)
        self.check_tenant(rows.tenant_of(copy))
        large = [
            Slot(payload_id, "bytes", "chunk", len(data), data)
            for payload_id, data in copy.payloads.items()
            if len(data) > ROW_PAYLOAD_BYTES
        ]
        plan = partial(importing.import_log, self._states, self.tenant, copy)

        def job() -> Job[tuple[ImportOutcome, State | None]]:
            return Job(plan, copy.session, moved=lambda done: _positions(done[1]))

        outcome, _ = await self._with_blobs(large, job)
        # What was erased here stays so.
        await self._sweep([(self.tenant, item.id) for item in large])
        return outcome

    async def close(self) -> None:
        """Finish what was submitted, release leases, let go of files."""
        self._owner.check_process()
        if self.is_view:
            return
        self._feed.close()
        await self._end()

    async def _close(self) -> None:
        def end() -> None:
            self._owner.stop()
            if self._owner.is_started:
                try:
                    self._engine.write_blocking(Job(partial(leases.leave, self.owner)))
                except Exception:
                    logger.warning("leases were not released; they expire", exc_info=True)
            self._engine.close()

        await asyncio.to_thread(end)

    def _beat(self, sign: Heartbeat) -> None:
        if self._engine.write_blocking(Job(partial(leases.beat_if_driving, sign))):
            self._owner.stored(sign)

    async def _with_blobs(self, large: Sequence[Slot], job: Callable[[], Job[T]]) -> T:
        """Write large payloads, then run the job; again where gc swept one in between."""
        tries = BLOB_TRIES
        while True:
            for item in large:
                assert item.data is not None
                await asyncio.to_thread(check_bytes, item, item.data)
                await self._engine.put_blob(self.tenant, item.id, item.data)
            try:
                return await self._engine.write(job())
            except payloads.BlobSwept as error:
                tries -= 1
                if not tries:
                    raise NothingWritten(
                        f"payload {error.details['payload']!r} is collected as fast as it is "
                        "stored; run gc with a grace"
                    ) from error

    async def _sweep(self, blobs: Sequence[tuple[str, str]]) -> None:
        for start in range(0, len(blobs), collecting.BATCH):
            part = blobs[start : start + collecting.BATCH]
            await self._engine.write(Job(partial(collecting.sweep, part)))


def _positions(state: State | None) -> writes.Positions:
    return [] if state is None else [(Address(state.tenant, state.session).key, state.seq)]


def _is_appended(done: tuple[Appended, writes.Positions]) -> Plan[bool]:
    return writes.is_stored(done[0].state)


def _check_contents(posts: Iterable[tuple[str, InboxDraft]]) -> list[Slot]:
    """Return what items for other sessions bring along, the small values checked."""
    contents = [draft.content for _, draft in posts]
    given = [item for item in contents if item is not None and item.data is not None]
    for item in given:
        if item.size <= ROW_PAYLOAD_BYTES and item.data is not None:
            check_bytes(item, item.data)
    return given


def _large(slots: Iterable[Slot]) -> list[Slot]:
    return [item for item in slots if item.size > ROW_PAYLOAD_BYTES and item.data is not None]
