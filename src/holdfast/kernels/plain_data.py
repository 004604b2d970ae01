"""Plain data out of a cpython checkpoint, without unpickling anything.

A checkpoint is a stream of pickle opcodes. This reads the ones that build data (numbers, text,
lists, dicts, sets) and a fixed list of plain types (dates, Decimal, UUID), executes nothing and
imports nothing. What would call anything else becomes an `Opaque`, and a variable that holds one
is not plain. So listings and the other engine can use a namespace that only a confined worker may
load as it is. Whoever wrote the stream is not trusted: what it can grow into is bounded.
"""

from __future__ import annotations

import datetime
import decimal
import struct
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.core import payloads, values
from holdfast.core.errors import Corruption, UnsupportedValue
from holdfast.core.hashing import HashingTooCostly, HashWork
from holdfast.kernels import manifest as manifests
from holdfast.kernels.off_loop import off_loop
from holdfast.kernels.port import Encoded, Fetch

RESERVED = 256
MAX_OPERATIONS = 50_000_000
MAX_VALUES = 4_000_000
MAX_BYTES = 256 << 20
MAX_DEPTH = 300
MAX_HASHED = 20_000
MAX_KEY_PARTS = 1_000


@dataclass(frozen=True, slots=True)
class Opaque:
    """Something that only a worker can make: a function, an instance, an import."""

    name: str


_UNREADABLE = (
    *(IndexError, KeyError, ValueError, TypeError, ArithmeticError, struct.error),
    *(RecursionError, MemoryError),
)


class _Mark:
    """The start of a group on the stack."""


_MARK = _Mark()
_CLOCK: frozenset[type] = frozenset({bytes, int, datetime.timezone, type(None)})
_GROUPS = frozenset({list, tuple, set, frozenset})
# What makes a plain value, and the only types it is made from.
_PLAIN: dict[tuple[str, str], tuple[Callable[..., Any], frozenset[type]]] = {
    ("datetime", "datetime"): (datetime.datetime, _CLOCK),
    ("datetime", "date"): (datetime.date, _CLOCK),
    ("datetime", "time"): (datetime.time, _CLOCK),
    ("datetime", "timedelta"): (datetime.timedelta, frozenset({int})),
    ("datetime", "timezone"): (datetime.timezone, frozenset({datetime.timedelta, str})),
    ("decimal", "Decimal"): (decimal.Decimal, frozenset({str})),
    ("builtins", "complex"): (complex, frozenset({float})),
    ("builtins", "range"): (range, frozenset({int})),
    ("builtins", "set"): (set, _GROUPS),
    ("builtins", "frozenset"): (frozenset, _GROUPS),
    ("builtins", "bytearray"): (bytearray, frozenset({bytes, bytearray})),
}
_UUID = ("uuid", "UUID")


class _Reader:
    """Reads opcode streams that share one memo."""

    def __init__(self, slots: list[Any]) -> None:
        self.memo: list[Any] = slots
        self._left = MAX_OPERATIONS
        self._hashing = HashWork()
        self._hashed = 0

    def read(self, data: bytes) -> Any:
        """Return the value of one stream; raise Corruption if it is not a valid stream."""
        self._data, self._at, self._stack = data, 0, list[Any]()
        try:
            while True:
                self.spend(1)
                code = data[self._at]
                self._at += 1
                if code == 0x2E:
                    return self._stack.pop()
                _OPERATIONS[code](self)
        except _UNREADABLE as error:
            raise Corruption(f"a variable's stored form cannot be read: {error!r}") from error

    def spend(self, operations: int) -> None:
        """Count work; raise Corruption where it becomes too much."""
        self._left -= operations
        if self._left < 0:
            raise Corruption("a namespace is too large to be read outside of a worker")

    def keys(self, values: list[Any], there: Iterable[Any] = ()) -> list[Any] | None:
        """Return values as they may be put into a table with others; None if that takes long."""
        keys = [value if type(value) is str else self._key(value) for value in values]
        numbers = [key for key in keys if type(key) is not str]
        if not numbers:
            return keys
        self._hashed += len(numbers)
        try:
            # The streams come in parts, so those that are there are weighed again and again.
            self._hashing.check([*numbers, *(key for key in there if type(key) is not str)])
        except HashingTooCostly:
            return None
        return keys if self._hashed <= MAX_HASHED else None

    def _key(self, value: Any) -> Any:
        """Return a value that can be hashed: itself, or an Opaque in its place."""
        rest, parts = [value], 0
        while rest:
            part = rest.pop()
            parts += 1
            if type(part) in (list, dict, set, bytearray) or parts > MAX_KEY_PARTS:
                return Opaque("a key that cannot be hashed")
            if type(part) in (tuple, frozenset):
                self.spend(len(part))
                rest.extend(part)
        return value

    def take(self, size: int) -> bytes:
        """Return the next bytes."""
        part = self._data[self._at : self._at + size]
        if len(part) != size:
            raise ValueError("the stream ends early")
        self._at += size
        return part

    def number(self, size: int) -> int:
        """Return the next unsigned integer."""
        return int.from_bytes(self.take(size), "little")

    def push(self, value: Any) -> None:
        """Put a value on the stack."""
        self._stack.append(value)

    def pop(self) -> Any:
        """Take the last value."""
        return self._stack.pop()

    def top(self) -> Any:
        """Return the last value."""
        return self._stack[-1]

    def replace_top(self, value: Any) -> None:
        """Put a value in the place of the last one, wherever that is referred to from now on."""
        old = self._stack[-1]
        self._stack[-1] = value
        for index in range(len(self.memo) - 1, -1, -1):
            self.spend(1)
            if self.memo[index] is old:
                self.memo[index] = value
                return

    def group(self) -> list[Any]:
        """Take everything since the last mark."""
        stack = self._stack
        index = len(stack) - 1
        while stack[index] is not _MARK:
            index -= 1
        items = stack[index + 1 :]
        del stack[index:]
        return items


