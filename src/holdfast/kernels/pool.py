"""Who gets a worker process, and who gives one back.

Sessions keep their worker between cells, as many as memory and descriptors allow: starting one
costs more than keeping it. Above that an idle session's worker is taken first, then that of a cell
which only waits for the host, the one that is cheapest to run again first. Those who need a worker
are served deepest first, so a tree of sessions can always finish from its leaves.

Nothing here is proportional to the number of sessions: what each worker holds is measured when it
stops and summed up as it changes.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import os
import random
import resource
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Protocol

from holdfast.core.errors import KernelError, WorkerRefused
from holdfast.kernels.fork_server import ForkServer
from holdfast.kernels.workers import FORKED_BYTES, Worker

# How many waiting cells are compared, and running ones measured, when a worker is asked for.
_COMPARED = 16
# A worker that stops is measured again after this time, or at once if memory is scarce.
_MEASURED_SECONDS = 2.0
_OTHER_DESCRIPTORS = 256
_DESCRIPTORS_PER_WORKER = 3
_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


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


def default_memory_bytes() -> int:
    """Return half of the memory that this machine, or the container around us, has."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with contextlib.suppress(OSError, ValueError):  # no such file, or the word "max" in it
        total = min(total, int(_CGROUP_LIMIT.read_text()))
    return total // 2


