"""Work that must come to its end although whoever waits for it is cancelled.

A batch that was submitted is committed and folded, a lease is given back, a task that was told to
stop is over: only then does the cancellation reach the caller.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

_T = TypeVar("_T")


async def carried_through(work: Awaitable[_T]) -> _T:
    """Await work to its end; a cancellation that comes meanwhile is raised after it."""
    task = asyncio.ensure_future(work)
    cancelled = False
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        if not task.cancelled():
            task.exception()
        raise asyncio.CancelledError
    return task.result()


async def ended(task: asyncio.Future[Any]) -> None:
    """Cancel a task and wait until it is over, whatever it raises."""
    task.cancel()

    async def over() -> None:
        await asyncio.wait({task})
        if not task.cancelled():
            task.exception()

    await carried_through(over())
