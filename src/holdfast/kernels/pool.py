"""Who gets a worker process, and who gives one back.

Processes are what is scarce, not sessions: an idle session's worker is taken first, then that of a
cell which only waits for the host, the one that is cheapest to run again first. Those who need one
are served deepest first, so a tree of sessions can always finish from its leaves.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from typing import Protocol

from holdfast.core.errors import KernelError
from holdfast.kernels.fork_server import ForkServer
from holdfast.kernels.workers import Worker


class Parked(KernelError):
    """The worker was taken back; the cell is run again when there is an answer."""


class Holder(Protocol):
    """A session as the pool sees it."""

    worker: Worker | None

    @property
    def own_paths(self) -> bool:
        """Return whether it may read paths that other sessions may not."""
        ...

    @property
    def reclaim_cost(self) -> int | None:
        """Return what taking its worker back would cost; None if it is in use."""
        ...


class WorkerPool:
    """The worker processes of one kernel, within a number and a memory cap."""

    def __init__(
        self,
        *,
        max_workers: int,
        memory_bytes: int,
        max_idle: int,
        idle_seconds: float,
    ) -> None:
        self._max_workers = max_workers
        self._memory_bytes = memory_bytes
        self._max_idle = max_idle
        self._idle_seconds = idle_seconds
        self.fork_server = ForkServer()
        self._holders: list[Holder] = []
        # Since when, the longest first; one timer takes back what was idle for too long.
        self._idle: dict[Holder, float] = {}
        self._sweep: asyncio.TimerHandle | None = None
        self._waiting: list[tuple[int, int]] = []
        self._numbers = itertools.count()
        self._watchers: list[asyncio.Future[None]] = []
        self._closed = False
        self.peak = 0

    @property
    def size(self) -> int:
        """Return how many sessions hold a worker."""
        return len(self._holders)

    async def acquire(self, holder: Holder, depth: int) -> Worker:
        """Give a session its own worker, once there is room and nobody deeper waits."""
        if self._closed:
            raise KernelError("the kernel was closed; open another one")
        ticket = (-depth, next(self._numbers))
        heapq.heappush(self._waiting, ticket)
        try:
            while self._waiting[0] != ticket or not self._make_room():
                await self._changed()
            self._holders.append(holder)
            self.peak = max(self.peak, len(self._holders))
        finally:
            self._waiting.remove(ticket)
            heapq.heapify(self._waiting)
            self.notify()
        try:
            holder.worker = await self.fork_server.spawn(own_paths=holder.own_paths)
        except BaseException:
            self._holders.remove(holder)
            self.notify()
            raise
        return holder.worker

    def _make_room(self) -> bool:
        while self._holders and self._full():
            victim = self._cheapest()
            if victim is None:
                return False
            self.reclaim(victim)
        return True

    def _full(self) -> bool:
        if len(self._holders) >= self._max_workers:
            return True
        held = sum(h.worker.resident_bytes() for h in self._holders if h.worker is not None)
        return held > self._memory_bytes

    def _cheapest(self) -> Holder | None:
        if self._idle:
            return next(iter(self._idle))
        costs = [(holder.reclaim_cost, index) for index, holder in enumerate(self._holders)]
        known = [(cost, index) for cost, index in costs if cost is not None]
        return self._holders[min(known)[1]] if known else None

    def reclaim(self, holder: Holder) -> None:
        """Take a session's worker back now."""
        if holder.worker is not None:
            holder.worker.kill(Parked("the worker was taken back"))
        self.forget(holder)

    def forget(self, holder: Holder) -> None:
        """Note that a session's worker is gone."""
        self.busy(holder)
        holder.worker = None
        if holder in self._holders:
            self._holders.remove(holder)
            self.notify()

    def busy(self, holder: Holder) -> None:
        """Note that a session uses its worker."""
        self._idle.pop(holder, None)

    def idle(self, holder: Holder) -> None:
        """Note that a session does not need its worker for now."""
        self.busy(holder)
        if holder.worker is None or self._closed:
            return
        self._idle[holder] = asyncio.get_running_loop().time()
        while len(self._idle) > self._max_idle:
            self.reclaim(next(iter(self._idle)))
        if self._sweep is None:
            self._sweep_idle()
        self.notify()

    def _sweep_idle(self) -> None:
        """Take back the workers that were idle for too long, and look again when the next is."""
        self._sweep = None
        loop = asyncio.get_running_loop()
        for holder, since in list(self._idle.items()):
            until = since + self._idle_seconds
            if until > loop.time():
                self._sweep = loop.call_at(until, self._sweep_idle)
                return
            self.reclaim(holder)

    async def wait_until_empty(self) -> None:
        """Wait until no session holds a worker."""
        while self._holders:
            await self._changed()

    async def _changed(self) -> None:
        watcher = asyncio.get_running_loop().create_future()
        self._watchers.append(watcher)
        await watcher

    def notify(self) -> None:
        """Let those who wait look again."""
        watchers, self._watchers = self._watchers, []
        for watcher in watchers:
            if not watcher.done():
                watcher.set_result(None)

    async def close(self) -> None:
        """Stop every worker."""
        self._closed = True
        if self._sweep is not None:
            self._sweep.cancel()
        for holder in list(self._holders):
            self.reclaim(holder)
        self.fork_server.close()