def _append(reader: _Reader, items: list[Any]) -> None:
    target = reader.top()
    if type(target) is list:
        target.extend(items)


def _set_items(reader: _Reader, items: list[Any]) -> None:
    target = reader.top()
    if type(target) is dict:
        keys = reader.keys(items[::2], target)
        if keys is None:
            reader.replace_top(Opaque("a dict whose keys are costly to compare"))
        else:
            target.update(zip(keys, items[1::2], strict=True))


def _add_items(reader: _Reader, items: list[Any]) -> None:
    target = reader.top()
    if type(target) is set:
        keys = reader.keys(items, target)
        if keys is None:
            reader.replace_top(Opaque("a set whose members are costly to compare"))
        else:
            target.update(keys)


def _frozen_set(reader: _Reader) -> None:
    keys = reader.keys(reader.group())
    costly = Opaque("a set whose members are costly to compare")
    reader.push(costly if keys is None else frozenset(keys))


def _global(reader: _Reader, module: Any, name: Any) -> None:
    reader.push(_Global((str(module), str(name))))


@dataclass(frozen=True, slots=True)
class _Global:
    name: tuple[str, str]


def _reduce(reader: _Reader) -> None:
    arguments, maker = reader.pop(), reader.pop()
    reader.push(_made(reader, maker, arguments))


def _made(reader: _Reader, maker: Any, arguments: Any) -> Any:
    if not isinstance(maker, _Global) or type(arguments) is not tuple:
        return Opaque("a call")
    make, kinds = _PLAIN.get(maker.name, (None, frozenset()))
    if make is None or not kinds.issuperset(map(type, arguments)):
        return Opaque(".".join(maker.name))
    if make in (set, frozenset):
        reader.spend(sum(map(len, arguments)))
        groups = [reader.keys(list(group)) for group in arguments]
        if None in groups:
            return Opaque("a set whose members are costly to compare")
        arguments = tuple(groups)
    return make(*arguments)


def _build(reader: _Reader) -> None:
    state, target = reader.pop(), reader.pop()
    if isinstance(target, _New) and target.name == _UUID and type(state) is dict:
        reader.push(target)
        reader.replace_top(uuid.UUID(int=state["int"]))
        return
    reader.push(target)


class _New:
    """An instance between its making and its state."""

    def __init__(self, name: tuple[str, str]) -> None:
        self.name = name


def _new_object(reader: _Reader) -> None:
    arguments, maker = reader.pop(), reader.pop()
    if isinstance(maker, _Global) and maker.name == _UUID:
        reader.push(_New(_UUID))
    else:
        reader.push(_made(reader, maker, arguments))


def _new_object_ex(reader: _Reader) -> None:
    reader.pop()
    _new_object(reader)


def _tuple(size: int) -> Callable[[_Reader], None]:
    def operation(reader: _Reader) -> None:
        items = [reader.pop() for _ in range(size)]
        reader.push(tuple(reversed(items)))

    return operation


def _text(size: int) -> Callable[[_Reader], None]:
    return lambda r: r.push(r.take(r.number(size)).decode("utf-8", "surrogatepass"))


def _bytes(size: int) -> Callable[[_Reader], None]:
    return lambda r: r.push(r.take(r.number(size)))


def _long(size: int) -> Callable[[_Reader], None]:
    return lambda r: r.push(int.from_bytes(r.take(r.number(size)), "little", signed=True))


def _stack_global(reader: _Reader) -> None:
    name, module = reader.pop(), reader.pop()
    _global(reader, module, name)


def _line(reader: _Reader) -> str:
    end = reader._data.index(b"\n", reader._at)
    text = reader._data[reader._at : end].decode()
    reader._at = end + 1
    return text


