"""Children: sessions that answer a call of another one, from their first record to their end.

All of a child follows from its parent's log: the call names its id, its first record, its task and
its grant before it exists, so whoever holds the parent's lease makes it, or makes it again. Its end
reaches the parent through the inbox; the parent reads the child's own log for what came of it.
Both sides look: a parent at the children whose calls are open, a child at its parent's call.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from holdfast.core import escrow, values
from holdfast.core.errors import (
    InboxConsumed,
    InvalidInput,
    InvalidRecord,
    NotFound,
    PayloadNotFound,
    SessionDeleted,
)
from holdfast.core.facts import CallRequested, CallResolved, Fact, SessionStarted, TurnPut
from holdfast.core.forms import fact_from_data
from holdfast.core.heads import EdgeDraft
from holdfast.core.payloads import Slot, slot
from holdfast.core.state import PendingCall, State, call_reservation, empty
from holdfast.runtime import results, schemas
from holdfast.runtime.results import Failed, Final, TurnResult
from holdfast.runtime.scope import Scope
from holdfast.stores.port import InboxDraft, SessionStore
from holdfast.views.values import hydrate, read_value

logger = logging.getLogger("holdfast.runtime")

OWN_KEYS = "holdfast:"
STOP_KEY = OWN_KEYS + "stop"
TASK_KEY = OWN_KEYS + "task"
FAILED = "ChildFailed"
INVALID_OUTPUT = "output_invalid"
VALUE_BYTES = 256 * 1024
"""A larger value of a child stays in the child's log; its parent gets the beginning and a ref."""
PREVIEW_CHARACTERS = 2000

Posts = list[tuple[str, InboxDraft]]


def child_id(parent: str, call_id: str) -> str:
    """Return the id of the session that answers a call: the same whenever it is made."""
    return "c-" + hashlib.sha256(f"{parent}\n{call_id}".encode()).hexdigest()[:32]


def stops(calls: Iterable[PendingCall]) -> Posts:
    """Return what asks the children of calls to end, because nobody waits for them any more."""
    draft = InboxDraft(key=STOP_KEY, kind="stop")
    return [(call.child, draft) for call in calls if call.kind == "child" and call.child]


def report(state: State) -> Posts:
    """Return what tells a parent that the turn which its call is owed has come to its end."""
    parent = state.parent
    if parent is None or state.counters.get("turn", 0) > 1:
        return []
    return [(parent["session"], _ended_draft(state.session, parent["call"]))]


def _ended_draft(child: str, call_id: str) -> InboxDraft:
    return InboxDraft(key=f"{OWN_KEYS}ended:{child}", kind="child_ended", call_id=call_id)


async def is_wanted(store: SessionStore, state: State) -> bool:
    """Tell whether the call of a child is still open, or what it owes was done long ago."""
    parent = state.parent
    if parent is None or state.counters.get("turn", 0) > 1 or state.last_turn is not None:
        return True
    try:
        above = await store.load_state(parent["session"])
    except (NotFound, SessionDeleted):
        return False
    return parent["call"] in above.calls


async def result_of(store: SessionStore, child: str, state: State) -> TurnResult | None:
    """Return what a child came to; None while it works."""
    if state.kind == "run":
        return await results.of_run(store, state)
    try:
        return await results.of_key(store, child, TASK_KEY)
    except InboxConsumed:
        return results.ended(state)


@dataclass(frozen=True, slots=True)
class Ended:
    """What the end of a child brings into its parent's log."""

    facts: tuple[Fact, ...] = ()
    edges: tuple[EdgeDraft, ...] = ()


async def ended(store: SessionStore, state: State, call_id: str) -> Ended:
    """Return what a parent records of a call whose child has ended: its sums, value and edge."""
    aside = state.reserved.get(call_reservation(call_id))
    call = state.calls.get(call_id)
    child = (call and call.child) or (aside and aside.child)
    if not child:
        return Ended()
    try:
        below = await store.load_state(child)
    except (NotFound, SessionDeleted):
        return Ended()
    result = await result_of(store, child, below)
    if result is None:
        return Ended()
    facts: list[Fact] = [] if aside is None else [escrow.closing(call_id, below)]
    if call is not None:
        facts.append(await _resolved(store, state, call, result, below))
    edges = []
    if below.head is not None:
        edges = [
            EdgeDraft(
                type="invocation",
                from_session=state.session,
                from_head=state.head,
                to_session=child,
                to_head=below.head,
                call_id=call_id,
            )
        ]
    return Ended(tuple(facts), tuple(edges))


