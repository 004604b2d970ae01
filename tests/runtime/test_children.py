"""Child sessions from code: tasks given out, envelopes returned, limits kept, kills survived."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

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
                "bad": [cell("x = 1")] * 30,
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
    runtime = await lab.open(by_task({"root": [cell(code)], "bad": [cell("x = 1")] * 9}))
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


async def test_a_budget_is_shared_out_and_what_is_left_comes_back(lab: Lab) -> None:
    code = "before = budget()\nfound = map_rlm(['a', 'b'])\nFINAL([before, found, budget()])"
    child = cell("FINAL(budget())")
    runtime = await lab.open(by_task({"root": [cell(code)], "a": [child], "b": [child]}))
    session = await runtime.start(max_calls=11, max_tokens=400_000)
    result = await session.send("root")
    assert isinstance(result, holdfast.Final), result
    before, found, after = result.value
    assert (before["calls"]["limit"], before["calls"]["used"], before["calls"]["left"]) == (
        11,
        1,
        10,
    )
    assert before["usd"]["limit"] is None
    for one in found:
        assert one["value"]["calls"] == {
            "limit": 5,
            "used": 1,
            "unknown": 0,
            "reserved": 0,
            "left": 4,
        }
    assert (after["calls"]["used"], after["calls"]["reserved"]) == (3, 0)
    (first, _) = (await runtime.sessions(SessionFilter(parent=session.id))).sessions
    assert (await runtime.state(first.id)).grant["calls"] == 5


async def test_a_child_gets_what_the_call_says_and_never_more_than_is_free(lab: Lab) -> None:
    code = """
def told(**budget):
    try:
        return rlm('small', budget=budget)['value']
    except CallError as error:
        return f'{type(error).__name__}: {error}'
FINAL([told(calls=2), told(calls=50)])
"""
    small = cell("FINAL(budget()['calls']['limit'])")
    runtime = await lab.open(by_task({"root": [cell(code)], "small": [small]}))
    result = await (await runtime.start(max_calls=10)).send("root")
    assert isinstance(result, holdfast.Final), result
    granted, refused = result.value
    assert granted == 2
    assert refused.startswith("BudgetExceeded: max_calls")


async def test_a_model_that_recurses_for_ever_is_stopped_by_the_budget(lab: Lab) -> None:
    def respond(request: ModelRequest) -> str:
        return cell("try:\n    rlm('again')\nexcept Exception as error:\n    print(error)")

    runtime = await lab.open(respond)
    session = await runtime.start(max_depth=6, max_calls=30)
    result = await session.send("again")
    assert isinstance(result, holdfast.BudgetExceeded), result
    assert result.limit == "max_calls"
    assert len(await lab.facts(session.id, "budget.exceeded")) == 1
    states = [await runtime.state(info.id) for info in (await runtime.sessions()).sessions]
    assert sum(state.spend.calls for state in states) <= 30
    assert max(state.depth for state in states) <= 6
    assert all(state.reserved == {} and state.turn is None for state in states)


async def test_a_model_that_maps_over_ten_thousand_is_told_the_limit_and_stopped(lab: Lab) -> None:
    runtime = await lab.open(lambda _: cell("map_rlm(['x'] * 10_000)"))
    session = await runtime.start(max_steps=3)
    result = await session.send("wide")
    assert isinstance(result, holdfast.BudgetExceeded), result
    assert "at most 100" in lab.requests[-1].messages[-2].text
    assert len((await runtime.sessions()).sessions) == 1


async def test_a_child_goes_on_from_the_head_of_another_session_and_leaves_it_untouched(
    lab: Lab,
) -> None:
    scripts = {
        "count": [cell("n = 41\nFINAL('counted')"), cell("n += 1\nFINAL([n, 'more'])")],
        "root": [cell("first = rlm('count')\nFINAL([first, attach_rlm(first, 'one more')])")],
    }

    def respond(request: ModelRequest) -> str:
        if request.messages[-1].text == "one more":
            return scripts["count"][1]
        return scripts[request.first_user_text][0]

    runtime = await lab.open(respond)
    session = await runtime.start()
    result = await session.send("root")
    assert isinstance(result, holdfast.Final), result
    first, second = result.value
    assert (first["value"], second["value"]) == ("counted", [42, "more"])
    source = await runtime.state(first["session"])
    assert source.head == first["head"]
    assert source.counters["turn"] == 1
    edges = await lab.facts(second["session"], "lineage.added")
    assert [(edge.type, edge.from_session, edge.from_head) for edge in edges] == [
        ("derivation", source.session, source.head)
    ]
    for info in (await runtime.sessions()).sessions:
        assert (await verify(lab.store, info.id)).ok


async def test_only_sessions_of_the_tree_or_handed_in_can_be_attached_to(lab: Lab) -> None:
    code = """
