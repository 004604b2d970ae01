"""Reading an export: bounded while it is read, proven whole before any of it is taken in.

A file from elsewhere may be cut, altered or made to exhaust this machine: a few kilobytes can
decompress to terabytes. So it is read twice. The first pass keeps one line at a time and checks the
bounds and the closing digest; only the second one builds what is to be stored.
"""

from __future__ import annotations

import base64
import hashlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.core.errors import (
    Corruption,
    InvalidId,
    InvalidInput,
    InvalidRef,
    Refused,
    StoreNewer,
)
from holdfast.core.events import Event, event_from_record
from holdfast.core.ids import check_content_id, check_id
from holdfast.core.payloads import Slot, check_bytes, erased_mark
from holdfast.core.records import parse
from holdfast.core.replay import Copy, step
from holdfast.core.state import State, empty

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

FORMAT = "holdfast.export"
FORMAT_VERSION = 1

PIECE_BYTES = 1 << 20
MAX_FRAME_LINE = 4096
"""How long the first and the last line are at most; they are read before anything is proven."""
FREE_BYTES = 256 << 20
"""So much is read whatever the ratio: a session of much repeated text is small."""


@dataclass(frozen=True, slots=True)
class ImportLimits:
    """How much an export may decompress to, in bytes and for each byte of the file.

    The ratio counts from 256 MiB on. What is imported is held in memory once.
    """

    max_bytes: int = 4 << 30
    max_ratio: int = 1000

    def __post_init__(self) -> None:
        if min(self.max_bytes, self.max_ratio) < 1:
            raise InvalidInput(f"{self} does not allow any import; limits are 1 or more")


def read_export(path: Path, limits: ImportLimits) -> list[Copy]:
    """Return the sessions of a file; raise where it is not whole, not valid or too large."""
    try:
        if path.exists() and not path.is_file():
            raise InvalidInput(f"{str(path)!r} is not a regular file; name a file to import")
        _check_end(path, limits)
        return _read_logs(path, limits)
    except FileNotFoundError:
        raise InvalidInput(f"there is no export at {str(path)!r}") from None
    except OSError as error:
        raise InvalidInput(
            f"{str(path)!r} cannot be read: {error}; name a file that an export made"
        ) from error
    except (InvalidRef, InvalidId, LookupError, TypeError, ValueError, zstd.ZstdError) as error:
        raise Corruption(f"{str(path)!r} is damaged or not an export: {error!r}") from error


def _check_end(path: Path, limits: ImportLimits) -> None:
    """Raise where a file has another header, or a closing digest that is missing or wrong."""
    digest = hashlib.sha256()
    before = b""
    for number, line in enumerate(_lines(path, limits)):
        if number == 0:
            _check_header(path, parse(line) if len(line) <= MAX_FRAME_LINE else None)
        digest.update(before)
        before = line
    end = parse(before) if 0 < len(before) <= MAX_FRAME_LINE else None
    if not isinstance(end, dict) or end.get("end") != "sha256:" + digest.hexdigest():
        raise Corruption(f"{str(path)!r} is cut short or altered: its closing digest is wrong")


def _lines(path: Path, limits: ImportLimits) -> Iterator[bytes]:
    """Yield the lines of a compressed file, as long as it stays within the limits."""
    whole, unfinished = 0, bytearray()
    with path.open("rb") as packed, zstd.open(packed, "rb") as unpacked:
        while piece := _next_piece(path, unpacked):
            whole += len(piece)
            allowed = min(limits.max_bytes, max(FREE_BYTES, limits.max_ratio * packed.tell()))
            if whole > allowed:
                raise Refused(
                    f"{str(path)!r} decompresses to more than {allowed} bytes, the limit for a "
                    f"file of this size; where you trust it, import it with a larger "
                    f"{'size' if allowed == limits.max_bytes else 'ratio'}"
                )
            first, *rest = piece.split(b"\n")
            unfinished += first
            for part in rest:
                yield bytes(unfinished) + b"\n"
                unfinished = bytearray(part)
    if unfinished:
        yield bytes(unfinished)


def _next_piece(path: Path, unpacked: Any) -> bytes:
    try:
        return bytes(unpacked.read(PIECE_BYTES))
    except EOFError:
        raise Corruption(
            f"{str(path)!r} is cut short or altered: it ends within its compressed data"
        ) from None


@dataclass(slots=True)
class _Log:
    state: State
    events: list[Event] = field(default_factory=list)
    payloads: dict[str, bytes] = field(default_factory=dict)
    erased: dict[str, tuple[str, str]] = field(default_factory=dict)


def _read_logs(path: Path, limits: ImportLimits) -> list[Copy]:
    logs: dict[str, _Log] = {}
    session_id = ""
    for record in _records(path, limits):
        if "session" in record:
            session_id = check_id(record["session"])
            if session_id in logs:
                raise Corruption(f"{path} holds session {session_id!r} twice")
            logs[session_id] = _Log(empty(session_id))
        elif session_id == "":
            raise Corruption(f"{path} holds data before its first session")
        elif "event" in record:
            log = logs[session_id]
            log.events.append(event_from_record(session_id, record["event"]))
            log.state = step(log.state, log.events[-1])
        elif "data" in record:
            data = base64.b64decode(record["data"], validate=True)
            item = Slot(record["payload"], "bytes", "chunk", len(data))
            logs[session_id].payloads[item.id] = check_bytes(item, data)
        elif "erased" in record:
            mark = erased_mark(record["erased"])
            payload_id = check_content_id(record["payload"])
            logs[session_id].erased[payload_id] = (mark.at, mark.rule)
        else:
            raise Corruption(f"{path} holds a line of unknown kind: {sorted(record)}")
    for session_id, log in logs.items():
        if not log.events:
            raise Corruption(f"{path} holds no events of session {session_id!r}")
    return [Copy(name, log.events, log.payloads, log.erased) for name, log in logs.items()]


def _records(path: Path, limits: ImportLimits) -> Iterator[Any]:
    """Yield what stands between header and end; the file may have changed since it was proven."""
    digest = hashlib.sha256()
    ended = False
    for number, line in enumerate(_lines(path, limits)):
        record = parse(line)
        if ended or not isinstance(record, dict):
            raise ValueError("it goes on after its end" if ended else "a line is not an object")
        if number == 0:
            _check_header(path, record)
        elif "end" in record:
            ended = record["end"] == "sha256:" + digest.hexdigest()
            if not ended:
                break
        else:
            yield record
        digest.update(line)
    if not ended:
        raise Corruption(f"{str(path)!r} is cut short or altered: its closing digest is wrong")


def _check_header(path: Path, record: Any) -> None:
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise InvalidInput(f"{str(path)!r} is not a Holdfast export")
    if record.get("v") != FORMAT_VERSION:
        raise StoreNewer(
            f"{str(path)!r} has export format {record.get('v')!r}; this release reads "
            f"{FORMAT_VERSION}: upgrade Holdfast"
        )
