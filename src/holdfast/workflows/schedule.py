"""The scheduler: from the state of a run to the facts that follow, without doing anything.

One pass looks at what ended, what failed, what fans out and what is ready, and adds to the batch
what follows, until nothing more does. Calls are begun and carried out by its driver, which appends
the batch first. Killed in between, the next driver folds the log and schedules from the same state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any

from holdfast.core import facts, status
from holdfast.core.payloads import Slot, slot
from holdfast.core.run_facts import MAIN, RunCancelled, RunFailed, RunPaused
from holdfast.core.run_state import OPEN, RUNNING, Cursor, RunState
from holdfast.workflows.batch import Batch
from holdfast.workflows.branches import Branches, deepest_first
from holdfast.workflows.calls_port import Calls
from holdfast.workflows.graph import Graph
from holdfast.workflows.plan import Plan
from holdfast.workflows.settling import Settling
from holdfast.workflows.slots import Slots, is_busy, is_waiting
from holdfast.workflows.values import Values

MAX_FACTS = 400
"""About how many facts one batch has: what is due beyond that follows in the next."""

KEEP_SECONDS = 60
"""Up to how long a driver waits for the next attempt instead of pausing the run."""


def advance(batch: Batch, graph: Graph, values: Values, calls: Calls) -> Plan:
    """Return what follows from a state; raise ValuesMissing where something is to be loaded."""
    plan = Plan()
    _Scheduler(batch, graph, values, calls, plan).run()
    plan.facts = batch.facts
    plan.state = batch.state
    return plan


class _Scheduler:
    """One round over the cursors and fan-outs of a run."""

    def __init__(
        self, batch: Batch, graph: Graph, values: Values, calls: Calls, plan: Plan
    ) -> None:
        self._batch = batch
        self._graph = graph
        self._plan = plan
        self._calls = calls
        self._settling = Settling(batch, graph, values, calls, plan)
        self._branches = Branches(batch, graph, values, calls, plan, self._settling)

    @property
    def _run(self) -> RunState:
        return self._batch.run

    def run(self) -> None:
        """Add everything that follows, up to the size of a batch."""
        if self._run.status != RUNNING:
            if self._batch.state.status == status.STOP_REQUESTED and self._run.status in OPEN:
                self._stop()
            return
        self._batch.add(*self._calls.warnings(self._batch.state))
        while self._pass():
            if self._run.status != RUNNING:
                return
            if len(self._batch.facts) >= MAX_FACTS:
                self._plan.more = True
                return
        if self._stopping:
            self._stop()
        else:
            self._rest()

    @property
    def _stopping(self) -> bool:
        return self._run.stopping is not None or self._batch.state.status == status.STOP_REQUESTED

    def _pass(self) -> bool:
        """Take each step that is due now; tell whether there was one."""
        before = len(self._batch.facts)
        for branch in self._due(self._has_outcome):
            self._settle(branch)
            if self._is_over():
                return True
        self._branches.tend(stopping=self._stopping)
        if len(self._batch.facts) > before:
            return True
        ready = [] if self._stopping else self._due(self._begins)
        slots = Slots(self._batch.state, self._graph) if ready else None
        for branch in ready:
            assert slots is not None
            self._start(branch, slots)
            if self._is_over() or self._stopping:
                break
        return len(self._batch.facts) > before

    def _is_over(self) -> bool:
        """Tell whether the run has settled, or the batch is full."""
        return len(self._batch.facts) >= MAX_FACTS or self._run.status != RUNNING

    def _due(self, test: Callable[[Cursor], bool]) -> list[str]:
        """Return the branches with something due, deepest first."""
        # What a fan-out waits for comes before what would make it wait longer.
        found = [
            name
            for name, cursor in self._run.cursors.items()
            if cursor.halted is None and test(cursor)
        ]
        return deepest_first(found)

    def _has_outcome(self, cursor: Cursor) -> bool:
        if cursor.phase == "running":
            return cursor.resolved is not None
        return cursor.phase in ("ended", "failed")

    def _begins(self, cursor: Cursor) -> bool:
        if cursor.phase != "running":
            return cursor.phase == "ready"
        if cursor.call is None or cursor.resolved is not None:
            return False
        waits = cursor.until is not None and cursor.until > self._batch.at
        return not waits and cursor.call not in self._batch.state.calls

    def _cursor(self, branch: str) -> Cursor | None:
        cursor = self._run.cursors.get(branch)
        return None if cursor is None or cursor.halted else cursor

    def _settle(self, branch: str) -> None:
        """Settle what has an outcome, and let failures go where they lead."""
        cursor = self._cursor(branch)
        if cursor is None:
            return
        if cursor.phase == "running" and cursor.resolved is not None:
            self._settling.outcome(branch)
        elif cursor.phase == "ended" and branch != MAIN:
            self._branches.finish(branch)
        elif cursor.phase == "failed":
            self._fail(branch, cursor)

    def _fail(self, branch: str, cursor: Cursor) -> None:
        if branch != MAIN:
            self._branches.fail(branch)
            return
        failed = self._settling.finished(branch)
        node = self._graph.node(cursor.node)
        self._batch.add(
            RunFailed(
                resumable=node.kind != "fail",
                code=cursor.code,
                error=failed.error,
                node=cursor.node,
            )
        )

    def _start(self, branch: str, slots: Slots) -> None:
        """Start what is ready and has a slot, or is due for its next attempt."""
        cursor = self._cursor(branch)
        if cursor is None or self._branches.is_closing(branch):
            return
        if cursor.phase == "ready" and self._branches.stands_at_join(branch):
            self._branches.finish(branch)
        elif cursor.phase == "ready":
            self._settling.start(branch, has_slot=slots.free(branch))
        elif slots.free(branch):
            self._settling.attempt(branch)
        moved = self._run.cursors.get(branch)
        if moved is not None and is_busy(self._batch.state, moved):
            slots.take(branch)

    # -- rest

    def _in_flight(self) -> Iterator[str]:
        for call in self._batch.state.calls.values():
            if not is_waiting(call):
                yield call.call_id

    def _stop(self) -> None:
        """Settle the run once nothing is in flight; someone who cancels does not wait for that."""
        cancelled = self._batch.state.status == status.STOP_REQUESTED
        if not cancelled and any(self._in_flight()):
            return  # what was paid for is kept
        for branch in deepest_first(self._run.cursors):
            self._settling.give_up(branch)
        if cancelled:
            self._batch.add(RunCancelled())
            return
        code = self._run.stopping or "stopped"
        self._batch.add(
            RunFailed(
                code=code,
                error=slot({"code": code, "message": "a limit of the run is used up"}, "error"),
            )
        )

    def _rest(self) -> None:
        """Pause the run where nothing can move before someone acts or a time comes."""
        if any(self._in_flight()):
            self._plan.wake = self._next_attempt()
            return
        until = self._next_attempt()
        waiting = sorted(self._batch.state.calls)
        due = min(filter(None, (until, self._next_deadline())), default=None)
        if due is not None and self._is_soon(due):
            self._plan.wake = due
            return
        if not waiting and until is None:
            raise AssertionError(f"nothing can move, and nothing is waited for: {self._run}")
        reason: Any = "people" if waiting else "time"
        self._batch.add(RunPaused(reason=reason, calls=waiting, until=until))

    def _next_deadline(self) -> str | None:
        """Return when the next wait for a time is over; those for people are not waited for."""
        calls = self._batch.state.calls.values()
        return min(
            (one.deadline for one in calls if one.waits_for == "time" and one.deadline),
            default=None,
        )

    def _next_attempt(self) -> str | None:
        times = [
            cursor.until
            for cursor in self._run.cursors.values()
            if cursor.until is not None and not cursor.halted and cursor.until > self._batch.at
        ]
        return min(times, default=None)

    def _is_soon(self, until: str) -> bool:
        now = datetime.fromisoformat(self._batch.at)
        return datetime.fromisoformat(until) - now < timedelta(seconds=KEEP_SECONDS)


def cancel(batch: Batch, by: str | None = None, reason: Slot | None = None) -> None:
    """Add what asks a run to end; the next round of scheduling settles it."""
    batch.add(facts.SessionStopRequested(by=by, reason=reason))
