"""The order of sets, made to follow from their members alone.

A set iterates by where its members stand in its table, which depends on how it grew, and a restored
one grew in another way. So before each checkpoint and after each restore the sets of text and
numbers are filled anew in one certain order: a cell that runs again finds them as it did at first.
Frozen sets cannot be filled anew, and the order of objects that hash by their address means
nothing to another process.
"""

from __future__ import annotations

from gc import get_objects

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

EMPTY_SET = b"\x8f"  # without this byte a pickle holds no set
_PLAIN = frozenset({str, bytes, int, float, bool})
# Above this it is worth remembering that a set is in order: sorting it takes longer than to look.
_LARGE = 200


class SetOrder:
    """Puts the sets of this process in order."""

    def __init__(self) -> None:
        self._settled: dict[int, list[Any]] = {}

    def settle(self) -> bool:
        """Fill anew every set that the interpreter did not begin with; tell if an order changed."""
        before, self._settled = self._settled, {}
        changed = False
        for item in get_objects():
            # Asking for its class could run code of the model.
            if type(item) is not set or len(item) < 2:
                continue
            members = list(item)
            if not _plain(members):
                continue
            if len(members) < _LARGE or before.get(id(item)) != members:
                item.clear()
                item.update(_ordered(members[:]))
                filled = list(item)
                changed = changed or filled != members
                members = filled
            if len(members) >= _LARGE:
                self._settled[id(item)] = members
        return changed


def _plain(members: list[Any]) -> bool:
    kinds = set(map(type, members))
    if kinds <= _PLAIN:
        return True
    return kinds <= _PLAIN | {tuple} and all(
        _PLAIN.issuperset(map(type, member)) for member in members if type(member) is tuple
    )


def _ordered(members: list[Any]) -> list[Any]:
    members.sort(key=hash)
    hashes = list(map(hash, members))
    if len(set(hashes)) < len(hashes):
        # Such as -1 and -2, which have one hash.
        members.sort(key=lambda member: (hash(member), repr(member)))
    return members
