"""The writer: one thread, one connection, and group commit.

Whatever queued while the previous commit was syncing goes into the next one; there is no timer, so
a lone append waits for nobody. Where many are on their way they go in two halves that take turns:
while one is written and synced, the callers of the other prepare their next writes. What was
foreseen is written by one statement; where something is not as it was thought, or is more than
that, jobs are done one by one, each with a savepoint of its own, so that one that is refused leaves
the rest of its group untouched. Results reach their event loops only after the commit. Every
submitted job is settled, by the thread's own death if need be.

The interpreter is what the writer and the event loops have to share. A loop that sleeps takes some
time to wake; what the writer does until its next statement runs should take less, or the loop would
have to wait for the interpreter and be woken a second time.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Callable, Sequence
from contextvars import Context
from functools import partial
from typing import Any, Generic, TypeVar

import apsw
import msgspec

from holdfast.core.errors import HoldfastError, NothingWritten, OutcomeUnknown, StoreFailed
from holdfast.stores.bell import Bell
from holdfast.stores.rows import closed_error
from holdfast.stores.sqlite.database import FAILURES, SQL, Database, Patience
from holdfast.stores.sqlite.foreseen import MOST_VALUES, Foreseen

logger = logging.getLogger("holdfast.stores")

T = TypeVar("T")

Realize = Callable[[apsw.Cursor, Sequence[Foreseen]], None]
"""Does what was foreseen; ConstraintError, and nothing at all, where something is not so."""

GROUP_JOBS = 512
WHOLE_JOBS = 16
"""A larger group is written in halves: while one syncs, those of the other go on."""

_BEFORE_COMMIT = frozenset(
    {
        apsw.SQLITE_IOERR_READ,
        apsw.SQLITE_IOERR_SHORT_READ,
        apsw.SQLITE_IOERR_LOCK,
        apsw.SQLITE_IOERR_SHMOPEN,
        apsw.SQLITE_IOERR_SHMLOCK,
    }
)
"""Failures that end a statement before it commits; others may come after."""


class Outcome(asyncio.Future[T]):
    """What becomes of a job, whatever happens to the one who waits for it.

    It cannot be cancelled. A task that is cancelled while it waits here gets its CancelledError,
    as asyncio has it for such a future, at the moment the outcome stands. And the task goes on at
    that moment, inside the callback that hears of it, not in a later pass of the event loop: a lone
    append takes a twentieth less.
    """

    _goes_on: Callable[[], object] | None = None

    def cancel(self, msg: Any = None) -> bool:
        """Refuse: the job is on its way."""
        return False

    def add_done_callback(
        self, fn: Callable[[Outcome[T]], object], *, context: Context | None = None
    ) -> None:
        """Keep what lets the task go on that waits here; only tasks pass their context."""
        if self._goes_on is not None or self.done() or context is None:
            super().add_done_callback(fn, context=context)
        else:
            self._goes_on = partial(context.run, fn, self)

    def tell(self, job: Job[T]) -> None:
        """Take a job's outcome and let the one who waits go on."""
        if job.error is None:
            self.set_result(job.result)  # type: ignore[arg-type]
        elif isinstance(job.error, StopIteration):
            # No future takes this one, and nobody after it would hear of his job.
            failed = StoreFailed(f"a write failed with {job.error!r}", session=job.session)
            failed.__cause__ = job.error
            self.set_exception(failed)
        else:
            self.set_exception(job.error)
        goes_on = self._goes_on
        if goes_on is not None:
            self._goes_on = None
            goes_on()


class Job(msgspec.Struct, Generic[T], eq=False):
    """Work on its way through the writer.

    `work` is its part of a transaction, and may be run again after a rollback. What is `foreseen`
    is tried first: the same work, computed already, which counts where all is as it was thought.
    `settled` is called in the writer after the commit with the result, and `moved` tells from it
    which session stands where now. `stored` tells, on a later look at the database, whether the
    work was committed; where it cannot tell it is None.
    """

    work: Callable[[apsw.Cursor], T]
    session: str | None = None
    settled: Callable[[T], None] | None = None
    stored: Callable[[apsw.Cursor, T], bool] | None = None
    foreseen: Foreseen | None = None
    moved: Callable[[T], tuple[str, int] | None] | None = None
    result: T | None = None
    error: BaseException | None = None
    bell: Bell[list[Job[Any]]] | None = None
    outcome: Outcome[T] | None = None
    done: threading.Event | None = None


