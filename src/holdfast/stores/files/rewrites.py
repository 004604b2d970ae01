"""Rewrites: what replaces a whole log or removes it: erasing a value, importing a copy, deleting.

A log is rewritten into a new file that takes the old one's name in one step, with a header that
counts the rewrites, so that readers in the middle of the old one notice and begin again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

from holdfast.blobs.disk import TEMPORARY
from holdfast.core.errors import HoldfastError, OutcomeUnknown, SessionDeleted
from holdfast.core.events import Event, now
from holdfast.core.fold import fold
from holdfast.core.records import canonical
from holdfast.core.state import empty
from holdfast.stores import rows
from holdfast.stores.files import derived
from holdfast.stores.files.inbox_file import item_line
from holdfast.stores.files.lines import Header, batches
from holdfast.stores.files.listing import note_order
from holdfast.stores.files.session_files import SessionFiles, unknown, write_failed
from holdfast.stores.files.tip import Tip
from holdfast.stores.files.writes import new_order, replace_file
from holdfast.stores.port import ImportOutcome

_COPY_BYTES = 1 << 20


def erase(
    files: SessionFiles, payload_id: str, rule: str, is_used: Callable[[str, str], bool]
) -> int:
    """Erase a value from a session; `is_used` tells whether a tenant still has a payload in use."""
    with files.place.sweeping():
        with files.writing():
            tip = files.settled_tip()
            header = files.log.header()
            places = sum(
                rows.count_places(line.batch.events, payload_id)
                for line in files.log.forward(0, tip.end)
                if line.batch is not None
            )
            unknown_here = files.foreign([payload_id]) - files.grants.read()
            if not places and unknown_here:
                if payload_id in header.erased:
                    return 0
                raise rows.foreign_error(files.id, payload_id)
            at = now()
            derived.remove(files)
            _remove_torn(files)
            _erase_in_inbox(files, payload_id)
            files.grants.drop(payload_id)
            erased = {**header.erased, payload_id: (at, rule)}
            _rewrite(
                files,
                replace(header, rewrites=header.rewrites + 1, erased=erased),
                _erased_lines(files, tip, payload_id, at, rule),
                f"erasing a value of session {files.id!r}",
            )
        try:
            if not is_used(tip.state.tenant, payload_id):
                files.place.blobs.remove(tip.state.tenant, payload_id)
        except OSError as error:
            raise OutcomeUnknown(
                f"payload {payload_id!r} was erased from session {files.id!r}, but its bytes were "
                f"not removed: {error}; run gc to remove them"
            ) from error
    derived.refresh(files, force=True)
    return max(places, 1)


def import_log(
    files: SessionFiles,
    events: Sequence[Event],
    payloads: dict[str, bytes],
    erased: dict[str, tuple[str, str]] | None,
) -> ImportOutcome:
    """Store a verified copy of a whole log, or what it adds to the one that is here."""
    disk, layout = files.place.disk, files.place.layout
    with files.place.unswept():
        if disk.stat(layout.tombstone(files.id)) is not None:
            raise _deleted(files)
        if not events:
            return ImportOutcome(files.id, "unchanged", 0)
        disk.make_directory(files.folder)
        disk.sync_directory(layout.runs)
        with files.lock():
            if disk.stat(layout.tombstone(files.id)) is not None:
                raise _deleted(files)
            exists = disk.stat(files.log.path) is not None
            tip = files.settled_tip() if exists else Tip(empty(files.id))
            new = rows.forward(files.id, files.events() if exists else [], events)
            if not new:
                return ImportOutcome(files.id, "unchanged", 0)
            lease = files.lease(files.holding())
            if lease is not None and lease.live:
                raise rows.held_error(lease)
            state = fold(tip.state, new)
            header = files.log.header() if exists else Header(files.id, new_order())
            marks = dict(header.erased)
            for item in rows.slots_with_inner(new, payloads, erased):
                if item.erased is not None:
                    marks[item.id] = (item.erased.at, item.erased.rule)
                elif not item.inline:
                    files.place.blobs.put(state.tenant, item.id, payloads[item.id])
            header = replace(
                header,
                rewrites=header.rewrites + 1,
                imported=now() if rows.has_open_work(state) else None,
                erased=marks,
            )
            lines = [batch.line() for batch in batches(new)]
            kept = _kept_lines(files, tip) if exists else iter(())
            what = f"importing session {files.id!r}"
            _rewrite(files, header, _chain(kept, lines), what)
    note_order(files.place, files.id, header.order)
    derived.refresh(files, force=True)
    return ImportOutcome(files.id, "forwarded" if exists else "created", len(new))


def delete(files: SessionFiles) -> None:
    """Delete a session that nobody drives; its id is never used again."""
    with files.writing():
        lease = files.lease(files.holding())
        if lease is not None and lease.live:
            raise rows.held_error(lease)
        tombstone = files.place.layout.tombstone(files.id)
        record = canonical({"at": now(), "session": files.id}) + b"\n"
        replace_file(files, tombstone, record, f"deleting session {files.id!r}")
        files.moved(None)
        with suppress(OSError):
            # The tombstone counts; gc removes what is left where this does not get to its end.
            remove_folder(files)


def remove_folder(files: SessionFiles) -> None:
    """Remove a deleted session's files."""
    disk = files.place.disk
    disk.unlink(files.log.path)
    derived.remove(files)
    for name in disk.names(files.folder):
        disk.unlink(files.folder / name)
    disk.remove_directory(files.folder)
    disk.sync_directory(files.place.layout.runs)


