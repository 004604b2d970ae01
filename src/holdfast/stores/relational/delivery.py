"""Delivery: how the outcome of a job reaches those who wait for it, in whatever loop or thread."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from holdfast.stores.relational.plan import Job

logger = logging.getLogger("holdfast.stores")

T = TypeVar("T")


class Outcome(asyncio.Future[T]):
    """A future that cannot be cancelled: the job is on its way.

    A task that is cancelled while it waits here gets its CancelledError once the outcome is known,
    as asyncio does for a future that refuses.
    """

    def cancel(self, msg: Any = None) -> bool:
        """Refuse."""
        return False


def notice(function: Callable[[T], None], about: T) -> None:
    """Tell what follows from a commit; its failure does not undo the commit."""
    try:
        function(about)
    except Exception:
        logger.exception("what follows a commit failed; the commit stands")


def deliver(jobs: list[Job[Any]]) -> None:
    """Hand a group's results to those who wait, one wake-up for each event loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Job[Any]]] = {}
    for job in jobs:
        if job.outcome is not None:
            by_loop.setdefault(job.outcome.get_loop(), []).append(job)
        elif job.done is not None:
            job.done.set()
    for loop, group in by_loop.items():
        with suppress(RuntimeError):  # the loop is closed: nobody waits there any more
            loop.call_soon_threadsafe(_resolve, group)


def _resolve(jobs: list[Job[Any]]) -> None:
    for job in jobs:
        if job.outcome is None:
            continue
        if job.error is None:
            job.outcome.set_result(job.result)
        else:
            job.outcome.set_exception(job.error)
