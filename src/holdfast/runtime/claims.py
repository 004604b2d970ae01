"""Claims: which sessions are driven in this process, and what is kept warm between drives.

A session is driven by one task at a time. Whoever drives takes the store's lease for it, and takes
up afterwards what arrived in the inbox meanwhile. What a driver built is kept for the next one.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from holdfast.core.errors import AgentMissing, LeaseHeld, Refused, SessionBusy, StoreFailed
from holdfast.core.ids import check_id
from holdfast.core.state import State
from holdfast.runtime.driver import Driver, Warm
from holdfast.runtime.engine import Engine
from holdfast.runtime.inbox import DRIVER_KINDS, Watched
from holdfast.runtime.scope import Scope
from holdfast.runtime.shielding import shielded
from holdfast.runtime.shortage import open_question

logger = logging.getLogger("holdfast.runtime")

WARM_SESSIONS = 4096


class _Claim:
    """One drive of a session in this process: the task it runs in, and its end."""

    def __init__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.task: asyncio.Task[Any] = task
        self.over = asyncio.Event()
        self.contended = False  # someone found it in the way
        self.driver: Driver | None = None


class Claims:
    """The drives of one runtime."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        engine.driving = self
        self._closed = False
        self._claims: dict[str, _Claim] = {}
        self._warm: OrderedDict[str, Warm] = OrderedDict()
        self._background: set[asyncio.Task[Any]] = set()

    @asynccontextmanager
    async def driving(
        self, session_id: str, *, takeover: bool = False, needs_agent: bool = True
    ) -> AsyncIterator[Driver]:
        """Hold a session's lease while it is driven, and take up what queued meanwhile."""
        if self._closed:
            raise Refused("this runtime is closed; open another to drive sessions")
        if check_id(session_id) in self._claims:
            self._claims[session_id].contended = True
            raise SessionBusy(
                f"session {session_id!r} has a turn in flight here; wait for it, or send with "
                "when_busy='queue'"
            )
        claim = self._claims[session_id] = _Claim()
        driver: Driver | None = None
        failed, interrupted = True, False
        try:
            with self._engine.inboxes.watching(session_id) as watched:
                driver = await self._driver(session_id, takeover, needs_agent, watched)
                claim.driver = driver
                yield driver
            failed = False
        except asyncio.CancelledError:
            interrupted = True
            raise
        finally:
            claim.driver = None  # nobody joins it from here on
            try:
                if driver is not None:
                    await shielded(driver.close(failed=failed, interrupted=interrupted))
            finally:
                del self._claims[session_id]
                claim.over.set()
                if driver is not None and driver.warm is not None:
                    if driver.state.kind == "child" and driver.state.turn is None:
                        await driver.warm.close()  # it has answered, and is rarely asked again
                    else:
                        self._warm[session_id] = driver.warm
            while len(self._warm) > WARM_SESSIONS:
                await self._warm.popitem(last=False)[1].close()
        self._tell_parent(driver.state)
        # Looked for as the lease became free or after it: who asked while it was held is seen here,
        # and who comes later can take it, but for those who found this claim in their way.
        nothing = driver.journal.waiting == 0 and not claim.contended
        at_rest = driver.state.status in ("idle", "suspended")
        if at_rest and not nothing and await self._has_work(session_id, driver.state.status):
            self.take_up(driver.state)

    def driver_of(self, session_id: str) -> Driver | None:
        """Return who drives a session here; None where nobody does."""
        claim = self._claims.get(session_id)
        return None if claim is None else claim.driver

    async def free(self, session_id: str, end: float) -> bool:
        """Wait until nobody drives a session here, at most until a time of the event loop."""
        while (claim := self._claims.get(session_id)) is not None:
            left = end - asyncio.get_running_loop().time()
            try:
                await asyncio.wait_for(claim.over.wait(), max(left, 0))
            except TimeoutError:
                return False
        return True

    def take_up(self, state: State, scope: Scope | None = None) -> None:
        """Take up a session in the background, as far as this process can."""
        driven = self._engine.drives(state.kind, state.agent)
        self.spawn(self.resume(state.session, scope) if driven else self.admit(state.session))

    async def resume(self, session_id: str, scope: Scope | None = None) -> None:
        """Take up a session in the background; what goes wrong is logged."""
        try:
            if await self._resume_run(session_id):
                return
            async with self.driving(session_id) as driver:
                await driver.resume(force=False, scope=scope)
        except (SessionBusy, LeaseHeld):
            logger.debug("session %s is driven by someone else", session_id)
        except Exception:
            logger.warning("session %s was not recovered", session_id, exc_info=True)

    async def _resume_run(self, session_id: str) -> bool:
        """Take up a session that is a workflow run, if it is one; tell whether it is."""
        if self._engine.runs is None or session_id in self._warm:
            return False
        if (await self._engine.store.load_state(session_id)).kind != "run":
            return False
        await self._engine.runs(session_id)
        return True

    async def admit(self, session_id: str) -> None:
        """Turn what is in an inbox into facts, without the agent that drives the session."""
        try:
            async with self.driving(session_id, needs_agent=False) as driver:
                await driver.admit()
        except (SessionBusy, LeaseHeld):
            logger.debug("session %s is driven by someone else", session_id)
        except Exception:
            logger.warning("the inbox of session %s was not admitted", session_id, exc_info=True)

    async def drive(self, session_id: str, scope: Scope | None = None) -> None:
        """Drive a session until its turn ends or waits; what goes wrong is logged."""
        while (claim := self._claims.get(session_id)) is not None:
            await claim.over.wait()
        await self.resume(session_id, scope)

    def _tell_parent(self, state: State) -> None:
        """Let the parent of a session that has done its work look into its inbox."""
        if state.parent is not None and (state.turn is None or open_question(state)):
            self.tell(state.parent["session"])

    def tell(self, session_id: str) -> None:
        """Let a session look into its inbox, in which something was put here."""
        if not self._closed and not self._engine.inboxes.hint(session_id):
            self.spawn(self.resume(session_id))

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run work in the background, until it ends or the runtime is closed."""
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    async def settled(self) -> None:
        """Wait until nothing is driven in the background."""
        while self._background:
            await asyncio.gather(*self._background, return_exceptions=True)

    async def close(self) -> None:
        """Break off what is driven here, recording it."""
        self._closed = True
        mine = asyncio.current_task()
        claims = [claim for claim in self._claims.values() if claim.task is not mine]
        for task in {*self._background, *(claim.task for claim in claims)}:
            task.cancel()
        for claim in claims:
            await claim.over.wait()
        await self.settled()
        self._warm.clear()

    async def _driver(
        self, session_id: str, takeover: bool, needs_agent: bool, watched: Watched
    ) -> Driver:
        """Take a session's lease and what is needed to drive it."""
        store = self._engine.store
        if needs_agent and session_id not in self._warm:
            await self._check_agent(session_id)
        lease = await store.acquire(session_id, takeover=takeover)
        warm = self._warm.pop(session_id, None)
        if warm is not None and warm.state.seq == lease.seq:
            return Driver(self._engine, lease, warm.state, watched, warm)
        try:
            # Read under the lease: before it was ours the log may have moved.
            state = await store.load_state(session_id)
        except BaseException:
            await shielded(store.release(lease))
            raise
        return Driver(self._engine, lease, state, watched, warm)

    async def replace(self, session_id: str, warm: Warm) -> None:
        """Let go of what is warm of a session, and keep something else."""
        known = self._warm.pop(session_id, None)
        if known is not None:
            await known.close()
        self.keep(session_id, warm)

    async def forget(self, session_id: str) -> None:
        """Let go of what is warm of a session; SessionBusy where it is driven here."""
        if session_id in self._claims:
            raise SessionBusy(f"session {session_id!r} has a turn in flight here; wait for it")
        known = self._warm.pop(session_id, None)
        if known is not None:
            await known.close()

    def keep(self, session_id: str, warm: Warm) -> None:
        """Keep what is known of a new session for its first drive."""
        self._warm[session_id] = warm

    async def _check_agent(self, session_id: str) -> None:
        state = await self._engine.store.load_state(session_id)
        agents = self._engine.agents
        if state.agent not in agents:
            raise AgentMissing(
                f"session {session_id!r} is driven by agent {state.agent!r}, which is not "
                f"registered here; open the runtime with it (here: {', '.join(agents)})"
            )

    async def _has_work(self, session_id: str, status: str) -> bool:
        try:
            items = await self._engine.store.list_inbox(session_id)
        except StoreFailed:
            # The turn that was just worked must not be lost for this: the inbox is durable.
            logger.warning("the inbox of session %s was not read", session_id, exc_info=True)
            return False
        # A message to a session that waits is worked when it no longer does.
        return any((item.kind in DRIVER_KINDS) == (status == "idle") for item in items)