def _rewrite(files: SessionFiles, header: Header, lines: Iterable[bytes], what: str) -> None:
    disk, path = files.place.disk, files.log.path
    temporary = path.with_name(f"{path.name}.{os.getpid()}-{os.urandom(4).hex()}{TEMPORARY}")
    files.moved(None)
    try:
        disk.create(temporary, header.line())
        pending = bytearray()
        for line in lines:
            pending += line
            if len(pending) >= _COPY_BYTES:
                disk.append(temporary, bytes(pending))
                pending.clear()
        if pending:
            disk.append(temporary, bytes(pending))
        disk.sync(temporary)
    except (OSError, HoldfastError) as error:
        with suppress(OSError):
            disk.unlink(temporary)
        if isinstance(error, OSError):
            raise write_failed(what, error) from error
        raise
    try:
        disk.rename(temporary, path)
    except OSError as error:
        with suppress(OSError):
            disk.unlink(temporary)
        raise write_failed(what, error) from error
    try:
        disk.sync_directory(files.folder)
    except OSError as error:
        raise unknown(what, error) from error


def _erased_lines(
    files: SessionFiles, tip: Tip, payload_id: str, at: str, rule: str
) -> Iterator[bytes]:
    for line in files.log.forward(0, tip.end):
        if line.batch is None:
            raise files.log.damage(line.start)
        events = tuple(rows.erase_in(event, payload_id, at, rule) for event in line.batch.events)
        restores = tuple(item for item in line.batch.restores if item != payload_id)
        if events == line.batch.events and restores == line.batch.restores:
            yield files.place.disk.read(files.log.path, line.start, line.end - line.start)
        else:
            yield replace(line.batch, events=events, restores=restores).line()


def _kept_lines(files: SessionFiles, tip: Tip) -> Iterator[bytes]:
    start = len(files.log.header().line())
    for offset in range(start, tip.end, _COPY_BYTES):
        length = min(_COPY_BYTES, tip.end - offset)
        yield files.place.disk.read(files.log.path, offset, length)


def _erase_in_inbox(files: SessionFiles, payload_id: str) -> None:
    items = files.inbox.read().items.values()
    if any(item.content is not None and item.content.id == payload_id for item in items):
        data = b"".join(item_line(rows.erase_item(item, payload_id)) for item in items)
        what = f"erasing a value from the inbox of session {files.id!r}"
        replace_file(files, files.inbox.path, data, what)


def _remove_torn(files: SessionFiles) -> None:
    # What an interrupted write left may hold the value too, and nobody can tell from its bytes.
    for name in files.place.disk.names(files.folder):
        if name.startswith("torn-"):
            files.place.disk.unlink(files.folder / name)


def _chain(first: Iterator[bytes], then: Iterable[bytes]) -> Iterator[bytes]:
    yield from first
    yield from then


def _deleted(files: SessionFiles) -> SessionDeleted:
    return SessionDeleted(f"session {files.id!r} was deleted here; it stays deleted")
