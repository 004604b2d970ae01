"""Values: what users and models hand us, stored faithfully and deterministically.

A value becomes bytes in one of three encodings: `text` (a string as UTF-8), `bytes` (as they are)
and `json` (everything else). JSON keeps dict order and tells `1` from `1.0`; what JSON cannot say
is a one-key object whose key starts with `$`. A user's dict that could be mistaken for such a tag
is itself written as a tag, so no user data can forge one. Equal values of equal type and order
give equal bytes, hence equal content ids.

Only the standard library is used, because confined workers load this file on its own.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterable
from datetime import date, datetime, time, timedelta, timezone
from decimal import Context, Decimal
from itertools import accumulate
from math import isfinite
from pickle import PicklingError
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from holdfast.core.errors import Corruption, UnsupportedValue
from holdfast.core.hashing import HashingTooCostly, HashWork

MAX_INTEGER = 2**53 - 1
"""Larger integers are written as hexadecimal text, which every JSON reader keeps exactly."""

MAX_DEPTH = 200
"""How deep the JSON of a value nests at most: what is written must be readable from anywhere."""


def is_text(value: object) -> bool:
    """Tell whether something is text that UTF-8 can write: no lone surrogate is in it."""
    try:
        return isinstance(value, str) and value.encode() is not None
    except UnicodeEncodeError:
        return False


_ATOMS = frozenset({str, bool, type(None), float})
_SIMPLE = _ATOMS | {int}


def encode(value: Any) -> tuple[str, bytes]:
    """Return (encoding, bytes) of a value; raise UnsupportedValue naming what cannot be kept."""
    kind = type(value)
    if kind is bytes:
        return "bytes", value
    if kind is str:
        try:
            return "text", value.encode()
        except UnicodeEncodeError:
            pass
    return "json", encode_json(value)


_DECIMALS = Context(capitals=1)  # whatever the caller's own context says


def encode_json(value: Any) -> bytes:
    """Return the `json` encoding of any supported value."""
    try:
        try:
            data = _dump(_plain(value, "value", _Writing(exact=False)))
        except (ValueError, UnicodeEncodeError):
            # A NaN, an infinity or a lone surrogate: rare enough to look at every leaf again.
            data = _dump(_plain(value, "value", _Writing(exact=True)))
    except HashingTooCostly as error:
        raise UnsupportedValue(f"the value cannot be stored: {error}") from None
    except RecursionError:
        raise _too_deep() from None
    if is_too_deep(data):
        raise _too_deep()
    return data


def _too_deep() -> UnsupportedValue:
    return UnsupportedValue(
        "the value refers to itself or is nested too deeply to be stored; store its parts"
    )


_BRACKETS_AND_QUOTES = b'[]{}"'
_OTHERS = bytes(set(range(256)) - set(_BRACKETS_AND_QUOTES))
_TEXTS = re.compile(rb'"[^"]*"')
_STEP = [1 if byte in b"[{" else -1 if byte in b"]}" else 0 for byte in range(256)]


def is_too_deep(data: bytes) -> bool:
    """Tell whether JSON nests too deeply, from its brackets alone: no reader has to follow them."""
    if data.count(b"[") + data.count(b"{") <= MAX_DEPTH:
        return False
    marks = data.replace(rb"\\", b"").replace(rb"\"", b"").translate(None, _OTHERS)
    brackets = _TEXTS.sub(b"", marks.replace(b'""', b""))
    return max(accumulate(map(_STEP.__getitem__, brackets)), default=0) > MAX_DEPTH


def decode(encoding: str, data: bytes) -> Any:
    """Return the value that `encode` wrote; never imports or evaluates anything.

    The time and memory that it takes is in proportion to the bytes, whoever wrote them.
    """
    try:
        if encoding == "text":
            return data.decode()
        if encoding == "bytes":
            return bytes(data)
        if encoding in ("json", "manifest"):
            if is_too_deep(data):
                raise ValueError(f"it is nested more than {MAX_DEPTH} deep")
            tagged = encoding == "json" and b'"$' in data
            decoder = json.JSONDecoder(object_hook=_Reading().untag) if tagged else _PLAIN
            return decoder.decode(data.decode())
    except (ValueError, TypeError, KeyError, IndexError, ArithmeticError, RecursionError) as error:
        raise Corruption(f"a stored {encoding!r} value does not decode: {error}") from error
    raise Corruption(f"unknown value encoding {encoding!r}")


def check_canonical(encoding: str, data: bytes) -> Any:
    """Return the value of bytes that someone else encoded; refuse what `encode` would not write.

    That is: a depth or a cost of hashing beyond the limits, NaN or an infinity as a bare word, a
    key twice, white space, members of a set out of order, or any other second way to write a value.
    """
    try:
        value = decode(encoding, data)
    except Corruption as error:
        raise UnsupportedValue(f"the bytes are not an encoded value: {error}") from error
    if encoding == "manifest" or encode(value) != (encoding, data):
        raise UnsupportedValue(
            f"the bytes are not the {encoding!r} encoding of their value; pass what `encode` "
            "returns for it"
        )
    return value


def _dump(plain: Any) -> bytes:
    return _WRITE(plain).encode()


class _Writing:
    """One encoding: whether leaves are looked at, and what its hash tables will cost a reader."""

    __slots__ = ("exact", "hashing")

    def __init__(self, exact: bool) -> None:
        self.exact = exact
        self.hashing = HashWork()


_EXACT = _Writing(exact=True)


def _plain(value: Any, path: str, writing: _Writing) -> Any:
    """Return a JSON-ready form; leaves that need no tag are passed through untouched."""
    kind = type(value)
    if kind in _ATOMS:
        return _tag_atom(value) if writing.exact else value
    if kind is int:
        return value if -MAX_INTEGER <= value <= MAX_INTEGER else {"$int": hex(value)}
    if kind is list:
        return _plain_items(value, path, writing)
    if kind is dict:
        return _plain_dict(value, path, writing)
    writer = _WRITERS.get(kind)
    if writer is None:
        raise UnsupportedValue(
            f"{path} is a {kind.__module__}.{kind.__qualname__}, which cannot be stored "
            "faithfully; convert it to plain data first",
            path=path,
        )
    return writer(value, path, writing)


def _plain_items(items: list[Any] | tuple[Any, ...], path: str, writing: _Writing) -> list[Any]:
    if not writing.exact and _SIMPLE.issuperset(map(type, items)) and _are_small(items):
        return list(items)
    return [_plain(item, f"{path}[{index}]", writing) for index, item in enumerate(items)]


def _plain_dict(value: dict[Any, Any], path: str, writing: _Writing) -> Any:
    if all(type(key) is str and not key.startswith("$") for key in value):
        if not writing.exact:
            if _SIMPLE.issuperset(map(type, value.values())) and _are_small(value.values()):
                return value
            return {key: _plain(item, f"{path}[{key!r}]", writing) for key, item in value.items()}
        if not any(_has_surrogate(key) for key in value):
            return {key: _plain(item, f"{path}[{key!r}]", writing) for key, item in value.items()}
    writing.hashing.check(value)
    return {
        "$dict": [
            [_plain(key, f"a key of {path}", writing), _plain(item, _below(path, key), writing)]
            for key, item in value.items()
        ]
    }


def _are_small(items: Iterable[Any]) -> bool:
    return all(type(item) is not int or -MAX_INTEGER <= item <= MAX_INTEGER for item in items)


def _below(path: str, key: Any) -> str:
    try:
        return f"{path}[{key!r}]"
    except ValueError:  # Python writes no integer of more than a few thousand digits
        return f"{path}[…]"


def _has_surrogate(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _tag_atom(value: Any) -> Any:
    if type(value) is float and not isfinite(value):
        return {"$float": str(value)}
    if type(value) is str and _has_surrogate(value):
        return {"$str": _base64(value.encode("utf-8", "surrogatepass"))}
    return value


def _base64(data: bytes | bytearray) -> str:
    return base64.b64encode(data).decode()


def _ordered(items: set[Any] | frozenset[Any], path: str, writing: _Writing) -> list[Any]:
    writing.hashing.check(items)
    # Sets have no order of their own: theirs is that of their members' encoded bytes.
    plain = [_plain(item, f"a member of {path}", writing) for item in items]
    return sorted(plain, key=_dump)


def _zone(zone: Any, path: str, writing: _Writing) -> Any:
    if zone is None:
        return None
    if type(zone) is timezone:
        offset = zone.utcoffset(None)
        name = zone.tzname(None)
        microseconds = offset // timedelta(microseconds=1)
        given = None if name == timezone(offset).tzname(None) else name
        return ["offset", microseconds, _plain(given, path, writing)]
    if type(zone) is ZoneInfo and zone.key:
        try:
            zone.__reduce__()
        except PicklingError:  # made of a file: by its name another would come back
            raise UnsupportedValue(
                f"{path} has a time zone made of a file; use ZoneInfo({zone.key!r}) or UTC"
            ) from None
        return ["zone", zone.key]
    raise UnsupportedValue(f"{path} has a time zone of type {type(zone)!r}; use ZoneInfo or UTC")


def _unzone(zone: Any) -> timezone | ZoneInfo | None:
    if zone is None:
        return None
    if _list(zone)[0] == "zone":
        return ZoneInfo(_text(zone[1]))
    offset = timedelta(microseconds=_integer(zone[1]))
    return timezone(offset) if zone[2] is None else timezone(offset, _text(zone[2]))


_WRITERS: dict[type, Callable[[Any, str, _Writing], Any]] = {
    tuple: lambda v, path, writing: {"$tuple": _plain_items(v, path, writing)},
    set: lambda v, path, writing: {"$set": _ordered(v, path, writing)},
    frozenset: lambda v, path, writing: {"$frozenset": _ordered(v, path, writing)},
    bytes: lambda v, path, writing: {"$bytes": _base64(v)},
    bytearray: lambda v, path, writing: {"$bytearray": _base64(v)},
    complex: lambda v, path, writing: {
        "$complex": [_plain(v.real, path, _EXACT), _plain(v.imag, path, _EXACT)]
    },
    range: lambda v, path, writing: {
        "$range": [_plain(part, path, writing) for part in (v.start, v.stop, v.step)]
    },
    Decimal: lambda v, path, writing: {"$decimal": _DECIMALS.to_sci_string(v)},
    UUID: lambda v, path, writing: {"$uuid": str(v)},
    date: lambda v, path, writing: {"$date": v.isoformat()},
    time: lambda v, path, writing: {
        "$time": [v.replace(tzinfo=None).isoformat(), v.fold, _zone(v.tzinfo, path, writing)]
    },
    datetime: lambda v, path, writing: {
        "$datetime": [v.replace(tzinfo=None).isoformat(), v.fold, _zone(v.tzinfo, path, writing)]
    },
    timedelta: lambda v, path, writing: {"$timedelta": [v.days, v.seconds, v.microseconds]},
}

_READERS: dict[str, Callable[[Any], Any]] = {
    "$int": lambda v: int(_text(v), 16),
    "$float": lambda v: float(_text(v)),
    "$str": lambda v: _bytes(v).decode("utf-8", "surrogatepass"),
    "$tuple": lambda v: tuple(_list(v)),
    "$bytes": lambda v: _bytes(v),
    "$bytearray": lambda v: bytearray(_bytes(v)),
    "$complex": lambda v: complex(*map(_float, _list(v, 2))),
    "$range": lambda v: range(*map(_integer, _list(v, 3))),
    "$decimal": lambda v: Decimal(_text(v)),
    "$uuid": lambda v: UUID(_text(v)),
    "$date": lambda v: date.fromisoformat(_text(v)),
    "$time": lambda v: _moment(time.fromisoformat, v),
    "$datetime": lambda v: _moment(datetime.fromisoformat, v),
    "$timedelta": lambda v: timedelta(*map(_integer, _list(v, 3))),
}


# A tag's content is read with exact types: what a hostile writer nests in it (a range inside a
# set, say) must not grow into more than the bytes it came in.
def _list(value: Any, length: int | None = None) -> list[Any]:
    if type(value) is not list or length not in (None, len(value)):
        raise TypeError(f"expected a list, not {type(value).__name__}")
    return value


def _text(value: Any) -> str:
    if type(value) is not str:
        raise TypeError(f"expected text, not {type(value).__name__}")
    return value


def _integer(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(f"expected an integer, not {type(value).__name__}")
    return value


def _float(value: Any) -> float:
    if type(value) is not float:
        raise TypeError(f"expected a float, not {type(value).__name__}")
    return value


def _bytes(value: Any) -> bytes:
    return base64.b64decode(_text(value), validate=True)


def _moment(read: Callable[[str], Any], value: Any) -> Any:
    text, fold, zone = _list(value, 3)
    return read(_text(text)).replace(fold=_integer(fold), tzinfo=_unzone(zone))


class _Reading:
    """One decoding, with what its hash tables may cost in all."""

    def __init__(self) -> None:
        self._hashing = HashWork()

    def untag(self, pairs: dict[str, Any]) -> Any:
        """Return what a JSON object stands for."""
        if len(pairs) != 1:
            return pairs
        ((key, content),) = pairs.items()
        if not key.startswith("$"):
            return pairs
        if key in _TABLES:
            return _TABLES[key](content, self._hashing)
        return _READERS[key](content)


def _dict(content: Any, hashing: HashWork) -> dict[Any, Any]:
    pairs = [_list(pair, 2) for pair in _list(content)]
    hashing.check([key for key, _ in pairs])
    return dict(hashing.paced(pairs))


def _set(content: Any, hashing: HashWork) -> set[Any]:
    hashing.check(_list(content))
    return set(hashing.paced(content))


_TABLES: dict[str, Callable[[Any, HashWork], Any]] = {
    "$set": _set,
    "$frozenset": lambda content, hashing: frozenset(_set(content, hashing)),
    "$dict": _dict,
}


# What refers to itself never gets to the encoder: making it plain fails first.
_WRITE = json.JSONEncoder(
    ensure_ascii=False, check_circular=False, allow_nan=False, separators=(",", ":")
).encode
_PLAIN = json.JSONDecoder()
