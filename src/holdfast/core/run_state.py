"""The state of a run: where its cursors stand, and what it takes to move them after a kill.

Positions and counters, never values: outputs, mapped inputs and errors are named by the event that
has them. What has ended leaves the state, so it grows with what is open at a time and with the
number of nodes, not with how long the run lasts or how many items it works through.

A cursor's phase says what is due: `ready` (its node starts), `running` (an attempt is in flight,
waits, or is due again), `forked` (its branches are at work), `ended` (an edge is due), `failed`
(a failure edge is due, or the branch fails). A branch is `halted` while its fan-out is given up:
it stands still, and resuming the run lets it go on.
"""

from __future__ import annotations

import msgspec

from holdfast.core import status

RUNNING = "running"
PAUSED = "paused"
INTERRUPTED = "interrupted"
FAILED_RESUMABLE = "failed_resumable"
FAILED = "failed"
CANCELLED = "cancelled"
FINISHED = "finished"

RUN_STATUSES = (RUNNING, PAUSED, INTERRUPTED, FAILED_RESUMABLE, FAILED, CANCELLED, FINISHED)

SESSION_STATUS = {
    RUNNING: status.RUNNING,
    PAUSED: status.SUSPENDED,
    INTERRUPTED: status.RUNNING,  # nobody drives it, so readers show `interrupted`
    FAILED_RESUMABLE: status.IDLE,
    FAILED: status.FAILED,
    CANCELLED: status.IDLE,
    FINISHED: status.IDLE,
}
"""What a session's status is while its run has one of its own."""

OPEN = frozenset({RUNNING, PAUSED, INTERRUPTED})
"""Statuses in which the run is not settled."""


class LoopState(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """How often a loop was passed, and the events with the outcomes that caused it."""

    passed: int = 0
    last: int | None = None
    before: int | None = None


# There may be hundreds of cursors: what is written of each in a snapshot is kept short.
_SHORT = {
    "node": "n",
    "phase": "p",
    "fork": "f",
    "index": "i",
    "execution": "x",
    "started": "s",
    "call": "c",
    "resolved": "r",
    "fired": "e",
    "outputs": "o",
}


class Cursor(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, rename=_SHORT):
    """Where a branch stands."""

    node: str
    phase: str = "ready"
    fork: int | None = None  # the execution it split off at
    index: int = 0
    key: str | None = None
    halted: str | None = None  # failed, stopped
    execution: int = 0
    started: int = 0  # the event that started it
    call: str | None = None
    attempt: int = 1
    resolved: int | None = None  # the event with that call's outcome
    until: str | None = None  # no attempt before
    asking: str | None = None  # the failure about which a person is asked
    code: str | None = None  # of the failure, while it is failed
    outcome: int | None = None  # the event with the outcome that an edge is due for
    fired: tuple[int, ...] = ()  # the events that feed its node
    attempts: dict[str, int] = {}  # failures of its node, by code
    loops: dict[str, LoopState] = {}
    outputs: dict[str, int] = {}  # the event with the latest output of each node of this branch


class Fork(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """An execution that fans out, while its branches are at work."""

    node: str
    branch: str  # that the branches split off
    join: str
    of: int
    seq: int  # of its first branch: what ended before is of another time
    next: int = 0
    ok: int = 0
    failed: int = 0
    closing: str | None = None  # failed, won
    fired: dict[int, tuple[int, ...]] = {}  # what its ended branches feed the join, by index
    outputs: dict[str, int] = {}  # of ended branches


class ArtifactVersion(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The latest version of an artifact, and the event that has it."""

    version: int
    seq: int


class WorkspaceState(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """Where a run's files are and what became of them."""

    kind: str
    path: str | None = None
    repository: str | None = None
    base_commit: str | None = None
    base_branch: str | None = None
    commit: str | None = None  # as the last node left it
    finalised: int | None = None  # the event that says what became of it


class RunState(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """What it takes to go on with a run, at one position of its log."""

    workflow: str
    started: int  # the event that started it
    status: str = RUNNING
    model: int = 0  # the event with the workflow in force
    cursors: dict[str, Cursor] = {}
    forks: dict[int, Fork] = {}
    robin: dict[str, int] = {}
    executions: int = 0  # of those that a budget counts
    resumes: dict[str, int] = {}  # without anyone asking, by cause
    stopping: str | None = None  # why nothing new starts
    ended: int | None = None  # the event that settled or paused it last
    until: str | None = None  # when a pause is over by itself
    active_since: str | None = None
    driven_ms: int = 0  # before that
    workspace: WorkspaceState | None = None

    def below(self, branch: str) -> list[str]:
        """Return the branches that split off a branch, whether directly or further down."""
        return [name for name in self.cursors if name.startswith(f"{branch}/")]

    def branches_of(self, fork: int) -> dict[str, Cursor]:
        """Return the open branches of a fan-out, in order of their index."""
        found = [(name, cursor) for name, cursor in self.cursors.items() if cursor.fork == fork]
        return dict(sorted(found, key=lambda item: item[1].index))

    def parent_of(self, branch: str) -> str | None:
        """Return the branch that another one split off."""
        fork = self.cursors[branch].fork
        return None if fork is None else self.forks[fork].branch


def due(run: RunState) -> str | None:
    """Return when a run that stands still goes on by itself."""
    return run.until if run.status == PAUSED else None
