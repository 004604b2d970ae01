"""Threads: where the blocking work of a store handle is done.

The event loop only waits. A write that was submitted is never cut short: its caller may be
cancelled, but learns of that only once the write is settled, so memory and disk never part.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

from holdfast.core.errors import OutcomeUnknown, StoreFailed
from holdfast.stores.files.session_files import read_failed, write_failed
from holdfast.stores.rows import closed_error
from holdfast.stores.threads import needing_thread

READERS, WRITERS = 8, 16
"""Apart, so that reads go on while writers wait for a lock that another process holds."""

_Result = TypeVar("_Result")


class Threads:
    """The worker threads of one handle."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="holdfast-files-read")
        self._writers = ThreadPoolExecutor(WRITERS, thread_name_prefix="holdfast-files-write")
        self._closed = False

    async def read(self, what: str, work: Callable[[], _Result]) -> _Result:
        """Return what a read gives; its caller may stop waiting for it."""

        def run() -> _Result:
            try:
                return work()
            except OSError as error:
                raise read_failed(what, error) from error

        return await self._submit(self._readers, run)

    async def write(self, what: str, work: Callable[[], _Result]) -> _Result:
        """Return what a write gives, waiting for its end whatever happens to the caller."""

        def run() -> _Result:
            try:
                return work()
            except OSError as error:
                raise write_failed(what, error) from error

        future = self._submit(self._writers, run)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            while not future.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([future])
            if not future.cancelled():
                future.exception()  # looked at, so that it is not reported as forgotten
            raise

    def _submit(
        self, pool: ThreadPoolExecutor, run: Callable[[], _Result]
    ) -> asyncio.Future[_Result]:
        if self._closed:
            raise closed_error(self._where)
        # A refused job stays in the queue of its pool: another thread may still carry out a write.
        kind = OutcomeUnknown if pool is self._writers else StoreFailed
        with needing_thread(self._where, kind):
            return asyncio.get_running_loop().run_in_executor(pool, run)

    async def close(self) -> None:
        """Wait for what was submitted."""
        self._closed = True
        for pool in (self._writers, self._readers):
            await asyncio.to_thread(pool.shutdown)
