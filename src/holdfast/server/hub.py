"""The hub: one runtime for each tenant, and the work that requests leave behind.

The runtime that was opened serves its own tenant; others get one over a view of the same store when
they are first asked for. A message that nobody waits for stands in the inbox before the request is
answered, so it is worked even if the server dies in between.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

from holdfast.core.errors import HoldfastError, LeaseHeld, SessionBusy
from holdfast.core.messages import user
from holdfast.core.status import SUSPENDED
from holdfast.kernels.choose import Kernels
from holdfast.models.port import Model
from holdfast.runtime.driver import Work
from holdfast.runtime.results import Pending, Queued, TurnResult
from holdfast.runtime.runtime import Runtime
from holdfast.server.access import Principal
from holdfast.views.documents import Document

logger = logging.getLogger("holdfast.server")

MOST_REPEATS = 4096


class Hub:
    """The runtimes of a server, by tenant."""

    def __init__(self, runtime: Runtime, *, drives: bool = True) -> None:
        self.main = runtime
        self.drives = drives
        self._runtimes: dict[str, Runtime] = {runtime.store.tenant: runtime}
        self._background: set[asyncio.Task[Any]] = set()
        self._repeats: OrderedDict[tuple[str, ...], asyncio.Future[Document]] = OrderedDict()
        self.closing = asyncio.Event()

    def of(self, principal: Principal) -> Runtime:
        """Return the runtime for the tenant of whoever asks."""
        tenant = principal.tenant
        if tenant not in self._runtimes:
            main = self.main
            settings = main.resolved.settings
            names = {name for name in (settings.model, settings.leaf_model) if name}
            models: list[Model] = [main.engine.model(name) for name in names]
            self._runtimes[tenant] = Runtime(
                main.store.of(tenant),
                resolved=main.resolved,
                agents=main.agents.values(),
                models=models,
                kernels=Kernels(
                    allow_unconfined=main.engine.kernels.allow_unconfined,
                    environment=main.engine.kernels.environment,
                ),
                guards=main.engine.guards,
            )
        return self._runtimes[tenant]

    @staticmethod
    def new_id(tenant: str, purpose: str, key: str) -> str:
        """Return the id of a session that a request with a key creates: the same for the key."""
        body = "\0".join((tenant, purpose, key)).encode()
        return "s-" + hashlib.sha256(body).hexdigest()[:32]

    async def leave(
        self,
        runtime: Runtime,
        session_id: str,
        text: str,
        inputs: Mapping[str, Any],
        when_busy: str,
        key: str,
    ) -> None:
        """Put a message into the inbox, durable on return, and go on with the session here."""
        work = Work(user(text), dict(inputs), key, when_busy=when_busy)
        await runtime.store.put_inbox(session_id, work.draft(key))
        self.go_on(runtime, session_id)

    def go_on(self, runtime: Runtime, session_id: str) -> None:
        """Drive what is open in a session, without anybody waiting for it; or leave it to workers.

        Workers find what stands in an inbox, and turns whose driver is gone, by themselves.
        """
        if self.drives:
            self.spawn(_resumed(runtime, session_id))

    async def result_within(
        self, runtime: Runtime, session_id: str, key: str, seconds: float
    ) -> TurnResult:
        """Return what came of a message that someone else works, as far as it is after a time."""
        state = await runtime.state(session_id)
        try:
            async with (
                asyncio.timeout(seconds),
                runtime.subscribe(session_id, after=state.seq) as moving,
            ):
                while isinstance(result := await runtime.result(session_id, key), Queued | Pending):
                    if (await runtime.state(session_id)).status == SUSPENDED:
                        break  # it waits for someone, who may take long
                    await anext(moving)
                return result
        except TimeoutError:
            return await runtime.result(session_id, key)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something beside the requests."""
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def once(
        self, name: tuple[str, ...] | None, work: Callable[[], Awaitable[Document]]
    ) -> Document:
        """Do something once for a key: whoever repeats it meanwhile or later gets its document."""
        if name is None:
            return await work()
        found = self._repeats.get(name)
        if found is not None:
            return await asyncio.shield(found)
        future: asyncio.Future[Document] = asyncio.get_running_loop().create_future()
        self._repeats[name] = future
        if len(self._repeats) > MOST_REPEATS:
            self._repeats.popitem(last=False)
        try:
            document = await work()
        except BaseException as error:
            self._repeats.pop(name, None)
            if isinstance(error, Exception):
                future.set_exception(error)
                future.exception()  # whoever repeats it sees it; nobody may
            else:
                future.cancel()
            raise
        future.set_result(document)
        return document

    async def close(self) -> None:
        """End streams and background work; runtimes that were made here are closed."""
        self.closing.set()
        for task in list(self._background):
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        for runtime in self._runtimes.values():
            if runtime is not self.main:
                await runtime.close()


async def _resumed(runtime: Runtime, session_id: str) -> None:
    try:
        await runtime.resume(session_id)
    except (SessionBusy, LeaseHeld):
        pass  # whoever drives it looks into the inbox
    except HoldfastError:
        logger.warning("session %s did not go on", session_id, exc_info=True)
