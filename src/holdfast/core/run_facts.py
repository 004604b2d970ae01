"""Facts of workflow runs: a run is a session whose log also says which nodes and edges fired.

Branches share the log of their run. Each has one cursor, which stands at a node; `edge.selected`
moves it, and nothing else does. One execution of a node is a number of its own: it is started once,
may be retried, and is finished once, whatever else the run does meanwhile. Branch and loop counters
stand in every fact about a node, so that the log can be read without the workflow at hand.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from holdfast.core.facts import Fact
from holdfast.core.payloads import Slot
from holdfast.core.status import AWAKE, IDLE, IN_TURN, RUNNING

# Closed vocabularies, as in `holdfast.core.facts`.
NodeStatus = Literal["ok", "failed", "cancelled"]
BranchStatus = Literal["ok", "failed", "cancelled"]
JoinKind = Literal["all", "best_effort", "first"]
NextAttempt = Literal["retry", "ask"]
OnResume = Literal["retry", "continue", "replace"]
PauseReason = Literal["people", "time", "operator"]
WorkspaceKind = Literal["none", "directory", "worktree"]

MAIN = "main"
"""The branch that every run begins and ends on."""

_ALIVE: frozenset[str] = frozenset(IN_TURN)
_DRIVEN: frozenset[str] = frozenset({RUNNING})


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted(Fact):
    """A workflow began, with all that resume needs to go on with it."""

    TYPE: ClassVar[str] = "run.started"
    LEGAL: ClassVar[frozenset[str]] = frozenset({IDLE})
    workflow: str
    workflow_hash: str | None = None  # content id of the canonical model
    start: str = "start"  # the node that the first cursor stands at
    source: Slot | None = None  # the text of the file, as it was read
    place: str | None = None  # where the text came from
    model: Slot | None = None  # the canonical model
    inputs: dict[str, Slot] = field(default_factory=dict)  # as given
    vars: Slot | None = None  # resolved: given, else by default
    options: Slot | None = None  # how the run was launched
    by: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPaused(Fact):
    """Nothing can move before someone acts or a time comes; nothing is lost."""

    TYPE: ClassVar[str] = "run.paused"
    LEGAL: ClassVar[frozenset[str]] = _ALIVE
    reason: PauseReason
    node: str | None = None
    calls: list[str] = field(default_factory=list)  # the calls that wait for someone
    until: str | None = None
    on_resume: OnResume = "continue"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInterrupted(Fact):
    """The driver was told to leave; another one goes on."""

    TYPE: ClassVar[str] = "run.interrupted"
    LEGAL: ClassVar[frozenset[str]] = _ALIVE
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunChanged(Fact):
    """The run goes on with a changed workflow, because someone said so."""

    TYPE: ClassVar[str] = "run.changed"
    LEGAL: ClassVar[frozenset[str]] = AWAKE
    workflow_hash: str
    model: Slot
    source: Slot | None = None
    place: str | None = None
    changes: Slot | None = None  # what differs, by node
    by: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResumed(Fact):
    """The run goes on; branches that had failed or were stopped stand where they stood."""

    TYPE: ClassVar[str] = "run.resumed"
    LEGAL: ClassVar[frozenset[str]] = AWAKE
    by: str | None = None
    code: str | None = None  # the cause, where the run was resumed without anyone asking


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFinished(Fact):
    """The run reached its end."""

    TYPE: ClassVar[str] = "run.finished"
    LEGAL: ClassVar[frozenset[str]] = _ALIVE
    output: Slot | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFailed(Fact):
    """The run cannot go on by itself; unless a `fail` node ended it, it can be resumed."""

    TYPE: ClassVar[str] = "run.failed"
    LEGAL: ClassVar[frozenset[str]] = _ALIVE
    resumable: bool = True
    code: str | None = None
    error: Slot | None = None
    node: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCancelled(Fact):
    """Someone ended the run; it can be resumed."""

    TYPE: ClassVar[str] = "run.cancelled"
    LEGAL: ClassVar[frozenset[str]] = AWAKE
    by: str | None = None
    reason: Slot | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStarted(Fact):
    """A node began on one branch, as an execution of its own."""

    TYPE: ClassVar[str] = "node.started"
    LEGAL: ClassVar[frozenset[str]] = _DRIVEN
    NUMBERED: ClassVar[str | None] = "execution"
    execution: int
    node: str
    kind: str
    branch: str = MAIN
    iteration: dict[str, int] = field(default_factory=dict)  # loops around it that were passed
    input: Slot | None = None
    call: str | None = None  # the call that carries it out; none where the run does it itself
    free: bool = False  # not counted by a budget of executions


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFinished(Fact):
    """An execution ended, with its one outcome."""

    TYPE: ClassVar[str] = "node.finished"
    LEGAL: ClassVar[frozenset[str]] = _ALIVE
    execution: int
    node: str
    branch: str = MAIN
    iteration: dict[str, int] = field(default_factory=dict)
    status: NodeStatus = "ok"
    output: Slot | None = None
    code: str | None = None
    error: Slot | None = None
    commit: str | None = None  # the workspace as the node left it
    reused: dict[str, str | int] | None = None  # session and seq of the result that was taken over


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRetried(Fact):
    """An attempt failed; the execution goes on with another one, or with what a person says."""

    TYPE: ClassVar[str] = "node.retried"
    LEGAL: ClassVar[frozenset[str]] = _ALIVE
    execution: int
    node: str
    attempt: int  # the one that comes now
    code: str
    call: str  # the call of that attempt
    branch: str = MAIN
    iteration: dict[str, int] = field(default_factory=dict)
    then: NextAttempt = "retry"
    error: Slot | None = None
    until: str | None = None  # not before


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeSelected(Fact):
    """An edge fired; node inputs are built from these and `branch.started` alone."""

    TYPE: ClassVar[str] = "edge.selected"
    LEGAL: ClassVar[frozenset[str]] = _ALIVE
    source: str
    target: str
    branch: str = MAIN
    loop: str | None = None
    iteration: int = 0  # how often that loop was passed, this time included
    inputs: dict[str, Slot] = field(default_factory=dict)  # what the edge maps
    resets: list[str] = field(default_factory=list)  # loops that begin anew
    clears: list[str] = field(default_factory=list)  # nodes whose outputs no longer count
    robin: int | None = None  # how often its router has chosen, this time included
    output: int | None = None  # the event that has the source's outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchStarted(Fact):
    """A branch split off at an execution that fans out."""

    TYPE: ClassVar[str] = "branch.started"
    LEGAL: ClassVar[frozenset[str]] = _DRIVEN
    branch: str
    node: str
    fork: int  # the execution that fans out
    index: int
    of: int
    parent: str = MAIN
    join: JoinKind = "all"
    key: str | None = None  # names the item, where its position does not
    inputs: dict[str, Slot] = field(default_factory=dict)  # what the edge to it maps


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchFinished(Fact):
    """A branch ended, or stands still because its fan-out failed."""

    TYPE: ClassVar[str] = "branch.finished"
    LEGAL: ClassVar[frozenset[str]] = _ALIVE
    branch: str
    fork: int
    index: int
    status: BranchStatus = "ok"
    key: str | None = None
    output: Slot | None = None
    code: str | None = None
    error: Slot | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinReady(Fact):
    """A fan-out is over: all that its join waits for is there."""

    TYPE: ClassVar[str] = "join.ready"
    LEGAL: ClassVar[frozenset[str]] = _ALIVE
    fork: int
    node: str
    branch: str = MAIN
    ok: int = 0
    failed: int = 0
    clears: list[str] = field(default_factory=list)  # nodes whose older outputs no longer count


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactWritten(Fact):
    """An execution published a version of its node's artifact."""

    TYPE: ClassVar[str] = "artifact.written"
    LEGAL: ClassVar[frozenset[str]] = AWAKE
    node: str
    version: int  # from 0, per node, without gaps
    data: Slot
    name: str | None = None
    execution: int | None = None
    branch: str = MAIN
    iteration: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceOpened(Fact):
    """The run has a place for its files."""

    TYPE: ClassVar[str] = "workspace.opened"
    LEGAL: ClassVar[frozenset[str]] = _ALIVE
    kind: WorkspaceKind
    path: str | None = None
    repository: str | None = None
    base_commit: str | None = None
    base_branch: str | None = None  # none: the repository stood at no branch


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceFinalised(Fact):
    """What became of the run's files; told once."""

    TYPE: ClassVar[str] = "workspace.finalised"
    LEGAL: ClassVar[frozenset[str]] = AWAKE
    commit: str | None = None
    branch: str | None = None
    merged_into: str | None = None
    reason: str | None = None  # why it was not merged


FACTS: tuple[type[Fact], ...] = tuple(
    cls
    for cls in vars().values()
    if isinstance(cls, type) and issubclass(cls, Fact) and cls is not Fact
)
"""All of them."""
