"""Event rows and the states folded from them.

A state in memory counts only if it has the position and the digest of the session's row, so nothing
needs to be told when another process writes or a transaction is rolled back.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from holdfast.core.errors import Corruption, InvalidInput
from holdfast.core.events import Event, chain_start, check_digest
from holdfast.core.fold import FOLD_VERSION, apply
from holdfast.core.state import State, empty
from holdfast.stores import snapshots
from holdfast.stores.checks import LARGEST
from holdfast.stores.relational.plan import Change, ChangeMany, Plan, Query, first
from holdfast.stores.relational.sessions import SessionRow

logger = logging.getLogger("holdfast.stores")

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
    tip = yield from _tip(row)
    return list((yield from _gapless(row, tip, after, before, limit, reverse)))


def _tip(row: SessionRow) -> Plan[int]:
    """Return how far the log must go: as its row says, unless its last event shows it wrong."""
    if type(row.seq) is int and (yield from _digest_at(row, row.seq)) is not None:
        return row.seq
    last = yield from first("last_event", row.key)
    whole = last is not None and (last[1] == row.digest or type(row.seq) is not int)
    if whole and type(last[0]) is int:
        seq: int = last[0]
        return seq
    return row.seq if type(row.seq) is int else 1


def _gapless(
    row: SessionRow, tip: int, after: int, before: int | None, limit: int, reverse: bool
) -> Plan[Iterator[Event]]:
    """Return a page's events, each decoded and checked for gaps when it is taken."""
    end = LARGEST if before is None else before
    way = "backward" if reverse else "forward"
    found = yield Query(f"events_{way}", (row.key, after, end, limit))

    def events() -> Iterator[Event]:
        last = min(end - 1, tip)
        due, step = (last, -1) if reverse else (after + 1, 1)
        for stored in found:
            event = _event(row.id, stored)
            # What is beyond that end is shown: it is the row that is wrong.
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
    """The states of sessions, from memory where it is right, else from snapshot and log.

    The log wins over what is derived from it. A row or a snapshot that disagrees is reported once
    and not believed; whoever writes to the session next makes it anew.
    """

    def __init__(self) -> None:
        self._known: dict[int, State] = {}
        self._reported: set[tuple[str, int]] = set()
        self._lacking: set[int] = set()

    def report(self, row: SessionRow, what: str) -> None:
        """Warn once that something derived from a session's log does not agree with it."""
        if (what, row.key) not in self._reported:
            self._reported.add((what, row.key))
            logger.warning(
                "%s of session %s does not agree with its log; the log counts, and the next write "
                "makes it anew",
                what,
                row.address.key,
            )

    def needs_snapshot(self, key: int) -> bool:
        """Tell once whether a session has no snapshot to load from although it should."""
        lacking = key in self._lacking
        self._lacking.discard(key)
        return lacking

    def remember(self, key: int, state: State) -> None:
        """Keep the state of the session with a key in memory."""
        if len(self._known) >= CACHED_STATES:
            self._known.clear()
        self._known[key] = state

    def load(self, row: SessionRow) -> Plan[State]:
        """Return the state at the tip of a session's log."""
        known = self._known.get(row.key)
        if known is not None and is_at(known, row):
            return known
        state = (yield from self._restore(row)) or empty(row.id)
        loaded, start = state.seq, -1
        while start < state.seq:
            start = state.seq
            for event in (yield from _gapless(row, 0, start, None, PAGE_EVENTS, reverse=False)):
                check_digest(state.digest, event)
                state = apply(state, event)
        if not is_at(state, row):
            if _may_be_cut_off(state, row):
                raise gap(row, state.seq + 1)
            self.report(row, "the row")
        if state.tenant != row.tenant:
            raise Corruption(
                f"the row of session {row.id!r} names another tenant than its log; restore it from "
                "an export",
                session=row.id,
            )
        if state.seq - loaded > snapshots.SNAPSHOT_EVENTS:
            self._lacking.add(row.key)
        known = self._known.get(row.key)
        if known is None or known.seq <= state.seq:
            # A reader may be behind the writer; the newer state stays.
            self.remember(row.key, state)
        return state

    def _restore(self, row: SessionRow) -> Plan[State | None]:
        found = yield from first("get_snapshot", row.key)
        if found is None:
            return None
        seq, fold, digest, checksum, body = found
        state = None
        try:
            snapshot = snapshots.Snapshot(seq, fold, digest.hex(), checksum.hex(), bytes(body))
            state = snapshots.restore(row.id, snapshot, (yield from _digest_at(row, seq)))
        except (AttributeError, TypeError):
            pass  # columns of the wrong type
        if state is None and fold == FOLD_VERSION:  # else another release made it
            self.report(row, "the snapshot")
            self._lacking.add(row.key)
        return state


def is_at(state: State, row: SessionRow) -> bool:
    """Tell whether a state is at the position of its session's row, digest included."""
    return state.seq == row.seq and bytes.fromhex(state.digest) == row.digest


def _may_be_cut_off(state: State, row: SessionRow) -> bool:
    """Tell whether a row names an event that may have been lost from the end of the log.

    Then the row is the last witness of what was acknowledged, and nobody may go on without it.
    """
    ahead = type(row.seq) is int and row.seq > state.seq
    return ahead and row.digest != bytes.fromhex(state.digest)


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


def _digest_at(row: SessionRow, seq: int) -> Plan[str | None]:
    if seq == 0:
        return chain_start(row.id)
    found = yield from first("event_digest", row.key, seq)
    return found[0].hex() if found is not None and type(found[0]) is bytes else None
