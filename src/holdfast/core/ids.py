"""Ids: who a thing is, wherever it is stored.

Ids are lower-case ASCII so that they mean the same in a file name, a URL and an SQL key on every
platform, and every entry point checks them, reads included. A new session id is a time-ordered
UUID (version 7), so listings by id are listings by age.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import time
import uuid

from holdfast.core.errors import InvalidId
from holdfast.core.names import ADJECTIVES, NOUNS

MAX_ID_LENGTH = 128
MOST_SEEN = 4096

_ID = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,126}[a-z0-9])?", re.ASCII)
_CONTENT_ID = re.compile(r"sha256:[0-9a-f]{64}", re.ASCII)
# Names that some file system gives a meaning of its own.
_DEVICES = frozenset(
    {"con", "prn", "aux", "nul"} | {f"{d}{n}" for d in ("com", "lpt") for n in range(10)}
)


def check_id(value: object, what: str = "session id") -> str:
    """Return a valid id; raise InvalidId that says what is wrong with it."""
    if type(value) is str and value in _seen:
        return value
    value = _text(value, what)
    if not _ID.fullmatch(value) or ".." in value:
        raise InvalidId(
            f"{_shown(value)} is not a valid {what}: use 1 to {MAX_ID_LENGTH} of a-z, 0-9, '.', "
            "'_', '-', starting and ending with a letter or digit, without '..'"
        )
    if value.split(".", 1)[0] in _DEVICES:
        raise InvalidId(f"{_shown(value)} is not a valid {what}: it is a reserved device name")
    if len(_seen) >= MOST_SEEN:
        _seen.clear()
    _seen.add(value)
    return value


def _text(value: object, what: str) -> str:
    """Return exactly text: what else a text may say of itself is not what was looked at."""
    if type(value) is not str:
        raise InvalidId(
            f"{_shown(value)} is not a valid {what}: it is a {type(value).__name__}; pass text"
        )
    return value


_seen: set[str] = set()
"""Ids that were found valid: the same few are checked at every turn."""


def check_key(value: object, what: str) -> str:
    """Return a valid free-form key (call id, inbox key): printable ASCII without white space."""
    value = _text(value, what)
    if not 0 < len(value) <= 200:
        raise InvalidId(
            f"{_shown(value)} is not a valid {what}: use 1 to 200 printable ASCII characters"
        )
    if not all("!" <= c <= "~" for c in value):
        raise InvalidId(
            f"{_shown(value)} is not a valid {what}: use printable ASCII without spaces"
        )
    return value


def check_content_id(value: object) -> str:
    """Return a valid content id (`sha256:` and 64 hexadecimal digits)."""
    value = _text(value, "content id")
    if not _CONTENT_ID.fullmatch(value):
        raise InvalidId(
            f"{_shown(value)} is not a valid content id: expected 'sha256:' and 64 hex digits"
        )
    return value


def is_content_id(value: str) -> bool:
    """Tell whether a text is a content id."""
    return _CONTENT_ID.fullmatch(value) is not None


def new_session_id() -> str:
    """Return a new time-ordered session id."""
    return "s-" + str(_uuid7())


def new_owner_id() -> str:
    """Return a new id for a process that drives sessions."""
    return "o-" + secrets.token_hex(8)


def friendly_name(session_id: str) -> str:
    """Return the display name of a session: the same for the same id, never an identity."""
    digest = hashlib.sha256(session_id.encode()).digest()
    adjective = ADJECTIVES[int.from_bytes(digest[:4], "big") % len(ADJECTIVES)]
    noun = NOUNS[int.from_bytes(digest[4:8], "big") % len(NOUNS)]
    return f"{adjective}-{noun}-{digest[8:10].hex()}"


def _uuid7() -> uuid.UUID:
    milliseconds = time.time_ns() // 1_000_000
    number = (milliseconds & (2**48 - 1)) << 80 | secrets.randbits(80)
    number = number & ~(0xF << 76) | 7 << 76
    return uuid.UUID(int=number & ~(0x3 << 62) | 0x2 << 62)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:60]}… ({len(text)} characters)"
