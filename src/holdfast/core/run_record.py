"""The record of a run: what it was launched with, where it stands and what became of it, in one.

It is put together from the state and a handful of events that the state names, so that it costs the
same however long the log is. Nothing is ever read back from it. Readers say how a stored value is
shown; values above a limit are named by their ref instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from holdfast.core.events import Event
from holdfast.core.facts import CallRequested, CallSuspended, Fact
from holdfast.core.ids import friendly_name
from holdfast.core.payloads import Slot
from holdfast.core.run_facts import (
    MAIN,
    NodeFinished,
    RunChanged,
    RunFailed,
    RunFinished,
    RunStarted,
    WorkspaceFinalised,
)
from holdfast.core.run_state import INTERRUPTED, OPEN, RUNNING, Cursor, RunState
from holdfast.core.state import PendingCall, State

FORMAT_VERSION = 1
"""Version of this record: it grows when a field changes its meaning, not when one is added."""

CREATED = "created"
"""The status of a run that nobody has driven yet."""

MAX_VALUE = 16 * 1024
"""How large a value may be to stand in a record itself."""

Shown = Callable[[Slot], Any]


@dataclass(frozen=True, slots=True)
class Position:
    """Where one branch of a run stands."""

    branch: str
    node_id: str
    phase: str
    execution: int
    attempt: int
    call: str | None = None
    until: str | None = None  # no attempt before
    halted: str | None = None
    iteration: dict[str, int] = field(default_factory=dict)
    attempts: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What it takes to go on, with the values that the state only names."""

    seq: int
    node_id: str | None = None
    branch: str = MAIN
    interaction_id: str | None = None
    interaction_questions: Any = None
    outputs: dict[str, Any] = field(default_factory=dict)
    loop_counters: dict[str, int] = field(default_factory=dict)
    loop_current_output: dict[str, Any] = field(default_factory=dict)
    loop_previous_output: dict[str, Any] = field(default_factory=dict)
    round_robin_counters: dict[str, int] = field(default_factory=dict)
    artifact_versions: dict[str, int] = field(default_factory=dict)  # the next one of each node
    vars: Any = None
    backend_session_id: str | None = None
    backend_name: str | None = None
    backend_pending_tool_use_id: str | None = None
    node_attempts: dict[str, dict[str, int]] = field(default_factory=dict)
    cursors: tuple[Position, ...] = ()
    executions: int = 0


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run as a whole."""

    format_version: int
    id: str
    name: str
    workflow_name: str
    workflow_hash: str | None
    file_path: str | None
    status: str
    inputs: dict[str, Any]
    vars: Any
    options: Any
    launched_by: str | None
    created_at: str
    updated_at: str
    finished_at: str | None
    output: Any
    error: str | None
    error_code: str | None
    failed_node: str | None
    checkpoint: Checkpoint
    artifact_index: dict[str, int]  # the latest version of each node
    work_dir: str | None
    worktree: bool
    repo_root: str | None
    base_commit: str | None
    base_branch: str | None
    final_commit: str | None
    final_branch: str | None
    merged_into: str | None
    not_merged: str | None  # why
    parent: dict[str, str] | None
    origin: dict[str, str | int] | None

    def document(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return asdict(self)


def events_of(state: State) -> list[int]:
    """Return the events that the record of a state is put together from."""
    run = state.run
    if run is None:
        return []
    wanted = {run.started, run.model, run.ended or 0}
    main = run.cursors.get(MAIN)
    if main is not None:
        wanted.update(main.outputs.values())
        for loop in main.loops.values():
            wanted.update((loop.last or 0, loop.before or 0))
    if run.workspace is not None:
        wanted.add(run.workspace.finalised or 0)
    call = _standing_call(state)
    if call is not None:
        wanted.update((call.seq, call.wait_seq))
    return sorted(wanted - {0})


def _standing_call(state: State) -> PendingCall | None:
    """Return the call that the run stands at: the one that has waited longest, else the oldest."""
    waiting = [call for call in state.calls.values() if call.stage == "suspended"]
    return min(waiting or state.calls.values(), key=lambda call: call.seq, default=None)


def record_of(
    state: State, events: Mapping[int, Event], shown: Shown, *, live: bool = True
) -> RunRecord:
    """Put a record together; `live` says whether someone drives the run."""
    return _Maker(state, events, shown).record(live)


class _Maker:
    def __init__(self, state: State, events: Mapping[int, Event], shown: Shown) -> None:
        self._state = state
        self._events = events
        self._shown = shown

    def record(self, live: bool) -> RunRecord:
        state, run = self._state, self._state.run
        started = self._fact(None if run is None else run.started, RunStarted)
        changed = self._fact(None if run is None else run.model, RunChanged)
        launched: dict[str, Any] = {}
        if started is not None:
            launched = {name: self._value(item) for name, item in started.inputs.items()}
        source = changed or started
        return RunRecord(
            format_version=FORMAT_VERSION,
            id=state.session,
            name=friendly_name(state.session),
            workflow_name=run.workflow if run else state.labels.get("workflow", ""),
            workflow_hash=None if source is None else source.workflow_hash,
            file_path=None if started is None else started.place,
            status=_status(run, live),
            inputs=launched,
            vars=None if started is None else self._value(started.vars),
            options=None if started is None else self._value(started.options),
            launched_by=None if started is None else started.by,
            created_at=state.started_at,
            updated_at=state.updated_at,
            checkpoint=self._checkpoint(started),
            artifact_index={node: one.version for node, one in state.artifacts.items()},
            parent=state.parent,
            origin=state.origin,
            **self._end(run),
            **self._workspace(run),
        )

    def _fact(self, seq: int | None, kind: type[Any]) -> Any:
        event = self._events.get(seq or 0)
        fact: Fact | None = event.fact() if event is not None and event.known else None
        return fact if isinstance(fact, kind) else None

    def _value(self, item: Slot | None) -> Any:
        if item is None:
            return None
        if item.size > MAX_VALUE:
            return {"$ref": item.id, "encoding": item.encoding, "size": item.size}
        return self._shown(item)

    def _output(self, seq: int | None) -> Any:
        fact = self._fact(seq, NodeFinished)
        return None if fact is None else self._value(fact.output)

    def _end(self, run: RunState | None) -> dict[str, Any]:
        about: dict[str, Any] = dict.fromkeys(
            ("finished_at", "output", "error", "error_code", "failed_node")
        )
        if run is None or run.ended is None or run.status in OPEN:
            return about
        event = self._events.get(run.ended)
        about["finished_at"] = None if event is None else event.at
        finished, failed = self._fact(run.ended, RunFinished), self._fact(run.ended, RunFailed)
        if finished is not None:
            about["output"] = self._value(finished.output)
        if failed is not None:
            told = self._value(failed.error)
            said = told.get("message") if isinstance(told, Mapping) else None
            about |= {"error": said, "error_code": failed.code, "failed_node": failed.node}
        return about

    def _workspace(self, run: RunState | None) -> dict[str, Any]:
        place = None if run is None else run.workspace
        told = None if place is None else self._fact(place.finalised, WorkspaceFinalised)
        return {
            "work_dir": None if place is None else place.path,
            "worktree": place is not None and place.kind == "worktree",
            "repo_root": None if place is None else place.repository,
            "base_commit": None if place is None else place.base_commit,
            "base_branch": None if place is None else place.base_branch,
            "final_commit": None if told is None else told.commit,
            "final_branch": None if told is None else told.branch,
            "merged_into": None if told is None else told.merged_into,
            "not_merged": None if told is None else told.reason,
        }

    def _checkpoint(self, started: RunStarted | None) -> Checkpoint:
        state, run = self._state, self._state.run
        if run is None:
            return Checkpoint(seq=state.seq)
        main = run.cursors.get(MAIN, Cursor(node=""))
        attempts: dict[str, dict[str, int]] = {}
        for cursor in run.cursors.values():
            for code, number in cursor.attempts.items():
                of_node = attempts.setdefault(cursor.node, {})
                of_node[code] = max(number, of_node.get(code, 0))
        return Checkpoint(
            seq=state.seq,
            executions=run.executions,
            outputs={node: self._output(seq) for node, seq in main.outputs.items()},
            loop_counters={name: loop.passed for name, loop in main.loops.items()},
            loop_current_output={n: self._output(one.last) for n, one in main.loops.items()},
            loop_previous_output={n: self._output(one.before) for n, one in main.loops.items()},
            round_robin_counters=dict(run.robin),
            artifact_versions={node: one.version + 1 for node, one in state.artifacts.items()},
            vars=None if started is None else self._value(started.vars),
            node_attempts=attempts,
            cursors=tuple(_position(name, cursor) for name, cursor in run.cursors.items()),
            **self._standing(run),
        )

    def _standing(self, run: RunState) -> dict[str, Any]:
        """Return where the run stands: at a call that waits, or else where its last branch does."""
        call = _standing_call(self._state)
        at = {cursor.call: name for name, cursor in run.cursors.items() if cursor.call}
        deepest = max(run.cursors, key=lambda name: (name.count("/"), name), default=MAIN)
        branch = at.get(call.call_id, deepest) if call is not None else deepest
        cursor = run.cursors.get(branch)
        about: dict[str, Any] = {"branch": branch, "node_id": cursor.node if cursor else None}
        if call is None:
            return about
        asked = self._fact(call.seq, CallRequested)
        wait = self._fact(call.wait_seq, CallSuspended)
        if call.child is not None:
            about |= {"backend_session_id": call.child, "backend_name": call.name}
            about["backend_pending_tool_use_id"] = None if wait is None else wait.on
        if call.stage == "suspended":
            question = (wait.prompt if wait else None) or (asked.arguments if asked else None)
            about |= {
                "interaction_id": call.call_id if wait is None else wait.on or call.call_id,
                "interaction_questions": self._value(question),
            }
        return about


def _status(run: RunState | None, live: bool) -> str:
    if run is None:
        return CREATED
    return INTERRUPTED if run.status == RUNNING and not live else run.status


def _position(branch: str, cursor: Cursor) -> Position:
    return Position(
        branch,
        cursor.node,
        cursor.phase,
        cursor.execution,
        cursor.attempt,
        cursor.call,
        cursor.until,
        cursor.halted,
        {name: loop.passed for name, loop in cursor.loops.items()},
        dict(cursor.attempts),
    )
