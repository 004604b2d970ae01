"""The async face of a store on an SQL database: what changes it; `reading` is what shows it.

What happens inside a transaction is in the plans of this package, how they are run in the engine.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar

from holdfast.core.errors import NothingWritten, OutcomeUnknown, StoreFailed
from holdfast.core.facts import Fact, SessionStarted
from holdfast.core.fold import fold
from holdfast.core.heads import EdgeDraft, HeadDraft
from holdfast.core.ids import check_content_id, check_id, check_key
from holdfast.core.log import values_in
from holdfast.core.payloads import Slot, check_bytes
from holdfast.core.replay import Copy
from holdfast.core.state import State, empty
from holdfast.stores import checks
from holdfast.stores.closing import CloseOnce
from holdfast.stores.owner import Heartbeat, Owner
from holdfast.stores.port import (
    GC_GRACE_SECONDS,
    ROW_PAYLOAD_BYTES,
    Appended,
    GcReport,
    ImportOutcome,
    InboxDraft,
    InboxItem,
    Lease,
)
from holdfast.stores.relational import collecting, erasing, importing, leases, payloads, writes
from holdfast.stores.relational.engine import Engine
from holdfast.stores.relational.plan import Job, Plan
from holdfast.stores.relational.reading import RelationalReading
from holdfast.stores.relational.writes import Request

logger = logging.getLogger("holdfast.stores")

T = TypeVar("T")

BLOB_TRIES = 20


class RelationalSessionStore(RelationalReading):
    """A handle on a store in an SQL database."""

    def __init__(self, engine: Engine, lease_seconds: float) -> None:
        super().__init__(engine, Owner(self._beat, lease_seconds=lease_seconds))
        self._uncertain: dict[str, int] = {}
        """Epochs of leases, by session, whose acquiring had an unknown outcome."""
        self._tenants: dict[str, str] = {}
        self._end = CloseOnce(self._close)

    async def repair(self) -> None:
        """Make anew what is derived and was lost, as far as one query shows."""
        if await self._engine.read(writes.has_lost_pending):
            await self._engine.write(Job(partial(writes.repair_pending, self._states)))

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
        self._check(session_id)
        checks.check_started(started)
        if adopt_from is not None:
            check_id(adopt_from)
        (given,) = checks.as_tuples(payloads)
        large = _large(values_in([started], None, given))
        plan = partial(writes.create, self._states, session_id, started, given, adopt_from)

        def job() -> Job[State]:
            return Job(plan, session_id, stored=writes.is_stored, moved=_positions)

        return await self._with_blobs(large, started.tenant, job)

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
        session_id = self._check_lease(lease)
        facts, edges, consumes, given = checks.as_tuples(facts, edges, consumes, payloads)
        (posts,) = checks.as_tuples(posts)
        checks.check_posts(posts)
        if adopt_from is not None:
            check_id(adopt_from)
        request = Request(
            lease, after_seq, facts, head, edges, consumes, given, adopt_from, release, posts
        )
        large = _large(values_in(facts, head, [*given, *_check_contents(posts)]))
        tenant = await self._tenant(session_id) if large else ""
        plan = partial(writes.append, self._states, request)

        def job() -> Job[tuple[Appended, writes.Positions]]:
            return Job(plan, session_id, stored=_is_appended, moved=lambda done: done[1])

        done, _ = await self._with_blobs(large, tenant, job)
        return done

    async def put_payload(self, session_id: str, item: Slot) -> Slot:
        """Make a payload durable for later appends of this session."""
        self._check(session_id)
        data = checks.check_payload(item)
        tenant = await self._tenant(session_id)
        if item.size <= ROW_PAYLOAD_BYTES:
            check_bytes(item, data)
        plan = partial(writes.put_payload, session_id, item)
        return await self._with_blobs(_large([item]), tenant, lambda: Job(plan, session_id))

    async def put_inbox(self, session_id: str, draft: InboxDraft) -> InboxItem:
        """Ask something of a session, without its lease."""
        self._check(session_id)
        checks.check_draft(draft)
        content = draft.content
        large = _large([] if content is None else [content])
        if content is not None and content.data is not None and not large:
            check_bytes(content, content.data)
        tenant = await self._tenant(session_id) if large else ""
        plan = partial(writes.put_inbox, session_id, draft)

        def job() -> Job[tuple[InboxItem, int]]:
            return Job(plan, session_id, moved=lambda done: [(session_id, done[1])])

        item, _ = await self._with_blobs(large, tenant, job)
        return item

    async def acquire(self, session_id: str, *, takeover: bool = False) -> Lease:
        """Take the right to drive a session."""
        self._check(session_id)
        sign = None if self._owner.is_fresh() else self._owner.heartbeat()

        def taken(_: Lease) -> None:
            self._uncertain.pop(session_id, None)
            if sign is not None:
                self._owner.stored(sign)
            self._owner.start()

        job = Job(
            lambda: writes.acquire(
                session_id, self.owner, sign, self._uncertain.get(session_id), takeover=takeover
            ),
            session_id,
            taken,
            writes.is_held,
        )
        try:
            return await self._engine.write(job)
        except OutcomeUnknown:
            if job.result is not None:
                self._uncertain[session_id] = job.result.epoch
            raise
        except asyncio.CancelledError:
            if job.result is not None and job.error is None:
                await self.release(job.result)
            raise

    async def renew(self, lease: Lease) -> None:
        """Prove that the lease still holds."""
        self._check_lease(lease)
        sign = self._owner.heartbeat()
        await self._engine.write(Job(partial(writes.renew, lease, sign), lease.session))

    async def release(self, lease: Lease) -> None:
        """Give the lease back."""
        self._check_lease(lease)
        if type(lease.epoch) is not int:
            return  # a database could take the text of a number for it
        plan = partial(leases.release, lease.session, lease)
        with suppress(TypeError, OverflowError, UnicodeEncodeError):  # nobody holds such a one
            await self._engine.write(Job(plan, lease.session))

    async def delete(self, session_id: str) -> None:
        """Delete a session that nobody drives."""
        self._check(session_id)
        plan = partial(writes.delete, session_id)
        await self._engine.write(Job(plan, session_id, moved=lambda _: [(session_id, 0)]))

    async def erase(self, session_id: str, payload_id: str, rule: str) -> int:
        """Erase one value from a session, from what the database keeps of it too."""
        self._check(session_id)
        check_content_id(payload_id)
        check_key(rule, "erasure rule")
        plan = partial(erasing.erase, session_id, payload_id, rule)
        job: Job[tuple[int, str]] = Job(plan, session_id, scrubs=True)
        try:
            places, tenant = await self._engine.write(job)
        except asyncio.CancelledError:
            if job.result is not None and job.error is None:
                await self._sweep([(job.result[1], payload_id)])
            raise
        try:
            # Also where it was erased before: an earlier call may not have come as far as this.
            await self._sweep([(tenant, payload_id)])
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
        engine = self._engine
        before = time.time() - checks.check_grace(grace_seconds)
        cutoff = int(before * 1000)
        gone: list[collecting.Orphan] = []
        dead: list[collecting.StaleRef] = []
        stale = await engine.read(partial(collecting.stale, cutoff))
        for session_id, candidates in stale.items():
            dead += await engine.read(partial(collecting.unused, session_id, candidates))
        if dry_run:
            gone = await engine.read(partial(collecting.orphans, cutoff, dead))
        else:
            await engine.write(Job(partial(collecting.drop, dead, cutoff)))
            while batch := await engine.write(Job(partial(collecting.collect, cutoff))):
                gone += batch
                await self._sweep([(o.tenant, o.id) for o in batch if o.in_blob])
            await engine.write(Job(leases.forget_dead_owners, scrubs=True))
        old = [entry for entry in await engine.list_blobs() if entry.modified <= before]
        strays = await engine.read(partial(collecting.without_rows, old))
        if not dry_run:
            await self._sweep([(entry.tenant, entry.id) for entry in strays])
            # A put that is under way has a temporary file too, whatever grace was asked for.
            await engine.sweep_blobs(min(before, time.time() - GC_GRACE_SECONDS))
        kept = await engine.read(collecting.count)
        return GcReport(
            payloads=len(gone) + len(strays),
            bytes=sum(o.size for o in gone) + sum(entry.size for entry in strays),
            kept=kept - len(gone) if dry_run else kept,
            dry_run=dry_run,
            ids=tuple(sorted([o.id for o in gone] + [entry.id for entry in strays])),
        )

    async def import_log(self, copy: Copy) -> ImportOutcome:
        """Store a copy of a session's log."""
        self._owner.check_process()
        checks.check_copy(copy)
        tenant = fold(empty(copy.session), copy.events[:1]).tenant
        large = [
            Slot(payload_id, "bytes", "chunk", len(data), data)
            for payload_id, data in copy.payloads.items()
            if len(data) > ROW_PAYLOAD_BYTES
        ]
        plan = partial(importing.import_log, self._states, copy)

        def job() -> Job[tuple[ImportOutcome, State | None]]:
            return Job(plan, copy.session, moved=lambda done: _positions(done[1]))

        outcome, _ = await self._with_blobs(large, tenant, job)
        await self._sweep([(tenant, item.id) for item in large])  # what was erased here stays so
        return outcome

    async def close(self) -> None:
        """Finish what was submitted, release leases, let go of files."""
        self._owner.check_process()
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

    async def _tenant(self, session_id: str) -> str:
        tenant = self._tenants.get(session_id)
        if tenant is None:
            tenant = self._tenants[session_id] = (await self._row(session_id)).tenant
        return tenant

    async def _with_blobs(self, large: Sequence[Slot], tenant: str, job: Callable[[], Job[T]]) -> T:
        """Write large payloads, then run the job; again where gc swept one in between."""
        tries = BLOB_TRIES
        while True:
            for item in large:
                assert item.data is not None
                await self._put_blob(tenant, item, item.data)
            try:
                return await self._engine.write(job())
            except payloads.BlobSwept as error:
                tries -= 1
                if not tries:
                    raise NothingWritten(
                        f"payload {error.details['payload']!r} is collected as fast as it is "
                        "stored; run gc with a grace"
                    ) from error

    async def _put_blob(self, tenant: str, item: Slot, data: bytes) -> None:
        await asyncio.to_thread(check_bytes, item, data)
        await self._engine.put_blob(tenant, item.id, data)

    async def _sweep(self, blobs: Sequence[tuple[str, str]]) -> None:
        for start in range(0, len(blobs), collecting.BATCH):
            part = blobs[start : start + collecting.BATCH]
            await self._engine.write(Job(partial(collecting.sweep, part)))


def _positions(state: State | None) -> writes.Positions:
    return [] if state is None else [(state.session, state.seq)]


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
