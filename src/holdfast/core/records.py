"""Records: the facts Holdfast itself writes, as RFC 8785 canonical JSON.

Events, heads, edges and manifests are records. They hold null, booleans, integers that every JSON
reader keeps exactly, text, lists and objects with ASCII keys; never a float, so one record has one
byte form in every language. Within that domain msgspec's encoder, with sorted keys, already
writes RFC 8785 (a property test compares it with the `rfc8785` package), at many times the speed.
"""

from __future__ import annotations

import hashlib
import json
from itertools import repeat
from typing import Any

import msgspec

from holdfast.core.errors import Corruption, InvalidRecord
from holdfast.core.values import MAX_INTEGER

Record = dict[str, Any]

FIELD_DEPTH = 64
"""How deep a fact's field nests at most."""
RECORD_DEPTH = 128
"""How deep a whole record does: around a field stand its event and the line that holds it."""
DATA_DEPTH = RECORD_DEPTH - 8
"""How deep the data of any event does, whichever release wrote it."""

_encode = msgspec.json.Encoder(order="deterministic").encode


def canonical(record: Any) -> bytes:
    """Return the RFC 8785 bytes of a record; raise InvalidRecord naming what does not belong."""
    if not fits(record):
        explain(record, "record")
    return encode(record)


def encode(record: Any) -> bytes:
    """Return the RFC 8785 bytes of a record that is checked already."""
    try:
        return _encode(record)
    except UnicodeEncodeError:
        raise InvalidRecord(
            "the record holds text with a lone surrogate; store it as a value"
        ) from None


def digest_id(data: bytes) -> str:
    """Return the content id of bytes: the algorithm's name and the hexadecimal digest."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def record_id(record: Any) -> str:
    """Return the content id of a record."""
    return digest_id(canonical(record))


def parse(data: bytes | str) -> Any:
    """Return a record read from JSON; raise Corruption where it is not JSON."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Corruption(f"a stored record is not JSON: {error}") from error


def fits(item: Any, depth: int = RECORD_DEPTH) -> bool:
    """Tell whether a record holds only what records can hold; every append asks, so it is quick."""
    kind = type(item)
    if kind is dict:
        if not depth:
            return False
        for key, value in item.items():
            if type(key) is not str or not key.isascii():
                return False
            kind = type(value)
            if kind is str or value is None or kind is bool:
                continue
            if kind is int and -MAX_INTEGER <= value <= MAX_INTEGER:
                continue
            if not fits(value, depth - 1):
                return False
        return True
    if kind is int:
        return bool(-MAX_INTEGER <= item <= MAX_INTEGER)
    if kind is list:
        return depth > 0 and all(map(fits, item, repeat(depth - 1)))
    return kind is str or kind is bool or item is None


def explain(item: Any, path: str, depth: int = RECORD_DEPTH, level: int = 0) -> None:
    """Raise InvalidRecord for the first part of a record that does not fit."""
    kind = type(item)
    if level == depth and kind in (dict, list):
        raise InvalidRecord(f"{path} is nested more than {depth} deep; store it as a value")
    if kind is int and not fits(item):
        raise InvalidRecord(f"{path} is an integer beyond 2**53-1; write it as text")
    if kind is dict:
        for key, value in item.items():
            if type(key) is not str or not key.isascii():
                raise InvalidRecord(f"{path} has the key {key!r}; keys are ASCII text")
            explain(value, f"{path}.{key}", depth, level + 1)
    elif kind is list:
        for index, value in enumerate(item):
            explain(value, f"{path}[{index}]", depth, level + 1)
    elif not fits(item):
        raise InvalidRecord(f"{path} is a {kind.__name__}; store it as a value")
