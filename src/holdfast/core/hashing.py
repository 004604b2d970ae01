"""What it costs to put members into a set or keys into a dict, and where that is refused.

A hash table takes linear time unless many members share a hash; then each is compared with all
others, in one call that holds the interpreter. The hashes of numbers, and so of tuples of them, are
easily made equal (`k * (2**61 - 1)` hashes to 0 for every k), so a few kilobytes can take minutes.
Members that share a hash are therefore weighed before they are put together, and the time of a
large table is watched: tables can also be made slow by distinct hashes that want the same places.

Only the standard library is used, because confined workers load this file on its own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from decimal import Decimal
from itertools import groupby, islice
from operator import eq
from time import thread_time
from typing import Any, TypeVar

MAX_COMPARISONS = 20_000_000
"""How many comparisons of parts all tables of one value may need: well under a second."""

FREE = 16
"""So many members with the same hash cost nothing worth counting."""

WATCHED = 8_192
"""From so many members on the time that a table takes is watched."""

# A member takes about a tenth of a microsecond; this is for machines under load and then some.
SECONDS, SECONDS_PER_MEMBER = 1.0, 5e-6

Item = TypeVar("Item")

# The interpreter mixes a secret of its own into the hashes of these.
_SECRET = frozenset({str, bytes})


class HashingTooCostly(ValueError):
    """A set or dict has so many members with the same hash that making it takes too long."""

    def __init__(self) -> None:
        super().__init__(
            "too many members of sets or keys of dicts have the same hash; store them as a list"
        )


class HashWork:
    """The hash tables of one value, which share one limit."""

    def __init__(self) -> None:
        self._comparisons = 0
        self._seconds = SECONDS

    def check(self, members: Collection[Any]) -> None:
        """Raise HashingTooCostly where members share hashes too often; TypeError for unhashable."""
        if len(members) < FREE or _SECRET.issuperset(map(type, members)):
            return
        # Sorting needs no table, which hashes that want the same places would slow down.
        hashes = sorted(map(hash, members))
        if any(map(eq, hashes, islice(hashes, FREE - 1, None))):
            self._comparisons += _comparisons(members)
            if self._comparisons > MAX_COMPARISONS:
                raise HashingTooCostly

    def paced(self, items: list[Item]) -> Iterator[Item]:
        """Yield the items to whoever puts them into a table, and watch the time that it takes."""
        if len(items) < WATCHED:
            yield from items
            return
        started = thread_time()
        allowed = self._seconds + len(items) * SECONDS_PER_MEMBER
        for start in range(0, len(items), WATCHED // 8):
            yield from items[start : start + WATCHED // 8]
            if thread_time() - started > allowed:
                raise HashingTooCostly
        self._seconds = min(self._seconds, allowed - (thread_time() - started))


def _comparisons(members: Collection[Any]) -> int:
    """Return how many parts are compared where every member meets all others with its hash."""
    groups = (list(group) for _, group in groupby(sorted(members, key=hash), key=hash))
    return sum(len(group) * sum(map(_weight, group)) for group in groups if len(group) > 1)


def _weight(member: Any) -> int:
    """Return how many parts are compared to tell a member from one that is nearly equal."""
    kind = type(member)
    if kind is tuple:
        return 1 + sum(map(_weight, member))
    if kind is frozenset:
        return 1 + sum(map(_weight, member)) + _comparisons(member)
    if kind is str or kind is bytes:
        return 1 + len(member) // 32
    if kind is int:
        return 1 + int(member.bit_length()) // 32
    if kind is Decimal:
        return 1 + len(str(member)) // 16
    return 1
