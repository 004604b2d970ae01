"""The same thousand turns in LangGraph's SqliteSaver, where the `bench` extra is installed.

Both ways LangGraph offers are shown: `add_messages`, which stores the whole list with every step,
and its delta channel, which does not.
"""

from __future__ import annotations

import importlib.util
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypedDict

from bench.table import Figure


def langgraph(
    turns: int,
    text: Callable[[int, int], str],
    user: int,
    assistant: int,
    ours: dict[str, float],
) -> list[Figure]:
    """Return LangGraph's figures beside ours; none where it is not installed."""
    if importlib.util.find_spec("langgraph") is None:
        return []
    figures: list[Figure] = []
    for name, channel in _channels().items():
        with tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir=Path.cwd()) as place:
            path = Path(place) / "langgraph.db"
            took = _converse(path, channel, turns, text, user, assistant)
            size = sum(f.stat().st_blocks * 512 for f in Path(place).iterdir())
        late = statistics.median(took[-100:]) * 1000
        times = f"{sum(took) / ours['1,000 turns, two messages each']:.3g} times ours"
        more = f"{size / ours['stored bytes']:.3g} times ours"
        slower = f"{late / ours['ms per turn at the end']:.3g} times ours"
        figures += [
            Figure(f"LangGraph {name}: 1,000 turns", sum(took), "s", note=times),
            Figure(f"LangGraph {name}: ms per turn at the end", late, "ms", note=slower),
            Figure(f"LangGraph {name}: stored bytes", size, "B", note=more),
        ]
    return figures


def _channels() -> dict[str, Any]:
    from langgraph.graph.message import add_messages

    found: dict[str, Any] = {"add_messages": add_messages}
    try:
        from langgraph.channels import DeltaChannel
    except ImportError:
        return found

    def extend(present: list[Any], new: list[list[Any]]) -> list[Any]:
        return [*present, *(message for part in new for message in part)]

    return found | {"DeltaChannel": DeltaChannel(extend)}


def _converse(
    path: Path,
    channel: Any,
    turns: int,
    text: Callable[[int, int], str],
    user: int,
    assistant: int,
) -> list[float]:
    from langchain_core.messages import AIMessage, HumanMessage
    from langgraph.checkpoint.sqlite import SqliteSaver
    from langgraph.graph import END, START, StateGraph

    conversation = TypedDict("conversation", {"messages": Annotated[list, channel]})  # noqa: UP013
    replies = iter(range(turns))

    def answer(_: Any) -> dict[str, Any]:
        return {"messages": [AIMessage(text(2 * next(replies) + 1, assistant))]}

    graph = StateGraph(conversation)
    graph.add_node("answer", answer)
    graph.add_edge(START, "answer")
    graph.add_edge("answer", END)
    connection = sqlite3.connect(path, check_same_thread=False)
    connection.execute("PRAGMA synchronous=FULL")
    app = graph.compile(checkpointer=SqliteSaver(connection))
    config: Any = {"configurable": {"thread_id": "talk"}}
    took = []
    for number in range(turns):
        started = time.perf_counter()
        question = HumanMessage(text(2 * number, user))
        app.invoke({"messages": [question]}, config, durability="sync")
        took.append(time.perf_counter() - started)
    kept = len(app.get_state(config).values["messages"])
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    if kept != 2 * turns:
        raise SystemExit(f"LangGraph kept {kept} of {2 * turns} messages")
    return took


def suspensions(number: int, path: Path, ours: float) -> list[Figure]:
    """Return how long LangGraph takes to answer so many interrupts after a restart."""
    try:
        from langgraph.checkpoint.sqlite import SqliteSaver
        from langgraph.graph import END, START, StateGraph
        from langgraph.types import Command, interrupt
    except ImportError:
        return []

    def ask(_: Any) -> dict[str, Any]:
        return {"answer": interrupt("Which one?")}

    graph = StateGraph(TypedDict("asked", {"answer": str}))
    graph.add_node("ask", ask)
    graph.add_edge(START, "ask")
    graph.add_edge("ask", END)
    threads = [{"configurable": {"thread_id": f"s-{index}"}} for index in range(number)]
    with SqliteSaver.from_conn_string(str(path)) as saver:
        app = graph.compile(checkpointer=saver)
        for thread in threads:
            app.invoke({"answer": ""}, thread)
    began = time.perf_counter()
    with SqliteSaver.from_conn_string(str(path)) as saver:
        app = graph.compile(checkpointer=saver)
        for thread in threads:
            app.invoke(Command(resume="a"), thread)
    took = time.perf_counter() - began
    note = f"{took / ours:.3g} times ours"
    return [Figure(f"LangGraph interrupt: {number} answered after a restart", took, "s", note=note)]
