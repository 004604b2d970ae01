"""Software is deployed while sessions live: what changed is recorded, and the session goes on."""

from __future__ import annotations

import asyncio

import pytest

import holdfast
from holdfast.core.errors import SessionBusy, SettingsConflict
from holdfast.core.messages import Message, ToolCall
from holdfast.models.scripted import ScriptedModel
from holdfast.runtime import blueprint as blueprints
from holdfast.runtime.settings import Limits

from .conftest import Lab, cell, replies


def greet(name: str) -> str:
    """Greet someone."""
    return f"hello {name}"


def greet_again(name: str) -> str:
    """Greet someone, in other words."""
    return f"good day {name}"


def leave(name: str) -> str:
    return f"bye {name}"


def desk(*tools, version: str = "1", model: str = "desk", steps=(), **options):
    own = ScriptedModel(replies(*steps), name=model)
    return holdfast.Agent("desk", version=version, model=own, tools=tools, **options)


async def deployed(lab: Lab, agent) -> holdfast.Session:
    runtime = await lab.open(replies(), agents=[agent])
    return await runtime.session("s", agent=agent, create=True)


CALL = cell("FINAL(greet('Ada'))")


async def changes(lab: Lab, session) -> list:
    facts = await lab.facts("s", "session.configured")
    return [await session.value(fact.changes) for fact in facts]


async def test_another_docstring_and_version_are_recorded_once_and_the_session_goes_on(
    lab: Lab,
) -> None:
    first = await deployed(lab, desk(holdfast.Tool("greet", greet, "(name)"), steps=[CALL]))
    assert await first.ask("x") == "hello Ada"
    await first.runtime.close()
    tool = holdfast.Tool("greet", greet_again, "(name)", doc="Greet, in other words.")
    session = await deployed(lab, desk(tool, version="2", steps=["", CALL, CALL]))
    assert await session.ask("y") == "good day Ada"
    assert await session.ask("z") == "good day Ada"
    (told,) = await changes(lab, session)
    assert told["agent_version"] == ["1", "2"]
    assert "tools" in told
    assert (await session.state()).agent_version == "2"


async def test_a_tool_that_is_gone_and_another_model_do_not_stop_a_session(lab: Lab) -> None:
    first = await deployed(lab, desk(greet, leave, steps=[cell("FINAL(leave('Ada'))")]))
    assert await first.ask("x") == "bye Ada"
    await first.runtime.close()
    session = await deployed(lab, desk(greet, model="other", steps=["", CALL]))
    assert await session.ask("y") == "hello Ada"
    (told,) = await changes(lab, session)
    assert told["model"] == ["desk", "other"]


async def test_a_changed_agent_lowers_limits_by_itself_and_widens_nothing(lab: Lab) -> None:
    first = await deployed(lab, desk(greet, steps=[CALL], limits=Limits(max_steps=5)))
    await first.ask("x")
    await first.runtime.close()
    second = desk(greet, leave, steps=["", CALL], limits=Limits(max_steps=9, max_tokens=10**6))
    session = await deployed(lab, second)
    await session.ask("y")
    (told,) = await changes(lab, session)
    assert told == {"max_tokens": [0, 10**6]}
    await session.configure(max_steps=9, by="ada")
    fact = (await lab.facts("s", "session.configured"))[-1]
    told = await session.value(fact.changes)
    assert (fact.by, told["max_steps"]) == ("ada", [5, 9])
    assert any("leave" in tool for tool in told["tools"][1])


async def test_a_pinned_agent_refuses_with_the_difference_named(lab: Lab) -> None:
    first = await deployed(lab, desk(greet, steps=[CALL]))
    await first.ask("x")
    await first.runtime.close()
    session = await deployed(lab, desk(greet, version="2", pinned=True, steps=["", CALL]))
    with pytest.raises(SettingsConflict, match="agent_version: '1', now '2'"):
        await session.ask("y")
    assert await changes(lab, session) == []


PAY = cell("""
try:
    FINAL(pay(5))
except Exception as error:
    FINAL(f'{type(error).__name__}: {error}')
""")


async def broken_off(lab: Lab, *steps, harness=None, **declared) -> None:
    """Leave a session whose call of `pay` was dispatched and has no outcome."""
    begun = asyncio.Event()

    @holdfast.tool(**declared)
    async def pay(cents: int) -> int:
        begun.set()
        await asyncio.Event().wait()
        return cents

    session = await deployed(lab, desk(pay, steps=steps, harness=harness))
    sending = asyncio.create_task(session.send("x"))
    await begun.wait()
    await session.runtime.close()
    with pytest.raises(asyncio.CancelledError):
        await sending


def paying(**declared):
    paid = []

    @holdfast.tool(**declared)
    def pay(cents: int) -> int:
        paid.append(cents)
        return cents

    return pay, paid