async def unmade(store: SessionStore, state: State) -> list[Fact]:
    """Return what closes the grants of children whose calls were over before anyone made them.

    They spent nothing. One that is made in this very moment finds that its call is not open.
    """
    found: list[Fact] = []
    open_grants = {call_reservation(call_id) for call_id in state.calls}
    for key, aside in state.reserved.items():
        if aside.child is None or key in open_grants:
            continue
        try:
            await store.load_state(aside.child)
        except NotFound:
            found.append(escrow.closing(key.partition(":")[2], empty(aside.child)))
    return found


async def _resolved(
    store: SessionStore, state: State, call: PendingCall, result: TurnResult, below: State
) -> CallResolved:
    """Return the outcome of a call: the envelope, and what is wrong where there is no value."""
    request = await requested(store, state.session, call)
    asked: Any = await read_value(store, state.session, request.arguments)
    spend = below.total
    envelope: dict[str, Any] = {
        "status": result.status,
        "session": below.session,
        "head": below.head,
        "task": asked["task"],
        "steps": result.steps,
        "code": getattr(result, "code", None),
        "usage": {"input_tokens": spend.input_tokens, "output_tokens": spend.output_tokens},
        "cost": spend.usd,
    }
    about: dict[str, Any] = {"call_id": call.call_id, "wait": call.wait}
    text = getattr(result, "error", "") or f"the child ended as {result.status}"
    text = f"{result.status}: {text}"
    if isinstance(result, Failed) and result.code == INVALID_OUTPUT:
        text = f"invalid_output: {result.error}"
    if isinstance(result, Final):
        problem = _misfit(asked["output"], result.value)
        if problem is None:
            envelope = _with_value(result.value) | envelope
            return CallResolved(outcome="ok", result=slot(envelope, "answer"), **about)
        text = f"invalid_output: {problem}"
        envelope["code"] = "invalid_output"
    envelope["error"] = text
    if isinstance(result, Failed) and result.until is not None:
        envelope["until"] = result.until
    why = slot(f"{FAILED}: {text}", "error")
    return CallResolved(outcome="error", result=slot(envelope, "answer"), error=why, **about)


def schema_of(output: Any) -> dict[str, Any] | None:
    """Return the schema of the value that a parent asked for; it is repaired once by the child."""
    if output == "text":
        return {"type": "string"}
    if output == "json":
        return {}  # whatever JSON can hold
    return output if isinstance(output, dict) else None


def asked_for(output: Any) -> str:
    """Return what a child is told of the value that its parent asked for; empty for any."""
    if output is None:
        return ""
    if isinstance(output, dict):
        schema = values.encode_json(output).decode()
        return f"\n\nThe final value must fit this JSON schema: {schema}"
    return f"\n\nThe final value must be {'a text' if output == 'text' else 'plain JSON'}."


def _misfit(output: Any, value: Any) -> str | None:
    """Return why a value is not what was asked for; None where it is."""
    try:
        if isinstance(output, dict):
            schemas.check(output, value)
        elif output == "json":
            schemas.plain_of(value)
    except InvalidInput as error:
        return str(error)
    if output == "text" and not isinstance(value, str):
        return f"the value is a {type(value).__name__}, not a text"
    return None


def _with_value(value: Any) -> dict[str, Any]:
    item = slot(value, "final")
    if item.size <= VALUE_BYTES:
        return {"value": value}
    text = value if isinstance(value, str) else repr(value)
    preview = f"{text[:PREVIEW_CHARACTERS]} … ({item.size:,} bytes, whole in the log of the child)"
    return {"value": None, "preview": preview, "ref": item.id}


async def whole_value(store: SessionStore, child: str, ref: str) -> Slot:
    """Return a final value of a session by its ref, with its bytes; PayloadNotFound if none is."""
    after = 0
    while page := await store.read_events(child, after=after, types=[TurnPut.TYPE]):
        for event in page:
            fact = event.fact()
            if isinstance(fact, TurnPut) and fact.final is not None and fact.final.id == ref:
                return await hydrate(store, child, fact.final)
        after = page[-1].seq
    raise PayloadNotFound(f"session {child!r} has no final value {ref!r}")


async def requested(store: SessionStore, session_id: str, call: PendingCall) -> CallRequested:
    """Return the intent of an open call."""
    page = await store.read_events(session_id, after=call.seq - 1, before=call.seq + 1)
    fact = page[0].fact()
    assert isinstance(fact, CallRequested)
    return fact


class Driving(Protocol):
    """What this process can do for sessions other than the one that is driven."""

    async def drive(self, session_id: str, scope: Scope | None = None) -> None:
        """Drive a session until its turn ends or waits; what goes wrong is logged."""
        ...

    def spawn(self, work: Any) -> asyncio.Task[Any]:
        """Run work in the background."""
        ...

    def tell(self, session_id: str) -> None:
        """Let a session look into its inbox, in which something was put here."""
        ...