def default_max_workers() -> int:
    """Return how many workers the descriptors of this process are enough for."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if soft == resource.RLIM_INFINITY:
        return 1 << 16
    return max((soft - _OTHER_DESCRIPTORS) // _DESCRIPTORS_PER_WORKER, 4)


class WorkerPool:
    """The worker processes of one kernel, within a memory cap and a number."""

    def __init__(
        self,
        *,
        max_workers: int | None,
        memory_bytes: int | None,
        max_idle: int | None,
        idle_seconds: float,
    ) -> None:
        self._max_workers = default_max_workers() if max_workers is None else max_workers
        self._memory_bytes = default_memory_bytes() if memory_bytes is None else memory_bytes
        self._max_idle = max_idle
        self._idle_seconds = idle_seconds
        self.fork_server = ForkServer()
        # What each worker was last found to hold, when that was, and the sum.
        self._holders: dict[Holder, int] = {}
        self._measured: dict[Holder, float] = {}
        self.held_bytes = 0
        self._running: dict[Holder, None] = {}
        self._paused: dict[Holder, None] = {}
        self._idle = _IdleHolders()
        self._sweep: asyncio.TimerHandle | None = None
        self._waiting: list[tuple[int, int, Holder, asyncio.Future[None]]] = []
        self._numbers = itertools.count()
        self._emptied: list[asyncio.Future[None]] = []
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
        admitted = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (-depth, next(self._numbers), holder, admitted))
        self.notify()
        try:
            await admitted
            holder.worker = await self._spawn(holder)
        except BaseException:
            if admitted.cancelled():
                raise  # it is passed over when its turn comes
            self.forget(holder)
            raise
        return holder.worker

    async def _spawn(self, holder: Holder) -> Worker:
        while True:
            try:
                return await self.fork_server.spawn(own_paths=holder.own_paths)
            except WorkerRefused:
                if not self._idle:
                    raise
                # The machine has less than was thought: what one holds that idles may do.
                self._take_back(self._idle.any())

    def notify(self) -> None:
        """Admit those who wait for a worker, as far as there is room."""
        while self._waiting:
            *_, holder, admitted = self._waiting[0]
            if admitted.cancelled():
                heapq.heappop(self._waiting)
            elif self._make_room():
                heapq.heappop(self._waiting)
                self._holders[holder] = 0
                self._running[holder] = None
                self._note(holder, FORKED_BYTES)
                self.peak = max(self.peak, len(self._holders))
                admitted.set_result(None)
            else:
                return

    def _make_room(self) -> bool:
        # Those that run may have grown: a few are measured, others the next time.
        for holder in list(islice(self._running, _COMPARED)):
            self._running[holder] = self._running.pop(holder)
            self._measure(holder)
        while self._holders and self._is_full():
            victim = self._cheapest()
            if victim is None:
                return False
            self._take_back(victim)
        return True

    def _is_full(self) -> bool:
        if len(self._holders) >= self._max_workers:
            return True
        return self.held_bytes + FORKED_BYTES > self._memory_bytes

    def _cheapest(self) -> Holder | None:
        if self._idle:
            return self._idle.any()
        # The oldest of those that wait: comparing all would cost more with every session.
        costs = {
            holder: cost
            for holder in islice(self._paused, _COMPARED)
            if (cost := holder.reclaim_cost) is not None
        }
        return min(costs, key=costs.__getitem__) if costs else None

    # What workers hold

    def _measure(self, holder: Holder) -> None:
        """Find out what a worker holds, unless that is known well enough."""
        now = asyncio.get_running_loop().time()
        scarce = self.held_bytes > self._memory_bytes // 2
        if holder.worker is None:
            return
        if scarce or now - self._measured.get(holder, 0.0) > _MEASURED_SECONDS:
            self._measured[holder] = now
            self._note(holder, holder.worker.private_bytes())

    def _note(self, holder: Holder, held: int) -> None:
        self.held_bytes += held - self._holders[holder]
        self._holders[holder] = held

    # What sessions say about theirs

    def reclaim(self, holder: Holder) -> None:
        """Take a session's worker back now."""
        self._take_back(holder)
        self.notify()

    def _take_back(self, holder: Holder) -> None:
        if holder.worker is not None:
            holder.worker.kill(Parked("the worker was taken back"))
        self._remove(holder)

    def forget(self, holder: Holder) -> None:
        """Note that a session's worker is gone."""
        self._remove(holder)
        self.notify()

    def _remove(self, holder: Holder) -> None:
        holder.worker = None
        self._idle.discard(holder)
        for known in (self._running, self._paused, self._measured):
            known.pop(holder, None)
        self.held_bytes -= self._holders.pop(holder, 0)
        if not self._holders:
            for waiter in self._emptied:
                if not waiter.done():
                    waiter.set_result(None)
            self._emptied.clear()

    def busy(self, holder: Holder) -> None:
        """Note that a session uses its worker."""
        self._idle.discard(holder)
        if holder in self._holders:
            self._running[holder] = None

    def pause(self, holder: Holder) -> None:
        """Note that a session's cell waits for the host."""
        if holder in self._holders:
            self._running.pop(holder, None)
            self._paused[holder] = None
            self._measure(holder)
            self.notify()

    def resume(self, holder: Holder) -> None:
        """Note that a session's cell has its answers."""
        if holder in self._paused:
            del self._paused[holder]
            self._running[holder] = None

    def idle(self, holder: Holder) -> None:
        """Note that a session does not need its worker for now."""
        self._running.pop(holder, None)
        self._paused.pop(holder, None)
        if holder.worker is None or self._closed:
            return
        loop = asyncio.get_running_loop()
        self._measure(holder)
        while self._idle and self._has_too_many_idle():
            self._take_back(self._idle.any())
        self._idle.add(holder, loop.time())
        if self._sweep is None:
            self._sweep = loop.call_later(self._idle_seconds, self._sweep_idle)
        self.notify()

    def _has_too_many_idle(self) -> bool:
        if self._max_idle is not None and len(self._idle) >= self._max_idle:
            return True
        return self.held_bytes > self._memory_bytes

    def _sweep_idle(self) -> None:
        """Take back the workers that were idle for too long, and look again when the next is."""
        self._sweep = None
        loop = asyncio.get_running_loop()
        while (oldest := self._idle.oldest()) is not None:
            holder, since = oldest
            if since + self._idle_seconds > loop.time():
                self._sweep = loop.call_at(since + self._idle_seconds, self._sweep_idle)
                return
            self.reclaim(holder)

    async def wait_until_empty(self) -> None:
        """Wait until no session holds a worker."""
        while self._holders:
            waiter = asyncio.get_running_loop().create_future()
            self._emptied.append(waiter)
            await waiter

    async def close(self) -> None:
        """Stop every worker."""
        self._closed = True
        if self._sweep is not None:
            self._sweep.cancel()
        for holder in list(self._holders):
            self.reclaim(holder)
        self.fork_server.close()


class _IdleHolders:
    """The sessions that do not use their worker, since when, and any one of them.

    Taking the one that was idle the longest would be worst where sessions take turns: each would
    lose its worker right before it needs it.
    """

    def __init__(self) -> None:
        self._since: dict[Holder, float] = {}
        self._order: list[Holder] = []
        self._places: dict[Holder, int] = {}
        self._random = random.Random(0)

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[Holder]:
        return iter(self._order)

    def add(self, holder: Holder, now: float) -> None:
        """Add one that has just become idle."""
        self.discard(holder)
        self._since[holder] = now
        self._places[holder] = len(self._order)
        self._order.append(holder)

    def discard(self, holder: Holder) -> None:
        """Remove one, if it is here."""
        place = self._places.pop(holder, None)
        if place is None:
            return
        del self._since[holder]
        last = self._order.pop()
        if last is not holder:
            self._order[place] = last
            self._places[last] = place

    def oldest(self) -> tuple[Holder, float] | None:
        """Return the one that was idle the longest, and since when."""
        return next(iter(self._since.items()), None)

    def any(self) -> Holder:
        """Return one of them by chance."""
        return self._order[self._random.randrange(len(self._order))]
