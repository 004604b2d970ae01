"""Rewinding: a new run that takes over what another one finished, and runs the rest again.

Nothing is copied beforehand. The new run goes the same way from its first node; wherever the other
run has finished the same execution (branch, node, loop counters, definition and input), its result
is taken over on record. Whatever runs anew makes its branch new from there on, as well as the
branches that split off it and whatever they are joined into: so exactly what depends on it runs
again. All of this follows from the two logs, so a kill changes nothing.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.core.errors import InvalidInput
from holdfast.core.events import Event
from holdfast.core.facts import Fact
from holdfast.core.payloads import Slot
from holdfast.core.run_facts import (
    BranchFinished,
    BranchStarted,
    EdgeSelected,
    JoinReady,
    NodeFinished,
    NodeStarted,
)
from holdfast.stores.port import SessionStore
from holdfast.views.values import hydrate
from holdfast.workflows.batch import Batch
from holdfast.workflows.calls_port import Kept
from holdfast.workflows.graph import Graph
from holdfast.workflows.model import Node, Workflow
from holdfast.workflows.values import ValuesMissing

PAGE_EVENTS = 1000
TYPES = [
    one.TYPE
    for one in (BranchFinished, BranchStarted, EdgeSelected, JoinReady, NodeFinished, NodeStarted)
]

Position = tuple[str, str, tuple[tuple[str, int], ...]]
"""Branch, node and loop counters: what an execution is known by in every run."""

_PLACE = re.compile(r"([a-z][a-z0-9_]*)=(\d+)|([a-z][a-z0-9_]*)(?:@[^:/]*)?:(\d+)")


def position(branch: str, node: str, iteration: Mapping[str, int]) -> Position:
    """Return what an execution is known by."""
    return branch, node, tuple(sorted((name, n) for name, n in iteration.items() if n))


@dataclass(frozen=True, slots=True)
class Target:
    """The executions that a run is rewound to: those of a node, in one round or in all of them."""

    node: str
    rounds: Mapping[str, int]  # by the name of a loop or of an `each`

    def meets(self, place: Position) -> bool:
        """Tell whether an execution is one of them."""
        branch, node, iteration = place
        if node != self.node:
            return False
        found = dict(_places(branch)) | dict(iteration)
        return all(found.get(name, 0) == n for name, n in self.rounds.items())

    def document(self) -> dict[str, Any]:
        """Return the target as data."""
        return {"node": self.node, "rounds": dict(self.rounds)}


def _places(branch: str) -> Iterator[tuple[str, int]]:
    """Yield the loop counters and the item numbers that stand in the name of a branch."""
    for loop, count, each, index in _PLACE.findall(branch):
        yield (loop, int(count)) if loop else (each, int(index))


def read_target(text: str, graph: Graph) -> Target:
    """Return the target that someone wrote as NODE, NODE:N or NODE:NAME=N,NAME=N."""
    node, mark, rest = text.partition(":")
    if node not in graph.nodes:
        known = ", ".join(graph.nodes)
        raise InvalidInput(f"the workflow has no node {node!r} to rewind to; it has: {known}")
    if not mark:
        return Target(node, {})
    names = _around(graph, node)
    if rest.isdigit():
        if not names:
            raise InvalidInput(f"nothing repeats {node!r}, so it has no rounds; write {node!r}")
        return Target(node, {names[0]: int(rest)})
    rounds: dict[str, int] = {}
    for part in rest.split(","):
        name, _, number = part.partition("=")
        if name not in names or not number.isdigit():
            raise InvalidInput(
                f"{part!r} is not a valid round of {node!r}; write NAME=N, with one of: "
                f"{', '.join(names) or 'none, as nothing repeats it'}"
            )
        rounds[name] = int(number)
    return Target(node, rounds)


def _around(graph: Graph, node: str) -> tuple[str, ...]:
    """Return what repeats a node, loops and `each` nodes, innermost first."""
    found = _inner_first(graph, node)
    for fork in reversed(graph.forks_around[node]):
        if graph.node(fork).kind == "each":
            found.append(fork)
        found += _inner_first(graph, fork)
    return tuple(dict.fromkeys(found))


def _inner_first(graph: Graph, node: str) -> list[str]:
    return sorted(graph.loops_around[node], key=lambda name: len(graph.loops[name].body))


class Anew:
    """The branches on which something has run anew; one rule for a plan and for the run itself."""

    def __init__(self) -> None:
        self._branches: set[str] = set()

    def copy(self) -> Anew:
        """Return the same, to go on from."""
        other = Anew()
        other._branches = set(self._branches)
        return other

    def __contains__(self, branch: str) -> bool:
        return branch in self._branches

    def add(self, branch: str) -> None:
        """Take in that something runs anew on a branch."""
        self._branches.add(branch)

    def learn(self, fact: Fact) -> None:
        """Take in where branches split off and meet."""
        if isinstance(fact, BranchStarted) and fact.parent in self._branches:
            self._branches.add(fact.branch)
        elif isinstance(fact, JoinReady):
            below = f"{fact.branch}/"
            if any(name.startswith(below) for name in self._branches):
                self._branches.add(fact.branch)


class _Finished:
    """What a run has finished, as its log is read: results, and failures that something caught."""

    def __init__(self) -> None:
        self.kept: dict[Position, Kept] = {}
        self._started: dict[int, NodeStarted] = {}
        self._failed: dict[int, int] = {}  # the execution, by the event that says so
        self._last_failed: dict[str, int] = {}  # that event, by branch
        self._of_forks: dict[int, list[int]] = {}  # those events that ended branches, by fan-out
        self._chosen: dict[int, list[str]] = {}

    def learn(self, seq: int, fact: Fact) -> None:
        """Take in one fact of the run."""
        match fact:
            case NodeStarted():
                self._started[fact.execution] = fact
            case NodeFinished() if fact.status == "ok":
                self._keep(fact.execution, seq)
            case NodeFinished() if fact.status == "failed":
                self._failed[seq] = fact.execution
                self._last_failed[fact.branch] = seq
            case EdgeSelected() if fact.output in self._failed:
                self._keep(self._failed[fact.output], fact.output)
            case BranchStarted():
                self._chosen.setdefault(fact.fork, []).append(fact.node)
                self._keep(fact.fork, seq)
            case BranchFinished() if fact.status == "failed" and fact.branch in self._last_failed:
                ends = self._of_forks.setdefault(fact.fork, [])
                ends.append(self._last_failed[fact.branch])
            case JoinReady():
                for end in self._of_forks.pop(fact.fork, ()):
                    self._keep(self._failed[end], end)

    def _keep(self, execution: int, seq: int) -> None:
        fact = self._started[execution]
        given = None if fact.input is None else fact.input.id
        place = position(fact.branch, fact.node, fact.iteration)
        self.kept[place] = Kept(seq, given, tuple(self._chosen.get(execution, ())))


class Reuse:
    """What a rewound run takes over, and from where."""

    def __init__(
        self,
        store: SessionStore,
        source: str,
        target: Target | None,
        changed: frozenset[str] = frozenset(),
    ) -> None:
        self._store = store
        self._source = source
        self._target = target
        self._changed = changed  # nodes that are not what they were
        self._kept: dict[Position, Kept] = {}
        self._anew = Anew()
        self._loaded: dict[int, NodeFinished] = {}

    # -- the other run

    async def read(self, until: int) -> None:
        """Take in what the other run finished, up to a position of its log."""
        finished = _Finished()
        async for event in _events(self._store, self._source, until):
            finished.learn(event.seq, event.fact())
        self._kept = finished.kept

    async def load(self, seq: int) -> None:
        """Bring the outcome of an execution of the other run, with all that it holds."""
        (event,) = await self._store.read_events(self._source, after=seq - 1, limit=1)
        fact = event.fact()
        assert isinstance(fact, NodeFinished)
        self._loaded[seq] = NodeFinished(
            execution=fact.execution,
            node=fact.node,
            branch=fact.branch,
            iteration=fact.iteration,
            status=fact.status,
            code=fact.code,
            output=await self._whole(fact.output),
            error=await self._whole(fact.error),
            commit=fact.commit,
            reused={"session": self._source, "seq": seq},
        )

    async def _whole(self, item: Slot | None) -> Slot | None:
        return None if item is None else await hydrate(self._store, self._source, item)

    # -- this run

    def learn(self, facts: Iterable[Fact]) -> None:
        """Take in facts of this run."""
        for fact in facts:
            _learn(self._anew, fact, self._target)

    def find(
        self, batch: Batch, branch: str, node: Node, iteration: Mapping[str, int]
    ) -> Kept | None:
        """Return what can be taken over for an execution that is about to begin, or None."""
        place = position(branch, node.id, iteration)
        kept = self._kept.get(place)
        if kept is None or node.id in self._changed:
            return None
        if self._target is not None and self._target.meets(place):
            return None
        anew = self._anew.copy()
        for fact in batch.facts:
            _learn(anew, fact, self._target)
        return None if branch in anew else kept

    def outcome(self, kept: Kept) -> NodeFinished:
        """Return how an execution of the other run ended."""
        if kept.seq not in self._loaded:
            raise ValuesMissing(reused=kept.seq)
        return self._loaded[kept.seq]


async def read_reuse(store: SessionStore, run: str, seq: int, wanted: Mapping[str, Any]) -> Reuse:
    """Return what a run takes over, by what it was launched with and how far it has come."""
    target = None
    if wanted.get("node") is not None:
        target = Target(str(wanted["node"]), dict(wanted["rounds"]))
    found = Reuse(store, str(wanted["run"]), target, frozenset(wanted.get("changed", ())))
    await found.read(int(wanted["seq"]))
    async for event in _events(store, run, seq):
        found.learn([event.fact()])
    return found


def _learn(anew: Anew, fact: Fact, target: Target | None) -> None:
    anew.learn(fact)
    if isinstance(fact, NodeStarted):
        place = position(fact.branch, fact.node, fact.iteration)
        # What is taken over has no call; a target without one is evaluated anew all the same.
        if fact.call is not None or (target is not None and target.meets(place)):
            anew.add(fact.branch)


async def _events(store: SessionStore, run: str, until: int) -> AsyncIterator[Event]:
    after = 0
    while page := await store.read_events(
        run, after=after, before=until + 1, limit=PAGE_EVENTS, types=TYPES
    ):
        for event in page:
            if event.known:
                yield event
        after = page[-1].seq


@dataclass(frozen=True, slots=True)
class Again:
    """An execution of a run that would run again."""

    node: str
    branch: str
    iteration: Mapping[str, int]
    kind: str
    call: str | None

    def effect(self, flow: Workflow) -> str:
        """Return what running it again may do outside: nothing, the same, or something new."""
        if self.call is None:
            return "pure"
        node = flow.nodes.get(self.node)
        said = None if node is None else node.effect
        return said or {"tool": "as the tool says", "run": "once"}.get(self.kind, "idempotent")


async def runs_again(
    store: SessionStore, run: str, until: int, target: Target | None, changed: frozenset[str]
) -> list[Again]:
    """Return what of a run would run again after rewinding it, in order."""
    anew = Anew()
    found: list[Again] = []
    async for event in _events(store, run, until):
        fact = event.fact()
        anew.learn(fact)
        if not isinstance(fact, NodeStarted):
            continue
        place = position(fact.branch, fact.node, fact.iteration)
        met = target is not None and target.meets(place)
        if met or fact.node in changed:
            anew.add(fact.branch)
        if fact.branch in anew and (met or fact.call is not None):
            found.append(Again(fact.node, fact.branch, fact.iteration, fact.kind, fact.call))
    return found
