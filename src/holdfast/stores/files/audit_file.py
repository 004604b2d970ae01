"""The audit of model calls: one line for each in `audit.jsonl`, beside the log of its session.

No digest covers it. What an interrupted write left is no row, and the next one begins a new line.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from holdfast.blobs.disk import Disk
from holdfast.core.events import now
from holdfast.stores import rows
from holdfast.stores.port import AuditRow


class _Line(msgspec.Struct):
    number: int
    at: str
    record: msgspec.Raw


class AuditFile:
    """The audit of one session; whoever writes holds the session's lock."""

    def __init__(self, disk: Disk, path: Path, session: str) -> None:
        self._disk = disk
        self._path = path
        self._session = session

    def read(self) -> list[AuditRow]:
        """Return all rows that are whole, in order."""
        return [
            rows.audit_row(self._session, line.number, line.at, bytes(line.record))
            for line in self._lines()
        ]

    def add(self, data: bytes) -> AuditRow:
        """Add a row behind the last one."""
        lines = self._lines()
        line = _Line(lines[-1].number + 1 if lines else 1, now(), msgspec.Raw(data))
        torn = not self._data().endswith(b"\n") and bool(self._data())
        self._disk.append(self._path, (b"\n" if torn else b"") + _written(line))
        return rows.audit_row(self._session, line.number, line.at, data)

    def shorten(self, before: str, keep: int | None) -> int:
        """Remove rows that are older than a moment, and those beyond the number to keep."""
        lines = self._lines()
        kept = [line for line in lines if line.at >= before]
        if keep is not None:
            kept = kept[max(0, len(kept) - keep) :]
        if len(kept) < len(lines):
            self._disk.replace(self._path, b"".join(map(_written, kept)))
        return len(lines) - len(kept)

    def _data(self) -> bytes:
        return self._disk.read(self._path) if self._disk.stat(self._path) is not None else b""

    def _lines(self) -> list[_Line]:
        found = []
        for text in self._data().splitlines():
            try:
                found.append(msgspec.json.decode(text, type=_Line))
            except msgspec.MsgspecError:
                continue
        return found


def _written(line: _Line) -> bytes:
    return msgspec.json.encode(line) + b"\n"
