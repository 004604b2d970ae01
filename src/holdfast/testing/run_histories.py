"""Histories of runs: legal things a workflow run may do next, for tests that drive a store.

Nodes have no meaning here; what matters is that every fact of a run occurs, in every order that the
log accepts.
"""

from __future__ import annotations

from typing import Any

from holdfast.core import facts, run_facts
from holdfast.core.facts import Fact
from holdfast.core.payloads import slot
from holdfast.core.run_facts import MAIN
from holdfast.core.run_state import OPEN, PAUSED, RUNNING, Cursor, RunState
from holdfast.core.state import State

Moves = list[tuple[str, tuple[Fact, ...]]]


def run_facts_next(state: State, text: str) -> Moves:
    """Return the batches that a run may append next, each with a name."""
    run = state.run
    if run is None:
        return [("start a run", (run_facts.RunStarted(workflow="essay", start="a"),))]
    if run.status == RUNNING:
        out: Moves = []
        for branch, cursor in sorted(run.cursors.items())[:3]:
            out += _at_cursor(state, run, branch, cursor, text)
        if not state.calls and not any(one.phase == "running" for one in run.cursors.values()):
            out.append(("fail", (run_facts.RunFailed(code="join_failed"),)))
        out.append(("pause", (run_facts.RunPaused(reason="people", calls=sorted(state.calls)),)))
        out.append(("interrupt", (run_facts.RunInterrupted(reason="SIGTERM"),)))
        return out + _published(state, text) + _calls(state, text)
    if run.status in OPEN and run.status != PAUSED:
        return [("resume", (run_facts.RunResumed(by="ada"),))]
    if run.status == PAUSED:
        return [("resume", (run_facts.RunResumed(),)), *_calls(state, text)]
    if run.status in ("failed_resumable", "cancelled"):
        return [("resume", (run_facts.RunResumed(code="network"),))]
    return []


def _at_cursor(state: State, run: RunState, branch: str, cursor: Cursor, text: str) -> Moves:
    if cursor.halted:
        return []
    match cursor.phase:
        case "ready":
            return _ready(state, run, branch, cursor, text)
        case "running":
            return _running(state, branch, cursor, text)
        case "forked":
            return _forked(run, branch, cursor)
    return _ended(run, branch, cursor, text)


def _ready(state: State, run: RunState, branch: str, cursor: Cursor, text: str) -> Moves:
    number = state.next("execution")
    call = f"{cursor.node}.{number}.1"
    started = run_facts.NodeStarted(
        execution=number, node=cursor.node, kind="tool", branch=branch, call=call
    )
    alone = run_facts.NodeStarted(
        execution=number, node=cursor.node, kind="compute", branch=branch, free=True
    )
    return [
        ("start a node with a call", (started, _request(call, text))),
        ("start a node", (alone,)),
    ]


def _request(call: str, text: str) -> Fact:
    return facts.CallRequested(
        call_id=call,
        name="search",
        executor="server",
        effect="once",
        kind="node",
        arguments=slot({"query": text}, "arguments"),
    )


def _running(state: State, branch: str, cursor: Cursor, text: str) -> Moves:
    where: dict[str, Any] = {"execution": cursor.execution, "node": cursor.node, "branch": branch}
    outcome: tuple[Fact, ...] = ()
    if cursor.call in state.calls:
        outcome = (facts.CallResolved(call_id=cursor.call, outcome="ok"),)
    attempt = cursor.attempt + 1
    call = f"{cursor.node}.{cursor.execution}.{attempt}"
    out: Moves = [
        ("finish a node", (*outcome, run_facts.NodeFinished(**where, output=slot(text, "output")))),
        (
            "fail a node",
            (*outcome, run_facts.NodeFinished(**where, status="failed", code="timeout")),
        ),
    ]
    if attempt < 4 and cursor.call is not None:
        again = run_facts.NodeRetried(**where, attempt=attempt, code="timeout", call=call)
        out.append(("try a node again", (*outcome, again, _request(call, text))))
    if not outcome and branch.count("/") < 2:
        joins: tuple[run_facts.JoinKind, ...] = ("all", "best_effort", "first")
        out += [(f"fan out to {join}", _branches(branch, cursor, join)) for join in joins]
    return out


def _branches(branch: str, cursor: Cursor, join: run_facts.JoinKind) -> tuple[Fact, ...]:
    return tuple(
        run_facts.BranchStarted(
            branch=f"{branch}/{cursor.node}:{index}",
            node="b",
            fork=cursor.execution,
            index=index,
            of=2,
            parent=branch,
            join=join,
        )
        for index in range(2)
    )


def _forked(run: RunState, branch: str, cursor: Cursor) -> Moves:
    fork = run.forks[cursor.execution]
    if run.branches_of(cursor.execution) and fork.closing is None:
        return []
    if any(run.cursors[name].phase == "running" for name in run.below(branch)):
        return []
    ready = run_facts.JoinReady(
        fork=cursor.execution, node=cursor.node, branch=branch, ok=fork.ok, failed=fork.failed
    )
    return [("join", (ready,))]


def _ended(run: RunState, branch: str, cursor: Cursor, text: str) -> Moves:
    target = "b" if cursor.node == "a" else "a"
    passed = cursor.loops["again"].passed + 1 if "again" in cursor.loops else 1
    edge: dict[str, Any] = {"source": cursor.node, "branch": branch, "output": cursor.outcome}
    inputs = {"notes": slot(text, "input")}
    out: Moves = [
        ("take an edge", (run_facts.EdgeSelected(**edge, target=target, inputs=inputs),)),
        (
            "take a loop",
            (run_facts.EdgeSelected(**edge, target="a", loop="again", iteration=passed),),
        ),
    ]
    if branch != MAIN:
        status: run_facts.BranchStatus = "ok" if cursor.phase == "ended" else "failed"
        ended = run_facts.BranchFinished(
            branch=branch,
            fork=cursor.fork or 0,
            index=cursor.index,
            status=status,
        )
        out.append(("finish a branch", (ended,)))
    return out


def _published(state: State, text: str) -> Moves:
    artifact = run_facts.ArtifactWritten(
        node="a", version=state.next_version("a"), data=slot({"body": text}, "artifact")
    )
    return [("publish an artifact", (artifact,))]


def _calls(state: State, text: str) -> Moves:
    for call_id, call in state.calls.items():
        answer = facts.CallResolved(
            call_id=call_id, outcome="ok", result=slot({"found": text}, "answer")
        )
        out: Moves = [("resolve a call", (answer,))]
        if call.stage == "requested":
            out.append(("suspend a call", (facts.CallSuspended(call_id=call_id),)))
        return out
    return []
