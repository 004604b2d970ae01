"""Child sessions from code: tasks given out, envelopes returned, limits kept, kills survived."""

from __future__ import annotations

import asyncio
from typing import Any

import holdfast
from holdfast.models.port import ModelRequest
from holdfast.stores.port import SessionFilter
from holdfast.stores.verify import verify

from .conftest import Lab, cell


def by_task(scripts: dict[str, list[str]]) -> Any:
    """Return a responder that serves steps by the beginning of a session's first message."""

    def respond(request: ModelRequest) -> str:
        if request.purpose == "leaf":
            return f"<{request.prompt}>"
        for start, steps in scripts.items():
            if request.first_user_text.startswith(start):
                return steps[request.ordinal]
        raise AssertionError(f"no script for {request.first_user_text!r}")

    return respond


async def test_a_task_is_worked_by_a_session_of_its_own_and_its_value_returned(lab: Lab) -> None:
    runtime = await lab.open(
        by_task(
            {
                "root": [cell("found = rlm('double', inputs={'n': 21})"), cell("FINAL(found)")],
                "double": [cell("m = n * 2"), cell("FINAL(m)")],
            }
        )
    )
    session = await runtime.start()
    result = await session.send("root")
    assert isinstance(result, holdfast.Final), result
    envelope = result.value
    assert (envelope["value"], envelope["status"], envelope["steps"]) == (42, "final", 2)
    assert envelope["task"] == "double"
    child = await runtime.state(envelope["session"])
    assert child.parent is not None
    assert (child.parent["session"], child.depth, child.kind) == (session.id, 1, "child")
    assert child.head == envelope["head"]
    edges = await lab.facts(session.id, "lineage.added")
    assert [(edge.type, edge.to_session, edge.to_head) for edge in edges] == [
        ("invocation", child.session, child.head)
    ]
    assert (await runtime.state(session.id)).delegated.calls == 2
    for one in (session.id, child.session):
        assert (await verify(lab.store, one)).ok


async def test_many_tasks_keep_their_order_and_a_failed_one_is_a_sentinel(lab: Lab) -> None:
    runtime = await lab.open(
        by_task(
            {
                "root": [
                    cell("found = map_rlm(['a', 'bad', 'c'])\nFINAL(found)"),
                ],
                "a": [cell("FINAL('A')")],
                "bad": ["prose"] * 30,
                "c": [cell("FINAL(lm('x'))")],
            }
        )
    )
    result = await (await runtime.start(max_steps=3)).send("root")
    assert isinstance(result, holdfast.Final), result
    first, second, third = result.value
    assert (first["value"], third["value"]) == ("A", "<x>")
    assert (second["failed"], second["index"], second["status"]) == (True, 1, "budget_exceeded")


async def test_a_child_that_fails_raises_an_error_that_code_can_catch(lab: Lab) -> None:
    code = (
        "try:\n    rlm('bad')\nexcept CallError as error:\n"
        "    FINAL([type(error).__name__, str(error)])"
    )
    runtime = await lab.open(by_task({"root": [cell(code)], "bad": ["prose"] * 9}))
    result = await (await runtime.start(max_steps=2)).send("root")
    assert isinstance(result, holdfast.Final), result
    name, message = result.value
    assert name == "ChildFailed"
    assert message.startswith("budget_exceeded: max_steps")


async def test_a_fan_out_that_is_too_wide_and_too_deep_a_tree_are_errors_that_name_the_limit(
    lab: Lab,
) -> None:
    wide = (
        "try:\n    map_rlm(['x'] * 6)\nexcept ValueError as error:\n    wide = str(error)\n"
        "FINAL([wide, rlm('down')['value']])"
    )
    down = "try:\n    rlm('down')\nexcept ValueError as error:\n    FINAL(str(error))"
    below = "FINAL(rlm('deepest')['value'])"
    runtime = await lab.open(
        by_task({"root": [cell(wide)], "down": [cell(below)], "deepest": [cell(down)]})
    )
    result = await (await runtime.start(max_fanout=5, max_depth=2)).send("root")
    assert isinstance(result, holdfast.Final), result
    wide_error, deep_error = result.value
    assert "at most 5" in wide_error
    assert "max_fanout" in wide_error
    assert "2 deep (max_depth)" in deep_error
    assert len((await runtime.sessions()).sessions) == 3


