"""The writer: one thread, one connection, and group commit.

Whatever queued while the previous commit was syncing goes into the next one; there is no timer, so
a lone append waits for nobody. A job that is refused leaves the rest of its group untouched: either
it is refused before it writes, or it has a savepoint of its own. Results reach their event loops
only after the commit. Every submitted job is settled, by the thread's own death if need be.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Callable, Iterable
from typing import Any, Generic, Protocol, TypeVar

import apsw

from holdfast.core.errors import HoldfastError, NothingWritten, OutcomeUnknown, StoreFailed
from holdfast.stores.sqlite.database import SQL, Database

logger = logging.getLogger("holdfast.stores")

T = TypeVar("T")

GROUP_JOBS = 512


class Settled(asyncio.Future[T]):
    """The outcome of a submitted job, which comes whatever happens to the one who waits for it.

    It cannot be cancelled. A task that is cancelled while it waits here gets its CancelledError,
    as asyncio has it for such a future, at the moment the outcome stands.
    """

    def cancel(self, msg: Any = None) -> bool:
        """Refuse: the job is on its way."""
        return False


class Prepared(Protocol):
    """What a job has checked and computed before it writes."""

    @property
    def certain(self) -> bool:
        """Tell whether nothing but the storage can refuse the job from here on."""
        ...


class Job(Generic[T]):
    """Work on its way through the writer.

    `work` is its part of a transaction, and may be run again after a rollback. A job that has
    `prepare` is checked and computed there, without a write, and `work` gets what it returned: a
    group prepares all such jobs and then writes them all, which keeps either code in the
    processor's cache and takes a quarter off their cost.
    `settled` is called in the writer after the commit with the result. `stored` tells, on a later
    look at the database, whether the work was committed; where it cannot tell it is None.
    """

    __slots__ = (
        "done",
        "error",
        "future",
        "loop",
        "prepare",
        "prepared",
        "result",
        "session",
        "settled",
        "stored",
        "work",
    )

    def __init__(
        self,
        work: Callable[..., T],
        session: str | None = None,
        settled: Callable[[T], None] | None = None,
        stored: Callable[[apsw.Cursor, T], bool] | None = None,
        prepare: Callable[[apsw.Cursor], Prepared] | None = None,
    ) -> None:
        self.work = work
        self.prepare = prepare
        self.prepared: Prepared | None = None
        self.session = session
        self.settled = settled
        self.stored = stored
        self.result: T | None = None
        self.error: BaseException | None = None
        self.loop: asyncio.AbstractEventLoop | None = None
        self.future: Settled[T] | None = None
        self.done: threading.Event | None = None


class Writer:
    """Runs jobs in order, durably."""

    def __init__(self, database: Database, connection: apsw.Connection) -> None:
        self._database = database
        self._connection = connection
        self._cursor = connection.cursor()
        self._queue: queue.SimpleQueue[Job[Any] | None] = queue.SimpleQueue()
        self._closed = False
        self._dead: BaseException | None = None
        self._gate = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="holdfast-writer", daemon=True)
        self._thread.start()

    async def run(self, job: Job[T]) -> T:
        """Run a job; once submitted it is settled even if the caller is cancelled."""
        job.loop = asyncio.get_running_loop()
        job.future = Settled(loop=job.loop)
        self._submit(job)
        return await job.future

    def run_blocking(self, job: Job[T]) -> T:
        """Run a job from a thread."""
        job.done = threading.Event()
        self._submit(job)
        job.done.wait()
        if job.error is not None:
            raise job.error
        return job.result  # type: ignore[return-value]

    def close(self) -> None:
        """Finish what was submitted and end the thread."""
        with self._gate:
            if not self._closed:
                self._closed = True
                self._queue.put(None)
        self._thread.join()
        self._database.close(self._connection)

    def _submit(self, job: Job[Any]) -> None:
        with self._gate:
            if self._dead is not None:
                raise self._died(NothingWritten, job)
            if self._closed:
                raise NothingWritten(
                    f"this handle on {str(self._database.path)!r} is closed; open the store again"
                )
            self._queue.put(job)

    def _run(self) -> None:
        jobs: list[Job[Any]] = []
        try:
            while self._take(jobs):
                self._commit(jobs)
                self._deliver(jobs)
                jobs.clear()
        except BaseException as error:
            logger.exception("the writer of %r died", str(self._database.path))
            self._die(jobs, error)

    def _take(self, jobs: list[Job[Any]]) -> bool:
        """Wait for the next group; tell whether there is one."""
        item = self._queue.get()
        while item is not None:
            jobs.append(item)
            if len(jobs) == GROUP_JOBS:
                break
            try:
                item = self._queue.get_nowait()
            except queue.Empty:
                break
        else:
            self._queue.put(None)  # the end is seen again once this group is settled
        return bool(jobs)

    def _die(self, jobs: list[Job[Any]], error: BaseException) -> None:
        """Let in no further job and fail all that are on their way."""
        with self._gate:
            self._dead = error
        for job in jobs:
            job.error = self._died(OutcomeUnknown, job)
        while not self._queue.empty():
            queued = self._queue.get()
            if queued is not None:
                queued.error = self._died(NothingWritten, queued)
                jobs.append(queued)
        self._deliver(jobs)
        self._roll_back()

    def _died(self, kind: type[StoreFailed], job: Job[Any]) -> StoreFailed:
        failed = kind(
            f"the writer of this handle on {str(self._database.path)!r} died ({self._dead!r}); "
            "open the store again and read before anything else",
            session=job.session,
        )
        failed.__cause__ = self._dead
        return failed

    def _commit(self, jobs: list[Job[Any]]) -> None:
        """Commit a group; where storage fails under several jobs, each is tried alone."""
        try:
            self._cursor.execute(SQL["begin_write"])
            if len(jobs) == 1:
                self._prepare(jobs[0])
                self._work(jobs[0])
            else:
                self._work_all(jobs)
        except BaseException as error:
            self._roll_back()
            if len(jobs) == 1:
                jobs[0].error = self._named(error, jobs[0])
            else:
                for job in jobs:
                    job.error = None
                    self._commit([job])
            return
        try:
            self._cursor.execute(SQL["commit"])
        except BaseException as error:
            self._settle_failed_commit([job for job in jobs if job.error is None], error)
        for job in jobs:
            if job.error is None and job.settled is not None:
                try:
                    job.settled(job.result)
                except Exception:
                    logger.exception("what follows a commit failed; the commit stands")

    def _work_all(self, jobs: list[Job[Any]]) -> None:
        """Do the work of a group in order; neighbours that cannot meet are prepared together."""
        together: dict[str | None, Job[Any]] = {}
        for job in jobs:
            if job.prepare is None or job.session in together:
                self._work_together(together.values())
                together = {}
            if job.prepare is None:
                self._work_in_savepoint(job)
            else:
                together[job.session] = job
        self._work_together(together.values())

    def _work_together(self, jobs: Iterable[Job[Any]]) -> None:
        for job in jobs:
            try:
                self._prepare(job)
            except HoldfastError as error:
                job.error = error
        for job in jobs:
            if job.error is None and job.prepared is not None:
                if job.prepared.certain:
                    self._work(job)
                else:
                    self._work_in_savepoint(job)

    def _work_in_savepoint(self, job: Job[Any]) -> None:
        self._cursor.execute(SQL["savepoint"])
        try:
            self._work(job)
        except HoldfastError as error:
            self._cursor.execute(SQL["rollback_to"])
            job.error = error
        self._cursor.execute(SQL["release"])

    def _prepare(self, job: Job[Any]) -> None:
        if job.prepare is not None:
            job.prepared = job.prepare(self._cursor)

    def _work(self, job: Job[Any]) -> None:
        if job.prepare is None:
            job.result = job.work(self._cursor)
        else:
            job.result = job.work(job.prepared, self._cursor)

    def _roll_back(self) -> None:
        try:
            if self._connection.in_transaction:
                self._cursor.execute(SQL["rollback"])
        except apsw.Error:
            logger.warning("rolling back failed; the next transaction begins anew", exc_info=True)

    def _settle_failed_commit(self, jobs: list[Job[Any]], error: BaseException) -> None:
        """Find out what a failed commit did.

        A look alone proves nothing: the lost commit may still stand at the end of the write-ahead
        log and come back after a crash. So the look is part of a write that takes its place there;
        once that one is committed, what is not there is not there for good.
        """
        self._roll_back()
        try:
            self._cursor.execute(SQL["begin_write"])
            self._connection.pragma("user_version", self._connection.pragma("user_version"))
            found = [
                None if job.stored is None else job.stored(self._cursor, job.result) for job in jobs
            ]
            self._cursor.execute(SQL["commit"])
        except BaseException:
            self._roll_back()
            found = [None] * len(jobs)
        for job, stored in zip(jobs, found, strict=True):
            if stored:
                continue
            if stored is None:
                job.error = OutcomeUnknown(
                    f"the commit in {str(self._database.path)!r} failed ({error}) and its outcome "
                    "is unknown; read again before anything else",
                    session=job.session,
                )
                job.error.__cause__ = error
            else:
                job.error = self._named(error, job)

    def _named(self, error: BaseException, job: Job[Any]) -> BaseException:
        if not isinstance(error, apsw.Error | OSError):
            return error
        named = self._database.named(error, NothingWritten, "write", job.session)
        named.__cause__ = error
        return named

    def _deliver(self, jobs: list[Job[Any]]) -> None:
        by_loop: dict[asyncio.AbstractEventLoop, list[Job[Any]]] = {}
        for job in jobs:
            if job.loop is not None:
                by_loop.setdefault(job.loop, []).append(job)
            elif job.done is not None:
                job.done.set()
        for loop, group in by_loop.items():
            try:
                loop.call_soon_threadsafe(_resolve, group)
            except RuntimeError:
                logger.debug("a loop closed before its results arrived")


def _resolve(jobs: list[Job[Any]]) -> None:
    for job in jobs:
        future = job.future
        if future is None or future.done():
            continue
        if job.error is None:
            future.set_result(job.result)
        elif isinstance(job.error, StopIteration):
            # No future takes this one, and nobody after it would hear of his job.
            failed = StoreFailed(f"a write failed with {job.error!r}", session=job.session)
            failed.__cause__ = job.error
            future.set_exception(failed)
        else:
            future.set_exception(job.error)
