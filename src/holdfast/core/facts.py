"""Facts: what each event type says, one frozen dataclass per type.

Events carry results, never recipes: folding them calls nothing. `*.put` replaces the whole entity
by its number. Values stand in slots; plain fields are small facts of our own. A field that has its
default is left out of the stored record, so a new optional field needs no new version; anything
else does, with an upcast in `holdfast.core.events`.

What a class says of itself beside its fields is all that the log needs to judge it: in which
statuses it may be appended, which counter numbers it, which one it moves, and what it settles.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from holdfast.core.payloads import Slot
from holdfast.core.status import ANY, AWAKE, IDLE, IN_TURN, NEW, RUNNING

Usage = dict[str, int | None]
"""Token counts by name; None is unknown, which is not zero."""

# Closed vocabularies: a fact with another word is refused, written or read.
SessionKind = Literal["root", "child", "fork", "run"]
InputKind = Literal[
    "message", "answer", "expiry", "extend", "cancel", "stop", "budget", "child_ended"
]
TurnStatus = Literal[
    "open", "interrupted", "final", "failed", "timed_out", "budget_exceeded", "stopped"
]
StepStatus = Literal["replied", "failed", "unknown"]
Role = Literal["user", "assistant", "observation"]
EvalStatus = Literal["ok", "error", "final", "limit", "diverged", "died", "unknown"]
LeafStatus = Literal["ok", "error", "unknown"]  # unknown: broken off, to be asked again
Executor = Literal["server", "client", "human"]
CallKind = Literal["tool", "leaf", "child", "question", "budget", "node"]
WaitKind = Literal["question", "approval", "client", "unknown", "child", "time", "signal", "budget"]
UnknownPolicy = Literal["tell", "ask"]
Effect = Literal["pure", "idempotent", "once"]
Outcome = Literal["ok", "error", "denied", "expired", "cancelled", "unknown"]
HeadKind = Literal["turn_final", "compaction", "run_final"]
EdgeType = Literal["invocation", "derivation"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """What one event says; the class attributes are the rules that hold for its type."""

    TYPE: ClassVar[str]
    VERSION: ClassVar[int] = 1
    LEGAL: ClassVar[frozenset[str]] = AWAKE
    """The statuses of a session in which it may be appended."""
    NUMBERED: ClassVar[str | None] = None
    """The counter, and the field of the same name, by which its entities are numbered."""
    COUNTS: ClassVar[str | None] = None
    """The counter of things without a number of their own that each of it raises by one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionStarted(Fact):
    """The settings snapshot that every revival uses, and where the session came from."""

    TYPE: ClassVar[str] = "session.started"
    LEGAL: ClassVar[frozenset[str]] = frozenset({NEW})
    tenant: str = "default"
    kind: SessionKind = "root"
    agent: str = "default"
    agent_version: str = "1"
    settings: Slot | None = None
    cache_id: str | None = None
    labels: dict[str, str] = field(default_factory=dict)
    parent: dict[str, str] | None = None  # session, call
    depth: int = 0  # how many sessions stand above it
    grant: dict[str, str | int] = field(default_factory=dict)  # what its parent set aside for it
    origin: dict[str, str | int] | None = None  # session, seq, digest and head of a fork's source
    transcript: Slot | None = None  # manifest of the messages a fork starts with
    vars: Slot | None = None  # namespace a fork starts with
    turn: dict[str, int] | None = None  # the open turn of a fork inside one: its steps so far
    run: Slot | None = None  # what a fork of a run starts with: outputs, versions, answers


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionConfigured(Fact):
    """What drives the session changed: a new agent version, other tools, another model or limit."""

    TYPE: ClassVar[str] = "session.configured"
    settings: Slot  # the whole snapshot from here on
    changes: Slot | None = None  # each setting with its old and its new value
    agent_version: str | None = None
    by: str | None = None  # the principal, where someone asked for it


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionMoved(Fact):
    """The session goes on in another store; this copy is sealed."""

    TYPE: ClassVar[str] = "session.moved"
    to: str
    by: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRevived(Fact):
    """A driver took up work that an earlier one left unfinished."""

    TYPE: ClassVar[str] = "session.revived"
    LEGAL: ClassVar[frozenset[str]] = IN_TURN
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
    NUMBERED: ClassVar[str | None] = "message"
    message: int
    content: Slot
    span: list[int] = field(default_factory=list)  # first and last seq that it stands for
    strategy: str = "summary"
    prompt_version: int | None = None
    reservation: str | None = None  # what it settles
    vars: Slot | None = None
    model: str | None = None
    usage: Usage | None = None
    cost_usd: str | None = None
    unknown: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionFailed(Fact):
    """A compaction was tried and did not come about; the turn goes on without it."""

    TYPE: ClassVar[str] = "compaction.failed"
    error: Slot | None = None
    span: list[int] = field(default_factory=list)
    strategy: str = "summary"
    reservation: str | None = None
    model: str | None = None
    usage: Usage | None = None
    cost_usd: str | None = None
    unknown: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class InputAdmitted(Fact):
    """The driver took one item out of the inbox."""

    TYPE: ClassVar[str] = "input.admitted"
    key: str
    kind: InputKind
    call_id: str | None = None
    wait: int | None = None
    by: str | None = None  # the principal who asked
    content: Slot | None = None
    sent_at: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnStarted(Fact):
    """One user message is being worked on until a terminal outcome."""

    TYPE: ClassVar[str] = "turn.started"
    LEGAL: ClassVar[frozenset[str]] = frozenset({IDLE})
    NUMBERED: ClassVar[str | None] = "turn"
    turn: int
    inputs: dict[str, Slot] = field(default_factory=dict)
    limits: dict[str, Any] = field(default_factory=dict)
    output_schema: Slot | None = None
    configuration: dict[str, str] = field(default_factory=dict)  # prompt, model, harness
    scope: str | None = None  # reference to whom the turn acts for


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnReopened(Fact):
    """The last turn, which ended without a final value, goes on at its step boundary."""

    TYPE: ClassVar[str] = "turn.reopened"
    LEGAL: ClassVar[frozenset[str]] = frozenset({IDLE})
    turn: int
    by: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnPut(Fact):
    """The turn as it stands; a status other than `open` and `interrupted` settles it."""

    TYPE: ClassVar[str] = "turn.put"
    LEGAL: ClassVar[frozenset[str]] = IN_TURN
    turn: int
    status: TurnStatus
    steps: int = 0
    final: Slot | None = None
    error: Slot | None = None
    usage: Usage | None = None
    cost_usd: str | None = None  # as far as it is known
    held_usd: str | None = None  # the most that calls of unknown cost can have cost
    unknown_calls: int = 0
    elapsed_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStarted(Fact):
    """One model call is about to be made."""

    TYPE: ClassVar[str] = "step.started"
    LEGAL: ClassVar[frozenset[str]] = frozenset({RUNNING})
    NUMBERED: ClassVar[str | None] = "step"
    step: int
    turn: int
    ordinal: int  # 1 for the first step of the session
    model: str | None = None
    request: str | None = None  # digest of what the model is sent, transient texts left out
    reserved_usd: str | None = None
    reserved_input_tokens: int | None = None
    reserved_output_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPut(Fact):
    """The step as it stands: its reply, or why there is none."""

    TYPE: ClassVar[str] = "step.put"
    LEGAL: ClassVar[frozenset[str]] = IN_TURN
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
    unknown: bool = False  # cost and usage are the most that they can have been


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageAppended(Fact):
    """One entry of the transcript."""

    TYPE: ClassVar[str] = "message.appended"
    NUMBERED: ClassVar[str | None] = "message"
    message: int
    role: Role
    content: Slot
    turn: int | None = None
    step: int | None = None
    partial: bool = False  # a reply that was broken off
    card: Slot | None = None  # what the model is told beside it: variables, a repair request
    input: str | None = None  # key of the inbox item that brought a steering message
    prose: bool = False  # it answers a reply that held nothing to act on


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalAdded(Fact):
    """One code cell was evaluated: what it was, what came of it."""

    TYPE: ClassVar[str] = "eval.added"
    LEGAL: ClassVar[frozenset[str]] = IN_TURN
    NUMBERED: ClassVar[str | None] = "eval"
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
    LEGAL: ClassVar[frozenset[str]] = IN_TURN
    NUMBERED: ClassVar[str | None] = "leaf"
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
    unknown: bool = False  # cost and usage are the most that they can have been


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRequested(Fact):
    """The intent of one call, recorded before it is dispatched.

    A call from code is dispatched with this event, unless it waits for someone first.
    """

    TYPE: ClassVar[str] = "call.requested"
    COUNTS: ClassVar[str | None] = "call"
    call_id: str
    name: str
    executor: Executor
    effect: Effect
    arguments: Slot
    kind: CallKind = "tool"
    turn: int | None = None
    step: int | None = None
    eval: int | None = None
    digest: str | None = None
    occurrence: int | None = None
    files: list[list[str]] = field(default_factory=list)  # path and digest read before the call
    contents: dict[str, Slot] = field(default_factory=dict)  # of those files, by digest
    approval: bool = False
    deadline: str | None = None
    policy: UnknownPolicy = "tell"  # what an unknown outcome leads to
    provider_id: str | None = None  # the id that a model gave to its tool call
    index: int = 0  # position among the calls of its reply, or in a map
    width: int = 1  # how many calls the map has
    child: str | None = None
    start: Slot | None = None  # the whole first record of the child
    grant: dict[str, str | int] = field(default_factory=dict)
    scope: str | None = None  # reference to whom it acts for


