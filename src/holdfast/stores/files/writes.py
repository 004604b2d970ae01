"""Writes: creating a session, appending a batch, asking through the inbox, putting a payload.

Payload bytes are durable before the line that refers to them is written, and gc is kept out in
between. A line is written with one append and one sync under the session's lock. A failed append
that could be taken back wrote nothing; a failed sync leaves the outcome unknown, and the next read
looks at the file again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from holdfast.core.errors import PositionConflict, SessionDeleted, StoreFailed
from holdfast.core.events import now
from holdfast.core.facts import Fact, SessionStarted
from holdfast.core.heads import EdgeDraft, HeadDraft
from holdfast.core.ids import check_key
from holdfast.core.log import Batch, extend, values_in
from holdfast.core.payloads import Reachable, Slot, check_bytes, check_size
from holdfast.core.state import State, empty
from holdfast.stores import rows, waits
from holdfast.stores.files import derived
from holdfast.stores.files.inbox_file import item_line
from holdfast.stores.files.lease_file import holding_bytes
from holdfast.stores.files.lines import SEAL_BYTES, BatchLine, Header
from holdfast.stores.files.session_files import SessionFiles, unknown, write_failed
from holdfast.stores.files.tip import Tip
from holdfast.stores.port import Appended, InboxDraft, InboxItem, Lease


@dataclass(frozen=True, slots=True)
class Request:
    """What an append was asked to store."""

    lease: Lease
    after_seq: int
    facts: Sequence[Fact]
    head: HeadDraft | None
    edges: Sequence[EdgeDraft]
    consumes: Sequence[str]
    payloads: tuple[Slot, ...]
    find_source: Callable[[], SessionFiles | None]
    release: bool

    def refers(self) -> bool:
        """Tell whether the batch may refer to payloads outside its line."""
        return any(not slot.inline for slot in values_in(self.facts, self.head, self.payloads))


def create(
    files: SessionFiles,
    started: SessionStarted,
    payloads: tuple[Slot, ...],
    find_source: Callable[[], SessionFiles | None],
) -> State:
    """Create a session by its first event, or return the existing one's state."""
    disk, layout = files.place.disk, files.place.layout
    if disk.stat(layout.tombstone(files.address)) is not None:
        raise _deleted(files)
    batch = extend(empty(files.id), [started], at=now(), payloads=payloads)
    if disk.stat(files.log.path) is not None:
        return _existing(files, batch)  # which needs its source no longer
    source = find_source()
    with files.place.unswept(bool(batch.refs)):
        prove(files, empty(files.id), batch, source)
        keep(files, started.tenant, batch.payloads.values())
        layout.make_tenant(disk, files.tenant)
        disk.make_directory(files.folder)
        disk.sync_directory(files.folder.parent)
        with files.lock():
            if disk.stat(layout.tombstone(files.address)) is not None:
                raise _deleted(files)
            if disk.stat(files.log.path) is not None:
                return _existing(files, batch)
            for payload_id in batch.unreferenced:
                files.grants.add(payload_id)
            header = Header(files.id, new_order())
            line = BatchLine(0, 0, batch.events).line()
            replace_file(
                files, files.log.path, header.line() + line, f"creating session {files.id!r}"
            )
            files.moved(None)
    derived.refresh(files, force=True)
    return batch.state


def append(files: SessionFiles, request: Request) -> Appended:
    """Append one atomic batch."""
    refers = request.refers()
    with files.place.unswept(refers):
        if refers:
            # Payloads are written before the lock is taken, once the append looks legal.
            files.check_present()
            batch, _ = _check(files, files.tip(), request)
            keep(files, batch.state.tenant, batch.payloads.values())
        with files.writing():
            tip = files.settled_tip()
            batch, restores = _check(files, tip, request)
            for payload_id in batch.unreferenced:
                files.grants.add(payload_id)
            line = BatchLine(
                tip.state.seq, request.lease.epoch, batch.events, tuple(request.consumes), restores
            ).line()
            add_line(files, files.log.path, line, tip.end)
            new = replace(
                tip,
                state=batch.state,
                end=tip.end + len(line),
                mark=line[-SEAL_BYTES:].decode(),
                epoch=max(tip.epoch, request.lease.epoch),
                pending=tip.pending - set(request.consumes),
            )
            files.moved(new)
            inbox = None
            if request.release:
                # The batch stands whatever becomes of the lease; one that is kept can be released.
                with suppress(StoreFailed):
                    give_back(files, request.lease)
                    inbox = len(new.pending)
    derived.refresh(files, force=request.release)
    return Appended(batch.events, batch.state, batch.head, inbox)


