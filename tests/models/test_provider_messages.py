"""What providers are really sent for our messages, and what we make of theirs."""

from __future__ import annotations

import base64
import json
from contextlib import asynccontextmanager

import pytest
from wire_formats import (
    anthropic_message,
    openai_chat,
    openai_response,
    response_text,
)
from wire_server import Play, answer, wire_server

from holdfast.core.messages import (
    File,
    Image,
    ProviderNote,
    Reasoning,
    Text,
    ToolResult,
    assistant,
    from_record,
    observation,
    to_record,
    user,
)
from holdfast.models import errors
from holdfast.models.choose import model_from_name
from holdfast.models.port import ToolSpec, Usage

CHAT = "openai-chat:gpt-4o@{url}/v1"
RESPONSES = "openai:gpt-5-mini@{url}/v1"
ANTHROPIC = "anthropic:claude-sonnet-5-5@{url}"
COMPATIBLE = "openai-compatible:tiny@{url}/v1"
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
WEATHER = ToolSpec(
    "weather",
    "Say what the weather is.",
    {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)


@asynccontextmanager
async def provider(name: str, *plays: Play, api_key: str | None = "sk-test-key"):
    async with wire_server(*plays) as server:
        model = model_from_name(name.format(url=server.url), api_key=api_key)
        try:
            yield server, model
        finally:
            await model.close()


async def sent(name: str, body: dict, request) -> dict:
    async with provider(name, answer(body)) as (server, model):
        await model.request(request)
        return server.requests[0].body


async def test_roles_and_system_text_reach_openai(make_request):
    messages = user("hi"), assistant("yo"), observation("it is 5")
    body = await sent(CHAT, openai_chat(), make_request(*messages, system="Be brief."))
    assert body["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "yo"},
        {"role": "user", "content": "it is 5"},
    ]
    assert body["max_completion_tokens"] == 256
    assert body["store"] is False


async def test_roles_and_system_text_reach_anthropic(make_request):
    messages = user("hi"), assistant("yo"), observation("it is 5")
    body = await sent(ANTHROPIC, anthropic_message(), make_request(*messages, system="Be brief."))
    assert [part["text"] for part in body["system"]] == ["Be brief."]
    assert [(m["role"], m["content"][0]["text"]) for m in body["messages"]] == [
        ("user", "hi"),
        ("assistant", "yo"),
        ("user", "it is 5"),
    ]


async def test_a_tool_call_and_its_result_make_the_round_trip_with_openai(make_request):
    raw = '{"city":  "Graz", "n": 1.50}'
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": raw}}
    async with provider(
        CHAT, answer(openai_chat("", tool_calls=[call])), answer(openai_chat())
    ) as (server, model):
        reply = await model.request(make_request(user("weather?"), tools=(WEATHER,)))
        (part,) = reply.message.parts
        assert (part.call_id, part.name, part.arguments) == ("c1", "weather", raw)
        assert reply.finish_reason == "tool_call"
        result = observation(ToolResult("c1", "weather", (Text("rain"),)), "and hurry")
        stored = from_record(*to_record(reply.message))
        await model.request(make_request(user("weather?"), stored, result, tools=(WEATHER,)))
        first, second = server.requests
    assert first.body["tools"][0]["function"]["name"] == "weather"
    _, asked, answered, hurry = second.body["messages"]
    assert json.loads(asked["tool_calls"][0]["function"]["arguments"]) == json.loads(raw)
    assert (answered["role"], answered["tool_call_id"], answered["content"]) == (
        "tool",
        "c1",
        "rain",
    )
    assert hurry == {"role": "user", "content": "and hurry"}


async def test_a_tool_call_and_its_failed_result_make_the_round_trip_with_anthropic(make_request):
    use = {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Graz"}}
    first = answer(anthropic_message(use, stop="tool_use"))
    async with provider(ANTHROPIC, first, answer(anthropic_message())) as (server, model):
        reply = await model.request(make_request(user("weather?"), tools=(WEATHER,)))
        (call,) = reply.message.tool_calls
        assert json.loads(call.arguments) == {"city": "Graz"}
        result = observation("hurry", ToolResult("t1", "weather", (Text("no net"),), "error"))
        await model.request(make_request(user("weather?"), reply.message, result, tools=(WEATHER,)))
        _, asked, answered = server.requests[1].body["messages"]
    assert asked["content"][0]["input"] == {"city": "Graz"}
    assert answered["content"][0]["type"] == "tool_result"
    assert answered["content"][0]["is_error"] is True
    assert answered["content"][1]["text"] == "hurry"


async def test_signed_reasoning_goes_back_to_anthropic_as_it_came(make_request):
    thinking = {"type": "thinking", "thinking": "hm", "signature": "SIGNED=="}
    hidden = {"type": "redacted_thinking", "data": "OPAQUE=="}
    text = {"type": "text", "text": "Hello."}
    first = answer(anthropic_message(thinking, hidden, text))
    async with provider(ANTHROPIC, first, answer(anthropic_message())) as (server, model):
        reply = await model.request(make_request())
        assert reply.message.text == "Hello."
        assert reply.message.parts[0] == Reasoning(
            "hm",
            ProviderNote("anthropic", signature="SIGNED==", model="anthropic:claude-sonnet-5-5"),
        )
        stored = from_record(*to_record(reply.message))
        await model.request(make_request(user("hi"), stored, user("go on")))
        blocks = server.requests[1].body["messages"][1]["content"]
    assert blocks[:2] == [thinking, hidden]
    assert blocks[2]["text"] == "Hello."


async def test_encrypted_reasoning_goes_back_to_openai_as_it_came(make_request):
    reasoning = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "ENC=="}
    first = answer(openai_response(reasoning, response_text("Hello.")))
    second = answer(openai_response(response_text("Bye.")))
    async with provider(RESPONSES, first, second) as (server, model):
        reply = await model.request(make_request())
        assert reply.usage.reasoning_tokens == 20
        stored = from_record(*to_record(reply.message))
        await model.request(make_request(user("hi"), stored, user("go on")))
        first_sent, second_sent = (request.body for request in server.requests)
    assert first_sent["store"] is False
    assert "reasoning.encrypted_content" in first_sent["include"]
    (returned,) = [item for item in second_sent["input"] if item.get("type") == "reasoning"]
    assert returned["encrypted_content"] == "ENC=="


async def test_reasoning_signed_by_one_provider_is_not_sent_signed_to_another(make_request):
    foreign = assistant(Reasoning("hm", ProviderNote("anthropic", signature="SIGNED==")), "Hello.")
    body = await sent(CHAT, openai_chat(), make_request(user("hi"), foreign, user("go on")))
    assert "SIGNED==" not in json.dumps(body)


async def test_images_and_files_are_sent_by_their_bytes(make_request):
    pdf = File(b"%PDF-1.4 x", "application/pdf", "a.pdf")
    message = user("look", Image(PNG, "image/png"), pdf)
    chat = await sent(CHAT, openai_chat(), make_request(message))
    parts = chat["messages"][0]["content"]
    encoded = base64.b64encode(PNG).decode()
    assert parts[0] == {"type": "text", "text": "look"}
    assert parts[1]["image_url"]["url"] == f"data:image/png;base64,{encoded}"
    assert parts[2]["type"] == "file"
    claude = await sent(ANTHROPIC, anthropic_message(), make_request(message))
    blocks = claude["messages"][0]["content"]
    assert [block["type"] for block in blocks] == ["text", "image", "document"]
    assert blocks[1]["source"]["data"] == encoded


async def test_text_that_utf8_cannot_carry_is_mended_in_both_directions(make_request):
    broken = json.dumps(openai_chat("bad \ud83d end")).encode()
    async with provider(CHAT, answer(broken)) as (server, model):
        reply = await model.request(make_request(user("lone \udc00 one"), system="\ud800"))
        assert server.requests[0].body["messages"][1]["content"] == "lone \ufffd one"
    assert reply.message.text == "bad \ufffd end"


async def test_the_cache_id_is_sent_as_the_provider_wants_it(make_request):
    chat = await sent(CHAT, openai_chat(), make_request(cache_id="hf-cache-1"))
    assert chat["prompt_cache_key"] == "hf-cache-1"
    long = await sent(CHAT, openai_chat(), make_request(cache_id="x" * 100))
    assert len(long["prompt_cache_key"]) == 64
    claude = await sent(
        ANTHROPIC, anthropic_message(), make_request(system="S", cache_id="hf-cache-1")
    )
    assert claude["system"][0]["cache_control"]["type"] == "ephemeral"
    plain = await sent(ANTHROPIC, anthropic_message(), make_request(system="S"))
    assert "cache_control" not in json.dumps(plain)


async def test_cached_tokens_are_counted_and_priced_apart(make_request):
    async with provider(CHAT, answer(openai_chat())) as (_, model):
        reply = await model.request(make_request())
    assert reply.usage == Usage(1000, 20, 400, 0, 5)
    # gpt-4o: 600 at $2.50, 400 cached at $1.25, 20 out at $10, each per million tokens.
    assert reply.cost_usd == "0.0022"


async def test_a_model_nobody_has_a_price_for_has_an_unknown_cost(make_request):
    body = {**openai_chat(), "model": "tiny"}
    async with provider(COMPATIBLE, answer(body)) as (_, model):
        reply = await model.request(make_request())
    assert (reply.cost_usd, reply.price_table) == (None, None)
    assert reply.usage.input_tokens == 1000


async def test_usage_that_was_not_reported_is_unknown_and_so_is_its_cost(make_request):
    async with provider(CHAT, answer(openai_chat(usage=False))) as (_, model):
        reply = await model.request(make_request())
    assert reply.usage == Usage()
    assert reply.cost_usd is None


async def test_settings_reach_the_provider_and_unknown_ones_are_refused(make_request):
    settings = {"temperature": 0.5, "seed": 7, "openai_user": "u1"}
    body = await sent(CHAT, openai_chat(), make_request(settings=settings))
    assert (body["temperature"], body["seed"], body["user"]) == (0.5, 7, "u1")
    for name in ("temprature", "extra_headers", "max_retries", "anthropic_speed"):
        async with provider(CHAT) as (server, model):
            with pytest.raises(errors.BadRequest, match=name):
                await model.request(make_request(settings={name: 1}))
            assert server.requests == []


async def test_a_reply_that_the_content_filter_emptied_is_a_refusal(make_request):
    body = openai_chat("")
    body["choices"][0]["finish_reason"] = "content_filter"
    async with provider(CHAT, answer(body)) as (server, model):
        with pytest.raises(errors.ContentRefused) as caught:
            await model.request(make_request())
        assert len(server.requests) == len(caught.value.attempts) == 1


async def test_a_model_that_refuses_is_a_refusal(make_request):
    refusal = openai_chat("", refusal="I will not.")
    silent = {**anthropic_message(stop="refusal"), "content": []}
    for name, body in ((CHAT, refusal), (ANTHROPIC, silent)):
        async with provider(name, answer(body)) as (_, model):
            with pytest.raises(errors.ContentRefused):
                await model.request(make_request())


async def test_a_reply_cut_at_the_token_limit_says_so(make_request):
    body = openai_chat("Hel")
    body["choices"][0]["finish_reason"] = "length"
    async with provider(CHAT, answer(body)) as (_, model):
        assert (await model.request(make_request())).finish_reason == "length"


async def test_an_openai_key_in_the_environment_is_not_sent_to_another_server(
    monkeypatch, make_request
):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-openai-own-key")
    async with provider(COMPATIBLE, answer(openai_chat()), api_key=None) as (server, model):
        await model.request(make_request())
        assert "sk-openai-own-key" not in str(server.requests[0].headers)
    monkeypatch.setenv("HOLDFAST_MODEL_API_KEY", "key-for-that-server")
    async with provider(COMPATIBLE, answer(openai_chat()), api_key=None) as (server, model):
        await model.request(make_request())
        assert server.requests[0].headers["authorization"] == "Bearer key-for-that-server"


async def test_ollama_is_spoken_to_without_a_key(make_request):
    name = "ollama:llama3.3@{url}/v1"
    async with provider(name, answer(openai_chat()), api_key=None) as (server, model):
        assert (await model.request(make_request())).message.text == "Hello."
        assert server.requests[0].path == "/v1/chat/completions"
