"""The rules of a run: which fact may follow in which status of it, and from where.

The log asks them of every fact of a run before it is appended, and again when a log is verified.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from holdfast.core import facts, run_facts
from holdfast.core.errors import IllegalTransition, InvalidInput
from holdfast.core.run_facts import MAIN
from holdfast.core.run_state import (
    CANCELLED,
    FAILED_RESUMABLE,
    FINISHED,
    INTERRUPTED,
    OPEN,
    PAUSED,
    RUN_STATUSES,
    RUNNING,
    Cursor,
    LoopState,
    RunState,
)

if TYPE_CHECKING:
    from holdfast.core.state import State

_HALTED = frozenset({PAUSED, INTERRUPTED, FAILED_RESUMABLE, CANCELLED})

TRANSITIONS: dict[type[facts.Fact], tuple[frozenset[str], str]] = {
    run_facts.RunPaused: (frozenset({RUNNING}), PAUSED),
    run_facts.RunInterrupted: (frozenset({RUNNING}), INTERRUPTED),
    run_facts.RunResumed: (_HALTED, RUNNING),
    run_facts.RunFinished: (frozenset({RUNNING}), FINISHED),
    run_facts.RunFailed: (frozenset({RUNNING}), FAILED_RESUMABLE),  # or FAILED, as it says
    run_facts.RunCancelled: (OPEN | {FAILED_RESUMABLE}, CANCELLED),
}
"""From which statuses each fact leads to which; a transition removes nothing that resume needs."""


def check(state: State, fact: facts.Fact) -> None:
    """Refuse a fact of a run that does not follow from the state before it."""
    run: RunState | None = state.run
    if isinstance(fact, run_facts.RunStarted):
        if run is not None:
            raise InvalidInput(f"session {state.session!r} has a run already; start another one")
        return
    if isinstance(fact, run_facts.ArtifactWritten):
        _check_artifact(state, fact)
        if run is None:
            return  # any session may publish
    if run is None:
        raise InvalidInput(
            f"{fact.TYPE} needs a run, and session {state.session!r} has none; begin with "
            "run.started"
        )
    _check_transition(state, run, fact)
    checked = _CHECKS.get(type(fact))
    if checked is not None:
        checked(state, run, fact)


def _check_artifact(state: State, fact: run_facts.ArtifactWritten) -> None:
    due = state.next_version(fact.node)
    if fact.version != due:
        raise InvalidInput(
            f"artifact.written has version {fact.version}, but the next one of {fact.node!r} is "
            f"{due}"
        )


def _check_transition(state: State, run: RunState, fact: facts.Fact) -> None:
    cls = type(fact)
    if cls in TRANSITIONS:
        legal = TRANSITIONS[cls][0]
    elif cls is run_facts.RunChanged:
        legal = _HALTED
    elif cls in (run_facts.NodeFinished, run_facts.BranchFinished):
        legal = OPEN  # cancelling a run that stands still ends what it had open
    elif cls is run_facts.WorkspaceFinalised:
        legal = frozenset(RUN_STATUSES)
    else:
        legal = frozenset({RUNNING})
    if run.status not in legal:
        raise IllegalTransition(
            f"{fact.TYPE!r} is not legal while the run of session {state.session!r} is "
            f"{run.status!r}; legal in: {', '.join(sorted(legal))}",
            status=run.status,
            event=fact.TYPE,
        )


def _cursor(run: RunState, fact: Any) -> Cursor:
    cursor = run.cursors.get(fact.branch)
    if cursor is None:
        raise InvalidInput(f"{fact.TYPE} is about branch {fact.branch!r}, which is not open")
    return cursor


def _check_settles(state: State, run: RunState, fact: Any) -> None:
    if state.calls:
        raise InvalidInput(
            f"{fact.TYPE} would settle the run of session {state.session!r} while "
            f"{', '.join(sorted(state.calls))} has no outcome; bring each outcome in the same "
            "append, before it"
        )
    for name, cursor in run.cursors.items():
        if cursor.phase == "running":
            raise InvalidInput(
                f"{fact.TYPE} would settle the run of session {state.session!r} while node "
                f"{cursor.node!r} of branch {name!r} is running; finish it first"
            )


def _check_finished(state: State, run: RunState, fact: Any) -> None:
    _check_settles(state, run, fact)
    if run.forks or run.cursors[MAIN].phase != "ended":
        raise InvalidInput(
            f"run.finished needs a run whose main branch has ended; that of session "
            f"{state.session!r} stands at {run.cursors[MAIN].node!r}"
        )


def _check_node_started(state: State, run: RunState, fact: run_facts.NodeStarted) -> None:
    cursor = _cursor(run, fact)
    if cursor.node != fact.node or cursor.phase != "ready" or cursor.halted:
        raise InvalidInput(
            f"node.started is about {fact.node!r}, but branch {fact.branch!r} is "
            f"{cursor.halted or cursor.phase} at {cursor.node!r}"
        )


def _check_execution(run: RunState, fact: Any) -> Cursor:
    cursor = _cursor(run, fact)
    if (cursor.node, cursor.execution) != (fact.node, fact.execution):
        raise InvalidInput(
            f"{fact.TYPE} is about execution {fact.execution} of {fact.node!r}, but branch "
            f"{fact.branch!r} is at execution {cursor.execution} of {cursor.node!r}"
        )
    return cursor


def _check_node_finished(state: State, run: RunState, fact: run_facts.NodeFinished) -> None:
    cursor = _check_execution(run, fact)
    if cursor.phase != "running":
        raise InvalidInput(
            f"node.finished is about execution {fact.execution} of {fact.node!r}, which is "
            f"{cursor.phase}; an execution ends once, and after its branches"
        )
    if cursor.call in state.calls:
        raise InvalidInput(
            f"node.finished would end execution {fact.execution} of {fact.node!r} while its call "
            f"{cursor.call!r} has no outcome; bring call.resolved in the same append, before it"
        )


def _check_node_retried(state: State, run: RunState, fact: run_facts.NodeRetried) -> None:
    cursor = _check_execution(run, fact)
    if cursor.phase != "running" or cursor.call in state.calls:
        raise InvalidInput(
            f"node.retried is about execution {fact.execution} of {fact.node!r}, whose attempt "
            "has not ended"
        )
    if fact.then == "retry" and fact.attempt != cursor.attempt + 1:
        raise InvalidInput(
            f"node.retried has attempt {fact.attempt}, but the next one of execution "
            f"{fact.execution} is {cursor.attempt + 1}"
        )


def _check_edge(state: State, run: RunState, fact: run_facts.EdgeSelected) -> None:
    cursor = _cursor(run, fact)
    if cursor.node != fact.source or cursor.phase not in ("ended", "failed") or cursor.halted:
        raise InvalidInput(
            f"edge.selected leads from {fact.source!r}, but branch {fact.branch!r} is "
            f"{cursor.halted or cursor.phase} at {cursor.node!r}"
        )
    if fact.output != cursor.outcome:
        raise InvalidInput(
            f"edge.selected names event {fact.output} as the outcome of {fact.source!r}, which is "
            f"event {cursor.outcome}"
        )
    passed = 0
    if fact.loop is not None:
        passed = cursor.loops.get(fact.loop, LoopState()).passed + 1
    if fact.iteration != passed:
        raise InvalidInput(
            f"edge.selected has iteration {fact.iteration} of loop {fact.loop!r}; due is {passed}"
        )
    if fact.robin is not None and fact.robin != run.robin.get(fact.source, 0) + 1:
        raise InvalidInput(
            f"edge.selected has robin {fact.robin}, but the next choice of {fact.source!r} is "
            f"{run.robin.get(fact.source, 0) + 1}"
        )


def _check_branch_started(state: State, run: RunState, fact: run_facts.BranchStarted) -> None:
    parent = run.cursors.get(fact.parent)
    if parent is None or parent.execution != fact.fork or parent.phase not in ("running", "forked"):
        raise InvalidInput(
            f"branch.started splits off branch {fact.parent!r} at execution {fact.fork}, which is "
            "not open"
        )
    if fact.branch in run.cursors or not fact.branch.startswith(f"{fact.parent}/"):
        raise InvalidInput(
            f"branch.started has the branch {fact.branch!r}; name one that is not open, beginning "
            f"with {fact.parent + '/'!r}"
        )
    fork = run.forks.get(fact.fork)
    due = 0 if fork is None else fork.next
    if fact.index != due or fact.index >= fact.of:
        raise InvalidInput(
            f"branch.started has index {fact.index} of {fact.of}, but the next branch of "
            f"execution {fact.fork} is {due}"
        )
    if fork is not None and (fork.of, fork.join) != (fact.of, fact.join):
        raise InvalidInput(
            f"branch.started is one of {fact.of} joined by {fact.join!r}; execution {fact.fork} "
            f"has {fork.of} joined by {fork.join!r}"
        )


def _check_branch_finished(state: State, run: RunState, fact: run_facts.BranchFinished) -> None:
    cursor = _cursor(run, fact)
    if (cursor.fork, cursor.index) != (fact.fork, fact.index) or cursor.halted:
        raise InvalidInput(
            f"branch.finished is about branch {fact.index} of execution {fact.fork}, but "
            f"{fact.branch!r} is {cursor.halted or f'branch {cursor.index} of {cursor.fork}'}"
        )
    if fact.status == "ok" and cursor.phase not in ("ready", "ended"):
        raise InvalidInput(f"branch {fact.branch!r} is {cursor.phase} and cannot have ended well")


def _check_join(state: State, run: RunState, fact: run_facts.JoinReady) -> None:
    cursor = _cursor(run, fact)
    fork = run.forks.get(fact.fork)
    # A fan-out over nothing has no branch, and so no fork.
    if cursor.execution != fact.fork or (fork is None and cursor.phase != "running"):
        raise InvalidInput(f"join.ready is about execution {fact.fork}, which is not open")
    if fork is not None and (fact.ok, fact.failed) != (fork.ok, fork.failed):
        raise InvalidInput(
            f"join.ready counts {fact.ok} ok and {fact.failed} failed; execution {fact.fork} has "
            f"{fork.ok} and {fork.failed}"
        )


def _check_opened(state: State, run: RunState, fact: Any) -> None:
    if run.workspace is not None:
        raise InvalidInput(f"the run of session {state.session!r} has its workspace already")


def _check_finalised(state: State, run: RunState, fact: Any) -> None:
    if run.workspace is None or run.workspace.finalised is not None:
        raise InvalidInput(
            f"the workspace of session {state.session!r} is finalised already, or there is none"
        )


_CHECKS: dict[type[facts.Fact], Callable[[State, RunState, Any], None]] = {
    run_facts.RunFinished: _check_finished,
    run_facts.RunFailed: _check_settles,
    run_facts.RunCancelled: _check_settles,
    run_facts.NodeStarted: _check_node_started,
    run_facts.NodeFinished: _check_node_finished,
    run_facts.NodeRetried: _check_node_retried,
    run_facts.EdgeSelected: _check_edge,
    run_facts.BranchStarted: _check_branch_started,
    run_facts.BranchFinished: _check_branch_finished,
    run_facts.JoinReady: _check_join,
    run_facts.WorkspaceOpened: _check_opened,
    run_facts.WorkspaceFinalised: _check_finalised,
}
