"""A synchronous face of one session: the methods of `Session`, which block.

The event loop of its runtime does the work, see `holdfast.runtime.sync`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Unpack

from holdfast.core.events import Event
from holdfast.core.messages import Message
from holdfast.core.payloads import Slot
from holdfast.core.state import State
from holdfast.runtime.compaction import Compaction
from holdfast.runtime.results import ResultOf
from holdfast.runtime.session import Session, WhenBusy
from holdfast.runtime.settings import SettingsOptions
from holdfast.stores.port import Gap, Hint, InboxItem, Transient
from holdfast.views.calls import CallView
from holdfast.views.context import ContextView
from holdfast.views.families import Family
from holdfast.views.lineage import EdgeView, HeadView
from holdfast.views.messages import MessageView
from holdfast.views.transcript import TurnTranscript
from holdfast.views.turns import EvalView, LeafView, StepView, TurnView
from holdfast.views.variables import VariablesView

if TYPE_CHECKING:
    from holdfast.runtime.sync import SyncRuntime

T = TypeVar("T")
Live = Event | Transient | Gap | Hint
"""What a subscription yields."""


class SyncSession(Generic[T]):
    """A session whose methods block; `T` is the type of its final values."""

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
            )
        )

    def result(self, key: str) -> ResultOf[T]:
        """Return what came of the message with a key; see `Runtime.result`."""
        return self.runtime.wait(self._session.result(key))

    def resume(self, *, force: bool = False, takeover: bool = False) -> ResultOf[T] | None:
        """Go on with what is open; see `Runtime.resume`."""
        return self.runtime.wait(self._session.resume(force=force, takeover=takeover))

    def retry(self, *, takeover: bool = False) -> ResultOf[T] | None:
        """Take up the last turn again if it ended without a value; see `Runtime.retry`."""
        return self.runtime.wait(self._session.retry(takeover=takeover))

    def configure(
        self,
        *,
        by: str | None = None,
        model: str | None = None,
        leaf_model: str | None = None,
        **settings: Unpack[SettingsOptions],
    ) -> None:
        """Change what the session is driven with from its next turn on; see `Runtime.configure`."""
        self.runtime.wait(
            self._session.configure(by=by, model=model, leaf_model=leaf_model, **settings)
        )

    def compact(self, *strategies: str, takeover: bool = False) -> Compaction | None:
        """Shorten the transcript now; see `Runtime.compact`."""
        return self.runtime.wait(self._session.compact(*strategies, takeover=takeover))

    def stop(self) -> ResultOf[T] | None:
        """End the session; see `Runtime.stop`."""
        return self.runtime.wait(self._session.stop())

    def fork(self, head: str | None = None, *, session_id: str | None = None) -> SyncSession[T]:
        """Create a session that goes on from a head of this one; see `Runtime.fork`."""
        return SyncSession(
            self.runtime, self.runtime.wait(self._session.fork(head, session_id=session_id))
        )

    def answer(
        self, call_id: str, said: Any, *, wait: int | None = None, by: str | None = None
    ) -> InboxItem:
        """Answer a call that waits; see `Runtime.answer`."""
        return self.runtime.wait(self._session.answer(call_id, said, wait=wait, by=by))

    def extend(self, call_id: str, deadline: datetime, *, by: str | None = None) -> InboxItem:
        """Move the deadline of a call that waits."""
        return self.runtime.wait(self._session.extend(call_id, deadline, by=by))

    def cancel(self, call_id: str, *, by: str | None = None) -> InboxItem:
        """Call off a call that waits; its outcome is `cancelled`."""
        return self.runtime.wait(self._session.cancel(call_id, by=by))

    def state(self) -> State:
        """Return the state at the tip."""
        return self.runtime.wait(self._session.state())

    def messages(self, *, after: int = 0, limit: int = 100) -> list[MessageView]:
        """Return messages after a position of the log, first those that a fork inherited."""
        return self.runtime.wait(self._session.messages(after=after, limit=limit))

    def context(self) -> ContextView:
        """Return what the model would be sent now, and why each part is in or out."""
        return self.runtime.wait(self._session.context())

    def turns(self, *, after: int = 0, limit: int = 100) -> list[TurnView]:
        """Return turns that began after a position of the log."""
        return self.runtime.wait(self._session.turns(after=after, limit=limit))

    def steps(self, *, after: int = 0, limit: int = 100) -> list[StepView]:
        """Return steps that began after a position of the log."""
        return self.runtime.wait(self._session.steps(after=after, limit=limit))

    def evals(self, *, after: int = 0, limit: int = 100) -> list[EvalView]:
        """Return evaluated cells after a position of the log."""
        return self.runtime.wait(self._session.evals(after=after, limit=limit))

    def leaves(self, *, after: int = 0, limit: int = 100) -> list[LeafView]:
        """Return leaf calls after a position of the log."""
        return self.runtime.wait(self._session.leaves(after=after, limit=limit))

    def calls(self, *, after: int = 0, limit: int = 100) -> list[CallView]:
        """Return calls that were requested after a position of the log."""
        return self.runtime.wait(self._session.calls(after=after, limit=limit))

    def open_calls(self) -> list[CallView]:
        """Return the calls that have no outcome, oldest first."""
        return self.runtime.wait(self._session.open_calls())

    def heads(self, *, after: int = 0, limit: int = 100) -> list[HeadView]:
        """Return heads after a position of the log."""
        return self.runtime.wait(self._session.heads(after=after, limit=limit))

    def edges(self, *, after: int = 0, limit: int = 100) -> list[EdgeView]:
        """Return lineage edges after a position of the log."""
        return self.runtime.wait(self._session.edges(after=after, limit=limit))

    def tree(self) -> Family:
        """Return the family of the session: parents, children and forks, with their cost."""
        return self.runtime.wait(self._session.tree())

    def variables(self) -> VariablesView:
        """Return the namespace at the last checkpoint; nothing is run or loaded."""
        return self.runtime.wait(self._session.variables())

    def events(
        self,
        *,
        after: int = 0,
        before: int | None = None,
        limit: int = 1000,
        reverse: bool = False,
        types: Sequence[str] | None = None,
    ) -> list[Event]:
        """Return raw events between positions of the log."""
        return self.runtime.wait(
            self._session.events(
                after=after, before=before, limit=limit, reverse=reverse, types=types
            )
        )

    def transcript(self, *, turn: int | None = None) -> Iterator[TurnTranscript | Event]:
        """Yield turns with all that happened in them, oldest first; only one where it is named."""
        return self.runtime.iterated(lambda: self._session.transcript(turn=turn))

    def value(self, item: Slot) -> Any:
        """Return the value of a slot."""
        return self.runtime.wait(self._session.value(item))

    def payload(self, payload_id: str) -> bytes:
        """Return the bytes of a payload that the session refers to."""
        return self.runtime.wait(self._session.payload(payload_id))

    def subscribe(self, *, after: int = 0) -> Iterator[Live]:
        """Follow the session: stored events, then live ones and token deltas."""
        return self.runtime.iterated(lambda: self._session.subscribe(after=after))
