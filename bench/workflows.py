"""Workflow runs: what the engine costs per node, and one graph beside LangGraph's SqliteSaver.

The graph has ten nodes, a loop of twenty and a fan-out of fifty. LangGraph is measured where the
`bench` extra is installed. Both write to SQLite with a real fsync. Each is also killed in the
middle of its fan-out and started again: a witness counts which nodes it runs once more.
"""

from __future__ import annotations

import asyncio
import importlib.util
import itertools
import operator
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
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
LINE = [f"n{number}" for number in range(7)]
GRAPH = f"""
workflow: graph
vars: {{xs: list of integer}}
loops: {{again: {LOOP - 1}}}
nodes:
{
    "".join(
        f"  {one}: {{tool: work, inputs: {{n: 1}}, next: {two}}}" + chr(10)
        for one, two in itertools.pairwise([*LINE, "step"])
    )
}
  step: {{tool: work, inputs: {{n: 1}}, next: [{{to: step, loop: again}}, {{to: all}}]}}
  all:
    each: vars.xs
    as: x
    parallel: {WIDTH}
    do:
      one: {{tool: item, inputs: {{n: "{{{{ x }}}}"}}}}
    next: last
  last: {{tool: work, inputs: {{n: 3}}, next: done}}
"""
EXECUTIONS = len(LINE) + LOOP + WIDTH + 1

KILL_AT = WIDTH // 2
"""The item in the middle of which the process is killed."""


class Witness:
    """Counts items in a file that outlives the process; kills the process at one of them."""

    path: Path | None = None
    kill = False

    @classmethod
    def note(cls, n: int) -> None:
        """Write an item down."""
        if cls.path is None:
            return
        with cls.path.open("ab", buffering=0) as file:
            file.write(b"%d\n" % n)
        if cls.kill and n == KILL_AT:
            os.kill(os.getpid(), signal.SIGKILL)


@holdfast.tool(effect="idempotent")
async def work(n: int) -> dict[str, int]:
    """Return a number."""
    return {"n": n}


@holdfast.tool(effect="idempotent")
async def item(n: int) -> dict[str, int]:
    """Return a number, and note that this was done."""
    if Witness.path is not None:
        await asyncio.sleep(n / 100)  # branches end one after the other
        Witness.note(n)
    return {"n": n}


async def _ours(text: str, variables: dict[str, Any], place: str) -> tuple[float, list[str], int]:
    flow, problems = read_text(text)
    assert flow is not None, problems
    async with await holdfast.open(f"sqlite:{place}") as runtime:
        runs = Runs(runtime, registry(tools=[work, item]))
        run = await runs.create(flow, variables, run_id="run")
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
        if Witness.path is not None:
            time.sleep(state["x"] / 100)
            Witness.note(state["x"])
        return {"items": [state["x"]]}

    def further(state: Any) -> Any:
        return "step" if state["n"] < LOOP else [Send("one", {"x": x}) for x in range(WIDTH)]

    graph = StateGraph(kept)
    graph.add_node("step", step)
    graph.add_node("one", one)
    graph.add_node("last", lambda state: {"n": len(state["items"])})
    for name in LINE:
        graph.add_node(name, lambda state: {"items": []})
    for name, following in itertools.pairwise([START, *LINE, "step"]):
        graph.add_edge(name, following)
    graph.add_conditional_edges("step", further, ["step", "one"])
    graph.add_edge("one", "last")
    graph.add_edge("last", END)
    connection = sqlite3.connect(f"{place}/langgraph.db", check_same_thread=False)
    connection.execute("PRAGMA synchronous=FULL")
    app = graph.compile(checkpointer=SqliteSaver(connection))
    config: Any = {
        "configurable": {"thread_id": "run"},
        "recursion_limit": 100,
        "max_concurrency": WIDTH,
    }
    begun = app.get_state(config).created_at is not None
    started = time.perf_counter()
    app.invoke(None if begun else {"n": 0, "items": []}, config, durability="sync")
    took = time.perf_counter() - started
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    return took, _size(place)


def _again(which: str, place: Path) -> int:
    """Kill a process in the fan-out, start another; return how many finished items ran again."""
    place.mkdir()
    witness = place / "witness"
    words = [sys.executable, "-m", "bench.workflows", which, str(place)]
    killed = subprocess.run([*words, "kill"], cwd=Path(__file__).parent.parent)
    assert killed.returncode == -signal.SIGKILL, killed
    before = Counter(witness.read_text().split())
    subprocess.run(words, cwd=Path(__file__).parent.parent, check=True)
    after = Counter(witness.read_text().split())
    assert len(after) == WIDTH, after
    # The item in the middle of which the process died may well run again.
    return sum(after[one] > 1 for one in before if one != str(KILL_AT))


def work_once(which: str, place: str, kill: bool) -> None:
    """Work the graph in this process, which may be killed in its fan-out."""
    Witness.path, Witness.kill = Path(place) / "witness", kill
    if which == "langgraph":
        _langgraph(place)
    else:
        asyncio.run(_ours(GRAPH, {"xs": list(range(WIDTH))}, f"{place}/store"))


def run() -> dict[str, object]:
    """Return the figures."""
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir=Path.cwd()) as place:
        began = time.process_time()
        took, ends, size = asyncio.run(_ours(LONG, {}, f"{place}/long"))
        processor = time.process_time() - began
        at = [datetime.fromisoformat(one) for one in ends]
        late = (at[-1] - at[-101]).total_seconds() * 10
        figures += [
            Figure("ms per node, with fsync", took / NODES * 1000, "ms", at_most=5),
            Figure("ms per node, the last hundred", late, "ms", at_most=5),
            Figure("ms of processor per node", processor / NODES * 1000, "ms"),
            Figure("bytes per node", size / NODES, "B"),
        ]
        xs = {"xs": list(range(WIDTH))}
        took, _, size = asyncio.run(_ours(GRAPH, xs, f"{place}/graph"))
        figures += [
            Figure("the graph", took, "s", note=f"{EXECUTIONS} executions"),
            Figure("the graph, stored bytes", size, "B"),
            Figure("finished items run again after a kill", _again("ours", Path(place) / "k"), ""),
        ]
        if importlib.util.find_spec("langgraph.checkpoint.sqlite") is not None:
            other = Path(place) / "langgraph"
            other.mkdir()
            theirs, bytes_there = _langgraph(str(other))
            again = _again("langgraph", Path(place) / "kl")
            figures += [
                Figure("LangGraph: the graph", theirs, "s", note=f"{theirs / took:.3g} times ours"),
                Figure("LangGraph: the graph, stored bytes", bytes_there, "B"),
                Figure("LangGraph: finished items run again after a kill", again, ""),
            ]
    return as_result("workflow runs", figures)


if __name__ == "__main__":
    work_once(sys.argv[1], sys.argv[2], sys.argv[3:] == ["kill"])
