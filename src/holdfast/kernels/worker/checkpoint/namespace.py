"""The namespace as chunks, and back.

One pickler dumps variable after variable with a shared memo, so sharing and cycles across variables
are kept as they are. Large text is not pickled at all: each has a fixed slot at the start of the
memo and is stored once, raw, under its own content id; as long as the same object is there it is
not even hashed again. Variables that changed last are dumped last, so that the memo numbers of
those that did not change, and with them their chunks, stay the same.
"""

from __future__ import annotations

import _thread
import hashlib
import sys
from itertools import islice
from pickle import PickleBuffer

from holdfast.kernels.worker.cell import render
from holdfast.kernels.worker.checkpoint.makers import Marker, marker
from holdfast.kernels.worker.checkpoint.reduction import Reduction
from holdfast.kernels.worker.checkpoint.set_order import EMPTY_SET, SetOrder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

LARGE = 1 << 16
PIECE = 1 << 20
INLINE = 512
RESERVED = 256  # as in `pickling`
_NAMESPACE_SLOT, _BUILTINS_SLOT = 240, 241
_TEXT_SLOTS = 240
_SCAN = 5000
_DEEP = 30_000
PREVIEW = 80
_ALONE = 2  # references to a value that only a variable held: ours and that of who counts
_LONGEST_NAME = 400  # as the host has it
OWN_NAMES = frozenset(
    {"__name__", "__builtins__", "__doc__", "__loader__", "__spec__", "__package__", "__file__"}
)

if TYPE_CHECKING:
    Piece = list[Any]


class _Slot:
    __slots__ = ("index", "piece", "value")

    def __init__(self, index: int, value: str | bytes, piece: list[Any]) -> None:
        self.index, self.value, self.piece = index, value, piece


class Pieces:
    """A file for the pickler that cuts its stream into content-addressed pieces."""

    def __init__(self, known: set[str], send: Callable[[str, list[bytes]], None]) -> None:
        self._known = known
        self._send = send
        self.has_sets = False
        self.begin()

    def begin(self) -> None:
        """Start the pieces of the next variable."""
        self._parts: list[bytes] = []
        self._size = 0
        self.pieces: list[Piece] = []
        self.size = 0

    def write(self, data: bytes | PickleBuffer) -> None:
        if type(data) is PickleBuffer:
            data = bytes(data)  # the memory of an array, which has no length of its own
        size = len(data)
        if size >= LARGE and data[0] != 0x95:
            # The pickler hands large text and bytes over as they are: they are stored alone.
            self._cut()
            self._parts, self._size = [data], size
            self._cut()
            return
        self.has_sets = self.has_sets or EMPTY_SET in data
        self._parts.append(data)
        self._size += size
        if self._size >= PIECE:
            self._cut()

    def finish(self) -> list[Piece]:
        """Return the pieces of the variable."""
        self._cut()
        return self.pieces

    def _cut(self) -> None:
        parts, size = self._parts, self._size
        if not size:
            return
        self.size += size
        self._parts, self._size = [], 0
        if size <= INLINE:
            self.pieces.append(["", size, b"".join(parts)])
        else:
            self.pieces.append(self.store(parts, size))

    def store(self, parts: list[bytes], size: int) -> list[Any]:
        """Return [id, size, no bytes] of a piece; send it if it is new."""
        digest = hashlib.sha256()
        for part in parts:
            digest.update(part)
        identifier = "sha256:" + digest.hexdigest()
        if identifier not in self._known:
            self._known.add(identifier)
            self._send(identifier, parts)
        return [identifier, size, b""]


