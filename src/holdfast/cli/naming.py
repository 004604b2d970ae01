"""Which session, head or payload is meant: its id, a unique beginning of it, or a name."""

from __future__ import annotations

from collections.abc import AsyncIterator

from holdfast.core.errors import InvalidId, InvalidInput, SessionNotFound
from holdfast.core.facts import HeadPublished
from holdfast.core.ids import check_content_id
from holdfast.core.payloads import walk
from holdfast.stores.port import SessionInfo, SessionStore
from holdfast.views.sessions import all_sessions

CANDIDATES_SHOWN = 10


PAGE_EVENTS = 1000
DIGITS = 64


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
            f"no session has an id or a name that is or begins with {given!r}; "
            "`holdfast sessions` lists them"
        )
    if len(found) > 1:
        shown = ", ".join(f"{info.id} ({info.name})" for info in found[:CANDIDATES_SHOWN])
        more = f" and {len(found) - CANDIDATES_SHOWN} more" * (len(found) > CANDIDATES_SHOWN)
        raise AmbiguousSession(f"{given!r} may be {shown}{more}; give more of the id")
    return found[0]


class AmbiguousId(InvalidInput):
    """Several heads or payloads have an id that begins with what was given."""


async def find_head(store: SessionStore, session_id: str, given: str) -> str:
    """Return the one head of a session whose id begins with what was given."""
    return await _begun(given, _heads(store, session_id), "head")


async def find_payload(store: SessionStore, session_id: str, given: str) -> str:
    """Return the one payload of a session whose id begins with what was given."""
    return await _begun(given, _payloads(store, session_id), "payload")


async def _begun(given: str, ids: AsyncIterator[str], what: str) -> str:
    wanted = given if ":" in given else f"sha256:{given}"
    digits = wanted.partition(":")[2]
    if len(digits) >= DIGITS or not digits:
        return check_content_id(wanted)
    found = {item async for item in ids if item.startswith(wanted)}
    if len(found) > 1:
        raise AmbiguousId(f"{given!r} may be one of {len(found)} {what}s; give more of the id")
    # Nothing found: the whole id is asked for, so that the error says what is wrong with it.
    return found.pop() if found else check_content_id(wanted)


async def _heads(store: SessionStore, session_id: str) -> AsyncIterator[str]:
    after = 0
    while page := await store.read_events(
        session_id, after=after, limit=PAGE_EVENTS, types=[HeadPublished.TYPE]
    ):
        for event in page:
            yield str(event.data.get("id"))
        after = page[-1].seq


async def _payloads(store: SessionStore, session_id: str) -> AsyncIterator[str]:
    after = 0
    while page := await store.read_events(session_id, after=after, limit=PAGE_EVENTS):
        for event in page:
            for item in walk(event.data):
                yield item.id
        after = page[-1].seq
