"""Work that would hold up the event loop, done by a thread where one can be had."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

Result = TypeVar("Result")


async def off_loop(function: Callable[..., Result], *arguments: Any) -> Result:
    """Return what a function returns that a thread calls; it may be called twice.

    A machine may refuse to start another thread. Then it is done here: later than it should be is
    better than not at all.
    """
    try:
        return await asyncio.to_thread(function, *arguments)
    except RuntimeError as error:
        if "start new thread" not in str(error):
            raise
    return function(*arguments)