class Namespace:
    """The variables of a session, dumped and loaded."""

    def __init__(
        self, variables: dict[str, Any], reduction: Reduction, send: Callable[..., None]
    ) -> None:
        self.variables = variables
        self.reduction = reduction
        self.known: set[str] = set()
        self._pieces = Pieces(self.known, send)
        self._order: list[str] = []
        # Of each name the identity of its value, which must not be kept alive by this.
        self._last: dict[str, tuple[int, dict[str, Any]]] = {}
        self._moved = False
        self._last_changed = ""
        # Names of the last dump with something inside that only this process holds.
        self._partly_kept: set[str] = set()
        self._sets = SetOrder()
        self._slots: dict[int, _Slot] = {}
        self._fillers = [object() for _ in range(RESERVED)]
        self._memo: Any = None

    def dump(self) -> dict[str, Any]:
        """Return the namespace as entries; new chunks are sent on the way."""
        limit = sys.getrecursionlimit()
        sys.setrecursionlimit(max(limit, _DEEP))
        try:
            failing: dict[str, str] = {}
            names = self._ordered()
            self._moved = self._pieces.has_sets = ordered = False
            while True:
                entries = self._attempt(names, failing)
                if entries is not None:
                    if ordered or not self._order_sets():
                        break
                    ordered = True
        finally:
            sys.setrecursionlimit(limit)
        self._settle(entries)
        slots = [[slot.index, type(slot.value) is str, slot.piece] for slot in self._slots.values()]
        # The host keeps what its last checkpoint names and nothing else, so it is all we may name.
        self.known.clear()
        self.known.update(slot.piece[0] for slot in self._slots.values())
        self.known.update(piece[0] for entry in entries for piece in entry["pieces"] if piece[0])
        return {"slots": slots, "variables": entries}

    def _order_sets(self) -> bool:
        """Put the sets of a dump in order, if there are any; tell if they have to be dumped anew.

        Not while threads use them: a worker that has any left ends with its cell.
        """
        if not self._pieces.has_sets or _thread._count():
            return False
        return self._sets.settle()

    def _attempt(self, names: list[str], failing: dict[str, str]) -> list[dict[str, Any]] | None:
        variables = self.variables
        self._assign_slots([variables[name] for name in names])
        if not names:
            return []
        from holdfast.kernels.worker.checkpoint.pickling import Pickler

        if self._memo is None:
            # One pickler's memo is copied from another's at once, and not item by item.
            first = Pickler(self._pieces, 5)
            first.memo = self._reserved_memo()
            self._memo = first.memo
        pickler = Pickler(self._pieces, 5)
        pickler.reducer_override = self.reduction.reduce  # type: ignore[method-assign]
        pickler.memo = self._memo
        marked = self.reduction.marked
        self._partly_kept.clear()
        entries = []
        for name in names:
            value = variables[name]
            self._pieces.begin()
            marked.clear()
            before = self.reduction.lost
            if name in failing:
                value = Marker(render.qualname(type(value)), failing[name])
            try:
                pickler.dump(value)
            except MemoryError:
                raise
            except BaseException as error:
                failing[name] = f"{type(error).__name__}: {error}".partition("\n")[0][:200]
                return None
            lost = list(marked)
            fresh = self.reduction.lost > before
            whole = bool(lost) and (name in failing or not self._reducible(value))
            if fresh and not whole:
                self._partly_kept.add(name)
            entry = self._entry(name, variables[name], self._pieces.finish(), lost, whole)
            if self._move_back(names, entry):
                return None
            entries.append(entry)
        return entries

    def _move_back(self, names: list[str], entry: dict[str, Any]) -> bool:
        """Put a variable that changed in place behind a large rest that follows it, and say so.

        The rest is stored anew this once, since the memo numbers before it change, and never again
        because of this variable. Only the first change is certain: those after it may differ by
        their memo numbers alone.
        """
        name = entry["name"]
        last = self._last.get(name)
        if self._moved or last is None or last[1]["pieces"] == entry["pieces"]:
            return False
        self._moved = True
        behind = names[names.index(name) + 1 :]
        if sum(self._last[other][1]["size"] for other in behind if other in self._last) < LARGE:
            self._last_changed = name
            return False
        names.remove(name)
        names.append(name)
        self._last_changed = ""
        return True

    def _ordered(self) -> list[str]:
        """Return the names, those last that were bound anew since the last dump."""
        variables, last = self.variables, self._last
        stay: list[str] = []
        move: list[str] = []
        for name in self._order:
            if name in variables:
                (stay if id(variables[name]) == last[name][0] else move).append(name)
        old = set(self._order)
        new = [name for name in variables if name not in old and name not in OWN_NAMES]
        new = [name for name in new if type(name) is str and 0 < len(name) <= _LONGEST_NAME]
        self._order = stay + move + new
        return self._order

    def _entry(
        self,
        name: str,
        value: Any,
        pieces: list[Piece],
        marked: list[tuple[str, str]],
        whole: bool,
    ) -> dict[str, Any]:
        last = self._last.get(name)
        if last is not None and last[0] == id(value) and last[1]["pieces"] == pieces:
            return last[1]
        large = self._slots.get(id(value))
        size = len(value) if large is not None else self._pieces.size
        return {
            "name": name,
            "type": render.kind_of(value),
            "size": size,
            "preview": _preview(value),
            "pieces": pieces,
            "marked": [list(mark) for mark in marked[:5]],
            "whole": whole,
        }

    def _reducible(self, value: Any) -> bool:
        """Tell whether a value itself is kept, though something inside it may not be."""
        if issubclass(type(value), (list, dict, tuple, set, frozenset)):
            return True
        count = len(self.reduction.marked)
        reduced = self.reduction.reduce(value)
        del self.reduction.marked[count:]
        return type(reduced) is not tuple or reduced[0] is not marker

    def _settle(self, entries: list[dict[str, Any]]) -> None:
        """Remember this dump, and put last next time what is known to have changed in place."""
        values = self.variables
        self._last = {entry["name"]: (id(values[entry["name"]]), entry) for entry in entries}
        if self._last_changed:
            self._order.remove(self._last_changed)
            self._order.append(self._last_changed)
            self._last_changed = ""

    def drop_unrestorable(self, entries: list[dict[str, Any]]) -> bool:
        """Put markers in place of what the checkpoint does not have: one truth for all.

        Return whether all is now as a restore would make it: no marker can be put inside of what
        is kept, or where else a value is held that became one.
        """
        alike = not self._partly_kept
        for entry in entries:
            value = self.variables[entry["name"]] if entry["whole"] else None
            if entry["whole"] and type(value) is not Marker:
                made = Marker(*entry["marked"][0])
                self.variables[entry["name"]] = made
                self._last[entry["name"]] = (id(made), entry)
                alike = alike and sys.getrefcount(value) <= _ALONE
        return alike

    # Large text

    def _reserved_memo(self) -> dict[int, tuple[int, Any]]:
        objects: list[Any] = list(self._fillers)
        objects[_NAMESPACE_SLOT] = self.variables
        objects[_BUILTINS_SLOT] = sys.modules["builtins"].__dict__
        for slot in self._slots.values():
            objects[slot.index] = slot.value
        return {id(item): (index, item) for index, item in enumerate(objects)}

    def _assign_slots(self, values: list[Any]) -> None:
        found: dict[int, Any] = {}
        _find_large(values, found, [_SCAN], 0)
        if found.keys() == self._slots.keys():
            return
        self._memo = None
        self._slots = {key: slot for key, slot in self._slots.items() if key in found}
        free = sorted(set(range(_TEXT_SLOTS)) - {slot.index for slot in self._slots.values()})
        for key, value in found.items():
            if key not in self._slots and free:
                data = value.encode("utf-8", "surrogatepass") if type(value) is str else value
                piece = self._pieces.store([data], len(data))
                self._slots[key] = _Slot(free.pop(0), value, piece)

    # Back

    def load(
        self, stored: dict[str, Any], take: Callable[[], bytes | bytearray], *, careful: bool
    ) -> list[tuple[str, str]]:
        """Fill the namespace from stored entries; return what could not be made again."""
        slots: list[Any] = [None] * RESERVED
        slots[_NAMESPACE_SLOT] = self.variables
        slots[_BUILTINS_SLOT] = sys.modules["builtins"].__dict__
        for index, is_text, piece in stored["slots"]:
            data = take()
            value = data.decode("utf-8", "surrogatepass") if is_text else bytes(data)
            slots[index] = value
            self._slots[id(value)] = _Slot(index, value, piece)
            self.known.add(piece[0])
        streams = []
        for entry in stored["variables"]:
            streams.append([take() if piece[0] else piece[2] for piece in entry["pieces"]])
            self.known.update(piece[0] for piece in entry["pieces"] if piece[0])
        names = [entry["name"] for entry in stored["variables"]]
        if not names:
            return []
        from holdfast.kernels.worker.checkpoint.pickling import load_streams

        values, lost = load_streams(streams, slots, careful=careful)
        if any(EMPTY_SET in part for parts in streams for part in parts):
            self._sets.settle()
        self.variables.update(zip(names, values, strict=True))
        self._order = names
        self._last = {
            entry["name"]: (id(value), entry)
            for entry, value in zip(stored["variables"], values, strict=True)
        }
        return [(names[index], reason) for index, reason in lost]


def _preview(value: Any) -> str:
    try:
        return render.bounded(value, PREVIEW)[0]
    except BaseException as error:
        # Its repr may exit, or print more than the cell may: the rest is kept all the same.
        name = render.qualname(type(value))
        return f"<{name} whose repr raised {type(error).__name__}>"[:PREVIEW]


def _find_large(values: Any, found: dict[int, Any], budget: list[int], depth: int) -> None:
    for value in values:
        kind = type(value)
        if kind is str or kind is bytes:
            if len(value) >= LARGE:
                found[id(value)] = value
        elif (kind is dict or kind is list or kind is tuple) and depth < 3 and budget[0] > 0:
            inner = islice(value.values() if kind is dict else value, budget[0])
            budget[0] -= len(value)
            _find_large(inner, found, budget, depth + 1)
