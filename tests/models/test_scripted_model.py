"""Scripts: every reply is a function of the request, whoever else is being served."""

from __future__ import annotations

import asyncio
import json

import pytest

from holdfast.core.messages import ToolCall, assistant, user
from holdfast.models import errors
from holdfast.models.choose import model_from_name
from holdfast.models.port import Delta, Model, ModelReply, ModelRequest, Usage
from holdfast.models.retry import RetryPolicy
from holdfast.models.scripted import ScriptedModel


@pytest.fixture
def script(tmp_path):
    def write(*lines: dict | str) -> Model:
        path = tmp_path / "replies.jsonl"
        text = (line if isinstance(line, str) else json.dumps(line) for line in lines)
        path.write_text("\n".join(text) + "\n", encoding="utf-8")
        return model_from_name(f"script:{path}")

    return write


def step(ordinal: int, first: str = "hello") -> ModelRequest:
    return ModelRequest((user(first),), ordinal=ordinal, first_user_text=first)


def leaf(ordinal: int, prompt: str) -> ModelRequest:
    return ModelRequest(
        (user(prompt),), purpose="leaf", ordinal=ordinal, first_user_text="the session's own"
    )


async def said(model: Model, request: ModelRequest) -> str:
    return (await model.request(request)).message.text


async def test_steps_are_served_by_their_ordinal_in_any_order_and_again(script):
    model = script({"reply": "one"}, {"reply": "two"}, {"reply": "three"})
    assert [await said(model, step(n)) for n in (2, 0, 1, 0)] == ["three", "one", "two", "one"]


async def test_a_session_is_served_the_lines_that_match_its_first_message_and_those_without(script):
    model = script(
        {"reply": "for all"},
        {"reply": "a1", "match": "^apple"},
        {"reply": "b1", "match": "b[aeiou]nana"},
        {"reply": "a2", "match": "apple"},
    )
    apple = [await said(model, step(n, "apple pie")) for n in range(3)]
    banana = [await said(model, step(n, "a banana")) for n in range(2)]
    assert apple == ["for all", "a1", "a2"]
    assert banana == ["for all", "b1"]


async def test_the_match_looks_at_the_first_message_not_at_later_ones(script):
    model = script({"reply": "right", "match": "first"}, {"reply": "wrong", "match": "later"})
    request = ModelRequest(
        (user("first"), assistant("hm"), user("later")), first_user_text="the first words"
    )
    assert await said(model, request) == "right"


async def test_a_step_past_the_end_is_an_error_that_names_file_and_ordinal(script):
    model = script({"reply": "only"}, {"leaf": True, "reply": "not a step"})
    with pytest.raises(
        errors.ScriptExhausted, match=r"replies\.jsonl.*1 step.*ordinal 1"
    ) as caught:
        await model.request(step(1))
    assert caught.value.details["ordinal"] == 1
    assert not caught.value.retryable


async def test_leaves_are_served_leaf_lines_by_their_ordinal(script):
    model = script(
        {"reply": "a step"}, {"leaf": True, "reply": "l0"}, {"leaf": True, "reply": "l1"}
    )
    assert [await said(model, leaf(n, "any")) for n in (1, 0)] == ["l1", "l0"]
    with pytest.raises(errors.ScriptExhausted, match="leaf"):
        await model.request(leaf(2, "any"))


async def test_a_matched_leaf_line_answers_its_prompts_whatever_their_ordinal(script):
    model = script(
        {"leaf": True, "match": "alpha", "reply": "A"},
        {"leaf": True, "match": "beta", "reply": "B"},
    )
    asked = [(0, "alpha"), (1, "beta"), (2, "alpha"), (3, "beta")]
    assert [await said(model, leaf(n, prompt)) for n, prompt in asked] == ["A", "B", "A", "B"]
    with pytest.raises(errors.ScriptExhausted):
        await model.request(leaf(0, "gamma"))


async def test_sessions_asked_at_once_do_not_disturb_each_other(script):
    model = script({"reply": "one", "delay_ms": 5}, {"reply": "two"})
    replies = await asyncio.gather(*(said(model, step(n % 2)) for n in range(20)))
    assert replies == ["one", "two"] * 10


@pytest.mark.parametrize(("kind", "error"), sorted(errors.KINDS.items()))
async def test_a_line_with_an_error_raises_it_with_its_attempt(script, kind, error):
    model = script({"error": kind})
    with pytest.raises(error) as caught:
        await model.request(step(0))
    assert type(caught.value) is error
    assert [attempt.error for attempt in caught.value.attempts] == [caught.value.code]


async def test_an_error_of_no_known_kind_is_raised_in_its_own_words(script):
    with pytest.raises(errors.ProviderError, match="the moon fell") as caught:
        await script({"error": "the moon fell"}).request(step(0))
    assert len(caught.value.attempts) == 1


