"""The end of a handle: begun once, and seen through whoever stops waiting for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class Ending:
    """Work that is done once, in a task of its own that no cancellation of its callers reaches."""

    def __init__(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._work = work
        self._task: asyncio.Task[None] | None = None

    async def __call__(self) -> None:
        """Begin it, or wait with the others; what ended with its event loop begins anew."""
        if self._task is None or self._task.cancelled():
            self._task = asyncio.create_task(self._work())
        await asyncio.shield(self._task)
