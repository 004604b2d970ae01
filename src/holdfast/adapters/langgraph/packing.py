"""How values of a graph stand in records: readable where that loses nothing, else serialised.

Plain data and chat messages are kept as data that `holdfast show` can print. Everything else goes
through the saver's serializer. Nothing here builds a type that the serializer does not allow.
"""

from __future__ import annotations

import math
from typing import Any

from langchain_core.messages import BaseMessage, message_to_dict, messages_from_dict
from langgraph.checkpoint.serde.base import SerializerProtocol

DEEPEST = 40
LARGEST = 2**53

Packed = dict[str, Any]


class Packer:
    """Turns values into records' data and back; without `readable` all goes by the serializer."""

    def __init__(self, serde: SerializerProtocol, *, readable: bool) -> None:
        self._serde = serde
        self._readable = readable

    def pack(self, value: Any) -> Packed:
        """Return a value as data of a record."""
        if self._readable:
            if is_plain(value):
                return {"json": value}
            if isinstance(value, BaseMessage):
                told = message_to_dict(value)
                if is_plain(told) and messages_from_dict([told]) == [value]:
                    return {"message": told}
        kind, data = self._serde.dumps_typed(value)
        return {"type": kind, "data": data}

    def unpack(self, packed: Packed) -> Any:
        """Return the value of packed data."""
        if "json" in packed:
            return packed["json"]
        if "message" in packed:
            return messages_from_dict([packed["message"]])[0]
        return self._serde.loads_typed((packed["type"], packed["data"]))


def is_plain(value: Any, depth: int = 0) -> bool:
    """Tell whether a value is JSON data, by exact types, that comes back as it went."""
    kind = type(value)
    if value is None or kind is bool:
        return True
    if kind is str:
        return not any("\ud800" <= character <= "\udfff" for character in value)
    if kind is int:
        return bool(-LARGEST <= value <= LARGEST)
    if kind is float:
        return math.isfinite(value)
    if depth >= DEEPEST:
        return False
    if kind is list:
        return all(is_plain(item, depth + 1) for item in value)
    if kind is dict:
        return all(type(key) is str and is_plain(key) for key in value) and all(
            is_plain(item, depth + 1) for item in value.values()
        )
    return False
