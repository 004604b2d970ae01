"""Event rows and the states folded from them.

A state in memory counts only if it has the position and the digest of the session's row, so nothing
needs to be told when another process writes or a transaction is rolled back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from holdfast.core.errors import Corruption, InvalidInput
from holdfast.core.events import Event, chain_start, check_digest
from holdfast.core.fold import apply
from holdfast.core.state import State, empty
from holdfast.stores import snapshots
from holdfast.stores.checks import LARGEST
from holdfast.stores.relational.plan import Change, ChangeMany, Plan, Query, first
from holdfast.stores.relational.sessions import SessionRow

CACHED_STATES = 4096
PAGE_EVENTS = 1000

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, Any]).decode


def insert(key: int, events: Sequence[Event]) -> Plan[None]:
    """Add events to a session's log."""
    yield ChangeMany("insert_event", _rows(key, events))


def heal(key: int, events: Sequence[Event]) -> Plan[None]:
    """Put events where a session's log has others or none."""
    yield ChangeMany("heal_event", _rows(key, events))


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


def page(
    row: SessionRow,
    *,
    after: int = 0,
    before: int | None = None,
    limit: int,
    reverse: bool = False,
    types: Sequence[str] | None = None,
) -> Plan[list[Event]]:
    """Return events with after < seq < before; Corruption where one is missing or damaged.

    Among events of some types only, nobody can tell that one is missing.
    """
    if types is not None:
        bounds = (row.key, after, LARGEST if before is None else before)
        wanted = _encode(list(types)).decode()
        way = "backward" if reverse else "forward"
        found = yield Query(f"events_of_types_{way}", (*bounds, wanted, limit))
        return [_event(row.id, stored) for stored in found]
    return list((yield from _gapless(row, after, before, limit, reverse)))


def _gapless(
    row: SessionRow, after: int, before: int | None, limit: int, reverse: bool
) -> Plan[Iterator[Event]]:
    """Return a page's events, each decoded and checked for gaps when it is taken."""
    end = LARGEST if before is None else before
    way = "backward" if reverse else "forward"
    found = yield Query(f"events_{way}", (row.key, after, end, limit))

    def events() -> Iterator[Event]:
        tip = row.seq if type(row.seq) is int else LARGEST  # a damaged row says nothing of its end
        last = min(end - 1, tip)
        due, step = (last, -1) if reverse else (after + 1, 1)
        for stored in found:
            event = _event(row.id, stored)
            # What is beyond the end that the row names is shown: it is the row that is wrong.
            if event.seq != due and not (reverse and event.seq > due == last):
                raise gap(row, due)
            yield event
            due = event.seq + step
        if len(found) < limit and after < due <= last:
            raise gap(row, due)

    return events()


def whole(row: SessionRow) -> Plan[list[Event]]:
    """Return a session's whole log."""
    events: list[Event] = []
    while part := (yield from page(row, after=len(events), limit=PAGE_EVENTS)):
        events += part
    return events


def _event(session_id: str, stored: Any) -> Event:
    # Texts may come as bytes: a damaged one is this event's failure, and the others stay readable.
    seq, kind, version, at, digest, data = stored
    try:
        if type(seq) is not int or type(version) is not int:
            raise TypeError("its number or version is not an integer")
        return Event(session_id, seq, _text(kind), version, _text(at), _decode(data), digest.hex())
    except (msgspec.MsgspecError, UnicodeDecodeError, AttributeError, TypeError) as error:
        raise Corruption(
            f"event {seq} of session {session_id!r} is damaged: {error}; run `holdfast verify` and "
            "restore it from an export",
            session=session_id,
            seq=seq,
        ) from error


def _text(value: Any) -> str:
    if type(value) is str:
        return value
    decoded: str = value.decode()
    return decoded


def damaged(row: SessionRow, good: Sequence[Event]) -> Plan[list[Event]]:
    """Return those of a log's good events whose rows are missing or do not prove themselves."""
    stored = yield Query("events_forward", (row.key, 0, len(good) + 1, len(good) + 1))
    found = {item[0]: item for item in stored}
    wrong = []
    previous = chain_start(row.id)
    for event in good:
        try:
            here = _event(row.id, found[event.seq])
            check_digest(previous, here)
            if here.digest != event.digest:
                wrong.append(event)
        except (KeyError, TypeError, Corruption, InvalidInput):
            wrong.append(event)
        previous = event.digest
    return wrong


def is_stored(state: State, row: SessionRow | None) -> Plan[bool]:
    """Tell whether a state's last event is in the log."""
    if row is None:
        return False
    digest = yield from _digest_at(row, state.seq)
    return digest == state.digest


class States:
    """The states of sessions, from memory where it is right, else from snapshot and log."""

    def __init__(self) -> None:
        self._known: dict[int, State] = {}

    def remember(self, key: int, state: State) -> None:
        """Keep the state of the session with a key in memory."""
        if len(self._known) >= CACHED_STATES:
            self._known.clear()
        self._known[key] = state

    def load(self, row: SessionRow) -> Plan[State]:
        """Return the state at the tip of a session's log."""
        known = self._known.get(row.key)
        if known is not None and _is_at(known, row):
            return known
        state = (yield from _restore(row)) or empty(row.id)
        start = -1
        while start < state.seq:
            start = state.seq
            for event in (yield from _gapless(row, start, None, PAGE_EVENTS, reverse=False)):
                check_digest(state.digest, event)
                state = apply(state, event)
        if not _is_at(state, row):
            raise gap(row, state.seq + 1)
        known = self._known.get(row.key)
        if known is None or known.seq <= state.seq:
            # A reader may be behind the writer; the newer state stays.
            self.remember(row.key, state)
        return state


def _is_at(state: State, row: SessionRow) -> bool:
    """Tell whether a state is at the position of its session's row, digest included."""
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


def take_snapshot(key: int, state: State) -> Plan[None]:
    """Keep the state so that loading starts from here."""
    taken = snapshots.take(state)
    digest, checksum = bytes.fromhex(taken.digest), bytes.fromhex(taken.checksum)
    yield Change("put_snapshot", (key, taken.seq, taken.fold, digest, checksum, taken.body))


def _restore(row: SessionRow) -> Plan[State | None]:
    found = yield from first("get_snapshot", row.key)
    if found is None:
        return None
    seq, fold, digest, checksum, body = found
    try:
        snapshot = snapshots.Snapshot(seq, fold, digest.hex(), checksum.hex(), bytes(body))
    except (AttributeError, TypeError):
        return None
    return snapshots.restore(row.id, snapshot, (yield from _digest_at(row, seq)))


def _digest_at(row: SessionRow, seq: int) -> Plan[str | None]:
    if seq == 0:
        return chain_start(row.id)
    found = yield from first("event_digest", row.key, seq)
    return None if found is None else found[0].hex()
