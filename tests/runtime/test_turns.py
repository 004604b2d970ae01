"""One message is worked until a terminal outcome, and the log says how."""

import asyncio

import pytest

import holdfast
from holdfast.core.errors import InvalidInput, InvalidSettings, Refused, SessionNotFound
from holdfast.core.messages import Image, assistant, user
from holdfast.models.errors import AuthenticationFailed, ModelTimeout
from holdfast.models.port import Attempt, ModelReply, Usage
from holdfast.models.scripted import ScriptedModel
from holdfast.runtime import prompt
from holdfast.stores.port import Transient
from holdfast.stores.verify import verify

from .conftest import Lab, cell, replies


async def test_a_turn_is_stored_in_the_designed_batches_and_order(lab: Lab) -> None:
    runtime = await lab.open(replies(cell("x = 2"), cell("FINAL(x * 21)")))
    session = await runtime.start()
    result = await session.send("work")
    assert isinstance(result, holdfast.Final)
    assert (result.value, result.steps, result.turn) == (42, 2, 1)
    assert await lab.types(session.id) == [
        "session.started",
        "turn.started",
        "message.appended",
        "step.started",
        "message.appended",
        "step.put",
        "eval.added",
        "vars.checkpointed",
        "message.appended",
        "step.started",
        "message.appended",
        "step.put",
        "eval.added",
        "vars.checkpointed",
        "message.appended",
        "turn.put",
        "head.published",
    ]
    state = await runtime.state(session.id)
    assert state.status == "idle"
    assert state.head == result.head
    assert (await verify(lab.store, session.id)).ok


async def test_the_head_is_published_with_a_final_only(lab: Lab) -> None:
    def respond(request):
        if request.ordinal == 0:
            raise AuthenticationFailed("no key")
        return cell("FINAL(1)")

    runtime = await lab.open(respond)
    session = await runtime.start()
    failed = await session.send("one")
    assert isinstance(failed, holdfast.Failed)
    assert failed.code == "authentication_failed"
    assert await lab.facts(session.id, "head.published") == []
    final = await session.send("two")
    assert isinstance(final, holdfast.Final)
    assert [head.id for head in await lab.facts(session.id, "head.published")] == [final.head]
    turns = await runtime.turns(session.id)
    assert [turn.status for turn in turns] == ["failed", "final"]


async def test_a_reply_without_code_is_nudged_and_the_turn_stays_open(lab: Lab) -> None:
    runtime = await lab.open(replies("I am done.", cell("FINAL('now')")))
    session = await runtime.start()
    result = await session.send("work")
    assert isinstance(result, holdfast.Final)
    shown = [m.message.text for m in await runtime.messages(session.id)]
    assert "no fenced Python block" in shown[2]
    assert await lab.facts(session.id, "eval.added") != []


async def test_an_error_is_an_observation_and_earlier_blocks_stay(lab: Lab) -> None:
    reply = cell("a = 1") + "\n" + cell("1 / 0") + "\n" + cell("b = 2")
    runtime = await lab.open(replies(reply, cell("FINAL((a, 'b' in globals()))")))
    session = await runtime.start()
    result = await session.send("work")
    assert isinstance(result, holdfast.Final)
    assert result.value == (1, False)
    first = await lab.facts(session.id, "eval.added")
    assert [item.status for item in first] == ["ok", "error", "final"]
    shown = [m.message.text for m in await runtime.messages(session.id)][2]
    assert "ZeroDivisionError" in shown
    assert "1 later block did not run" in shown


