"""The tip: what is known about a log at the end of one of its lines, in memory and in `run.json`.

A tip is never believed by itself. It counts only if the line that ends where the tip says still
bears the seal the tip remembers; then the lines behind it are folded on, and nothing before it has
to be read. A tip that does not fit costs time, nothing else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from msgspec import structs

from holdfast.core.errors import Corruption, InvalidRecord
from holdfast.core.fold import FOLD_VERSION, fold
from holdfast.core.records import Record, canonical
from holdfast.core.state import State, empty
from holdfast.stores.files.inbox_file import InboxFile
from holdfast.stores.files.log_file import LogFile

RUN_FORMAT = 2
"""Format of `run.json`."""


@dataclass(frozen=True, slots=True)
class Tip:
    """The fold of a log up to the byte `end`, and of the inbox as far as it was read."""

    state: State
    end: int = 0
    mark: str = ""
    epoch: int = 0
    pending: frozenset[str] = frozenset()
    inbox_items: int = 0
    inbox_size: int = 0


def load(log: LogFile, inbox: InboxFile, known: Iterable[Tip | None], *, lenient: bool) -> Tip:
    """Return the tip of a log, from the first of the given tips that still holds.

    A damaged line is Corruption, unless `lenient`: then what can be read is folded, for listings.
    """
    size = log.size()
    tip = next((t for t in known if t is not None and holds(log, t, size)), None)
    tip, consumed = _fold_lines(log, tip or Tip(empty(log.session)), size, lenient)
    # The inbox is read after the log, so whatever the log consumed is in it.
    if inbox.size() == tip.inbox_size:
        return replace(tip, pending=tip.pending - consumed) if consumed else tip
    try:
        found = inbox.read()
    except Corruption:
        if not lenient:
            raise
        return tip
    keys = list(found.items)
    pending = (tip.pending | frozenset(keys[tip.inbox_items :])) - consumed
    return replace(tip, pending=pending, inbox_items=len(keys), inbox_size=found.size)


def unreadable(session_id: str) -> Tip:
    """Return the tip of a log of which nothing can be read, not even how far it goes."""
    return Tip(structs.replace(empty(session_id), seq=1))


def holds(log: LogFile, tip: Tip, size: int) -> bool:
    """Tell whether a tip is one of this log as it stands."""
    return 0 < tip.end <= size and log.mark(tip.end) == tip.mark.encode()


def _fold_lines(log: LogFile, tip: Tip, size: int, lenient: bool) -> tuple[Tip, frozenset[str]]:
    state, end, epoch, hidden = tip.state, tip.end, tip.epoch, 0
    consumed: set[str] = set()
    for line in log.forward(end, size):
        end = line.end
        if line.batch is None:
            if not lenient:
                raise log.damage(line.start)
            hidden = 1
            continue
        if line.batch.after != state.seq and not lenient:
            raise log.gap(state.seq)
        state = fold(state, line.batch.events)
        epoch, hidden = max(epoch, line.batch.epoch), 0
        consumed.update(line.batch.consumes)
    if state.seq == 0 and not lenient:
        raise log.gap(0)
    if end == tip.end > 0:
        return tip, frozenset()
    # A damaged last line hides at least one event: whoever asks how far the log goes is told so.
    state = structs.replace(state, seq=max(state.seq + hidden, 1))
    mark = log.mark(end).decode("ascii", "replace")
    return replace(tip, state=state, end=end, mark=mark, epoch=epoch), frozenset(consumed)


def to_snapshot(tip: Tip) -> Record:
    """Return a tip as `run.json` keeps it."""
    body = msgspec.json.decode(msgspec.json.encode(tip))  # as it is when it is read back
    body["pending"] = sorted(body["pending"])
    return {"fold": FOLD_VERSION, "tip": body}


def from_snapshot(log: LogFile, record: Any) -> Tip | None:
    """Return the tip of a snapshot, None where it is of another fold or another log."""
    try:
        if record["fold"] != FOLD_VERSION:
            return None
        tip = msgspec.convert(record["tip"], Tip, str_keys=True)
    except (KeyError, TypeError, ValueError, InvalidRecord):
        return None
    if tip.state.session != log.session or not holds(log, tip, log.size()):
        return None
    line = next(log.backward(tip.end), None)
    if line is None or line.batch is None:
        return None
    last = line.batch.events[-1]
    return tip if (last.seq, last.digest) == (tip.state.seq, tip.state.digest) else None


def checksum(record: Any) -> str:
    """Return what `run.json` says of all else in it."""
    return hashlib.sha256(canonical(record)).hexdigest()
