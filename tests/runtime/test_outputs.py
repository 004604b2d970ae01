"""What a turn's value must fit, what replies without code come to, and how a failure is retried."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

import holdfast
from holdfast.models.errors import BadRequest
from holdfast.models.scripted import ScriptedModel

from .conftest import Lab, cell, replies


@dataclass
class City:
    name: str
    people: int


def typed(*steps: str):
    return holdfast.Agent(
        "typed", model=ScriptedModel(replies(*steps), name="typed-model"), output_type=City
    )


GOOD = cell("FINAL({'name': 'Ulm', 'people': 3})")
BAD = cell("FINAL({'name': 'Ulm', 'people': 'many'})")


async def test_a_value_that_does_not_fit_may_be_repaired_once(lab: Lab) -> None:
    agent = typed(BAD, GOOD)
    runtime = await lab.open(replies(), agents=[agent])
    session = await runtime.session("s", agent=agent, create=True)
    assert await session.ask("x") == City("Ulm", 3)
    started = (await lab.facts("s", "turn.started"))[0]
    assert await session.value(started.output_schema) == agent.output_schema
    told = [fact.card for fact in await lab.facts("s", "message.appended") if fact.card]
    assert len(told) == 1
    assert "at people" in await session.value(told[0])


async def test_a_second_value_that_does_not_fit_fails_the_turn(lab: Lab) -> None:
    agent = typed(BAD, BAD, GOOD)
    runtime = await lab.open(replies(), agents=[agent])
    session = await runtime.session("s", agent=agent, create=True)
    with pytest.raises(holdfast.TurnNotFinal, match="people") as raised:
        await session.ask("x")
    result = raised.value.result
    assert isinstance(result, holdfast.Failed)
    assert (result.code, result.steps) == ("output_invalid", 2)
    assert (await session.state()).head is None
    assert await session.ask("again") == City("Ulm", 3)


async def test_three_replies_of_prose_in_a_row_end_the_turn(lab: Lab) -> None:
    runtime = await lab.open(replies("well", "hm", cell("1"), "well", "hm", "so", cell("FINAL(1)")))
    session = await runtime.start()
    result = await session.send("x")
    assert isinstance(result, holdfast.Failed)
    assert (result.code, result.steps) == ("no_action", 6)
    assert "3 times in a row" in result.error


async def test_prose_counts_as_the_answer_where_the_caller_chose_so(lab: Lab) -> None:
    runtime = await lab.open(replies("It is four."), prose="answer")
    session = await runtime.start()
    assert await session.ask("How many?") == "It is four."
    assert (await session.state()).head is not None


async def test_the_stored_message_is_what_the_user_said_and_the_model_sees_the_card(
    lab: Lab,
) -> None:
    runtime = await lab.open(replies(cell("FINAL(len(text))"), cell("FINAL(len(text))")))
    session = await runtime.start()
    assert await session.ask("How long?", inputs={"text": "four"}) == 4
    assert (await session.messages())[0].message.text == "How long?"
    first = lab.requests[0].messages
    assert [message.text[:9] for message in first] == ["How long?", "Variables"]
    await runtime.close()
    again = await lab.open(replies("", cell("FINAL(len(text))")))
    assert await again.session(session.id).ask("And now?") == 4
    assert lab.requests[-1].messages[:2] == first
    fork = await again.fork(session.id)
    assert [view.message.text[:9] for view in (await fork.messages())[:2]] == [
        "How long?",
        "Variables",
    ]


async def test_a_failed_turn_is_taken_up_again_where_it_stood(lab: Lab) -> None:
    down = [True]

    def respond(request):
        if request.ordinal == 0:
            return cell("x = 41")
        if down.pop() if down else False:
            raise BadRequest("the provider is down")
        return cell("FINAL(x + 1)")

    runtime = await lab.open(respond)
    session = await runtime.start()
    failed = await session.send("x")
    assert isinstance(failed, holdfast.Failed)
    again = await session.retry()
    assert isinstance(again, holdfast.Final)
    assert (again.value, again.turn) == (42, 1)
    assert len(await session.evals()) == 2
    assert "turn.reopened" in await lab.types(session.id)
    assert await session.retry() is None


async def test_a_timeout_ends_the_waiting_and_not_the_turn(lab: Lab) -> None:
    go = asyncio.Event()

    async def respond(request):
        await go.wait()
        return cell("FINAL(1)")

    runtime = await lab.open(respond)
    session = await runtime.start()
    result = await session.send("x", timeout=0.05)
    assert isinstance(result, holdfast.Pending)
    assert isinstance(await session.result(result.key), holdfast.Pending)
    go.set()
    await runtime.settled()
    later = await session.result(result.key)
    assert isinstance(later, holdfast.Final)
    assert later.value == 1


async def test_text_of_a_tools_harness_is_read_as_json_and_repaired_once(lab: Lab) -> None:
    good = '```json\n{"name": "Ulm", "people": 3}\n```'
    model = ScriptedModel(replies("It is Ulm.", good, "no", '{"name": "Ulm"}'), name="in-text")
    agent = holdfast.Agent("texts", model=model, output_type=City, harness="tools")
    runtime = await lab.open(replies(), agents=[agent])
    session = await runtime.session("s", agent=agent, create=True)
    assert await session.ask("x") == City("Ulm", 3)
    result = await session.send("again")
    assert isinstance(result, holdfast.Failed), result
    assert result.code == "output_invalid"
    assert "people" in result.error
    told = [await session.value(f.card) for f in await lab.facts("s", "message.appended") if f.card]
    assert len(told) == 2
    assert all("the answer is not JSON" in text for text in told)