_OPERATIONS: dict[int, Callable[[_Reader], None]] = {
    0x80: lambda r: _discard(r.take(1)),
    0x95: lambda r: _discard(r.take(8)),
    ord("N"): lambda r: r.push(None),
    0x88: lambda r: r.push(True),
    0x89: lambda r: r.push(False),
    ord("J"): lambda r: r.push(int.from_bytes(r.take(4), "little", signed=True)),
    ord("K"): lambda r: r.push(r.number(1)),
    ord("M"): lambda r: r.push(r.number(2)),
    0x8A: _long(1),
    0x8B: _long(4),
    ord("G"): lambda r: r.push(struct.unpack(">d", r.take(8))[0]),
    0x8C: _text(1),
    ord("X"): _text(4),
    0x8D: _text(8),
    ord("C"): _bytes(1),
    ord("B"): _bytes(4),
    0x8E: _bytes(8),
    0x96: lambda r: r.push(bytearray(r.take(r.number(8)))),
    ord("]"): lambda r: r.push([]),
    ord("}"): lambda r: r.push({}),
    ord(")"): lambda r: r.push(()),
    0x8F: lambda r: r.push(set()),
    ord("("): lambda r: r.push(_MARK),
    ord("a"): lambda r: _append(r, [r.pop()]),
    ord("e"): lambda r: _append(r, r.group()),
    ord("s"): lambda r: _set_items(r, list(reversed([r.pop(), r.pop()]))),
    ord("u"): lambda r: _set_items(r, r.group()),
    0x90: lambda r: _add_items(r, r.group()),
    0x91: _frozen_set,
    ord("t"): lambda r: r.push(tuple(r.group())),
    0x85: _tuple(1),
    0x86: _tuple(2),
    0x87: _tuple(3),
    0x94: lambda r: r.memo.append(r.top()),
    ord("h"): lambda r: r.push(r.memo[r.number(1)]),
    ord("j"): lambda r: r.push(r.memo[r.number(4)]),
    ord("0"): lambda r: _discard(r.pop()),
    ord("1"): lambda r: _discard(r.group()),
    ord("c"): lambda r: _global(r, _line(r), _line(r)),
    0x93: _stack_global,
    ord("R"): _reduce,
    0x81: _new_object,
    0x92: _new_object_ex,
    ord("b"): _build,
}


def _discard(value: object) -> None:
    del value


def _obstacle(value: Any, kind: str) -> str:
    """Return why a value cannot be encoded within bounds; nothing if it can.

    What is shared is counted as often as it would be written.
    """
    level, count, size = [value], 0, 0
    for _ in range(MAX_DEPTH):
        below: list[Any] = []
        for part in level:
            found = type(part)
            if found in (Opaque, _Global, _New, _Mark):
                return f"{kind} is not plain data"
            if found is int:
                size += part.bit_length() // 8
            elif found in (str, bytes, bytearray):
                size += len(part)
            elif found in _GROUPS:
                below.extend(part)
            elif found is dict:
                below.extend(part)
                below.extend(part.values())
            if count + len(below) > MAX_VALUES or size > MAX_BYTES:
                return f"{kind} is too large to be read outside of a worker"
        count += len(below)
        if not below:
            return ""
        level = below
    return f"{kind} refers to itself or is nested too deeply"


async def plain_variables(
    manifest: Mapping[str, Any], fetch: Fetch
) -> tuple[dict[str, Encoded], dict[str, str]]:
    """Return the variables that are plain data, encoded, and why each other one is not."""
    manifests.check(manifest)
    slots: list[Any] = [Opaque("an empty slot")] * RESERVED
    for item in manifest["slots"]:
        data = await _chunk(item["chunk"], fetch)
        slots[item["index"]] = data.decode("utf-8", "surrogatepass") if item["text"] else data
    reader = _Reader(slots)
    plain: dict[str, Encoded] = {}
    others: dict[str, str] = {}
    for variable in manifest["variables"]:
        stream = b"".join([await _chunk(chunk, fetch) for chunk in variable["chunks"]])
        # Off the event loop: a big namespace takes its time.
        read = await off_loop(_encoded, reader, stream, variable["type"])
        if isinstance(read, Encoded):
            plain[variable["name"]] = read
        else:
            others[variable["name"]] = read
    return plain, others


def _encoded(reader: _Reader, stream: bytes, kind: str) -> Encoded | str:
    """Return the value of a stream in the stored encoding, or why it has none."""
    value = reader.read(stream)
    try:
        return _obstacle(value, kind) or Encoded(*values.encode(value))
    except UnsupportedValue as error:
        return str(error)
    except (RecursionError, MemoryError):
        return f"{kind} is too large to be read outside of a worker"


async def _chunk(record: Any, fetch: Fetch) -> bytes:
    slot = payloads.from_record(record)
    if slot.data is not None:
        return slot.data
    return payloads.check_bytes(slot, await fetch(slot.id))
