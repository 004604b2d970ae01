"""The readers: a few threads with a connection each, so that reading never waits for writing.

A read is one short transaction over one moment of the database. The feed's poll lives here too: it
asks SQLite's own change counter and looks further only when that moved.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import apsw

from holdfast.core.errors import StoreFailed
from holdfast.stores.rows import closed_error
from holdfast.stores.sqlite.database import SQL, Database
from holdfast.stores.tenancy import Address
from holdfast.stores.threads import needing_thread

T = TypeVar("T")

READERS = 2


class Readers:
    """Reads of one store handle."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.where = str(database.path)
        self._pool = ThreadPoolExecutor(READERS, thread_name_prefix="holdfast-reader")
        self._local = threading.local()
        self._open: list[apsw.Connection] = []
        self._polling = threading.Lock()
        # Polling threads come and go with the subscribers; their connection stays.
        self._poller: apsw.Connection | None = None
        self._version: int | None = None
        self._closed = False
        # Moves are reported from here on.
        self._seen = self._pool.submit(self._read, _latest, (), None).result()

    async def run(self, work: Callable[..., T], *args: Any, session: str | None = None) -> T:
        """Run a read in a thread; `work` gets a cursor, then the arguments."""
        loop = asyncio.get_running_loop()
        try:
            with needing_thread(self.where):
                reading = loop.run_in_executor(self._pool, self._read, work, args, session)
            return await reading
        except RuntimeError as error:
            if "shutdown" not in str(error):
                raise
            raise closed_error(self.where) from None

    def close(self) -> None:
        """Let go of the threads and their connections."""
        self._pool.shutdown(wait=True)
        with self._polling:
            self._closed = True
            for connection in self._open:
                self._database.close(connection)
            self._open.clear()

    def moved(self, watched: frozenset[str] | None) -> Iterable[tuple[str, int]]:
        """Return the sessions that moved since the last look, with their positions."""
        with self._polling:
            if self._closed:
                return []
            if self._database.read_only:
                self._seen, found = self._read(_moved, (self._seen,), None)
                return _watched(found, watched)
            if self._poller is None:
                self._poller = self._connect()
            version = self._poller.pragma("data_version")
            if version == self._version:
                return []
            self._seen, found = self._read(_moved, (self._seen,), None, self._poller)
            self._version = version
        return _watched(found, watched)

    def _read(
        self,
        work: Callable[..., T],
        args: tuple[Any, ...],
        session: str | None,
        connection: apsw.Connection | None = None,
    ) -> T:
        with self._database.failures(StoreFailed, "read", session):
            if self._database.read_only:
                return self._database.look(lambda c: _transact(c, work, args))
            return _transact(connection or self._connection(), work, args)

    def _connection(self) -> apsw.Connection:
        connection: apsw.Connection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = self._connect()
        return connection

    def _connect(self) -> apsw.Connection:
        connection = self._database.connect()
        connection.pragma("query_only", "ON")
        self._open.append(connection)
        return connection


def _transact(connection: apsw.Connection, work: Callable[..., T], args: tuple[Any, ...]) -> T:
    cursor = connection.cursor()
    cursor.execute(SQL["begin_read"])
    try:
        return work(cursor, *args)
    finally:
        cursor.close(True)
        if connection.in_transaction:  # a failed read may have ended it
            connection.execute(SQL["rollback"])


def _watched(found: Iterable[Any], watched: frozenset[str] | None) -> list[tuple[str, int]]:
    keys = [(Address(tenant, session_id).key, seq) for tenant, session_id, seq in found]
    return [(key, seq) for key, seq in keys if watched is None or key in watched]


def _latest(cursor: apsw.Cursor) -> Any:
    return cursor.execute(SQL["latest"]).fetchone()


def _moved(cursor: apsw.Cursor, seen: Any) -> tuple[Any, list[Any]]:
    latest = _latest(cursor)
    if latest[2] != seen[2]:
        # Keys of a deleted session's rows may be in use again: look at everything once.
        deleted = cursor.execute(SQL["deleted_sessions"], (seen[2] or 0,)).fetchall()
        return latest, deleted + cursor.execute(SQL["all_sessions"]).fetchall()
    since = (seen[0] or 0, seen[1] or 0)
    return latest, cursor.execute(SQL["moved_sessions"], since).fetchall()
