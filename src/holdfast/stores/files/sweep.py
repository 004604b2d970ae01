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
from holdfast.core.errors import NotFound, SessionDeleted
from holdfast.stores.files.lease_file import read_heartbeat
from holdfast.stores.files.rewrites import remove_folder
from holdfast.stores.files.session_files import Place, SessionFiles
from holdfast.stores.port import GC_GRACE_SECONDS, GcReport
from holdfast.stores.tenancy import Address

OpenSession = Callable[[Address], SessionFiles]


@dataclass(slots=True)
class Marks:
    """What sessions refer to, each as of a size of its log and inbox."""

    used: dict[Address, set[tuple[str, str]]] = field(default_factory=dict)
    sizes: dict[Address, tuple[int, int, bytes]] = field(default_factory=dict)

    def holds(self, key: tuple[str, str]) -> bool:
        """Tell whether any session refers to a (tenant, payload)."""
        return any(key in used for used in self.used.values())


def mark(place: Place, open_session: OpenSession, marks: Marks, tenant: str | None) -> None:
    """Bring marks up to date; a damaged log is Corruption, since its refs cannot be known."""
    addresses = place.layout.addresses(place.disk, tenant)
    for gone in marks.used.keys() - set(addresses):
        del marks.used[gone]
        del marks.sizes[gone]
    for address in addresses:
        try:
            files = open_session(address)
            files.reading(lambda files=files: _mark_session(files, marks))  # type: ignore[misc]
        except (NotFound, SessionDeleted):
            marks.used.pop(address, None)
            marks.sizes.pop(address, None)


def _mark_session(files: SessionFiles, marks: Marks) -> None:
    size = files.log.size()
    sizes = (size, files.inbox.size(), files.log.mark(size))
    if marks.sizes.get(files.address) == sizes:
        return
    marks.used[files.address] = {(files.tenant, payload_id) for payload_id in files.used()}
    marks.sizes[files.address] = sizes


def sweep(
    place: Place, open_session: OpenSession, dry_run: bool, grace: float, tenant: str | None
) -> GcReport:
    """Remove payloads that no session refers to and that are older than the grace."""
    marks = Marks()
    mark(place, open_session, marks, tenant)
    before = time.time() - grace
    if dry_run:
        return _report(place, marks, before, tenant)
    with place.sweeping():
        mark(place, open_session, marks, tenant)
        _forget_unused(place, open_session, marks, before)
        report = _report(place, marks, before, tenant, remove=True)
    # A write that is under way has a temporary file too, whatever grace was asked for.
    tidy(place, open_session, time.time() - max(grace, GC_GRACE_SECONDS))
    return report


def _forget_unused(place: Place, open_session: OpenSession, marks: Marks, before: float) -> None:
    """End the rights of sessions to what they do not use and was last put before a moment."""
    young = {(e.tenant, e.id) for e in place.blobs.entries() if e.modified > before}
    for address, used in marks.used.items():
        with suppress(NotFound, SessionDeleted):
            files = open_session(address)
            mine = ((files.tenant, payload_id) for payload_id in files.grants.read())
            old = {key[1] for key in mine if key not in used and key not in young}
            if old:
                with files.writing():
                    files.grants.drop(old)


def _report(
    place: Place, marks: Marks, before: float, tenant: str | None, *, remove: bool = False
) -> GcReport:
    used = set().union(*marks.used.values())
    orphans: list[BlobEntry] = []
    kept = 0
    for entry in (e for e in place.blobs.entries() if tenant in (None, e.tenant)):
        if (entry.tenant, entry.id) not in used and entry.modified <= before:
            orphans.append(entry)
        else:
            kept += 1
    if remove:
        for entry in orphans:
            place.blobs.remove(entry.tenant, entry.id)
    ids = tuple(sorted(entry.id for entry in orphans))
    return GcReport(len(orphans), sum(entry.size for entry in orphans), kept, not remove, ids)


def shorten_audits(
    place: Place, open_session: OpenSession, tenant: str | None, before: str, keep: int | None
) -> int:
    """Remove audit rows that are too old or too many; return how many went."""
    gone = 0
    for address in place.layout.addresses(place.disk, tenant):
        with suppress(NotFound, SessionDeleted):
            files = open_session(address)
            with files.writing():
                gone += files.audit.shorten(before, keep)
    return gone


def tidy(place: Place, open_session: OpenSession, limit: float) -> None:
    """Remove what interrupted writes, deletes and dead owners left behind."""
    disk, layout = place.disk, place.layout
    place.blobs.sweep(limit)
    for address in layout.addresses(disk, None):
        with suppress(OSError):
            files = open_session(address)
            if disk.stat(layout.tombstone(address)) is not None:
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
