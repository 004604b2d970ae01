"""LangGraph's own conformance suite, and what a checkpointer of ours must do beyond it."""

from __future__ import annotations

import asyncio
import copy
import operator
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Command, interrupt

import holdfast
from holdfast.adapters.langgraph import HoldfastSaver
from holdfast.errors import RecordConflict


@pytest.mark.parametrize("kind", ["memory", "sqlite", "files"])
async def test_the_conformance_suite_passes_whole(kind: str, tmp_path: Path) -> None:
    count = 0

    @checkpointer_test(name="HoldfastSaver")
    async def saver():
        nonlocal count
        count += 1
        place = "memory:" if kind == "memory" else f"{kind}:{tmp_path / str(count)}"
        async with HoldfastSaver.open(place) as opened:
            yield opened

    report = await validate(saver)
    failures = {name: r.failures for name, r in report.results.items() if r.failures}
    assert failures == {}
    assert report.passed_all_base()
    assert all(result.detected for result in report.results.values())
    assert sum(result.tests_passed for result in report.results.values()) == 81


def chat(saver: HoldfastSaver) -> Any:
    def reply(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage(f"reply {len(state['messages'])}")]}

    graph = StateGraph(MessagesState)
    graph.add_node("reply", reply)
    graph.add_edge(START, "reply")
    graph.add_edge("reply", END)
    return graph.compile(checkpointer=saver)


def at(thread: str) -> Any:
    return {"configurable": {"thread_id": thread}}


def said(state: Any) -> list[str]:
    return [message.content for message in state.values["messages"]]


def test_a_thread_goes_on_in_another_process_of_either_kind(tmp_path: Path) -> None:
    with HoldfastSaver.open(tmp_path) as saver:
        chat(saver).invoke({"messages": [HumanMessage("one")]}, at("t"))

    async def later() -> None:
        async with HoldfastSaver.open(tmp_path) as saver:
            await chat(saver).ainvoke({"messages": [HumanMessage("two")]}, at("t"))

    asyncio.run(later())
    with HoldfastSaver.open(tmp_path) as saver:
        assert said(chat(saver).get_state(at("t"))) == ["one", "reply 1", "two", "reply 3"]


def test_what_was_said_is_stored_once_and_not_its_square(tmp_path: Path) -> None:
    sizes = []
    with HoldfastSaver.open(tmp_path) as saver:
        graph = chat(saver)
        for number in range(120):
            graph.invoke({"messages": [HumanMessage("x" * 500 + str(number))]}, at("t"))
            if number in (39, 79, 119):
                sizes.append(sum(f.stat().st_size for f in tmp_path.rglob("*") if f.is_file()))
    assert sizes[2] - sizes[1] < 1.6 * (sizes[1] - sizes[0])
    with HoldfastSaver.open(tmp_path) as saver:  # cold: the list is put together from its parts
        messages = said(chat(saver).get_state(at("t")))
        assert len(messages) == 240
        assert messages[238] == "x" * 500 + "119"


async def test_a_thread_is_a_session_that_holds_what_was_said_in_plain_words(
    tmp_path: Path,
) -> None:
    async with HoldfastSaver.open(tmp_path) as saver:
        await chat(saver).ainvoke({"messages": [HumanMessage("what is the tide?")]}, at("t"))
    async with holdfast.open(tmp_path) as runtime:
        assert (await holdfast.verify(runtime.store, "langgraph.t")).ok
        records = await runtime.records("langgraph.t", "langgraph.channel", key="messages")
        assert records[-1].value["items"][0]["message"]["data"]["content"] == "reply 1"


@pytest.mark.parametrize("attempt", range(30))
async def test_of_two_runs_from_one_checkpoint_one_is_told(attempt: int, tmp_path: Path) -> None:
    arrived = asyncio.Barrier(2)

    async def reply(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage("reply")]}

    graph = StateGraph(MessagesState)
    graph.add_node("reply", reply)
    graph.add_edge(START, "reply")

    async def turn(saver: HoldfastSaver, text: str) -> Any:
        compiled = graph.compile(checkpointer=Meeting(saver, arrived))
        return await compiled.ainvoke({"messages": [HumanMessage(text)]}, at("t"))

    async with HoldfastSaver.open(tmp_path) as one, HoldfastSaver.open(tmp_path) as two:
        done = await asyncio.gather(
            turn(one, "from one"), turn(two, "from two"), return_exceptions=True
        )
        conflicts = [result for result in done if isinstance(result, RecordConflict)]
        assert len(conflicts) == 1, done
        state = await graph.compile(checkpointer=one).aget_state(at("t"))
        assert len(said(state)) == 2


def Meeting(saver: HoldfastSaver, arrived: asyncio.Barrier) -> HoldfastSaver:
    """Return the saver, but both runs have read the thread before one of them goes on."""
    met = copy.copy(saver)
    first = met.aget_tuple

    async def get(config: Any) -> Any:
        found = await first(config)
        await arrived.wait()
        return found

    met.aget_tuple = get  # type: ignore[method-assign]
    return met


