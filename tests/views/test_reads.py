"""Pages of views: what each entity looks like after everything that the log says of it."""

from __future__ import annotations

import pytest

from holdfast.core import facts
from holdfast.core.payloads import Erased, slot, slot_of_bytes
from holdfast.testing.driver import drive
from holdfast.testing.histories import finish_turn, start_turn
from holdfast.views.documents import turn_document
from holdfast.views.reads import Reads
from holdfast.views.values import Undecodable


def requested(call_id, **more):
    return facts.CallRequested(
        call_id=call_id,
        name="desk.post",
        executor="human",
        effect="once",
        arguments=slot({"text": "hi"}, "arguments"),
        **more,
    )


async def test_a_turn_that_was_interrupted_and_then_ended_is_shown_as_it_ended(store):
    driver = await drive(store)
    await driver.play(start_turn(driver.state, "hi"))
    await driver.append(facts.TurnPut(turn=1, status="interrupted"))
    await driver.append(facts.SessionRevived(turn=1))
    await driver.play(finish_turn(driver.state, "done"))
    await driver.turn("again")
    reads = Reads(store)
    assert [(turn.turn, turn.status) for turn in await reads.turns("s-1")] == [
        (1, "final"),
        (2, "final"),
    ]
    (first,) = await reads.turns("s-1", limit=1)
    assert (first.status, first.steps) == ("final", 1)
    assert await reads.value("s-1", first.final) == ["done", 1.0]


async def test_an_open_turn_and_an_open_step_say_so(store):
    driver = await drive(store)
    await driver.play(start_turn(driver.state, "hi"))
    await driver.append(facts.StepStarted(step=1, turn=1, ordinal=1, model="m"))
    reads = Reads(store)
    (turn,), (step,) = await reads.turns("s-1"), await reads.steps("s-1")
    assert (turn.status, turn.steps, turn.final) == ("open", None, None)
    assert (step.status, step.model, step.usage) == ("open", "m", None)


async def test_pages_of_views_go_on_from_the_last_position(store):
    driver = await drive(store)
    for number in range(5):
        await driver.turn(f"turn {number}")
    reads = Reads(store)
    seen = []
    while page := await reads.turns("s-1", after=seen[-1].seq if seen else 0, limit=2):
        seen += page
    assert [turn.turn for turn in seen] == [1, 2, 3, 4, 5]


async def test_a_call_shows_its_stage_and_its_outcome(store):
    driver = await drive(store)
    await driver.append(requested("a"), requested("b", deadline="2026-01-01T00:00:00.000000Z"))
    await driver.append(facts.CallSuspended(call_id="a"), facts.CallApproved(call_id="b"))
    await driver.append(facts.CallExtended(call_id="b", deadline="2026-02-01T00:00:00.000000Z"))
    reads = Reads(store)
    first, second = await reads.calls("s-1")
    assert (first.stage, first.outcome) == ("suspended", None)
    assert (second.stage, second.deadline[:7]) == ("approved", "2026-02")
    assert [call.call_id for call in await reads.open_calls("s-1")] == ["a", "b"]
    await driver.append(facts.CallResolved(call_id="a", outcome="ok", result=slot("yes", "answer")))
    first, second = await reads.calls("s-1")
    assert (first.stage, first.outcome) == ("resolved", "ok")
    assert await reads.value("s-1", first.result) == "yes"
    (waiting,) = await reads.open_calls("s-1")
    assert (waiting.call_id, waiting.stage, waiting.deadline[:7]) == ("b", "approved", "2026-02")


async def test_an_erased_value_is_said_to_be_erased_wherever_it_stood(store):
    driver = await drive(store)
    await driver.turn("a secret that was said")
    (turn,) = await Reads(store).turns("s-1")
    await store.erase("s-1", turn.final.id, "gdpr-17")
    (whole,) = [item async for item in Reads(store).transcript("s-1")]
    assert isinstance(whole.value, Erased)
    assert turn_document(whole)["value"]["$erased"]["rule"] == "gdpr-17"


@pytest.mark.parametrize(
    "forged",
    [
        b"[" * 500 + b"]" * 500,
        b'{"$set":[%s]}' % b",".join(b'{"$int":"%x"}' % (k * (2**61 - 1)) for k in range(9_000)),
        b'{"$unknown":1}',
    ],
    ids=["deep", "colliding", "unknown tag"],
)
async def test_a_forged_value_in_the_log_keeps_no_reader_from_the_rest(store, forged):
    driver = await drive(store)
    await driver.play(start_turn(driver.state, "hi"))
    await driver.append(
        facts.TurnPut(turn=1, status="failed", error=slot_of_bytes("json", forged, "error"))
    )
    await driver.turn("again")
    first, second = [item async for item in Reads(store).transcript("s-1")]
    assert isinstance(first.error, Undecodable)
    said = turn_document(first)["error"]["$undecodable"]
    assert said["size"] == len(forged)
    assert "does not decode" in said["reason"]
    assert second.status == "final"


async def test_one_turn_of_many_is_read_by_itself(store):
    driver = await drive(store)
    for number in range(1, 4):
        await driver.turn(f"message {number}")
    (only,) = [item async for item in Reads(store).transcript("s-1", turn=2)]
    assert (only.turn, only.message, only.head is not None) == (2, "message 2", True)


async def test_the_transcript_of_a_step_has_its_calls_with_what_became_of_them(store):
    driver = await drive(store)
    await driver.play(start_turn(driver.state, "hi"))
    await driver.append(facts.StepStarted(step=1, turn=1, ordinal=1, model="m"))
    await driver.append(facts.StepPut(step=1, turn=1, status="replied"))
    await driver.append(requested("a", turn=1, step=1), requested("b", turn=1, step=1))
    await driver.append(
        facts.CallSuspended(call_id="a", kind="question", prompt=slot("May I?", "message"))
    )
    await driver.append(
        facts.CallDispatched(calls=["b"]),
        facts.CallResolved(call_id="b", outcome="error", error=slot({"code": "x"}, "error")),
    )
    (turn,) = [item async for item in Reads(store).transcript("s-1")]
    first, second = turn.steps[0].calls
    assert (first.status, first.waits_for, first.prompt) == ("suspended", "question", "May I?")
    assert (second.status, second.error, second.arguments) == (
        "error",
        {"code": "x"},
        {"text": "hi"},
    )
    await driver.append(facts.CallResolved(call_id="a", outcome="ok", result=slot(1, "answer")))
    (turn,) = [item async for item in Reads(store).transcript("s-1")]
    assert (turn.steps[0].calls[0].status, turn.steps[0].calls[0].waits_for) == ("ok", None)
