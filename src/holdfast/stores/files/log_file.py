"""The log file: one session's lines, found by sequence number without reading from the start.

Lines are in order and each proves itself, so a position is found by bisecting the file's bytes:
there is no index that could be stale. An unfinished last line (no newline yet, or a block of it
that the disk had not written) is the trace of a write that was never acknowledged; readers stop
before it. Any other line that does not check out is damage: it is named, never skipped, and what
lies on either side of it stays readable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from holdfast.blobs.disk import Disk
from holdfast.core.errors import Corruption, StoreFailed, StoreNewer
from holdfast.core.events import Event
from holdfast.stores.files.lines import (
    SEAL_BYTES,
    BatchLine,
    Header,
    has_hole,
    read_batch,
    read_header,
)

CHUNK_BYTES = 64 * 1024
READ_ATTEMPTS = 20

_Result = TypeVar("_Result")


class _Moved(Exception):
    """The file was replaced or cut while it was read."""


@dataclass(frozen=True, slots=True)
class Line:
    """One complete line; `batch` is None where it is damaged."""

    start: int
    end: int
    batch: BatchLine | None


@dataclass(frozen=True, slots=True)
class Tail:
    """How a log ends: after which byte the next line belongs, and what unfinished bytes follow."""

    end: int
    line: Line | None
    torn: int


class LogFile:
    """The lines of one session."""

    def __init__(self, disk: Disk, path: Path, session: str) -> None:
        self.disk = disk
        self.path = path
        self.session = session

    def size(self) -> int:
        """Return the file's size; FileNotFoundError where there is none."""
        found = self.disk.stat(self.path)
        if found is None:
            raise FileNotFoundError(str(self.path))
        return found.size

    def mark(self, end: int) -> bytes:
        """Return the seal of the line that ends at an offset: it names that line and its place."""
        return self.disk.read(self.path, max(0, end - SEAL_BYTES), SEAL_BYTES)

    def header(self) -> Header:
        """Return the header; raise Corruption where it is damaged or another session's.

        StoreNewer where this release does not know its format.
        """
        data, length = b"", 1024
        while b"\n" not in data:
            data = self.disk.read(self.path, 0, length)
            if len(data) < length and b"\n" not in data:
                break
            length *= 4
        line, newline, _ = data.partition(b"\n")
        try:
            if not newline:
                raise Corruption("the line does not end")
            header = read_header(line)
        except Corruption as error:
            raise Corruption(
                f"line 1 of the log of session {self.session!r} is damaged: {error}",
                session=self.session,
                line=1,
                seq=1,
            ) from error
        except StoreNewer as error:
            raise StoreNewer(
                f"the log of session {self.session!r} was written by a newer Holdfast: {error}",
                session=self.session,
            ) from error
        if header.session != self.session:
            raise Corruption(
                f"the log of session {self.session!r} belongs to session {header.session!r}; "
                "give the directory its old name back",
                session=self.session,
                line=1,
                seq=1,
            )
        return header

    def tail(self) -> Tail:
        """Return how the log ends."""
        size = self.size()
        pieces = self._pieces_backward(size)
        end, rest = next(pieces)
        if rest and self._batch(rest[:-1]) is not None:
            # Complete but for a newline that turned into something else: damage, not a torn write.
            return Tail(size, Line(end, size, None), 0)
        for start, text in pieces:
            batch = self._batch(text) if start else None
            if batch is None and start and not rest and has_hole(text, start):
                end, rest = start, text
                continue
            line = Line(start, start + len(text) + 1, batch) if start else None
            return Tail(end, line, size - end)
        return Tail(end, None, size - end)

    def forward(self, start: int, size: int | None = None) -> Iterator[Line]:
        """Yield the complete lines from the start of one of them on, without the header."""
        end = self.size() if size is None else size
        rest, offset, position = b"", start, start
        while position < end:
            data = self._read(position, min(CHUNK_BYTES * 4, end - position))
            position += len(data)
            *texts, rest = (rest + data).split(b"\n")
            for text in texts:
                stop = offset + len(text) + 1
                if offset:
                    batch = self._batch(text)
                    if batch is None and stop == end and has_hole(text, offset):
                        return
                    yield Line(offset, stop, batch)
                offset = stop
        if rest and self._batch(rest[:-1]) is not None:
            yield Line(offset, end, None)

    def backward(self, end: int) -> Iterator[Line]:
        """Yield the complete lines before an offset that a line ends at, last first."""
        pieces = self._pieces_backward(end)
        start, rest = next(pieces)
        if rest:
            yield Line(start, end, None)
        for start, text in pieces:
            if start:
                yield Line(start, start + len(text) + 1, self._batch(text))

    def page(
        self,
        after: int,
        before: int | None,
        limit: int,
        reverse: bool,
        types: Sequence[str] | None,
    ) -> list[Event]:
        """Return events with after < seq < before, at most `limit`; see the store port."""
        if before is not None and before <= after + 1:
            return []

        def read() -> list[Event]:
            found: list[Event] = []
            for event in (self._down if reverse else self._up)(after, before):
                if types is None or event.type in types:
                    found.append(event)
                    if len(found) == limit:
                        break
            return found

        return self.consistently(read)

    def consistently(self, read: Callable[[], _Result]) -> _Result:
        """Return what a read without the lock gives, begun again if the file was replaced."""
        for _ in range(READ_ATTEMPTS):
            before = self._rewrites()
            try:
                result = read()
                if self._rewrites() == before:
                    return result
            except _Moved:
                continue
            except Corruption:
                if self._rewrites() == before:
                    raise
        raise StoreFailed(
            f"the log of session {self.session!r} was replaced again and again while it was read; "
            "read it again"
        )

    def seek(self, seq: int, size: int) -> int:
        """Return the start of a line at or shortly before the one that holds an event."""
        low, high = 0, size
        while high - low > CHUNK_BYTES:
            middle = (low + high) // 2
            line = self._line_from(middle, high)
            if line is None or line.batch is None or line.batch.after >= seq:
                high = middle
            else:
                low = line.start
        return low

    def damage(self, start: int) -> Corruption:
        """Return the error that names a damaged line and the first event it hides."""
        first = 1
        for line in self.backward(start):
            if line.batch is not None:
                first = line.batch.last + 1
                break
        number = 1 + sum(
            self.disk.read(self.path, at, min(CHUNK_BYTES, start - at)).count(b"\n")
            for at in range(0, start, CHUNK_BYTES)
        )
        return Corruption(
            f"line {number} of the log of session {self.session!r} is damaged: the events from "
            f"{first} on that it held cannot be read; run `holdfast verify` and restore the "
            "session from an export",
            session=self.session,
            line=number,
            seq=first,
        )

    def gap(self, after: int) -> Corruption:
        """Return the error that says where events are missing."""
        return Corruption(
            f"events after {after} of session {self.session!r} are missing from its log; restore "
            "the session from an export",
            session=self.session,
            seq=after + 1,
        )

    def _up(self, after: int, before: int | None) -> Iterator[Event]:
        position, bad, met, size = after, None, False, self.size()
        for line in self.forward(self.seek(after + 1, size), size):
            if line.batch is None:
                bad = bad or line
                continue
            self._check_joined(line.batch.after <= position, bad, position)
            bad, met = None, True
            for event in line.batch.events:
                if event.seq <= position:
                    continue
                if before is not None and event.seq >= before:
                    return
                position = event.seq
                yield event
            if before is not None and position >= before - 1:
                return
        self._check_joined(met and bad is None, bad, 0 if not met else position)

    def _down(self, after: int, before: int | None) -> Iterator[Event]:
        bad: Line | None = None
        position = before
        met = False
        for line in self.backward(self._end_of(before)):
            if line.batch is None:
                bad = bad or line
                continue
            last = line.batch.last
            if bad is not None or (met and position is not None):
                joined = position is not None and last >= position - 1
                self._check_joined(joined, bad, last)
            bad, met = None, True
            for event in reversed(line.batch.events):
                if event.seq <= after:
                    return
                if position is None or event.seq < position:
                    position = event.seq
                    yield event
            if position == after + 1:
                return
        self._check_joined(met and bad is None, bad, 0)

    def _check_joined(self, joined: bool, bad: Line | None, position: int) -> None:
        if joined:
            return
        if bad is not None:
            raise self.damage(bad.start)
        raise self.gap(position)

    def _end_of(self, before: int | None) -> int:
        """Return the end of the line that holds the event before a bound, or of the last line."""
        size = self.size()
        if before is None:
            return self.tail().end
        end = 0
        for line in self.forward(self.seek(before - 1, size), size):
            end = line.end
            if line.batch is not None and line.batch.last >= before - 1:
                break
        return end

    def _line_from(self, offset: int, limit: int) -> Line | None:
        """Return the first whole line that starts between two offsets."""
        data, start = b"", offset - 1
        while start + len(data) < limit:
            data += self._read(start + len(data), min(CHUNK_BYTES // 4, limit - start - len(data)))
            begin = data.find(b"\n") + 1
            while begin and (stop := data.find(b"\n", begin)) >= 0:
                batch = self._batch(data[begin:stop])
                if batch is not None:
                    return Line(start + begin, start + stop + 1, batch)
                begin = stop + 1
        return None

    def _pieces_backward(self, end: int) -> Iterator[tuple[int, bytes]]:
        """Yield (offset, text) of what stands between newlines, last first."""
        rest, position, length = b"", end, CHUNK_BYTES
        while position > 0:
            start = max(0, position - length)
            data = self._read(start, position - start) + rest
            first, *parts = data.split(b"\n")
            offset = start + len(data)
            for text in reversed(parts):
                offset -= len(text)
                yield offset, text
                offset -= 1
            rest, position = first, start
            length = CHUNK_BYTES if parts else length * 2
        yield 0, rest

    def _batch(self, text: bytes) -> BatchLine | None:
        try:
            return read_batch(self.session, text)
        except Corruption:
            return None

    def _read(self, offset: int, length: int) -> bytes:
        data = self.disk.read(self.path, offset, length)
        if len(data) != length:
            raise _Moved
        return data

    def _rewrites(self) -> int | None:
        try:
            return self.header().rewrites
        except Corruption:
            return None
