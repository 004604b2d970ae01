"""The gate of leaf calls: how many are in flight at once in this process, whoever makes them.

Runtimes may live in several event loops and threads, and each has a limit of its own: a call goes
ahead once fewer than that are in flight anywhere in the process. Those that wait are let through
in the order they came, but one with a low limit does not hold up those behind it.
"""

from __future__ import annotations

import asyncio
import os
import threading
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class _Waiting:
    limit: int
    future: asyncio.Future[None]

    def let_through(self) -> bool:
        """Tell who waits, in its own loop; tell whether that loop still runs."""
        try:
            self.future.get_loop().call_soon_threadsafe(self._resolve)
        except RuntimeError:  # the loop is closed
            return False
        return True

    def _resolve(self) -> None:
        if not self.future.done():
            self.future.set_result(None)


class _Flight:
    """The calls of this process that are under way, and those that wait."""

    def __init__(self) -> None:
        self.start_over()

    def start_over(self) -> None:
        """Forget the calls of the process that this one was forked from."""
        self._lock = threading.Lock()
        self._under_way = 0
        self._waiting: list[_Waiting] = []

    async def enter(self, limit: int) -> None:
        """Wait until fewer than so many calls are under way, and count one more."""
        with self._lock:
            if self._under_way < limit:
                self._under_way += 1
                return
            waiting = _Waiting(limit, asyncio.get_running_loop().create_future())
            self._waiting.append(waiting)
        try:
            await waiting.future
        except asyncio.CancelledError:
            with self._lock:
                was_let_through = waiting not in self._waiting
                if not was_let_through:
                    self._waiting.remove(waiting)
            if was_let_through:
                self.leave()
            raise

    def leave(self) -> None:
        """Count one call less, and let the next ones through."""
        with self._lock:
            self._under_way -= 1
            for waiting in list(self._waiting):
                if self._under_way < waiting.limit:
                    self._waiting.remove(waiting)
                    self._under_way += waiting.let_through()


_FLIGHT = _Flight()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_FLIGHT.start_over)


class LeafGate:
    """One runtime's way through: an async context manager around each call."""

    def __init__(self, limit: int) -> None:
        self._limit = limit

    async def __aenter__(self) -> None:
        await _FLIGHT.enter(self._limit)

    async def __aexit__(self, *problem: object) -> None:
        _FLIGHT.leave()
