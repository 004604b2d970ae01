"""Software is deployed while sessions live: what changed is recorded, and the session goes on."""

from __future__ import annotations

import pytest

import holdfast
from holdfast.core.errors import SettingsConflict
from holdfast.models.scripted import ScriptedModel
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
