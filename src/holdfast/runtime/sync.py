"""A synchronous face of the runtime, for scripts and notebooks.

One thread with one event loop does the work; calls from any other thread wait for it. Ctrl-C while
waiting breaks the work off cleanly: the interruption is recorded and the session can be resumed.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from types import TracebackType
from typing import Any, TypeVar

from holdfast.core.messages import Message
from holdfast.core.state import State
from holdfast.runtime.results import TurnResult
from holdfast.runtime.runtime import Runtime, open_runtime
from holdfast.stores.port import SessionFilter, SessionPage

_T = TypeVar("_T")


class SyncRuntime:
    """A Runtime whose methods block."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="holdfast-runtime", daemon=True
        )
        self._thread.start()
        try:
            self.runtime: Runtime = self._wait(open_runtime(*arguments, **options))
        except BaseException:
            self._end()
            raise

    def __enter__(self) -> SyncRuntime:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def start(self, **options: Any) -> str:
        """Create a session and return its id."""

        async def work() -> str:
            return (await self.runtime.start(**options)).id

        return self._wait(work())

    def send(self, session_id: str, message: str | Message, **options: Any) -> TurnResult:
        """Work one message until a terminal outcome."""
        return self._wait(self.runtime.send(session_id, message, **options))

    def resume(self, session_id: str, **options: Any) -> TurnResult | None:
        """Go on with what is open."""
        return self._wait(self.runtime.resume(session_id, **options))

    def stop(self, session_id: str) -> TurnResult | None:
        """Ask a session to end."""
        return self._wait(self.runtime.stop(session_id))

    def fork(self, session_id: str, head: str | None = None, **options: Any) -> str:
        """Fork a session and return the new id."""

        async def work() -> str:
            return (await self.runtime.fork(session_id, head, **options)).id

        return self._wait(work())

    def state(self, session_id: str) -> State:
        """Return the state at the tip of a session's log."""
        return self._wait(self.runtime.state(session_id))

    def sessions(self, where: SessionFilter | None = None, **options: Any) -> SessionPage:
        """Return one page of sessions."""
        return self._wait(self.runtime.sessions(where, **options))

    def read(self, what: str, session_id: str, **options: Any) -> Any:
        """Return a page of history: messages, turns, steps, evals, leaves, calls, heads, edges."""
        return self._wait(getattr(self.runtime, what)(session_id, **options))

    def follow(self, session_id: str, *, after: int = 0) -> Iterator[Any]:
        """Yield a session's stored and live items until the caller stops iterating."""

        async def begin() -> Any:
            return self.runtime.subscribe(session_id, after=after)

        subscription = self._wait(begin())
        try:
            while True:
                try:
                    yield self._wait(anext(subscription))
                except StopAsyncIteration:
                    return
        finally:
            self._wait(subscription.close())

    def close(self) -> None:
        """Close the runtime and its thread; may be called again."""
        if self._thread.is_alive():
            self._wait(self.runtime.close())
            self._end()

    def _wait(self, work: Coroutine[Any, Any, _T]) -> _T:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            raise

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