async def test_a_checkpoint_that_is_chosen_on_purpose_is_forked_without_a_conflict() -> None:
    async with HoldfastSaver.open("memory:") as saver:
        graph = chat(saver)
        await graph.ainvoke({"messages": [HumanMessage("one")]}, at("t"))
        first = (await graph.aget_state(at("t"))).config
        await graph.ainvoke({"messages": [HumanMessage("two")]}, at("t"))
        await graph.ainvoke({"messages": [HumanMessage("other")]}, first)
        assert said(await graph.aget_state(at("t"))) == ["one", "reply 1", "other", "reply 3"]
        assert said(await graph.aget_state(first)) == ["one", "reply 1"]


class Asked(TypedDict):
    log: Annotated[list[str], operator.add]


def asking(saver: HoldfastSaver, ran: list[str]) -> Any:
    def before(state: Asked) -> dict[str, Any]:
        ran.append("before")
        return {"log": ["before"]}

    def ask(state: Asked) -> dict[str, Any]:
        return {"log": [interrupt("may I?")]}

    graph = StateGraph(Asked)
    graph.add_node("before", before)
    graph.add_node("ask", ask)
    graph.add_edge(START, "before")
    graph.add_edge("before", "ask")
    return graph.compile(checkpointer=saver)


def test_an_interrupt_is_answered_after_a_restart(tmp_path: Path) -> None:
    ran: list[str] = []
    with HoldfastSaver.open(tmp_path) as saver:
        asking(saver, ran).invoke({"log": []}, at("t"))
    with HoldfastSaver.open(tmp_path) as saver:
        done = asking(saver, ran).invoke(Command(resume="yes"), at("t"))
    assert done["log"] == ["before", "yes"]
    assert ran == ["before"]


class Point:
    def __init__(self, x: int) -> None:
        self.x = x

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Point) and other.x == self.x


async def test_types_that_are_not_allowed_come_back_as_plain_data(tmp_path: Path) -> None:
    from pydantic import BaseModel

    class Held(BaseModel):
        secret: int

    globals()["Held"] = Held
    Held.__qualname__ = "Held"

    def node(state: Any) -> dict[str, Any]:
        return {"held": Held(secret=1)}

    class State(TypedDict):
        held: Any

    graph = StateGraph(State)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    async with HoldfastSaver.open(tmp_path) as saver:
        await graph.compile(checkpointer=saver).ainvoke({"held": None}, at("t"))
    async with HoldfastSaver.open(tmp_path) as saver:
        found = await saver.aget_tuple(at("t"))
        assert found is not None
        assert found.checkpoint["channel_values"]["held"] == {"secret": 1}


def test_a_deleted_thread_begins_anew_and_nothing_of_it_is_left(tmp_path: Path) -> None:
    with HoldfastSaver.open(f"files:{tmp_path}") as saver:
        graph = chat(saver)
        graph.invoke({"messages": [HumanMessage("a secret word")]}, at("t"))
        saver.delete_thread("t")
        assert said(graph.get_state(at("t"))) == [] if graph.get_state(at("t")).values else True
        graph.invoke({"messages": [HumanMessage("hello")]}, at("t"))
        assert said(graph.get_state(at("t"))) == ["hello", "reply 1"]
        saver.prune(["t"])
        assert said(graph.get_state(at("t"))) == ["hello", "reply 1"]
        assert len(list(saver.list(at("t")))) == 1
    left = [file for file in tmp_path.rglob("*.jsonl") if b"a secret word" in file.read_bytes()]
    assert left == []


async def test_a_thread_of_any_name_and_a_saver_that_is_not_open() -> None:
    async with HoldfastSaver.open("memory:") as saver:
        for name in ("A Thread/with ünusual ✓ name", "UPPER", "x" * 500):
            await chat(saver).ainvoke({"messages": [HumanMessage(name)]}, at(name))
            assert said(await chat(saver).aget_state(at(name))) == [name, "reply 1"]
        names = {t.config["configurable"]["thread_id"] async for t in saver.alist(None)}
        assert len(names) == 3
    with pytest.raises(holdfast.errors.InvalidInput, match="not open"):
        await saver.aget_tuple(at("x"))


PROGRAM = """
import os, sys
sys.path.insert(0, sys.argv[3])
from test_langgraph_saver import HoldfastSaver, HumanMessage, at, chat
from holdfast.runtime.embedding import Embedding
record_all, left = Embedding.record_all, int(sys.argv[2])
async def dying(self, session, records, **options):
    global left
    left -= any(record.kind == "langgraph.checkpoint" for record in records)
    last = not left
    done = await record_all(self, session, records, **options)
    if last:
        os.kill(os.getpid(), 9)
    return done
Embedding.record_all = dying
with HoldfastSaver.open(sys.argv[1]) as saver:
    chat(saver).invoke({"messages": [HumanMessage("two")]}, at("t"), durability="sync")
"""


@pytest.mark.parametrize("write", [1, 2, 3])
def test_a_process_killed_after_a_checkpoint_leaves_a_thread_that_goes_on(
    write: int, tmp_path: Path
) -> None:
    place = tmp_path / "store"
    with HoldfastSaver.open(place) as saver:
        chat(saver).invoke({"messages": [HumanMessage("one")]}, at("t"))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(place), str(write), os.path.dirname(__file__)],
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    with HoldfastSaver.open(place) as saver:
        graph = chat(saver)
        graph.invoke(None, at("t"))
        assert said(graph.get_state(at("t"))) == ["one", "reply 1", "two", "reply 3"]