async def test_inputs_are_variables_and_the_prompt_holds_only_their_cards(lab: Lab) -> None:
    text = "needle " + "hay " * 50_000
    runtime = await lab.open(replies(cell("FINAL((len(text), numbers[1], text.count('needle')))")))
    session = await runtime.start()
    result = await session.send("count", inputs={"text": text, "numbers": [1, 2.5]})
    assert isinstance(result, holdfast.Final)
    assert result.value == (len(text), 2.5, 1)
    asked = lab.requests[0].messages[-1].text
    assert f"{len(text):,} characters" in asked
    assert len(asked) < 1000
    started = (await lab.facts(session.id, "turn.started"))[0]
    assert await runtime.value(session.id, started.inputs["text"]) == text
    # The namespace holds the same text: it is stored once.
    report = await verify(lab.store, session.id)
    assert report.ok
    big = [p for p in lab.store.database.payloads.values() if len(p.data) > 100_000]
    assert len(big) == 1


@pytest.mark.parametrize("name", ["1x", "class", "FINAL", "lm", "_x", "ä", "a b"])
async def test_an_input_that_code_could_not_use_is_refused_and_nothing_is_written(
    lab: Lab, name: str
) -> None:
    runtime = await lab.open(replies(cell("FINAL(1)")))
    session = await runtime.start()
    with pytest.raises(InvalidInput, match="cannot be a variable"):
        await session.send("x", inputs={name: 1})
    assert await lab.types(session.id) == ["session.started"]
    assert isinstance(await session.send("y"), holdfast.Final)


async def test_the_namespace_lasts_over_turns_and_over_runtimes(lab: Lab) -> None:
    steps = [
        cell("def twice(n):\n    return 2 * n\nseen = [1]\nFINAL(None)"),
        cell("seen.append(twice(1))\nFINAL(seen)"),
        cell("seen.append(twice(2))\nFINAL(seen)"),
    ]
    first = await lab.open(replies(*steps))
    session = await first.start()
    await session.send("define")
    assert (await session.send("use")).value == [1, 2]
    await first.close()
    second = await lab.open(replies(*steps))
    assert (await second.send(session.id, "use again")).value == [1, 2, 4]


async def test_a_timed_out_model_call_settles_the_turn_as_timed_out(lab: Lab) -> None:
    def respond(request):
        raise ModelTimeout("too slow")

    runtime = await lab.open(respond)
    session = await runtime.start()
    result = await session.send("x")
    assert isinstance(result, holdfast.TimedOut)
    assert result.unknown_calls == 1  # nobody knows what the lost call cost
    assert (await runtime.state(session.id)).status == "idle"
    step = (await runtime.steps(session.id))[0]
    assert step.status == "failed"


async def test_token_deltas_are_live_only(lab: Lab) -> None:
    runtime = await lab.open(replies(cell("FINAL('seen')")))
    session = await runtime.start()
    async with runtime.subscribe(session.id) as items:
        result = await session.send("x")
        seen = []
        async for item in items:
            seen.append(item)
            if isinstance(item, Transient):
                break
    assert isinstance(result, holdfast.Final)
    assert any(isinstance(item, Transient) and "FINAL" in item.data["text"] for item in seen)
    assert not any("delta" in kind for kind in await lab.types(session.id))


async def test_images_are_stored_by_payload_and_sent_again(lab: Lab) -> None:
    picture = bytes(range(256)) * 8
    runtime = await lab.open(replies(cell("FINAL(1)"), cell("FINAL(2)")))
    session = await runtime.start()
    await session.send(user("look", Image(picture, "image/png")))
    await runtime.close()
    again = await lab.open(replies(cell("FINAL(1)"), cell("FINAL(2)")))
    await again.send(session.id, "and?")
    parts = lab.requests[-1].messages[0].parts
    assert parts[1] == Image(picture, "image/png")
    assert (await verify(lab.store, session.id)).ok


async def test_a_model_must_be_named_and_a_session_must_exist(lab: Lab) -> None:
    runtime = await holdfast.open(lab.store)
    try:
        with pytest.raises(InvalidSettings, match="no model is set"):
            await runtime.start()
        with pytest.raises(SessionNotFound):
            await runtime.send("s-none", "x")
    finally:
        await runtime.close()


