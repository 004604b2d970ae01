"""A runtime in an event loop of its own, for callers with a loop of any kind or with none."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import holdfast

T = TypeVar("T")


class LoopThread:
    """Opens a runtime in a thread and runs coroutines there, for threads and for other loops."""

    def __init__(self, opening: Callable[[], Any]) -> None:
        self._opening = opening
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()
        self._runtime: holdfast.Runtime | None = None

    @property
    def runtime(self) -> holdfast.Runtime:
        """Return the runtime; it is for coroutines that run here."""
        assert self._runtime is not None
        return self._runtime

    def start(self) -> None:
        """Open the runtime; what prevents it is raised here."""
        with self._lock:
            if self._loop is not None:
                return
            loop = asyncio.new_event_loop()
            threading.Thread(
                target=_run, args=(loop,), name="holdfast-adapter", daemon=True
            ).start()
            try:
                self._runtime = asyncio.run_coroutine_threadsafe(self._open(), loop).result()
            except BaseException:
                loop.call_soon_threadsafe(loop.stop)
                raise
            self._loop = loop

    def close(self) -> None:
        """Close the runtime and end the thread; closing twice does nothing."""
        with self._lock:
            if self._loop is None:
                return
            asyncio.run_coroutine_threadsafe(self.runtime.close(), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._loop = self._runtime = None

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine there and wait for it in this thread."""
        return asyncio.run_coroutine_threadsafe(work, self._running(work)).result()

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine there and wait for it in the caller's loop."""
        return await asyncio.wrap_future(
            asyncio.run_coroutine_threadsafe(work, self._running(work))
        )

    def _running(self, work: Coroutine[Any, Any, Any]) -> asyncio.AbstractEventLoop:
        loop = self._loop
        if loop is None:
            work.close()
            raise holdfast.errors.InvalidInput(
                "this adapter is not open; use it inside its `with` or `async with` block"
            )
        return loop

    async def _open(self) -> holdfast.Runtime:
        runtime: holdfast.Runtime = await self._opening()
        return runtime


def _run(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
    finally:
        loop.close()
