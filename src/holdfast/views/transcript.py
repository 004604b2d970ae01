"""A session's history as people think of it: turns, in them steps, in them code and output.

Made turn by turn from one walk over the log, with every value read, so that a long session is
printed as it is read. An event that this release does not know is shown raw, in the turn in which
it stands; what refers to an entity that only such an event could have begun begins it here.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

from holdfast.core import facts
from holdfast.core.errors import NotFound
from holdfast.core.events import Event
from holdfast.core.facts import Fact
from holdfast.core.state import is_lost_leaf
from holdfast.stores.port import SessionStore
from holdfast.views.messages import read_message
from holdfast.views.turns import OPEN, amount
from holdfast.views.values import value_or_erased

PAGE_EVENTS = 500


@dataclass(frozen=True, slots=True)
class LeafCounts:
    """The model calls that the code of a step made."""

    asked: int = 0
    failed: int = 0
    lost: int = 0


@dataclass(frozen=True, slots=True)
class CellTranscript:
    """One code cell of a reply, its output and status."""

    eval: int
    status: str
    code: Any
    output: Any
    calls: int
    elapsed_ms: int | None


@dataclass(frozen=True, slots=True)
class CallTranscript:
    """One call that the reply or its code made: a tool, a question, a child."""

    call_id: str
    name: str
    kind: str
    effect: str
    status: str  # how far it got, or its outcome
    arguments: Any
    result: Any = None
    error: Any = None
    waits_for: str | None = None
    prompt: Any = None
    deadline: str | None = None
    child: str | None = None


@dataclass(frozen=True, slots=True)
class StepTranscript:
    """One model call, its reply, the code of the reply and what the model was shown of it."""

    step: int
    status: str = OPEN
    model: str | None = None
    reply: str | None = None
    observation: str | None = None
    cells: tuple[CellTranscript, ...] = ()
    calls: tuple[CallTranscript, ...] = ()
    leaves: LeafCounts = LeafCounts()
    usage: facts.Usage | None = None
    cost_usd: Decimal | None = None
    latency_ms: int | None = None
    error: Any = None
    seq: int | None = None  # of the event that began it; None where a fork began inside its turn


@dataclass(frozen=True, slots=True)
class TurnTranscript:
    """One turn with all that happened in it."""

    turn: int
    seq: int
    at: str
    status: str = OPEN
    message: str = ""
    inputs: dict[str, int] = field(default_factory=dict)  # size in bytes by name
    steps: tuple[StepTranscript, ...] = ()
    revivals: int = 0
    value: Any = None
    error: Any = None
    head: str | None = None
    usage: facts.Usage | None = None
    cost_usd: Decimal | None = None
    held_usd: Decimal | None = None
    unknown_calls: int = 0
    elapsed_ms: int | None = None
    raw: tuple[Event, ...] = ()
    """Events since it began whose type or version this release does not know."""


async def transcript(
    store: SessionStore, session_id: str, *, turn: int | None = None
) -> AsyncIterator[TurnTranscript | Event]:
    """Yield the turns, oldest first; the last one may be open. With `turn` only that one.

    Events before the first turn that this release does not know come as they are.
    """
    after = 0 if turn is None else await _before_turn(store, session_id, turn)
    building: _Turn | None = None
    while page := await store.read_events(session_id, after=after, limit=PAGE_EVENTS):
        for event in page:
            fact = event.fact() if event.known else None
            number = _turn_number(event, fact)
            if number is not None and (building is None or number != building.number):
                if building is not None:
                    yield building.done()
                    if turn is not None:
                        return
                building = _Turn(store, session_id, event, number)
            if building is not None:
                await building.add(event, fact)
            elif not event.known:
                yield event
        after = page[-1].seq
    if building is not None:
        yield building.done()


def _turn_number(event: Event, fact: Fact | None) -> int | None:
    """Return the turn to which an event says that it belongs."""
    number = getattr(fact, "turn", None)
    # A newer release may mean anything by its fields; that a turn starts is all that is needed.
    if fact is None and event.type == facts.TurnStarted.TYPE:
        number = event.data.get("turn")
    return number if type(number) is int else None


async def _before_turn(store: SessionStore, session_id: str, turn: int) -> int:
    """Return the position of the log before a turn; NotFound where there is no such turn."""
    first = await store.read_events(session_id, limit=1)
    after = 0
    seen = 1 if first[0].data.get("turn") else 0  # a fork inside a turn begins with it
    if seen == turn:
        return 0
    while page := await store.read_events(
        session_id, after=after, limit=PAGE_EVENTS, types=[facts.TurnStarted.TYPE]
    ):
        for event in page:
            if event.data.get("turn") == turn:
                return event.seq - 1
        after, seen = page[-1].seq, seen + len(page)
    raise NotFound(f"session {session_id!r} has no turn {turn}; it has {seen}")


class _Turn:
    """Puts one turn together from the facts that follow its start."""

    def __init__(self, store: SessionStore, session_id: str, first: Event, number: int) -> None:
        self.number = number
        self._store = store
        self._session = session_id
        self._turn = TurnTranscript(turn=number, seq=first.seq, at=first.at)
        self._steps: dict[int, StepTranscript] = {}
        self._calls: dict[str, tuple[int, CallTranscript]] = {}  # with the step of each

    def done(self) -> TurnTranscript:
        """Return the turn as it stands."""
        calls: dict[int, list[CallTranscript]] = {}
        for step, call in self._calls.values():
            calls.setdefault(step, []).append(call)
        steps = {number: self._step(number) for number in (*self._steps, *calls)}
        whole = [replace(step, calls=tuple(calls.get(n, ()))) for n, step in steps.items()]
        return replace(self._turn, steps=tuple(whole))

    async def add(self, event: Event, fact: Fact | None) -> None:
        """Add one event that the log has of the turn."""
        if fact is None:
            self._turn = replace(self._turn, raw=(*self._turn.raw, event))
        elif event.type.startswith("call."):
            await self._add_call(fact)
        else:
            await self._add(fact)
            if isinstance(fact, facts.StepStarted):
                self._steps[fact.step] = replace(self._steps[fact.step], seq=event.seq)

    async def _add(self, fact: Fact) -> None:
        match fact:
            case facts.TurnStarted():
                sizes = {name: item.size for name, item in fact.inputs.items()}
                self._turn = replace(self._turn, inputs=sizes)
            case facts.MessageAppended():
                await self._add_message(fact)
            case facts.StepStarted():
                self._steps[fact.step] = replace(self._step(fact.step), model=fact.model)
            case facts.StepPut():
                step = self._step(fact.step)
                self._steps[fact.step] = replace(
                    step,
                    status=fact.status,
                    model=fact.model or step.model,
                    usage=fact.usage,
                    cost_usd=amount(fact.cost_usd),
                    latency_ms=fact.latency_ms,
                    error=await self._value(fact.error),
                )
            case facts.EvalAdded():
                step = self._step(fact.step)
                cell = CellTranscript(
                    eval=fact.eval,
                    status=fact.status,
                    code=await self._value(fact.code),
                    output=await self._value(fact.output),
                    calls=fact.calls,
                    elapsed_ms=fact.elapsed_ms,
                )
                self._steps[fact.step] = replace(step, cells=(*step.cells, cell))
            case facts.LeafCalled():
                self._count(fact.step, asked=1, failed=int(fact.status != "ok"))
            case facts.BudgetSettled() if is_lost_leaf(fact):
                self._count(self._last_step(), lost=1)
            case facts.SessionRevived():
                self._turn = replace(self._turn, revivals=self._turn.revivals + 1)
            case facts.TurnPut():
                self._turn = replace(
                    self._turn,
                    status=fact.status,
                    value=await self._value(fact.final),
                    error=await self._value(fact.error),
                    usage=fact.usage,
                    cost_usd=amount(fact.cost_usd),
                    held_usd=amount(fact.held_usd),
                    unknown_calls=fact.unknown_calls,
                    elapsed_ms=fact.elapsed_ms,
                )
            case facts.HeadPublished():
                self._turn = replace(self._turn, head=fact.id)

    async def _add_message(self, fact: facts.MessageAppended) -> None:
        text = (await read_message(self._store, self._session, fact.role, fact.content)).text
        if fact.role == "user":
            said = f"{self._turn.message}\n\n{text}" if self._turn.message else text
            self._turn = replace(self._turn, message=said)
            return
        step = self._step(self._last_step() if fact.step is None else fact.step)
        if fact.role == "assistant":
            step = replace(step, reply=text)
        else:
            step = replace(step, observation=text)
        self._steps[step.step] = step

    async def _add_call(self, fact: Fact) -> None:
        match fact:
            case facts.CallRequested():
                step = self._last_step() if fact.step is None else fact.step
                call = CallTranscript(
                    call_id=fact.call_id,
                    name=fact.name,
                    kind=fact.kind,
                    effect=fact.effect,
                    status="requested",
                    arguments=await self._value(fact.arguments),
                    deadline=fact.deadline,
                    child=fact.child,
                )
                self._calls[fact.call_id] = step, call
            case facts.CallDispatched():
                for call_id in fact.calls:
                    self._change_call(call_id, status="dispatched", waits_for=None)
            case facts.CallApproved():
                self._change_call(fact.call_id, status="approved", waits_for=None)
            case facts.CallDenied():
                self._change_call(fact.call_id, status="denied", waits_for=None)
            case facts.CallExtended():
                self._change_call(fact.call_id, deadline=fact.deadline)
            case facts.CallSuspended():
                self._change_call(
                    fact.call_id,
                    status="suspended",
                    waits_for=fact.kind,
                    prompt=await self._value(fact.prompt),
                    deadline=fact.deadline,
                )
            case facts.CallResolved():
                self._change_call(
                    fact.call_id,
                    status=fact.outcome,
                    waits_for=None,
                    result=await self._value(fact.result),
                    error=await self._value(fact.error),
                )

    def _change_call(self, call_id: str, **changes: Any) -> None:
        """Change a call of this turn; one that was requested elsewhere is not shown here."""
        if call_id in self._calls:
            step, call = self._calls[call_id]
            self._calls[call_id] = step, replace(call, **changes)

    def _step(self, number: int) -> StepTranscript:
        return self._steps.get(number) or StepTranscript(step=number)

    def _last_step(self) -> int:
        return list(self._steps)[-1] if self._steps else 0

    def _count(self, number: int, asked: int = 0, failed: int = 0, lost: int = 0) -> None:
        step = self._step(number)
        was = step.leaves
        counts = LeafCounts(was.asked + asked, was.failed + failed, was.lost + lost)
        self._steps[number] = replace(step, leaves=counts)

    async def _value(self, item: Any) -> Any:
        return await value_or_erased(self._store, self._session, item)
