"""How much a call or an answer may carry: what the host decodes must not cost it much more.

The worker asks here first, so that an honest cell gets an error it can read; the host asks again.
One value is decoded in one go, during which nothing else of the host runs, so the number of its
parts is bounded; text costs little. What its sets and keys cost is bounded where they are made.
"""

from __future__ import annotations

import re

SMALL_BYTES = 1 << 16
MAX_BYTES = 16 << 20
MAX_PARTS = 1_000_000
_SEPARATORS = (b",", b"[", b"{")
_TEXT = re.compile(rb'"[^"]*"')


def excess(encoding: str, data: bytes) -> str:
    """Return what is too much about an encoded value; nothing if it is within bounds."""
    if len(data) <= SMALL_BYTES:
        return ""
    if len(data) > MAX_BYTES:
        return f"{len(data)} bytes are more than {MAX_BYTES}; pass less at a time"
    if encoding == "json" and _has_too_many_parts(data):
        return f"more than {MAX_PARTS} values; pass less at a time"
    return ""


def _has_too_many_parts(data: bytes) -> bool:
    if _separators(data) <= MAX_PARTS:
        return False
    if data.count(b'"') > 4 * MAX_PARTS:
        return True
    # What stands in a text separates nothing.
    return _separators(_TEXT.sub(b"", data.replace(rb"\\", b"").replace(rb"\"", b""))) > MAX_PARTS


def _separators(data: bytes) -> int:
    return sum(map(data.count, _SEPARATORS))