async def test_wrong_arguments_are_errors_of_the_cell_and_create_nothing(lab: Lab) -> None:
    code = """
def told(*args, **kwargs):
    try:
        rlm(*args, **kwargs)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
FINAL([told(), told(7), told('x', inputs=3), told('x', inputs={'a b': 1}), told('x', agent='no'),
    told('x', budget={'euros': 1}), told('x', capability={'nothing': 1}), told('x', output=3),
    map_rlm([])])
"""
    runtime = await lab.open(by_task({"root": [cell(code)]}))
    result = await (await runtime.start()).send("root")
    assert isinstance(result, holdfast.Final), result
    nothing, number, inputs, name, agent, budget, gate, output, empty = result.value
    assert nothing.startswith("TypeError: rlm()")
    assert number == "TypeError: rlm() takes its task as a string"
    assert "inputs as a dict" in inputs
    assert "'a b' cannot be a variable" in name
    assert "agent 'no' is not registered" in agent
    assert "'euros'" in budget
    assert "'nothing'" in gate
    assert "output" in output
    assert empty == []
    assert len((await runtime.sessions()).sessions) == 1


async def test_a_child_gets_no_tool_and_no_gate_that_its_parent_lacks(lab: Lab) -> None:
    def secret() -> str:
        """Tell."""
        return "told"

    def open_one() -> str:
        """Tell too."""
        return "open"

    scripts = {
        "root": [cell("FINAL([open_one(), rlm('look', agent='other')['value']])")],
        "look": [
            cell(
                "try:\n    found = secret()\nexcept NameError:\n    found = 'no secret'\n"
                "FINAL([found, open_one()])"
            )
        ],
    }
    agents = [
        holdfast.Agent(tools=[open_one]),
        holdfast.Agent(name="other", tools=[secret, open_one]),
    ]
    runtime = await lab.open(by_task(scripts), agents=agents)
    result = await (await runtime.start()).send("root")
    assert isinstance(result, holdfast.Final), result
    assert result.value == ["open", ["no secret", "open"]]


async def test_two_threads_that_wait_for_children_are_answered_in_reverse_order(lab: Lab) -> None:
    answered = asyncio.Event()
    code = """
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor() as pool:
    found = list(pool.map(lambda task: rlm(task)['value'] + lm(task), ['slow', 'fast']))
FINAL(found)
"""

    async def respond(request: ModelRequest) -> str:
        if request.purpose == "leaf":
            if request.prompt == "fast":
                answered.set()
            return f"<{request.prompt}>"
        if request.first_user_text == "slow":
            await answered.wait()
            await asyncio.sleep(1.5)  # longer than a cell that waits is kept in place
            return cell("FINAL('S')")
        return cell(code) if request.first_user_text == "root" else cell("FINAL('F')")

    runtime = await lab.open(respond)
    session = await runtime.start()
    result = await session.send("root")
    assert isinstance(result, holdfast.Final), result
    assert result.value == ["S<slow>", "F<fast>"]
    assert [one.request.inline for one in await lab.facts(session.id, "leaf.called")] == [True] * 2


async def test_a_parent_that_is_stopped_stops_its_children(lab: Lab) -> None:
    asked = asyncio.Event()

    async def respond(request: ModelRequest) -> str:
        if request.first_user_text == "root":
            return cell("map_rlm(['never', 'never'])")
        asked.set()
        await asyncio.Event().wait()
        raise AssertionError

    runtime = await lab.open(respond)
    session = await runtime.start()
    working = asyncio.ensure_future(session.send("root"))
    await asked.wait()
    await session.stop()
    assert isinstance(await working, holdfast.Stopped)
    await runtime.settled()
    sessions = (await runtime.sessions()).sessions
    assert len(sessions) == 3
    assert {info.status for info in sessions} == {"stopped"}


async def test_a_parent_whose_time_is_up_stops_its_children_and_still_counts_them(lab: Lab) -> None:
    code = """
import threading, time
threading.Thread(target=rlm, args=('never',)).start()
time.sleep(60)
"""

    async def respond(request: ModelRequest) -> str:
        if request.first_user_text == "root":
            return cell(code)
        await asyncio.Event().wait()
        raise AssertionError

    runtime = await lab.open(respond)
    session = await runtime.start(turn_seconds=4)
    assert isinstance(await session.send("root"), holdfast.TimedOut)
    await runtime.settled()
    state = await runtime.state(session.id)
    assert (state.status, state.reserved, state.calls) == ("idle", {}, {})
    (child,) = (await runtime.sessions(SessionFilter(parent=session.id))).sessions
    below = await runtime.state(child.id)
    assert below.turn is None
    assert state.delegated.calls == below.total.calls == 1
    assert state.delegated.held_tokens == below.total.held_tokens > 0
