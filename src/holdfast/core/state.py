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
from holdfast.core.run_state import ArtifactVersion, RunState
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


MOVED = "it was moved to"
"""How the reason begins for which a session that went to another store is read-only here."""


def plus(one: str, other: str) -> str:
    """Return the sum of two amounts."""
    return _MONEY.to_sci_string(_MONEY.add(Decimal(one, _MONEY), Decimal(other, _MONEY)))


def _minus(one: str, other: str) -> str:
    return _MONEY.to_sci_string(_MONEY.subtract(Decimal(one, _MONEY), Decimal(other, _MONEY)))


class Spend(msgspec.Struct, frozen=True, gc=False):
    """What was used, in three sums that are never mixed.

    `usd` and the tokens are known. `held_…` is the most that calls can have used of which nobody
    knows what they did; `unknown_…` counts those calls, and `unbounded_…` those of them that had no
    ceiling, after which no limit can be proven to hold.
    """

    usd: str = "0"
    input_tokens: int = 0
    output_tokens: int = 0
    held_usd: str = "0"
    held_tokens: int = 0
    unknown_usd: int = 0
    unknown_tokens: int = 0
    unbounded_usd: int = 0
    unbounded_tokens: int = 0
    calls: int = 0
    driven_ms: int = 0

    @property
    def tokens(self) -> int:
        """Return all tokens that are known."""
        return self.input_tokens + self.output_tokens

    def plus(self, usd: str | None, usage: facts.Usage | None, *, ceiling: bool = False) -> Spend:
        """Return the spend with one more model call; `ceiling` says it is only the most it was."""
        asked = None if usage is None else usage.get("input_tokens")
        answered = None if usage is None else usage.get("output_tokens")
        known = 0 if ceiling else 1
        tokens = (asked or 0) + (answered or 0)
        return Spend(
            usd=self.usd if usd is None or ceiling else plus(self.usd, usd),
            input_tokens=_counted(self.input_tokens + (asked or 0) * known),
            output_tokens=_counted(self.output_tokens + (answered or 0) * known),
            held_usd=plus(self.held_usd, usd) if ceiling and usd is not None else self.held_usd,
            held_tokens=_counted(self.held_tokens + tokens * (1 - known)),
            unknown_usd=self.unknown_usd + (ceiling or usd is None),
            unknown_tokens=self.unknown_tokens + (ceiling or asked is None or answered is None),
            unbounded_usd=self.unbounded_usd + (usd is None),
            unbounded_tokens=self.unbounded_tokens + (asked is None or answered is None),
            calls=self.calls + 1,
            driven_ms=self.driven_ms,
        )

    def __add__(self, other: Spend) -> Spend:
        return Spend(
            usd=plus(self.usd, other.usd),
            input_tokens=_counted(self.input_tokens + other.input_tokens),
            output_tokens=_counted(self.output_tokens + other.output_tokens),
            held_usd=plus(self.held_usd, other.held_usd),
            held_tokens=_counted(self.held_tokens + other.held_tokens),
            unknown_usd=self.unknown_usd + other.unknown_usd,
            unknown_tokens=self.unknown_tokens + other.unknown_tokens,
            unbounded_usd=self.unbounded_usd + other.unbounded_usd,
            unbounded_tokens=self.unbounded_tokens + other.unbounded_tokens,
            calls=self.calls + other.calls,
            driven_ms=self.driven_ms + other.driven_ms,
        )

    def __sub__(self, other: Spend) -> Spend:
        """Return what was used since an earlier sum."""
        return Spend(
            usd=_minus(self.usd, other.usd),
            input_tokens=self.input_tokens - other.input_tokens,
            output_tokens=self.output_tokens - other.output_tokens,
            held_usd=_minus(self.held_usd, other.held_usd),
            held_tokens=self.held_tokens - other.held_tokens,
            unknown_usd=self.unknown_usd - other.unknown_usd,
            unknown_tokens=self.unknown_tokens - other.unknown_tokens,
            unbounded_usd=self.unbounded_usd - other.unbounded_usd,
            unbounded_tokens=self.unbounded_tokens - other.unbounded_tokens,
            calls=self.calls - other.calls,
            driven_ms=self.driven_ms - other.driven_ms,
        )


def _counted(tokens: int) -> int:
    """Return a sum that is no larger than the numbers that records hold."""
    if tokens > MAX_INTEGER // 2:  # all tokens of a session are the sum of two
        raise OverflowError(f"{tokens} tokens are more than a session can count")
    return tokens


