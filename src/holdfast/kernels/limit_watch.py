"""The limits of a running cell, kept from outside.

A cell that goes over one is asked to stop first, so that its namespace can be kept, and is killed
if it does not. CPU time is read from the kernel; wall time stands still while the cell waits for
the host.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from holdfast.core.errors import KernelLimit
from holdfast.kernels.port import KernelLimits, LimitName
from holdfast.kernels.workers import Worker

GRACE_SECONDS = 1.0
UNWIND_SECONDS = 1.0
CHECKPOINT_SECONDS = 120.0
CHECKPOINT_BYTES_PER_SECOND = 64 << 20


class LimitWatch:
    """Watches one run of one cell."""

    def __init__(
        self,
        worker: Worker,
        limits: KernelLimits,
        park_seconds: float,
        park: Callable[[], None],
    ) -> None:
        self.tripped: LimitName | None = None
        self.wall_seconds = limits.wall_seconds
        self._park_seconds = park_seconds
        self._park = park
        self._worker = worker
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._cpu_start = 0
        self._began = 0.0
        self._waited = 0.0
        self._waiting_since: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to watch: the worker was asked to run the cell."""
        self._cpu_start = self._worker.cpu_ns()
        self._began = self._loop.time()
        limits = self._limits
        self._set(min(limits.cpu_seconds, limits.wall_seconds, self._park_seconds), self._check)

    @property
    def cpu_ns(self) -> int:
        """Return the CPU time used since the cell began."""
        return max(0, self._worker.cpu_ns() - self._cpu_start)

    def pause(self) -> None:
        """Stop the wall clock: the cell waits for the host."""
        if self._waiting_since is None:
            self._waiting_since = self._loop.time()

    def resume(self) -> None:
        """Let the wall clock go on."""
        if self._waiting_since is not None:
            self._waited += self._loop.time() - self._waiting_since
            self._waiting_since = None

    def unwind(self) -> None:
        """Give the cell a moment to end: it called FINAL."""
        self._set(UNWIND_SECONDS, lambda: self._trip("unwind"))

    def ended(self) -> None:
        """Give the checkpoint its time: the cell says that its own code is over.

        The worker is not trusted: it gets what its memory makes plausible and no more.
        """
        seconds = 2.0 + self._worker.private_bytes() / CHECKPOINT_BYTES_PER_SECOND
        cpu_seconds = max(self._limits.cpu_seconds, self.cpu_ns / 1e9 + seconds)
        until = self._loop.time() + min(CHECKPOINT_SECONDS, 10 * seconds)
        self._check_checkpoint(cpu_seconds, until)

    def _check_checkpoint(self, cpu_seconds: float, until: float) -> None:
        cpu_left = cpu_seconds - self.cpu_ns / 1e9
        wall_left = until - self._loop.time()
        if cpu_left <= 0 or wall_left <= 0:
            self.tripped = self.tripped or ("cpu" if cpu_left <= 0 else "wall")
            self._kill()
        else:
            left = max(min(cpu_left, wall_left), 0.02)
            self._set(left, lambda: self._check_checkpoint(cpu_seconds, until))

    def stop(self) -> None:
        """Stop watching."""
        if self._timer is not None:
            self._timer.cancel()

    def _set(self, seconds: float, then: Callable[[], None]) -> None:
        self.stop()
        self._timer = self._loop.call_later(seconds, then)

    def _check(self) -> None:
        now = self._loop.time()
        waited = self._waited + (now - self._waiting_since if self._waiting_since else 0.0)
        cpu_left = self._limits.cpu_seconds - self.cpu_ns / 1e9
        wall_left = self._limits.wall_seconds - (now - self._began - waited)
        if cpu_left <= 0 or wall_left <= 0:
            self._trip("cpu" if cpu_left <= 0 else "wall")
            return
        since = self._waiting_since
        if since is not None and now - since >= self._park_seconds:
            self._park()
        self._set(max(min(cpu_left, wall_left, self._park_seconds), 0.02), self._check)

    def _trip(self, limit: LimitName) -> None:
        self.tripped = limit
        self._worker.interrupt()
        self._set(GRACE_SECONDS, self._kill)

    def _kill(self) -> None:
        name = self.tripped or "wall"
        self._worker.kill(KernelLimit(f"the cell went over its {name} limit and did not stop"))
