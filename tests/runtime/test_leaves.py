"""Leaf calls: one event each, no session, errors that code can catch, nothing paid twice."""

import asyncio
import threading
from pathlib import Path

import pytest

import holdfast
from holdfast.models.errors import RateLimited, ServerError
from holdfast.models.scripted import ScriptedModel
from holdfast.runtime import leaf_gate
from holdfast.runtime.leaf_gate import LeafGate
from holdfast.runtime.tools import Tool, Toolset

from .conftest import Lab, cell, replies


async def test_each_leaf_is_one_event_with_request_and_reply(lab: Lab) -> None:
    code = "a = lm('one')\nb = map_lm(['two', 'three'], system='short')\nFINAL([a, *b])"
    runtime = await lab.open(replies(cell(code)))
    session = await runtime.start()
    result = await session.send("x")
    assert isinstance(result, holdfast.Final)
    assert result.value == ["<one>", "<two>", "<three>"]
    leaves = [entry.fact for entry in await runtime.leaves(session.id)]
    assert [leaf.function for leaf in leaves] == ["lm", "map_lm", "map_lm"]
    asked = {request.prompt: request.system for request in lab.requests[1:]}
    assert asked == {"one": "", "two": "short", "three": "short"}
    assert await runtime.value(session.id, leaves[0].request) == {"prompt": "one"}
    assert await runtime.value(session.id, leaves[0].reply) == "<one>"
    assert all(leaf.cost_usd == "0" for leaf in leaves)
    sessions = await runtime.sessions()
    assert [info.id for info in sessions.sessions] == [session.id]


async def test_a_failed_lm_raises_what_code_can_catch(lab: Lab) -> None:
    code = "try:\n    lm('x')\nexcept CallError as error:\n    FINAL(str(error))"

    def leaf(prompt: str) -> str:
        raise RateLimited("slow down")

    runtime = await lab.open(replies(cell(code), leaf=leaf))
    session = await runtime.start()
    result = await session.send("x")
    assert isinstance(result, holdfast.Final)
    assert "rate_limited: slow down" in result.value
    (leaf_fact,) = await lab.facts(session.id, "leaf.called")
    assert leaf_fact.status == "error"
    assert leaf_fact.cost_usd == "0"  # turned away before it cost anything


async def test_map_lm_keeps_order_and_gives_sentinels(lab: Lab) -> None:
    def leaf(prompt: str) -> str:
        if prompt == "bad":
            raise ServerError("broken")
        return prompt.upper()

    runtime = await lab.open(replies(cell("FINAL(map_lm(['a', 'bad', 'c']))"), leaf=leaf))
    session = await runtime.start()
    result = await session.send("x")
    assert isinstance(result, holdfast.Final)
    first, second, third = result.value
    assert (first, third) == ("A", "C")
    assert second["failed"] is True
    assert second["index"] == 1
    assert "broken" in second["error"]
    assert result.unknown_calls == 1  # what the broken call cost is unknown


async def test_an_over_wide_fan_out_is_an_error_that_names_the_limit(lab: Lab) -> None:
    code = "try:\n    map_lm(['x'] * 5)\nexcept ValueError as error:\n    FINAL(str(error))"
    runtime = await lab.open(replies(cell(code)), max_fanout=4)
    session = await runtime.start()
    result = await session.send("x")
    assert isinstance(result, holdfast.Final)
    assert "at most 4" in result.value
    assert await lab.facts(session.id, "leaf.called") == []


async def test_wrong_arguments_are_a_type_error_in_the_cell(lab: Lab) -> None:
    code = "try:\n    lm(5)\nexcept TypeError as error:\n    FINAL(str(error))"
    runtime = await lab.open(replies(cell(code)))
    session = await runtime.start()
    result = await session.send("x")
    assert "takes a string" in result.value


async def test_leaves_may_use_another_model(lab: Lab) -> None:
    cheap = ScriptedModel(lambda request: "cheap", name="cheap")
    runtime = await lab.open(replies(cell("FINAL(lm('x'))")), leaf_model=cheap)
    session = await runtime.start()
    assert (await session.send("x")).value == "cheap"
    (fact,) = await lab.facts(session.id, "leaf.called")
    assert fact.model == "cheap"
    assert [request.purpose for request in lab.requests] == ["step"]


