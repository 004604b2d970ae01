"""How SQLite runs plans: writes in one thread, reads in a few others, blobs in a directory."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar

import apsw

from holdfast.blobs.port import BlobEntry, BlobStore
from holdfast.core.errors import NothingWritten, StoreFailed
from holdfast.stores.relational.derived import repair_pending
from holdfast.stores.relational.events import States
from holdfast.stores.relational.plan import (
    Change,
    ChangeMany,
    Clock,
    HasBlob,
    Job,
    Plan,
    Query,
    ReadBlob,
    RemoveBlob,
    Step,
)
from holdfast.stores.sqlite.database import SQL, Database
from holdfast.stores.sqlite.readers import Readers
from holdfast.stores.sqlite.writer import Writer

T = TypeVar("T")


class SqliteEngine:
    """One `events.db` and its blobs."""

    def __init__(self, database: Database, connection: apsw.Connection, blobs: BlobStore) -> None:
        self._database = database
        self._connection = connection
        self._blobs = blobs
        database.complete_copy = self._complete
        self._readers = Readers(database)
        self.where = str(database.path)
        self.read_only = database.read_only

    def start(self, committed: Callable[[Sequence[Job[Any]]], None]) -> None:
        """Start the writer."""
        self._writer = Writer(self._database, self._connection, self._run, committed)

    def read(self, plan: Callable[[], Plan[T]], session: str | None = None) -> Awaitable[T]:
        """Run a plan in a reader's thread."""

        def work(cursor: apsw.Cursor) -> T:
            return self._run(cursor, plan())

        return self._readers.run(work, session=session)

    def write(self, job: Job[T]) -> Awaitable[T]:
        """Run a job in the writer's thread."""
        return self._writer.run(job)

    def write_blocking(self, job: Job[T]) -> T:
        """Run a job from another thread."""
        return self._writer.run_blocking(job)

    def moved(self, watched: frozenset[str] | None) -> Iterable[tuple[str, int]]:
        """Return the sessions that moved since the last look."""
        return self._readers.moved(watched)

    async def put_blob(self, tenant: str, blob_id: str, data: bytes) -> None:
        """Store a large payload, durably."""
        if self._database.read_only:
            raise self._database.read_only_error()
        await self._thread(NothingWritten, partial(self._blobs.put, tenant, blob_id, data))

    async def list_blobs(self) -> list[BlobEntry]:
        """Return all blobs."""
        return await self._thread(StoreFailed, lambda: list(self._blobs.entries()))

    async def sweep_blobs(self, before: float) -> None:
        """Remove the temporary files of unfinished puts."""
        await self._thread(StoreFailed, partial(self._blobs.sweep, before))

    def close(self) -> None:
        """End the threads and close the connections."""
        self._writer.close()
        self._readers.close()

    async def _thread(self, kind: type[StoreFailed], work: Callable[[], T]) -> T:
        doing = "store a payload" if kind is NothingWritten else "reach the blobs"

        def run() -> T:
            with self._database.failures(kind, doing):
                return work()

        return await asyncio.to_thread(run)

    def _complete(self, copy: apsw.Connection) -> None:
        self._run(copy.cursor(), repair_pending(States()))

    def _run(self, cursor: apsw.Cursor, plan: Plan[T]) -> T:
        """Run a plan with a cursor; what a step raises is raised at the plan's yield."""
        try:
            step = next(plan)
            while True:
                try:
                    result = self._step(cursor, step)
                except Exception as error:
                    step = plan.throw(error)
                else:
                    step = plan.send(result)
        except StopIteration as done:
            outcome: T = done.value
            return outcome

    def _step(self, cursor: apsw.Cursor, step: Step) -> Any:
        if type(step) is Query:
            return cursor.execute(SQL[step.name], step.values).fetchall()
        if type(step) is Change:
            cursor.execute(SQL[step.name], step.values)
            return cursor.connection.changes()
        if type(step) is ChangeMany:
            return cursor.executemany(SQL[step.name], step.rows)
        if type(step) is HasBlob:
            return self._blobs.has(step.tenant, step.id)
        if type(step) is ReadBlob:
            return self._blobs.get(step.tenant, step.id)
        if type(step) is RemoveBlob:
            return self._blobs.remove(step.tenant, step.id)
        assert type(step) is Clock
        return int(time.time() * 1000)