async def test_the_session_keeps_its_settings_whatever_the_defaults_are_later(lab: Lab) -> None:
    first = await lab.open(replies(cell("FINAL(1)")), max_steps=3, instructions="Be brief.")
    session = await first.start()
    await session.send("x")
    await first.close()
    second = await lab.open(replies(*[cell("1")] * 4), max_steps=9)
    result = await second.send(session.id, "y")
    assert isinstance(result, holdfast.BudgetExceeded)
    assert result.allowed == 3
    assert "Be brief." in lab.requests[-1].system


async def test_starting_the_same_id_twice_is_harmless(lab: Lab) -> None:
    runtime = await lab.open(replies(cell("FINAL(1)")))
    one = await runtime.start(session_id="mine", labels={"team": "red"})
    two = await runtime.start(session_id="mine", labels={"team": "red"})
    assert one.id == two.id
    assert await lab.types("mine") == ["session.started"]


async def test_a_model_that_breaks_its_contract_fails_the_turn_and_not_the_session(
    lab: Lab,
) -> None:
    def respond(request):
        if request.ordinal == 0:
            raise IndexError("a bug in the model adapter")
        return cell("FINAL(1)")

    runtime = await lab.open(respond)
    session = await runtime.start()
    failed = await session.send("x")
    assert isinstance(failed, holdfast.Failed)
    assert "IndexError" in failed.error
    assert isinstance(await session.send("y"), holdfast.Final)


async def test_two_models_of_one_name_are_refused() -> None:
    """Both would be found under that name: the cheap one for leaf calls would answer the steps."""
    one, other = ScriptedModel(lambda _: "one"), ScriptedModel(lambda _: "other")
    with pytest.raises(InvalidSettings, match="one name 'scripted'"):
        await holdfast.open("memory:", model=one, leaf_model=other)
    async with await holdfast.open("memory:", model=one, leaf_model=one) as runtime:
        assert runtime.resolved.settings.leaf_model == "scripted"


async def test_what_is_no_model_is_refused_with_what_it_lacks() -> None:
    class Mine:
        name = "mine"

        async def request(self, request, *, on_delta=None): ...

        async def close(self) -> None: ...

    with pytest.raises(InvalidSettings, match="lacks ceiling_usd"):
        await holdfast.open("memory:", model=Mine())


async def test_a_stop_during_a_model_call_says_that_its_cost_is_unknown(lab: Lab) -> None:
    asked, never = asyncio.Event(), asyncio.Event()

    async def respond(request):
        asked.set()
        await never.wait()

    runtime = await lab.open(respond)
    session = await runtime.start()
    turn = asyncio.ensure_future(session.send("x"))
    await asked.wait()
    await session.stop()
    result = await turn
    assert isinstance(result, holdfast.Stopped)
    assert (result.cost_usd, result.unknown_calls) == (0, 1)
    (put,) = await lab.facts(session.id, "turn.put")
    assert (put.cost_usd, put.unknown_calls) == ("0", 1)


@pytest.mark.parametrize(
    "value", [10**5000, {10**5000: 1}, (1, 10**5000)], ids=["number", "key", "item"]
)
async def test_an_input_whose_text_python_will_not_write_is_an_input(lab: Lab, value) -> None:
    runtime = await lab.open(replies(cell("FINAL(v)")))
    session = await runtime.start()
    assert (await session.send("x", inputs={"v": value})).value == value


async def test_a_closed_runtime_asks_no_model(lab: Lab) -> None:
    """Its kernels are gone: every step would be paid for and fail."""
    runtime = await lab.open(replies(cell("FINAL(1)"), cell("FINAL(2)")))
    session = await runtime.start()
    await session.send("x")
    await runtime.close()
    with pytest.raises(Refused, match="closed"):
        await session.send("y")
    assert len(lab.requests) == 1


async def test_only_a_user_s_message_can_be_sent(lab: Lab) -> None:
    runtime = await lab.open(replies(cell("FINAL(1)")))
    session = await runtime.start()
    with pytest.raises(InvalidInput, match="not 'assistant'"):
        await session.send(assistant("I am the model."))
    assert await lab.types(session.id) == ["session.started"]


