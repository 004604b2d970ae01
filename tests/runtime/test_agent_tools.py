"""An agent as a tool of another one: a task in a session of its own, by the rules of `rlm`."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import holdfast
from holdfast.core.errors import InvalidSettings
from holdfast.core.messages import assistant
from holdfast.models.port import ModelRequest
from holdfast.stores.memory.store import MemorySessionStore
from holdfast.stores.verify import verify

from .conftest import Lab, cell
from .test_children_kill import cut_off, tree_sums
from .test_recovery import model_of
from .test_tools_harness import results, wish


def search(query: str) -> str:
    """Search."""
    return f"found {query}"


def lead(*tools: Any, **options: Any) -> holdfast.Agent:
    return holdfast.Agent("lead", tools=list(tools), harness="tools", **options)


def helper(**options: Any) -> holdfast.Agent:
    return holdfast.Agent("helper", **({"harness": "tools", "tools": [search]} | options))


def by_text(scripts: dict[str, list[Any]]) -> Any:
    """Return a responder that serves text or tool calls by a session's first message."""

    def respond(request: ModelRequest) -> Any:
        for start, steps in scripts.items():
            if request.first_user_text.startswith(start):
                step = steps[request.ordinal]
                return step if isinstance(step, str) else assistant(*step)
        raise AssertionError(f"no script for {request.first_user_text!r}")

    return respond


TWO: dict[str, list[Any]] = {
    "root": [(wish("helper", 1, task="left"), wish("helper", 2, task="right")), "all told"],
    "left": [(wish("search", query="tar"),), "L"],
    "right": ["R"],
}


async def test_a_call_is_answered_by_a_child_session_and_its_value_is_the_result(lab: Lab) -> None:
    runtime = await lab.open(by_text(TWO), agents=[lead(helper())])
    session = await runtime.start()
    result = await session.send("root")
    assert isinstance(result, holdfast.Final), result
    told = [request for request in lab.requests if request.first_user_text == "root"][-1]
    assert results(told) == [("call_1", "ok", "L"), ("call_2", "ok", "R")]
    calls = await lab.facts(session.id, "call.requested")
    assert [(call.kind, call.index, call.provider_id) for call in calls] == [
        ("child", 0, "call_1"),
        ("child", 1, "call_2"),
    ]
    for call in calls:
        below = await runtime.state(call.child)
        assert below.parent == {"session": session.id, "call": call.call_id}
        assert (below.agent, below.depth, below.kind) == ("helper", 1, "child")
    edges = await lab.facts(session.id, "lineage.added")
    assert {(edge.type, edge.call_id) for edge in edges} == {
        ("invocation", call.call_id) for call in calls
    }
    await tree_sums(lab)
    for info in (await runtime.sessions()).sessions:
        assert (await verify(lab.store, info.id)).ok


async def test_what_the_model_is_told_of_an_agent_is_a_tool_that_takes_a_task(lab: Lab) -> None:
    tool = helper().as_tool("research", "Finds things out.", output="text", budget={"calls": 3})
    runtime = await lab.open(by_text({"root": ["fine"]}), agents=[lead(tool)])
    await (await runtime.start()).send("root")
    (spec,) = lab.requests[0].tools
    assert (spec.name, spec.description) == ("research", "Finds things out.")
    assert spec.parameters["required"] == ["task"]
    assert set(spec.parameters["properties"]) == {"task", "inputs"}


async def test_calls_share_the_budget_and_give_back_what_they_leave(lab: Lab) -> None:
    runtime = await lab.open(by_text(TWO), agents=[lead(helper())])
    session = await runtime.start(max_calls=11)
    assert (await session.send("root")).value == "all told"
    calls = await lab.facts(session.id, "call.requested")
    assert [call.grant["calls"] for call in calls] == [5, 5]
    state = await runtime.state(session.id)
    assert (state.total.calls, state.reserved) == (5, {})


async def test_a_call_that_the_budget_or_the_depth_forbids_is_a_result(lab: Lab) -> None:
    scripts = {"root": TWO["root"], "left": ["L"], "right": ["R"]}
    runtime = await lab.open(by_text(scripts), agents=[lead(helper())])
    session = await runtime.start(max_calls=2)
    assert (await session.send("root")).value == "all told"
    told = [text for _, outcome, text in results(lab.requests[-1]) if outcome == "error"]
    assert all("BudgetExceeded: max_calls" in text for text in told)
    assert len(told) == 2
    flat = await runtime.start(max_depth=0)
    assert (await flat.send("root")).value == "all told"
    assert "max_depth" in results(lab.requests[-1])[0][2]
    assert {info.kind for info in (await runtime.sessions()).sessions} == {"root"}


async def test_a_child_that_fails_is_a_result_that_the_model_can_act_on(lab: Lab) -> None:
    scripts = {"root": TWO["root"], "left": [(wish("search", query="x"),)] * 9, "right": ["R"]}
    runtime = await lab.open(by_text(scripts), agents=[lead(helper())])
    session = await runtime.start(max_steps=5)
    assert (await session.send("root")).value == "all told"
    (first, second) = results(lab.requests[-1])
    assert first[2].startswith("error: ChildFailed: budget_exceeded: max_steps")
    assert second == ("call_2", "ok", "R")


