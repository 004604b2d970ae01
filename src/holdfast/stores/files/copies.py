"""Copies: storing a session's log as another store exported it, and mending a damaged one with it.

A copy with the same digests says what a damaged line or a missing payload held, so importing it
again puts that back. What was erased here stays erased, whatever the copy still knows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from holdfast.core.errors import Corruption, SessionDeleted
from holdfast.core.events import Event, now
from holdfast.core.fold import fold
from holdfast.core.payloads import Reachable, Slot, check_bytes, walk
from holdfast.core.records import canonical
from holdfast.core.replay import Copy
from holdfast.core.state import empty
from holdfast.stores import rows
from holdfast.stores.files import derived
from holdfast.stores.files.lines import Header, batches
from holdfast.stores.files.log_file import Line
from holdfast.stores.files.rewrites import rewrite
from holdfast.stores.files.session_files import SessionFiles
from holdfast.stores.files.writes import new_order
from holdfast.stores.port import ImportOutcome

Marks = dict[str, tuple[str, str]]

_SEQ = re.compile(rb'"seq":(\d{1,15}),"type":')


@dataclass(slots=True)
class _Stored:
    """The log that is here, its damaged lines replaced by what the copy says."""

    events: list[Event] = field(default_factory=list)
    lines: list[bytes] = field(default_factory=list)
    mended: bool = False


def import_log(files: SessionFiles, copy: Copy) -> ImportOutcome:
    """Store a copy of a whole log, or what it adds to the one that is here."""
    disk, layout = files.place.disk, files.place.layout
    with files.place.unswept():
        _check_not_deleted(files)
        layout.make_tenant(disk, files.tenant)
        disk.make_directory(files.folder)
        disk.sync_directory(files.folder.parent)
        with files.lock():
            _check_not_deleted(files)
            exists = disk.stat(files.log.path) is not None
            header = files.log.header() if exists else Header(files.id, new_order())
            gone = _gone(files, header) if exists else {}
            stored = _read(files, copy.events, gone) if exists else _Stored()
            new = rows.erase_again(rows.forward(files.id, stored.events, copy.events), gone)
            if new or stored.mended:
                lease = files.lease(files.holding())
                if lease is not None and lease.live:
                    raise rows.held_error(lease)
            state = fold(empty(files.id), [*stored.events, *new])
            slots = rows.slots_with_inner(new, copy.payloads, {**copy.erased, **gone})
            restores = _put_payloads(files, state.tenant, slots, copy.payloads)
            marks = {i.id: (i.erased.at, i.erased.rule) for i in slots if i.erased is not None}
            if exists and marks:
                # What the original erased since still stands in the events that both have.
                restores |= marks.keys() - files.foreign(marks)
            _heal_payloads(files, state.tenant, stored.events, copy.payloads, gone)
            if not new and not stored.mended:
                return ImportOutcome(files.id, "unchanged", 0)
            if not stored.mended and exists:
                disk.unlink(files.run_path)  # it may have seen events that are coming back now
                files.settled_tip()
            imported = header.imported
            if new:
                imported = now() if rows.has_open_work(state) else None
            header = replace(
                header,
                rewrites=header.rewrites + 1,
                imported=imported,
                erased={**header.erased, **marks},
            )
            added = list(batches(new))
            if added:
                added[0] = replace(
                    added[0], restores=tuple(sorted(restores & header.erased.keys()))
                )
            lines = [*stored.lines, *(batch.line() for batch in added)]
            rewrite(files, header, lines, f"importing session {files.id!r}")
    derived.refresh(files, force=True)
    if not new:
        return ImportOutcome(files.id, "unchanged", 0)
    return ImportOutcome(files.id, "forwarded" if exists else "created", len(new))


def _gone(files: SessionFiles, header: Header) -> Marks:
    """Return what was erased here and has not been said again since."""
    if not header.erased:
        return {}
    said: set[str] = set()
    for line in files.log.forward(0):
        if line.batch is not None:
            said.update(line.batch.restores)
            slots = (item for event in line.batch.events for item in walk(event.data))
            said.update(item.id for item in slots if item.inline and item.erased is None)
    return {key: mark for key, mark in header.erased.items() if key not in said}


def _read(files: SessionFiles, copy: Sequence[Event], gone: Marks) -> _Stored:
    """Return the stored log; raise Corruption where it is damaged and the copy cannot help."""
    out = _Stored()
    bad: list[Line] = []
    for line in files.log.forward(0):
        if line.batch is None:
            bad.append(line)
            continue
        if bad or line.batch.after != len(out.events):
            _mend(files, out, bad, copy, line.batch.after, gone)
            bad = []
        out.events += line.batch.events
        out.lines.append(_bytes(files, line))
    if bad:
        hidden = [int(seq) for line in bad for seq in _SEQ.findall(_bytes(files, line))]
        _mend(files, out, bad, copy, max([len(out.events) + 1, *hidden]), gone)
    return out


def _mend(
    files: SessionFiles,
    out: _Stored,
    bad: list[Line],
    copy: Sequence[Event],
    until: int,
    gone: Marks,
) -> None:
    after = len(out.events)
    if not after <= until <= len(copy):
        raise files.log.damage(bad[0].start) if bad else files.log.gap(after)
    rows.forward(files.id, out.events, copy[:until])
    events = rows.erase_again(copy[after:until], gone)
    parts = list(batches(events))
    if parts:
        parts[-1] = replace(parts[-1], consumes=_consumed(files, bad))
    out.events += events
    out.lines += [part.line() for part in parts]
    out.mended = True


def _consumed(files: SessionFiles, bad: list[Line]) -> tuple[str, ...]:
    """Return the inbox items that damaged lines consumed, as far as anything still says so."""
    taken = files.consumed()
    keys = [key for key in files.inbox.read().items if key not in taken]
    try:
        # A tip of before the damage, or of `run.json`, knows without reading those lines.
        pending = files.tip().pending
    except Corruption:
        starts = [_bytes(files, line).partition(b',"epoch":')[0] for line in bad]
        return tuple(key for key in keys if any(canonical(key) in start for start in starts))
    return tuple(key for key in keys if key not in pending)


def _put_payloads(
    files: SessionFiles, tenant: str, slots: Iterable[Slot], payloads: Mapping[str, bytes]
) -> set[str]:
    put = {item.id for item in slots if item.erased is None and not item.inline}
    for payload_id in put:
        files.place.blobs.put(tenant, payload_id, payloads[payload_id])
    return put


def _heal_payloads(
    files: SessionFiles,
    tenant: str,
    events: Sequence[Event],
    payloads: Mapping[str, bytes],
    gone: Marks,
) -> None:
    """Put the copy's payloads where those that the stored log refers to are missing or damaged."""
    reachable = Reachable(item for event in events for item in walk(event.data))
    for item in reachable:
        if item.erased is None and item.id not in gone and item.id in payloads:
            data = check_bytes(item, payloads[item.id])
            files.place.blobs.put(tenant, item.id, data)
            reachable.follow(item, data)


def _bytes(files: SessionFiles, line: Line) -> bytes:
    return files.place.disk.read(files.log.path, line.start, line.end - line.start)


def _check_not_deleted(files: SessionFiles) -> None:
    if files.place.disk.stat(files.place.layout.tombstone(files.address)) is not None:
        raise SessionDeleted(f"session {files.id!r} was deleted here; it stays deleted")
