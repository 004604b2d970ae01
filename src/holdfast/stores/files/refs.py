"""Refs: which payloads a session has a right to, learned from its lines only as far as needed.

A payload belongs to a session whose events or inbox refer to it, directly or through a manifest,
or for which it was put. What this handle reads or writes is remembered; what it has not met yet is
looked for from the newest line backwards, since a ref in use is nearly always a recent one.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path

from holdfast.blobs.disk import Disk
from holdfast.core.errors import Corruption, InvalidId, InvalidRef
from holdfast.core.events import Event
from holdfast.core.ids import check_content_id
from holdfast.core.payloads import Reachable, Slot, walk
from holdfast.stores.files.inbox_file import InboxFile
from holdfast.stores.files.lines import BatchLine, Header
from holdfast.stores.files.log_file import LogFile

UNOPENED = 1000
"""How many manifests that were met in reading are kept in mind unopened."""

ReadBlob = Callable[[str], bytes | None]
"""Given a payload id, return its bytes or None."""


class Refs:
    """What one session refers to, as far as it was looked at."""

    def __init__(self, log: LogFile, inbox: InboxFile, read: ReadBlob) -> None:
        self._log = log
        self._inbox = inbox
        self._read = read
        self._guard = threading.Lock()
        self._known: set[str] = set()
        self._opened: set[str] = set()
        self._rewrites = -1
        self._erased: set[str] = set()
        self._low = self._high = 0
        self._manifests: deque[Slot] = deque(maxlen=UNOPENED)

    def missing(self, wanted: Iterable[str], header: Header) -> set[str]:
        """Return those of the wanted ids that neither log nor inbox refer to."""
        with self._guard:
            left = set(wanted)
            self._begin(header)
            left -= self._known
            if left and self._manifests:
                self._learn(self._manifests)
                self._manifests.clear()
                left -= self._known
            if left:
                left -= self._newer()
            if left:
                contents = self._inbox.read().contents()
                # An erasure takes contents out of the inbox: what is there came afterwards.
                self._erased.difference_update(c.id for c in contents if not c.inline)
                self._learn(contents)
                left -= self._known
            if left:
                self._older(left)
            return left - self._known

    def learn(self, events: Iterable[Event], header: Header) -> None:
        """Take note of events that were read under a header; manifests are opened when needed."""
        with self._guard:
            if header.rewrites < self._rewrites:
                return
            self._begin(header)
            for item in (slot for event in events for slot in walk(event.data)):
                if item.inline or item.erased is not None or item.id in self._erased:
                    continue
                if item.encoding != "manifest":
                    self._known.add(item.id)
                elif item.id not in self._opened:
                    self._manifests.append(item)

    def _begin(self, header: Header) -> None:
        """Forget what was learned from a file that was replaced since."""
        if header.rewrites != self._rewrites:
            self._known.clear()
            self._opened.clear()
            self._manifests.clear()
            self._rewrites = header.rewrites
            self._erased = set(header.erased)
            self._low = self._high = self._log.tail().end

    def _newer(self) -> set[str]:
        for line in self._log.forward(self._high):
            if line.batch is not None:
                self._learn_line(line.batch)
            self._high = line.end
        return self._known

    def _older(self, wanted: set[str]) -> None:
        for line in self._log.backward(self._low):
            if line.batch is not None:
                self._learn_line(line.batch)
            self._low = line.start
            if wanted <= self._known:
                return

    def _learn_line(self, batch: BatchLine) -> None:
        if not self._erased.isdisjoint(batch.restores):
            self._erased.difference_update(batch.restores)
            self._opened.clear()  # one that was opened may lead to what counts again
        self._learn(slots_of_line(batch))

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
        """Return the ids; a torn line is no id."""
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
