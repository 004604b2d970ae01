"""What a turn came to: one type per way in which it can end, or wait, and how the log says it.

| result           | turn status      | exit code |
|------------------|------------------|-----------|
| `Final`          | final            | 0         |
| `Failed`         | failed           | 1         |
| `Suspended`      | open             | 3         |
| `BudgetExceeded` | budget_exceeded  | 4         |
| `TimedOut`       | timed_out        | 5         |
| `Stopped`        | stopped          | 6         |
| `Queued`         | not begun        | 0         |
| `Pending`        | open             | 0         |

Every result is made here from facts of the log, so that whoever asks again, after a kill or under
the same key, is told the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, ClassVar, Generic, TypeVar

from holdfast.core import facts, run_facts, run_state
from holdfast.core.errors import HoldfastError, InboxConsumed
from holdfast.core.facts import Usage
from holdfast.core.state import Spend, State
from holdfast.runtime.budget import Excess
from holdfast.stores.port import SessionStore
from holdfast.views.turns import amount
from holdfast.views.values import hydrate

T = TypeVar("T")


class TurnNotFinal(HoldfastError):
    """The turn did not come to a final value; `result` says what it came to."""

    def __init__(self, result: TurnSummary | None = None) -> None:
        if result is None:
            super().__init__()
            return
        error = getattr(result, "error", "")
        told = f"turn {result.turn} of session {result.session!r} is {result.status}"
        super().__init__(f"{told}: {error}" if error else told, status=result.status)
        self.result: TurnResult = result  # type: ignore[assignment]


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnSummary:
    """What every result says.

    `cost_usd` and `usage` are what is known; `unknown_calls` counts the calls of which nobody knows
    the cost, and `held_usd` is the most that those can have cost.
    """

    STATUS: ClassVar[str]
    EXIT_CODE: ClassVar[int]

    session: str
    turn: int | None = None
    steps: int = 0
    usage: Usage = field(default_factory=dict)
    cost_usd: Decimal | None = None
    held_usd: Decimal | None = None
    unknown_calls: int = 0
    head: str | None = None

    @property
    def status(self) -> str:
        """Return the stable name of this kind of result."""
        return self.STATUS

    def unwrap(self) -> Any:
        """Return the final value; raise TurnNotFinal where there is none."""
        raise TurnNotFinal(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Final(TurnSummary, Generic[T]):
    """The turn came to a value: the model called FINAL."""

    STATUS: ClassVar[str] = "final"
    EXIT_CODE: ClassVar[int] = 0
    value: T

    def unwrap(self) -> T:
        """Return the final value."""
        return self.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed(TurnSummary):
    """The turn cannot go on; the session can."""

    STATUS: ClassVar[str] = "failed"
    EXIT_CODE: ClassVar[int] = 1
    error: str = ""
    code: str = "failed"
    until: str | None = None
    """When the limit that it met resets, where the provider said so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspended(TurnSummary):
    """The turn waits for someone; answer through the inbox and resume."""

    STATUS: ClassVar[str] = "suspended"
    EXIT_CODE: ClassVar[int] = 3
    calls: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetExceeded(TurnSummary):
    """A limit is used up; what would have gone beyond it was not done."""

    STATUS: ClassVar[str] = "budget_exceeded"
    EXIT_CODE: ClassVar[int] = 4
    limit: str = ""
    used: Decimal = Decimal(0)
    allowed: Decimal = Decimal(0)
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedOut(TurnSummary):
    """A deadline passed."""

    STATUS: ClassVar[str] = "timed_out"
    EXIT_CODE: ClassVar[int] = 5
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped(TurnSummary):
    """The session was asked to end, and did."""

    STATUS: ClassVar[str] = "stopped"
    EXIT_CODE: ClassVar[int] = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Queued(TurnSummary):
    """The message waits in the inbox of a busy session; its driver takes it up next."""

    STATUS: ClassVar[str] = "queued"
    EXIT_CODE: ClassVar[int] = 0
    key: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending(TurnSummary):
    """Whoever asked waits no more; the turn goes on, and `key` reads its result later."""

    STATUS: ClassVar[str] = "pending"
    EXIT_CODE: ClassVar[int] = 0
    key: str = ""


Unfinished = Failed | Suspended | BudgetExceeded | TimedOut | Stopped | Queued | Pending
"""Every result without a final value."""
TurnResult = Final[Any] | Unfinished
"""What `send` and `resume` return: match it by its kinds."""
ResultOf = Final[T] | Unfinished
"""The same, with the type that a final value has."""

KINDS: dict[str, type[Any]] = {
    kind.STATUS: kind for kind in (Final, Failed, TimedOut, BudgetExceeded, Stopped)
}


async def of(
    store: SessionStore,
    session_id: str,
    put: facts.TurnPut | None,
    *,
    limit: facts.LimitExceeded | None = None,
    head: str | None = None,
) -> TurnResult:
    """Return the result that the log tells of a turn: its end, and the limit that ended it.

    Without an end it is a message that a limit refused before its turn began.
    """
    about: dict[str, Any] = {"session": session_id, "head": head}
    if limit is not None:
        used, allowed = Decimal(limit.used), Decimal(limit.allowed)
        about |= {"limit": limit.limit, "used": used, "allowed": allowed}
        about["error"] = Excess(limit.limit, limit.used, limit.allowed, limit.unknown_calls).message
    if put is None:
        return BudgetExceeded(**about)
    kind = KINDS[put.status]
    if kind is Final:
        item = put.final
        about["value"] = None if item is None else (await hydrate(store, session_id, item)).value()
    elif put.error is not None and kind in (Failed, TimedOut):
        error: Any = (await hydrate(store, session_id, put.error)).value()
        about["error"] = error["message"]
        if kind is Failed:
            about["code"] = error["code"]
            about["until"] = error.get("until")
    made: TurnResult = kind(
        turn=put.turn,
        steps=put.steps,
        usage=put.usage or {},
        cost_usd=amount(put.cost_usd),
        held_usd=amount(put.held_usd),
        unknown_calls=put.unknown_calls,
        **about,
    )
    return made


