"""The limits of a running cell, kept from outside.

A cell that goes over one is asked to stop first, so that its namespace can be kept, and is killed
if it does not. CPU time is read from the kernel; wall time stands still while the cell waits for
the host.
"""

from __future__ import annotations

import asyncio

from holdfast.core.errors import KernelLimit
from holdfast.kernels.port import KernelLimits, LimitName
from holdfast.kernels.workers import Worker

GRACE_SECONDS = 1.0
UNWIND_SECONDS = 1.0
CHECKPOINT_SECONDS = 120.0


class Watch:
    """Watches one run of one cell."""

    def __init__(self, worker: Worker, limits: KernelLimits) -> None:
        self.tripped: LimitName | None = None
        self._worker = worker
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._cpu_start = worker.cpu_ns()
        self._wall_left = limits.wall_seconds
        self._wall_since = self._loop.time()
        self._wall: asyncio.TimerHandle | None = self._loop.call_later(
            self._wall_left, self._trip, "wall"
        )
        self._cpu = self._loop.call_later(limits.cpu_seconds, self._check_cpu)
        self._last: asyncio.TimerHandle | None = None

    @property
    def cpu_ns(self) -> int:
        """Return the CPU time used since the cell began."""
        return max(0, self._worker.cpu_ns() - self._cpu_start)

    def pause(self) -> None:
        """Stop the wall clock: the cell waits for the host."""
        if self._wall is not None:
            self._wall.cancel()
            self._wall = None
            self._wall_left -= self._loop.time() - self._wall_since

    def resume(self) -> None:
        """Let the wall clock go on."""
        if self._wall is None and self.tripped is None:
            self._wall_since = self._loop.time()
            self._wall = self._loop.call_later(self._wall_left, self._trip, "wall")

    def unwind(self) -> None:
        """Give the cell a moment to end: it called FINAL."""
        self._cancel()
        self._last = self._loop.call_later(UNWIND_SECONDS, self._trip, "unwind")

    def ended(self) -> None:
        """The cell is over and its checkpoint is being made."""
        self._cancel()
        self._last = self._loop.call_later(CHECKPOINT_SECONDS, self._kill)

    def stop(self) -> None:
        """Stop watching."""
        self._cancel()

    def _cancel(self) -> None:
        for handle in (self._wall, self._cpu, self._last):
            if handle is not None:
                handle.cancel()
        self._wall = None

    def _check_cpu(self) -> None:
        left = self._limits.cpu_seconds - self.cpu_ns / 1e9
        if left <= 0:
            self._trip("cpu")
        else:
            self._cpu = self._loop.call_later(max(left, 0.02), self._check_cpu)

    def _trip(self, limit: LimitName) -> None:
        self._cancel()
        self.tripped = limit
        self._worker.interrupt()
        self._last = self._loop.call_later(GRACE_SECONDS, self._kill)

    def _kill(self) -> None:
        name = self.tripped or "wall"
        self._worker.kill(KernelLimit(f"the cell went over its {name} limit and did not stop"))
