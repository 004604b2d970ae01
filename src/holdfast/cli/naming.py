"""Which session someone means: its id, a unique beginning of it, or its friendly name."""

from __future__ import annotations

from holdfast.core.errors import InvalidId, InvalidInput, SessionNotFound
from holdfast.stores.port import SessionInfo, SessionStore
from holdfast.views.sessions import all_sessions

CANDIDATES_SHOWN = 10


class AmbiguousSession(InvalidInput):
    """Several sessions fit what was given."""


async def find_session(store: SessionStore, given: str) -> SessionInfo:
    """Return the one session that is meant; AmbiguousSession lists the candidates."""
    try:
        return await store.session_info(given)
    except (InvalidId, SessionNotFound):
        pass
    named: list[SessionInfo] = []
    begun: list[SessionInfo] = []
    async for info in all_sessions(store):
        if info.name == given:
            named.append(info)
        elif given and (info.id.startswith((given, f"s-{given}")) or info.name.startswith(given)):
            begun.append(info)
    found = named or begun
    if not found:
        raise SessionNotFound(
            f"no session is {given!r} by id, beginning of an id, or name; `holdfast sessions` "
            "lists them"
        )
    if len(found) > 1:
        shown = ", ".join(f"{info.id} ({info.name})" for info in found[:CANDIDATES_SHOWN])
        more = f" and {len(found) - CANDIDATES_SHOWN} more" * (len(found) > CANDIDATES_SHOWN)
        raise AmbiguousSession(f"{given!r} may be {shown}{more}; give more of the id")
    return found[0]
