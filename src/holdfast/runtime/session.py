"""The session handle: one session by its id, with everything that can be asked of it.

A handle holds nothing of the session: every call reads the store, or drives the session under its
lease. It may be awaited, which proves that the session is there, and creates it where that was
asked for; otherwise the first call does so.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeVar, Unpack

from holdfast.core.events import Event
from holdfast.core.ids import check_id
from holdfast.core.messages import Message
from holdfast.core.payloads import Slot
from holdfast.core.state import State
from holdfast.runtime.compaction import Compaction
from holdfast.runtime.erasing import Erasure
from holdfast.runtime.results import ResultOf
from holdfast.runtime.settings import SettingsOptions
from holdfast.runtime.tools import Tool
from holdfast.stores.port import AuditRow, InboxItem, Subscription
from holdfast.views.calls import CallView
from holdfast.views.context import ContextView
from holdfast.views.families import Family
from holdfast.views.lineage import EdgeView, HeadView
from holdfast.views.messages import MessageView
from holdfast.views.records import RecordView
from holdfast.views.transcript import TurnTranscript
from holdfast.views.turns import EvalView, LeafView, StepView, TurnView
from holdfast.views.variables import VariablesView

if TYPE_CHECKING:
    from holdfast.runtime.agent import Agent
    from holdfast.runtime.embedding import Latest, Record
    from holdfast.runtime.runtime import Runtime

T = TypeVar("T")

WhenBusy = Literal["error", "queue", "steer", "interrupt"]


class Handle(Protocol):
    """A session's handle, async or blocking."""

    @property
    def id(self) -> str:
        """Return the id of the session."""


AnySession = str | Handle
"""A session, by its handle or its id."""


def id_of(session: AnySession) -> str:
    """Return the id of a session."""
    return check_id(getattr(session, "id", session))


