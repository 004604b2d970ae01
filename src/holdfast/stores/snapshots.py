"""State snapshots: the fold so far, kept so that loading does not grow with history.

A snapshot is derived and may be missing, stale or damaged at any time. It counts only if its own
checksum holds, this release folds as the one that wrote it, and the log has the same digest at its
position; otherwise the log is folded from the start and nothing but time is lost.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import msgspec

from holdfast.core.fold import FOLD_VERSION
from holdfast.core.state import State
from holdfast.stores.rows import snapshot_check

SNAPSHOT_EVENTS = 64
"""A snapshot is taken when an append goes past a multiple of this many events."""

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(State).decode


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A state as stored, with what it takes to trust it."""

    seq: int
    fold: int
    digest: str
    checksum: str
    body: bytes


def is_due(before: int, after: int) -> bool:
    """Tell whether an append from one position to another should leave a snapshot."""
    return before // SNAPSHOT_EVENTS != after // SNAPSHOT_EVENTS


def take(state: State) -> Snapshot:
    """Return the snapshot of a state."""
    body = _encode(state)
    checksum = _checksum(state.seq, FOLD_VERSION, state.digest, body)
    return Snapshot(state.seq, FOLD_VERSION, state.digest, checksum, body)


def restore(session_id: str, snapshot: Snapshot, digest: str | None) -> State | None:
    """Return the state of a snapshot if it counts; `digest` is the log's at its position."""
    wanted = _checksum(snapshot.seq, snapshot.fold, snapshot.digest, snapshot.body)
    if snapshot.fold != FOLD_VERSION or snapshot.digest != digest or snapshot.checksum != wanted:
        return None
    try:
        state = _decode(snapshot.body)
    except msgspec.MsgspecError:
        return None
    same = (state.session, state.seq, state.digest) == (session_id, snapshot.seq, digest)
    return state if same else None


def _checksum(seq: int, fold: int, digest: str, body: bytes) -> str:
    return hashlib.sha256(snapshot_check(seq, fold, digest, body)).hexdigest()
