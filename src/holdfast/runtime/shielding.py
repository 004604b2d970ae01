"""Work that must come to its end although whoever waits for it is cancelled.

A batch that was submitted is committed and folded, a lease is given back, a task that was told to
stop is over: only then does the cancellation reach the caller.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


class _Carried(asyncio.Task[_T]):
    """A task that cannot be cancelled.

    A task that is cancelled while it waits for this one gets its CancelledError, as asyncio has it
    for such a future, once this one is over.
    """

    def cancel(self, msg: Any = None) -> bool:
        """Refuse: the work comes to its end."""
        return False


async def shielded(work: Coroutine[Any, Any, _T]) -> _T:
    """Await work to its end; a cancellation that comes meanwhile is raised after it."""
    task = _Carried(work, loop=asyncio.get_running_loop())
    try:
        return await task
    except asyncio.CancelledError:
        if task.done() and not task.cancelled():
            task.exception()
        raise


async def ended(task: asyncio.Future[Any]) -> None:
    """Cancel a task and wait until it is over, whatever it raises."""

    async def over() -> None:
        await asyncio.wait({task})

    if task.cancel():
        await shielded(over())
    if not task.cancelled():
        task.exception()