class Reserved(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """What was set aside for something that has not ended; None is a ceiling that nobody knows."""

    usd: str | None = None
    tokens: int | None = None
    input_tokens: int | None = None  # of those tokens, where it is known
    calls: int | None = None
    seconds: int | None = None
    child: str | None = None


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
    cell_calls: int = 0  # how many calls the session had made when that cell started
    prose: int = 0  # replies in a row that held nothing to act on
    base: Spend = Spend()  # what the session had used when the turn began


# A run may have hundreds of calls open: what is written of each in a snapshot is kept short.
_SHORT = {
    "call_id": "i",
    "name": "n",
    "executor": "x",
    "effect": "e",
    "seq": "s",
    "kind": "k",
    "stage": "g",
    "child": "c",
    "deadline": "d",
    "waits_for": "w",
}


class PendingCall(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, rename=_SHORT):
    """A call that has no outcome yet."""

    call_id: str
    name: str
    executor: str
    effect: str
    seq: int
    kind: str = "tool"
    stage: str = "requested"  # requested, approved, dispatched, suspended
    turn: int | None = None
    eval: int | None = None
    deadline: str | None = None
    child: str | None = None
    wait: int = 0  # how many waits it has begun
    wait_seq: int = 0  # the event that began the present one
    waits_for: str | None = None  # the kind of the present wait
    policy: str = "tell"
    assignee: str | None = None


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
    origin: dict[str, str | int] | None = None
    depth: int = 0
    grant: dict[str, str | int] = {}
    configured: int = 1  # the event that has the settings in force
    counters: dict[str, int] = {}
    turn: OpenTurn | None = None
    last_turn: str | None = None
    settled: OpenTurn | None = None  # the last turn, where it ended without a final value
    calls: dict[str, PendingCall] = {}
    head: str | None = None
    head_end: int = 0
    vars: Slot | None = None
    compact_from: int | None = None
    spend: Spend = Spend()  # of this session itself
    delegated: Spend = Spend()  # of children that have ended
    reserved: dict[str, Reserved] = {}
    revivals: int = 0
    derived: bool = False  # the derivation edge of a fork is recorded
    edges: tuple[str, ...] = ()  # the latest lineage edges: the same one counts once
    warned: tuple[str, ...] = ()  # limits of which little is left, as far as it was told
    artifacts: dict[str, ArtifactVersion] = {}  # the latest of each node
    run: RunState | None = None
    read_only: str | None = None

    def next(self, counter: str) -> int:
        """Return the number that the next entity of a kind gets."""
        return self.counters.get(counter, 0) + 1

    def next_version(self, node: str) -> int:
        """Return the version that a node's next artifact gets."""
        known = self.artifacts.get(node)
        return 0 if known is None else known.version + 1

    @property
    def total(self) -> Spend:
        """Return what the session and its children have used."""
        return self.spend + self.delegated

    def turn_spend(self) -> Spend:
        """Return what the open turn has used so far."""
        return Spend() if self.turn is None else self.total - self.turn.base

    @property
    def calls_made(self) -> int:
        """Return how many calls and leaf calls the log has."""
        return self.counters.get("call", 0) + self.counters.get("leaf", 0)

    def calls_of(self, turn: int | None) -> list[PendingCall]:
        """Return the open calls of a turn; None means all of the session's."""
        return [call for call in self.calls.values() if turn is None or call.turn == turn]


_LEAF, _STEP, _CALL = "leaf:", "step:", "call:"


def leaf_reservation(ordinal: int) -> str:
    """Return under which key a leaf call's spend is set aside."""
    return f"{_LEAF}{ordinal}"


def step_reservation(step: int) -> str:
    """Return under which key a step's spend is set aside."""
    return f"{_STEP}{step}"


def call_reservation(call_id: str) -> str:
    """Return under which key the grant of a child call is set aside."""
    return f"{_CALL}{call_id}"


def is_model_call(reservation: str) -> bool:
    """Tell whether a reservation is that of a step or a leaf call in flight."""
    return reservation.startswith((_LEAF, _STEP))


def lost_leaves(state: State) -> list[facts.BudgetSettled]:
    """Return what settles the leaf calls in flight, once nobody waits for them any more.

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


def empty(session: str) -> State:
    """Return the state before a session's first event."""
    return State(session=session, digest=chain_start(session))
