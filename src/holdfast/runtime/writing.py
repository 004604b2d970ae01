"""Writing beside turns: what programs built on top append, all of a process under one lease.

Whoever writes first takes the session's lease; others of this process join, and the last one gives
it back. While a turn is driven here, records go through its journal. A lease that another process
holds for a moment is waited for.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from holdfast.core.errors import LeaseHeld, SessionBusy
from holdfast.runtime.claims import Claims
from holdfast.runtime.driver import Driver
from holdfast.runtime.shielding import shielded

WAIT_SECONDS = 10.0
"""How long a writer waits for whoever drives the session."""
PAUSE_SECONDS = 0.005
LONGEST_PAUSE_SECONDS = 0.1


class _Held:
    """A lease that the writers of this process share."""

    def __init__(self) -> None:
        self.driver: asyncio.Future[Driver] = asyncio.get_running_loop().create_future()
        self.users = 0
        self.left = asyncio.Event()
        self.task: asyncio.Task[None] | None = None


class Writers:
    """Those who write to sessions of one runtime outside of their turns."""

    def __init__(self, claims: Claims) -> None:
        self._claims = claims
        self._held: dict[str, _Held] = {}

    @asynccontextmanager
    async def writing(self, session_id: str, *, in_turn: bool = False) -> AsyncIterator[Driver]:
        """Hold a session's lease together with others; `in_turn` allows that of a turn too."""
        end = asyncio.get_running_loop().time() + WAIT_SECONDS
        pause = PAUSE_SECONDS
        while True:
            held = self._held.get(session_id)
            if held is None:
                turn = self._claims.driver_of(session_id)
                if in_turn and turn is not None and turn.journal.waiting is None:
                    yield turn
                    return
                if not await self._claims.free(session_id, end):
                    raise SessionBusy(
                        f"session {session_id!r} has a turn in flight here; try again when it is "
                        "over"
                    )
                held = self._held.get(session_id) or self._take(session_id)
            try:
                async with self._joined(session_id, held) as driver:
                    yield driver
                return
            except _NotTaken as error:
                late = asyncio.get_running_loop().time() >= end
                if late or not isinstance(error.cause, LeaseHeld | SessionBusy):
                    raise error.cause from None
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    def _take(self, session_id: str) -> _Held:
        held = self._held[session_id] = _Held()
        held.task = self._claims.spawn(self._hold(session_id, held))
        return held

    async def _hold(self, session_id: str, held: _Held) -> None:
        try:
            async with self._claims.driving(session_id, needs_agent=False) as driver:
                held.driver.set_result(driver)
                await held.left.wait()
        except BaseException as error:
            if not held.driver.done():
                held.driver.set_exception(_NotTaken(error))
            elif not isinstance(error, Exception):
                raise
        finally:
            self._forget(session_id, held)

    def _forget(self, session_id: str, held: _Held) -> None:
        if self._held.get(session_id) is held:
            del self._held[session_id]

    @asynccontextmanager
    async def _joined(self, session_id: str, held: _Held) -> AsyncIterator[Driver]:
        held.users += 1
        try:
            yield await asyncio.shield(held.driver)
        finally:
            held.users -= 1
            if not held.users:
                self._forget(session_id, held)
                held.left.set()
                assert held.task is not None
                await shielded(_over(held.task))


async def _over(task: asyncio.Task[None]) -> None:
    await asyncio.wait({task})


class _NotTaken(Exception):
    """The lease could not be taken."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__(str(cause))
        self.cause = cause
