"""The reading half of the SQLite store.

Reads run beside the writer in threads of their own, take no lease and repair nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apsw

from holdfast.blobs.port import BlobStore
from holdfast.core.errors import Corruption, SessionNotFound
from holdfast.core.events import Event
from holdfast.core.ids import check_content_id, check_id
from holdfast.core.payloads import Slot, check_bytes
from holdfast.core.state import State
from holdfast.stores import checks, rows
from holdfast.stores.feed import Feed, HintSubscription, SessionSubscription
from holdfast.stores.owner import Owner
from holdfast.stores.port import (
    InboxItem,
    Lease,
    LeaseInfo,
    SessionFilter,
    SessionInfo,
    SessionPage,
    Transient,
)
from holdfast.stores.sqlite import events, leases, payloads, sessions
from holdfast.stores.sqlite.database import SQL
from holdfast.stores.sqlite.readers import Readers


class SqliteReading:
    """What a store shows; `SqliteSessionStore` adds what changes it."""

    def __init__(
        self, readers: Readers, states: events.States, blobs: BlobStore, owner: Owner
    ) -> None:
        self._readers = readers
        self._states = states
        self._blobs = blobs
        self._owner = owner
        self._feed = Feed(self._page, readers.moved, readers.where)

    async def get_payload(self, session_id: str, payload_id: str) -> bytes:
        """Return a payload that this session refers to."""
        self._check(session_id)
        check_content_id(payload_id)

        def read(cursor: apsw.Cursor) -> bytes:
            row = sessions.find(cursor, session_id)
            found = payloads.readable(cursor, row, payload_id)
            data = payloads.data_of(cursor, self._blobs, row, payload_id, found)
            return check_bytes(Slot(payload_id, "bytes", "chunk", found.size), data)

        try:
            return await self._readers.run(read, session=session_id)
        except Corruption:
            # An erasure may have come between row and file; a second look tells.
            return await self._readers.run(read, session=session_id)

    async def load_state(self, session_id: str) -> State:
        """Return the state at the tip."""
        self._check(session_id)

        def read(cursor: apsw.Cursor) -> State:
            return self._states.load(cursor, sessions.find(cursor, session_id))

        return await self._readers.run(read, session=session_id)

    async def read_events(
        self,
        session_id: str,
        *,
        after: int = 0,
        before: int | None = None,
        limit: int = 1000,
        reverse: bool = False,
        types: Sequence[str] | None = None,
    ) -> list[Event]:
        """Return a page of events."""
        self._check(session_id)
        checks.check_page(after, before, limit, types)

        def read(cursor: apsw.Cursor) -> list[Event]:
            row = sessions.find(cursor, session_id)
            found = events.read(
                cursor, row, after=after, before=before, limit=limit, reverse=reverse, types=types
            )
            return list(found)

        return await self._readers.run(read, session=session_id)

    async def session_info(self, session_id: str) -> SessionInfo:
        """Return one session's row of a listing."""
        self._check(session_id)

        def read(cursor: apsw.Cursor) -> SessionInfo:
            sessions.find(cursor, session_id)
            found = sessions.info(cursor, session_id, _Liveness(cursor))
            if found is None:
                raise SessionNotFound(f"there is no session {session_id!r} in this store")
            return found

        return await self._readers.run(read, session=session_id)

    async def list_sessions(
        self,
        where: SessionFilter | None = None,
        *,
        limit: int = 100,
        cursor: str | None = None,
    ) -> SessionPage:
        """Return one page of sessions, newest created first."""
        self._owner.check_process()
        checks.check_page(0, None, limit)
        checks.check_filter(where)
        below = rows.read_cursor(cursor)
        wanted = where or SessionFilter()

        def read(database: apsw.Cursor) -> list[tuple[int, SessionInfo]]:
            return sessions.page(database, wanted, below, limit + 1, _Liveness(database))

        found = await self._readers.run(read)
        page = found[:limit]
        more = rows.write_cursor(page[-1][0]) if len(found) > limit else None
        return SessionPage(tuple(info for _, info in page), more)

    async def list_inbox(self, session_id: str, *, pending: bool = True) -> list[InboxItem]:
        """Return inbox items in order of arrival."""
        self._check(session_id)

        def read(cursor: apsw.Cursor) -> list[InboxItem]:
            return leases.items(cursor, sessions.find(cursor, session_id))

        items = await self._readers.run(read, session=session_id)
        return [item for item in items if not pending or item.consumed_seq is None]

    async def lease_of(self, session_id: str) -> LeaseInfo | None:
        """Return who holds the session."""
        self._check(session_id)

        def read(cursor: apsw.Cursor) -> LeaseInfo | None:
            return leases.holder(cursor, sessions.find(cursor, session_id))

        return await self._readers.run(read, session=session_id)

    def subscribe(self, session_id: str, *, after: int = 0) -> SessionSubscription:
        """Follow one session from a position."""
        self._check(session_id)
        return self._feed.subscribe(session_id, after)

    def subscribe_all(self) -> HintSubscription:
        """Follow all sessions by hints."""
        self._owner.check_process()
        return self._feed.subscribe_all()

    def notify(self, item: Transient) -> None:
        """Hand a live-only item to this handle's subscribers."""
        self._owner.check_process()
        self._feed.notify(item)

    async def erased(self, session_id: str) -> dict[str, tuple[str, str]]:
        """Return the erased payload ids of a session."""
        self._check(session_id)

        def read(cursor: apsw.Cursor) -> dict[str, tuple[str, str]]:
            row = sessions.find(cursor, session_id)
            found: Any = cursor.execute(SQL["list_erasures"], (row.key,)).fetchall()
            return {payloads.named(digest): (at, rule) for digest, at, rule in found}

        return await self._readers.run(read, session=session_id)

    def _check(self, session_id: str) -> str:
        self._owner.check_process()
        return check_id(session_id)

    def _check_lease(self, lease: Lease) -> str:
        self._owner.check_process()
        return checks.check_lease(lease)

    async def _page(self, session_id: str, *, after: int, limit: int) -> list[Event]:
        return await self.read_events(session_id, after=after, limit=limit)


class _Liveness:
    """Who is alive, looked up once per owner and read."""

    def __init__(self, cursor: apsw.Cursor) -> None:
        self._cursor = cursor
        self._known: dict[str, bool] = {}

    def __call__(self, owner: str | None) -> bool:
        if owner is None:
            return False
        if owner not in self._known:
            sign = leases.heartbeat(self._cursor, owner)
            self._known[owner] = sign is not None and sign.is_alive()
        return self._known[owner]
