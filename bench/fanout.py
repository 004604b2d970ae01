"""A fan-out of many tasks with an answer that is there at once, beside LangGraph and DBOS.

Ours are children by one `map_rlm`, each a session with its own log, with a kernel each and without.
LangGraph's are `Send`s to one node, with a SQLite checkpointer; DBOS's are child workflows of one
step each, on SQLite. All write durably and wait for every task. All run in one process, one after
the other, on the same disk.
"""

from __future__ import annotations

import asyncio
import operator
import sqlite3
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypedDict

from bench.table import Figure, as_result
from bench.trees import children

WIDTHS = (100, 1000)


def run() -> dict[str, object]:
    """Return the figures."""
    figures: list[Figure] = []
    for width in WIDTHS:
        for name, work, aim in (
            ("children, a kernel each", _ours("code"), 10.0),
            ("children, no kernel", _ours("tools"), 3.0),
            ("LangGraph Send", _langgraph, None),
            ("DBOS child workflows", _dbos, None),
        ):
            with tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir=Path.cwd()) as place:
                took = work(Path(place), width)
            figures.append(Figure(f"{width:,} {name}", 1000 * took / width, "ms each", at_most=aim))
    return as_result("a fan-out with an instant model (SQLite)", figures)


def _ours(harness: str) -> Callable[[Path, int], float]:
    return lambda place, width: asyncio.run(children(place, width, harness))


def _langgraph(place: Path, width: int) -> float:
    from langgraph.checkpoint.sqlite import SqliteSaver
    from langgraph.graph import END, START, StateGraph
    from langgraph.types import Send

    shape = TypedDict("shape", {"answers": Annotated[list, operator.add]})  # noqa: UP013

    def give_out(_: Any) -> list[Any]:
        return [Send("work", {"task": number}) for number in range(width)]

    def work(_: Any) -> dict[str, Any]:
        return {"answers": ["done"]}

    graph = StateGraph(shape)
    graph.add_node("work", work)
    graph.add_conditional_edges(START, give_out, ["work"])
    graph.add_edge("work", END)
    connection = sqlite3.connect(place / "langgraph.db", check_same_thread=False)
    connection.execute("PRAGMA synchronous=FULL")
    app = graph.compile(checkpointer=SqliteSaver(connection))
    config: Any = {"configurable": {"thread_id": "wide"}}
    began = time.perf_counter()
    found = app.invoke({"answers": []}, config, durability="sync")
    took = time.perf_counter() - began
    connection.close()
    assert len(found["answers"]) == width
    return took


def _dbos(place: Path, width: int) -> float:
    from dbos import DBOS

    DBOS(
        config={
            "name": "bench",
            "system_database_url": f"sqlite:///{place / 'dbos.sqlite'}",
            "run_admin_server": False,
            "log_level": "ERROR",
        }
    )

    @DBOS.step()
    def answer(number: int) -> str:
        return "done"

    @DBOS.workflow()
    def task(number: int) -> str:
        return answer(number)

    @DBOS.workflow()
    def wide(number: int) -> int:
        handles = [DBOS.start_workflow(task, one) for one in range(number)]
        return len([handle.get_result() for handle in handles])

    DBOS.launch()
    try:
        began = time.perf_counter()
        assert wide(width) == width
        return time.perf_counter() - began
    finally:
        DBOS.destroy()
