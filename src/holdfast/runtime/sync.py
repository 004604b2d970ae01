"""A synchronous face of the runtime, for scripts and notebooks.

One thread with one event loop does the work; calls from any other thread wait for it. Ctrl-C while
waiting breaks the work off cleanly: the interruption is recorded and the session can be resumed.
Runtime and session have the methods of the async ones, with the same arguments.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
)
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypeVar, Unpack, overload

from holdfast.core.capability import Capability
from holdfast.core.errors import Refused
from holdfast.core.events import Event
from holdfast.models.port import Model
from holdfast.runtime.agent import Agent
from holdfast.runtime.runtime import Opening, Runtime, open_runtime
from holdfast.runtime.session import AnySession
from holdfast.runtime.settings import Resolved, SettingsOptions
from holdfast.runtime.sync_session import Live, SyncSession
from holdfast.stores.port import (
    SessionStore,
)
from holdfast.views.transcript import TurnTranscript

T = TypeVar("T")
_T = TypeVar("_T")
P = ParamSpec("P")

LINGER_SECONDS = 0.1
"""How long what other threads wait for may take to end by itself once the runtime is closed."""


def blocking(
    method: Callable[Concatenate[Runtime, P], Coroutine[Any, Any, _T]],
) -> Callable[Concatenate[SyncRuntime, P], _T]:
    """Return a method of the runtime as one that blocks, with the same arguments and types."""

    @functools.wraps(method)
    def call(self: SyncRuntime, /, *args: P.args, **kwargs: P.kwargs) -> _T:
        return self.wait(method(self.runtime, *args, **kwargs))

    return call


class SyncRuntime:
    """A Runtime whose methods block."""

    send = blocking(Runtime.send)
    result = blocking(Runtime.result)
    resume = blocking(Runtime.resume)
    retry = blocking(Runtime.retry)
    configure = blocking(Runtime.configure)
    compact = blocking(Runtime.compact)
    stop = blocking(Runtime.stop)
    recover = blocking(Runtime.recover)
    settled = blocking(Runtime.settled)

    answer = blocking(Runtime.answer)
    extend = blocking(Runtime.extend)
    cancel = blocking(Runtime.cancel)
    pending = blocking(Runtime.pending)
    tick = blocking(Runtime.tick)
    audit = blocking(Runtime.audit)
    delete_tenant = blocking(Runtime.delete_tenant)

    call = blocking(Runtime.call)
    record = blocking(Runtime.record)
    record_all = blocking(Runtime.record_all)
    retract = blocking(Runtime.retract)
    records = blocking(Runtime.records)
    latest = blocking(Runtime.latest)
    record_keys = blocking(Runtime.record_keys)

    state = blocking(Runtime.state)
    sessions = blocking(Runtime.sessions)
    messages = blocking(Runtime.messages)
    context = blocking(Runtime.context)
    turns = blocking(Runtime.turns)
    steps = blocking(Runtime.steps)
    evals = blocking(Runtime.evals)
    leaves = blocking(Runtime.leaves)
    calls = blocking(Runtime.calls)
    open_calls = blocking(Runtime.open_calls)
    heads = blocking(Runtime.heads)
    edges = blocking(Runtime.edges)
    tree = blocking(Runtime.tree)
    variables = blocking(Runtime.variables)
    events = blocking(Runtime.events)
    value = blocking(Runtime.value)
    payload = blocking(Runtime.payload)
    erase = blocking(Runtime.erase)

    def __init__(self, opening: Opening) -> None:
        self._loop = asyncio.new_event_loop()
        self._closing = threading.Lock()
        self._submitting = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="holdfast-runtime", daemon=True
        )
        self._thread.start()
        try:
            self.runtime: Runtime = self.wait(_awaited(opening))
        except BaseException:
            self._end()
            raise

    @property
    def store(self) -> SessionStore:
        """Return the store, which is async: use it in `runtime` code only."""
        return self.runtime.store

    @property
    def agents(self) -> Mapping[str, Agent[Any]]:
        """Return the agents that this runtime can drive, by name."""
        return self.runtime.agents

    @property
    def resolved(self) -> Resolved:
        """Return the settings of this runtime, with where each came from."""
        return self.runtime.resolved

    def __enter__(self) -> SyncRuntime:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @overload
    def session(
        self,
        session_id: str,
        *,
        agent: Agent[T],
        create: bool = ...,
        labels: Mapping[str, str] | None = ...,
        capability: Capability | None = ...,
    ) -> SyncSession[T]: ...

    @overload
    def session(
        self,
        session_id: str,
        *,
        agent: str | None = ...,
        create: bool = ...,
        labels: Mapping[str, str] | None = ...,
        capability: Capability | None = ...,
    ) -> SyncSession[Any]: ...

    def session(
        self,
        session_id: str,
        *,
        agent: str | Agent[Any] | None = None,
        create: bool = False,
        labels: Mapping[str, str] | None = None,
        capability: Capability | None = None,
    ) -> SyncSession[Any]:
        """Return the handle of a session; with `create` it is made where there is none yet.

        One that exists is returned as it is, whatever the settings, folder, limits or version of
        today are; only another agent is refused. Awaiting the handle does it at once,
        otherwise its first call does.
        """
        handle = self.runtime.session(
            session_id,
            agent=agent,
            create=create,
            labels=labels,
            capability=capability,
        )
        return SyncSession(self, self.wait(_awaited(handle)))

    @overload
    def start(
        self,
        *,
        session_id: str | None = ...,
        agent: Agent[T],
        tenant: str | None = ...,
        labels: Mapping[str, str] | None = ...,
        capability: Capability | None = ...,
        model: str | None = ...,
        leaf_model: str | None = ...,
        **settings: Unpack[SettingsOptions],
    ) -> SyncSession[T]: ...

    @overload
    def start(
        self,
        *,
        session_id: str | None = ...,
        agent: str | None = ...,
        tenant: str | None = ...,
        labels: Mapping[str, str] | None = ...,
        capability: Capability | None = ...,
        model: str | None = ...,
        leaf_model: str | None = ...,
        **settings: Unpack[SettingsOptions],
    ) -> SyncSession[Any]: ...

    def start(
        self,
        *,
        session_id: str | None = None,
        agent: str | Agent[Any] | None = None,
        tenant: str | None = None,
        labels: Mapping[str, str] | None = None,
        capability: Capability | None = None,
        model: str | None = None,
        leaf_model: str | None = None,
        **settings: Unpack[SettingsOptions],
    ) -> SyncSession[Any]:
        """Create a session; the same id with the same settings returns the one that exists."""
        return SyncSession(
            self,
            self.wait(
                self.runtime.start(
                    session_id=session_id,
                    agent=agent,
                    tenant=tenant,
                    labels=labels,
                    capability=capability,
                    model=model,
                    leaf_model=leaf_model,
                    **settings,
                )
            ),
        )

    def fork(
        self,
        session: AnySession,
        head: str | None = None,
        *,
        step: int | None = None,
        model: str | None = None,
        agent: str | Agent[Any] | None = None,
        session_id: str | None = None,
    ) -> SyncSession[Any]:
        """Create a session that goes on from a head of another, or from a step of it."""
        forked = self.runtime.fork(
            session, head, step=step, model=model, agent=agent, session_id=session_id
        )
        return SyncSession(self, self.wait(forked))

    def subscribe(self, session: AnySession, *, after: int = 0) -> Iterator[Live]:
        """Follow a session: stored events, then live ones and token deltas."""
        return self.iterated(lambda: self.runtime.subscribe(session, after=after))

    def transcript(
        self, session_id: str, *, turn: int | None = None
    ) -> Iterator[TurnTranscript | Event]:
        """Yield turns with all that happened in them, oldest first; only one where it is named.

        An event before the first turn that this release does not know comes as it is.
        """
        return self.iterated(lambda: self.runtime.transcript(session_id, turn=turn))

    def close(self) -> None:
        """Close the runtime and its thread; may be called again, and from several threads."""
        with self._closing:
            if not self._closed:
                self.wait(self.runtime.close())
                self._end()

    def iterated(self, begin: Callable[[], AsyncIterator[_T]]) -> Iterator[_T]:
        """Yield what an async iterator yields, until the caller stops."""

        async def begun() -> AsyncIterator[_T]:
            return begin()

        items = self.wait(begun())
        try:
            while True:
                try:
                    yield self.wait(_next(items))
                except (StopAsyncIteration, CancelledError):
                    return
                except Refused:
                    if self._closed:
                        return  # by another thread
                    raise
        finally:
            close = getattr(items, "aclose", None) or getattr(items, "close", None)
            if close is not None:
                with suppress(Refused):
                    self.wait(close())

    def wait(self, work: Coroutine[Any, Any, _T]) -> _T:
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


async def _awaited(work: Awaitable[_T]) -> _T:
    return await work


async def _next(items: AsyncIterator[_T]) -> _T:
    return await anext(items)


def open_sync(
    store: str | Path | SessionStore | None = None,
    *,
    model: str | Model | None = None,
    leaf_model: str | Model | None = None,
    agents: Iterable[Agent[Any]] = (),
    recover: bool = False,
    allow_unconfined: bool = False,
    packages_from: str | Path | None = None,
    scopes: Callable[[str], Any] | None = None,
    secrets: Callable[[str], Any] | None = None,
    redact: Callable[[str, Any], Any] | None = None,
    **settings: Unpack[SettingsOptions],
) -> SyncRuntime:
    """Open a runtime whose methods block; see `holdfast.open`."""
    return SyncRuntime(
        open_runtime(
            store,
            model=model,
            leaf_model=leaf_model,
            agents=agents,
            recover=recover,
            allow_unconfined=allow_unconfined,
            packages_from=packages_from,
            scopes=scopes,
            secrets=secrets,
            redact=redact,
            **settings,
        )
    )
