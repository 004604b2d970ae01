"""A workflow run as a page shows it: the graph with its live state, executions, artifacts.

The graph is laid out in columns by how far a node is from the start, loops left out; edges that
fired are drawn solid. Everything the drawing says stands in the table of executions too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.core import run_facts
from holdfast.core.facts import CallRequested, CallSuspended
from holdfast.core.state import State
from holdfast.server.timeline import moment
from holdfast.stores.port import SessionStore
from holdfast.workflows.model import Edge, Workflow

WIDTH, HEIGHT = 128, 44
ACROSS, DOWN = 192, 64
MOST_EVENTS = 20_000
MOST_EXECUTIONS = 300
TYPES = [
    run_facts.NodeStarted.TYPE,
    run_facts.NodeFinished.TYPE,
    run_facts.NodeRetried.TYPE,
    run_facts.EdgeSelected.TYPE,
    run_facts.BranchStarted.TYPE,
    CallRequested.TYPE,
    CallSuspended.TYPE,
]
ICONS = {
    "agent": "model",
    "judge": "judge",
    "router": "router",
    "human": "user",
    "tool": "tool",
    "run": "code",
    "compute": "code",
    "each": "layers",
    "workflow": "run",
    "wait": "clock",
    "done": "head",
    "fail": "failed",
}


@dataclass(slots=True)
class Execution:
    """One execution of a node."""

    number: int
    node: str
    kind: str
    branch: str
    iteration: Mapping[str, int]
    seq: int
    begin: float
    end: float | None = None
    status: str = "running"
    attempt: int = 1
    code: str | None = None
    call: str | None = None
    child: str | None = None
    waits: str | None = None
    input: Any = None
    output: Any = None
    error: Any = None
    finished_seq: int | None = None

    @property
    def milliseconds(self) -> int | None:
        """Return how long it took, where it is over."""
        return None if self.end is None else int((self.end - self.begin) * 1000)

    @property
    def state(self) -> str:
        """Return how a drawing shows it."""
        if self.status == "ok":
            return "done"
        if self.status == "running":
            return "waiting" if self.waits else "running"
        return "failed" if self.status == "failed" else "cut"


@dataclass(slots=True)
class Progress:
    """What the log of a run says of its nodes and edges."""

    executions: list[Execution] = field(default_factory=list)
    fired: dict[tuple[str, str], int] = field(default_factory=dict)
    loops: dict[str, int] = field(default_factory=dict)

    def latest(self, node: str) -> Execution | None:
        """Return the last execution of a node."""
        return next((item for item in reversed(self.executions) if item.node == node), None)

    def of(self, node: str) -> list[Execution]:
        """Return the executions of a node."""
        return [item for item in self.executions if item.node == node]


async def progress(store: SessionStore, run: str, state: State) -> Progress:
    """Return what a run has done; of a long one, what it did last."""
    after = max(0, state.seq - MOST_EVENTS)
    found = Progress()
    numbered: dict[int, Execution] = {}
    by_call: dict[str, Execution] = {}
    while page := await store.read_events(run, after=after, limit=500, types=TYPES):
        for event in page:
            fact = event.fact() if event.known else None
            match fact:
                case run_facts.NodeStarted():
                    item = Execution(
                        fact.execution,
                        fact.node,
                        fact.kind,
                        fact.branch,
                        dict(fact.iteration),
                        event.seq,
                        moment(event.at),
                        call=fact.call,
                        input=fact.input,
                    )
                    numbered[fact.execution] = item
                    if fact.call is not None:
                        by_call[fact.call] = item
                    found.executions.append(item)
                case run_facts.NodeFinished() if fact.execution in numbered:
                    item = numbered[fact.execution]
                    item.status, item.code, item.end = fact.status, fact.code, moment(event.at)
                    item.output, item.error = fact.output, fact.error
                    item.finished_seq, item.waits = event.seq, None
                case run_facts.NodeRetried() if fact.execution in numbered:
                    item = numbered[fact.execution]
                    item.attempt, item.code = fact.attempt, fact.code
                    by_call[fact.call] = item
                case run_facts.EdgeSelected():
                    key = fact.source, fact.target
                    found.fired[key] = found.fired.get(key, 0) + 1
                    if fact.loop is not None:
                        found.loops[fact.loop] = max(found.loops.get(fact.loop, 0), fact.iteration)
                case run_facts.BranchStarted() if fact.fork in numbered:
                    key = numbered[fact.fork].node, fact.node
                    found.fired[key] = found.fired.get(key, 0) + 1
                case CallRequested() if fact.call_id in by_call:
                    by_call[fact.call_id].child = fact.child
                case CallSuspended() if fact.call_id in by_call:
                    by_call[fact.call_id].waits = fact.kind if fact.kind != "child" else None
        after = page[-1].seq
    return found


@dataclass(frozen=True, slots=True)
class GraphNode:
    """A node of the drawing."""

    id: str
    x: int
    y: int
    icon: str
    state: str
    status: str
    words: str
    count: int


@dataclass(frozen=True, slots=True)
class GraphEdge:
    """An edge of the drawing."""

    path: str
    fired: bool
    label: str
    x: int
    y: int


@dataclass(frozen=True, slots=True)
class Drawing:
    """A graph with places."""

    nodes: Sequence[GraphNode]
    edges: Sequence[GraphEdge]
    width: int
    height: int


def drawing(workflow: Workflow, done: Progress) -> Drawing:
    """Return the drawing of a workflow with the state of a run."""
    column = _columns(workflow)
    taken: dict[int, int] = {}
    places: dict[str, tuple[int, int]] = {}
    tallest = max((list(column.values()).count(n) for n in set(column.values())), default=1)
    for name in workflow.nodes:
        place = column[name]
        here = list(column.values()).count(place)
        row = taken.get(place, 0)
        taken[place] = row + 1
        top = 48 + (tallest - here) * DOWN // 2
        places[name] = 16 + place * ACROSS, top + row * DOWN
    edges = []
    for node in workflow.nodes.values():
        for edge in node.next:
            if edge.to in places:
                fired = done.fired.get((node.id, edge.to), 0)
                edges.append(_edge(places[node.id], places[edge.to], edge, fired, done))
    nodes = [_node(workflow, name, places[name], done) for name in workflow.nodes]
    width = max(x for x, _ in places.values()) + WIDTH + 16
    height = max(y for _, y in places.values()) + HEIGHT + 24
    return Drawing(nodes, edges, width, height)


def _columns(workflow: Workflow) -> dict[str, int]:
    """Return how far each node is from the start, by the longest way without loops."""
    column = {workflow.start: 0}
    for _ in workflow.nodes:  # no way is longer than there are nodes
        moved = False
        for node in workflow.nodes.values():
            if node.id not in column:
                continue
            targets = [edge.to for edge in node.next if edge.loop is None]
            for target in (*targets, *node.body[:1]):
                least = column[node.id] + 1
                if target in workflow.nodes and column.get(target, -1) < least:
                    column[target] = least
                    moved = True
        if not moved:
            break
    return {name: column.get(name, 0) for name in workflow.nodes}


def _node(workflow: Workflow, name: str, place: tuple[int, int], done: Progress) -> GraphNode:
    node, last, count = workflow.nodes[name], done.latest(name), len(done.of(name))
    state, status, words = "none", "none", "not reached"
    if last is not None:
        state, status = last.state, last.status
        words = last.status.replace("_", " ")
        if last.waits:
            status, words = "suspended", f"waits: {last.waits}"
        elif last.code:
            words = last.code.replace("_", " ")
        elif last.attempt > 1:
            words = f"{last.attempt} tries, {words}"
    return GraphNode(
        name, place[0], place[1], ICONS.get(node.kind, "box"), state, status, words[:20], count
    )


def _edge(
    begin: tuple[int, int], end: tuple[int, int], edge: Edge, fired: int, done: Progress
) -> GraphEdge:
    words = [edge.when or "", "on failure" if edge.on == "failure" else ""]
    if edge.loop is not None:
        words.append(f"{edge.loop}, {done.loops.get(edge.loop, 0)} passed")
    label = " ".join(word for word in words if word)
    longest = 32 if edge.loop else 10  # between two columns is little room
    label = label if len(label) <= longest else f"{label[: longest - 1]}…"
    x, y = begin[0] + WIDTH, begin[1] + HEIGHT // 2
    to_x, to_y = end[0], end[1] + HEIGHT // 2
    if to_x > x - WIDTH:
        middle = (x + to_x) // 2
        path = f"M{x} {y}C{middle} {y} {middle} {to_y} {to_x - 2} {to_y}"
        return GraphEdge(path, bool(fired), label, middle, (y + to_y) // 2 - 5)
    # Back to an earlier column: over the top.
    x, y = begin[0] + WIDTH // 2, begin[1]
    to_x, to_y = end[0] + WIDTH // 2, end[1]
    over = min(y, to_y) - 34
    path = f"M{x} {y}C{x} {over} {to_x} {over} {to_x} {to_y - 2}"
    return GraphEdge(path, bool(fired), label, (x + to_x) // 2, over + 2)
