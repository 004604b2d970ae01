"""Rewrites: what replaces a whole log or removes it: erasing a value, deleting a session.

A log is rewritten into a new file that takes the old one's name in one step, with a header that
counts the rewrites, so that readers in the middle of the old one notice and begin again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace

from holdfast.blobs.disk import TEMPORARY
from holdfast.core.errors import HoldfastError, OutcomeUnknown, StoreFailed
from holdfast.core.events import now
from holdfast.core.records import canonical
from holdfast.stores import rows
from holdfast.stores.files import derived
from holdfast.stores.files.inbox_file import item_line
from holdfast.stores.files.lines import Header
from holdfast.stores.files.session_files import SessionFiles, unknown, write_failed
from holdfast.stores.files.tip import Tip
from holdfast.stores.files.writes import replace_file

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
            _remove_leftovers(files)
            items = files.inbox.read().items.values()
            asked = any(rows.holds(item, payload_id) for item in items)
            unknown_here = files.foreign([payload_id]) - files.grants.read()
            if not places and not asked and unknown_here:
                if payload_id in header.erased:
                    return 0
                raise rows.foreign_error(files.id, payload_id)
            at = now()
            for part in files.used() - files.used(without=payload_id) - {payload_id}:
                files.grants.add(part)  # of a manifest: the session's own until gc
            derived.remove(files)
            erased = {**header.erased, payload_id: (at, rule)}
            rewrite(
                files,
                replace(header, rewrites=header.rewrites + 1, erased=erased),
                _erased_lines(files, tip, payload_id, at, rule),
                f"erasing a value of session {files.id!r}",
            )
            try:
                # Afterwards: while it stands here the value counts as asked again, so that an
                # erasure that got no further than the log can be repeated.
                _erase_in_inbox(files, payload_id, at, rule)
                files.grants.drop({payload_id})
            except (OSError, StoreFailed) as error:
                raise OutcomeUnknown(
                    f"payload {payload_id!r} was erased from the log of session {files.id!r}, but "
                    f"maybe not from its inbox: {error}; erase it again"
                ) from error
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


def delete(files: SessionFiles) -> None:
    """Delete a session that nobody drives; its id is never used again."""
    with files.writing():
        lease = files.lease(files.holding())
        if lease is not None and lease.live:
            raise rows.held_error(lease)
        tombstone = files.place.layout.tombstone(files.address)
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
    disk.sync_directory(files.folder.parent)


def rewrite(files: SessionFiles, header: Header, lines: Iterable[bytes], what: str) -> None:
    """Replace a log by a header and lines; the caller has the lock."""
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


def _erase_in_inbox(files: SessionFiles, payload_id: str, at: str, rule: str) -> None:
    items = files.inbox.read().items.values()
    if any(rows.holds(item, payload_id) for item in items):
        kept = (rows.erase_item(item, payload_id, at, rule) for item in items)
        data = b"".join(map(item_line, kept))
        what = f"erasing a value from the inbox of session {files.id!r}"
        replace_file(files, files.inbox.path, data, what)


def _remove_leftovers(files: SessionFiles) -> None:
    # What an interrupted write left may hold the value too, and nobody can tell from its bytes.
    replaced = (f"{files.log.path.name}.", f"{files.inbox.path.name}.")
    for name in files.place.disk.names(files.folder):
        if name.startswith("torn-") or (name.startswith(replaced) and name.endswith(TEMPORARY)):
            files.place.disk.unlink(files.folder / name)
