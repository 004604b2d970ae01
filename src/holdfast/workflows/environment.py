"""The environment of a branch: the names that its expressions use, each resolved when it is used.

A branch sees the latest outputs of its own nodes, else those of the branches around it. A node that
has not run has the output null.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from holdfast.core.facts import CallResolved
from holdfast.core.run_facts import (
    ArtifactWritten,
    BranchStarted,
    EdgeSelected,
    NodeFinished,
    NodeStarted,
    RunStarted,
)
from holdfast.core.run_state import Cursor, LoopState
from holdfast.workflows.batch import Batch
from holdfast.workflows.graph import Graph
from holdfast.workflows.model import Node
from holdfast.workflows.values import Values


class Lazy(Mapping[str, Any]):
    """An object whose fields are made when they are looked at."""

    def __init__(self, names: Mapping[str, Any], make: Callable[[str], Any]) -> None:
        self._names = names
        self._make = make

    def __getitem__(self, name: str) -> Any:
        if name not in self._names:
            raise KeyError(name)
        return self._make(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class Given(dict[str, Any]):
    """What a node was given; what nobody gave it is null."""

    def __missing__(self, name: str) -> None:
        return None


class Environment(Mapping[str, Any]):
    """The names that expressions of one branch may use, at one position of the log."""

    def __init__(self, batch: Batch, graph: Graph, values: Values, branch: str) -> None:
        self._batch = batch
        self._graph = graph
        self._values = values
        self._branch = branch
        self._more: dict[str, Any] = {}
        self._roots: dict[str, Callable[[], Any]] = {
            "vars": self._vars,
            "run": self._run,
            "outputs": self._outputs,
            "artifacts": self._artifacts,
            "loop": self._loops,
        }

    def having(self, **names: Any) -> Environment:
        """Return the environment with some more names."""
        other = Environment(self._batch, self._graph, self._values, self._branch)
        other._more = {**self._more, **names}
        return other

    def __getitem__(self, name: str) -> Any:
        if name in self._more:
            return self._more[name]
        if name in self._roots:
            return self._roots[name]()
        return self._item(name)

    def __iter__(self) -> Iterator[str]:
        return iter([*self._roots, *self._more])

    def __len__(self) -> int:
        return len(self._roots) + len(self._more)

    # -- names

    def _vars(self) -> Any:
        started = self._batch.run.started
        fact = self._values.fact(started, self._batch)
        assert isinstance(fact, RunStarted)
        return {} if fact.vars is None else self._values.value(fact.vars)

    def _run(self) -> Any:
        run = self._batch.run
        place = None if run.workspace is None else run.workspace.path
        return {"id": self._batch.state.session, "workflow": run.workflow, "workspace": place}

    def _outputs(self) -> Any:
        return Lazy(self._graph.nodes, self.output)

    def output(self, node: str) -> Any:
        """Return the latest output of a node, as this branch sees it."""
        for cursor in self._cursors():
            if node in cursor.outputs:
                return self._outcome(cursor.outputs[node])
        return None

    def ended(self, node: str) -> tuple[int, NodeFinished, CallResolved | None] | None:
        """Return how a node ended last, and the outcome of its call where it is not written yet."""
        seq = next((one.outputs[node] for one in self._cursors() if node in one.outputs), None)
        if seq is None:
            return None
        fact = self._values.fact(seq, self._batch)
        assert isinstance(fact, NodeFinished)
        calls = f"{node}.{fact.execution}."
        for one in self._batch.facts:
            if isinstance(one, CallResolved) and one.call_id.startswith(calls):
                return seq, fact, one
        return seq, fact, None

    def _outcome(self, seq: int | None) -> Any:
        if seq is None:
            return None
        fact = self._values.fact(seq, self._batch)
        assert isinstance(fact, NodeFinished)
        return None if fact.output is None else self._values.value(fact.output)

    def _cursors(self) -> Iterator[Cursor]:
        """Yield the cursor of this branch, then those of the branches around it."""
        run = self._batch.run
        branch: str | None = self._branch
        while branch is not None:
            yield run.cursors[branch]
            branch = run.parent_of(branch)

    def _artifacts(self) -> Any:
        owners = {node.publish: node.id for node in self._graph.nodes.values() if node.publish}

        def latest(name: str) -> Any:
            version = self._batch.state.artifacts.get(owners[name])
            if version is None:
                return None
            fact = self._values.fact(version.seq, self._batch)
            assert isinstance(fact, ArtifactWritten)
            return self._values.value(fact.data)

        return Lazy({str(name): None for name in owners}, latest)

    def _loops(self) -> Any:
        return Lazy(self._graph.workflow.loops, self._loop)

    def _loop(self, name: str) -> Any:
        state = LoopState()
        for cursor in self._cursors():
            if name in cursor.loops:
                state = cursor.loops[name]
                break
        fields: dict[str, Callable[[], Any]] = {
            "iteration": lambda: state.passed,
            "max": lambda: self.bound(name),
            "previous_output": lambda: self._outcome(state.last),
        }
        return Lazy(fields, lambda field: fields[field]())

    def bound(self, loop: str) -> int:
        """Return how often a loop may be passed."""
        bound = self._graph.workflow.loops[loop]
        if isinstance(bound, str):
            bound = self._vars()[bound.removeprefix("vars.")]
        return int(bound)

    def _item(self, name: str) -> Any:
        """Return the item of an `each` around this branch."""
        run = self._batch.run
        branch: str | None = self._branch
        while branch is not None:
            cursor = run.cursors[branch]
            if cursor.fork is None:
                break
            fork = run.forks[cursor.fork]
            if self._graph.node(fork.node).as_name == name:
                return self.items_of(fork.branch)[cursor.index]
            branch = fork.branch
        raise KeyError(name)

    def items_of(self, branch: str) -> Any:
        """Return the list that the `each` of a branch works through."""
        started = self._values.fact(self._batch.run.cursors[branch].started, self._batch)
        assert isinstance(started, NodeStarted)
        assert started.input is not None
        return self._values.value(started.input)

    # -- inputs

    def given(self) -> Given:
        """Return what the branch's node is given by the edges that fired."""
        found = Given()
        for seq in self._batch.run.cursors[self._branch].fired:
            fact = self._values.fact(seq, self._batch)
            assert isinstance(fact, EdgeSelected | BranchStarted)
            for name, item in fact.inputs.items():
                found[name] = self._values.value(item)
        return found

    def came_from(self) -> str | None:
        """Return the node whose edge led the branch to where it stands."""
        for seq in reversed(self._batch.run.cursors[self._branch].fired):
            fact = self._values.fact(seq, self._batch)
            if isinstance(fact, EdgeSelected):
                return fact.source
        return None

    def received(self, node: Node) -> Any:
        """Return what the branch's node was started with."""
        started = self._values.fact(self._batch.run.cursors[self._branch].started, self._batch)
        assert isinstance(started, NodeStarted)
        if started.input is None or node.kind == "each":
            return Given()
        return Given(self._values.value(started.input))
