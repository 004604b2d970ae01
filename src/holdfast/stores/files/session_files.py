"""One session's files: how they are read, locked and judged.

Reads take no lock and write nothing. Whoever writes holds the session's lock, finds the tip by
reading what others added since, and first takes away what an interrupted write left behind the
last whole line; the bytes taken away are kept beside the log.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import msgspec
from msgspec import structs

from holdfast.blobs.directory import DirectoryBlobStore
from holdfast.blobs.disk import Disk
from holdfast.core.errors import (
    Corruption,
    HoldfastError,
    InvalidRecord,
    NothingWritten,
    OutcomeUnknown,
    SessionDeleted,
    SessionNotFound,
    StoreFailed,
    StoreNewer,
)
from holdfast.core.events import Event, now
from holdfast.core.payloads import Slot, check_bytes
from holdfast.stores import rows, waits
from holdfast.stores.files import tip as tips
from holdfast.stores.files.audit_file import AuditFile
from holdfast.stores.files.inbox_file import InboxFile
from holdfast.stores.files.layout import Layout
from holdfast.stores.files.lease_file import (
    UNREADABLE,
    Holding,
    lease_info,
    read_heartbeat,
    read_holding,
)
from holdfast.stores.files.locks import locked
from holdfast.stores.files.log_file import LogFile
from holdfast.stores.files.refs import Grants, Refs, closure, slots_of_line
from holdfast.stores.files.tip import Tip
from holdfast.stores.port import DueSession, InboxItem, LeaseInfo, PendingWait, SessionInfo
from holdfast.stores.tenancy import Address

_log = logging.getLogger(__name__)

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class Place:
    """What all sessions of a store share."""

    layout: Layout
    disk: Disk
    blobs: DirectoryBlobStore

    @contextmanager
    def unswept(self, needed: bool = True) -> Iterator[None]:
        """Keep gc from removing payloads between their put and the line that refers to them."""
        with ExitStack() as stack:
            if needed:
                # Passing the gate lets a waiting sweep have its turn among many writers.
                with locked(self.layout.sweep_gate, shared=True):
                    stack.enter_context(locked(self.layout.sweep_lock, shared=True))
            yield

    @contextmanager
    def sweeping(self) -> Iterator[None]:
        """Keep out everyone who puts payloads or refers to them."""
        with locked(self.layout.sweep_gate), locked(self.layout.sweep_lock):
            yield


class SessionFiles:
    """The files of one session, as one store handle sees them; used from several threads."""

    def __init__(self, place: Place, address: Address) -> None:
        self.address = address
        self.id = address.id
        self.tenant = address.tenant
        self.place = place
        self.folder = place.layout.run(address)
        self.log = LogFile(place.disk, place.layout.log(address), self.id)
        self.inbox = InboxFile(place.disk, self.folder / "inbox.jsonl", self.id)
        self.audit = AuditFile(place.disk, self.folder / "audit.jsonl", self.id)
        self.grants = Grants(place.disk, self.folder / "payloads.txt")
        self.refs = Refs(self.log, self.inbox, self._blob)
        self.lease_path = self.folder / "lease.json"
        self.run_path = self.folder / "run.json"
        self.derived_seq: int | None = None
        self.derived_at = 0.0
        self.derived_cost = 0.0  # how long writing the copies took
        self.derived_status = ""
        self.run_events: tuple[int, dict[int, Event]] = (-1, {})
        """What the record of a run was last made from, and of which rewrite of the log."""
        self._reported = False
        self._tip: Tip | None = None
        self._mutex = threading.RLock()

    def check_present(self) -> None:
        """Raise where the session was deleted or never was."""
        if self.place.disk.stat(self.place.layout.tombstone(self.address)) is not None:
            raise SessionDeleted(
                f"session {self.id!r} was deleted; its id is not used again, choose another one"
            )
        if self.place.disk.stat(self.log.path) is None:
            raise SessionNotFound(f"there is no session {self.id!r} in this store")

    def reading(self, read: Callable[[], _Result]) -> _Result:
        """Return what a read gives; say of an absent session that it is absent."""
        self.check_present()
        try:
            return self.log.consistently(read)
        except FileNotFoundError:
            self.check_present()
            raise

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the session's lock; the session may be absent."""
        with self._mutex, locked(self.folder / "lock"):
            yield

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the lock of a session that is there."""
        self.check_present()
        try:
            with self.lock():
                self.check_present()
                yield
        except FileNotFoundError:
            self.check_present()
            raise

    def tip(self) -> Tip:
        """Return the tip as it stands; Corruption where a line behind the known one is damaged."""
        self._tip = found = self._load(lenient=False)
        return found

    def readable_tip(self) -> Tip:
        """Return the tip of what can be read, damaged or not."""
        try:
            return self.tip()
        except Corruption:
            return self._load(lenient=True)

    def shown_tip(self) -> Tip:
        """Return what can be shown of the session among others: of a newer format, only its id."""
        try:
            return self.readable_tip()
        except StoreNewer:
            return tips.unreadable(self.id)

    def _load(self, *, lenient: bool) -> Tip:
        known = self._tip

        def read() -> Tip:
            snapshot, seen = None, 0
            if known is None or not tips.holds(self.log, known, self.log.size()):
                snapshot, seen = self._snapshot()
            tip = tips.load(self.log, self.inbox, (known, snapshot), lenient=lenient)
            return tip if seen <= tip.state.seq else self._cut_log(tip, seen, lenient)

        return self.log.consistently(read)

    def _cut_log(self, tip: Tip, seen: int, lenient: bool) -> Tip:
        """Say of a log that it ends before an event that was durable when `run.json` was written.

        Lenient readers are told how far it goes, as they are of a damaged last line.
        """
        if lenient:
            return replace(tip, state=structs.replace(tip.state, seq=seen))
        raise Corruption(
            f"the log of session {self.id!r} ends at event {tip.state.seq}, but run.json beside it "
            f"was written after event {seen}: stored events are missing; restore the session from "
            "an export, or delete run.json to go on without them",
            session=self.id,
            seq=tip.state.seq + 1,
        )

    def settled_tip(self) -> Tip:
        """Return the tip after taking away an unfinished last line; the caller has the lock."""
        found = self.tip()
        torn = self.log.size() - found.end
        if torn:
            disk = self.place.disk
            stamp = now().replace(":", "").replace(".", "-")
            cut = disk.read(self.log.path, found.end, torn)
            kept = self.folder / f"torn-{stamp}.bin"
            disk.replace(kept, cut)
            _log.warning(
                "%d bytes of an unfinished write were taken off the log of session %s; see %s",
                torn,
                self.id,
                kept,
            )
            disk.truncate(self.log.path, found.end)
            disk.sync(self.log.path)
        return found

    def moved(self, tip: Tip | None) -> None:
        """Remember a new tip, or forget the old one."""
        self._tip = tip

    def info(self) -> SessionInfo:
        """Return the session's row of a listing, damaged or not."""
        tip = self.shown_tip()
        holding = self.holding()
        return rows.info_of(
            tip.state, self.is_live(holding), self.is_imported(holding), len(tip.pending)
        )

    def holding(self) -> Holding:
        """Return what the lease file says."""
        return read_holding(self.place.disk, self.lease_path)

    def lease(self, holding: Holding) -> LeaseInfo | None:
        """Return the lease as others see it."""
        beat = None
        if holding.owner is not None:
            beat = read_heartbeat(self.place.disk, self.place.layout.heartbeat(holding.owner))
        return lease_info(self.id, holding, beat)

    def is_live(self, holding: Holding) -> bool:
        """Tell whether a living process holds the session."""
        lease = self.lease(holding)
        return lease is not None and lease.live

    def is_imported(self, holding: Holding) -> bool:
        """Tell whether this is a copy with open work that nobody took over."""
        try:
            imported = self.log.header().imported
        except HoldfastError:
            return False
        return imported is not None and imported != holding.taken

    def inbox_items(self, pending: bool) -> list[InboxItem]:
        """Return inbox items in order of arrival."""
        waiting = self.tip().pending
        items = [rows.shown_item(item) for item in self.inbox.read().items.values()]
        if pending:
            return [item for item in items if item.key in waiting]
        consumed = self.consumed()
        return [replace(item, consumed_seq=consumed.get(item.key)) for item in items]

    def stored_item(self, item: InboxItem) -> InboxItem:
        """Return an inbox item with the event that consumed it, if one did."""
        if item.key in self.tip().pending:
            return item
        return replace(item, consumed_seq=self.consumed().get(item.key))

    def consumed(self) -> dict[str, int]:
        """Return which event consumed each inbox key; reads the whole log."""
        return {
            key: line.batch.last
            for line in self.log.forward(0)
            if line.batch is not None
            for key in line.batch.consumes
        }

    def waits(self) -> list[PendingWait]:
        """Return the calls of the session that wait for someone."""
        state = self.shown_tip().state
        return list(waits.waits_of(state, self._suspended()))

    def due(self, clock: int) -> DueSession | None:
        """Return what the session has to do that nobody drives it for."""
        tip, holding = self.shown_tip(), self.holding()
        if self.is_live(holding) or self.is_imported(holding):
            return None
        deadlines = [call.deadline for call in waits.waiting(tip.state)]
        late = any(waits.is_past(deadline, clock) for deadline in deadlines)
        return rows.due_of(tip.state, bool(tip.pending), late)

    def _suspended(self) -> Iterator[Event]:
        before = None
        while page := self.log.page(0, before, 100, True, [waits.SUSPENDED]):
            yield from page
            before = page[-1].seq

    def page(
        self,
        after: int,
        before: int | None,
        limit: int,
        reverse: bool,
        types: Sequence[str] | None,
    ) -> list[Event]:
        """Return a page of events."""
        return self.log.page(after, before, limit, reverse, types)

    def events(self) -> list[Event]:
        """Return the whole log."""
        return self.log.page(0, None, 2**62, False, None)

    def foreign(self, wanted: Iterable[str]) -> set[str]:
        """Return those of the wanted payload ids that the session's log does not refer to."""
        ids = set(wanted)
        return self.log.consistently(lambda: self.refs.missing(ids, self.log.header()))

    def used(self, without: str | None = None) -> set[str]:
        """Return all payloads that log and inbox lead to, as if one of them were erased."""
        slots = self.inbox.read().contents()
        # An erasure takes contents out of the inbox: what is there came afterwards.
        again = {content.id for content in slots if not content.inline}
        for line in self.log.forward(0):
            if line.batch is None:
                raise self.log.damage(line.start)
            slots.extend(slots_of_line(line.batch))
            again.update(line.batch.restores)
        erased = set(self.log.header().erased)
        if without is not None:
            erased.add(without)
            again.discard(without)
        return closure(slots, self._blob, erased - again)

    def payload(self, payload_id: str) -> bytes:
        """Return a payload that belongs to this session, its digest checked."""
        data = self._blob(payload_id)
        if self.foreign([payload_id]) and (data is None or payload_id not in self.grants.read()):
            mark = self.log.header().erased.get(payload_id)
            if mark is not None:
                raise rows.erased_error(payload_id, *mark)
            raise rows.foreign_error(self.id, payload_id)
        if data is None:
            raise rows.missing_error(self.id, payload_id)
        return check_bytes(Slot(payload_id, "bytes", "chunk", len(data)), data)

    def _blob(self, payload_id: str) -> bytes | None:
        return self.place.blobs.get(self.tenant, payload_id)

    def run_record(self) -> dict[str, Any] | None:
        """Return what `run.json` holds, None where there is none; damage is reported once.

        Then the log is read from its start instead, and the next writer makes the file anew.
        """
        try:
            data = self.place.disk.read(self.run_path)
        except OSError:
            return None
        try:
            record: dict[str, Any] = msgspec.json.decode(data, type=dict[str, Any])
            if record.get("format") != tips.RUN_FORMAT:
                return None  # of another release
            record.pop("run", None)
            if record.pop("check") == tips.checksum(record):
                return record
        except (KeyError, InvalidRecord, *UNREADABLE):
            pass
        if not self._reported:
            self._reported = True
            _log.warning(
                "run.json of session %s does not agree with its checksum; the log counts, and the "
                "next write makes it anew",
                self.address.key,
            )
        return None

    def _snapshot(self) -> tuple[Tip | None, int]:
        """Return the tip that `run.json` holds, if it is one of this log, and how far it went."""
        record = self.run_record()
        if record is None:
            return None, 0
        seen = record.get("seq") if record.get("id") == self.id else 0
        found = tips.from_snapshot(self.log, record.get("snapshot"))
        return found, seen if isinstance(seen, int) else 0


def write_failed(what: str, error: OSError) -> NothingWritten:
    """Return the error that says a write failed and left nothing."""
    return NothingWritten(f"{what} failed and nothing was written: {error}; try again")


def unknown(what: str, error: OSError) -> OutcomeUnknown:
    """Return the error that says a write may or may not have been stored."""
    return OutcomeUnknown(
        f"{what} failed midway: {error}; whether it was stored is unknown, read again before "
        "anything else"
    )


def read_failed(what: str, error: OSError) -> StoreFailed:
    """Return the error that says a read failed."""
    return StoreFailed(f"{what} could not be read: {error}; check the disk and read again")
