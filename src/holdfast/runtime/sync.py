"""A synchronous face of the runtime, for scripts and notebooks.

One thread with one event loop does the work; calls from any other thread wait for it. Ctrl-C while
waiting breaks the work off cleanly: the interruption is recorded and the session can be resumed.
Runtime and session have the methods of the async ones, with the same arguments.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar, Unpack, overload

from holdfast.core.capability import Capability
from holdfast.core.errors import Refused
from holdfast.core.events import Event
from holdfast.core.messages import Message
from holdfast.core.payloads import Slot
from holdfast.core.state import State
from holdfast.models.port import Model
from holdfast.runtime.agent import Agent
from holdfast.runtime.compaction import Compaction
from holdfast.runtime.results import TurnResult
from holdfast.runtime.runtime import Opening, Runtime, open_runtime
from holdfast.runtime.session import WhenBusy
from holdfast.runtime.settings import Resolved, SettingsOptions
from holdfast.runtime.sync_session import Live, SyncSession
from holdfast.stores.port import (
    InboxItem,
    PendingFilter,
    PendingPage,
    SessionFilter,
    SessionPage,
    SessionStore,
)
from holdfast.views.calls import CallView
from holdfast.views.context import ContextView
from holdfast.views.families import Family
from holdfast.views.lineage import EdgeView, HeadView
from holdfast.views.messages import MessageView
from holdfast.views.transcript import TurnTranscript
from holdfast.views.turns import EvalView, LeafView, StepView, TurnView
from holdfast.views.variables import VariablesView

T = TypeVar("T")
_T = TypeVar("_T")

LINGER_SECONDS = 0.1
"""How long what other threads wait for may take to end by itself once the runtime is closed."""


AnySession = str | SyncSession[Any]
"""A session, by its handle or its id."""


class SyncRuntime:
    """A Runtime whose methods block."""

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

    def send(
        self,
        session: AnySession,
        message: str | Message,
        *,
        inputs: Mapping[str, Any] | None = None,
        when_busy: WhenBusy = "error",
        key: str | None = None,
        timeout: float | None = None,
        takeover: bool = False,
    ) -> TurnResult:
        """Work one message until a terminal outcome, reviving the session if it must be.

        A session with a turn in flight is SessionBusy, in another process LeaseHeld; with
        `when_busy="queue"` the message waits durably in the inbox instead. A `key` makes sending
        again harmless: the message is worked once, and its result returned each time; while there
        is none yet, InboxConsumed says so. Another message with the same key is InboxConflict.
        """
        return self.wait(
            self.runtime.send(
                _id(session),
                message,
                inputs=inputs,
                when_busy=when_busy,
                key=key,
                timeout=timeout,
                takeover=takeover,
            )
        )

    def result(self, session: AnySession, key: str) -> TurnResult:
        """Return what came of the message with a key: its result, `Queued` or `Pending`."""
        return self.wait(self.runtime.result(_id(session), key))

    def resume(
        self, session: AnySession, *, force: bool = False, takeover: bool = False
    ) -> TurnResult | None:
        """Go on with an interrupted turn and with queued messages; None if nothing was open."""
        return self.wait(self.runtime.resume(_id(session), force=force, takeover=takeover))

    def retry(self, session: AnySession, *, takeover: bool = False) -> TurnResult | None:
        """Take up the last turn again if it ended without a value, from where it stood."""
        return self.wait(self.runtime.retry(_id(session), takeover=takeover))

    def configure(
        self,
        session: AnySession,
        *,
        by: str | None = None,
        model: str | None = None,
        leaf_model: str | None = None,
        **settings: Unpack[SettingsOptions],
    ) -> None:
        """Change what a session is driven with from its next turn on."""
        self.wait(
            self.runtime.configure(
                _id(session), by=by, model=model, leaf_model=leaf_model, **settings
            )
        )

    def compact(
        self, session: AnySession, *strategies: str, takeover: bool = False
    ) -> Compaction | None:
        """Shorten a session's transcript now; None where nothing would be gained."""
        return self.wait(self.runtime.compact(_id(session), *strategies, takeover=takeover))

    def stop(self, session: AnySession) -> TurnResult | None:
        """Ask a session to end. Settles here if nobody drives it, else its driver does."""
        return self.wait(self.runtime.stop(_id(session)))

    def fork(
        self, session: AnySession, head: str | None = None, *, session_id: str | None = None
    ) -> SyncSession[Any]:
        """Create a session that goes on from a head of another, by default the current one."""
        return SyncSession(
            self, self.wait(self.runtime.fork(_id(session), head, session_id=session_id))
        )

    def state(self, session: AnySession) -> State:
        """Return the state at the tip of a session's log."""
        return self.wait(self.runtime.state(_id(session)))

    def sessions(
        self, where: SessionFilter | None = None, *, limit: int = 100, cursor: str | None = None
    ) -> SessionPage:
        """Return one page of sessions, newest first."""
        return self.wait(self.runtime.sessions(where, limit=limit, cursor=cursor))

    def subscribe(self, session: AnySession, *, after: int = 0) -> Iterator[Live]:
        """Follow a session: stored events, then live ones and token deltas."""
        return self.iterated(lambda: self.runtime.subscribe(_id(session), after=after))

    def recover(self) -> list[str]:
        """Take up, in the background, what was interrupted or waits in an inbox.

        That is every session whose agent is here, but for copies that nobody has taken over.
        """
        return self.wait(self.runtime.recover())

    def answer(
        self,
        session: AnySession,
        call_id: str,
        said: Any,
        *,
        wait: int | None = None,
        by: str | None = None,
    ) -> InboxItem:
        """Answer a call that waits: a value, `Approve()`, `Deny(reason)` or `Fail(error)`."""
        return self.wait(self.runtime.answer(_id(session), call_id, said, wait=wait, by=by))

    def extend(
        self, session: AnySession, call_id: str, deadline: datetime, *, by: str | None = None
    ) -> InboxItem:
        """Move the deadline of a call that waits."""
        return self.wait(self.runtime.extend(_id(session), call_id, deadline, by=by))

    def cancel(self, session: AnySession, call_id: str, *, by: str | None = None) -> InboxItem:
        """Call off a call that waits; its outcome is `cancelled`."""
        return self.wait(self.runtime.cancel(_id(session), call_id, by=by))

    def pending(
        self,
        where: PendingFilter | None = None,
        *,
        limit: int = 100,
        cursor: str | None = None,
    ) -> PendingPage:
        """Return one page of the calls of all sessions that wait for someone, oldest first."""
        return self.wait(self.runtime.pending(where, limit=limit, cursor=cursor))

    def tick(self) -> list[str]:
        """Apply every deadline that has passed; return the sessions that it concerned."""
        return self.wait(self.runtime.tick())

    def settled(self) -> None:
        """Wait until nothing is driven in the background."""
        return self.wait(self.runtime.settled())

    def messages(self, session_id: str, *, after: int = 0, limit: int = 100) -> list[MessageView]:
        """Return messages after a position of the log."""
        return self.wait(self.runtime.messages(session_id, after=after, limit=limit))

    def context(self, session_id: str) -> ContextView:
        """Return what the model would be sent now, and why each part is in or out."""
        return self.wait(self.runtime.context(session_id))

    def turns(self, session_id: str, *, after: int = 0, limit: int = 100) -> list[TurnView]:
        """Return turns that began after a position of the log."""
        return self.wait(self.runtime.turns(session_id, after=after, limit=limit))

    def steps(self, session_id: str, *, after: int = 0, limit: int = 100) -> list[StepView]:
        """Return steps that began after a position of the log."""
        return self.wait(self.runtime.steps(session_id, after=after, limit=limit))

    def calls(self, session_id: str, *, after: int = 0, limit: int = 100) -> list[CallView]:
        """Return calls that were requested after a position of the log."""
        return self.wait(self.runtime.calls(session_id, after=after, limit=limit))

    def open_calls(self, session_id: str) -> list[CallView]:
        """Return the calls that have no outcome, oldest first."""
        return self.wait(self.runtime.open_calls(session_id))

    def evals(self, session_id: str, *, after: int = 0, limit: int = 100) -> list[EvalView]:
        """Return evaluated cells after a position of the log."""
        return self.wait(self.runtime.evals(session_id, after=after, limit=limit))

    def leaves(self, session_id: str, *, after: int = 0, limit: int = 100) -> list[LeafView]:
        """Return leaf calls after a position of the log."""
        return self.wait(self.runtime.leaves(session_id, after=after, limit=limit))

    def heads(self, session_id: str, *, after: int = 0, limit: int = 100) -> list[HeadView]:
        """Return heads after a position of the log."""
        return self.wait(self.runtime.heads(session_id, after=after, limit=limit))

    def edges(self, session_id: str, *, after: int = 0, limit: int = 100) -> list[EdgeView]:
        """Return lineage edges after a position of the log."""
        return self.wait(self.runtime.edges(session_id, after=after, limit=limit))

    def events(
        self,
        session_id: str,
        *,
        after: int = 0,
        before: int | None = None,
        limit: int = 1000,
        reverse: bool = False,
        types: Sequence[str] | None = None,
    ) -> list[Event]:
        """Return raw events between positions of the log."""
        return self.wait(
            self.runtime.events(
                session_id, after=after, before=before, limit=limit, reverse=reverse, types=types
            )
        )

    def transcript(
        self, session_id: str, *, turn: int | None = None
    ) -> Iterator[TurnTranscript | Event]:
        """Yield turns with all that happened in them, oldest first; only one where it is named.

        An event before the first turn that this release does not know comes as it is.
        """
        return self.iterated(lambda: self.runtime.transcript(session_id, turn=turn))

    def variables(self, session_id: str) -> VariablesView:
        """Return the namespace at the last checkpoint; nothing is run or loaded."""
        return self.wait(self.runtime.variables(session_id))

    def tree(self, session_id: str | None = None) -> Family:
        """Return the family of a session, or every family of the store, with its relations."""
        return self.wait(self.runtime.tree(session_id))

    def value(self, session_id: str, item: Slot) -> Any:
        """Return the value of a slot."""
        return self.wait(self.runtime.value(session_id, item))

    def payload(self, session_id: str, payload_id: str) -> bytes:
        """Return the bytes of a payload that the session refers to."""
        return self.wait(self.runtime.payload(session_id, payload_id))

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


def _id(session: AnySession) -> str:
    return session.id if isinstance(session, SyncSession) else session


def open_sync(
    store: str | Path | SessionStore | None = None,
    *,
    model: str | Model | None = None,
    leaf_model: str | Model | None = None,
    agents: Iterable[Agent[Any]] = (),
    recover: bool = False,
    allow_unconfined: bool = False,
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
            **settings,
        )
    )
