"""Event rows and the states folded from them.

A state in memory counts only if it stands where the session's row stands, digest included, so
nothing needs to be told when another process writes or a transaction is rolled back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import apsw
import msgspec

from holdfast.core.errors import Corruption, InvalidInput
from holdfast.core.events import Event, chain_start, check_digest
from holdfast.core.fold import apply
from holdfast.core.state import State, empty
from holdfast.stores import snapshots
from holdfast.stores.checks import LARGEST
from holdfast.stores.sqlite.database import SQL
from holdfast.stores.sqlite.sessions import SessionRow

CACHED_STATES = 4096

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, Any]).decode


def insert(cursor: apsw.Cursor, key: int, events: Iterable[Event]) -> None:
    """Add events to a session's log."""
    cursor.executemany(SQL["insert_event"], _rows(key, events))


def heal(cursor: apsw.Cursor, key: int, events: Iterable[Event]) -> None:
    """Put events where a session's log has others or none."""
    cursor.executemany(SQL["heal_event"], _rows(key, events))


def _rows(key: int, events: Iterable[Event]) -> list[tuple[Any, ...]]:
    return [
        (
            key,
            event.seq,
            event.type,
            event.version,
            event.at,
            bytes.fromhex(event.digest),
            data_text(event),
        )
        for event in events
    ]


def data_text(event: Event) -> str:
    """Return an event's data as its row holds it."""
    return _encode(event.data).decode()


def read(
    cursor: apsw.Cursor,
    row: SessionRow,
    *,
    after: int = 0,
    before: int | None = None,
    limit: int = -1,
    reverse: bool = False,
    types: Sequence[str] | None = None,
) -> Iterator[Event]:
    """Yield events with after < seq < before; Corruption where one is missing or does not decode.

    Among events of some types only, nobody can tell that one is missing.
    """
    bounds = (row.key, after, LARGEST if before is None else before)
    way = "backward" if reverse else "forward"
    if types is not None:
        wanted = _encode(list(types)).decode()
        for stored in cursor.execute(SQL[f"events_of_types_{way}"], (*bounds, wanted, limit)):
            yield _event(row.id, stored)
        return
    tip = row.seq if type(row.seq) is int else LARGEST  # a damaged row says nothing of its end
    last = min(bounds[2] - 1, tip)
    due, step, left = (last, -1, limit) if reverse else (after + 1, 1, limit)
    for stored in cursor.execute(SQL[f"events_{way}"], (*bounds, limit)):
        event = _event(row.id, stored)
        # What is beyond the end that the row names is shown: it is the row that is wrong.
        if event.seq != due and not (reverse and event.seq > due == last):
            raise gap(row, due)
        yield event
        due, left = event.seq + step, left - 1
    if left and after < due <= last:
        raise gap(row, due)


def _event(session_id: str, stored: Any) -> Event:
    # Texts come as bytes: a damaged one is this event's failure, and the others stay readable.
    seq, kind, version, at, digest, data = stored
    try:
        if type(seq) is not int or type(version) is not int:
            raise TypeError("its number or version is no integer")
        return Event(
            session_id, seq, kind.decode(), version, at.decode(), _decode(data), digest.hex()
        )
    except (msgspec.MsgspecError, UnicodeDecodeError, AttributeError, TypeError) as error:
        raise Corruption(
            f"event {seq} of session {session_id!r} is damaged: {error}; run `holdfast verify` and "
            "restore it from an export",
            session=session_id,
            seq=seq,
        ) from error


def damaged(cursor: apsw.Cursor, row: SessionRow, good: Sequence[Event]) -> list[Event]:
    """Return those of a log's good events whose rows are missing or do not prove themselves."""
    bounds = (row.key, 0, len(good) + 1, -1)
    found: Any = {stored[0]: stored for stored in cursor.execute(SQL["events_forward"], bounds)}
    wrong = []
    previous = chain_start(row.id)
    for event in good:
        try:
            stored = _event(row.id, found[event.seq])
            check_digest(previous, stored)
            if stored.digest != event.digest:
                wrong.append(event)
        except (KeyError, TypeError, Corruption, InvalidInput):
            wrong.append(event)
        previous = event.digest
    return wrong


class States:
    """The states of sessions, from memory where it is right, else from snapshot and log."""

    def __init__(self) -> None:
        self._known: dict[str, State] = {}

    def remember(self, state: State) -> None:
        """Keep a state in memory."""
        if len(self._known) >= CACHED_STATES:
            self._known.clear()
        self._known[state.session] = state

    def load(self, cursor: apsw.Cursor, row: SessionRow) -> State:
        """Return the state at the tip of a session's log."""
        known = self._known.get(row.id)
        if known is not None and _is_at(known, row):
            return known
        state = _restore(cursor, row) or empty(row.id)
        for event in read(cursor, row, after=state.seq):
            if event.seq != state.seq + 1:
                raise gap(row, state.seq + 1)
            check_digest(state.digest, event)
            state = apply(state, event)
        if not _is_at(state, row):
            raise gap(row, state.seq + 1)
        known = self._known.get(row.id)
        if known is None or known.seq <= state.seq:
            self.remember(state)  # a reader may be behind the writer; the newer state stays
        return state


def _is_at(state: State, row: SessionRow) -> bool:
    """Tell whether a state stands where its session's row says, whatever a damaged one says."""
    return state.seq == row.seq and bytes.fromhex(state.digest) == row.digest


def gap(row: SessionRow, seq: int) -> Corruption:
    """Return the error for an event that is not in the log."""
    return Corruption(
        f"event {seq} of session {row.id!r} is missing or not the one its row names; run "
        "`holdfast verify`",
        session=row.id,
        seq=seq,
        missing=True,
    )


def take_snapshot(cursor: apsw.Cursor, key: int, state: State) -> None:
    """Keep the state so that loading starts from here."""
    taken = snapshots.take(state)
    digest, checksum = bytes.fromhex(taken.digest), bytes.fromhex(taken.checksum)
    cursor.execute(SQL["put_snapshot"], (key, taken.seq, taken.fold, digest, checksum, taken.body))


def _restore(cursor: apsw.Cursor, row: SessionRow) -> State | None:
    found: Any = cursor.execute(SQL["get_snapshot"], (row.key,)).fetchone()
    if found is None:
        return None
    seq, fold, digest, checksum, body = found
    try:
        snapshot = snapshots.Snapshot(seq, fold, digest.hex(), checksum.hex(), bytes(body))
    except (AttributeError, TypeError):
        return None
    return snapshots.restore(row.id, snapshot, _digest_at(cursor, row, seq))


def _digest_at(cursor: apsw.Cursor, row: SessionRow, seq: int) -> str | None:
    if seq == 0:
        return chain_start(row.id)
    found: Any = cursor.execute(SQL["event_digest"], (row.key, seq)).fetchone()
    return None if found is None else found[0].hex()
