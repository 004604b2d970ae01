"""A worker: drives whatever has work in a store, beside any number of others.

The sweep finds all work (`work_due`): what waits in an inbox, deadlines that have passed, turns
whose driver died. Hints of the store only make it come sooner, so one that is lost costs a pause
and no work. The lease decides who drives; what another worker took is not listed any more.

Where the store can hand out work (`Distributing`), its jobs take the place of hints: each wakes one
session on one worker, the sweep is a job too and leaves jobs for what it finds, and every worker
still sweeps by itself now and then, should all jobs be lost.

A session that a drive did not move is left alone for a while, longer each time, until its log
moves.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from holdfast.core.errors import HoldfastError, InvalidSettings
from holdfast.core.events import now
from holdfast.runtime import blueprint
from holdfast.runtime.answers import expire_due
from holdfast.runtime.runtime import Runtime
from holdfast.stores.port import Distributing, DueSession, WorkQueue

logger = logging.getLogger("holdfast.worker")

SWEEP_SECONDS = 1.0
LEAST_SECONDS = 0.05
SWEEP_PAGE = 200
LEAST_JOB_SECONDS = 5.0
"""The least time between two sweeps that are jobs: one of all workers makes each."""
OWN_SWEEPS = 10.0
"""How many times rarer a worker sweeps by itself where jobs tell it of work."""
LEAST_PAUSE, LONGEST_PAUSE = 0.5, 60.0


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """What a worker does: drives under way and done, and whether the last sweep was answered."""

    driving: int
    driven: int
    sweeps: int
    healthy: bool


@dataclass(slots=True)
class _Pause:
    """A session that did not move: at which event it stood, and until when it is left alone."""

    seq: int
    until: float
    seconds: float


class Worker:
    """Drives the sessions of a runtime's store, `concurrency` of them at once."""

    def __init__(
        self,
        runtime: Runtime,
        *,
        concurrency: int = 8,
        model_concurrency: int | None = None,
        sweep_seconds: float = SWEEP_SECONDS,
    ) -> None:
        if concurrency < 1 or sweep_seconds <= 0:
            raise InvalidSettings("a worker drives at least one session and sweeps after a pause")
        if model_concurrency is not None and model_concurrency < 1:
            raise InvalidSettings("a worker drives at least one session of a model at once")
        self._model_concurrency = model_concurrency
        self._models: dict[str, str] = {}
        self._runtime = runtime
        self._store = runtime.store
        self._concurrency = concurrency
        self._sweep_seconds = sweep_seconds
        self._driving: dict[str, asyncio.Task[None]] = {}
        self._pauses: dict[str, _Pause] = {}
        self._look = asyncio.Event()
        self._has_jobs = self._owes = False
        self._driven = self._sweeps = 0
        self._healthy = True

    @property
    def status(self) -> WorkerStatus:
        """Return what this worker does now."""
        return WorkerStatus(len(self._driving), self._driven, self._sweeps, self._healthy)

    async def run(self, stop: asyncio.Event, *, drain_seconds: float = 30.0) -> None:
        """Drive what is due until asked to stop; then finish what is under way.

        What takes longer than the time for it is broken off and recorded: the runtime gives its
        lease back when it is closed, and another worker goes on with the turn.
        """
        queue = self._store.work_queue() if isinstance(self._store, Distributing) else None
        if queue is None:
            await self._follow_hints(stop)
        else:
            self._has_jobs = True
            await self._follow_jobs(queue, stop, drain_seconds)
        logger.info("draining: %d sessions are driven here", len(self._driving))
        if self._driving:
            await asyncio.wait(self._driving.values(), timeout=drain_seconds)

    async def _follow_hints(self, stop: asyncio.Event) -> None:
        async with self._hints():
            while not stop.is_set():
                self._look.clear()
                await self._sweep()
                # Hints come with every event of every session: some go into one sweep.
                await self._wait([stop], LEAST_SECONDS)
                await self._wait([stop, self._look], self._sweep_seconds)

    async def _follow_jobs(
        self, queue: WorkQueue, stop: asyncio.Event, drain_seconds: float
    ) -> None:
        serving = asyncio.ensure_future(
            queue.serve(
                self._wake,
                self._leave_jobs,
                concurrency=self._concurrency,
                sweep_seconds=max(self._sweep_seconds, LEAST_JOB_SECONDS),
                stop=stop,
                drain_seconds=drain_seconds,
            )
        )
        try:
            while not stop.is_set():
                self._look.clear()
                await self._sweep()
                await self._wait([stop, self._look], self._sweep_seconds * OWN_SWEEPS)
        finally:
            await serving

    async def _wake(self, session_id: str) -> None:
        """Drive a session that a job tells of; the job lasts as long as the drive."""
        await expire_due(self._store, session_id)
        if session_id in self._driving or await self._is_paused(session_id):
            return
        if len(self._driving) >= self._concurrency or not await self._has_room(session_id):
            self._owes = True  # the end of a drive looks for it; others find it by the next sweep
            return
        await asyncio.shield(self._begin(session_id))

    async def _leave_jobs(self) -> None:
        """Leave jobs for whatever is due, for any worker to take up."""
        assert isinstance(self._store, Distributing)
        await expire_due(self._store)
        cursor = None
        while True:
            page = await self._store.work_due(now(), limit=SWEEP_PAGE, cursor=cursor)
            due = [found.session for found in page.sessions if found.session not in self._driving]
            due = [session for session in due if not await self._is_paused(session)]
            if due:
                await self._store.wake(due)
            cursor = page.cursor
            if cursor is None:
                self._healthy, self._sweeps = True, self._sweeps + 1
                return

    async def drain(self) -> None:
        """Drive until nothing is due any more; for tests and one-off runs."""
        while await self._sweep() or self._driving:
            if self._driving:
                await asyncio.wait(self._driving.values(), return_when=asyncio.FIRST_COMPLETED)

    async def _sweep(self) -> bool:
        """Take up what is due; tell whether a drive was begun."""
        try:
            await expire_due(self._store)
            return await self._take_up()
        except HoldfastError as error:
            self._healthy = False
            logger.warning("the sweep failed: %s", error)
            return False

    async def _take_up(self) -> bool:
        cursor = None
        taken = False
        while True:
            page = await self._store.work_due(now(), limit=SWEEP_PAGE, cursor=cursor)
            for due in page.sessions:
                if len(self._driving) >= self._concurrency:
                    self._healthy, self._sweeps = True, self._sweeps + 1
                    return taken  # the end of a drive looks again
                taken = await self._start(due) or taken
            cursor = page.cursor
            if cursor is None:
                self._healthy, self._sweeps = True, self._sweeps + 1
                return taken

    async def _start(self, due: DueSession) -> bool:
        """Drive a session in the background, if it can be driven here and is not left alone."""
        if due.session in self._driving or await self._is_paused(due.session):
            return False
        if not await self._has_room(due.session) or due.session in self._driving:
            return False
        self._begin(due.session)
        return True

    def _begin(self, session_id: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(self._drive(session_id))
        self._driving[session_id] = task
        return task

    async def _is_paused(self, session_id: str) -> bool:
        """Tell whether a session is left alone: it did not move when it was driven."""
        pause = self._pauses.get(session_id)
        if pause is None or asyncio.get_running_loop().time() >= pause.until:
            return False
        return (await self._store.load_state(session_id)).seq == pause.seq

    async def _has_room(self, session_id: str) -> bool:
        """Tell whether the session's model may serve one more here."""
        if self._model_concurrency is None:
            return True
        configured = (await self._store.load_state(session_id)).configured
        model = (await blueprint.load(self._store, session_id, configured)).settings.model
        busy = sum(
            1 for other, name in self._models.items() if name == model and other in self._driving
        )
        if busy >= self._model_concurrency:
            return False
        self._models[session_id] = model
        return True

    async def _drive(self, session_id: str) -> None:
        try:
            state = await self._store.load_state(session_id)
            before = state.seq
            claims = self._runtime.claims
            if self._runtime.engine.drives(state.kind, state.agent):
                await claims.drive(session_id)
            elif await self._has_answers(session_id):
                await claims.admit(session_id)
            after = (await self._store.load_state(session_id)).seq
            self._driven += 1
            self._note(session_id, before, after)
        except HoldfastError as error:
            logger.warning("session %s was not driven: %s", session_id, error)
            self._note(session_id, 0, 0)
        finally:
            del self._driving[session_id]
            self._models.pop(session_id, None)
            if self._owes or not self._has_jobs:
                self._owes = False
                self._look.set()

    async def _has_answers(self, session_id: str) -> bool:
        """Tell whether something in the inbox can be admitted without the session's agent."""
        items = await self._store.list_inbox(session_id)
        return any(item.kind != "message" for item in items)

    def _note(self, session_id: str, before: int, after: int) -> None:
        if after > before:
            self._pauses.pop(session_id, None)
            return
        last = self._pauses.get(session_id)
        seconds = LEAST_PAUSE if last is None else min(last.seconds * 2, LONGEST_PAUSE)
        until = asyncio.get_running_loop().time() + seconds
        self._pauses[session_id] = _Pause(after, until, seconds)

    @staticmethod
    async def _wait(events: list[asyncio.Event], seconds: float) -> None:
        """Wait for the first of some events, or for so long."""
        waits = [asyncio.ensure_future(event.wait()) for event in events]
        try:
            await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    @asynccontextmanager
    async def _hints(self) -> AsyncIterator[None]:
        """Look at once when a session moves."""

        async def follow() -> None:
            async with self._store.subscribe_all() as hints:
                async for _ in hints:
                    self._look.set()

        following = asyncio.ensure_future(follow())
        try:
            yield
        finally:
            following.cancel()
            with suppress(asyncio.CancelledError):
                await following
