"""Slots: how many calls may be in flight at a time, in the whole run and below each fan-out.

Whoever waits for someone outside takes no slot. An `each` that says how many of its branches run at
a time is bound by that alone; everything else by the workflow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from holdfast.core.run_state import Cursor
from holdfast.core.state import PendingCall, State
from holdfast.workflows.graph import Graph


def is_busy(state: State, cursor: Cursor) -> bool:
    """Tell whether a call of a branch is in flight."""
    if cursor.phase != "running" or cursor.call is None:
        return False
    call = state.calls.get(cursor.call)
    return call is not None and not is_waiting(call)


def is_waiting(call: PendingCall) -> bool:
    """Tell whether a call waits for someone; one that a child carries out is at work."""
    return call.stage == "suspended" and call.waits_for != "child"


class Slots:
    """The slots that are taken, as of one state."""

    def __init__(self, state: State, graph: Graph) -> None:
        assert state.run is not None
        self._run = state.run
        self._graph = graph
        self._total = 0
        self._below: Counter[int] = Counter()
        for branch, cursor in self._run.cursors.items():
            if is_busy(state, cursor):
                self.take(branch)

    def _forks(self, branch: str) -> Iterator[int]:
        """Yield the fan-outs around a branch that have a bound of their own."""
        while (key := self._run.cursors[branch].fork) is not None:
            fork = self._run.forks[key]
            if self._graph.node(fork.node).parallel is not None:
                yield key
            branch = fork.branch

    def take(self, branch: str) -> None:
        """Count one more call in flight."""
        self._total += 1
        self._below.update(self._forks(branch))

    def free(self, branch: str) -> bool:
        """Tell whether one more call may be in flight on a branch."""
        bounded = False
        for key in self._forks(branch):
            bounded = True
            most = self._graph.node(self._run.forks[key].node).parallel
            if self._below[key] >= (most or 0):
                return False
        return bounded or self._total < self._graph.workflow.parallel
