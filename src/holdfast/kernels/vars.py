"""Plain data out of a cpython checkpoint, without unpickling anything.

A checkpoint is a stream of pickle opcodes. This reads the ones that build data (numbers, text,
lists, dicts, sets) and a fixed list of plain types (dates, Decimal, UUID), executes nothing and
imports nothing. What would call anything else becomes an `Opaque`, and a variable that holds one
is not plain. So listings and the other engine can use a namespace that only a confined worker may
load as it is.
"""

from __future__ import annotations

import datetime
import decimal
import struct
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.core import payloads, values
from holdfast.core.errors import Corruption, UnsupportedValue
from holdfast.kernels import manifest as manifests
from holdfast.kernels.port import Encoded, Fetch

RESERVED = 256
MAX_OPERATIONS = 50_000_000


@dataclass(frozen=True, slots=True)
class Opaque:
    """Something that only a worker can make: a function, an instance, an import."""

    name: str


class _Mark:
    """The start of a group on the stack."""


_MARK = _Mark()
_PLAIN: dict[tuple[str, str], Callable[..., Any]] = {
    ("datetime", "datetime"): datetime.datetime,
    ("datetime", "date"): datetime.date,
    ("datetime", "time"): datetime.time,
    ("datetime", "timedelta"): datetime.timedelta,
    ("datetime", "timezone"): datetime.timezone,
    ("decimal", "Decimal"): decimal.Decimal,
    ("builtins", "complex"): complex,
    ("builtins", "range"): range,
    ("builtins", "set"): set,
    ("builtins", "frozenset"): frozenset,
    ("builtins", "bytearray"): bytearray,
}
_UUID = ("uuid", "UUID")


class _Reader:
    """Reads opcode streams that share one memo."""

    def __init__(self, slots: list[Any]) -> None:
        self.memo: list[Any] = slots
        self._left = MAX_OPERATIONS

    def read(self, data: bytes) -> Any:
        """Return the value of one stream; raise Corruption where it is none of ours."""
        self._data, self._at, self._stack = data, 0, list[Any]()
        try:
            while True:
                self._left -= 1
                if self._left < 0:
                    raise Corruption("a namespace is too large to be read outside of a worker")
                code = data[self._at]
                self._at += 1
                if code == 0x2E:
                    return self._stack.pop()
                _OPERATIONS[code](self)
        except (IndexError, KeyError, ValueError, TypeError, struct.error, OverflowError) as error:
            raise Corruption(f"a variable's stored form cannot be read: {error!r}") from error

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
        for index in range(0, len(items), 2):
            target[_key(items[index])] = items[index + 1]


def _key(value: Any) -> Any:
    try:
        hash(value)
    except TypeError:
        return Opaque("an unhashable key")
    return value


def _add_items(reader: _Reader, items: list[Any]) -> None:
    target = reader.top()
    if type(target) is set:
        target.update(map(_key, items))


def _global(reader: _Reader, module: Any, name: Any) -> None:
    reader.push(_Global((str(module), str(name))))


@dataclass(frozen=True, slots=True)
class _Global:
    name: tuple[str, str]


def _reduce(reader: _Reader) -> None:
    arguments, maker = reader.pop(), reader.pop()
    reader.push(_made(maker, arguments))


def _made(maker: Any, arguments: Any) -> Any:
    if isinstance(maker, _Global) and type(arguments) is tuple:
        plain = _PLAIN.get(maker.name)
        if plain is not None and not any(_holds_opaque(item, set()) for item in arguments):
            return plain(*arguments)
        return Opaque(".".join(maker.name))
    return Opaque("a call")


def _build(reader: _Reader) -> None:
    state, target = reader.pop(), reader.pop()
    if isinstance(target, _New) and target.name == _UUID and type(state) is dict:
        reader.push(uuid.UUID(int=state["int"]))
        _replace_in_memo(reader, target, reader.top())
        return
    reader.push(target)


class _New:
    """An instance between its making and its state."""

    def __init__(self, name: tuple[str, str]) -> None:
        self.name = name


def _replace_in_memo(reader: _Reader, old: Any, new: Any) -> None:
    for index in range(len(reader.memo) - 1, -1, -1):
        if reader.memo[index] is old:
            reader.memo[index] = new
            return


def _new_object(reader: _Reader) -> None:
    arguments, maker = reader.pop(), reader.pop()
    if isinstance(maker, _Global) and maker.name == _UUID:
        reader.push(_New(_UUID))
    else:
        reader.push(_made(maker, arguments))


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
    0x91: lambda r: r.push(frozenset(map(_key, r.group()))),
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


def _holds_opaque(value: Any, seen: set[int]) -> bool:
    kind = type(value)
    if kind in (Opaque, _Global, _New, _Mark):
        return True
    if kind not in (list, tuple, dict, set, frozenset) or id(value) in seen:
        return False
    seen.add(id(value))
    parts = (*value.keys(), *value.values()) if kind is dict else value
    return any(_holds_opaque(part, seen) for part in parts)


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
        value = reader.read(stream)
        try:
            if _holds_opaque(value, set()):
                others[variable["name"]] = f"{variable['type']} is not plain data"
            else:
                plain[variable["name"]] = Encoded(*values.encode(value))
        except (UnsupportedValue, RecursionError) as error:
            others[variable["name"]] = str(error)
    return plain, others


async def _chunk(record: Any, fetch: Fetch) -> bytes:
    slot = payloads.from_record(record)
    if slot.data is not None:
        return slot.data
    return payloads.check_bytes(slot, await fetch(slot.id))
