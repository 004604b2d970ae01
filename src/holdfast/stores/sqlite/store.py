"""The SQLite session store: the default, for any number of processes on one machine.

This file is the async face of what changes the store, `reading` that of what shows it. What happens
inside a write transaction is in `log`, who waits for whom in `writer` and `readers`, what SQL is
run in `queries.sql`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import apsw

from holdfast.blobs.directory import DirectoryBlobStore
from holdfast.blobs.disk import Disk
from holdfast.blobs.port import BlobStore
from holdfast.core.errors import (
    NothingWritten,
    OutcomeUnknown,
    StoreFailed,
)
from holdfast.core.facts import Fact, SessionStarted
from holdfast.core.fold import fold
from holdfast.core.heads import EdgeDraft, HeadDraft
from holdfast.core.ids import check_content_id, check_id, check_key
from holdfast.core.log import values_in
from holdfast.core.payloads import Slot, check_bytes
from holdfast.core.replay import Copy
from holdfast.core.state import State, empty
from holdfast.stores import checks, rows
from holdfast.stores.ending import Ending
from holdfast.stores.owner import Heartbeat, Owner
from holdfast.stores.place import check_local, check_name
from holdfast.stores.port import (
    GC_GRACE_SECONDS,
    LEASE_SECONDS,
    ROW_PAYLOAD_BYTES,
    Appended,
    GcReport,
    ImportOutcome,
    InboxDraft,
    InboxItem,
    Lease,
    StoreFlags,
)
from holdfast.stores.sqlite import collector, leases, payloads, sessions
from holdfast.stores.sqlite.database import SQL, Database
from holdfast.stores.sqlite.log import Log, Request
from holdfast.stores.sqlite.readers import Readers
from holdfast.stores.sqlite.reading import SqliteReading
from holdfast.stores.sqlite.writer import Job, Writer

logger = logging.getLogger("holdfast.stores")

T = TypeVar("T")

FILE_NAME = "events.db"
BLOB_FOLDER = "blobs"
BLOB_TRIES = 20


class SqliteSessionStore(SqliteReading):
    """A handle on a store in a directory; `open` makes one."""

    def __init__(
        self,
        path: Path,
        database: Database,
        blobs: BlobStore,
        connection: apsw.Connection,
        lease_seconds: float,
    ) -> None:
        self._path = path
        self._database = database
        self._connection = connection
        self._log = Log(blobs)
        self._uncertain: dict[str, int] = {}
        """Epochs of leases, by session, whose acquiring had an unknown outcome."""
        self._tenants: dict[str, str] = {}
        self._end = Ending(self._close)
        owner = Owner(self._beat, lease_seconds=lease_seconds)
        super().__init__(Readers(database), self._log.states, blobs, owner)
        self._writer = Writer(database, connection, self._wake)

    @classmethod
    async def open(
        cls,
        path: Path,
        *,
        vfs: str | None = None,
        disk: Disk | None = None,
        lease_seconds: float = LEASE_SECONDS,
        force_network: bool = False,
    ) -> SqliteSessionStore:
        """Open the store in a directory, creating what is missing; blocking work is in a thread."""

        def start() -> SqliteSessionStore:
            place = disk or Disk()
            check_name(path)
            check_local(path, force=force_network)
            database = Database(path / FILE_NAME, vfs)
            blobs = DirectoryBlobStore(path / BLOB_FOLDER, place)
            if database.read_only:
                database.look(database.prepare)
                unused = apsw.Connection(":memory:")  # the writer refuses every job
                return cls(path, database, blobs, unused, lease_seconds)
            with database.failures(NothingWritten, "create the store"):
                place.make_directories(path)
            connection = database.connect()
            try:
                database.prepare(connection)
                with database.failures(NothingWritten, "create the store"):
                    place.sync_directory(path)
                return cls(path, database, blobs, connection, lease_seconds)
            except BaseException:
                database.close(connection)
                raise

        return await asyncio.to_thread(start)

    @property
    def flags(self) -> StoreFlags:
        """Return what this store is."""
        url = f"sqlite:{self._path.absolute()}"
        return StoreFlags("sqlite", durable=True, multi_process=True, url=url)

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
        (given,) = checks.several(payloads)
        large = _large(values_in([started], None, given))
        work = partial(self._log.create, session_id, started, given, adopt_from)

        def job() -> Job[State]:
            return Job(work, session_id, stored=Log.is_stored, moved=_place)

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
    ) -> Appended:
        """Append one atomic batch."""
        session_id = self._check_lease(lease)
        facts, edges, consumes, given = checks.several(facts, edges, consumes, payloads)
        request = Request(
            lease, after_seq, facts, head, edges, consumes, given, adopt_from, release
        )
        if adopt_from is not None:
            check_id(adopt_from)
        large = _large(values_in(facts, head, given))
        tenant = await self._tenant(session_id) if large else ""
        work = partial(self._log.append, request)

        def job() -> Job[Appended]:
            return Job(work, session_id, stored=_is_appended, moved=_appended_place)

        return await self._with_blobs(large, tenant, job)

    async def put_payload(self, session_id: str, item: Slot) -> Slot:
        """Make a payload durable for later appends of this session."""
        self._check(session_id)
        data = checks.check_payload(item)
        tenant = await self._tenant(session_id)
        if item.size <= ROW_PAYLOAD_BYTES:
            check_bytes(item, data)
        work = partial(self._log.put_payload, session_id, item)
        return await self._with_blobs(_large([item]), tenant, lambda: Job(work, session_id))

    async def put_inbox(self, session_id: str, draft: InboxDraft) -> InboxItem:
        """Ask something of a session, without its lease."""
        self._check(session_id)
        checks.check_draft(draft)
        content = draft.content
        large = _large([] if content is None else [content])
        if content is not None and content.data is not None and not large:
            check_bytes(content, content.data)
        tenant = await self._tenant(session_id) if large else ""
        work = partial(self._log.put_inbox, session_id, draft)

        def job() -> Job[tuple[InboxItem, int]]:
            return Job(work, session_id, moved=lambda done: (session_id, done[1]))

        item, _ = await self._with_blobs(large, tenant, job)
        return item

    async def acquire(self, session_id: str, *, takeover: bool = False) -> Lease:
        """Take the right to drive a session."""
        self._check(session_id)
        sign = None if self._owner.is_fresh() else self._owner.heartbeat()

        def work(cursor: apsw.Cursor) -> Lease:
            row = sessions.find(cursor, session_id)
            if sign is not None:
                leases.beat(cursor, sign)
            # A lease whose commit seemed to fail was never handed out: nobody drives by it.
            ours = row.owner == self.owner
            if not ours or self._uncertain.get(session_id) != row.epoch:
                leases.check_free(cursor, row)
            if row.imported and not takeover:
                raise rows.imported_error(session_id)
            epoch = leases.next_epoch(row)
            cursor.execute(SQL["take_lease"], (self.owner, epoch, row.key))
            inbox = leases.waiting(cursor, row)
            return Lease(session_id, self.owner, epoch, row.seq, inbox)

        def stored(cursor: apsw.Cursor, lease: Lease) -> bool:
            row = sessions.look_up(cursor, session_id)
            return row is not None and lease.is_of(row.owner, row.epoch)

        def taken(_: Lease) -> None:
            self._uncertain.pop(session_id, None)
            if sign is not None:
                self._owner.stored(sign)
            self._owner.start()

        job = Job(work, session_id, taken, stored)
        try:
            return await self._writer.run(job)
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

        def work(cursor: apsw.Cursor) -> None:
            leases.check(cursor, sessions.find(cursor, lease.session), lease)
            leases.beat(cursor, self._owner.heartbeat())

        await self._writer.run(Job(work, lease.session))

    async def release(self, lease: Lease) -> None:
        """Give the lease back."""
        self._check_lease(lease)
        if type(lease.epoch) is not int:
            return  # SQLite would take the text of a number for it

        def work(cursor: apsw.Cursor) -> None:
            with suppress(TypeError, OverflowError, UnicodeEncodeError):  # none that anybody holds
                cursor.execute(SQL["release_lease"], (lease.session, lease.owner, lease.epoch))

        await self._writer.run(Job(work, lease.session))

    async def delete(self, session_id: str) -> None:
        """Delete a session that nobody drives."""
        self._check(session_id)
        work = partial(self._log.delete, session_id)
        await self._writer.run(Job(work, session_id, moved=lambda _: (session_id, 0)))

    async def erase(self, session_id: str, payload_id: str, rule: str) -> int:
        """Erase one value from a session, from the write-ahead log too."""
        self._check(session_id)
        check_content_id(payload_id)
        check_key(rule, "erasure rule")
        work = partial(self._log.erase, session_id, payload_id, rule)
        job: Job[tuple[int, str]] = Job(work, session_id, self._truncate)
        try:
            places, tenant = await self._writer.run(job)
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
                f"be left in a file: {error}; erase it again"
            ) from error
        return places

    async def gc(
        self, *, dry_run: bool = False, grace_seconds: float = GC_GRACE_SECONDS
    ) -> GcReport:
        """Remove payloads that no session refers to and that are older than the grace."""
        self._owner.check_process()
        before = time.time() - checks.check_grace(grace_seconds)
        cutoff = int(before * 1000)
        gone: list[collector.Orphan] = []
        dead: list[collector.StaleRef] = []
        stale = await self._readers.run(collector.stale, cutoff)
        for session_id, candidates in stale.items():
            found = self._readers.run(collector.unused, self._blobs, session_id, candidates)
            dead += await found
        if dry_run:
            gone = await self._readers.run(lambda c: list(collector.orphans(c, cutoff, dead)))
        else:
            await self._writer.run(Job(partial(collector.drop, dead, cutoff)))
            while batch := await self._writer.run(Job(partial(collector.collect, cutoff))):
                gone += batch
                await self._sweep([(o.tenant, o.id) for o in batch if o.in_file])
            await self._writer.run(Job(leases.forget_dead_owners, None, self._truncate))
        entries = await self._readers.thread(lambda: list(self._blobs.entries()))
        old = [entry for entry in entries if entry.modified <= before]
        strays = await self._readers.run(collector.without_rows, old)
        if not dry_run:
            await self._sweep([(entry.tenant, entry.id) for entry in strays])
            # A put that is under way has a temporary file too, whatever grace was asked for.
            unfinished = min(before, time.time() - GC_GRACE_SECONDS)
            await self._readers.thread(self._blobs.sweep, unfinished)
        kept = await self._readers.run(collector.count)
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
        work = partial(self._log.import_log, copy)

        def job() -> Job[tuple[ImportOutcome, State | None]]:
            return Job(work, copy.session, moved=lambda done: _place(done[1]))

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
                    self._writer.run_blocking(Job(self._leave))
                except Exception:
                    logger.warning("leases were not released; they expire", exc_info=True)
            self._writer.close()
            self._readers.close()

        await asyncio.to_thread(end)

    def _leave(self, cursor: apsw.Cursor) -> None:
        cursor.execute(SQL["release_owner"], (self.owner,))
        cursor.execute(SQL["delete_owner"], (self.owner,))

    def _beat(self, sign: Heartbeat) -> None:
        def work(cursor: apsw.Cursor) -> bool:
            held = cursor.execute(SQL["holds_lease"], (sign.owner,)).fetchone() is not None
            if held:  # else nothing changes, and nothing is synced
                leases.beat(cursor, sign)
            return held

        if self._writer.run_blocking(Job(work)):
            self._owner.stored(sign)

    def _truncate(self, _: Any) -> None:
        self._database.truncate_log(self._connection, self._writer.busy_wait)

    def _wake(self, jobs: Sequence[Job[Any]]) -> None:
        """Wake the subscribers of the sessions that a group moved."""
        if self._feed.is_quiet:
            return
        for job in jobs:
            if job.moved is not None and job.error is None:
                position = job.moved(job.result)
                if position is not None:
                    self._feed.wake(*position)

    async def _tenant(self, session_id: str) -> str:
        tenant = self._tenants.get(session_id)
        if tenant is None:
            row = await self._readers.run(sessions.find, session_id, session=session_id)
            tenant = self._tenants[session_id] = row.tenant
        return tenant

    async def _with_blobs(self, large: Sequence[Slot], tenant: str, job: Callable[[], Job[T]]) -> T:
        """Write large payloads, then run the job; again where gc swept one in between."""
        tries = BLOB_TRIES
        while True:
            for item in large:
                await self._write(tenant, item)
            try:
                return await self._writer.run(job())
            except payloads.BlobSwept as error:
                tries -= 1
                if not tries:
                    raise NothingWritten(
                        f"payload {error.details['payload']!r} is collected as fast as it is "
                        "stored; run gc with a grace"
                    ) from error

    def _write(self, tenant: str, item: Slot) -> Awaitable[None]:
        def put() -> None:
            if self._database.read_only:
                raise self._database.read_only_error()
            assert item.data is not None
            check_bytes(item, item.data)
            with self._database.failures(NothingWritten, "store a payload"):
                self._blobs.put(tenant, item.id, item.data)

        return asyncio.to_thread(put)

    async def _sweep(self, blobs: Sequence[tuple[str, str]]) -> None:
        for start in range(0, len(blobs), collector.BATCH):
            part = blobs[start : start + collector.BATCH]
            await self._writer.run(Job(partial(collector.sweep, self._blobs, part)))


def _place(state: State | None) -> tuple[str, int] | None:
    return None if state is None else (state.session, state.seq)


def _appended_place(done: Appended) -> tuple[str, int] | None:
    return _place(done.state)


def _is_appended(cursor: apsw.Cursor, done: Appended) -> bool:
    return Log.is_stored(cursor, done.state)


def _large(slots: Iterable[Slot]) -> list[Slot]:
    return [item for item in slots if item.size > ROW_PAYLOAD_BYTES and item.data is not None]