async def test_the_leaf_gate_is_process_wide(lab: Lab) -> None:
    running, most = 0, 0

    async def leaf_model(request):
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(5):
            await asyncio.sleep(0)
        running -= 1
        return "ok"

    runtime = await lab.open(
        replies(cell("FINAL(len(map_lm(['x'] * 20)))")),
        leaf_model=ScriptedModel(leaf_model, name="leaf"),
        process_leaf_concurrency=3,
    )
    session = await runtime.start(leaf_concurrency=20)
    assert (await session.send("x")).value == 20
    assert most == 3


async def test_the_limit_of_one_session_does_not_throttle_the_process(lab: Lab) -> None:
    running, most, met = 0, 0, asyncio.Event()

    async def respond(request):
        nonlocal running, most
        if request.purpose == "step":
            return cell("FINAL(len(map_lm(['x'] * 6)))")
        running += 1
        most = max(most, running)
        if most == 4:
            met.set()
        await met.wait()
        running -= 1
        return "ok"

    runtime = await lab.open(respond, leaf_concurrency=2)
    sessions = [await runtime.start(process_leaf_concurrency=1) for _ in range(2)]
    results = await asyncio.wait_for(
        asyncio.gather(*(session.send("x") for session in sessions)), 20
    )
    assert [result.value for result in results] == [6, 6]
    assert most == 4


async def test_the_leaf_gate_counts_over_all_runtimes_and_threads(lab: Lab, tmp_path: Path) -> None:
    """The first calls take until each of three runtimes has its six under way or waiting."""
    guard, running, most, met = threading.Lock(), 0, 0, False

    async def respond(request):
        nonlocal running, most, met
        if request.purpose == "step":
            return cell("FINAL(len(map_lm(['x'] * 6)))")
        with guard:
            running += 1
            most = max(most, running)
        while not met:
            met = running + len(leaf_gate._FLIGHT._waiting) == 18
            await asyncio.sleep(0)
        with guard:
            running -= 1
        return "ok"

    def in_a_thread() -> int:
        model = ScriptedModel(respond, name="scripted")
        place = f"sqlite:{tmp_path / 'sync'}"
        with holdfast.open_sync(place, model=model, process_leaf_concurrency=3) as runtime:
            return runtime.send(runtime.start(), "x").value

    runtimes = [await lab.open(respond, process_leaf_concurrency=3) for _ in range(2)]
    sessions = [await runtime.start() for runtime in runtimes]
    here = [session.send("x") for session in sessions]
    other, *results = await asyncio.gather(asyncio.to_thread(in_a_thread), *here)
    assert [other, *(result.value for result in results)] == [6, 6, 6]
    assert most == 3


async def test_a_call_that_is_broken_off_at_the_gate_leaves_it_as_it_was() -> None:
    one, two = LeafGate(1), LeafGate(2)
    async with one:
        waiting = [asyncio.ensure_future(way.__aenter__()) for way in (one, one, two, two)]
        await asyncio.sleep(0)
        assert [task.done() for task in waiting] == [False, False, True, False]
        waiting[0].cancel()
        await asyncio.wait({waiting[0]})
        await two.__aexit__()
        await asyncio.wait({waiting[3]})
        await two.__aexit__()
    await asyncio.sleep(0)
    waiting[1].cancel()  # it was let through meanwhile
    await asyncio.wait({waiting[1]})
    if not waiting[1].cancelled():
        await one.__aexit__()
    async with one:
        pass


@pytest.mark.parametrize("how", ["start", "agent", "before"])
async def test_a_session_keeps_its_own_limit_of_leaf_calls_at_once(lab: Lab, how: str) -> None:
    """A limit that is stored with a session holds wherever it is driven, as the others do."""
    running, most = 0, 0

    async def respond(request):
        nonlocal running, most
        if request.purpose == "step":
            return cell("FINAL(len(map_lm(['x'] * 9)))")
        running += 1
        most = max(most, running)
        for _ in range(5):
            await asyncio.sleep(0)
        running -= 1
        return "ok"

    limit = {"leaf_concurrency": 2}
    agent = holdfast.Agent(settings=limit if how == "agent" else {})
    runtime = await lab.open(respond, agents=[agent], **(limit if how == "before" else {}))
    session = await runtime.start(**(limit if how == "start" else {}))
    if how == "before":
        await runtime.close()
        runtime = await lab.open(respond)
    assert (await runtime.send(session.id, "x")).value == 9
    assert most == 2