async def test_a_script_counts_four_characters_as_a_token_and_costs_nothing(script):
    reply = await script({"reply": "12345"}).request(step(0, "12345678"))
    assert (reply.usage.input_tokens, reply.usage.output_tokens) == (2, 2)
    assert reply.cost_usd == "0"


async def test_a_line_may_say_what_it_used_and_cost(script):
    model = script({"reply": "x", "usage": {"input_tokens": 7}, "cost_usd": 0.25})
    reply = await model.request(step(0))
    assert reply.usage == Usage(input_tokens=7)
    assert reply.cost_usd == "0.25"


async def test_a_reply_slower_than_the_deadline_is_cut_off(script):
    model = script({"reply": "too late", "delay_ms": 60_000})
    with pytest.raises(errors.ModelTimeout) as caught:
        await model.request(ModelRequest((user("x"),), deadline_seconds=0.02))
    assert [attempt.outcome for attempt in caught.value.attempts] == ["timeout"]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{", "not a script line"),
        ('"text"', "not a script line"),
        ({"match": "x"}, "needs a 'reply', 'tool_calls' or an 'error'"),
        ({"reply": 1}, "not a script line"),
        ({"reply": "x", "mach": "typo"}, "mach"),
        ({"reply": "x", "match": "("}, "regular expression"),
        ({"reply": "x", "delay_ms": -1}, "delay_ms"),
        ({"reply": "x", "usage": {"tokens": 1}}, "usage"),
        ({"reply": "x", "usage": {"input_tokens": -1}}, "usage"),
        ({"reply": "x", "cost_usd": "-1"}, "cost_usd"),
        ({"reply": "x", "cost_usd": "NaN"}, "cost_usd"),
    ],
)
def test_a_bad_line_is_an_error_at_load_that_names_the_line(script, line, complaint):
    with pytest.raises(errors.InvalidScript, match=rf"replies\.jsonl:3: .*{complaint}"):
        script({"reply": "fine"}, "", line)


def test_a_missing_or_empty_script_is_a_typed_error(tmp_path, script):
    with pytest.raises(errors.InvalidScript, match="no lines"):
        script("")
    with pytest.raises(errors.InvalidScript, match="nowhere"):
        model_from_name(f"script:{tmp_path / 'nowhere.jsonl'}")


async def test_a_script_may_come_from_an_editor_of_another_system(tmp_path):
    path = tmp_path / "windows.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"reply": "one"}\r\n{"reply": "two"}\r\n')
    model = ScriptedModel.from_file(path)
    asked = ModelRequest((user("x"),), first_user_text="x")
    assert (await model.request(asked)).message.text == "one"


def test_the_name_of_a_script_reopens_it_from_anywhere(tmp_path, monkeypatch):
    (tmp_path / "s.jsonl").write_text('{"reply": "x"}')
    monkeypatch.chdir(tmp_path)
    name = model_from_name("script:s.jsonl").name
    monkeypatch.chdir("/")
    assert model_from_name(name).name == name


async def test_a_function_of_the_request_is_a_model_too():
    model = ScriptedModel(lambda request: request.prompt.upper())
    assert isinstance(model, Model)
    assert await said(model, step(0, "shout")) == "SHOUT"


async def test_a_function_may_return_a_message_or_a_whole_reply_and_may_wait():
    call = assistant(ToolCall("1", "f", "{}"))
    assert (await ScriptedModel(lambda _: call).request(step(0))).message == call

    async def later(request: ModelRequest) -> ModelReply:
        await asyncio.sleep(0)
        return ModelReply(assistant("x"), "mine", cost_usd="1.5")

    reply = await ScriptedModel(later).request(step(0))
    assert (reply.model, reply.cost_usd, len(reply.attempts)) == ("mine", "1.5", 1)


async def test_retryable_errors_of_a_script_are_retried_when_that_is_asked_for():
    def fail(request: ModelRequest) -> str:
        raise errors.RateLimited(retry_after=0)

    shown: list[Delta] = []
    model = ScriptedModel(fail, retry=RetryPolicy(max_attempts=3))
    with pytest.raises(errors.RateLimited) as caught:
        await model.request(step(0), on_delta=shown.append)
    assert [attempt.error for attempt in caught.value.attempts] == ["rate_limited"] * 3
    assert [delta.kind for delta in shown] == ["restart", "restart"]


async def test_a_watcher_that_fails_does_not_fail_the_call():
    def broken(delta: Delta) -> None:
        raise RuntimeError("watcher")

    reply = await ScriptedModel(lambda _: "fine").request(step(0), on_delta=broken)
    assert reply.message.text == "fine"


async def test_simulated_latency_counts_as_the_models_own():
    model = ScriptedModel(lambda _: "slow", latency_seconds=0.02)
    assert (await model.request(step(0))).latency_ms >= 19
