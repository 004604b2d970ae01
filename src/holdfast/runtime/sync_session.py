"""A synchronous face of one session: the methods of `Session`, which block.

The event loop of its runtime does the work, see `holdfast.runtime.sync`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar

from holdfast.core.events import Event
from holdfast.core.messages import Message
from holdfast.runtime.results import ResultOf
from holdfast.runtime.session import Session, WhenBusy
from holdfast.stores.port import Gap, Hint, Transient
from holdfast.views.transcript import TurnTranscript

if TYPE_CHECKING:
    from holdfast.runtime.agent import Agent
    from holdfast.runtime.sync import SyncRuntime

T = TypeVar("T")
R = TypeVar("R")
P = ParamSpec("P")
Live = Event | Transient | Gap | Hint
"""What a subscription yields."""


def blocking(
    method: Callable[Concatenate[Session[Any], P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[SyncSession[Any], P], R]:
    """Return a method of a session as one that blocks, with the same arguments and types."""

    @functools.wraps(method)
    def call(self: SyncSession[Any], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.runtime.wait(method(self._session, *args, **kwargs))

    return call


class SyncSession(Generic[T]):
    """A session whose methods block; `T` is the type of its final values."""

    configure = blocking(Session.configure)
    compact = blocking(Session.compact)
    answer = blocking(Session.answer)
    extend = blocking(Session.extend)
    cancel = blocking(Session.cancel)
    call = blocking(Session.call)
    record = blocking(Session.record)
    record_all = blocking(Session.record_all)
    retract = blocking(Session.retract)
    records = blocking(Session.records)
    latest = blocking(Session.latest)
    audit = blocking(Session.audit)
    record_keys = blocking(Session.record_keys)
    state = blocking(Session.state)
    messages = blocking(Session.messages)
    context = blocking(Session.context)
    turns = blocking(Session.turns)
    steps = blocking(Session.steps)
    evals = blocking(Session.evals)
    leaves = blocking(Session.leaves)
    calls = blocking(Session.calls)
    open_calls = blocking(Session.open_calls)
    heads = blocking(Session.heads)
    edges = blocking(Session.edges)
    tree = blocking(Session.tree)
    variables = blocking(Session.variables)
    events = blocking(Session.events)
    value = blocking(Session.value)
    payload = blocking(Session.payload)
    erase = blocking(Session.erase)

    def __init__(self, runtime: SyncRuntime, session: Session[T]) -> None:
        self.runtime = runtime
        self._session = session

    @property
    def id(self) -> str:
        """Return the id of the session."""
        return self._session.id

    def __repr__(self) -> str:
        return f"SyncSession({self.id!r})"

    def ask(
        self,
        message: str | Message,
        *,
        inputs: Mapping[str, Any] | None = None,
        when_busy: WhenBusy = "error",
        key: str | None = None,
        timeout: float | None = None,
        takeover: bool = False,
        scope: Any = None,
    ) -> T:
        """Return the final value of a message's turn; raise TurnNotFinal with any other result."""
        return self.runtime.wait(
            self._session.ask(
                message,
                inputs=inputs,
                when_busy=when_busy,
                key=key,
                timeout=timeout,
                takeover=takeover,
                scope=scope,
            )
        )

    def send(
        self,
        message: str | Message,
        *,
        inputs: Mapping[str, Any] | None = None,
        when_busy: WhenBusy = "error",
        key: str | None = None,
        timeout: float | None = None,
        takeover: bool = False,
        scope: Any = None,
        wait: bool = True,
    ) -> ResultOf[T]:
        """Work one message until a terminal outcome; see `Runtime.send`."""
        return self.runtime.wait(
            self._session.send(
                message,
                inputs=inputs,
                when_busy=when_busy,
                key=key,
                timeout=timeout,
                takeover=takeover,
                scope=scope,
                wait=wait,
            )
        )

    def result(self, key: str) -> ResultOf[T]:
        """Return what came of the message with a key; see `Runtime.result`."""
        return self.runtime.wait(self._session.result(key))

    def resume(
        self, *, force: bool = False, takeover: bool = False, scope: Any = None
    ) -> ResultOf[T] | None:
        """Go on with what is open; see `Runtime.resume`."""
        return self.runtime.wait(self._session.resume(force=force, takeover=takeover, scope=scope))

    def retry(self, *, takeover: bool = False) -> ResultOf[T] | None:
        """Take up the last turn again if it ended without a value; see `Runtime.retry`."""
        return self.runtime.wait(self._session.retry(takeover=takeover))

    def stop(self) -> ResultOf[T] | None:
        """End the session; see `Runtime.stop`."""
        return self.runtime.wait(self._session.stop())

    def fork(
        self,
        head: str | None = None,
        *,
        step: int | None = None,
        model: str | None = None,
        agent: str | Agent[Any] | None = None,
        session_id: str | None = None,
    ) -> SyncSession[T]:
        """Create a session that goes on from a head of this one; see `Runtime.fork`."""
        return SyncSession(
            self.runtime,
            self.runtime.wait(
                self._session.fork(head, step=step, model=model, agent=agent, session_id=session_id)
            ),
        )

    def transcript(self, *, turn: int | None = None) -> Iterator[TurnTranscript | Event]:
        """Yield turns with all that happened in them, oldest first; only one where it is named."""
        return self.runtime.iterated(lambda: self._session.transcript(turn=turn))

    def subscribe(self, *, after: int = 0) -> Iterator[Live]:
        """Follow the session: stored events, then live ones and token deltas."""
        return self.runtime.iterated(lambda: self._session.subscribe(after=after))