class Session(Generic[T]):
    """A session of a runtime, by its id; `T` is the type of its final values."""

    def __init__(
        self,
        runtime: Runtime,
        session_id: str,
        *,
        create: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.runtime = runtime
        self.id = session_id
        self._create = create

    def __repr__(self) -> str:
        return f"Session({self.id!r})"

    def __await__(self) -> Generator[Any, None, Session[T]]:
        return self._found().__await__()

    async def _found(self) -> Session[T]:
        if self._create is None:
            await self.runtime.store.load_state(self.id)
        await self._there()
        return self

    async def _there(self) -> str:
        """Create the session if that was asked for and is still to be done; return its id."""
        if self._create is not None:
            await self._create()
            self._create = None
        return self.id

    async def ask(
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
        result = await self.send(
            message,
            inputs=inputs,
            when_busy=when_busy,
            key=key,
            timeout=timeout,
            takeover=takeover,
            scope=scope,
        )
        value: T = result.unwrap()
        return value

    async def send(
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
        return await self.runtime.send(
            await self._there(),
            message,
            inputs=inputs,
            when_busy=when_busy,
            key=key,
            timeout=timeout,
            takeover=takeover,
            scope=scope,
            wait=wait,
        )

    async def result(self, key: str) -> ResultOf[T]:
        """Return what came of the message with a key; see `Runtime.result`."""
        return await self.runtime.result(await self._there(), key)

    async def resume(
        self, *, force: bool = False, takeover: bool = False, scope: Any = None
    ) -> ResultOf[T] | None:
        """Go on with what is open; see `Runtime.resume`."""
        there = await self._there()
        return await self.runtime.resume(there, force=force, takeover=takeover, scope=scope)

    async def retry(self, *, takeover: bool = False) -> ResultOf[T] | None:
        """Take up the last turn again if it ended without a value; see `Runtime.retry`."""
        return await self.runtime.retry(await self._there(), takeover=takeover)

    async def configure(
        self,
        *,
        by: str | None = None,
        now: bool = False,
        model: str | None = None,
        leaf_model: str | None = None,
        **settings: Unpack[SettingsOptions],
    ) -> None:
        """Change what the session is driven with from its next turn on; see `Runtime.configure`."""
        await self.runtime.configure(
            await self._there(), by=by, now=now, model=model, leaf_model=leaf_model, **settings
        )

    async def compact(self, *strategies: str, takeover: bool = False) -> Compaction | None:
        """Shorten the transcript now; see `Runtime.compact`."""
        return await self.runtime.compact(await self._there(), *strategies, takeover=takeover)

    async def stop(self) -> ResultOf[T] | None:
        """End the session; see `Runtime.stop`."""
        return await self.runtime.stop(await self._there())

    async def fork(
        self,
        head: str | None = None,
        *,
        step: int | None = None,
        model: str | None = None,
        agent: str | Agent[Any] | None = None,
        session_id: str | None = None,
    ) -> Session[T]:
        """Create a session that goes on from a head of this one; see `Runtime.fork`."""
        fork: Session[T] = await self.runtime.fork(
            await self._there(), head, step=step, model=model, agent=agent, session_id=session_id
        )
        return fork

    async def answer(
        self,
        call_id: str,
        said: Any,
        *,
        wait: int | None = None,
        by: str | None = None,
        scope: Any = None,
    ) -> InboxItem:
        """Answer a call that waits; see `Runtime.answer`."""
        there = await self._there()
        return await self.runtime.answer(there, call_id, said, wait=wait, by=by, scope=scope)

    async def extend(self, call_id: str, deadline: datetime, *, by: str | None = None) -> InboxItem:
        """Move the deadline of a call that waits."""
        return await self.runtime.extend(await self._there(), call_id, deadline, by=by)

    async def cancel(self, call_id: str, *, by: str | None = None) -> InboxItem:
        """Call off a call that waits; its outcome is `cancelled`."""
        return await self.runtime.cancel(await self._there(), call_id, by=by)

    async def call(
        self,
        tool: Callable[..., Any] | Tool,
        arguments: Mapping[str, Any] | None = None,
        *,
        key: str,
        name: str | None = None,
        scope: Any = None,
    ) -> Any:
        """Make a call through the ledger, once per key; see `Runtime.call`."""
        return await self.runtime.call(
            await self._there(), tool, arguments, key=key, name=name, scope=scope
        )

    async def record(
        self, kind: str, value: Any, *, key: str | None = None, expected: int | None = None
    ) -> RecordView:
        """Keep a value in the log; see `Runtime.record`."""
        return await self.runtime.record(
            await self._there(), kind, value, key=key, expected=expected
        )

    async def record_all(
        self,
        records: Sequence[Record],
        *,
        retracts: Sequence[int] = (),
        expected: Mapping[Latest, int] | None = None,
    ) -> list[RecordView]:
        """Keep several values, and retract others, in one batch; see `Runtime.record_all`."""
        return await self.runtime.record_all(
            await self._there(), records, retracts=retracts, expected=expected
        )

    async def retract(self, *numbers: int) -> None:
        """Leave records out of every later read; see `Runtime.retract`."""
        await self.runtime.retract(await self._there(), *numbers)

    async def records(
        self,
        kind: str | None = None,
        *,
        key: str | None = None,
        prefix: str | None = None,
        numbers: Sequence[int] | None = None,
        after: int = 0,
        before: int | None = None,
        limit: int = 100,
        reverse: bool = False,
    ) -> list[RecordView]:
        """Return records that are not retracted; see `Runtime.records`."""
        return await self.runtime.records(
            await self._there(),
            kind,
            key=key,
            prefix=prefix,
            numbers=numbers,
            after=after,
            before=before,
            limit=limit,
            reverse=reverse,
        )

    async def latest(self, kind: str, key: str | None = None) -> RecordView | None:
        """Return the latest record of a kind, or of one of its keys; see `Runtime.latest`."""
        return await self.runtime.latest(await self._there(), kind, key)

    async def audit(self, *, after: int = 0, limit: int = 100) -> list[AuditRow]:
        """Return the audit of the session's model calls, where it keeps one."""
        return await self.runtime.audit(await self._there(), after=after, limit=limit)

    async def record_keys(self, kind: str, *, prefix: str = "") -> list[tuple[int, str]]:
        """Return number and key of the records of a kind; see `Runtime.record_keys`."""
        return await self.runtime.record_keys(await self._there(), kind, prefix=prefix)

    async def state(self) -> State:
        """Return the state at the tip."""
        return await self.runtime.state(await self._there())

    async def messages(self, *, after: int = 0, limit: int = 100) -> list[MessageView]:
        """Return messages after a position of the log, first those that a fork inherited."""
        return await self.runtime.messages(await self._there(), after=after, limit=limit)

    async def context(self) -> ContextView:
        """Return what the model would be sent now, and why each part is in or out."""
        return await self.runtime.context(await self._there())

    async def turns(self, *, after: int = 0, limit: int = 100) -> list[TurnView]:
        """Return turns that began after a position of the log."""
        return await self.runtime.turns(await self._there(), after=after, limit=limit)

    async def steps(self, *, after: int = 0, limit: int = 100) -> list[StepView]:
        """Return steps that began after a position of the log."""
        return await self.runtime.steps(await self._there(), after=after, limit=limit)

    async def evals(self, *, after: int = 0, limit: int = 100) -> list[EvalView]:
        """Return evaluated cells after a position of the log."""
        return await self.runtime.evals(await self._there(), after=after, limit=limit)

    async def leaves(self, *, after: int = 0, limit: int = 100) -> list[LeafView]:
        """Return leaf calls after a position of the log."""
        return await self.runtime.leaves(await self._there(), after=after, limit=limit)

    async def calls(self, *, after: int = 0, limit: int = 100) -> list[CallView]:
        """Return calls that were requested after a position of the log."""
        return await self.runtime.calls(await self._there(), after=after, limit=limit)

    async def open_calls(self) -> list[CallView]:
        """Return the calls that have no outcome, oldest first."""
        return await self.runtime.open_calls(await self._there())

    async def heads(self, *, after: int = 0, limit: int = 100) -> list[HeadView]:
        """Return heads after a position of the log."""
        return await self.runtime.heads(await self._there(), after=after, limit=limit)

    async def edges(self, *, after: int = 0, limit: int = 100) -> list[EdgeView]:
        """Return lineage edges after a position of the log."""
        return await self.runtime.edges(await self._there(), after=after, limit=limit)

    async def tree(self) -> Family:
        """Return the family of the session: parents, children and forks, with their cost."""
        return await self.runtime.tree(await self._there())

    async def variables(self) -> VariablesView:
        """Return the namespace at the last checkpoint; nothing is run or loaded."""
        return await self.runtime.variables(await self._there())

    async def events(
        self,
        *,
        after: int = 0,
        before: int | None = None,
        limit: int = 1000,
        reverse: bool = False,
        types: Sequence[str] | None = None,
    ) -> list[Event]:
        """Return raw events between positions of the log."""
        return await self.runtime.events(
            await self._there(),
            after=after,
            before=before,
            limit=limit,
            reverse=reverse,
            types=types,
        )

    def transcript(self, *, turn: int | None = None) -> AsyncIterator[TurnTranscript | Event]:
        """Yield turns with all that happened in them, oldest first; only one where it is named."""
        return self.runtime.transcript(self.id, turn=turn)

    async def value(self, item: Slot) -> Any:
        """Return the value of a slot."""
        return await self.runtime.value(await self._there(), item)

    async def payload(self, payload_id: str) -> bytes:
        """Return the bytes of a payload that the session refers to."""
        return await self.runtime.payload(await self._there(), payload_id)

    async def erase(self, payload_id: str, rule: str) -> Erasure:
        """Erase a value for good, an input with all copies of it; see `Runtime.erase`."""
        return await self.runtime.erase(await self._there(), payload_id, rule)

    def subscribe(self, *, after: int = 0) -> Subscription:
        """Follow the session: stored events, then live ones and token deltas."""
        return self.runtime.subscribe(self.id, after=after)
