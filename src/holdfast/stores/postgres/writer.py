"""The writer: appends of many sessions in one transaction, without a timer.

A few lanes write at once, each with a connection. What queued while all lanes were busy goes into
the next transaction of the first that is free, sorted by session, so that two of them lock sessions
in the same order. Jobs of one session never run in two lanes and keep their order. A job that is
refused before it wrote anything leaves the others of its group untouched; any other failure ends
the transaction, and each job is tried alone.

A commit whose answer was lost is looked up by the number of its transaction and by what it wrote,
so its outcome is known as soon as the server can be asked again.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from holdfast.blobs.port import BlobStore
from holdfast.core.errors import HoldfastError, NothingWritten, OutcomeUnknown, StoreFailed
from holdfast.stores.postgres.connections import (
    IDLE_SECONDS,
    STATEMENT_SECONDS,
    Connection,
    Connections,
    milliseconds,
)
from holdfast.stores.postgres.failures import CLASHES, FAILURES, is_lost, named
from holdfast.stores.postgres.transaction import Transaction
from holdfast.stores.relational.delivery import deliver, notice
from holdfast.stores.relational.plan import Job
from holdfast.stores.rows import closed_error

logger = logging.getLogger("holdfast.stores")

LANES = 4
GROUP_JOBS = 64
TRIES = 8
"""How often a job is tried that other transactions or lost connections are in the way of."""
UNKNOWN_SECONDS = 30.0
"""How long a lost commit is asked about."""


class _Spoiled(Exception):
    """A job was refused after it wrote: the others of its group cannot be committed with it."""


class _CommitLost(Exception):
    """The connection was lost after the commit was sent."""

    def __init__(self, number: str | None) -> None:
        super().__init__(number)
        self.number = number


def _uncommitted(error: HoldfastError) -> HoldfastError:
    """Return what a failure means inside a transaction, where nothing is committed yet."""
    if type(error) is StoreFailed:
        return NothingWritten(str(error), **error.details)
    return error


class Writer:
    """Runs jobs durably; everything but `close` happens in the loop of the connections."""

    def __init__(
        self,
        connections: Connections,
        statements: dict[str, str],
        blobs: BlobStore | None,
        committed: Callable[[Sequence[Job[Any]]], None],
    ) -> None:
        self._connections = connections
        self._sql = statements
        self._blobs = blobs
        self._committed = committed
        self._waiting: deque[Job[Any]] = deque()
        self._busy: set[str] = set()
        self._lanes: set[asyncio.Task[None]] = set()
        self._closed = False

    def submit(self, job: Job[Any]) -> None:
        """Take a job; it is settled whatever becomes of its caller."""
        if self._closed:
            job.error = closed_error(self._connections.where)
            deliver([job])
            return
        self._waiting.append(job)
        self._start_lanes()

    async def finish(self) -> None:
        """Let in no further job, and wait for those that are here."""
        self._closed = True
        while self._lanes:
            await asyncio.wait(self._lanes)

    def _start_lanes(self) -> None:
        while len(self._lanes) < LANES and (group := self._take()):
            lane = asyncio.get_running_loop().create_task(self._run(group))
            self._lanes.add(lane)
            lane.add_done_callback(self._ended)

    def _ended(self, lane: asyncio.Task[None]) -> None:
        self._lanes.discard(lane)
        self._start_lanes()

    def _take(self) -> list[Job[Any]]:
        """Return the next group: what waits, but for sessions that another lane writes to."""
        group: list[Job[Any]] = []
        left: deque[Job[Any]] = deque()
        held: set[str] = set()
        while self._waiting and len(group) < GROUP_JOBS:
            job = self._waiting.popleft()
            alone = job.session is None or job.collects
            if job.session is not None and (job.session in self._busy or job.session in held):
                left.append(job)
            elif alone and group:
                left.append(job)
                held.add(job.session or "")
            else:
                group.append(job)
                if alone:
                    break
        left.extend(self._waiting)
        self._waiting = left
        group.sort(key=lambda job: job.session or "")
        self._busy |= {job.session for job in group if job.session is not None}
        return group

    async def _run(self, group: list[Job[Any]]) -> None:
        try:
            await self._write(group)
        except BaseException as error:
            logger.exception("a transaction in %r ended unexpectedly", self._connections.where)
            for job in group:
                job.error = job.error or OutcomeUnknown(
                    f"a write to {self._connections.where!r} ended with {error!r}; read again "
                    "before anything else",
                    session=job.session,
                )
        finally:
            self._busy -= {job.session for job in group if job.session is not None}
            for job in group:
                if job.settled is not None and job.error is None:
                    notice(job.settled, job.result)
            notice(self._committed, group)
            deliver(group)

    async def _write(self, group: list[Job[Any]]) -> None:
        if len(group) > 1:
            try:
                return await self._attempt(group)
            except _CommitLost as lost:
                if await self._settle(group, lost):
                    return
            except Exception:
                pass  # nothing was written; each is tried alone
        for job in group:
            await self._write_alone(job)

    async def _write_alone(self, job: Job[Any]) -> None:
        for number in range(1, TRIES + 1):
            job.error = None
            try:
                return await self._attempt([job])
            except _CommitLost as lost:
                if await self._settle([job], lost):
                    return
            except FAILURES as error:
                again = isinstance(error, CLASHES) or is_lost(error)
                if not again or number == TRIES:
                    where = self._connections.where
                    job.error = named(error, where, NothingWritten, "write", job.session)
                    job.error.__cause__ = error
                    return
            except Exception as error:
                job.error = error
                return
            await asyncio.sleep(random.uniform(0.5, 1) * min(0.005 * 4**number, 2.0))

    async def _attempt(self, group: list[Job[Any]]) -> None:
        """Write a group in one transaction; whatever is raised but `_CommitLost` wrote nothing."""
        async with self._connections.connection() as connection:
            try:
                await self._transact(connection, group)
            except BaseException:
                if not connection.closed:
                    with suppress(*FAILURES):
                        await connection.execute(self._sql["rollback"])
                raise

    async def _transact(self, connection: Connection, group: list[Job[Any]]) -> None:
        number: str | None = None
        sent = False
        try:
            async with connection.pipeline():
                transaction = Transaction(connection, self._sql, self._blobs)
                number = await self._begin(transaction, group)
                for job in group:
                    await self._work(transaction, job, alone=len(group) == 1)
                sent = True
                await transaction.send("commit")
        except BaseException as error:
            if sent and not (isinstance(error, FAILURES) and not is_lost(error)):
                raise _CommitLost(number) from error
            raise

    async def _begin(self, transaction: Transaction, group: list[Job[Any]]) -> str:
        location = self._connections.location
        await transaction.send("begin_write")
        if location.pooled:
            limits = (milliseconds(STATEMENT_SECONDS), milliseconds(IDLE_SECONDS))
            await transaction.send("limit_time", limits)
        kind = "enter_collecting" if group[0].collects else "enter_writing"
        ((number, *_),) = await transaction.query(kind, (location.lock,))
        return str(number)

    async def _work(self, transaction: Transaction, job: Job[Any], *, alone: bool) -> None:
        transaction.wrote = False
        try:
            job.result = await transaction.run(job.plan())
        except HoldfastError as raised:
            error = _uncommitted(raised)
            if alone:
                raise error from raised
            if transaction.wrote:
                raise _Spoiled from error
            job.error = error

    async def _settle(self, group: list[Job[Any]], lost: _CommitLost) -> bool:
        """Find out what a lost commit did; tell whether the group is settled.

        Where the transaction was aborted it is not: nothing was written, and it may be tried again.
        A server that crashed may give the number of a lost transaction to another, so that number
        alone proves no commit: what the group wrote is looked for too.
        """
        status = None if lost.number is None else await self._status(lost.number)
        if status == "aborted":
            return False
        found: list[bool] = []
        if status == "committed":
            with suppress(*FAILURES, HoldfastError):
                found = await self._find(group)
        if False in found:
            return False
        for job in group:
            if not found and job.error is None:
                job.error = OutcomeUnknown(
                    f"the connection to {self._connections.where!r} was lost during a commit "
                    f"({lost.__cause__}) and its outcome is unknown; read again before anything "
                    "else",
                    session=job.session,
                )
                job.error.__cause__ = lost.__cause__
        return True

    async def _find(self, group: list[Job[Any]]) -> list[bool]:
        """Tell of each job that can be looked for whether what it wrote is there."""
        async with self._connections.connection() as connection:
            transaction = Transaction(connection, self._sql, self._blobs)
            return [
                await transaction.run(job.stored(job.result))
                for job in group
                if job.stored is not None and job.error is None
            ]

    async def _status(self, number: str) -> str | None:
        """Return what became of a transaction, None where the server cannot tell in time."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + UNKNOWN_SECONDS
        while loop.time() < deadline:
            with suppress(*FAILURES):
                async with self._connections.connection() as connection:
                    statement = self._sql["transaction_status"]
                    cursor = await connection.execute(statement, (number,))
                    found = await cursor.fetchone()
                    if found is not None and found[0] != "in progress":
                        return None if found[0] is None else str(found[0])
            await asyncio.sleep(0.1)
        return None