class Writer:
    """Runs jobs in order, durably."""

    def __init__(
        self,
        database: Database,
        connection: apsw.Connection,
        realize: Realize,
        heed: Callable[[Sequence[Job[Any]]], None],
    ) -> None:
        """Start the thread; `heed` hears there of what is settled, before whoever asked for it."""
        self._database = database
        self._realize = realize
        self._heed = heed
        self._connection = connection
        self._cursor = connection.cursor()
        self.patience = Patience()
        connection.set_busy_handler(self.patience)
        self._queue: queue.SimpleQueue[Job[Any] | None] = queue.SimpleQueue()
        self._told = 0  # how many heard of the last group: they may come back
        self._closed = False
        self._gate = threading.Lock()
        self._refuse: Callable[[Job[Any]], HoldfastError] | None = None
        if database.read_only:
            self._refuse = lambda job: database.read_only_error(job.session)
        self._bells: dict[asyncio.AbstractEventLoop, Bell[list[Job[Any]]]] = {}
        self._thread = threading.Thread(target=self._run, name="holdfast-writer", daemon=True)
        self._thread.start()

    def run(self, job: Job[T]) -> Outcome[T]:
        """Run a job; once submitted it is settled even if the caller is cancelled."""
        loop = asyncio.get_running_loop()
        job.bell = self._bells.get(loop) or self._add_bell(loop)
        outcome: Outcome[T] = Outcome(loop=loop)
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
        with self._gate:
            if not self._closed:
                self._closed = True
                self._refuse = lambda _: closed_error(str(self._database.path))
                self._queue.put(None)
        self._thread.join()
        for bell in self._bells.values():
            bell.close()
        self._bells.clear()
        self._database.close(self._connection)

    def _add_bell(self, loop: asyncio.AbstractEventLoop) -> Bell[list[Job[Any]]]:
        with self._gate:
            for old in [old for old in self._bells if old.is_closed()]:
                self._bells.pop(old).close()
            bell = self._bells[loop] = Bell(loop, _resolve)
        return bell

    def _submit(self, job: Job[Any]) -> None:
        with self._gate:
            if self._refuse is not None:
                raise self._refuse(job)
            self._queue.put(job)

    def _run(self) -> None:
        jobs: list[Job[Any]] = []
        try:
            while self._take(jobs):
                self._commit(jobs)
                _deliver(jobs)
                self._told = len(jobs)
                jobs = []  # nothing of them is kept while there is nothing to do
        except BaseException as error:
            logger.exception("the writer of %r died", str(self._database.path))
            self._die(jobs, error)

    def _take(self, jobs: list[Job[Any]]) -> bool:
        """Wait for the next group; tell whether there is one."""
        item = self._queue.get()
        others = self._queue.qsize()  # nobody else takes from there
        if not others and item is not None:
            jobs.append(item)
            return True
        on_their_way = 1 + others + self._told
        most = min(max(WHOLE_JOBS, (on_their_way + 1) // 2), GROUP_JOBS, 1 + others)
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

        with self._gate:
            self._refuse = partial(died, NothingWritten)
        for job in jobs:
            job.error = died(OutcomeUnknown, job)
        while not self._queue.empty():
            queued = self._queue.get()
            if queued is not None:
                queued.error = died(NothingWritten, queued)
                jobs.append(queued)
        _deliver(jobs)
        self._roll_back()

    def _commit(self, jobs: list[Job[Any]]) -> None:
        """Commit a group: at once where all of it was foreseen, else job by job."""
        items = _all_foreseen(jobs)
        if items is None or not self._commit_at_once(jobs, items):
            self._commit_in_steps(jobs, as_foreseen=items is None)
        for job in jobs:
            if job.settled is not None and job.error is None:
                _call(job.settled, job.result)
        _call(self._heed, jobs)

    def _commit_at_once(self, jobs: list[Job[Any]], items: list[Foreseen]) -> bool:
        """Settle a group by one statement; tell whether all was as it was thought to be."""
        if self._connection.in_transaction:
            # Left by one that could not be rolled back: nothing would be committed in there.
            self._roll_back()
            if self._connection.in_transaction:
                return False
        before = self._connection.total_changes()
        try:
            self._realize(self._cursor, items)
            for job, item in zip(jobs, items, strict=True):
                job.result = item.done
        except apsw.BusyError as error:
            for job in jobs:
                job.error = self._named(error, job)
        except BaseException as error:
            if not _may_be_committed(error, self._connection.total_changes() != before):
                return False
            for job, item in zip(jobs, items, strict=True):
                # Only who can be looked for has something that counts before it is certain.
                job.result = None if job.stored is None else item.done
            self._settle_failed_commit(jobs, error)
        return True

    def _commit_in_steps(self, jobs: list[Job[Any]], *, as_foreseen: bool = False) -> None:
        """Commit a group; where storage fails under several jobs, each is tried alone."""
        try:
            self._cursor.execute(SQL["begin_write"])
            left = self._work_as_foreseen(jobs) if as_foreseen else jobs
            for job in left:
                self._work(job, alone=len(jobs) == 1)
        except BaseException as error:
            self._roll_back()
            if as_foreseen and isinstance(error, apsw.ConstraintError):
                for job in jobs:
                    job.error = None
                self._commit_in_steps(jobs)
            elif len(jobs) == 1:
                jobs[0].error = self._named(error, jobs[0])
            else:
                for job in jobs:
                    job.error = None
                    self._commit_in_steps([job])
            return
        try:
            self._cursor.execute(SQL["commit"])
        except BaseException as error:
            self._settle_failed_commit([job for job in jobs if job.error is None], error)

    def _work_as_foreseen(self, jobs: list[Job[Any]]) -> list[Job[Any]]:
        """Do what was foreseen; return the other jobs."""
        ahead = {job: job.foreseen for job in jobs if job.foreseen is not None}
        if ahead:
            self._realize(self._cursor, list(ahead.values()))
            for job, item in ahead.items():
                job.result = item.done
        return [job for job in jobs if job not in ahead]

    def _work(self, job: Job[Any], *, alone: bool) -> None:
        if alone:
            job.result = job.work(self._cursor)
            return
        self._cursor.execute(SQL["savepoint"])
        try:
            job.result = job.work(self._cursor)
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
        if not isinstance(error, FAILURES):
            return error
        named = self._database.named(error, NothingWritten, "write", job.session)
        named.__cause__ = error
        return named


def _all_foreseen(jobs: list[Job[Any]]) -> list[Foreseen] | None:
    """Return what was foreseen of a group, where that is all of it and fits into one statement."""
    items: list[Foreseen] = []
    values = 0
    for job in jobs:
        item = job.foreseen
        if item is None:
            return None
        items.append(item)
        values += len(item.values)
    return items if values <= MOST_VALUES else None


def _call(function: Callable[[T], None], about: T) -> None:
    try:
        function(about)
    except Exception:
        logger.exception("what follows a commit failed; the commit stands")


def _may_be_committed(error: BaseException, changed: bool) -> bool:
    """Tell whether a statement that commits by itself can have failed as late as that."""
    if isinstance(error, apsw.IOError):
        return getattr(error, "extendedresult", None) not in _BEFORE_COMMIT
    if isinstance(error, apsw.Error):
        return isinstance(error, apsw.FullError | apsw.NoMemError)
    return changed  # not where a value could not even be handed over


def _deliver(jobs: list[Job[Any]]) -> None:
    bell = jobs[0].bell if jobs else None
    for job in jobs:
        if job.bell is not bell:
            break
    else:
        if bell is not None:  # one loop waits for all of them, as it mostly is
            bell.ring(jobs)
            return
    by_bell: dict[Bell[list[Job[Any]]], list[Job[Any]]] = {}
    for job in jobs:
        if job.bell is not None:
            by_bell.setdefault(job.bell, []).append(job)
        elif job.done is not None:
            job.done.set()
    for bell, group in by_bell.items():
        bell.ring(group)


def _resolve(jobs: list[Job[Any]]) -> None:
    left = iter(jobs)
    try:
        for job in left:
            outcome = job.outcome
            if outcome is not None and not outcome.done():
                outcome.tell(job)
    except BaseException:
        if rest := list(left):  # a task ended the loop: should it run again, the others go on
            asyncio.get_running_loop().call_soon(_resolve, rest)
        raise
