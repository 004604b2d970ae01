"""Edges: which one a node takes, what it maps, and which loops it passes or begins anew."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.core.payloads import slot
from holdfast.core.run_facts import EdgeSelected
from holdfast.core.run_state import Cursor, LoopState, RunState
from holdfast.workflows.batch import Batch
from holdfast.workflows.environment import Environment
from holdfast.workflows.evaluation import condition
from holdfast.workflows.graph import Graph
from holdfast.workflows.model import Edge, Node
from holdfast.workflows.templates import fill
from holdfast.workflows.values import Values


class NoEdge(Exception):
    """No edge of a node is left."""


class Edges:
    """The edges of a run's nodes."""

    def __init__(self, batch: Batch, graph: Graph, values: Values) -> None:
        self._batch = batch
        self._graph = graph
        self._values = values

    @property
    def _run(self) -> RunState:
        return self._batch.run

    def leave(self, branch: str, node: Node, on: str, **outcome: Any) -> None:
        """Take the edge that an outcome leads to; raise NoEdge where none is left."""
        edges = [edge for edge in node.next if edge.on == on]
        if not edges and on == "ok" and node.scope is not None:
            return  # the body of an `each` ends here
        around = Environment(self._batch, self._graph, self._values, branch)
        environment = around.having(input=around.received(node), **outcome)
        edge = self._chosen(branch, node, edges, environment, outcome)
        self.take(branch, edge, environment)

    def _chosen(
        self,
        branch: str,
        node: Node,
        edges: list[Edge],
        environment: Environment,
        outcome: Mapping[str, Any],
    ) -> Edge:
        if node.kind == "router" and outcome.get("error") is None:
            if node.asks:
                target = outcome["output"]["chosen"]
                edges = [edge for edge in edges if edge.to == target]
            elif node.subject == "round_robin":
                first = self._run.robin.get(node.id, 0) % len(edges)
                edges = edges[first:] + edges[:first]
        for edge in edges:
            if edge.loop is not None and self._is_used_up(branch, edge.loop, environment):
                continue
            if edge.when is None or condition(edge.when, environment):
                return edge
        raise NoEdge

    def _is_used_up(self, branch: str, loop: str, environment: Environment) -> bool:
        passed = self._run.cursors[branch].loops.get(loop, LoopState()).passed
        return passed >= environment.bound(loop)

    def take(self, branch: str, edge: Edge, environment: Environment) -> None:
        """Move a branch along an edge, with what the edge maps."""
        cursor = self._run.cursors[branch]
        node = self._graph.node(cursor.node)
        mapped = fill(dict(edge.inputs), environment)
        iteration = 0
        if edge.loop is not None:
            iteration = cursor.loops.get(edge.loop, LoopState()).passed + 1
        robin, clears = None, []
        if node.kind == "router" and node.subject == "round_robin" and edge.on == "ok":
            robin = self._run.robin.get(node.id, 0) + 1
            others = {one.to for one in node.next if one.to != edge.to}
            clears = sorted(others & cursor.outputs.keys())
        self._batch.add(
            EdgeSelected(
                source=node.id,
                target=edge.to,
                branch=branch,
                loop=edge.loop,
                iteration=iteration,
                inputs={name: slot(value, "input") for name, value in mapped.items()},
                resets=self._resets(cursor, edge),
                clears=clears,
                robin=robin,
                output=cursor.outcome,
            )
        )

    def _resets(self, cursor: Cursor, edge: Edge) -> list[str]:
        """Return the loops that begin anew: those that the edge enters from outside of them."""
        found = []
        taken = self._graph.loops[edge.loop] if edge.loop is not None else None
        for name in cursor.loops:
            loop = self._graph.loops.get(name)
            if loop is None or loop.entry != edge.to or name == edge.loop:
                continue
            # The edge of a loop around this one enters it anew; that of a sibling does not.
            encloses = taken is not None and loop.body < taken.body
            if cursor.node not in loop.body or encloses:
                found.append(name)
        return sorted(found)