class ParentLog(Protocol):
    """What is known of the parent: its store, and where its log stands."""

    store: SessionStore
    state: State

    @property
    def session(self) -> str:
        """Return its id."""
        ...

    @property
    def moved(self) -> asyncio.Event:
        """Return an event that is set once another batch is in the log."""
        ...


@dataclass(slots=True)
class Children:
    """The children of one driven session: made, driven and looked after while their calls wait.

    So many at once are driven for one parent; a parent that waits holds no place of its own
    parent's, so depth cannot starve.
    """

    log: ParentLog
    driving: Driving
    message: Callable[[str, Mapping[str, Any], Any], InboxDraft]
    admit: Callable[[], Any]
    gate: asyncio.Semaphore
    scope: Scope | None = None
    """Of the turn whose calls they answer: they act for the same user."""
    _tasks: dict[str, asyncio.Task[Any]] = field(default_factory=dict)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def take_up(self) -> None:
        """Look after every child whose call is open, and that nobody here looks after yet."""
        for call in list(self.log.state.calls.values()):
            if call.kind == "child" and call.child and call.call_id not in self._tasks:
                task = self.driving.spawn(self._look_after(call))
                self._tasks[call.call_id] = task
                task.add_done_callback(partial(self._over, call.call_id))

    def _over(self, call_id: str, task: asyncio.Task[Any]) -> None:
        if not task.cancelled():
            task.exception()  # told where it happened
        self._tasks.pop(call_id, None)
        self._changed.set()
        self._changed = asyncio.Event()

    def drives(self, call_id: str) -> bool:
        """Tell whether the child of a call is being driven here."""
        return call_id in self._tasks

    @property
    def busy(self) -> bool:
        """Tell whether a child is being driven here."""
        return bool(self._tasks)

    async def changed(self) -> None:
        """Wait until a child is not driven any more, or the parent's log has moved."""
        waits = [asyncio.ensure_future(event.wait()) for event in (self._changed, self.log.moved)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def _look_after(self, call: PendingCall) -> None:
        try:
            async with self.gate:
                if call.call_id not in self.log.state.calls:
                    return
                if await self._made(call):
                    assert call.child is not None
                    await self.driving.drive(call.child, self.scope)
                    while await self._asked(call):
                        await self.driving.drive(call.child, self.scope)
                else:
                    await self.admit()
                await self._look(call)
        except Exception:
            logger.warning("child %s of %s is left", call.child, self.log.session, exc_info=True)

    async def _asked(self, call: PendingCall) -> bool:
        """Answer a child that asks for more; tell whether it can go on with what was said."""
        store, child = self.log.store, call.child
        assert child is not None
        await self.admit()
        if call.call_id not in self.log.state.calls:
            return False
        state = await store.load_state(child)
        waits = any(open_call.kind == "budget" for open_call in state.calls.values())
        return waits and bool(await store.list_inbox(child))

    async def _made(self, call: PendingCall) -> bool:
        """Make a child as the log says, if it is not there; tell whether it has work to do."""
        store, parent, child = self.log.store, self.log.session, call.child
        assert child is not None
        try:
            state = await store.load_state(child)
        except NotFound:
            state = None
        if state is None or state.counters.get("turn", 0) == 0:
            request = await requested(store, parent, call)
            assert request.start is not None
            started = await _started(store, parent, request.start)
            state = await store.create_session(child, started, adopt_from=parent)
            asked: Any = await read_value(store, parent, request.arguments)
            draft = self.message(asked["task"], asked["inputs"], asked["output"])
            await store.put_inbox(child, draft)
        return await result_of(store, child, state) is None

    async def _look(self, call: PendingCall) -> None:
        """Take up the end of a child that has not been told."""
        store, child = self.log.store, call.child
        assert child is not None
        if call.call_id not in self.log.state.calls:
            return
        if await result_of(store, child, await store.load_state(child)) is not None:
            await store.put_inbox(self.log.session, _ended_draft(child, call.call_id))
            await self.admit()


async def _started(store: SessionStore, parent: str, start: Slot) -> SessionStarted:
    """Return the first record of a child, with what has to be at hand to make it."""
    record: Any = (await hydrate(store, parent, start)).value()
    fact = fact_from_data(SessionStarted, record)
    if not isinstance(fact, SessionStarted):
        raise InvalidRecord(f"the start of a child of {parent!r} is not a session.started")
    return fact