async def test_a_locked_down_session_has_no_model_calls(lab: Lab) -> None:
    code = "try:\n    lm('x')\nexcept NameError as error:\n    FINAL(str(error))"
    runtime = await lab.open(replies(cell(code)), profile="locked_down")
    session = await runtime.start()
    result = await session.send("x")
    assert "lm" in result.value
    assert "map_lm" not in lab.requests[0].system


async def test_leaf_ordinals_count_in_order_of_issue(lab: Lab) -> None:
    code = "lm('a')\nmap_lm(['b', 'c'])\nlm('d')\nFINAL(None)"
    runtime = await lab.open(replies(cell(code)))
    session = await runtime.start()
    await session.send("x")
    asked = {r.prompt: r.ordinal for r in lab.requests if r.purpose == "leaf"}
    assert asked == {"a": 0, "b": 1, "c": 2, "d": 3}


async def test_calls_in_flight_when_the_cell_ends_leave_a_trace(lab: Lab) -> None:
    """A paid call is never forgotten: broken off, it stands in the log with unknown cost."""
    code = (
        "import threading, desk\n"
        "for n in range(3):\n"
        "    threading.Thread(target=lm, args=(f'p{n}',), daemon=True).start()\n"
        "threading.Thread(target=desk.post, daemon=True).start()\n"
        "lm('go')\n"
        "FINAL('done')"
    )
    asked, all_asked = set(), asyncio.Event()

    async def respond(request):
        if request.purpose == "step":
            return cell(code)
        asked.add(request.prompt)
        if len(asked) == 5:
            all_asked.set()
        if request.prompt != "go":
            await asyncio.Event().wait()
        await all_asked.wait()
        return "gone"

    async def post() -> None:
        asked.add("post")
        if len(asked) == 5:
            all_asked.set()
        await asyncio.Event().wait()

    desk = Toolset("desk", 1, (Tool("post", post),))
    runtime = await lab.open(respond, agents=[holdfast.Agent(tools=(desk,))])
    session = await runtime.start()
    result = await session.send("x")
    assert isinstance(result, holdfast.Final)
    leaves = await lab.facts(session.id, "leaf.called")
    assert sorted(leaf.status for leaf in leaves) == ["ok", "unknown", "unknown", "unknown"]
    assert result.unknown_calls == 3
    (call,) = await runtime.calls(session.id)
    assert call.resolved.outcome == "unknown"


async def test_a_leaf_that_was_broken_off_is_asked_again_with_its_own_ordinal(lab: Lab) -> None:
    code = (
        "from concurrent.futures import ThreadPoolExecutor\n"
        "with ThreadPoolExecutor(4) as pool:\n"
        "    found = list(pool.map(lm, ['p0', 'p1', 'p2', 'p3']))\n"
        "found.append(lm('last'))\n"
        "FINAL(found)"
    )
    slow = True

    async def respond(request):
        if request.purpose == "step":
            return cell(code)
        if request.prompt == "p0" and slow:
            await asyncio.Event().wait()
        return request.prompt.upper()

    runtime = await lab.open(respond)
    session = await runtime.start()
    task = asyncio.ensure_future(session.send("x"))
    async with runtime.subscribe(session.id) as items:
        seen = 0
        async for item in items:
            seen += getattr(item, "type", "") == "leaf.called"
            if seen == 3:
                break
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    first = {r.prompt: r.ordinal for r in lab.requests if r.purpose == "leaf"}
    lab.requests.clear()
    slow = False
    result = await runtime.resume(session.id)
    assert result.value == ["P0", "P1", "P2", "P3", "LAST"]
    again = {r.prompt: r.ordinal for r in lab.requests if r.purpose == "leaf"}
    assert again == {"p0": first["p0"], "last": 4}


async def test_wrong_arguments_are_told_in_the_words_of_the_cell(lab: Lab) -> None:
    code = "try:\n    lm()\nexcept TypeError as error:\n    FINAL(str(error))"
    runtime = await lab.open(replies(cell(code)))
    session = await runtime.start()
    result = await session.send("x")
    assert result.value == "lm() missing 1 required positional argument: 'prompt'"
