"""Records of programs that are built on top: found by kind and key, without those retracted.

The log is the only truth; the index here is made from it and knows up to which position. A log only
grows, so what is indexed stays right, and each look adds what was appended since.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.core.errors import InvalidInput, RecordConflict
from holdfast.core.events import Event
from holdfast.core.facts import RecordPut
from holdfast.core.ids import check_key
from holdfast.stores.port import SessionStore
from holdfast.views.values import value_or_erased

INDEXED_SESSIONS = 256
PAGE_EVENTS = 1000
SPARSE = 8
"""Where fewer than one of so many events is wanted, each is read by itself."""


@dataclass(frozen=True, slots=True)
class RecordView:
    """A record: what a program keeps in a session's log."""

    seq: int
    at: str
    number: int
    kind: str
    key: str | None
    value: Any  # an `Erased` where it was erased


@dataclass(frozen=True, slots=True)
class _Place:
    seq: int
    kind: str
    key: str | None


@dataclass(slots=True)
class RecordIndex:
    """The records of one session that are not retracted, by number, by kind and by key."""

    session: str
    seq: int = 0  # the last record event that is indexed
    last: int = 0  # its number
    places: dict[int, _Place] = field(default_factory=dict)
    writing: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by whoever writes here, from looking at the index to the append."""
    _kinds: dict[str, dict[int, None]] = field(default_factory=dict)
    _keys: dict[tuple[str, str], dict[int, None]] = field(default_factory=dict)

    async def catch_up(self, store: SessionStore) -> None:
        """Take in what was appended since the last look."""
        while page := await store.read_events(
            self.session, after=self.seq, limit=PAGE_EVENTS, types=[RecordPut.TYPE]
        ):
            self.take(page)

    def take(self, events: Iterable[Event]) -> None:
        """Take in the events that follow what is indexed; others are here already."""
        for event in events:
            if event.seq <= self.seq:
                continue
            fact = event.fact() if event.known else None
            if isinstance(fact, RecordPut):
                self._add(event.seq, fact)
            self.seq = event.seq

    def _add(self, seq: int, fact: RecordPut) -> None:
        for number in fact.retracts:
            self._drop(number)
        self.last = fact.record
        if fact.value is None:
            return  # it only retracts
        self.places[fact.record] = _Place(seq, fact.kind, fact.key)
        self._kinds.setdefault(fact.kind, {})[fact.record] = None
        if fact.key is not None:
            self._keys.setdefault((fact.kind, fact.key), {})[fact.record] = None

    def _drop(self, number: int) -> None:
        place = self.places.pop(number, None)
        if place is None:
            return
        del self._kinds[place.kind][number]
        if place.key is not None:
            numbers = self._keys[place.kind, place.key]
            del numbers[number]
            if not numbers:
                del self._keys[place.kind, place.key]

    def latest(self, kind: str, key: str | None = None) -> int:
        """Return the number of the latest record of a kind, or of one of its keys; 0 for none."""
        return next(reversed(self._numbers(kind, key)), 0)

    def check_latest(self, kind: str, key: str | None, expected: int) -> None:
        """Refuse where another record than the expected one is the latest."""
        found = self.latest(kind, key)
        if found != expected:
            what = f"kind {kind!r}" if key is None else f"kind {kind!r} and key {key!r}"
            raise RecordConflict(
                f"the latest record of {what} in session {self.session!r} is {found or 'none'}, "
                f"not {expected or 'none'}: someone else wrote; read again, then decide",
                session=self.session,
                latest=found,
                expected=expected,
            )

    def check_there(self, numbers: Iterable[int]) -> None:
        """Refuse numbers of records that never were, or are retracted already."""
        for number in numbers:
            if number in self.places:
                continue
            if isinstance(number, bool) or not isinstance(number, int) or not number > 0:
                raise InvalidInput(f"{number!r} is not a valid number of a record")
            if number > self.last:
                raise InvalidInput(f"session {self.session!r} has no record {number}")
            raise RecordConflict(
                f"record {number} of session {self.session!r} is retracted already",
                session=self.session,
                record=number,
            )

    def found(
        self,
        kind: str | None,
        key: str | None,
        prefix: str | None,
        numbers: Sequence[int] | None,
        reverse: bool,
    ) -> Iterator[tuple[int, _Place]]:
        """Yield the numbers and places that fit, in order of the log or against it."""
        chosen: Iterable[int]
        if numbers is not None:
            chosen = sorted(set(numbers) & self.places.keys(), reverse=reverse)
        else:
            known = self.places if kind is None else self._numbers(kind, key)
            chosen = reversed(known) if reverse else iter(known)
        for number in chosen:
            place = self.places[number]
            if kind is not None and place.kind != kind:
                continue
            if key is not None and place.key != key:
                continue
            if prefix is not None and not (place.key or "").startswith(prefix):
                continue
            yield number, place

    def _numbers(self, kind: str, key: str | None) -> dict[int, None]:
        if key is None:
            return self._kinds.get(kind, {})
        return self._keys.get((kind, key), {})


class RecordIndexes:
    """The indexes of the sessions that were looked at last."""

    def __init__(self, store: SessionStore) -> None:
        self._store = store
        self._known: OrderedDict[str, RecordIndex] = OrderedDict()

    async def of(self, session_id: str) -> RecordIndex:
        """Return the index of a session, up to date."""
        index = self._known.pop(session_id, None) or RecordIndex(session_id)
        self._known[session_id] = index
        if len(self._known) > INDEXED_SESSIONS:
            self._known.popitem(last=False)
        await index.catch_up(self._store)
        return index


async def read_records(
    store: SessionStore,
    index: RecordIndex,
    *,
    kind: str | None,
    key: str | None,
    prefix: str | None,
    numbers: Sequence[int] | None,
    after: int,
    before: int | None,
    limit: int,
    reverse: bool,
) -> list[RecordView]:
    """Return a page of records with their values."""
    if kind is None and key is not None:
        raise InvalidInput("a key names a record of a kind; pass the kind too")
    wanted: list[int] = []
    for _, place in index.found(kind, key, prefix, numbers, reverse):
        if len(wanted) >= limit:
            break
        if place.seq > after and (before is None or place.seq < before):
            wanted.append(place.seq)
    events = await _events(store, index.session, sorted(wanted))
    views = []
    for event in reversed(events) if reverse else events:
        fact = event.fact()
        assert isinstance(fact, RecordPut)
        value = await value_or_erased(store, index.session, fact.value)
        views.append(RecordView(event.seq, event.at, fact.record, fact.kind, fact.key, value))
    return views


async def _events(store: SessionStore, session_id: str, wanted: list[int]) -> list[Event]:
    if not wanted:
        return []
    found: list[Event] = []
    if (wanted[-1] - wanted[0]) >= len(wanted) * SPARSE:
        for seq in wanted:
            found += await store.read_events(session_id, after=seq - 1, before=seq + 1)
        return found
    after, chosen = wanted[0] - 1, set(wanted)
    while after < wanted[-1]:
        page = await store.read_events(
            session_id,
            after=after,
            before=wanted[-1] + 1,
            limit=PAGE_EVENTS,
            types=[RecordPut.TYPE],
        )
        found += [event for event in page if event.seq in chosen]
        after = page[-1].seq if page else wanted[-1]
    return found


def check_name(value: object, what: str) -> str:
    """Return a valid kind or key of a record."""
    return check_key(value, f"{what} of a record")