@dataclass(frozen=True, slots=True, kw_only=True)
class CallDispatched(Fact):
    """These calls start together; before this event none of them had started."""

    TYPE: ClassVar[str] = "call.dispatched"
    calls: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallApproved(Fact):
    """A person let the call go ahead, with its recorded arguments or edited ones."""

    TYPE: ClassVar[str] = "call.approved"
    call_id: str
    wait: int | None = None
    by: str | None = None
    arguments: Slot | None = None  # edited; the original stays in `call.requested`
    scope: str | None = None  # reference to the approver's scope


@dataclass(frozen=True, slots=True, kw_only=True)
class CallDenied(Fact):
    """A person refused the call; a `call.resolved` with outcome `denied` settles it."""

    TYPE: ClassVar[str] = "call.denied"
    call_id: str
    wait: int | None = None
    by: str | None = None
    reason: Slot | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSuspended(Fact):
    """The call waits for someone outside this process: each of these starts a wait."""

    TYPE: ClassVar[str] = "call.suspended"
    call_id: str
    wait: int = 1  # n-th wait of this call
    kind: WaitKind = "question"
    prompt: Slot | None = None
    schema: Slot | None = None  # that an answer must fit
    deadline: str | None = None
    default: Slot | None = None  # what the deadline brings about
    assignee: str | None = None
    on: str | None = None  # the call further down that it waits for
    driven_ms: int | None = None  # driving time of the present cell so far
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CallExtended(Fact):
    """The call's deadline was moved."""

    TYPE: ClassVar[str] = "call.extended"
    call_id: str
    wait: int | None = None
    deadline: str | None = None
    by: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CallResolved(Fact):
    """The one outcome of a call."""

    TYPE: ClassVar[str] = "call.resolved"
    call_id: str
    outcome: Outcome
    wait: int | None = None  # the wait that it ends
    result: Slot | None = None
    error: Slot | None = None
    by: str | None = None
    latency_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetReserved(Fact):
    """Spend was set aside before it could be incurred.

    That of a leaf call is `leaf:` and its ordinal, until the `leaf.called` of that ordinal; that
    of a step is `step:` and its number, by its `step.started`; a child's grant is `call:` and the
    id of its call, and outlives call and turn until the child has ended.
    """

    TYPE: ClassVar[str] = "budget.reserved"
    reservation: str
    usd: str | None = None
    tokens: int | None = None
    calls: int | None = None
    seconds: int | None = None
    child: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetSettled(Fact):
    """A reservation was replaced by what was spent; `unknown` says the ceiling was taken.

    So ends what was set aside for a leaf call that was lost, and a child's grant: `usd` and
    `tokens` are then what it is known to have spent, `held_…` the ceilings of what it lost.
    """

    TYPE: ClassVar[str] = "budget.settled"
    reservation: str
    usd: str | None = None
    tokens: int | None = None
    unknown: bool = False
    child: str | None = None
    calls: int = 0
    driven_ms: int = 0
    held_usd: str | None = None
    held_tokens: int = 0
    unknown_calls: int = 0
    unbounded_calls: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetWarned(Fact):
    """Little of a limit is left."""

    TYPE: ClassVar[str] = "budget.warned"
    limit: str
    used: str
    allowed: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitExceeded(Fact):
    """A limit is used up; what would have gone beyond it was not done."""

    TYPE: ClassVar[str] = "budget.exceeded"
    limit: str
    used: str
    allowed: str
    unknown_calls: int = 0  # calls without a ceiling, which no limit can bound


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadPublished(Fact):
    """A new head; written by the log itself, see `holdfast.core.heads`."""

    TYPE: ClassVar[str] = "head.published"
    COUNTS: ClassVar[str | None] = "head"
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
    LEGAL: ClassVar[frozenset[str]] = ANY
    id: str
    version: int
    type: EdgeType
    from_session: str
    to_session: str
    to_head: str
    from_head: str | None = None
    call_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordPut(Fact):
    """Something that a program built on top keeps in the log; `retracts` names earlier ones."""

    TYPE: ClassVar[str] = "record.put"
    NUMBERED: ClassVar[str | None] = "record"
    record: int
    kind: str
    key: str | None = None
    value: Slot | None = None
    retracts: list[int] = field(default_factory=list)
