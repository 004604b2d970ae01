"""Workflow runs: what the engine costs per node, and one graph beside LangGraph's SqliteSaver.

The graph has a loop of twenty and a fan-out of fifty. LangGraph is measured where the `bench` extra
is installed. Both write to SQLite with a real fsync.
"""

from __future__ import annotations

import asyncio
import importlib.util
import operator
import sqlite3
import tempfile
import time
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, TypedDict

import holdfast
from bench.table import Figure, as_result
from holdfast.runs import Runs, registry
from holdfast.workflows.reading import read_text

NODES = 1000
LOOP = 20
WIDTH = 50

LONG = f"""
workflow: long
loops: {{again: {NODES - 1}}}
nodes:
  step: {{tool: work, inputs: {{n: 1}}, next: [{{to: step, loop: again}}, {{to: done}}]}}
"""
GRAPH = f"""
workflow: graph
vars: {{xs: list of integer}}
loops: {{again: {LOOP - 1}}}
nodes:
  step: {{tool: work, inputs: {{n: 1}}, next: [{{to: step, loop: again}}, {{to: all}}]}}
  all:
    each: vars.xs
    as: x
    parallel: {WIDTH}
    do:
      one: {{tool: work, inputs: {{n: "{{{{ x }}}}"}}}}
    next: last
  last: {{tool: work, inputs: {{n: 3}}, next: done}}
"""


@holdfast.tool(effect="idempotent")
async def work(n: int) -> dict[str, int]:
    """Return a number."""
    return {"n": n}


async def _ours(text: str, variables: dict[str, Any], place: str) -> tuple[float, list[str], int]:
    flow, problems = read_text(text)
    assert flow is not None, problems
    async with await holdfast.open(f"sqlite:{place}") as runtime:
        runs = Runs(runtime, registry(tools=[work]))
        run = await runs.create(flow, variables)
        started = time.perf_counter()
        result = await runs.drive(run)
        took = time.perf_counter() - started
        assert result.status == "finished", result
        ends = [event.at async for event in runs.scan(run) if event.type == "node.finished"]
    return took, ends, _size(place)


def _size(place: str) -> int:
    return sum(file.stat().st_blocks * 512 for file in Path(place).rglob("*") if file.is_file())


def _langgraph(place: str) -> tuple[float, int]:
    from langgraph.checkpoint.sqlite import SqliteSaver
    from langgraph.graph import END, START, StateGraph
    from langgraph.types import Send

    kept = TypedDict("kept", {"n": int, "items": Annotated[list, operator.add]})  # noqa: UP013

    def step(state: Any) -> dict[str, Any]:
        return {"n": state["n"] + 1}

    def one(state: Any) -> dict[str, Any]:
        return {"items": [state["x"]]}

    def further(state: Any) -> Any:
        return "step" if state["n"] < LOOP else [Send("one", {"x": x}) for x in range(WIDTH)]

    graph = StateGraph(kept)
    graph.add_node("step", step)
    graph.add_node("one", one)
    graph.add_node("last", lambda state: {"n": len(state["items"])})
    graph.add_edge(START, "step")
    graph.add_conditional_edges("step", further, ["step", "one"])
    graph.add_edge("one", "last")
    graph.add_edge("last", END)
    connection = sqlite3.connect(f"{place}/langgraph.db", check_same_thread=False)
    connection.execute("PRAGMA synchronous=FULL")
    app = graph.compile(checkpointer=SqliteSaver(connection))
    config: Any = {"configurable": {"thread_id": "run"}, "recursion_limit": 100}
    started = time.perf_counter()
    app.invoke({"n": 0, "items": []}, config, durability="sync")
    took = time.perf_counter() - started
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    return took, _size(place)


def run() -> dict[str, object]:
    """Return the figures."""
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir=Path.cwd()) as place:
        took, ends, size = asyncio.run(_ours(LONG, {}, f"{place}/long"))
        at = [datetime.fromisoformat(one) for one in ends]
        late = (at[-1] - at[-101]).total_seconds() * 10
        figures += [
            Figure("ms per node, with fsync", took / NODES * 1000, "ms", at_most=5),
            Figure("ms per node, the last hundred", late, "ms", at_most=5),
            Figure("bytes per node", size / NODES, "B"),
        ]
        xs = {"xs": list(range(WIDTH))}
        took, _, size = asyncio.run(_ours(GRAPH, xs, f"{place}/graph"))
        figures += [Figure("the graph", took, "s"), Figure("the graph, stored bytes", size, "B")]
        if importlib.util.find_spec("langgraph") is not None:
            other = Path(place) / "langgraph"
            other.mkdir()
            theirs, bytes_there = _langgraph(str(other))
            figures += [
                Figure("LangGraph: the graph", theirs, "s", note=f"{theirs / took:.3g} times ours"),
                Figure("LangGraph: the graph, stored bytes", bytes_there, "B"),
            ]
    return as_result("workflow runs", figures)