async def of_turn(store: SessionStore, session_id: str, turn: int) -> TurnResult | None:
    """Return the result of a turn; None while it has none."""
    return await _read(store, session_id, _Found(turn=turn))


async def of_key(store: SessionStore, session_id: str, key: str) -> TurnResult:
    """Return the result of a message that was taken up; InboxConsumed while it has none."""
    found = _Found(key=key)
    result = await _read(store, session_id, found)
    if result is None:
        raise InboxConsumed(
            f"the message with key {key!r} was taken up already, as turn {found.turn} of "
            f"{session_id!r}, which has not ended: wait for it, or resume the session"
        )
    return result


async def of_run(store: SessionStore, state: State) -> TurnResult | None:
    """Return what a workflow run came to, for whoever called it; None while it is not settled."""
    run = state.run
    if run is None or run.ended is None or run.status in run_state.OPEN:
        return ended(state)
    (event,) = await store.read_events(state.session, after=run.ended - 1, limit=1)
    fact = event.fact()
    about: dict[str, Any] = {"session": state.session, "head": state.head}
    match fact:
        case run_facts.RunFinished():
            item = fact.output
            value = None if item is None else (await hydrate(store, state.session, item)).value()
            return Final(value=value, **about)
        case run_facts.RunFailed():
            told: Any = {}
            if fact.error is not None:
                told = (await hydrate(store, state.session, fact.error)).value()
            text = str(told.get("message") or f"the run failed at {fact.node!r}")
            until = told.get("until")
            return Failed(error=text, code=fact.code or "failed", until=until, **about)
    return Stopped(**about)


READ = [
    kind.TYPE
    for kind in (
        facts.InputAdmitted,
        facts.TurnStarted,
        facts.TurnReopened,
        facts.LimitExceeded,
        facts.TurnPut,
        facts.HeadPublished,
    )
]


@dataclass(slots=True)
class _Found:
    """What the log says of one turn, or of the message with a key, fact by fact."""

    key: str | None = None
    turn: int | None = None
    admitted: bool = False
    current: int | None = None  # the turn that is open where the log is read
    open: bool = False
    put: facts.TurnPut | None = None
    limit: facts.LimitExceeded | None = None
    head: str | None = None

    def see(self, fact: facts.Fact) -> None:
        if isinstance(fact, facts.TurnStarted | facts.TurnReopened):
            self.current = fact.turn
        elif isinstance(fact, facts.TurnPut) and fact.status in KINDS:
            self.current = None
        match fact:
            case facts.InputAdmitted(key=key) if key == self.key:
                self.admitted = True
                if self.current is not None:  # it steers that turn
                    self.turn, self.open = self.current, True
            case facts.TurnStarted(turn=turn) if self._begins(turn):
                self.turn, self.open = turn, True
            case facts.TurnReopened(turn=turn) if turn == self.turn:
                self.put, self.limit, self.open = None, None, True
            case facts.LimitExceeded() if self.put is None and (self.open or self._refused()):
                self.limit = fact
            case facts.TurnPut(turn=turn) if turn == self.turn and fact.status in KINDS:
                self.put, self.open = fact, False
            case facts.HeadPublished() if self.put is None or fact.turn == self.turn:
                self.head = fact.id

    def _begins(self, turn: int) -> bool:
        if self.key is None:
            return turn == self.turn
        return self.admitted and self.turn is None and self.limit is None

    def _refused(self) -> bool:
        """Tell whether a limit that is told now is that of a message without a turn."""
        return self.admitted and self.turn is None and self.limit is None


async def _read(store: SessionStore, session_id: str, found: _Found) -> TurnResult | None:
    after = 0
    while page := await store.read_events(session_id, after=after, types=READ):
        for event in page:
            if event.known:
                found.see(event.fact())
        after = page[-1].seq
    if found.put is None and (found.limit is None or found.turn is not None):
        return None
    return await of(store, session_id, found.put, limit=found.limit, head=found.head)


def ended(state: State) -> TurnResult | None:
    """Return the result of a session that takes no more turns; None if it does."""
    if state.status == "stopped":
        return Stopped(session=state.session, head=state.head)
    if state.status == "failed":
        return Failed(
            session=state.session,
            head=state.head,
            error="the session has failed; fork it from a head to go on",
            code="session_failed",
        )
    return None


def suspended(state: State) -> Suspended:
    """Return the result of a turn that waits for someone."""
    return Suspended(calls=tuple(state.calls), **so_far(state, state.turn_spend()))


def revival_limit(state: State, spend: Spend) -> Failed:
    """Return the result of a turn that was revived too often without a new outcome."""
    turn = state.turn.turn if state.turn else None
    return Failed(
        error=f"turn {turn} was revived {state.revivals} times without a new outcome; look at its "
        "last step, then resume with force, or stop the session",
        code="revival_limit",
        **so_far(state, spend),
    )


def so_far(state: State, spend: Spend) -> dict[str, Any]:
    """Return what any result says of a turn that has not ended."""
    return {
        "session": state.session,
        "turn": state.turn.turn if state.turn else None,
        "steps": state.turn.steps if state.turn else 0,
        "usage": {"input_tokens": spend.input_tokens, "output_tokens": spend.output_tokens},
        "cost_usd": Decimal(spend.usd),
        "held_usd": Decimal(spend.held_usd) if spend.unknown_usd else None,
        "unknown_calls": spend.unknown_usd,
        "head": state.head,
    }
