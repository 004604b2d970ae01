"""A synchronous face of the runtime, for scripts and notebooks.

One thread with one event loop does the work; calls from any other thread wait for it. Ctrl-C while
waiting breaks the work off cleanly: the interruption is recorded and the session can be resumed.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from types import TracebackType
from typing import Any, TypeVar

from holdfast.core.errors import InvalidInput, Refused
from holdfast.core.messages import Message
from holdfast.core.state import State
from holdfast.runtime.results import TurnResult
from holdfast.runtime.runtime import Runtime, open_runtime
from holdfast.stores.port import SessionFilter, SessionPage

_T = TypeVar("_T")

PAGES = ("messages", "turns", "steps", "evals", "leaves", "calls", "heads", "edges")
"""What `read` shows."""
LINGER_SECONDS = 0.1
"""How long what other threads wait for may take to end by itself once the runtime is closed."""


class SyncRuntime:
    """A Runtime whose methods block."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._closing = threading.Lock()
        self._submitting = threading.Lock()
        self._closed = False
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
        if what not in PAGES:
            raise InvalidInput(f"{ascii(what)[:80]} is no page of history; use {', '.join(PAGES)}")
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
                except (StopAsyncIteration, CancelledError):
                    # Another thread closed the runtime, or the session is gone.
                    return
        finally:
            with suppress(Refused):
                self._wait(subscription.close())

    def close(self) -> None:
        """Close the runtime and its thread; may be called again, and from several threads."""
        with self._closing:
            if not self._closed:
                self._wait(self.runtime.close())
                self._end()

    def _wait(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Return what the work in the loop's thread comes to; Ctrl-C breaks it off and waits."""
        tasks: list[asyncio.Task[_T]] = []
        interrupted = False

        async def whole() -> _T:
            task = asyncio.ensure_future(work)
            tasks.append(task)
            if interrupted:
                task.cancel()
            return await task

        def break_off() -> None:
            for task in tasks:
                task.cancel()

        future = self._submit(work, whole())
        try:
            return future.result()
        except KeyboardInterrupt:
            # Only once it is over is the interruption on record and the session free again.
            interrupted = True
            self._loop.call_soon_threadsafe(break_off)
            with suppress(Exception, CancelledError):
                future.result()
            raise

    def _submit(self, work: Coroutine[Any, Any, _T], whole: Coroutine[Any, Any, _T]) -> Future[_T]:
        problem = ""
        with self._submitting:
            if self._closed:
                problem = "this runtime is closed; open another"
            elif threading.current_thread() is self._thread:
                problem = (
                    "the blocking runtime was called from inside its own work, which it would "
                    "wait for without end; use its async `runtime` there"
                )
            else:
                return asyncio.run_coroutine_threadsafe(whole, self._loop)
        whole.close()
        work.close()
        raise Refused(problem)

    def _end(self) -> None:
        with self._submitting:
            self._closed = True
            ended = asyncio.run_coroutine_threadsafe(_end_the_rest(), self._loop)
        ended.result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _end_the_rest() -> None:
    """End what other threads still wait for, so that none of them waits for ever."""
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    if rest:
        _, rest = await asyncio.wait(rest, timeout=LINGER_SECONDS)
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)