def put_inbox(files: SessionFiles, draft: InboxDraft) -> InboxItem:
    """Add an item to the inbox, or return the one that asks the same."""
    content = draft.content
    outside = content is not None and not content.inline
    if content is not None and content.data is not None:
        check_bytes(content, content.data)
    with files.place.unswept(outside):
        files.check_present()
        if content is not None and outside:
            keep(files, files.tenant, [content])
            content = content.bare()
        with files.writing():
            inbox = files.inbox.read()
            stored = inbox.items.get(draft.key)
            wait = draft.wait
            if stored is not None:
                stored = rows.same_item(files.stored_item(stored), draft)
            elif draft.call_id is not None and draft.kind in waits.ABOUT_WAITS:
                stored, wait = _admit(files, draft, inbox.items.values())
            if stored is not None:
                # Its writer may not have come as far as syncing it.
                files.place.disk.sync(files.inbox.path)
                return rows.shown_item(stored)
            item = InboxItem(
                files.id, draft.key, draft.kind, now(), draft.call_id, content, None, wait, draft.by
            )
            if inbox.torn:
                files.place.disk.truncate(files.inbox.path, inbox.end)
            add_line(files, files.inbox.path, item_line(item), inbox.end)
            try:
                # The name of a new file must last too; an earlier put may have failed to see to it.
                files.place.disk.sync_directory(files.folder)
            except OSError as error:
                raise unknown(f"writing to the inbox of {files.id!r}", error) from error
    return item


def _admit(
    files: SessionFiles, draft: InboxDraft, items: Iterable[InboxItem]
) -> tuple[InboxItem | None, int | None]:
    """Return the item that says the same of a wait already, and the number of that wait."""
    call = files.tip().state.calls.get(draft.call_id or "")
    call = call if waits.is_waiting(call) else None
    wait = waits.number_of(draft, call)
    decided = next((item for item in items if waits.decides(item, draft, wait)), None)
    if decided is not None:
        decided = files.stored_item(decided)
    in_wait = call is not None and call.wait == wait
    due_at = waits.milliseconds(call.deadline) if call is not None and in_wait else None
    clock = int(time.time() * 1000)
    return waits.admit(files.id, draft, decided, wait, due_at, clock), wait


def put_payload(files: SessionFiles, item: Slot) -> None:
    """Make a payload durable, and this session's own."""
    assert item.data is not None
    check_bytes(item, item.data)
    with files.place.unswept():
        files.check_present()
        keep(files, files.tenant, [item])
        with files.writing():
            files.grants.add(item.id)


def keep(files: SessionFiles, tenant: str, items: Iterable[Slot]) -> None:
    """Make payload bytes durable."""
    for item in items:
        assert item.data is not None
        files.place.blobs.put(tenant, item.id, item.data)


def prove(
    files: SessionFiles, before: State, batch: Batch, source: SessionFiles | None
) -> tuple[str, ...]:
    """Check that every payload referred to is stored and may be referred to by this session.

    Return those that were erased here before and come again.
    """
    if not batch.refs:
        return ()
    tenant = batch.state.tenant
    bare = [item for item in batch.refs.values() if item.id not in batch.payloads]
    exists = batch.events[0].seq > 1
    erased = files.log.header().erased if exists else {}
    foreign = files.foreign(item.id for item in bare) if exists else None
    blobs = files.place.blobs
    seen: set[str] = set()
    reachable = Reachable(bare)
    for item in reachable:
        if item.erased is not None:
            continue
        if item.id in batch.payloads:
            check_size(item, batch.payloads[item.id].size)
            continue
        seen.add(item.id)
        ours = foreign is not None and item.id not in foreign
        size = blobs.size(tenant, item.id) if ours else None
        # Equal bytes may stand as a user's text too: only the log's namespace is proven as one.
        if size is not None and (item.encoding != "manifest" or item == before.vars):
            check_size(item, size)
            continue
        if item.id in erased and item.id not in files.grants.read():
            if item.id in batch.refs:
                raise rows.erased_error(item.id, *erased[item.id])
            seen.discard(item.id)
            continue
        taken = size is not None or _may_take(files, tenant, source, item.id)
        data = blobs.get(tenant, item.id) if taken else None
        if data is None:
            raise rows.foreign_error(files.id, item.id)
        check_size(item, len(data))
        inner = reachable.follow(item, data)
        if foreign is not None and inner:
            foreign |= files.foreign(part.id for part in inner)
    # What no event leads to is only put again.
    return tuple(sorted(erased.keys() & ((seen | batch.refs.keys()) - batch.unreferenced)))


