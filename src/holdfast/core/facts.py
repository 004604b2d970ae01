"""Facts: what each event type says, one frozen dataclass per type.

Events carry results, never recipes: folding them calls nothing. `*.put` replaces the whole entity
by its number. Values stand in slots; plain fields are small facts of our own. A field that has its
default is left out of the stored record, so a new optional field needs no new version; anything
else does, with an upcast in `holdfast.core.events`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from holdfast.core.payloads import Slot

Usage = dict[str, int | None]
"""Token counts by name; None is unknown, which is not zero."""

# Closed vocabularies: a fact with another word is refused, written or read.
SessionKind = Literal["root", "child", "fork", "run"]
InputKind = Literal["message", "answer", "expiry", "stop", "budget", "child_ended"]
TurnStatus = Literal[
    "open", "interrupted", "final", "failed", "timed_out", "budget_exceeded", "stopped"
]
StepStatus = Literal["replied", "failed", "unknown"]
Role = Literal["user", "assistant", "observation"]
EvalStatus = Literal["ok", "error", "final", "limit", "diverged", "died", "unknown"]
LeafStatus = Literal["ok", "error", "unknown"]  # unknown: broken off, to be asked again
Executor = Literal["server", "client", "human"]
Effect = Literal["pure", "idempotent", "once"]
Outcome = Literal["ok", "error", "denied", "expired", "cancelled", "unknown"]
HeadKind = Literal["turn_final", "compaction"]
EdgeType = Literal["invocation", "derivation"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """What one event says; the class attributes name its type and its present version."""

    TYPE: ClassVar[str]
    VERSION: ClassVar[int] = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionStarted(Fact):
    """The settings snapshot that every revival uses, and where the session came from."""

    TYPE: ClassVar[str] = "session.started"
    tenant: str = "default"
    kind: SessionKind = "root"
    agent: str = "default"
    agent_version: str = "1"
    settings: Slot | None = None
    cache_id: str | None = None
    labels: dict[str, str] = field(default_factory=dict)
    parent: dict[str, str] | None = None  # session, call
    origin: dict[str, str] | None = None  # session, head, digest of a fork's source
    transcript: Slot | None = None  # manifest of the messages a fork starts with
    vars: Slot | None = None  # namespace a fork starts with


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRevived(Fact):
    """A driver took up work that an earlier one left unfinished."""

    TYPE: ClassVar[str] = "session.revived"
    turn: int | None = None
    owner: str | None = None
    forced: bool = False
    found: str | None = None  # the row of the recovery table that applied


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionStopRequested(Fact):
    """Someone asked the session to settle and end."""

    TYPE: ClassVar[str] = "session.stop_requested"
    by: str | None = None
    reason: Slot | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionStopped(Fact):
    """The session ended on request."""

    TYPE: ClassVar[str] = "session.stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionFailed(Fact):
    """The session itself cannot go on; a failed turn alone does not do this."""

    TYPE: ClassVar[str] = "session.failed"
    error: Slot | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionCompacted(Fact):
    """The kept transcript was rewritten into one briefing; this event is the new boundary."""

    TYPE: ClassVar[str] = "session.compacted"
    message: int
    content: Slot
    vars: Slot | None = None
    usage: Usage | None = None
    cost_usd: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionFailed(Fact):
    """A compaction was tried and did not come about; the turn goes on without it."""

    TYPE: ClassVar[str] = "compaction.failed"
    error: Slot | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InputAdmitted(Fact):
    """The driver took one item out of the inbox."""

    TYPE: ClassVar[str] = "input.admitted"
    key: str
    kind: InputKind
    call_id: str | None = None
    content: Slot | None = None
    sent_at: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnStarted(Fact):
    """One user message is being worked on until a terminal outcome."""

    TYPE: ClassVar[str] = "turn.started"
    turn: int
    inputs: dict[str, Slot] = field(default_factory=dict)
    limits: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnPut(Fact):
    """The turn as it stands; a status other than `open` and `interrupted` settles it."""

    TYPE: ClassVar[str] = "turn.put"
    turn: int
    status: TurnStatus
    steps: int = 0
    final: Slot | None = None
    error: Slot | None = None
    usage: Usage | None = None
    cost_usd: str | None = None
    elapsed_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStarted(Fact):
    """One model call is about to be made."""

    TYPE: ClassVar[str] = "step.started"
    step: int
    turn: int
    ordinal: int  # 1 for the first step of the session
    model: str | None = None
    reserved_usd: str | None = None
    reserved_input_tokens: int | None = None
    reserved_output_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPut(Fact):
    """The step as it stands: its reply, or why there is none."""

    TYPE: ClassVar[str] = "step.put"
    step: int
    turn: int
    status: StepStatus
    model: str | None = None
    usage: Usage | None = None
    cost_usd: str | None = None
    price_table: str | None = None
    latency_ms: int | None = None
    finish_reason: str | None = None
    attempts: Slot | None = None
    error: Slot | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageAppended(Fact):
    """One entry of the transcript."""

    TYPE: ClassVar[str] = "message.appended"
    message: int
    role: Role
    content: Slot
    turn: int | None = None
    step: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalAdded(Fact):
    """One code cell was evaluated: what it was, what came of it."""

    TYPE: ClassVar[str] = "eval.added"
    eval: int
    turn: int
    step: int
    index: int  # position of the cell in its reply
    code: Slot
    status: EvalStatus
    value: Slot | None = None
    output: Slot | None = None
    error: Slot | None = None
    calls: int = 0
    engine: str | None = None
    elapsed_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VarsCheckpointed(Fact):
    """The namespace to go on with."""

    TYPE: ClassVar[str] = "vars.checkpointed"
    vars: Slot
    turn: int | None = None
    eval: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafCalled(Fact):
    """One bounded model call made from code, without a session of its own."""

    TYPE: ClassVar[str] = "leaf.called"
    leaf: int
    turn: int
    step: int
    eval: int
    function: str  # lm, map_lm
    digest: str  # of the arguments of the call
    occurrence: int  # n-th such call in the eval
    status: LeafStatus
    request: Slot
    ordinal: int = 0  # place in the session's order of issue
    item: int = 0  # position in a map_lm
    width: int = 1  # how many items the call has
    files: list[list[str]] = field(default_factory=list)  # path and digest read before the call
    reply: Slot | None = None
    error: Slot | None = None
    model: str | None = None
    usage: Usage | None = None
    cost_usd: str | None = None
    price_table: str | None = None
    latency_ms: int | None = None
    attempts: Slot | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRequested(Fact):
    """The intent of one call, recorded before it is dispatched."""

    TYPE: ClassVar[str] = "call.requested"
    call_id: str
    name: str
    executor: Executor
    effect: Effect
    arguments: Slot
    turn: int | None = None
    step: int | None = None
    eval: int | None = None
    digest: str | None = None
    occurrence: int | None = None
    files: list[list[str]] = field(default_factory=list)  # path and digest read before the call
    approval: bool = False
    deadline: str | None = None
    child: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CallApproved(Fact):
    """A person let the call go ahead with its recorded arguments."""

    TYPE: ClassVar[str] = "call.approved"
    call_id: str
    by: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CallDenied(Fact):
    """A person refused the call; a `call.resolved` with outcome `denied` settles it."""

    TYPE: ClassVar[str] = "call.denied"
    call_id: str
    by: str | None = None
    reason: Slot | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSuspended(Fact):
    """The call waits for someone outside this process."""

    TYPE: ClassVar[str] = "call.suspended"
    call_id: str
    reason: str | None = None
    deadline: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CallExtended(Fact):
    """The call's deadline was moved."""

    TYPE: ClassVar[str] = "call.extended"
    call_id: str
    deadline: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CallResolved(Fact):
    """The one outcome of a call."""

    TYPE: ClassVar[str] = "call.resolved"
    call_id: str
    outcome: Outcome
    result: Slot | None = None
    error: Slot | None = None
    by: str | None = None
    latency_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetReserved(Fact):
    """Spend was set aside before it could be incurred.

    That of a leaf call is `leaf:` and its ordinal, until the `leaf.called` of that ordinal.
    """

    TYPE: ClassVar[str] = "budget.reserved"
    reservation: str
    usd: str | None = None
    tokens: int | None = None
    child: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetSettled(Fact):
    """A reservation was replaced by what was spent; `unknown` says the ceiling was taken.

    So ends what was set aside for a leaf call that was lost.
    """

    TYPE: ClassVar[str] = "budget.settled"
    reservation: str
    usd: str | None = None
    tokens: int | None = None
    unknown: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetWarned(Fact):
    """Little of a limit is left."""

    TYPE: ClassVar[str] = "budget.warned"
    limit: str
    used: str
    allowed: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetExceeded(Fact):
    """A limit is used up; what would have gone beyond it was not done."""

    TYPE: ClassVar[str] = "budget.exceeded"
    limit: str
    used: str
    allowed: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadPublished(Fact):
    """A new head; written by the log itself, see `holdfast.core.heads`."""

    TYPE: ClassVar[str] = "head.published"
    id: str
    version: int
    session: str
    range: list[int]
    digest: str
    kind: HeadKind
    basis: str | None = None
    turn: int | None = None
    vars: Slot | None = None
    final: Slot | None = None
    compact_from: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LineageAdded(Fact):
    """A relation between two sessions' heads; see `holdfast.core.heads`."""

    TYPE: ClassVar[str] = "lineage.added"
    id: str
    version: int
    type: EdgeType
    from_session: str
    to_session: str
    to_head: str
    from_head: str | None = None
    call_id: str | None = None
