"""Closing a handle: started once, and finished whoever stops waiting for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class CloseOnce:
    """Work that is done once, in a task of its own that cancelled callers do not cancel."""

    def __init__(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._work = work
        self._task: asyncio.Task[None] | None = None

    async def __call__(self) -> None:
        """Start it, or wait with the others; what was cut off with its event loop starts anew."""
        if self._task is None or self._task.cancelled():
            self._task = asyncio.create_task(self._work())
        await asyncio.shield(self._task)
