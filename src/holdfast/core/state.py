"""State: what it takes to go on with a session, at one position of its log.

Everything a driver must know after a kill is here and stays small: what grows with history is read
from the log in pages. Slots are kept without their bytes, so an erased value has no copy here.
`holdfast.core.fold` makes it from events. It is data without cycles, as slots and events are, so
the garbage collector is spared all of them.
"""

from __future__ import annotations

from decimal import (
    ROUND_HALF_EVEN,
    Context,
    Decimal,
    DivisionByZero,
    InvalidOperation,
    Overflow,
)

import msgspec

from holdfast.core import facts, status
from holdfast.core.events import chain_start
from holdfast.core.payloads import Slot
from holdfast.core.values import MAX_INTEGER

# Each thread has a decimal context that its program may change: the fold has one of its own.
_MONEY = Context(
    prec=28,
    rounding=ROUND_HALF_EVEN,
    Emin=-999999,
    Emax=999999,
    capitals=1,
    clamp=0,
    traps=[InvalidOperation, DivisionByZero, Overflow],
)


def _plus(one: str, other: str) -> str:
    return _MONEY.to_sci_string(_MONEY.add(Decimal(one, _MONEY), Decimal(other, _MONEY)))


def _minus(one: str, other: str) -> str:
    return _MONEY.to_sci_string(_MONEY.subtract(Decimal(one, _MONEY), Decimal(other, _MONEY)))


class OpenTurn(msgspec.Struct, frozen=True, gc=False):
    """The turn in flight, and how far it got.

    Phases: `opened`, `asking` (step started, no reply), `replied` (reply stored, work left),
    `observed` (observation stored, next step due).
    """

    turn: int
    started_seq: int
    started_at: str
    phase: str = "opened"
    step: int = 0
    steps: int = 0
    step_seq: int = 0
    evals: int = 0  # cells of the present step that are stored
    driven_ms: int = 0  # recorded time of model calls and cells
    cell_at: str = ""  # when the next cell of the present step starts, for its clock
    usd: str = "0"  # the session's spend when the turn began
    input_tokens: int = 0
    output_tokens: int = 0
    unknown_usd: int = 0
    unknown_tokens: int = 0


class PendingCall(msgspec.Struct, frozen=True, gc=False):
    """A call that has no outcome yet."""

    call_id: str
    name: str
    executor: str
    effect: str
    seq: int
    stage: str = "requested"  # requested, approved, suspended
    turn: int | None = None
    eval: int | None = None
    deadline: str | None = None
    child: str | None = None


class Reserved(msgspec.Struct, frozen=True, gc=False):
    """What was set aside for something that has not ended; None is a ceiling that nobody knows."""

    usd: str | None
    tokens: int | None


class Spend(msgspec.Struct, frozen=True, gc=False):
    """What the session has used; `unknown_…` counts the calls of which nobody knows.

    Most of those are counted at the ceiling that was set aside for them; `unbounded_…` counts the
    calls that had none, after which no limit can be proven to hold.
    """

    usd: str = "0"
    input_tokens: int = 0
    output_tokens: int = 0
    unknown_usd: int = 0
    unknown_tokens: int = 0
    unbounded_usd: int = 0
    unbounded_tokens: int = 0

    @property
    def tokens(self) -> int:
        """Return all tokens that are known."""
        return self.input_tokens + self.output_tokens

    def plus(self, usd: str | None, usage: facts.Usage | None, *, ceiling: bool = False) -> Spend:
        """Return the spend with one more model call; `ceiling` says it is only the most it was."""
        asked = None if usage is None else usage.get("input_tokens")
        answered = None if usage is None else usage.get("output_tokens")
        return Spend(
            usd=self.usd if usd is None else _plus(self.usd, usd),
            input_tokens=_counted(self.input_tokens + (asked or 0)),
            output_tokens=_counted(self.output_tokens + (answered or 0)),
            unknown_usd=self.unknown_usd + (ceiling or usd is None),
            unknown_tokens=self.unknown_tokens + (ceiling or asked is None or answered is None),
            unbounded_usd=self.unbounded_usd + (usd is None),
            unbounded_tokens=self.unbounded_tokens + (asked is None or answered is None),
        )


def _counted(tokens: int) -> int:
    """Return a sum that is no larger than the numbers that records hold."""
    if tokens > MAX_INTEGER // 2:  # all tokens of a session are the sum of two
        raise OverflowError(f"{tokens} tokens are more than a session can count")
    return tokens


class State(msgspec.Struct, frozen=True, gc=False):
    """What it takes to go on with a session, at one position of its log."""

    session: str
    digest: str
    seq: int = 0
    status: str = status.NEW
    tenant: str = "default"
    kind: str = "root"
    agent: str = "default"
    agent_version: str = "1"
    started_at: str = ""
    updated_at: str = ""
    cache_id: str | None = None
    labels: dict[str, str] = {}
    parent: dict[str, str] | None = None
    origin: dict[str, str] | None = None
    counters: dict[str, int] = {}
    turn: OpenTurn | None = None
    last_turn: str | None = None
    calls: dict[str, PendingCall] = {}
    head: str | None = None
    head_end: int = 0
    vars: Slot | None = None
    compact_from: int | None = None
    spend: Spend = Spend()
    reserved: dict[str, Reserved] = {}
    revivals: int = 0
    derived: bool = False  # the derivation edge of a fork is recorded
    read_only: str | None = None

    def next(self, counter: str) -> int:
        """Return the number that the next entity of a kind gets."""
        return self.counters.get(counter, 0) + 1

    def turn_spend(self) -> tuple[facts.Usage, str | None]:
        """Return what the open turn has used so far; None is unknown."""
        turn = self.turn
        if turn is None:
            return {"input_tokens": None, "output_tokens": None}, None
        spend = self.spend
        known = spend.unknown_tokens == turn.unknown_tokens
        usage: facts.Usage = {
            "input_tokens": spend.input_tokens - turn.input_tokens if known else None,
            "output_tokens": spend.output_tokens - turn.output_tokens if known else None,
        }
        known_usd = spend.unknown_usd == turn.unknown_usd
        return usage, _minus(spend.usd, turn.usd) if known_usd else None


_LEAF = "leaf:"


def leaf_reservation(ordinal: int) -> str:
    """Return under which key a leaf call's spend is set aside."""
    return f"{_LEAF}{ordinal}"


def lost_leaves(state: State) -> list[facts.BudgetSettled]:
    """Return what settles the leaf calls that are under way, once nobody waits for them any more.

    Their replies are lost, if there were any; what they cost counts at its ceiling.
    """
    return [
        facts.BudgetSettled(reservation=key, usd=aside.usd, tokens=aside.tokens, unknown=True)
        for key, aside in state.reserved.items()
        if key.startswith(_LEAF)
    ]


def is_lost_leaf(fact: facts.BudgetSettled) -> bool:
    """Tell whether a fact settles a leaf call that was lost."""
    return fact.unknown and fact.reservation.startswith(_LEAF)


def broken_off_spend(state: State) -> tuple[facts.Usage, str | None]:
    """Return the open turn's spend as it stands when calls under way are broken off: unknown."""
    asking = state.turn is not None and state.turn.phase == "asking"
    if asking or lost_leaves(state):
        state = msgspec.structs.replace(state, spend=state.spend.plus(None, None))
    return state.turn_spend()


def empty(session: str) -> State:
    """Return the state before a session's first event."""
    return State(session=session, digest=chain_start(session))
