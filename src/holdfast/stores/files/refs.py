"""Refs: which payloads a session has a right to.

A payload belongs to a session whose events or inbox refer to it, directly or through a manifest,
or for which it was put. A handle reads the log once for that, then only the lines that are new.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path

from holdfast.blobs.disk import Disk
from holdfast.core.errors import Corruption, InvalidId, InvalidRef
from holdfast.core.ids import check_content_id
from holdfast.core.payloads import Reachable, Slot, walk
from holdfast.stores.files.inbox_file import InboxFile
from holdfast.stores.files.lines import BatchLine, Header
from holdfast.stores.files.log_file import LogFile

ReadBlob = Callable[[str], bytes | None]
"""Given a payload id, return its bytes or None."""


class Refs:
    """What one session refers to, as far as its log was read."""

    def __init__(self, log: LogFile, inbox: InboxFile, read: ReadBlob) -> None:
        self._log = log
        self._inbox = inbox
        self._read = read
        self._guard = threading.Lock()
        self._rewrites = -1
        self._end = 0
        self._known: set[str] = set()
        self._opened: set[str] = set()
        self._erased: set[str] = set()

    def missing(self, wanted: Iterable[str], header: Header) -> set[str]:
        """Return those of the wanted ids that neither log nor inbox refer to."""
        with self._guard:
            if header.rewrites != self._rewrites:
                self._forget(header)
            while not self._read_on():
                pass
            left = set(wanted) - self._known
            if left:
                contents = self._inbox.read().contents()
                # An erasure takes contents out of the inbox: what is there came afterwards.
                self._erased.difference_update(c.id for c in contents if not c.inline)
                self._learn(contents)
            return left - self._known

    def _forget(self, header: Header) -> None:
        """Forget what was learned from a file that was replaced since."""
        self._known.clear()
        self._opened.clear()
        self._rewrites, self._end = header.rewrites, 0
        self._erased = set(header.erased)

    def _read_on(self) -> bool:
        """Learn from the lines that are new; False where one makes earlier lines count again."""
        for line in self._log.forward(self._end):
            if line.batch is not None:
                if not self._erased.isdisjoint(line.batch.restores):
                    self._erased.difference_update(line.batch.restores)
                    self._opened.clear()
                    self._end = 0
                    return False
                self._learn(slots_of_line(line.batch))
            self._end = line.end
        return True

    def _learn(self, slots: Iterable[Slot]) -> None:
        self._known |= closure(slots, self._read, self._erased, self._opened)


def closure(
    slots: Iterable[Slot], read: ReadBlob, erased: Collection[str], opened: set[str] | None = None
) -> set[str]:
    """Return the payloads that slots refer to, but for what manifests say that were `opened`.

    What was erased does not count, whatever a slot says: a manifest is not rewritten when a part
    of it is erased. Those that are opened here are added to the others.
    """
    opened = set() if opened is None else opened
    met: set[str] = set()
    reachable = Reachable(slots)
    for item in reachable:
        if item.erased is not None or item.id in erased:
            continue
        if item.encoding != "manifest":
            met.add(item.id)
        elif item.id not in opened:
            met.add(item.id)
            opened.add(item.id)
            try:
                data = read(item.id)
                if data is not None:
                    reachable.follow(item, data)
            except (Corruption, InvalidRef, InvalidId):
                pass  # damaged: what it referred to cannot be reached, and verify names it
    return met


def slots_of_line(batch: BatchLine) -> Iterator[Slot]:
    """Yield the slots of a line's events."""
    for event in batch.events:
        yield from walk(event.data)


class Grants:
    """Payloads put for later appends: one id per line, durable before the put returns."""

    def __init__(self, disk: Disk, path: Path) -> None:
        self._disk = disk
        self._path = path

    def read(self) -> set[str]:
        """Return the ids; a torn line is skipped."""
        try:
            lines = self._disk.read(self._path).decode("ascii", "replace").splitlines()
        except FileNotFoundError:
            return set()
        return {line for line in lines if _is_id(line)}

    def drop(self, dropped: Collection[str]) -> None:
        """Take ids out, durably; the caller holds the session's lock."""
        ids = self.read()
        if not ids.isdisjoint(dropped):
            rest = sorted(ids.difference(dropped))
            self._disk.replace(self._path, "".join(f"{item}\n" for item in rest).encode())

    def add(self, payload_id: str) -> None:
        """Add an id, durably; the caller holds the session's lock."""
        if payload_id in self.read():
            self._disk.sync(self._path)
            return
        # The newline in front ends what an earlier write may have left unfinished.
        self._disk.append(self._path, f"\n{payload_id}\n".encode())
        self._disk.sync(self._path)
        self._disk.sync_directory(self._path.parent)


def _is_id(text: str) -> bool:
    try:
        check_content_id(text)
    except InvalidId:
        return False
    return True
