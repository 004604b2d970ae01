"""Lines: the sealed records of which the files of a session consist.

A line is one canonical JSON record that ends with a checksum of everything before it, so a reader
can tell a whole line from a torn or damaged one without its neighbours. The first line of a log
says what the log is; every further line is one batch, which is therefore there or not as a whole.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from holdfast.core.errors import Corruption, StoreNewer
from holdfast.core.events import Event, event_from_record
from holdfast.core.records import Record, canonical, parse

LOG_FORMAT = 1
SEAL_BYTES = 75
"""Length of the end of a sealed line: `,"sum":"` 64 digits `"}` and the newline."""

BLOCK_BYTES = 512
"""No file system writes less than so many bytes at once."""

_OPEN, _CLOSE = b',"sum":"', b'"}'


def seal(record: Record) -> bytes:
    """Return a record as one line; its keys must sort before `sum`, so it stays canonical."""
    body = canonical(record)
    total = hashlib.sha256(body).hexdigest().encode()
    return body[:-1] + _OPEN + total + _CLOSE + b"\n"


def unseal(line: bytes) -> Record:
    """Return the record of a line without its newline; raise Corruption if it is not whole."""
    cut = len(line) - SEAL_BYTES + 1
    if cut < 1 or line[cut : cut + len(_OPEN)] != _OPEN or line[-2:] != _CLOSE:
        raise Corruption("the line has no checksum")
    total = hashlib.sha256(line[:cut] + b"}").hexdigest().encode()
    if line[cut + len(_OPEN) : -2] != total:
        raise Corruption("the line does not match its checksum")
    record = parse(line)
    if not isinstance(record, dict):
        raise Corruption("the line is not a record")
    return record


def has_hole(line: bytes, start: int) -> bool:
    """Tell whether a part of a line, which ends before a newline, was never written to its file.

    File systems write whole blocks and show zero bytes where one is missing. The block of the
    newline is there, so zero bytes in it, or in a part of another block, are damage.
    """
    blocks = range(start // BLOCK_BYTES, (start + len(line)) // BLOCK_BYTES)
    ends = ((block + 1) * BLOCK_BYTES - start for block in blocks)
    return any(not line[max(0, end - BLOCK_BYTES) : end].strip(b"\0") for end in ends)


@dataclass(frozen=True, slots=True)
class Header:
    """The first line of a log: what a whole rewrite of the file may change."""

    session: str
    order: int
    """Place in listings: microseconds since the epoch when the session came into this store."""
    rewrites: int = 0
    """How often the file was replaced; offsets and caches of another number are void."""
    imported: str | None = None
    """When a copy with open work was imported."""
    erased: dict[str, tuple[str, str]] = field(default_factory=dict)

    def line(self) -> bytes:
        """Return the stored form."""
        return seal(
            {
                "erased": {key: list(mark) for key, mark in self.erased.items()},
                "format": LOG_FORMAT,
                "imported": self.imported,
                "order": self.order,
                "rewrites": self.rewrites,
                "session": self.session,
            }
        )


def read_header(line: bytes) -> Header:
    """Return the header that a first line holds."""
    record = unseal(line)
    version = record.pop("format", None)
    record.pop("sum")
    if not isinstance(version, int) or version > LOG_FORMAT:
        raise StoreNewer(
            f"it has format {version!r}; this release reads up to {LOG_FORMAT}: upgrade Holdfast"
        )
    try:
        return msgspec.convert(record, Header)
    except msgspec.ValidationError as error:
        raise Corruption(f"the first line of a log is not a header: {error}") from error


@dataclass(frozen=True, slots=True)
class BatchLine:
    """One batch as its line holds it."""

    after: int
    epoch: int
    events: tuple[Event, ...]
    consumes: tuple[str, ...] = ()
    restores: tuple[str, ...] = ()
    """Payloads that were erased before and came again with this batch."""

    @property
    def last(self) -> int:
        """Return the number of the last event."""
        return self.after + len(self.events)

    def line(self) -> bytes:
        """Return the stored form."""
        record: Record = {
            "after": self.after,
            "epoch": self.epoch,
            "events": [_event_record(event) for event in self.events],
        }
        if self.consumes:
            record["consumes"] = list(self.consumes)
        if self.restores:
            record["restores"] = list(self.restores)
        return seal(record)


def read_batch(session: str, line: bytes) -> BatchLine:
    """Return the batch that a line holds; raise Corruption where it holds none."""
    record = unseal(line)
    try:
        after, epoch = msgspec.convert((record["after"], record["epoch"]), tuple[int, int])
        consumes = msgspec.convert(record.get("consumes", ()), tuple[str, ...])
        restores = msgspec.convert(record.get("restores", ()), tuple[str, ...])
        events = tuple(event_from_record(session, item) for item in _list(record["events"]))
    except (KeyError, msgspec.ValidationError) as error:
        raise Corruption(f"a line of session {session!r} is not a batch: {error!r}") from error
    if not events or [event.seq for event in events] != list(range(after + 1, events[-1].seq + 1)):
        raise Corruption(f"a line of session {session!r} has events out of order")
    return BatchLine(after, epoch, events, consumes, restores)


def batches(events: Sequence[Event], size: int = 256) -> Iterable[BatchLine]:
    """Yield events that arrived together as lines of a readable size."""
    for start in range(0, len(events), size):
        part = tuple(events[start : start + size])
        yield BatchLine(part[0].seq - 1, 0, part)


def _event_record(event: Event) -> Record:
    return {
        "at": event.at,
        "data": event.data,
        "digest": event.digest,
        "seq": event.seq,
        "type": event.type,
        "v": event.version,
    }


def _list(value: Any) -> list[Any]:
    return msgspec.convert(value, list[Any])
