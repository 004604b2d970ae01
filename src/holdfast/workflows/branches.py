"""Branches: how fan-outs open, are given their turn, meet, fail and are given up.

A fan-out with `all` that has failed lets work in flight end and be recorded, stops the rest, and
fails at its node; nothing of it is lost, and a resumed run goes on with what is left. `best_effort`
goes on with what it has; `first` cancels the others once one has ended well.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from holdfast.core.facts import CallResolved
from holdfast.core.payloads import Slot, slot
from holdfast.core.run_facts import (
    MAIN,
    BranchFinished,
    BranchStarted,
    JoinReady,
    NodeFinished,
    NodeStarted,
    RunFailed,
)
from holdfast.core.run_state import Cursor, Fork, RunState
from holdfast.workflows.batch import Batch
from holdfast.workflows.calls_port import Calls
from holdfast.workflows.environment import Lazy
from holdfast.workflows.evaluation import evaluate, text_of
from holdfast.workflows.expressions import ExpressionFailed
from holdfast.workflows.graph import Graph
from holdfast.workflows.model import Edge, Node
from holdfast.workflows.plan import Plan
from holdfast.workflows.settling import Settling, error_slot
from holdfast.workflows.slots import is_busy, is_waiting
from holdfast.workflows.templates import fill
from holdfast.workflows.values import Values, collected


def deepest_first(branches: Iterable[str]) -> list[str]:
    """Return branches in the order in which they are looked at."""
    return sorted(branches, key=lambda name: (-name.count("/"), name))


class Branches:
    """The fan-outs of a run."""

    def __init__(
        self,
        batch: Batch,
        graph: Graph,
        values: Values,
        calls: Calls,
        plan: Plan,
        settling: Settling,
    ) -> None:
        self._batch = batch
        self._graph = graph
        self._values = values
        self._calls = calls
        self._plan = plan
        self._settling = settling
        self._fan_outs = {node.id for node in graph.nodes.values() if node.forks}

    @property
    def _run(self) -> RunState:
        return self._batch.run

    # -- what a branch may do

    def stands_at_join(self, branch: str) -> bool:
        """Tell whether a branch has come to where its siblings meet."""
        cursor = self._run.cursors[branch]
        if cursor.fork is None:
            return False
        region = self._graph.regions.get(self._run.forks[cursor.fork].node)
        return region is not None and region.join == cursor.node

    def is_closing(self, branch: str) -> bool:
        """Tell whether a fan-out around a branch is being given up."""
        name: str | None = branch
        while name is not None:
            fork = self._run.cursors[name].fork
            if fork is not None and self._run.forks[fork].closing is not None:
                return True
            name = self._run.parent_of(name)
        return False

    def _parallel(self, node: str) -> int:
        return self._graph.node(node).parallel or self._graph.workflow.parallel

    def _is_busy(self, cursor: Cursor) -> bool:
        return is_busy(self._batch.state, cursor)

    def _is_resting(self, cursor: Cursor) -> bool:
        """Tell whether a branch waits for someone, and so leaves its place to another."""
        call = self._batch.state.calls.get(cursor.call or "")
        return cursor.phase == "running" and call is not None and is_waiting(call)

    # -- opening

    def tend(self, *, stopping: bool) -> None:
        """Open, close and join what is due, deepest first."""
        opening = [
            name
            for name, cursor in self._run.cursors.items()
            if cursor.phase == "running" and cursor.node in self._fan_outs and not cursor.halted
        ]
        for branch in deepest_first(opening):
            cursor = self._run.cursors[branch]
            node = self._graph.node(cursor.node)
            # Without a call, what it chose is taken over from another run.
            chosen = not node.asks or cursor.resolved is not None or cursor.call is None
            if chosen and not stopping and not self.is_closing(branch):
                self._open(branch, node)
        forks = sorted(self._run.forks, key=lambda key: -self._run.forks[key].branch.count("/"))
        for key in forks:
            fork = self._run.forks.get(key)
            if fork is None or self._run.cursors[fork.branch].halted:
                continue
            if self.is_closing(fork.branch):
                continue  # the one around it has the say
            self._tend_fork(key, fork, stopping=stopping)
            if self._run.status != "running":
                return

    def _open(self, branch: str, node: Node) -> None:
        mark = self._batch.mark()
        try:
            if node.kind == "each":
                self._open_each(branch, node)
            else:
                self._open_router(branch, node)
        except ExpressionFailed as error:
            self._batch.take_back(mark)
            self._settling.failure(branch, "expression", error_slot("expression", str(error)))

    def _open_router(self, branch: str, node: Node) -> None:
        targets = [edge for edge in node.next if edge.on == "ok"]
        if node.asks:
            chosen = self._chosen(branch)
            targets = [edge for edge in targets if edge.to in chosen]
        join = self._graph.node(self._graph.regions[node.id].join).join
        received = self._settling.environment(branch).received(node)
        environment = self._settling.environment(branch).having(input=received)
        fork = self._run.cursors[branch].execution
        for index, edge in enumerate(targets):
            mapped = fill(dict(edge.inputs), environment)
            self._batch.add(
                BranchStarted(
                    branch=self.name(branch, node, edge.to),
                    node=edge.to,
                    fork=fork,
                    index=index,
                    of=len(targets),
                    parent=branch,
                    join=join or "all",  # type: ignore[arg-type]
                    key=edge.to,
                    inputs={name: slot(value, "input") for name, value in mapped.items()},
                )
            )

    def _chosen(self, branch: str) -> list[str]:
        cursor = self._run.cursors[branch]
        node = self._graph.node(cursor.node)
        if cursor.call is None:
            iteration = self._settling.iteration(branch)
            kept = self._calls.kept(self._batch, branch, node, iteration)
            assert kept is not None
            return list(kept.chosen)
        assert cursor.resolved is not None
        fact = self._values.fact(cursor.resolved, self._batch)
        assert isinstance(fact, CallResolved)
        return list(self._calls.meaning(node, fact.result, self._values)[1]["chosen"])

    def _open_each(self, branch: str, node: Node) -> None:
        """Open the first branch of an `each`; where there is no item, it is over at once."""
        started = self._values.fact(self._run.cursors[branch].started, self._batch)
        assert isinstance(started, NodeStarted)
        assert started.input is not None
        items = self._values.value(started.input)
        if not items:
            self._join_each(branch, self._run.cursors[branch].execution, node, None)
        else:
            self._spawn(branch, node, items, 0)

    def _spawn(self, branch: str, node: Node, items: list[Any], index: int) -> bool:
        """Open one more branch of an `each`, if there is room for it."""
        if len(self._run.cursors) > self._graph.workflow.branches:
            return False
        key = None
        if node.key is not None:
            environment = self._settling.environment(branch).having(
                **{node.as_name or "item": items[index]}
            )
            key = text_of(evaluate(node.key, environment))[:200]
        self._batch.add(
            BranchStarted(
                branch=self.name(branch, node, str(index)),
                node=node.body[0],
                fork=self._run.cursors[branch].execution,
                index=index,
                of=len(items),
                parent=branch,
                join=node.join or "all",  # type: ignore[arg-type]
                key=key,
            )
        )
        return True

    def name(self, branch: str, node: Node, position: str) -> str:
        """Return the name of a branch: where it split off, in which round, and its position."""
        loops = self._settling.iteration(branch)
        rounds = "@" + ";".join(f"{name}={n}" for name, n in loops.items()) if loops else ""
        return f"{branch}/{node.id}{rounds}:{position}"

    # -- tending

    def _tend_fork(self, key: int, fork: Fork, *, stopping: bool) -> None:
        if fork.closing == "won":
            for branch in self._run.branches_of(key):
                self._drop(branch)
            self._join(key)
        elif fork.closing == "failed":
            if all([self._halt(branch) for branch in self._run.branches_of(key)]):
                self._fail_fork(key)
        elif fork.next == fork.of and fork.ok + fork.failed == fork.of:
            self._join(key)
        elif not stopping:
            self._spawn_more(key)

    def _spawn_more(self, key: int) -> None:
        fork = self._run.forks[key]
        node = self._graph.node(fork.node)
        if node.kind != "each":
            return
        if fork.next == fork.of:
            return
        active = sum(
            cursor.fork == key and not self._is_resting(cursor)
            for cursor in self._run.cursors.values()
        )
        items = self._settling.environment(fork.branch).items_of(fork.branch)
        for index in range(fork.next, min(fork.of, fork.next + self._parallel(fork.node) - active)):
            if not self._spawn(fork.branch, node, items, index):
                return

    def _drop(self, branch: str) -> None:
        """Give up a branch, and all that it has under way, for good."""
        for name in [*self._run.below(branch), branch]:
            self._settling.give_up(name)
        self._batch.add(self._ended(branch, status="cancelled"))

    def _halt(self, branch: str) -> bool:
        """Stop a branch where it stands, but for work in flight; tell whether it stands still."""
        cursor = self._run.cursors.get(branch)
        if cursor is None or cursor.halted:
            return True
        if self._is_busy(cursor):
            return False
        if cursor.phase == "forked":
            inner = self._run.branches_of(cursor.execution)
            if not all([self._halt(name) for name in inner]):
                return False
        if cursor.phase == "ready" and self.stands_at_join(branch):
            self.finish(branch)
            return True
        self._settling.give_up(branch)
        self._batch.add(self._ended(branch, status="cancelled"))
        return True

    # -- ends of branches

    def _ended(self, branch: str, **fields: Any) -> BranchFinished:
        cursor = self._run.cursors[branch]
        assert cursor.fork is not None
        return BranchFinished(
            branch=branch, fork=cursor.fork, index=cursor.index, key=cursor.key, **fields
        )

    def finish(self, branch: str) -> None:
        """End a branch that has come to its end."""
        cursor = self._run.cursors[branch]
        output = None
        if cursor.phase == "ended":
            output = self._settling.finished(branch).output or slot(None, "output")
        self._batch.add(self._ended(branch, output=output))

    def fail(self, branch: str, code: str | None = None, error: Slot | None = None) -> None:
        """End a branch whose node failed and found no edge that takes it."""
        if code is None:
            failed = self._settling.finished(branch)
            code, error = failed.code, failed.error
        self._batch.add(self._ended(branch, status="failed", code=code, error=error))

    # -- joins

    def _join(self, key: int) -> None:
        fork = self._run.forks[key]
        node = self._graph.node(fork.node)
        if fork.join == "first" and fork.ok == 0:
            self._fail_first(key)
        elif node.kind == "each":
            self._join_each(fork.branch, key, node, fork)
        else:
            self._join_router(key, fork, node)

    def _ready(self, key: int, fork: Fork | None, branch: str, node: Node) -> JoinReady:
        region = self._graph.regions.get(node.id)
        inside = region.nodes if region is not None else frozenset()
        stale = inside & self._run.cursors[branch].outputs.keys()
        return JoinReady(
            fork=key,
            node=node.id,
            branch=branch,
            ok=fork.ok if fork is not None else 0,
            failed=fork.failed if fork is not None else 0,
            clears=sorted(stale),
        )

    def _join_router(self, key: int, fork: Fork, node: Node) -> None:
        branch = fork.branch
        self._batch.add(self._ready(key, fork, branch, node))
        self._batch.add(self._node_ended(branch))
        self._settling.take(branch, Edge(self._graph.regions[node.id].join))

    def _join_each(self, branch: str, key: int, node: Node, fork: Fork | None) -> None:
        ended = [] if fork is None else self._values.ended(key, fork.seq, self._batch)
        output, failed = collected(ended, self._values)
        self._plan.payloads.append(failed)
        self._batch.add(self._ready(key, fork, branch, node))
        fields = Lazy(
            {"items": None, "failed": None}, lambda name: self._values.value(output)[name]
        )
        self._settling.success(branch, output, fields)

    def _node_ended(self, branch: str, **fields: Any) -> NodeFinished:
        cursor = self._run.cursors[branch]
        return NodeFinished(
            execution=cursor.execution,
            node=cursor.node,
            branch=branch,
            iteration=self._settling.iteration(branch),
            **fields,
        )

    def _fail_first(self, key: int) -> None:
        """Fail a fan-out of which no branch ended well; it would begin anew."""
        fork = self._run.forks[key]
        node = self._graph.node(fork.node)
        self._batch.add(self._ready(key, fork, fork.branch, node))
        error = error_slot("join_failed", f"none of {fork.of} branches ended well")
        self._settling.failure(fork.branch, "join_failed", error, final=True)

    def _fail_fork(self, key: int) -> None:
        """Let the failure of a fan-out be caught by an edge, or fail what it is a part of."""
        fork = self._run.forks[key]
        branch, node = fork.branch, self._graph.node(fork.node)
        error = error_slot("join_failed", f"{fork.failed} of {fork.of} branches failed")
        mark = self._batch.mark()
        self._batch.add(self._ready(key, fork, branch, node))
        self._settling.failure(branch, "join_failed", error, final=True)
        if self._run.cursors[branch].phase != "failed":
            return
        # Nothing caught it: the fan-out stays as it is, so that resuming goes on with the rest.
        self._batch.take_back(mark)
        if branch == MAIN:
            self._batch.add(RunFailed(code="join_failed", error=error, node=node.id))
        else:
            self.fail(branch, "join_failed", error)