async def test_the_time_of_a_turn_includes_its_last_cell(lab: Lab) -> None:
    steps = [cell("import time\ntime.sleep(0.2)"), cell("time.sleep(0.3)\nFINAL(1)")]
    runtime = await lab.open(replies(*steps))
    session = await runtime.start()
    await session.send("x")
    (turn,) = await runtime.turns(session.id)
    evals = [entry.fact.elapsed_ms for entry in await runtime.evals(session.id)]
    latency = [step.put.latency_ms for step in await runtime.steps(session.id)]
    assert evals[-1] >= 300
    assert turn.put.elapsed_ms == sum(evals) + sum(latency)


async def test_a_model_is_asked_with_the_cache_id_and_options_of_the_session_after_a_resume_too(
    lab: Lab,
) -> None:
    steps = [cell("FINAL(lm('leaf'))"), cell("FINAL(2)")]
    options = {"model_options": '{"temperature": 0.5}', "max_output_tokens": 77}
    runtime = await lab.open(replies(*steps), **options)
    session = await runtime.start()
    await session.send("one")
    await runtime.close()
    again = await lab.open(replies(*steps))
    await again.send(session.id, "two")
    fork = await again.fork(session.id)
    await fork.send("three")
    asked = [(request.cache_id, request.purpose) for request in lab.requests]
    own = [(session.id, "step"), (session.id, "leaf"), (session.id, "step")]
    assert asked == [*own, (fork.id, "step"), (fork.id, "leaf")]
    assert all(request.settings == {"temperature": 0.5} for request in lab.requests)
    assert all(request.max_output_tokens == 77 for request in lab.requests)


async def test_what_is_known_about_a_call_is_stored_with_it(lab: Lab) -> None:
    attempts = (
        Attempt("2026-01-01T00:00:00.000000Z", 0, 5, "error", "server_error", "busy"),
        Attempt("2026-01-01T00:00:01.000000Z", 10, 20, "ok"),
    )

    class Careful:
        name = "careful"

        def ceiling_usd(self, input_tokens, output_tokens):
            return None

        async def request(self, request, *, on_delta=None):
            text = cell("FINAL(lm('leaf'))") if request.purpose == "step" else "leaf"
            return ModelReply(
                assistant(text),
                "careful-2",
                usage=Usage(11, 7, 3, 2, 1),
                cost_usd="0.5",
                price_table="table-1",
                latency_ms=35,
                finish_reason="stop",
                attempts=attempts,
            )

        async def close(self):
            pass

    async with await holdfast.open(lab.store, model=Careful()) as runtime:
        session = await runtime.start()
        await session.send("x")
        (step,) = await runtime.steps(session.id)
        (leaf,) = await runtime.leaves(session.id)
        assert step.put.finish_reason == "stop"
        for fact in (step.put, leaf.fact):
            assert (fact.model, fact.price_table, fact.latency_ms) == ("careful-2", "table-1", 35)
            assert fact.cost_usd == "0.5"
            assert fact.usage == Usage(11, 7, 3, 2, 1).to_record()
            stored = await runtime.value(session.id, fact.attempts)
            assert stored == [attempt.to_record() for attempt in attempts]


async def test_the_prompt_is_stored_with_its_stamp_and_holds_the_card_of_the_kernel(
    lab: Lab,
) -> None:
    runtime = await lab.open(replies(cell("FINAL(1)")))
    session = await runtime.start()
    await session.send("x")
    text = lab.requests[0].system
    started = (await runtime.events(session.id, limit=1))[0].fact()
    stored = await runtime.value(session.id, started.settings)
    assert stored["prompt_stamp"] == prompt.stamp(text)
    assert prompt.stamp(text) != prompt.stamp(text + " ")
    choice = await runtime.engine.kernels.choose("auto", None)
    assert choice.card in text
