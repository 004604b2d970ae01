"""A child that runs short asks its parent, which answers from what is free, whoever dies meanwhile.

The tree has one task that needs little and one that needs more than its share. What the first did
not use is free again when the second runs short.
"""

from __future__ import annotations

from typing import Any

import pytest

import holdfast
from holdfast.models.port import ModelRequest
from holdfast.models.scripted import ScriptedModel
from holdfast.stores.memory.store import MemorySessionStore
from holdfast.stores.port import SessionFilter
from holdfast.stores.verify import verify

from .conftest import Lab, cell
from .test_children_kill import cut_off, tree_sums

ROOT = cell("found = map_rlm(['small', 'hungry'])\nFINAL([one.get('value') for one in found])")
STEPS = {
    "root": [ROOT],
    "small": [cell("FINAL('little')")],
    "hungry": [cell(f"n = {number}") for number in range(6)] + [cell("FINAL(n)")],
}
LIMITS: dict[str, Any] = {"max_calls": 11, "child_concurrency": 1}


def respond(request: ModelRequest) -> str:
    if request.purpose == "leaf":
        return f"<{request.prompt}>"
    return STEPS[request.first_user_text][request.ordinal]


async def hungry(lab: Lab, root: str) -> str:
    found = (await lab.store.list_sessions(SessionFilter(parent=root))).sessions
    (one,) = [info.id for info in found if (await lab.store.load_state(info.id)).total.calls > 1]
    return one


async def test_a_child_that_runs_short_gets_what_its_sibling_left(lab: Lab) -> None:
    runtime = await lab.open(respond)
    session = await runtime.start(**LIMITS)
    result = await session.send("root")
    assert isinstance(result, holdfast.Final), result
    assert result.value == ["little", 5]
    child = await hungry(lab, session.id)
    (asked,) = [f for f in await lab.facts(child, "call.requested") if f.kind == "budget"]
    assert asked.arguments.value() == {"calls": 5}
    (changed,) = await lab.facts(child, "session.configured")
    assert (changed.by, changed.changes.value()) == (session.id, {"max_calls": [5, 9]})
    admitted = [f for f in await lab.facts(session.id, "input.admitted") if f.kind == "budget"]
    assert len(admitted) == 1
    grants = [f.calls for f in await lab.facts(session.id, "budget.reserved") if f.child == child]
    assert grants == [5, 9]
    await tree_sums(lab)
    for one in (session.id, child):
        assert (await verify(lab.store, one)).ok


async def test_leaves_and_grandchildren_of_one_cell_are_paid_from_what_was_granted(
    lab: Lab,
) -> None:
    code = "FINAL([lm(f'{n}') for n in range(5)] + [rlm('small')['value'], budget()['calls']])"

    def answers(request: ModelRequest) -> str:
        if request.first_user_text == "hungry" and request.purpose == "step":
            return cell(code)
        return respond(request)

    runtime = await lab.open(answers)
    session = await runtime.start(**LIMITS)
    result = await session.send("root")
    assert isinstance(result, holdfast.Final), result
    *leaves, below, calls = result.value[1]
    assert leaves == [f"<{n}>" for n in range(5)]
    assert below == "little"
    assert (calls["limit"], calls["used"]) == (9, 7)
    await tree_sums(lab)


async def test_a_child_that_is_denied_more_ends_by_its_budget(lab: Lab) -> None:
    runtime = await lab.open(respond)
    session = await runtime.start(max_calls=7, child_concurrency=1)
    result = await session.send("root")
    assert isinstance(result, holdfast.Final), result
    assert result.value == ["little", None]
    child = await hungry(lab, session.id)
    outcomes = [fact.outcome for fact in await lab.facts(child, "call.resolved")]
    assert outcomes == ["ok", "error"], "what was free is granted once, then there is nothing"
    (exceeded,) = await lab.facts(child, "budget.exceeded")
    assert (exceeded.limit, exceeded.used) == ("max_calls", "5")
    await tree_sums(lab)


async def test_a_budget_that_the_call_set_is_raised_by_nobody(lab: Lab) -> None:
    code = "FINAL(map_rlm(['hungry'], budget={'calls': 2})[0])"

    def answers(request: ModelRequest) -> str:
        return cell(code) if request.first_user_text == "root" else respond(request)

    runtime = await lab.open(answers)
    session = await runtime.start(max_calls=50)
    result = await session.send("root")
    assert isinstance(result, holdfast.Final), result
    assert result.value["error"].startswith("budget_exceeded: max_calls: 2 used of 2")


@pytest.mark.parametrize("stride", [5, pytest.param(1, marks=pytest.mark.soak)])
async def test_a_tree_cut_off_at_any_append_while_a_child_asks_keeps_its_sums(stride: int) -> None:
    steps = [*(cell(f"n = {number}") for number in range(4)), cell("FINAL(n)")]
    limits = LIMITS | {"max_calls": 9}  # a call that a kill took with it counts too

    def answers(request: ModelRequest) -> str:
        return steps[request.ordinal] if request.first_user_text == "hungry" else respond(request)

    cuts = asked = 0
    for after in range(6, 60, stride):
        lab = Lab(None, MemorySessionStore())  # type: ignore[arg-type]
        if not await cut_off(lab, answers, after, **limits):
            break
        cuts += 1
        async with await holdfast.open(
            MemorySessionStore(lab.store.database),  # type: ignore[attr-defined]
            model=ScriptedModel(answers, name="scripted"),
        ) as runtime:
            result = await runtime.resume("root")
            if result is None:
                result = await runtime.send("root", "root")
            assert isinstance(result, holdfast.Final), (after, result)
            assert result.value == ["little", 3]
        await tree_sums(lab)
        for info in (await lab.store.list_sessions()).sessions:
            assert (await verify(lab.store, info.id)).ok
            asked += len(await lab.facts(info.id, "session.configured"))
    assert cuts >= 3
    assert asked >= cuts