def told(source):
    try:
        return attach_rlm(source, 'go on')['value']
    except CallError as error:
        return type(error).__name__
FINAL([told('nobody'), told(hidden[0] + hidden[1]), told(empty), told(given)])
"""

    def respond(request: ModelRequest) -> str:
        if request.messages[-1].text == "go on":
            return cell("FINAL(secret)")
        return cell(code) if "root" in request.first_user_text else cell("secret = 7\nFINAL(1)")

    runtime = await lab.open(respond)
    other, given, empty = [await runtime.start() for _ in range(3)]
    for one in (other, given):
        await one.send("x")
    before = await lab.store.read_events(given.id)
    session = await runtime.start()
    inputs = {"hidden": [other.id[:-1], other.id[-1]], "given": given.id, "empty": empty.id}
    result = await session.send("root", inputs=inputs)
    assert isinstance(result, holdfast.Final), result
    assert result.value == ["SessionNotFound", "SessionNotFound", "HeadNotFound", 7]
    assert await lab.store.read_events(given.id) == before
    assert len((await runtime.sessions()).sessions) == 5


async def test_a_cell_that_read_a_file_sees_it_again_when_its_children_were_slow(
    lab: Lab, tmp_path: Path
) -> None:
    note = tmp_path / "note.txt"
    note.write_text("as it was")
    code = (
        f"said = open({str(note)!r}).read()\nFINAL([said, rlm('slow')['value'], rlm('b')['value']])"
    )

    async def respond(request: ModelRequest) -> str:
        if request.first_user_text == "root":
            return cell(code)
        if request.first_user_text == "slow":
            await asyncio.sleep(1)  # longer than a cell that waits is kept in place
            note.write_text("as it is now")
        return cell("FINAL(1)")

    runtime = await lab.open(respond)
    result = await (await runtime.start(work_area=str(tmp_path))).send("root")
    assert isinstance(result, holdfast.Final), result
    assert result.value == ["as it was", 1, 1]


async def test_a_value_that_is_not_what_was_asked_for_is_a_failed_child(lab: Lab) -> None:
    code = """
schema = {'type': 'object', 'required': ['n'], 'properties': {'n': {'type': 'integer'}}}
FINAL([map_rlm(['good', 'bad'], output=schema), map_rlm(['good'], output='text')])
"""

    def respond(request: ModelRequest) -> str:
        if request.first_user_text == "root":
            return cell(code)
        good = request.first_user_text.startswith("good")
        return cell("FINAL({'n': 1})" if good else "FINAL({'n': 'one'})")

    runtime = await lab.open(respond)
    result = await (await runtime.start()).send("root")
    assert isinstance(result, holdfast.Final), result
    (good, bad), (text,) = result.value
    assert good["value"] == {"n": 1}
    assert "JSON schema" in next(r for r in lab.requests if "good" in r.prompt).first_user_text
    assert bad["error"].startswith("invalid_output: ")
    assert text["error"].startswith("invalid_output: the final value")
    asked = [r for r in lab.requests if r.first_user_text.startswith("bad")]
    assert len(asked) == 2, "a child is asked once to repair its value"


async def test_a_child_repairs_its_value_once_and_may_work_by_another_harness(lab: Lab) -> None:
    code = (
        "FINAL([rlm('number', output={'type': 'integer'})['value'],"
        " rlm('say', harness='tools')['value']])"
    )

    def respond(request: ModelRequest) -> str:
        if request.first_user_text == "root":
            return cell(code)
        if request.first_user_text == "say":
            return "said in prose"
        return cell("FINAL('7')") if request.ordinal == 0 else cell("FINAL(7)")

    runtime = await lab.open(respond)
    result = await (await runtime.start()).send("root")
    assert isinstance(result, holdfast.Final), result
    assert result.value == [7, "said in prose"]


async def test_a_deep_and_wide_tree_ends(lab: Lab) -> None:
    await tree_ends(lab, depth=5, width=12)


@pytest.mark.soak
async def test_a_very_deep_and_very_wide_tree_ends(lab: Lab) -> None:
    await tree_ends(lab, depth=20, width=500)


async def tree_ends(lab: Lab, *, depth: int, width: int) -> None:
    def respond(request: ModelRequest) -> str:
        task = request.first_user_text
        if task == "root":
            return cell(f"FINAL([rlm('down 1')['value'], map_rlm(['leaf'] * {width})])")
        level = int(task.split()[1]) if task.startswith("down") else depth
        if level < depth:
            return cell(f"FINAL(rlm('down {level + 1}')['value'] + 1)")
        return cell("FINAL(1)")

    runtime = await lab.open(respond)
    result = await (await runtime.start(max_depth=depth, max_fanout=width)).send("root")
    assert isinstance(result, holdfast.Final), result
    deep, wide = result.value
    assert deep == depth
    assert [one["value"] for one in wide] == [1] * width
