"""The files store: sessions as plain files that people and tools can read.

One directory per session, one line per batch. Several processes of one host share a store: locks
are flock, held only around check, write and sync, and reads take none. This module is the async
face; what each verb does to the files stands in the modules beside it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from holdfast.blobs.directory import DirectoryBlobStore
from holdfast.blobs.disk import Disk
from holdfast.core.errors import Corruption, HoldfastError, InvalidInput, StoreNewer
from holdfast.core.events import Event
from holdfast.core.facts import Fact, SessionStarted
from holdfast.core.heads import EdgeDraft, HeadDraft
from holdfast.core.ids import check_content_id, check_id, check_key
from holdfast.core.payloads import Slot
from holdfast.core.replay import Copy
from holdfast.core.state import State
from holdfast.stores import checks, rows
from holdfast.stores.closing import CloseOnce
from holdfast.stores.feed import Feed, HintSubscription, SessionSubscription
from holdfast.stores.files import copies, derived, driving, rewrites, sweep, writes
from holdfast.stores.files.layout import Layout
from holdfast.stores.files.listing import Listing
from holdfast.stores.files.session_files import Place, SessionFiles
from holdfast.stores.files.size_poll import SizePoll
from holdfast.stores.files.threads import Threads
from holdfast.stores.owner import Owner
from holdfast.stores.place import check_local
from holdfast.stores.port import (
    GC_GRACE_SECONDS,
    LEASE_SECONDS,
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

REMEMBERED = 4096
"""How many sessions a handle keeps in mind; one that it forgets is read again from its files."""

_Result = TypeVar("_Result")


class FilesSessionStore(TenantHandle):
    """A handle on a directory of sessions; `open` makes one."""

    def __init__(self, place: Place, lease_seconds: float) -> None:
        self._place = place
        self._sessions: dict[Address, SessionFiles] = {}
        self._guard = threading.Lock()
        self._held: dict[Address, Lease] = {}
        where = str(place.layout.root)
        self._threads = Threads(where)
        self._owner = Owner(lambda beat: driving.beat(place, beat), lease_seconds=lease_seconds)
        self._listing = Listing(place, self._files_of)
        self._size_poll = SizePoll(place, self._files_of)
        self._feed = Feed(self._size_poll.poll, where)
        self._end = CloseOnce(self._close)

    @classmethod
    async def open(
        cls,
        root: Path,
        *,
        disk: Disk | None = None,
        lease_seconds: float = LEASE_SECONDS,
        force_network: bool = False,
    ) -> FilesSessionStore:
        """Open the store at a directory, which is made one if it is new."""
        used = disk or Disk()

        def prepare() -> Place:
            check_local(root, force=force_network)
            layout = Layout(root.absolute())
            layout.prepare(used)
            place = Place(layout, used, DirectoryBlobStore(layout.payloads, used))
            derived.make_missing(place)
            return place

        return cls(await asyncio.to_thread(prepare), lease_seconds)

    @property
    def flags(self) -> StoreFlags:
        """Return what this store is."""
        url = f"files:{self._place.layout.root}"
        return StoreFlags("files", durable=True, multi_process=True, url=url, posts=False)

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
        checks.check_started(started)
        self.check_tenant(started.tenant)
        if adopt_from is not None:
            check_id(adopt_from)
        (given,) = checks.as_tuples(payloads)
        return await self._write(
            session_id,
            lambda files: writes.create(files, started, given, lambda: self._source(adopt_from)),
        )

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
        if list(posts):
            raise InvalidInput(
                "the files store cannot post to another session with an append (flags.posts is "
                "False); put the items into its inbox afterwards"
            )
        facts, edges, consumes, given = checks.as_tuples(facts, edges, consumes, payloads)
        if adopt_from is not None:
            check_id(adopt_from)
        source = partial(self._source, adopt_from)
        request = writes.Request(
            lease, after_seq, facts, head, edges, consumes, given, source, release
        )

        def work(files: SessionFiles) -> Appended:
            done = writes.append(files, request)
            if done.inbox is not None:
                self._forget(lease)
            return done

        return await self._write(lease.session, work)

    async def put_payload(self, session_id: str, item: Slot) -> Slot:
        """Make a payload durable for later appends of this session."""
        checks.check_payload(item)
        await self._write(session_id, lambda files: writes.put_payload(files, item), moves=False)
        return item.bare()

    async def get_payload(self, session_id: str, payload_id: str) -> bytes:
        """Return a payload that this session refers to, its digest checked."""
        check_content_id(payload_id)
        return await self._read(session_id, lambda files: files.payload(payload_id))

    async def load_state(self, session_id: str) -> State:
        """Return the state at the tip."""
        return await self._read(session_id, lambda files: files.tip().state)

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
        return await self._read(
            session_id, lambda files: files.page(after, before, limit, reverse, types)
        )

    async def session_info(self, session_id: str) -> SessionInfo:
        """Return one session's row of a listing."""
        return await self._read(session_id, SessionFiles.info)

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
        self._owner.check_process()
        scope = self.scope(None if where is None else where.tenant)
        wanted = None if where is None else replace(where, tenant=None)
        return await self._threads.read(
            "the list of sessions", lambda: self._listing.page(scope, wanted, limit, cursor)
        )

    async def pending(
        self,
        where: PendingFilter | None = None,
        *,
        due_before: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> PendingPage:
        """Return one page of the calls that wait for someone; reads the tip of every session."""
        rows.check_pending(where, due_before, limit)
        self._owner.check_process()
        scope = self.scope(None if where is None else where.tenant)
        wanted = None if where is None else replace(where, tenant=None)

        def read() -> PendingPage:
            found = self._listing.waits(scope)
            return rows.page_of_waits(found, wanted, due_before, limit, cursor)

        return await self._threads.read("the waiting calls", read)

    async def work_due(
        self, now: str, *, tenant: str | None = None, limit: int = 100, cursor: str | None = None
    ) -> DuePage:
        """Return one page of the sessions that nobody drives and that have work."""
        clock = checks.check_moment(now)
        checks.check_page(0, None, limit)
        checks.check_scope(tenant)
        self._owner.check_process()
        scope = self.scope(tenant)
        return await self._threads.read(
            "the sessions with work", lambda: self._listing.due(scope, clock, limit, cursor)
        )

    async def put_inbox(self, session_id: str, draft: InboxDraft) -> InboxItem:
        """Ask something of a session, without its lease."""
        checks.check_draft(draft)
        return await self._write(session_id, lambda files: writes.put_inbox(files, draft))

    async def list_inbox(self, session_id: str, *, pending: bool = True) -> list[InboxItem]:
        """Return inbox items in order of arrival."""
        return await self._read(session_id, lambda files: files.inbox_items(pending))

    async def acquire(self, session_id: str, *, takeover: bool = False) -> Lease:
        """Take the right to drive a session."""

        taken: list[Lease] = []

        def work(files: SessionFiles) -> Lease:
            beat = self._owner.heartbeat()
            taken.append(driving.acquire(files, beat, self._held, takeover))
            self._owner.start()
            return taken[0]

        try:
            return await self._write(session_id, work, moves=False)
        except asyncio.CancelledError:
            for lease in taken:
                await self.release(lease)
            raise

    async def renew(self, lease: Lease) -> None:
        """Prove that the lease still holds."""
        await self._write(
            checks.check_lease(lease),
            lambda files: driving.renew(files, self._owner.heartbeat(), lease),
            moves=False,
        )

    async def release(self, lease: Lease) -> None:
        """Give the lease back."""

        def work(files: SessionFiles) -> None:
            driving.release(files, lease)
            self._forget(lease)

        await self._write(checks.check_lease(lease), work, moves=False)

    async def lease_of(self, session_id: str) -> LeaseInfo | None:
        """Return who holds the session."""
        return await self._read(session_id, lambda files: files.lease(files.holding()))

    def subscribe(self, session_id: str, *, after: int = 0) -> SessionSubscription:
        """Follow one session from a position."""
        self._owner.check_process()
        address = Address(self.tenant, check_id(session_id))
        self._size_poll.follow(address)
        return self._feed.subscribe(address, after, self._page)

    def subscribe_all(self, *, tenant: str | None = None) -> HintSubscription:
        """Follow all sessions by hints."""
        self._owner.check_process()
        checks.check_scope(tenant)
        if not self._feed.is_hinting:
            self._size_poll.restart()
        return self._feed.subscribe_all(self.scope(tenant))

    def notify(self, item: Transient) -> None:
        """Hand a live-only item to this handle's subscribers."""
        self._owner.check_process()
        self._feed.notify(self.tenant, item)

    async def delete(self, session_id: str) -> None:
        """Delete a session that nobody drives."""
        await self._write(session_id, rewrites.delete)

    async def erase(self, session_id: str, payload_id: str, rule: str) -> int:
        """Erase one value from a session."""
        check_content_id(payload_id)
        check_key(rule, "erasure rule")
        return await self._write(
            session_id,
            lambda files: rewrites.erase(files, payload_id, rule, self._is_used),
            moves=False,
        )

    async def erased(self, session_id: str) -> dict[str, tuple[str, str]]:
        """Return the erased payload ids of a session."""
        return await self._read(session_id, lambda files: dict(files.log.header().erased))

    async def gc(
        self, *, dry_run: bool = False, grace_seconds: float = GC_GRACE_SECONDS
    ) -> GcReport:
        """Remove payloads that no session refers to."""
        self._owner.check_process()
        grace = checks.check_grace(grace_seconds)
        scope = self.tenant if self.is_view else None
        return await self._threads.write(
            "collecting payloads",
            lambda: sweep.sweep(self._place, self._files_of, dry_run, grace, scope),
        )

    async def put_audit(self, session_id: str, record: Mapping[str, Any]) -> AuditRow:
        """Add a row to a session's audit."""
        data = checks.check_audit(record)

        def add(files: SessionFiles) -> AuditRow:
            with files.writing():
                return files.audit.add(data)

        return await self._write(session_id, add, moves=False)

    async def list_audit(
        self, session_id: str, *, after: int = 0, limit: int = 100
    ) -> list[AuditRow]:
        """Return audit rows of a session, in order."""
        checks.check_page(after, None, limit)

        def read(files: SessionFiles) -> list[AuditRow]:
            files.check_present()
            return [row for row in files.audit.read() if row.number > after][:limit]

        return await self._read(session_id, read)

    async def gc_audit(self, *, before: str | None = None, keep: int | None = None) -> int:
        """Remove old audit rows, and those beyond the number to keep."""
        self._owner.check_process()
        moment = checks.check_audit_bounds(before, keep)
        scope = self.tenant if self.is_view else None
        return await self._threads.write(
            "shortening audits",
            lambda: sweep.shorten_audits(self._place, self._files_of, scope, moment, keep),
        )

    async def import_log(self, copy: Copy) -> ImportOutcome:
        """Store a copy of a session's log."""
        checks.check_copy(copy)
        self.check_tenant(rows.tenant_of(copy))
        return await self._write(copy.session, lambda files: copies.import_log(files, copy))

    async def close(self) -> None:
        """Finish what was submitted, release leases, let go of threads."""
        self._owner.check_process()
        if self.is_view:
            return
        self._feed.close()
        await self._end()

    async def _close(self) -> None:
        for address, lease in list(self._held.items()):
            with suppress(HoldfastError):
                await self.of(address.tenant).release(lease)
        await self._threads.close()
        await asyncio.to_thread(self._leave)

    def _forget(self, lease: Lease) -> None:
        address = Address(self.tenant, lease.session)
        if self._held.get(address) == lease:
            del self._held[address]

    def _leave(self) -> None:
        self._owner.stop()
        with suppress(OSError):
            self._place.disk.unlink(self._place.layout.heartbeat(self._owner.id))

    async def _page(self, session_id: str, *, after: int, limit: int) -> list[Event]:
        return await self.read_events(session_id, after=after, limit=limit)

    async def _read(self, session_id: str, read: Callable[[SessionFiles], _Result]) -> _Result:
        self._owner.check_process()
        files = self._files(session_id)
        return await self._threads.read(
            f"session {session_id!r}", lambda: files.reading(lambda: read(files))
        )

    async def _write(
        self, session_id: str, work: Callable[[SessionFiles], _Result], *, moves: bool = True
    ) -> _Result:
        self._owner.check_process()
        files = self._files(session_id)

        def run() -> _Result:
            result = work(files)
            if moves:
                self._feed.wake(files.address.key, self._size_poll.saw(files))
            return result

        return await self._threads.write(f"writing to session {session_id!r}", run)

    def _files(self, session_id: str) -> SessionFiles:
        return self._files_of(Address(self.tenant, check_id(session_id)))

    def _files_of(self, address: Address) -> SessionFiles:
        with self._guard:
            files = self._sessions.pop(address, None) or SessionFiles(self._place, address)
            self._sessions[address] = files
            if len(self._sessions) > REMEMBERED:
                del self._sessions[next(iter(self._sessions))]
            return files

    def _source(self, session_id: str | None) -> SessionFiles | None:
        if session_id is None:
            return None
        files = self._files(session_id)
        files.check_present()
        return files

    def _is_used(self, tenant: str, payload_id: str) -> bool:
        """Tell whether any session refers to a payload, or has it put for later."""
        try:
            marks = sweep.Marks()
            sweep.mark(self._place, self._files_of, marks, tenant)
        except (Corruption, StoreNewer):
            # Refs of a log that cannot be read are not known: gc decides once it is restored.
            return True
        if marks.holds((tenant, payload_id)):
            return True
        return any(payload_id in files.grants.read() for files in map(self._files_of, marks.used))