async def test_a_child_that_waits_for_a_person_suspends_its_parent_and_its_answer_goes_up(
    lab: Lab,
) -> None:
    @holdfast.tool(executor="human")
    def decide(question: str) -> str:
        """Ask the person in charge."""
        raise AssertionError

    scripts = {
        "root": [(wish("helper", 1, task="left"),), "told"],
        "left": [(wish("decide", question="may I?"),), "decided"],
    }
    agents = [lead(helper(tools=[decide]))]
    runtime = await lab.open(by_text(scripts), agents=agents)
    session = await runtime.start()
    assert isinstance(await session.send("root"), holdfast.Suspended)
    await runtime.close()
    again = await lab.open(by_text(scripts), agents=agents)
    (wait,) = [one for one in (await again.pending()).waits if one.kind == "question"]
    assert wait.session != session.id
    await again.answer(wait.session, wait.call_id, "yes")
    await again.settled()
    (put,) = await lab.facts(session.id, "turn.put")
    assert (put.status, put.final.value()) == ("final", "told")
    assert results(lab.requests[-1]) == [("call_1", "ok", "decided")]


async def test_children_run_beside_the_tools_of_the_same_reply(lab: Lab) -> None:
    met = asyncio.Event()

    async def wait_for_it() -> str:
        """Wait until the child has been asked."""
        await met.wait()
        return "met"

    async def respond(request: ModelRequest) -> Any:
        if request.first_user_text == "left":
            met.set()
            return "L"
        if request.ordinal:
            return "done"
        return assistant(wish("wait_for_it", 1), wish("helper", 2, task="left"))

    runtime = await lab.open(respond, agents=[lead(helper(), wait_for_it)])
    result = await asyncio.wait_for((await runtime.start()).send("root"), 20)
    assert result.value == "done"
    assert [text for *_, text in results(lab.requests[-1])] == ["met", "L"]


async def test_a_parent_that_is_stopped_stops_its_children(lab: Lab) -> None:
    asked = asyncio.Event()

    async def respond(request: ModelRequest) -> Any:
        if request.first_user_text == "root":
            return assistant(wish("helper", 1, task="never"))
        asked.set()
        await asyncio.Event().wait()
        raise AssertionError

    runtime = await lab.open(respond, agents=[lead(helper())])
    session = await runtime.start()
    working = asyncio.ensure_future(session.send("root"))
    await asked.wait()
    await session.stop()
    assert isinstance(await working, holdfast.Stopped)
    await runtime.settled()
    assert {info.status for info in (await runtime.sessions()).sessions} == {"stopped"}


async def test_the_agents_of_an_agent_hand_their_tools_down_and_nothing_else(lab: Lab) -> None:
    def own() -> str:
        """Belongs to the lead."""
        return "own"

    scripts = {
        "root": [(wish("helper", 1, task="left"),), "done"],
        "left": [(wish("search", 1, query="tar"), wish("own", 2)), "L"],
    }
    runtime = await lab.open(by_text(scripts), agents=[lead(helper(), own)])
    assert (await (await runtime.start()).send("root")).value == "done"
    below = [request for request in lab.requests if request.first_user_text == "left"]
    assert [tool.name for tool in below[0].tools] == ["search"]
    (searched, refused) = results(below[-1])
    assert searched[2] == "found tar"
    assert "there is no tool 'own'" in refused[2]


async def test_code_calls_an_agent_by_name_and_gets_what_rlm_returns(lab: Lab) -> None:
    scripts = {
        "root": [cell("found = helper('left', inputs={'n': 3})\nFINAL(found)")],
        "left": ["L"],
    }
    agents = [holdfast.Agent("lead", tools=[helper()])]
    runtime = await lab.open(by_text(scripts), agents=agents)
    result = await (await runtime.start()).send("root")
    assert isinstance(result, holdfast.Final), result
    assert (result.value["value"], result.value["status"]) == ("L", "final")
    assert (await runtime.state(result.value["session"])).agent == "helper"


def test_what_cannot_be_an_agent_tool_is_refused_where_it_is_written() -> None:
    with pytest.raises(InvalidSettings, match="euros"):
        helper().as_tool(budget={"euros": 1})
    with pytest.raises(InvalidSettings, match="twice"):
        holdfast.Agent("two", tools=[helper(), helper()])


@pytest.mark.parametrize("start", range(3))
async def test_a_tree_of_agents_cut_off_at_any_append_is_finished_by_resuming_its_root(
    start: int,
) -> None:
    agents, cuts = [lead(helper())], 0
    for after in range(start, 40, 3):
        lab = Lab(None, MemorySessionStore())  # type: ignore[arg-type]
        if not await cut_off(lab, by_text(TWO), after, agents=agents):
            break
        cuts += 1
        async with await holdfast.open(
            MemorySessionStore(lab.store.database),  # type: ignore[attr-defined]
            model=model_of(lab, by_text(TWO)),
            agents=agents,
        ) as runtime:
            result = await runtime.resume("root") or await runtime.send("root", "root")
            assert isinstance(result, holdfast.Final), result
            assert result.value == "all told"
        assert len((await lab.store.list_sessions()).sessions) == 3
        await tree_sums(lab)
        for info in (await lab.store.list_sessions()).sessions:
            assert (await verify(lab.store, info.id)).ok
    assert cuts >= 4
