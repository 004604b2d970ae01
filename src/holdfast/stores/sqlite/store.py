"""The SQLite session store: the default, for any number of processes on one machine.

What happens inside a transaction is in `stores/relational`, how SQLite runs it in `engine`, who
waits for whom in `writer` and `readers`, and which SQL is run in `queries.sql`.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import apsw

from holdfast.blobs.directory import DirectoryBlobStore
from holdfast.blobs.disk import Disk
from holdfast.core.errors import NothingWritten
from holdfast.stores.place import check_local, check_name
from holdfast.stores.port import LEASE_SECONDS, StoreFlags
from holdfast.stores.relational.store import RelationalSessionStore
from holdfast.stores.sqlite.database import Database
from holdfast.stores.sqlite.engine import SqliteEngine

FILE_NAME = "events.db"
BLOB_FOLDER = "blobs"


class SqliteSessionStore(RelationalSessionStore):
    """A handle on a store in a directory; `open` makes one."""

    def __init__(self, path: Path, engine: SqliteEngine, lease_seconds: float) -> None:
        self._path = path
        self._read_only = engine.read_only
        super().__init__(engine, lease_seconds)

    @classmethod
    async def open(
        cls,
        path: Path,
        *,
        vfs: str | None = None,
        disk: Disk | None = None,
        lease_seconds: float = LEASE_SECONDS,
        force_network: bool = False,
    ) -> SqliteSessionStore:
        """Open the store in a directory, creating what is missing; blocking work is in a thread."""

        def start() -> SqliteSessionStore:
            place = disk or Disk()
            check_name(path)
            check_local(path, force=force_network)
            database = Database(path / FILE_NAME, vfs)
            blobs = DirectoryBlobStore(path / BLOB_FOLDER, place)
            if database.read_only:
                database.look(database.prepare)
                unused = apsw.Connection(":memory:")  # the writer refuses every job
                return cls(path, SqliteEngine(database, unused, blobs), lease_seconds)
            with database.failures(NothingWritten, "create the store"):
                place.make_directories(path)
            connection = database.connect()
            try:
                database.prepare(connection)
                with database.failures(NothingWritten, "create the store"):
                    place.sync_directory(path)
                return cls(path, SqliteEngine(database, connection, blobs), lease_seconds)
            except BaseException:
                database.close(connection)
                raise

        store = await asyncio.to_thread(start)
        if not store._read_only:
            await store.repair()
        return store

    @property
    def flags(self) -> StoreFlags:
        """Return what this store is."""
        url = f"sqlite:{self._path.absolute()}"
        return StoreFlags("sqlite", durable=True, multi_process=True, url=url)
