"""Facts of workflow runs: a run is a session whose log also says which nodes and edges fired."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from holdfast.core.facts import Fact
from holdfast.core.payloads import Slot
from holdfast.core.status import IDLE


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted(Fact):
    """A workflow began."""

    TYPE: ClassVar[str] = "run.started"
    LEGAL: ClassVar[frozenset[str]] = frozenset({IDLE})
    workflow: str
    workflow_hash: str | None = None
    inputs: dict[str, Slot] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPaused(Fact):
    """The run waits; `on_resume` says whether the node is retried, continued or replaced."""

    TYPE: ClassVar[str] = "run.paused"
    reason: str
    node: str | None = None
    on_resume: str = "continue"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResumed(Fact):
    """The run goes on."""

    TYPE: ClassVar[str] = "run.resumed"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFinished(Fact):
    """The run reached its end."""

    TYPE: ClassVar[str] = "run.finished"
    output: Slot | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFailed(Fact):
    """The run cannot go on by itself; nothing of it is lost."""

    TYPE: ClassVar[str] = "run.failed"
    error: Slot | None = None
    node: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCancelled(Fact):
    """Someone ended the run."""

    TYPE: ClassVar[str] = "run.cancelled"
    by: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStarted(Fact):
    """A node began on one branch."""

    TYPE: ClassVar[str] = "node.started"
    node: str
    branch: str = "main"
    attempt: int = 1
    iteration: int = 0
    input: Slot | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFinished(Fact):
    """A node ended on one branch."""

    TYPE: ClassVar[str] = "node.finished"
    node: str
    branch: str = "main"
    status: str = "ok"
    iteration: int = 0
    output: Slot | None = None
    error: Slot | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRetried(Fact):
    """A node failed and is tried again."""

    TYPE: ClassVar[str] = "node.retried"
    node: str
    attempt: int
    branch: str = "main"
    error: Slot | None = None
    wait_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeSelected(Fact):
    """An edge fired; node inputs are built from these alone."""

    TYPE: ClassVar[str] = "edge.selected"
    source: str
    target: str
    branch: str = "main"
    loop: str | None = None
    iteration: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchStarted(Fact):
    """A branch split off."""

    TYPE: ClassVar[str] = "branch.started"
    branch: str
    node: str
    parent: str = "main"


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchFinished(Fact):
    """A branch ended."""

    TYPE: ClassVar[str] = "branch.finished"
    branch: str
    status: str = "ok"


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinReady(Fact):
    """All branches that a join waits for have ended."""

    TYPE: ClassVar[str] = "join.ready"
    node: str
    branches: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactWritten(Fact):
    """A node published a version of its artifact."""

    TYPE: ClassVar[str] = "artifact.written"
    COUNTS: ClassVar[str | None] = "artifact"
    node: str
    version: int
    data: Slot
    branch: str = "main"
