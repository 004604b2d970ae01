"""Names of other frameworks as session ids: readable where they are valid, else by their hash."""

from __future__ import annotations

import hashlib
import re

_VALID = re.compile(r"[a-z0-9]([a-z0-9_-]{0,78}[a-z0-9])?")
_HASHED = "sha256-"


def session_id(prefix: str, name: str) -> str:
    """Return the session id of a name: always the same, and two names never share one."""
    if _VALID.fullmatch(name) and not name.startswith(_HASHED):
        return f"{prefix}.{name}"
    return f"{prefix}.{hashed(name)}"


def hashed(name: str) -> str:
    """Return a name's hash, in a form that no valid name has."""
    return _HASHED + hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:32]
