"""The PostgreSQL session store: one schema of a database, for any number of machines.

What happens inside a transaction is in `stores/relational`, how PostgreSQL runs it in `engine`,
which jobs share a transaction in `writer`, and which SQL is run in `queries.sql`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

from holdfast.blobs.choose import open_blobs
from holdfast.blobs.port import BlobStore
from holdfast.core.errors import StoreFailed
from holdfast.stores.port import LEASE_SECONDS, StoreFlags
from holdfast.stores.postgres.connections import Connections
from holdfast.stores.postgres.database import place_of_blobs, prepare
from holdfast.stores.postgres.engine import PostgresEngine
from holdfast.stores.postgres.failures import FAILURES, named
from holdfast.stores.postgres.inspection import inspect
from holdfast.stores.postgres.location import Location, read_location
from holdfast.stores.postgres.queue import PostgresQueue
from holdfast.stores.relational.plan import Change, Job, Plan
from holdfast.stores.relational.store import RelationalSessionStore
from holdfast.stores.tenancy import Address


class PostgresSessionStore(RelationalSessionStore):
    """A handle on a store in a PostgreSQL database; `open` makes one."""

    def __init__(self, location: Location, engine: PostgresEngine, lease_seconds: float) -> None:
        self._location = location
        self._postgres = engine
        super().__init__(engine, lease_seconds)

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        create: bool = True,
        blobs: BlobStore | None = None,
        lease_seconds: float = LEASE_SECONDS,
    ) -> PostgresSessionStore:
        """Open the store that a URL names, creating what is missing of it."""
        location = read_location(url)
        connections = Connections(location)
        try:
            place = await asyncio.wrap_future(connections.submit(_prepare(connections, create)))
            if blobs is None and place is not None:
                blobs = await asyncio.to_thread(open_blobs, place)
            engine = PostgresEngine(connections, blobs)
            store = cls(location, engine, lease_seconds)
        except BaseException:
            await asyncio.to_thread(connections.close)
            raise
        try:
            await asyncio.to_thread(engine.look)  # moves are reported from here on
            await store.repair()
        except BaseException:
            await store.close()
            raise
        return store

    @property
    def flags(self) -> StoreFlags:
        """Return what this store is."""
        return StoreFlags("postgres", durable=True, multi_process=True, url=self._location.shown)

    def work_queue(self) -> PostgresQueue | None:
        """Return the queue that hands out work; None behind a transaction pooler.

        Nobody can listen there, and the search path that the queue needs does not stay.
        """
        return None if self._location.pooled else PostgresQueue(self._location, self.tenant)

    async def inspect(self) -> tuple[dict[str, Any], list[str]]:
        """Return what `doctor` says of the database, and what of it is a problem."""
        schema = self._location.schema
        report, problems = await self._engine.read(partial(inspect, schema))
        pool = self._postgres.pool_report()
        return report | {"pool": pool}, problems

    async def wake(self, sessions: Sequence[str]) -> None:
        """Leave a job for each of some sessions."""

        def plan() -> Plan[None]:
            yield Change("wake_sessions", (list(sessions), self.tenant))

        keys = [(Address(self.tenant, session).key, 0) for session in sessions[:1]]
        await self._engine.write(Job(plan, moved=lambda _: keys))


async def _prepare(connections: Connections, create: bool) -> str | None:
    """Make a store ready; return where its large payloads are."""
    location = connections.location
    try:
        connection = await connections.connect()
        try:
            await prepare(connection, location, create=create)
            place = await place_of_blobs(connection, location)
        finally:
            await connection.close()
        await connections.open()
        return place
    except FAILURES as error:
        raise named(error, location.shown, StoreFailed, "open the store", None) from error