@pytest.mark.parametrize(
    ("before", "after", "value", "payments"),
    [
        ("idempotent", "idempotent", 5, 1),
        ("idempotent", "once", "OutcomeUnknown", 0),
        ("once", "idempotent", "OutcomeUnknown", 0),
    ],
)
async def test_the_stricter_of_recorded_and_present_effect_class_counts(
    lab: Lab, before, after, value, payments
) -> None:
    await broken_off(lab, PAY, effect=before)
    pay, paid = paying(effect=after)
    session = await deployed(lab, desk(pay, version="2", steps=["", PAY]))
    result = await session.resume()
    assert str(result.value).startswith(str(value))
    assert len(paid) == payments


async def test_an_open_call_whose_tool_is_gone_is_settled_by_its_policy(lab: Lab) -> None:
    await broken_off(lab, PAY)
    session = await deployed(lab, desk(greet, version="2", steps=["", cell("FINAL('on')")]))
    assert (await session.resume()).value.startswith("OutcomeUnknown")
    (call,) = await session.calls()
    assert call.outcome == "unknown"
    assert await session.ask("y") == "on"


async def test_an_idempotent_call_whose_tool_is_gone_is_cancelled_with_the_reason(lab: Lab) -> None:
    await broken_off(lab, PAY, effect="idempotent")
    session = await deployed(lab, desk(greet, version="2"))
    assert "'pay' is not here any more" in (await session.resume()).value
    assert [call.outcome for call in await session.calls()] == ["cancelled"]


async def test_a_person_is_asked_what_became_of_a_call_whose_tool_is_gone(lab: Lab) -> None:
    await broken_off(lab, PAY, unknown="ask")
    session = await deployed(lab, desk(greet, version="2"))
    result = await session.resume()
    assert isinstance(result, holdfast.Suspended)
    (call,) = await session.open_calls()
    assert call.waits.kind == "unknown"
    await session.answer(call.call_id, 5)
    await session.runtime.settled()
    assert [turn.status for turn in await session.turns()] == ["final"]


@pytest.mark.parametrize(("effect", "outcome"), [("once", "unknown"), ("idempotent", "cancelled")])
async def test_a_native_call_whose_tool_is_gone_is_settled_too(lab: Lab, effect, outcome) -> None:
    def respond(request):
        if request.ordinal == 0:
            return Message("assistant", (ToolCall("1", "pay", '{"cents": 5}'),))
        return "done"

    begun = asyncio.Event()

    @holdfast.tool(effect=effect)
    async def pay(cents: int) -> int:
        begun.set()
        await asyncio.Event().wait()
        return cents

    one = holdfast.Agent(
        "desk", model=ScriptedModel(respond, name="m"), tools=[pay], harness="tools"
    )
    session = await deployed(lab, one)
    sending = asyncio.create_task(session.send("x"))
    await begun.wait()
    await session.runtime.close()
    with pytest.raises(asyncio.CancelledError):
        await sending
    two = holdfast.Agent(
        "desk", model=ScriptedModel(respond, name="m"), tools=[greet], harness="tools", version="2"
    )
    session = await deployed(lab, two)
    assert (await session.resume()).value == "done"
    assert [call.outcome for call in await session.calls()] == [outcome]


async def test_an_interrupted_turn_goes_on_with_what_is_configured_now(lab: Lab) -> None:
    asked = asyncio.Event()

    async def never(request):
        asked.set()
        await asyncio.Event().wait()

    first = await deployed(lab, holdfast.Agent("desk", model=ScriptedModel(never, name="down")))
    sending = asyncio.create_task(first.send("x"))
    await asked.wait()
    with pytest.raises(SessionBusy):
        await first.configure(model="up", now=True)
    await first.runtime.close()
    with pytest.raises(asyncio.CancelledError):
        await sending
    up = ScriptedModel(replies(cell("FINAL('up')")), name="up")
    agent = holdfast.Agent("desk", model=up, settings={})
    session = await deployed(lab, agent)
    with pytest.raises(SessionBusy, match="now=True"):
        await session.configure(model="up")
    await session.configure(model="up", by="ada", now=True)
    assert (await session.resume()).value == "up"
    assert [turn.status for turn in await session.turns()] == ["final"]
    assert [step.status for step in await session.steps()] == ["unknown", "replied"]


async def test_inside_of_a_step_nothing_is_configured(lab: Lab) -> None:
    await broken_off(lab, PAY)
    pay, _ = paying()
    session = await deployed(lab, desk(pay, steps=["", PAY]))
    with pytest.raises(SessionBusy, match="inside of a step"):
        await session.configure(max_steps=9, now=True)


async def test_a_fork_takes_what_is_configured_now_and_that_of_an_old_head_what_was_then(
    lab: Lab,
) -> None:
    session = await deployed(lab, desk(greet, steps=[CALL, CALL, CALL]))
    await session.ask("x")
    head = (await session.state()).head
    await session.configure(max_steps=7)
    now, then = await session.fork(), await session.fork(head)
    limits = []
    for fork in (now, then):
        plan = await blueprints.load(lab.store, fork.id)
        limits.append(plan.settings.max_steps)
    assert limits == [7, 25]
