"""Notices between processes: LISTEN and NOTIFY say when to look, never what there is to see.

A commit takes no part in them: NOTIFY inside a transaction would make all commits of the database
wait for each other. One notifier per process says afterwards that something moved, once for all
commits of the last moment. Who hears it looks at the rows, as it does anyway after a while; so a
notice that is lost delays a look and hides nothing. Behind a transaction pooler nobody can listen:
there the looks follow each other quickly.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from collections.abc import Iterable
from contextlib import suppress

from holdfast.stores.postgres.connections import Connections
from holdfast.stores.postgres.failures import FAILURES
from holdfast.stores.postgres.jobs import queue_of
from holdfast.stores.postgres.location import Location

logger = logging.getLogger("holdfast.stores")

LOOK_SECONDS = 1.0
"""How long a listener goes without a look where it hears nothing."""
PAUSE_SECONDS = 0.01
"""The least time between two notices of a process."""
LONGEST_PAUSE = 10.0


def channel_of(location: Location) -> str:
    """Return the channel of a store; channels belong to a database, not to a schema."""
    return f"holdfast_{location.lock & (2**64 - 1):016x}"


class Notices:
    """The notifier and the listener of one handle; both live in the loop of the connections."""

    def __init__(self, connections: Connections, statements: dict[str, str]) -> None:
        self._connections = connections
        self._sql = statements
        self._tenants: set[str] = set()
        self._channel = channel_of(connections.location)
        self._heard = threading.Event()
        self.is_listening = False
        self._listener: asyncio.Task[None] | None = None
        self._notifier: asyncio.Task[None] | None = None
        self._is_due = False
        self._closed = False

    def say(self, tenants: Iterable[str]) -> None:
        """Tell other processes that something moved; called in the loop, waits for nothing.

        Workers of the tenants are told of jobs, if some wait.
        """
        self._is_due = True
        self._tenants.update(tenants)
        if self._notifier is None and not self._closed:
            self._notifier = asyncio.get_running_loop().create_task(self._notify())

    def wait(self) -> bool:
        """Wait, from a thread, until a look is due; False where nobody listens and none is known.

        The notice is taken before the look: what comes during it makes another one.
        """
        if self._connections.location.pooled or self._closed:
            return False
        if self._listener is None:
            with suppress(RuntimeError):
                self._connections.loop.call_soon_threadsafe(self._start)
        if not self.is_listening:
            return False
        heard = self._heard.wait(LOOK_SECONDS)
        self._heard.clear()
        return heard

    def close(self) -> None:
        """End both; called in the loop."""
        self._closed = True
        for task in (self._listener, self._notifier):
            if task is not None:
                task.cancel()
        self._heard.set()

    def _start(self) -> None:
        if self._listener is None and not self._closed:
            self._listener = asyncio.get_running_loop().create_task(self._listen())

    async def _notify(self) -> None:
        try:
            while self._is_due:
                self._is_due = False
                with suppress(*FAILURES):  # a notice that is lost is made up for by the next look
                    schema = self._connections.location.schema
                    queues = [queue_of(schema, tenant) for tenant in self._tenants]
                    self._tenants.clear()
                    async with self._connections.connection() as connection, connection.pipeline():
                        await connection.execute("SELECT pg_notify(%s, '')", (self._channel,))
                        await connection.execute(self._sql["notify_queues"], (queues,))
                await asyncio.sleep(PAUSE_SECONDS)
        finally:
            self._notifier = None

    async def _listen(self) -> None:
        pause = 0.1
        while not self._closed:
            try:
                connection = await self._connections.connect()
                try:
                    await connection.execute(f'LISTEN "{self._channel}"'.encode())
                    self.is_listening, pause = True, 0.1
                    self._heard.set()  # what moved before this was not heard
                    async for _ in connection.notifies():
                        self._heard.set()
                finally:
                    self.is_listening = False
                    self._heard.set()
                    await connection.close()
            except FAILURES as error:
                logger.info("listening to %r ended: %s", self._connections.where, error)
            await asyncio.sleep(pause * random.uniform(0.5, 1))
            pause = min(pause * 2, LONGEST_PAUSE)
