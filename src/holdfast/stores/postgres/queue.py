"""The queue of a store: Procrastinate hands out the work of its sessions to any number of workers.

A job is a hint that a session may have work; the lease decides who drives it. Appends leave jobs in
their own transaction, one for each session and cause; deadlines are jobs that are scheduled; the
sweep is a periodic one that finds whatever no job tells of, jobs of dead workers included.

The worker of Procrastinate gives up when the database is away for long. It is started anew, with
growing pauses.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import psycopg
from procrastinate import App, PsycopgConnector, exceptions
from procrastinate.jobs import Job as QueuedJob
from procrastinate.jobs import Status
from procrastinate.worker import Worker

from holdfast.stores.postgres.jobs import SWEEP, WAKE, queue_of
from holdfast.stores.postgres.location import Location

logger = logging.getLogger("holdfast.worker")

POLL_SECONDS = 1.0
"""How often jobs are looked for that no notice told of, such as those whose time has come."""
BEAT_SECONDS = 5.0
STALLED_SECONDS = 30.0
LONGEST_PAUSE = 30.0
CONNECTIONS = 4
UTC_SECONDS = 60


class PostgresQueue:
    """Jobs of one tenant's sessions."""

    def __init__(self, location: Location, tenant: str) -> None:
        self._location = location
        self._queue = queue_of(location.schema, tenant)

    async def serve(
        self,
        wake: Callable[[str], Awaitable[None]],
        sweep: Callable[[], Awaitable[None]],
        *,
        concurrency: int,
        sweep_seconds: float,
        stop: asyncio.Event,
        drain_seconds: float,
    ) -> None:
        """Work jobs until asked to stop, then wait for those under way."""
        pause = 0.5
        while not stop.is_set():
            started = asyncio.get_running_loop().time()
            try:
                app = self._app(wake, sweep, sweep_seconds)
                await self._serve(app, concurrency, stop, drain_seconds)
            except Exception as error:
                logger.warning("the queue of %r failed: %s", self._location.shown, error)
            if asyncio.get_running_loop().time() - started > 60:
                pause = 0.5
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), pause * random.uniform(0.5, 1))
            pause = min(pause * 2, LONGEST_PAUSE)

    def _app(
        self,
        wake: Callable[[str], Awaitable[None]],
        sweep: Callable[[], Awaitable[None]],
        sweep_seconds: float,
    ) -> App:
        options = f"-c search_path={self._location.schema}"
        connector = PsycopgConnector(
            conninfo=self._location.conninfo,
            kwargs={"options": options, "application_name": "holdfast worker"},
            min_size=1,
            max_size=CONNECTIONS,
            timeout=10.0,
        )
        app = App(connector=connector)

        @app.task(name=WAKE, queue=self._queue)
        async def wake_task(session: str) -> None:
            await wake(session)

        seconds = min(max(round(sweep_seconds), 1), UTC_SECONDS - 1)

        @app.periodic(cron=f"* * * * * */{seconds}", periodic_id=self._queue)
        @app.task(name=SWEEP, queue=self._queue, queueing_lock=f"sweep {self._queue}")
        async def sweep_task(timestamp: int) -> None:
            await self._rescue(app)
            await sweep()

        return app

    async def _serve(
        self, app: App, concurrency: int, stop: asyncio.Event, drain_seconds: float
    ) -> None:
        async with app.open_async():
            worker: Any = Worker(
                app,
                queues=[self._queue],
                name=None,
                concurrency=concurrency,
                fetch_job_polling_interval=POLL_SECONDS,
                shutdown_graceful_timeout=drain_seconds,
                delete_jobs="always",
                install_signal_handlers=False,
                update_heartbeat_interval=BEAT_SECONDS,
                stalled_worker_timeout=STALLED_SECONDS,
            )
            running = asyncio.ensure_future(worker.run())
            stopping = asyncio.ensure_future(stop.wait())
            try:
                await asyncio.wait([running, stopping], return_when=asyncio.FIRST_COMPLETED)
                if not running.done():
                    worker.stop()
                await running
            finally:
                stopping.cancel()

    async def _rescue(self, app: App) -> None:
        """Hand jobs of dead workers out again; one whose like is waiting already just ends."""
        manager = app.job_manager
        stalled = await manager.get_stalled_jobs(
            queue=self._queue, seconds_since_heartbeat=STALLED_SECONDS
        )
        for job in stalled:
            logger.info("job %s of a worker that is gone is handed out again", job.id)
            await _retry(manager, job)
        await manager.prune_stalled_workers(STALLED_SECONDS)


async def _retry(manager: Any, job: QueuedJob) -> None:
    try:
        await manager.retry_job(job)
    except (exceptions.ConnectorException, psycopg.Error):
        with suppress(exceptions.ConnectorException):
            await manager.finish_job(job=job, status=Status.FAILED, delete_job=True)
