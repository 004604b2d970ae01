"""The graph behind a workflow: order, loops, fan-outs with their joins, and what is there when.

All of it follows from the model and is worked out once. A scope is the nodes of the workflow itself
or the body of one `each`; edges stay in their scope. Sets of nodes are integers, one bit for each.
Nothing here complains: `holdfast.workflows.wiring` looks for what is wrong with a graph.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from holdfast.workflows.model import Edge, Node, Workflow


@dataclass(frozen=True, slots=True)
class LoopShape:
    """A loop: the node that it leads back to, and the nodes that it repeats."""

    name: str
    entry: str
    body: frozenset[str]


@dataclass(frozen=True, slots=True)
class Region:
    """A fan-out by a router: where its branches meet, and the nodes of each of them."""

    router: str
    join: str
    branches: dict[str, frozenset[str]]

    @property
    def nodes(self) -> frozenset[str]:
        """Return the nodes of all branches."""
        return frozenset().union(*self.branches.values())


class Graph:
    """What follows from the nodes and edges of a workflow."""

    def __init__(self, workflow: Workflow) -> None:
        self.workflow = workflow
        self.nodes = workflow.nodes
        self._names = list(workflow.nodes)
        self._bit = {name: 1 << number for number, name in enumerate(self._names)}

    # -- edges

    def node(self, name: str) -> Node:
        """Return a node."""
        return self.nodes[name]

    def edges(self, name: str) -> tuple[Edge, ...]:
        """Return the edges of a node that lead to nodes of its scope."""
        node = self.nodes[name]
        return tuple(edge for edge in node.next if self._stays(node, edge))

    def _stays(self, node: Node, edge: Edge) -> bool:
        target = self.nodes.get(edge.to)
        if target is None:
            return False
        # The ends that nobody declared belong to every scope.
        return target.scope == node.scope or (target.kind == "fail" and not target.places)

    def forward(self, name: str) -> Iterator[str]:
        """Yield where a node leads to, loops left out."""
        yield from dict.fromkeys(edge.to for edge in self.edges(name) if edge.loop is None)

    def start_of(self, scope: str | None) -> str:
        """Return the node that a scope begins with."""
        return self.workflow.start if scope is None else self.nodes[scope].body[0]

    def members(self, scope: str | None) -> list[str]:
        """Return the nodes of a scope."""
        return [name for name, node in self.nodes.items() if node.scope == scope]

    @cached_property
    def scopes(self) -> list[str | None]:
        """Return all scopes, outer ones first."""
        return [None, *(name for name, node in self.nodes.items() if node.kind == "each")]

    @cached_property
    def backward(self) -> dict[str, list[str]]:
        """Return from where each node is reached, loops left out."""
        found: dict[str, list[str]] = {name: [] for name in self.nodes}
        for name in self.nodes:
            for target in self.forward(name):
                found[target].append(name)
        return found

    @cached_property
    def order(self) -> list[str]:
        """Return the nodes that can be reached, each after those it is reached from."""
        found: list[str] = []
        for scope in self.scopes:
            if scope is not None and not self.nodes[scope].body:
                continue
            if self.start_of(scope) in self.nodes:
                found += self._ordered(self.start_of(scope))
        return list(dict.fromkeys(found))

    def _ordered(self, start: str) -> list[str]:
        done: set[str] = set()
        found: list[str] = []
        stack: list[tuple[str, Iterator[str]]] = [(start, self.forward(start))]
        done.add(start)
        while stack:
            name, targets = stack[-1]
            for target in targets:
                if target not in done:
                    done.add(target)
                    stack.append((target, self.forward(target)))
                    break
            else:
                stack.pop()
                found.append(name)
        return found[::-1]

    def cycles(self) -> Iterator[tuple[str, Edge, list[str]]]:
        """Yield each edge that closes a cycle without being one of a loop, and the cycle."""
        done: set[str] = set()
        for scope in self.scopes:
            for root in self.members(scope):
                path: list[str] = []
                yield from self._cycles(root, done, path)

    def _cycles(
        self, root: str, done: set[str], path: list[str]
    ) -> Iterator[tuple[str, Edge, list[str]]]:
        if root in done:
            return
        stack = [(root, iter(self.edges(root)))]
        path.append(root)
        done.add(root)
        while stack:
            name, edges = stack[-1]
            for edge in edges:
                if edge.loop is not None:
                    continue
                if edge.to in path:
                    yield name, edge, [*path[path.index(edge.to) :], edge.to]
                elif edge.to not in done:
                    done.add(edge.to)
                    path.append(edge.to)
                    stack.append((edge.to, iter(self.edges(edge.to))))
                    break
            else:
                stack.pop()
                path.pop()

    # -- dominance

    def _set(self, names: Iterable[str]) -> int:
        found = 0
        for name in names:
            found |= self._bit[name]
        return found

    def _members_of(self, bits: int) -> frozenset[str]:
        return frozenset(name for name in self._names if self._bit[name] & bits)

    @cached_property
    def _dominators(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for name in self.order:
            before = [found[one] for one in self.backward[name] if one in found]
            met = before[0] if before else 0
            for one in before[1:]:
                met &= one
            found[name] = met | self._bit[name]
        return found

    def dominates(self, name: str, other: str) -> bool:
        """Tell whether every way to a node leads over another one."""
        return bool(self._dominators.get(other, 0) & self._bit[name])

    def _reaching(self, name: str, stop: str) -> int:
        """Return the nodes from which a node is reached without passing another."""
        found = self._bit[name] | self._bit[stop]
        todo = [name] if name != stop else []  # one that leads back to itself repeats itself alone
        while todo:
            for one in self.backward[todo.pop()]:
                if not found & self._bit[one]:
                    found |= self._bit[one]
                    todo.append(one)
        return found

    @cached_property
    def loops(self) -> dict[str, LoopShape]:
        """Return the loops that some edge closes, by name."""
        bodies: dict[str, tuple[str, int]] = {}
        for name in self.order:
            for edge in self.edges(name):
                if edge.loop is None:
                    continue
                entry, body = bodies.get(edge.loop, (edge.to, 0))
                # A nested loop is reached over its own edges too, but those stay inside.
                bodies[edge.loop] = (entry, body | self._reaching(name, entry))
        return {
            name: LoopShape(name, entry, self._members_of(body))
            for name, (entry, body) in bodies.items()
        }

    @cached_property
    def loops_around(self) -> dict[str, tuple[str, ...]]:
        """Return the loops that repeat each node."""
        return {
            name: tuple(sorted(loop.name for loop in self.loops.values() if name in loop.body))
            for name in self.nodes
        }

    # -- fan-outs

    @cached_property
    def _post_dominators(self) -> dict[str, int]:
        """Return for each node those that every way from it to an end leads over."""
        found: dict[str, int] = {}
        for name in reversed(self.order):
            # A `fail` ends its branch early: it is not where branches meet.
            ahead = [
                found[one]
                for one in self._onward(name)
                if one in found and self.nodes[one].kind != "fail"
            ]
            met = ahead[0] if ahead else 0
            for one in ahead[1:]:
                met &= one
            found[name] = met | self._bit[name]
        return found

    def _onward(self, name: str) -> Iterator[str]:
        """Yield where a node leads to; the failure of a fan-out leads past its branches."""
        for edge in self.edges(name):
            if edge.loop is None and (edge.on == "ok" or not self.nodes[name].forks):
                yield edge.to

    def meeting(self, router: str) -> str | None:
        """Return the nearest node that every branch of a router leads to, if there is one."""
        bits = self._post_dominators.get(router, 0) & ~self._bit[router]
        return next((name for name in self.order if bits & self._bit[name]), None)

    @cached_property
    def regions(self) -> dict[str, Region]:
        """Return the fan-outs of routers whose branches meet."""
        found: dict[str, Region] = {}
        for name, node in self.nodes.items():
            if node.kind != "router" or not node.forks:
                continue
            join = self.meeting(name)
            if join is not None:
                branches = {to: self._until(to, join) for to in self._onward(name)}
                found[name] = Region(name, join, branches)
        return found

    def _until(self, start: str, join: str) -> frozenset[str]:
        found: dict[str, None] = {}
        todo = [start]
        while todo:
            name = todo.pop()
            if name not in found and name != join and not self._is_shared_end(name):
                found[name] = None
                todo += self.forward(name)
        return frozenset(found)

    def _is_shared_end(self, name: str) -> bool:
        return self.nodes[name].kind == "fail"

    @cached_property
    def forks_around(self) -> dict[str, tuple[str, ...]]:
        """Return the fan-outs that each node is a part of, outer ones first."""
        return {name: tuple(self._forks_around(name)) for name in self.nodes}

    def _forks_around(self, name: str) -> list[str]:
        scope = self.nodes[name].scope
        outer = [] if scope is None else [*self._forks_around(scope), scope]
        routers = [region for region in self.regions.values() if name in region.nodes]
        routers.sort(key=lambda region: -len(region.nodes))
        return [*outer, *(region.router for region in routers)]

    # -- what is there

    @cached_property
    def available(self) -> dict[str, frozenset[str]]:
        """Return for each node those that have an output whenever it starts."""
        return {name: self._members_of(bits) for name, bits in self._available.items()}

    @cached_property
    def _available(self) -> dict[str, int]:
        found: dict[str, int] = {}
        joins = {region.join: region for region in self.regions.values()}
        for name in self._by_scope():
            scope = self.nodes[name].scope
            start = self.start_of(scope)
            if name == start:
                found[name] = 0 if scope is None else found.get(scope, 0)
                continue
            ways = [
                (before, edge)
                for before in self.backward[name]
                if before in found
                for edge in self.edges(before)
                if edge.to == name and edge.loop is None
            ]
            found[name] = self._met(ways, found, joins.get(name))
        return found

    def _by_scope(self) -> list[str]:
        """Return the nodes so that an `each` stands before its body, and all else in order."""
        found: list[str] = []

        def add(scope: str | None) -> None:
            inside = [name for name in self.order if self.nodes[name].scope == scope]
            found.extend(inside)
            for name in inside:
                if self.nodes[name].kind == "each":
                    add(name)

        add(None)
        return found

    def _met(
        self, ways: list[tuple[str, Edge]], found: dict[str, int], region: Region | None
    ) -> int:
        gifts = [
            (before, found[before] | (self._bit[before] if edge.on == "ok" else 0))
            for before, edge in ways
        ]
        if not gifts:
            return 0
        if region is None:
            return _common([bits for _, bits in gifts])
        total = found.get(region.router, 0) | self._bit[region.router]
        if self._waits_for_all(region):
            # Each branch has run: what all ways through one of them bring is there.
            for inside in region.branches.values():
                total |= _common([bits for before, bits in gifts if before in inside])
        within = region.nodes | {region.router}
        outside = [bits for before, bits in gifts if before not in within]
        return _common([total, *outside])

    def _waits_for_all(self, region: Region) -> bool:
        router = self.nodes[region.router]
        return router.subject == "all" and self.nodes[region.join].join == "all"

    def ran_before(self, name: str, other: str) -> bool:
        """Tell whether a node may have run before another one starts."""
        return other in self._reachable(name)

    def _reachable(self, name: str) -> set[str]:
        found: set[str] = set()
        todo = [edge.to for edge in self.edges(name)]
        while todo:
            one = todo.pop()
            if one not in found:
                found.add(one)
                todo += [edge.to for edge in self.edges(one)]
        return found


def _common(sets: list[int]) -> int:
    if not sets:
        return 0
    met = sets[0]
    for one in sets[1:]:
        met &= one
    return met
