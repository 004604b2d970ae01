"""Connections to one PostgreSQL database: a pool, and an event loop of its own that they live in.

A pool belongs to one event loop, a store handle to none: it is used from the loop of whoever calls,
from the thread that renews the heartbeat and from the one that polls for subscribers. So there is a
thread with a loop for all of them, and a busy caller neither delays a heartbeat nor a commit.

Connections keep no state between transactions, which makes them fit for a pooler that hands them
out one transaction at a time.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeAlias, TypeVar

import psycopg
from psycopg.adapt import AdaptersMap
from psycopg.conninfo import conninfo_to_dict
from psycopg.types.numeric import Int8BinaryDumper, Int8Dumper
from psycopg_pool import AsyncConnectionPool

from holdfast.stores.postgres.failures import is_lost
from holdfast.stores.postgres.location import Location
from holdfast.stores.rows import closed_error

logger = logging.getLogger("holdfast.stores")

T = TypeVar("T")
Connection: TypeAlias = "psycopg.AsyncConnection[tuple[Any, ...]]"

STATEMENT_SECONDS = 30.0
IDLE_SECONDS = 10.0
"""How long a transaction may wait for its client; a process that is stopped locks nobody out."""
WAIT_SECONDS = 20.0
"""How long a call waits for a connection; the pool connects anew with growing pauses meanwhile."""
CONNECT_SECONDS = 10

_KEEPALIVE = {"keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3}


def milliseconds(seconds: float) -> str:
    """Return a time limit as PostgreSQL takes it."""
    return str(int(seconds * 1000))


def _adapters() -> AdaptersMap:
    adapters = AdaptersMap(psycopg.adapters)
    # One type for all integers: else each statement is prepared once for each size of a number.
    adapters.register_dumper(int, Int8Dumper)
    adapters.register_dumper(int, Int8BinaryDumper)
    return adapters


class Connections:
    """The pool of one store handle."""

    def __init__(self, location: Location) -> None:
        self.location = location
        self.where = location.shown
        given = conninfo_to_dict(location.conninfo)
        options: dict[str, Any] = {"connect_timeout": CONNECT_SECONDS, **_KEEPALIVE}
        options |= {"application_name": "holdfast", "tcp_user_timeout": 20_000}
        options = {name: value for name, value in options.items() if name not in given}
        if not location.pooled:
            limits = (
                f"-c statement_timeout={milliseconds(STATEMENT_SECONDS)} "
                f"-c idle_in_transaction_session_timeout={milliseconds(IDLE_SECONDS)}"
            )
            options["options"] = f"{limits} {given.get('options', '')}".strip()
        # Behind such a pooler the next statement may meet a server that never prepared it.
        prepare = None if location.pooled else 5
        self._options = options | {"autocommit": True, "prepare_threshold": prepare}
        self._closed = False
        self._under_way: set[concurrent.futures.Future[Any]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="holdfast-postgres", daemon=True)
        self._thread.start()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """Return the loop that the connections live in."""
        return self._loop

    def submit(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Run something in the loop of the connections, from any thread."""
        if self._closed:
            work.close()
            raise closed_error(self.where)
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        self._under_way.add(future)
        future.add_done_callback(self._under_way.discard)
        return future

    async def connect(self) -> Connection:
        """Return a connection outside the pool, made by whoever wants to know why it fails."""
        connection: Connection = await psycopg.AsyncConnection.connect(
            self.location.conninfo, context=_adapters(), **self._options
        )
        return connection

    async def open(self) -> None:
        """Open the pool."""
        self._pool: AsyncConnectionPool[Connection] = AsyncConnectionPool(
            self.location.conninfo,
            kwargs=self._options | {"context": _adapters()},
            min_size=1,
            max_size=self.location.connections,
            timeout=WAIT_SECONDS,
            reconnect_timeout=WAIT_SECONDS,
            max_idle=60.0,
            open=False,
            name=f"holdfast {self.location.schema}",
        )
        await self._pool.open()

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """Lend a connection; one that was lost or left in a transaction does not come back."""
        connection = await self._pool.getconn()
        try:
            yield connection
        except BaseException as error:
            if is_lost(error) or not isinstance(error, Exception):
                await connection.close()
            raise
        finally:
            await self._pool.putconn(connection)

    def report(self) -> dict[str, int]:
        """Return the size of the pool, its bound, and how many calls wait for a connection."""
        found = self._pool.get_stats()
        names = {"connections": "pool_size", "limit": "pool_max", "waiting": "requests_waiting"}
        return {name: found.get(key, 0) for name, key in names.items()}

    async def shut(self) -> None:
        """Close the pool."""
        if hasattr(self, "_pool"):
            await self._pool.close()

    def close(self) -> None:
        """Close the pool and end the thread; blocks."""
        if self._closed:
            return
        self._closed = True
        concurrent.futures.wait(list(self._under_way), WAIT_SECONDS)
        with suppress(Exception):
            asyncio.run_coroutine_threadsafe(self.shut(), self._loop).result(WAIT_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            left = asyncio.all_tasks(self._loop)
            for task in left:
                task.cancel()
            if left:
                self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()
