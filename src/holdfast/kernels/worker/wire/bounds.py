"""How much a call or an answer may carry: what the host decodes must not cost it much more.

The worker asks here first, so that an honest cell gets an error it can read; the host asks again.
Keys that are not text are counted, because a cell can choose them so that they collide.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SMALL_BYTES = 1 << 16
MAX_BYTES = 32 << 20
MAX_CONTAINERS = 2_000_000
MAX_HASHED = 10_000
_HASHED = ("$dict", "$set", "$frozenset")


def excess(encoding: str, data: bytes) -> str:
    """Return what is too much about an encoded value; nothing if it is within bounds."""
    if len(data) <= SMALL_BYTES:
        return ""
    if len(data) > MAX_BYTES:
        return f"{len(data)} bytes are more than {MAX_BYTES}; pass less at a time"
    if encoding != "json":
        return ""
    if data.count(b"[") + data.count(b"{") > MAX_CONTAINERS:
        return f"more than {MAX_CONTAINERS} lists and dicts; pass less at a time"
    if any(b'"%s"' % tag.encode() in data for tag in _HASHED) and _hashed(data) > MAX_HASHED:
        return f"more than {MAX_HASHED} set members and keys that are not text; pass lists"
    return ""


def _hashed(data: bytes) -> int:
    import json

    try:
        rest: list[Any] = [json.loads(data)]
    except (ValueError, RecursionError):
        return 0  # It does not decode, and decoding says so.
    count = 0
    while rest:
        value = rest.pop()
        if type(value) is dict:
            for tag in _HASHED:
                members = value.get(tag)
                if type(members) is list:
                    count += len(members)
            rest.extend(value.values())
        elif type(value) is list:
            rest.extend(value)
    return count
