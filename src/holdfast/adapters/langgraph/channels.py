"""Channel values in records: lists as what was added to an earlier one, others whole.

A list that grows by a message a turn is kept as its new items and the number of the record that it
goes on from, so that a thread stores what was said and not its square. Once as much was added as
the last whole copy held, the list is written whole again: all copies together stay below twice
the list, and a reader follows a bounded chain.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import holdfast
from holdfast.adapters.langgraph.packing import Packed, Packer

KIND = "langgraph.channel"
KEPT = 256
PAGE = 200
FEW = 64
"""So many items are added before a list is written whole again, however short it is."""


@dataclass(slots=True)
class StoredList:
    """A list as its records have it: items, and how many were added since the last whole copy."""

    items: list[Packed]
    added: int
    whole: int


class Channels:
    """The channel values of one thread's session."""

    def __init__(self, session: holdfast.Session[Any], packer: Packer) -> None:
        self._session = session
        self._packer = packer
        self._known: OrderedDict[int, StoredList | Packed] = OrderedDict()

    async def draft(self, name: str, value: Any, before: int | None) -> Draft | None:
        """Return the record of a new value; None where the record `before` has the same one."""
        known = None if before is None else await self._stored(before)
        if type(value) is not list:
            packed = self._packer.pack(value)
            if known == packed:
                return None
            return Draft({"channel": name, "value": packed}, packed)
        items = [self._packer.pack(item) for item in value]
        if isinstance(known, StoredList):
            if known.items == items:
                return None
            keep = _common(known.items, items)
            added = known.added + len(items) - keep
            if keep and added <= max(FEW, known.whole):
                data = {"channel": name, "base": before, "keep": keep, "items": items[keep:]}
                return Draft(data, StoredList(items, added, known.whole))
        data = {"channel": name, "items": items}
        return Draft(data, StoredList(items, 0, len(items)))

    def remember(self, number: int, draft: Draft) -> None:
        """Keep in memory what a record has that was just written."""
        self._known[number] = draft.stored
        self._known.move_to_end(number)
        while len(self._known) > KEPT:
            self._known.popitem(last=False)

    async def value(self, number: int) -> Any:
        """Return a channel's value."""
        found = await self._stored(number)
        if isinstance(found, StoredList):
            return [self._packer.unpack(item) for item in found.items]
        return self._packer.unpack(found)

    async def _stored(self, number: int) -> StoredList | Packed:
        found = self._known.get(number)
        if found is not None:
            self._known.move_to_end(number)
            return found
        chain: list[dict[str, Any]] = []
        at: int | None = number
        page: dict[int, dict[str, Any]] = {}
        while at is not None and not (chain and at in self._known):
            if at not in page:
                page = await self._page(at)
            chain.append(page[at])
            at = base_of(at, page[at])
        if "value" in chain[0]:
            packed: Packed = chain[0]["value"]
            self.remember(number, Draft({}, packed))
            return packed
        start = None if at is None else self._known[at]
        stored = start if isinstance(start, StoredList) else StoredList([], 0, 0)
        for data in reversed(chain):
            if "base" in data:
                items = stored.items[: data["keep"]] + data["items"]
                stored = StoredList(items, stored.added + len(data["items"]), stored.whole)
            else:
                stored = StoredList(data["items"], 0, len(data["items"]))
        self.remember(number, Draft({}, stored))
        return stored

    async def _page(self, number: int) -> dict[int, dict[str, Any]]:
        """Return the data of a record and of those of its channel before it."""
        last = await read(self._session, number)
        earlier = await self._session.records(
            KIND, key=last.key, before=last.seq, limit=PAGE, reverse=True
        )
        return {view.number: view.value for view in [last, *earlier]}


@dataclass(frozen=True, slots=True)
class Draft:
    """A record that is to be written, and what will be known of it."""

    data: dict[str, Any]
    stored: StoredList | Packed


async def read(session: holdfast.Session[Any], number: int) -> holdfast.RecordView:
    """Return a record that another one refers to."""
    found = await session.records(numbers=[number], limit=1)
    if not found:
        raise holdfast.errors.Corruption(
            f"record {number} of session {session.id!r} is missing, which a checkpoint refers to; "
            "run `holdfast verify`",
            session=session.id,
        )
    return found[0]


def absolute(number: int, ref: int) -> int:
    """Return the number that a record refers to: a negative one counts back from its own."""
    return number + ref if ref < 0 else ref


def base_of(number: int, data: dict[str, Any]) -> int | None:
    """Return the number of the record that a list goes on from, None where it is whole."""
    return absolute(number, data["base"]) if "base" in data else None


def _common(before: Sequence[Packed], items: Sequence[Packed]) -> int:
    """Return how many items two lists begin with alike."""
    count = 0
    for old, new in zip(before, items, strict=False):
        if old != new:
            break
        count += 1
    return count