def add_line(files: SessionFiles, path: Path, line: bytes, end: int) -> None:
    """Add a line behind the last one, durably; the caller has the lock."""
    disk = files.place.disk
    try:
        disk.append(path, line)
    except OSError as error:
        files.moved(None)
        try:
            if disk.stat(path) is not None:
                disk.truncate(path, end)
        except OSError:
            raise unknown(f"writing to session {files.id!r}", error) from error
        raise write_failed(f"writing to session {files.id!r}", error) from error
    try:
        disk.sync(path)
    except OSError as error:
        files.moved(None)
        # Whether it reached the disk is unknown, but nobody shall build on it unsynced.
        with suppress(OSError):
            disk.truncate(path, end)
            disk.sync(path)
        raise unknown(f"writing to session {files.id!r}", error) from error


def replace_file(files: SessionFiles, path: Path, data: bytes, what: str) -> None:
    """Replace a file durably; tell a replacement that may have happened from one that did not."""
    disk = files.place.disk
    try:
        disk.replace(path, data)
    except OSError as error:
        files.moved(None)
        try:
            unchanged = disk.read(path) != data
        except FileNotFoundError:
            unchanged = True
        except OSError:
            unchanged = False
        if unchanged:
            raise write_failed(what, error) from error
        raise unknown(what, error) from error


def give_back(files: SessionFiles, lease: Lease) -> bool:
    """Free a session of its lease; tell whether it still had it. The caller has the lock."""
    holding = files.holding()
    if not lease.is_of(holding.owner, holding.epoch):
        return False
    free = holding_bytes(replace(holding, owner=None))
    replace_file(files, files.lease_path, free, f"giving back the lease of session {files.id!r}")
    return True


_orders = [0]
_ordering = threading.Lock()


def new_order() -> int:
    """Return the place in listings of a session that is new here.

    Another process may choose the same: listings go by place and id.
    """
    with _ordering:
        _orders[0] = max(_orders[0] + 1, time.time_ns() // 1000)
        return _orders[0]


def _check(files: SessionFiles, tip: Tip, request: Request) -> tuple[Batch, tuple[str, ...]]:
    lease = request.lease
    holding = files.holding()
    if not lease.is_of(holding.owner, holding.epoch):
        raise rows.lost_error(lease, files.lease(holding))
    if tip.state.seq != request.after_seq:
        raise PositionConflict(
            f"session {files.id!r} is at event {tip.state.seq}, not {request.after_seq}; load its "
            "state again",
            seq=tip.state.seq,
        )
    batch = extend(
        tip.state,
        request.facts,
        at=now(),
        head=request.head,
        edges=request.edges,
        payloads=request.payloads,
    )
    source = request.find_source()
    _check_consumes(files, tip, request.consumes)
    return batch, prove(files, tip.state, batch, source)


def _check_consumes(files: SessionFiles, tip: Tip, keys: Sequence[str]) -> None:
    for index, key in enumerate(keys):
        if check_key(key, "inbox key") not in tip.pending or key in keys[:index]:
            item = files.inbox.read().items.get(key)
            if item is not None:
                seq = files.consumed().get(key, tip.state.seq + 1)
                item = replace(item, consumed_seq=seq)
            rows.check_consumable(files.id, key, item)


def _may_take(
    files: SessionFiles, tenant: str, source: SessionFiles | None, payload_id: str
) -> bool:
    if payload_id in files.grants.read():
        return True
    if source is None or source.tenant != tenant:
        return False
    return not source.foreign([payload_id]) or payload_id in source.grants.read()


def _existing(files: SessionFiles, batch: Batch) -> State:
    def read() -> State:
        first = files.log.page(0, 2, 1, False, None)
        rows.check_same_start(first[0], batch.events[0])
        return files.tip().state

    return files.reading(read)


def _deleted(files: SessionFiles) -> SessionDeleted:
    return SessionDeleted(f"session {files.id!r} was deleted; choose another id")
