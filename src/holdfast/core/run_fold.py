"""The fold of a run: from its state and one fact of its log to the next state."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from msgspec.structs import replace

from holdfast.core import facts, run_facts
from holdfast.core.run_facts import MAIN
from holdfast.core.run_state import (
    CANCELLED,
    FAILED,
    FAILED_RESUMABLE,
    FINISHED,
    INTERRUPTED,
    PAUSED,
    RUNNING,
    Cursor,
    Fork,
    LoopState,
    RunState,
    WorkspaceState,
)


def apply(run: RunState | None, fact: Any, seq: int, at: str, tip: str) -> RunState | None:
    """Return the state of a run after one fact of its log; `tip` is the time of the one before."""
    if isinstance(fact, run_facts.RunStarted):
        return RunState(
            fact.workflow,
            seq,
            model=seq,
            cursors={MAIN: Cursor(fact.start)},
            active_since=at,
        )
    if run is None:
        return None
    handler = _HANDLERS.get(type(fact))
    return run if handler is None else handler(run, fact, seq, at, tip)


def _moved(run: RunState, branch: str, **changes: Any) -> RunState:
    cursor = replace(run.cursors[branch], **changes)
    return replace(run, cursors={**run.cursors, branch: cursor})


def _driven(run: RunState, until: str) -> int:
    """Return how long a run has been driven, up to a time."""
    if run.active_since is None:
        return run.driven_ms
    spent = datetime.fromisoformat(until) - datetime.fromisoformat(run.active_since)
    return run.driven_ms + max(0, round(spent.total_seconds() * 1000))


def _stood(run: RunState, state: str, seq: int, at: str, **changes: Any) -> RunState:
    return replace(
        run,
        status=state,
        ended=seq,
        driven_ms=_driven(run, at),
        active_since=None,
        stopping=None,
        **changes,
    )


def _paused(run: RunState, fact: Any, seq: int, at: str, tip: str) -> RunState:
    return _stood(run, PAUSED, seq, at, until=fact.until)


def _interrupted(run: RunState, fact: Any, seq: int, at: str, tip: str) -> RunState:
    return _stood(run, INTERRUPTED, seq, at)


def _failed(run: RunState, fact: Any, seq: int, at: str, tip: str) -> RunState:
    return _stood(run, FAILED_RESUMABLE if fact.resumable else FAILED, seq, at)


def _cancelled(run: RunState, fact: Any, seq: int, at: str, tip: str) -> RunState:
    return _stood(run, CANCELLED, seq, at)


def _finished(run: RunState, fact: Any, seq: int, at: str, tip: str) -> RunState:
    return _stood(run, FINISHED, seq, at)


def _changed(run: RunState, fact: Any, seq: int, at: str, tip: str) -> RunState:
    return replace(run, model=seq)


def _resumed(run: RunState, fact: Any, seq: int, at: str, tip: str) -> RunState:
    resumes = run.resumes
    if fact.code is not None:
        resumes = {**resumes, fact.code: resumes.get(fact.code, 0) + 1}
    # A run that only waits goes on as it stood; one that had failed tries again where it did.
    cursors = {
        name: replace(
            cursor,
            halted=None,
            phase="ready" if cursor.phase == "failed" else cursor.phase,
            code=None if cursor.phase == "failed" else cursor.code,
        )
        for name, cursor in run.cursors.items()
    }
    forks = {
        key: replace(fork, closing=None, failed=0) if fork.closing == "failed" else fork
        for key, fork in run.forks.items()
    }
    return replace(
        run,
        status=RUNNING,
        cursors=cursors,
        forks=forks,
        resumes=resumes,
        until=None,
        stopping=None,
        active_since=at,
    )


def _revived(run: RunState, fact: Any, seq: int, at: str, tip: str) -> RunState:
    # The process that drove it is gone; how long it lived after its last word, nobody knows.
    if run.active_since is None:
        return run
    return replace(run, driven_ms=_driven(run, tip), active_since=at)


def _answered(run: RunState, fact: Any, seq: int, at: str, tip: str) -> RunState:
    for name, cursor in run.cursors.items():
        if cursor.call == fact.call_id:
            run = _moved(run, name, resolved=seq)
            break
    else:
        return run
    if run.status == PAUSED:
        # It waited for this: whoever drives it next goes on.
        return replace(run, status=RUNNING, until=None, active_since=at)
    return run


def _exceeded(run: RunState, fact: Any, seq: int, at: str, tip: str) -> RunState:
    return replace(run, stopping="budget_exceeded") if run.status == RUNNING else run


def _node_started(run: RunState, fact: Any, seq: int, at: str, tip: str) -> RunState:
    run = _moved(
        run,
        fact.branch,
        phase="running",
        execution=fact.execution,
        started=seq,
        call=fact.call,
        attempt=1,
        resolved=None,
        until=None,
        asking=None,
        code=None,
        outcome=None,
        fired=(),
    )
    return run if fact.free else replace(run, executions=run.executions + 1)


def _node_finished(run: RunState, fact: Any, seq: int, at: str, tip: str) -> RunState:
    cursor = run.cursors[fact.branch]
    changes: dict[str, Any] = {"call": None, "resolved": None, "until": None, "asking": None}
    if fact.status == "ok":
        outputs = {**cursor.outputs, fact.node: seq}
        changes |= {"phase": "ended", "outcome": seq, "outputs": outputs, "attempts": {}}
    elif fact.status == "failed":
        changes |= {"phase": "failed", "outcome": seq, "code": fact.code}
    else:
        changes |= {"phase": "ready"}  # as if it had not begun
    run = _moved(run, fact.branch, **changes)
    if fact.commit is not None and run.workspace is not None:
        run = replace(run, workspace=replace(run.workspace, commit=fact.commit))
    return run


def _node_retried(run: RunState, fact: Any, seq: int, at: str, tip: str) -> RunState:
    attempts = run.cursors[fact.branch].attempts
    asks = fact.then == "ask"
    return _moved(
        run,
        fact.branch,
        call=fact.call,
        attempt=fact.attempt,
        resolved=None,
        until=fact.until,
        asking=fact.code if asks else None,
        attempts=attempts if asks else {**attempts, fact.code: attempts.get(fact.code, 0) + 1},
    )


def _edge_selected(run: RunState, fact: Any, seq: int, at: str, tip: str) -> RunState:
    cursor = run.cursors[fact.branch]
    gone = {*fact.resets, fact.loop}
    loops = {name: loop for name, loop in cursor.loops.items() if name not in gone}
    if fact.loop is not None:
        before = cursor.loops.get(fact.loop, LoopState())
        loops[fact.loop] = LoopState(before.passed + 1, cursor.outcome, before.last)
    outputs = {node: at for node, at in cursor.outputs.items() if node not in fact.clears}
    run = _moved(
        run,
        fact.branch,
        node=fact.target,
        phase="ready",
        code=None,
        outcome=None,
        fired=(*cursor.fired, seq),
        attempts={},
        loops=loops,
        outputs=outputs,
    )
    if fact.robin is not None:
        run = replace(run, robin={**run.robin, fact.source: fact.robin})
    return run


def _branch_started(run: RunState, fact: Any, seq: int, at: str, tip: str) -> RunState:
    fork = run.forks.get(fact.fork)
    if fork is None:
        node = run.cursors[fact.parent].node
        fork = Fork(node, fact.parent, fact.join, fact.of, seq)
        run = _moved(run, fact.parent, phase="forked")
    cursor = Cursor(fact.node, fork=fact.fork, index=fact.index, key=fact.key, fired=(seq,))
    return replace(
        run,
        cursors={**run.cursors, fact.branch: cursor},
        forks={**run.forks, fact.fork: replace(fork, next=fact.index + 1)},
    )


def _branch_finished(run: RunState, fact: Any, seq: int, at: str, tip: str) -> RunState:
    fork = run.forks[fact.fork]
    cursor = run.cursors[fact.branch]
    # What resuming the run may need again is kept; what a won or tolerant join has no use for goes.
    kept = {
        "ok": False,
        "failed": fork.join == "all",
        "cancelled": fork.closing != "won",
    }[fact.status]
    match fact.status:
        case "ok":
            fork = replace(fork, ok=fork.ok + 1)
            if fork.join == "first":
                fork = replace(fork, closing="won")
            if cursor.phase == "ready":  # it stands at the join, where the branches meet
                fork = replace(
                    fork,
                    fired={**fork.fired, fact.index: cursor.fired},
                    outputs={**fork.outputs, **cursor.outputs},
                )
        case "failed":
            closing = "failed" if fork.join == "all" else fork.closing
            fork = replace(fork, failed=fork.failed + 1, closing=closing)
    run = replace(run, forks={**run.forks, fact.fork: fork})
    if kept:
        halted = "failed" if fact.status == "failed" else "stopped"
        return _moved(run, fact.branch, halted=halted)
    below = run.below(fact.branch) if cursor.phase == "forked" else []
    return _dropped(run, [fact.branch, *below])


def _dropped(run: RunState, branches: list[str]) -> RunState:
    """Return a run without some branches and what fanned out on them."""
    gone = set(branches)
    return replace(
        run,
        cursors={name: cursor for name, cursor in run.cursors.items() if name not in gone},
        forks={key: fork for key, fork in run.forks.items() if fork.branch not in gone},
    )


def _join_ready(run: RunState, fact: Any, seq: int, at: str, tip: str) -> RunState:
    cursor = run.cursors[fact.branch]
    fork = run.forks.get(fact.fork)
    run = _dropped(run, run.below(fact.branch))
    run = replace(run, forks={key: one for key, one in run.forks.items() if key != fact.fork})
    outputs = {node: at for node, at in cursor.outputs.items() if node not in fact.clears}
    fired: tuple[int, ...] = ()
    if fork is not None and fork.closing != "failed":  # what a failed one has is chance
        outputs |= fork.outputs
        # In order of declaration, whoever came first.
        fired = tuple(one for index in sorted(fork.fired) for one in fork.fired[index])
    return _moved(run, fact.branch, phase="running", outputs=outputs, fired=fired)


def _workspace_opened(run: RunState, fact: Any, seq: int, at: str, tip: str) -> RunState:
    place = WorkspaceState(
        fact.kind, fact.path, fact.repository, fact.base_commit, fact.base_branch
    )
    return replace(run, workspace=place)


def _workspace_finalised(run: RunState, fact: Any, seq: int, at: str, tip: str) -> RunState:
    assert run.workspace is not None
    return replace(run, workspace=replace(run.workspace, finalised=seq))


_Handler = Callable[[RunState, Any, int, str, str], RunState]

_HANDLERS: dict[type[facts.Fact], _Handler] = {
    run_facts.RunPaused: _paused,
    run_facts.RunInterrupted: _interrupted,
    run_facts.RunChanged: _changed,
    run_facts.RunResumed: _resumed,
    run_facts.RunFinished: _finished,
    run_facts.RunFailed: _failed,
    run_facts.RunCancelled: _cancelled,
    run_facts.NodeStarted: _node_started,
    run_facts.NodeFinished: _node_finished,
    run_facts.NodeRetried: _node_retried,
    run_facts.EdgeSelected: _edge_selected,
    run_facts.BranchStarted: _branch_started,
    run_facts.BranchFinished: _branch_finished,
    run_facts.JoinReady: _join_ready,
    run_facts.WorkspaceOpened: _workspace_opened,
    run_facts.WorkspaceFinalised: _workspace_finalised,
    facts.SessionRevived: _revived,
    facts.CallResolved: _answered,
    facts.LimitExceeded: _exceeded,
}
