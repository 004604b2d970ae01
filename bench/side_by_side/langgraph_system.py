"""LangGraph's side of the work: its own savers, with `durability="sync"`, both kinds of channel."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TypedDict

import psycopg
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, Send, interrupt
from psycopg.rows import dict_row

from bench.side_by_side.work import (
    ASSISTANT_BYTES,
    USER_BYTES,
    Case,
    Figures,
    Size,
    check,
    die,
    late_ms,
    peak_mb,
    stored,
    text,
    timed,
)


def _extend(present: list[Any], new: list[list[Any]]) -> list[Any]:
    return [*present, *(message for part in new for message in part)]


CHANNELS: dict[str, Any] = {
    "add_messages": add_messages,
    "delta": DeltaChannel(_extend, snapshot_frequency=1000),
    "delta 50": DeltaChannel(_extend, snapshot_frequency=50),
}


def _graph(channel: Any, reply: Any) -> StateGraph[Any]:
    state = TypedDict("state", {"messages": Annotated[list, channel]})  # noqa: UP013
    graph = StateGraph(state)
    graph.add_node("reply", reply)
    graph.add_edge(START, "reply")
    graph.add_edge("reply", END)
    return graph


def _answer(state: Any) -> dict[str, Any]:
    number = len(state["messages"])
    return {"messages": [AIMessage(text(number, ASSISTANT_BYTES))]}


def _at(thread: str) -> dict[str, Any]:
    return {"configurable": {"thread_id": thread}}


@contextmanager
def _saver(place: Path, url: str) -> Iterator[Any]:
    if not url:
        connection = sqlite3.connect(place / "langgraph.db", check_same_thread=False)
        connection.execute("pragma synchronous=FULL")
        saver = SqliteSaver(connection)
        saver.setup()
        yield saver
        connection.close()
        return
    with psycopg.connect(url, autocommit=True, prepare_threshold=0, row_factory=dict_row) as link:
        postgres = PostgresSaver(link)
        postgres.setup()
        yield postgres


def _converse(app: Any, thread: str, turns: int) -> list[float]:
    took: list[float] = []
    for number in range(turns):
        with timed(took):
            said = HumanMessage(text(2 * number, USER_BYTES))
            app.invoke({"messages": [said]}, _at(thread), durability="sync")
    return took


def _said(app: Any, thread: str) -> list[str]:
    return [message.content for message in app.get_state(_at(thread)).values["messages"]]


class LangGraph:
    """The cases, for one channel and one saver."""

    def __init__(self, channel: str, url: str) -> None:
        self.channel, self.url = channel, url

    def app(self, saver: Any) -> Any:
        return _graph(CHANNELS[self.channel], _answer).compile(checkpointer=saver)

    def b1(self, place: Path, size: Size) -> Figures:
        with _saver(place, self.url) as saver:
            app = self.app(saver)
            took = _converse(app, "t", size.turns)
            check(_said(app, "t"), size.turns)
        return {"seconds": sum(took), "ms at the end": late_ms(took), "bytes": stored(place)}

    def b2(self, place: Path, size: Size) -> Figures:
        # One run with as many steps as there are events: the same number of records to go through.
        with _saver(place, self.url) as saver:
            app = _steps(CHANNELS[self.channel], size.cold).compile(checkpointer=saver)
            limit = {**_at("t"), "recursion_limit": size.cold + 10}
            app.invoke({"messages": []}, limit, durability="sync")
        program = (
            "from bench.side_by_side import langgraph_system as system\n"
            f"system.cold({str(place)!r}, {self.url!r}, {self.channel!r}, {size.cold})\n"
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        ms, memory = done.stdout.split()
        return {"ms": float(ms), "peak MB": float(memory)}

    def b3(self, place: Path, size: Size) -> Figures:
        with _saver(place, self.url) as saver:
            app = self.app(saver)
            _converse(app, "t", size.turns)
            started = time.perf_counter()
            found = list(app.get_state_history(_at("t"), limit=min(100, size.turns)))
            ms = 1000 * (time.perf_counter() - started)
            assert len(found) == min(100, size.turns)
        return {"ms for 100": ms}

    def b4(self, place: Path, size: Size) -> Figures:
        figures: Figures = {}
        with _saver(place, self.url) as saver:
            for width in size.children:
                app = _fan_out(width).compile(checkpointer=saver)
                took: list[float] = []
                with timed(took):
                    done = app.invoke({"found": []}, _at(f"f-{width}"), durability="sync")
                assert len(done["found"]) == width
                figures[f"ms each of {width}"] = 1000 * took[0] / width
        return figures

    def b5(self, place: Path, size: Size) -> Figures:
        with _saver(place, self.url) as saver:
            app = self.app(saver)
            _converse(app, "t", size.turns)
            history = app.get_state_history(_at("t"))
            half = next(s for s in history if len(s.values["messages"]) == size.turns)
            before = stored(place)
            took: list[float] = []
            for number in range(size.forks):
                with timed(took):
                    message = AIMessage(f"fork {number}")
                    app.update_state(half.config, {"messages": [message]}, as_node="reply")
            grown = (stored(place) - before) / size.forks
        return {"ms each": 1000 * sum(took) / size.forks, "bytes each": grown}

    def b6(self, place: Path, size: Size) -> Figures:
        return asyncio.run(self._at_once(place, size))

    async def _at_once(self, place: Path, size: Size) -> Figures:
        async with AsyncSqliteSaver.from_conn_string(str(place / "langgraph.db")) as saver:
            app = self.app(saver)

            async def one(name: str) -> None:
                for number in range(size.session_turns):
                    said = HumanMessage(text(2 * number, USER_BYTES))
                    await app.ainvoke({"messages": [said]}, _at(name), durability="sync")

            started = time.perf_counter()
            await asyncio.gather(*(one(f"s-{n}") for n in range(size.sessions)))
            seconds = time.perf_counter() - started
            state = await app.aget_state(_at("s-0"))
            check([message.content for message in state.values["messages"]], size.session_turns)
        return {"turns/s": size.sessions * size.session_turns / seconds}

    def b7(self, place: Path, size: Size) -> Figures:
        def ask(state: Any) -> dict[str, Any]:
            return {"messages": [AIMessage(interrupt("which?"))]}

        graph = _graph(CHANNELS[self.channel], ask)
        with _saver(place, self.url) as saver:
            app = graph.compile(checkpointer=saver)
            for number in range(size.waits):
                go = HumanMessage("go")
                app.invoke({"messages": [go]}, _at(f"s-{number}"), durability="sync")
        started = time.perf_counter()
        with _saver(place, self.url) as saver:
            app = graph.compile(checkpointer=saver)
            for number in range(size.waits):
                app.invoke(Command(resume="a"), _at(f"s-{number}"), durability="sync")
            seconds = time.perf_counter() - started
            assert all(len(_said(app, f"s-{number}")) == 2 for number in range(size.waits))
        return {"seconds": seconds, "bytes each": stored(place) / size.waits}

    def b9(self, place: Path, size: Size) -> Figures:
        blob = text(1, size.blob)
        with _saver(place, self.url) as saver:
            app = _graph(CHANNELS[self.channel], lambda state: {"messages": []})
            compiled = app.compile(checkpointer=saver)
            for _ in range(size.blob_turns):
                said = HumanMessage(blob)
                compiled.invoke({"messages": [said]}, _at("t"), durability="sync")
            assert _said(compiled, "t") == [blob] * size.blob_turns
        return {"times its size": stored(place) / size.blob}

    def b10(self, place: Path, size: Size) -> Figures:
        program = (
            "from bench.side_by_side import langgraph_system as system\n"
            f"system.cut_short({str(place)!r}, {self.url!r}, {self.channel!r}, {size.unfinished})\n"
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        assert done.returncode == -9, done.stderr
        started = time.perf_counter()
        with _saver(place, self.url) as saver:
            app = self.app(saver)
            for number in range(size.unfinished):  # the program has to know them
                app.invoke(None, _at(f"s-{number}"), durability="sync")
            seconds = time.perf_counter() - started
            assert all(len(_said(app, f"s-{number}")) == 2 for number in range(size.unfinished))
        return {"seconds": seconds}


def _steps(channel: Any, count: int) -> StateGraph[Any]:
    """Return a graph that goes round its node `count` times."""
    state = TypedDict("state", {"messages": Annotated[list, channel]})  # noqa: UP013

    def step(state: Any) -> dict[str, Any]:
        return {"messages": [AIMessage(text(len(state["messages"]), 150))]}

    graph = StateGraph(state)
    graph.add_node("step", step)
    graph.add_edge(START, "step")
    graph.add_conditional_edges(
        "step", lambda state: "step" if len(state["messages"]) < count else END
    )
    return graph


def cold(place: str, url: str, channel: str, count: int) -> None:
    """Print how long it takes until the state of a thread is there, in a new process."""
    started = time.perf_counter()
    with _saver(Path(place), url) as saver:
        state = _steps(CHANNELS[channel], count).compile(checkpointer=saver).get_state(_at("t"))
        ms = 1000 * (time.perf_counter() - started)
        assert len(state.values["messages"]) == count
    print(ms, peak_mb())


def cut_short(place: str, url: str, channel: str, count: int) -> None:
    """Begin runs whose nodes never end, then die."""
    import threading

    arrived = threading.Barrier(count + 1)

    def silent(state: Any) -> dict[str, Any]:
        arrived.wait()
        threading.Event().wait()
        return {}

    with _saver(Path(place), url) as saver:
        app = _graph(CHANNELS[channel], silent).compile(checkpointer=saver)

        def run(number: int) -> None:
            go = HumanMessage("go")
            app.invoke({"messages": [go]}, _at(f"s-{number}"), durability="sync")

        threads = [threading.Thread(target=run, args=(n,), daemon=True) for n in range(count)]
        for thread in threads:
            thread.start()
        arrived.wait()
        die()


def _fan_out(width: int) -> StateGraph[Any]:
    import operator

    state = TypedDict("state", {"found": Annotated[list, operator.add]})  # noqa: UP013
    child = StateGraph(state)
    child.add_node("work", lambda _: {"found": [1]})
    child.add_edge(START, "work")
    child.add_edge("work", END)
    graph = StateGraph(state)
    graph.add_node("child", child.compile())
    graph.add_conditional_edges(
        START, lambda _: [Send("child", {"found": []}) for _ in range(width)], ["child"]
    )
    graph.add_edge("child", END)
    return graph


def cases(channel: str, url: str = "") -> dict[str, Case]:
    """Return the cases by name, for one channel, on SQLite or on a server."""
    system = LangGraph(channel, url)
    named: dict[str, Case] = {
        "B1": system.b1,
        "B2": system.b2,
        "B3": system.b3,
        "B4": system.b4,
        "B5": system.b5,
        "B7": system.b7,
        "B9": system.b9,
        "B10": system.b10,
    }
    if not url:
        named["B6"] = system.b6
    return named
