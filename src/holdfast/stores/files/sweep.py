"""Sweep: finding the payloads that no session refers to, and removing them beside live writers.

Sessions are marked twice: all of them without any lock, then, with writers of payloads kept out,
those that changed meanwhile. A writer holds the same lock, shared, from its put to its line, so
whatever it referred to is either marked or still too young.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from holdfast.blobs.disk import TEMPORARY
from holdfast.blobs.port import BlobEntry
from holdfast.core.errors import InvalidId, NotFound, SessionDeleted
from holdfast.core.ids import check_id
from holdfast.stores.files.lease_file import read_heartbeat
from holdfast.stores.files.rewrites import remove_folder
from holdfast.stores.files.session_files import Place, SessionFiles
from holdfast.stores.port import GC_GRACE_SECONDS, GcReport

OpenSession = Callable[[str], SessionFiles]


@dataclass(slots=True)
class Marks:
    """What sessions refer to, each as of a size of its log and inbox."""

    used: dict[str, set[tuple[str, str]]] = field(default_factory=dict)
    sizes: dict[str, tuple[int, int, bytes]] = field(default_factory=dict)

    def holds(self, key: tuple[str, str]) -> bool:
        """Tell whether any session refers to a (tenant, payload)."""
        return any(key in used for used in self.used.values())


def mark(place: Place, open_session: OpenSession, marks: Marks) -> None:
    """Bring marks up to date; a damaged log is Corruption, since its refs cannot be known."""
    names = place.disk.names(place.layout.runs)
    for gone in marks.used.keys() - set(names):
        del marks.used[gone]
        del marks.sizes[gone]
    for name in names:
        try:
            files = open_session(check_id(name))
            files.reading(lambda files=files: _mark_session(files, marks))  # type: ignore[misc]
        except (InvalidId, NotFound, SessionDeleted):
            marks.used.pop(name, None)
            marks.sizes.pop(name, None)


def _mark_session(files: SessionFiles, marks: Marks) -> None:
    size = files.log.size()
    sizes = (size, files.inbox.size(), files.log.mark(size))
    if marks.sizes.get(files.id) == sizes:
        return
    tenant = files.tenant()
    marks.used[files.id] = {(tenant, payload_id) for payload_id in files.used()}
    marks.sizes[files.id] = sizes


def sweep(place: Place, open_session: OpenSession, dry_run: bool, grace: float) -> GcReport:
    """Remove payloads that no session refers to and that are older than the grace."""
    marks = Marks()
    mark(place, open_session, marks)
    before = time.time() - grace
    if dry_run:
        return _report(place, marks, before)
    with place.sweeping():
        mark(place, open_session, marks)
        _forget_unused(place, open_session, marks, before)
        report = _report(place, marks, before, remove=True)
    # A write that is under way has a temporary file too, whatever grace was asked for.
    tidy(place, open_session, time.time() - max(grace, GC_GRACE_SECONDS))
    return report


def _forget_unused(place: Place, open_session: OpenSession, marks: Marks, before: float) -> None:
    """End the rights of sessions to what they do not use and was last put before a moment."""
    young = {(e.tenant, e.id) for e in place.blobs.entries() if e.modified > before}
    for session_id, used in marks.used.items():
        with suppress(NotFound, SessionDeleted):
            files = open_session(session_id)
            tenant = files.tenant()
            mine = ((tenant, payload_id) for payload_id in files.grants.read())
            old = {key[1] for key in mine if key not in used and key not in young}
            if old:
                with files.writing():
                    files.grants.drop(old)


def _report(place: Place, marks: Marks, before: float, *, remove: bool = False) -> GcReport:
    used = set().union(*marks.used.values())
    orphans: list[BlobEntry] = []
    kept = 0
    for entry in place.blobs.entries():
        if (entry.tenant, entry.id) not in used and entry.modified <= before:
            orphans.append(entry)
        else:
            kept += 1
    if remove:
        for entry in orphans:
            place.blobs.remove(entry.tenant, entry.id)
    ids = tuple(sorted(entry.id for entry in orphans))
    return GcReport(len(orphans), sum(entry.size for entry in orphans), kept, not remove, ids)


def tidy(place: Place, open_session: OpenSession, limit: float) -> None:
    """Remove what interrupted writes, deletes and dead owners left behind."""
    disk, layout = place.disk, place.layout
    place.blobs.sweep(limit)
    for name in disk.names(layout.runs):
        with suppress(InvalidId, OSError):
            files = open_session(name)
            if disk.stat(layout.tombstone(name)) is not None:
                remove_folder(files)
                continue
            for part in disk.names(files.folder):
                found = disk.stat(files.folder / part)
                if part.endswith(TEMPORARY) and found is not None and found.modified < limit:
                    disk.unlink(files.folder / part)
    for name in disk.names(layout.owners):
        beat = read_heartbeat(disk, layout.owners / name)
        found = disk.stat(layout.owners / name)
        if (beat is None or not beat.is_alive()) and found is not None and found.modified < limit:
            disk.unlink(layout.owners / name)
