"""How PostgreSQL runs plans: reads and writes through a pool, blobs in a table or elsewhere."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from holdfast.blobs.port import BlobEntry, BlobStore
from holdfast.core.errors import NothingWritten, StoreFailed
from holdfast.stores.postgres.connections import (
    IDLE_SECONDS,
    STATEMENT_SECONDS,
    Connections,
    milliseconds,
)
from holdfast.stores.postgres.database import statements
from holdfast.stores.postgres.failures import FAILURES, is_lost, named
from holdfast.stores.postgres.moves import Moves
from holdfast.stores.postgres.notices import Notices
from holdfast.stores.postgres.transaction import Transaction
from holdfast.stores.postgres.writer import Writer
from holdfast.stores.relational.delivery import Outcome
from holdfast.stores.relational.plan import Change, Job, Plan, Query
from holdfast.stores.rows import closed_error
from holdfast.stores.tenancy import address_of

T = TypeVar("T")

READ_TRIES = 4
POLL_WAIT_SECONDS = 10.0


class PostgresEngine:
    """One schema and its blobs."""

    def __init__(self, connections: Connections, blobs: BlobStore | None) -> None:
        self._connections = connections
        self._blobs = blobs
        self._sql = statements(connections.location.schema)
        self._moves = Moves()
        self._notices = Notices(connections, self._sql)
        self._lock = threading.Lock()
        self._closed = False
        self.where = connections.where

    def start(self, committed: Callable[[Sequence[Job[Any]]], None]) -> None:
        """Start the writer."""

        def told(jobs: Sequence[Job[Any]]) -> None:
            keys: list[str] = []
            for job in jobs:
                if job.error is None and job.moved is not None:
                    keys += [key for key, _ in job.moved(job.result)]
            if keys:
                self._notices.say({address_of(key).tenant for key in keys})
            committed(jobs)

        self._writer = Writer(self._connections, self._sql, self._blobs, told)

    def read(self, plan: Callable[[], Plan[T]], session: str | None = None) -> Awaitable[T]:
        """Run a plan over one moment of the database."""
        return self._submit(self._read(plan, session))

    def write(self, job: Job[T]) -> Awaitable[T]:
        """Run a job in a transaction, with others that queued meanwhile."""
        outcome: Outcome[T] = Outcome(loop=asyncio.get_running_loop())
        job.outcome = outcome
        self._enqueue(job)
        return outcome

    def write_blocking(self, job: Job[T]) -> T:
        """Run a job from another thread."""
        job.done = threading.Event()
        self._enqueue(job)
        job.done.wait()
        if job.error is not None:
            raise job.error
        return job.result  # type: ignore[return-value]

    def moved(self, watched: frozenset[str] | None) -> Iterable[tuple[str, int]]:
        """Return the sessions that moved since the last look, once another look is due.

        Not only those watched: who began to follow one during the wait is not among them.
        """
        self._notices.wait()
        return self.look()

    def pool_report(self) -> dict[str, int]:
        """Return how many connections this handle has, of how many, and who waits for one."""
        return self._connections.report()

    def look(self) -> list[tuple[str, int]]:
        """Return the sessions that moved since the last look."""
        if self._closed:
            return []
        future = self._connections.submit(self._read(self._moves.look, None))
        try:
            return future.result(POLL_WAIT_SECONDS)
        finally:
            future.cancel()

    async def put_blob(self, tenant: str, blob_id: str, data: bytes) -> None:
        """Store a large payload, durably."""
        if self._blobs is not None:
            return await self._thread(
                NothingWritten, partial(self._blobs.put, tenant, blob_id, data)
            )

        def plan() -> Plan[None]:
            yield Change("put_blob", (tenant, blob_id, data, time.time()))

        await self.write(Job(plan))

    async def list_blobs(self) -> list[BlobEntry]:
        """Return all blobs, those in the table too."""

        def plan() -> Plan[list[BlobEntry]]:
            return [BlobEntry(*found) for found in (yield Query("list_blobs"))]

        found = await self.read(plan)
        if self._blobs is not None:
            blobs = self._blobs
            found += await self._thread(StoreFailed, lambda: list(blobs.entries()))
        return found

    async def sweep_blobs(self, before: float) -> None:
        """Remove what unfinished puts left behind."""
        if self._blobs is not None:
            await self._thread(StoreFailed, partial(self._blobs.sweep, before))

    def close(self) -> None:
        """Finish what was submitted and close the connections."""
        with self._lock:
            self._closed = True
        with suppress(Exception):
            self._connections.submit(self._writer.finish()).result()
        with suppress(Exception):
            self._connections.loop.call_soon_threadsafe(self._notices.close)
        self._connections.close()

    def _enqueue(self, job: Job[Any]) -> None:
        with self._lock:  # nothing is handed over after the end was
            if self._closed:
                raise closed_error(self.where)
            self._connections.loop.call_soon_threadsafe(self._writer.submit, job)

    async def _submit(self, work: Coroutine[Any, Any, T]) -> T:
        return await asyncio.wrap_future(self._connections.submit(work))

    async def _read(self, plan: Callable[[], Plan[T]], session: str | None) -> T:
        for number in range(1, READ_TRIES + 1):
            try:
                return await self._read_once(plan)
            except FAILURES as error:
                if number == READ_TRIES or not is_lost(error):
                    raise named(error, self.where, StoreFailed, "read", session) from error
                await asyncio.sleep(0.05 * number)
        raise AssertionError("unreachable")

    async def _read_once(self, plan: Callable[[], Plan[T]]) -> T:
        async with self._connections.connection() as connection:
            try:
                async with connection.pipeline():
                    transaction = Transaction(connection, self._sql, self._blobs)
                    await transaction.send("begin_read")
                    if self._connections.location.pooled:
                        limits = (milliseconds(STATEMENT_SECONDS), milliseconds(IDLE_SECONDS))
                        await transaction.send("limit_time", limits)
                    outcome = await transaction.run(plan())
                    await transaction.send("commit")
                return outcome
            except BaseException:
                if not connection.closed:
                    with suppress(*FAILURES):
                        await connection.execute(self._sql["rollback"])
                raise

    async def _thread(self, kind: type[StoreFailed], work: Callable[[], T]) -> T:
        doing = "store a payload" if kind is NothingWritten else "reach the blobs"
        try:
            return await asyncio.to_thread(work)
        except OSError as error:
            raise named(error, self.where, kind, doing, None) from error
