"""The Python API: agents with types, session handles, values asked for, results matched."""

from __future__ import annotations

import os
from dataclasses import dataclass
from decimal import Decimal
from typing import assert_never

import pytest

import holdfast
from holdfast.core.errors import AgentMissing, InvalidSettings, SessionNotFound, SettingsConflict
from holdfast.models.scripted import ScriptedModel
from holdfast.runtime.settings import NAMES, Limits, SettingsOptions

from .conftest import Lab, cell, replies


@dataclass
class City:
    name: str
    people: int


def agent(*steps: str, name: str = "agent", **options):
    return holdfast.Agent(name, model=ScriptedModel(replies(*steps), name=f"own-{name}"), **options)


async def test_a_runtime_is_opened_by_async_with_or_by_await() -> None:
    async with holdfast.open("memory:", model=ScriptedModel(replies())) as runtime:
        assert isinstance(runtime, holdfast.Runtime)
    runtime = await holdfast.open("memory:", model=ScriptedModel(replies()))
    await runtime.close()


async def test_ask_returns_the_value_as_the_output_type_and_send_the_result() -> None:
    counter = agent(cell("FINAL({'name': 'Ulm', 'people': 3})"), output_type=City)
    async with holdfast.open("memory:", agents=[counter]) as runtime:
        session = runtime.session("cities", agent=counter, create=True)
        assert await session.ask("Which?") == City("Ulm", 3)
        again = await runtime.session("cities").fork()
        assert next(view.message.text for view in await again.messages()) == "Which?"
        assert all(view.inherited for view in await again.messages())


async def test_a_session_is_created_once_and_found_again_whatever_has_changed(
    tmp_path, monkeypatch
) -> None:
    place = tmp_path / "store"
    one, two = tmp_path / "one", tmp_path / "two"
    for folder in (one, two):
        folder.mkdir()
    monkeypatch.chdir(one)
    first = agent(cell("FINAL(1)"), version="1", limits=Limits(max_usd="1.50"))
    async with holdfast.open(place, agents=[first]) as runtime:
        session = await runtime.session("mine", agent=first, create=True)
        assert await session.ask("x") == 1
    monkeypatch.chdir(two)
    second = agent("unused", cell("FINAL(2)"), version="2", limits=Limits(max_usd=1))
    async with holdfast.open(place, agents=[second], max_steps=3) as runtime:
        session = runtime.session("mine", agent="agent", create=True)
        assert await session.ask("y") == 2
        assert len(await session.turns()) == 2
        assert os.getcwd() == str(two)


async def test_another_agent_is_a_conflict_that_names_both(lab: Lab) -> None:
    runtime = await lab.open(replies(), agents=[agent(name="one"), agent(name="two")])
    await runtime.session("mine", agent="one", create=True)
    with pytest.raises(SettingsConflict, match="agent 'one', not 'two'"):
        await runtime.session("mine", agent="two", create=True)
    with pytest.raises(SessionNotFound):
        await runtime.session("nobody")
    with pytest.raises(AgentMissing, match="one, two"):
        runtime.session("mine", agent="three")


async def test_two_agents_of_one_name_and_two_models_of_one_name_are_refused(lab: Lab) -> None:
    runtime = await lab.open(replies(), agents=[agent(name="one")])
    with pytest.raises(InvalidSettings, match="another form"):
        runtime.session("mine", agent=agent(name="one", version="2"), create=True)
    with pytest.raises(InvalidSettings, match="one name"):
        await holdfast.open(
            "memory:",
            model=ScriptedModel(replies()),
            agents=[holdfast.Agent(model=ScriptedModel(replies()))],
        )


async def test_a_turn_without_a_value_is_raised_with_its_result(lab: Lab) -> None:
    runtime = await lab.open(replies(cell("1"), cell("2")), max_steps=1)
    session = await runtime.start()
    with pytest.raises(holdfast.TurnNotFinal, match="budget_exceeded: max_steps") as raised:
        await session.ask("x")
    result = raised.value.result
    assert isinstance(result, holdfast.BudgetExceeded)
    assert (result.limit, result.used, result.allowed) == ("max_steps", 1, 1)
    assert isinstance(result.used, Decimal)
    with pytest.raises(holdfast.TurnNotFinal):
        result.unwrap()


def described(result: holdfast.TurnResult) -> str:
    """Match every kind; a type checker proves that none is left out."""
    match result:
        case holdfast.Final(value=value):
            return f"final {value}"
        case holdfast.Failed(error=error) | holdfast.TimedOut(error=error):
            return error
        case holdfast.BudgetExceeded(limit=limit):
            return limit
        case holdfast.Suspended(calls=calls):
            return ", ".join(calls)
        case holdfast.Queued(key=key) | holdfast.Pending(key=key):
            return key
        case holdfast.Stopped():
            return "stopped"
        case _:
            assert_never(result)


async def test_results_can_be_matched(lab: Lab) -> None:
    runtime = await lab.open(replies(cell("FINAL(1)")))
    session = await runtime.start()
    assert described(await session.send("x")) == "final 1"
    stopped = await session.stop()
    assert stopped is not None
    assert described(stopped) == "stopped"


def test_every_setting_can_be_given_by_name() -> None:
    assert {*SettingsOptions.__annotations__, "model", "leaf_model"} == set(NAMES)
    assert {item for item in Limits.__dataclass_fields__} <= set(NAMES)


def test_the_package_says_what_it_has() -> None:
    assert dir(holdfast) == sorted(holdfast.__all__)
    for name in holdfast.__all__:
        assert getattr(holdfast, name) is not None
    assert holdfast.results.Final is holdfast.Final
    assert issubclass(holdfast.errors.InvalidSettings, holdfast.HoldfastError)
    with pytest.raises(AttributeError, match="nothing_like_it"):
        _ = holdfast.nothing_like_it
