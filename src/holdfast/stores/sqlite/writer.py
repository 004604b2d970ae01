"""The writer: one thread, one connection, and group commit.

Whatever queued while the previous commit was syncing goes into the next one; there is no timer, so
a lone append waits for nobody. Each job of a group has a savepoint of its own, so that one that is
refused leaves the others untouched. Results reach their event loops only after the commit. Every
submitted job is settled, by the thread's own death if need be.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import apsw

from holdfast.core.errors import HoldfastError, NothingWritten, OutcomeUnknown, StoreFailed
from holdfast.stores.relational.delivery import Outcome, deliver, notice
from holdfast.stores.relational.plan import Job, Plan
from holdfast.stores.rows import closed_error
from holdfast.stores.sqlite.database import FAILURES, SQL, BusyWait, Database

logger = logging.getLogger("holdfast.stores")

T = TypeVar("T")

GROUP_JOBS = 512
WHOLE_JOBS = 16
"""A larger group is written in halves: while one syncs, the callers of the other go on."""


class Writer:
    """Runs jobs in order, durably."""

    def __init__(
        self,
        database: Database,
        connection: apsw.Connection,
        run_plan: Callable[[apsw.Cursor, Plan[Any]], Any],
        committed: Callable[[Sequence[Job[Any]]], None],
    ) -> None:
        """Start the thread; `committed` is called there with each group, before its callers."""
        self._database = database
        self._run_plan = run_plan
        self._committed = committed
        self._connection = connection
        self._cursor = connection.cursor()
        self.busy_wait = BusyWait()
        connection.set_busy_handler(self.busy_wait)
        self._queue: queue.SimpleQueue[Job[Any] | None] = queue.SimpleQueue()
        self._delivered = 0  # size of the last group: its callers may come back
        self._closed = False
        self._lock = threading.Lock()
        self._refuse: Callable[[Job[Any]], HoldfastError] | None = None
        if database.read_only:
            self._refuse = lambda job: database.read_only_error(job.session)
        self._thread = threading.Thread(target=self._run, name="holdfast-writer", daemon=True)
        self._thread.start()

    def run(self, job: Job[T]) -> Outcome[T]:
        """Run a job; once submitted it is settled even if the caller is cancelled."""
        outcome: Outcome[T] = Outcome(loop=asyncio.get_running_loop())
        job.outcome = outcome
        self._submit(job)
        return outcome

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
        with self._lock:
            if not self._closed:
                self._closed = True
                self._refuse = lambda _: closed_error(str(self._database.path))
                self._queue.put(None)
        self._thread.join()
        self._database.close(self._connection)

    def _submit(self, job: Job[Any]) -> None:
        with self._lock:
            if self._refuse is not None:
                raise self._refuse(job)
            self._queue.put(job)

    def _run(self) -> None:
        jobs: list[Job[Any]] = []
        try:
            while self._take(jobs):
                self._commit(jobs)
                deliver(jobs)
                self._delivered = len(jobs)
                jobs = []  # nothing of them is kept while there is nothing to do
        except BaseException as error:
            logger.exception("the writer of %r died", str(self._database.path))
            self._die(jobs, error)

    def _take(self, jobs: list[Job[Any]]) -> bool:
        """Wait for the next group; tell whether there is one."""
        item = self._queue.get()
        waiting = 1 + self._queue.qsize()  # nobody else takes from there
        # The callers of the last group prepare their next jobs now. Taking half of all that are
        # under way lets the two halves alternate: one is prepared while the other syncs.
        half = (waiting + self._delivered + 1) // 2
        most = min(waiting, GROUP_JOBS, max(WHOLE_JOBS, half))
        while item is not None:
            jobs.append(item)
            if len(jobs) == most:
                return True
            item = self._queue.get()
        self._queue.put(None)  # the end is seen again once this group is settled
        return bool(jobs)

    def _die(self, jobs: list[Job[Any]], error: BaseException) -> None:
        """Let in no further job and fail all that are on their way."""

        def died(kind: type[StoreFailed], job: Job[Any]) -> StoreFailed:
            failed = kind(
                f"the writer of this handle on {str(self._database.path)!r} died ({error!r}); "
                "open the store again and read before anything else",
                session=job.session,
            )
            failed.__cause__ = error
            return failed

        with self._lock:
            self._refuse = partial(died, NothingWritten)
        for job in jobs:
            job.error = died(OutcomeUnknown, job)
        while not self._queue.empty():
            queued = self._queue.get()
            if queued is not None:
                queued.error = died(NothingWritten, queued)
                jobs.append(queued)
        deliver(jobs)
        self._roll_back()

    def _commit(self, jobs: list[Job[Any]]) -> None:
        """Commit a group and what follows from it in this process."""
        self._write(jobs)
        for job in jobs:
            if job.settled is not None and job.error is None:
                notice(job.settled, job.result)
        notice(self._committed, jobs)
        if any(job.scrubs and job.error is None for job in jobs):
            # Erased bytes may be left in the write-ahead log.
            self._database.truncate_log(self._connection, self.busy_wait)

    def _write(self, jobs: list[Job[Any]]) -> None:
        """Write a group; where storage fails under several jobs, each is tried alone."""
        self._roll_back()  # a transaction that could not be rolled back before
        try:
            self._cursor.execute(SQL["begin_write"])
            for job in jobs:
                self._work(job, alone=len(jobs) == 1)
        except BaseException as error:
            self._roll_back()
            if len(jobs) == 1:
                jobs[0].error = self._named(error, jobs[0])
                return
            for job in jobs:
                job.error = None
                self._write([job])
            return
        try:
            self._cursor.execute(SQL["commit"])
        except BaseException as error:
            self._settle_failed_commit([job for job in jobs if job.error is None], error)

    def _work(self, job: Job[Any], *, alone: bool) -> None:
        if alone:
            job.result = self._run_plan(self._cursor, job.plan())
            return
        self._cursor.execute(SQL["savepoint"])
        try:
            job.result = self._run_plan(self._cursor, job.plan())
        except HoldfastError as error:
            self._cursor.execute(SQL["rollback_to"])
            job.error = error
        self._cursor.execute(SQL["release"])

    def _roll_back(self) -> None:
        try:
            if self._connection.in_transaction:
                self._cursor.execute(SQL["rollback"])
        except apsw.Error:
            logger.warning("rolling back failed; the next transaction begins anew", exc_info=True)

    def _settle_failed_commit(self, jobs: list[Job[Any]], error: BaseException) -> None:
        """Find out what a failed commit did.

        A look alone proves nothing: the lost commit may still be at the end of the write-ahead log
        and come back after a crash. So the look is part of a write that takes its place there;
        once that one is committed, what is not there is not there for good.
        """
        self._roll_back()
        try:
            self._cursor.execute(SQL["begin_write"])
            self._connection.pragma("user_version", self._connection.pragma("user_version"))
            found = [
                None if job.stored is None else self._run_plan(self._cursor, job.stored(job.result))
                for job in jobs
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
        if not isinstance(error, FAILURES):
            return error
        named = self._database.named(error, NothingWritten, "write", job.session)
        named.__cause__ = error
        return named
