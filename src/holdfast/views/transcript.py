"""A session's history as people think of it: turns, in them steps, in them code and output.

Made turn by turn from one walk over the log, with every value read, so that a long session is
printed as it is read.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from typing import Any

from holdfast.core import facts
from holdfast.core.errors import NotFound
from holdfast.core.events import Event
from holdfast.core.state import is_lost_leaf
from holdfast.stores.port import SessionStore
from holdfast.views.messages import read_message
from holdfast.views.turns import OPEN
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
    """One code cell of a reply and what came of it."""

    eval: int
    status: str
    code: Any
    output: Any
    calls: int
    elapsed_ms: int | None


@dataclass(frozen=True, slots=True)
class StepTranscript:
    """One model call, its reply, the code of the reply and what the model was shown of it."""

    step: int
    status: str = OPEN
    model: str | None = None
    reply: str | None = None
    observation: str | None = None
    cells: tuple[CellTranscript, ...] = ()
    leaves: LeafCounts = LeafCounts()
    usage: facts.Usage | None = None
    cost_usd: str | None = None
    latency_ms: int | None = None
    error: Any = None


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
    cost_usd: str | None = None
    elapsed_ms: int | None = None


async def transcript(
    store: SessionStore, session_id: str, *, turn: int | None = None
) -> AsyncIterator[TurnTranscript]:
    """Yield the turns, oldest first; the last one may be open. With `turn` only that one."""
    after = 0 if turn is None else await _before_turn(store, session_id, turn)
    building: _Turn | None = None
    while page := await store.read_events(session_id, after=after, limit=PAGE_EVENTS):
        for event in page:
            fact: Any = event.fact() if event.known else None
            if isinstance(fact, facts.TurnStarted):
                if building is not None:
                    yield building.done()
                    if turn is not None:
                        return
                building = _Turn(store, session_id, event, fact)
            elif building is not None and fact is not None:
                await building.add(fact)
        after = page[-1].seq
    if building is not None:
        yield building.done()


async def _before_turn(store: SessionStore, session_id: str, turn: int) -> int:
    """Return the position of the log before a turn; NotFound where there is no such turn."""
    after, seen = 0, 0
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

    def __init__(
        self, store: SessionStore, session_id: str, event: Event, fact: facts.TurnStarted
    ) -> None:
        self._store = store
        self._session = session_id
        self._turn = TurnTranscript(
            turn=fact.turn,
            seq=event.seq,
            at=event.at,
            inputs={name: item.size for name, item in fact.inputs.items()},
        )
        self._steps: dict[int, StepTranscript] = {}

    def done(self) -> TurnTranscript:
        """Return the turn as it stands."""
        return replace(self._turn, steps=tuple(self._steps.values()))

    async def add(self, fact: Any) -> None:
        """Add one fact that the log has of the turn."""
        match fact:
            case facts.MessageAppended():
                await self._add_message(fact)
            case facts.StepStarted():
                self._steps[fact.step] = StepTranscript(step=fact.step, model=fact.model)
            case facts.StepPut():
                step = self._steps[fact.step]
                self._steps[fact.step] = replace(
                    step,
                    status=fact.status,
                    model=fact.model or step.model,
                    usage=fact.usage,
                    cost_usd=fact.cost_usd,
                    latency_ms=fact.latency_ms,
                    error=await self._value(fact.error),
                )
            case facts.EvalAdded():
                step = self._steps[fact.step]
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
                self._count(list(self._steps)[-1], lost=1)
            case facts.SessionRevived():
                self._turn = replace(self._turn, revivals=self._turn.revivals + 1)
            case facts.TurnPut():
                self._turn = replace(
                    self._turn,
                    status=fact.status,
                    value=await self._value(fact.final),
                    error=await self._value(fact.error),
                    usage=fact.usage,
                    cost_usd=fact.cost_usd,
                    elapsed_ms=fact.elapsed_ms,
                )
            case facts.HeadPublished():
                self._turn = replace(self._turn, head=fact.id)

    async def _add_message(self, fact: facts.MessageAppended) -> None:
        text = (await read_message(self._store, self._session, fact.role, fact.content)).text
        if fact.role == "user":
            self._turn = replace(self._turn, message=text)
        elif self._steps:
            step = self._steps[list(self._steps)[-1]]
            is_reply = fact.role == "assistant"
            step = replace(step, reply=text) if is_reply else replace(step, observation=text)
            self._steps[step.step] = step

    def _count(self, step: int, asked: int = 0, failed: int = 0, lost: int = 0) -> None:
        counts = self._steps[step].leaves
        counts = LeafCounts(counts.asked + asked, counts.failed + failed, counts.lost + lost)
        self._steps[step] = replace(self._steps[step], leaves=counts)

    async def _value(self, item: Any) -> Any:
        return await value_or_erased(self._store, self._session, item)
