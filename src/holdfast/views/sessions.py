"""The sessions of a store, one after the other."""

from __future__ import annotations

from collections.abc import AsyncIterator

from holdfast.stores.port import SessionFilter, SessionInfo, SessionStore

PAGE_SESSIONS = 1000


async def all_sessions(
    store: SessionStore, where: SessionFilter | None = None
) -> AsyncIterator[SessionInfo]:
    """Yield every session, newest first."""
    cursor = None
    while True:
        page = await store.list_sessions(where, limit=PAGE_SESSIONS, cursor=cursor)
        for info in page.sessions:
            yield info
        cursor = page.cursor
        if cursor is None:
            return
