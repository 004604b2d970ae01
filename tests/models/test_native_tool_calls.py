"""Native tool calls over the wire formats of OpenAI and Anthropic: asked, streamed, sent back."""

from __future__ import annotations

import base64
import json

import pytest
from test_provider_messages import (
    ANTHROPIC,
    CHAT,
    COMPATIBLE,
    PNG,
    RESPONSES,
    WEATHER,
    provider,
    sent,
)
from wire_formats import anthropic_message, openai_chat, openai_response, response_text
from wire_server import answer, stream

from holdfast.core.errors import InvalidInput
from holdfast.core.messages import (
    Image,
    Message,
    ProviderNote,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    assistant,
    from_record,
    observation,
    to_record,
    user,
)
from holdfast.models import errors
from holdfast.models.asking import ask
from holdfast.models.choose import model_from_name
from holdfast.models.port import Delta, ModelReply, ModelRequest, ToolSpec
from holdfast.models.scripted import ScriptedModel

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TIME = ToolSpec("time", "Say what time it is.", {"type": "object", "properties": {}})
TOOLS = (WEATHER, TIME)
Calls = list[tuple[str, str, str]]
ASKED: Calls = [("c1", "weather", '{"city": "Graz"}'), ("c2", "time", "{}")]


def events(*bodies: dict, named: bool = True) -> list[str]:
    return [
        (f"event: {body['type']}\n" if named else "") + f"data: {json.dumps(body)}\n\n"
        for body in bodies
    ]


def chat_chunk(delta: dict, finish: str | None = None) -> dict:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    head = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "gpt-4o"}
    return {**head, "choices": [choice]}


def chat_call(index: int, arguments: str, **fields: str) -> dict:
    function = {"arguments": arguments, **({"name": fields["name"]} if "name" in fields else {})}
    call = {"index": index, "function": function}
    if "id" in fields:
        call |= {"id": fields["id"], "type": "function"}
    return chat_chunk({"tool_calls": [call]})


def chat_stream(asked: Calls = ASKED) -> list[str]:
    """Return calls whose arguments are written in turns."""
    begun = [chat_call(n, "", id=i, name=name) for n, (i, name, _) in enumerate(asked)]
    firsts = [chat_call(n, text[: len(text) // 2]) for n, (_, _, text) in enumerate(asked)]
    rests = [chat_call(n, text[len(text) // 2 :]) for n, (_, _, text) in enumerate(asked)]
    chunks = (
        chat_chunk({"role": "assistant", "content": None}),
        *(chunk for pair in zip(begun, firsts, strict=True) for chunk in pair),
        *rests,
        chat_chunk({}, "tool_calls"),
        {
            **chat_chunk({}),
            "choices": [],
            "usage": {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12},
        },
    )
    return [*events(*chunks, named=False), "data: [DONE]\n\n"]


def responses_call(number: int, call_id: str, name: str, arguments: str, status: str) -> dict:
    return {
        "type": "function_call",
        "id": f"fc_{number}",
        "call_id": call_id,
        "name": name,
        "arguments": arguments,
        "status": status,
    }


def responses_stream(asked: Calls = ASKED) -> list[str]:
    bodies: list[dict] = [
        {
            "type": "response.created",
            "response": {**openai_response(), "status": "in_progress", "usage": None},
        }
    ]
    for number, (call_id, name, arguments) in enumerate(asked):
        place = {"output_index": number, "item_id": f"fc_{number}"}
        begun = responses_call(number, call_id, name, "", "in_progress")
        done = responses_call(number, call_id, name, arguments, "completed")
        half = len(arguments) // 2
        bodies += [
            {"type": "response.output_item.added", "output_index": number, "item": begun},
            *(
                {"type": "response.function_call_arguments.delta", **place, "delta": piece}
                for piece in (arguments[:half], arguments[half:])
            ),
            {
                "type": "response.function_call_arguments.done",
                **place,
                "name": name,
                "arguments": arguments,
            },
            {"type": "response.output_item.done", "output_index": number, "item": done},
        ]
    calls = [responses_call(n, *call, "completed") for n, call in enumerate(asked)]
    bodies.append({"type": "response.completed", "response": openai_response(*calls)})
    return events(*({**body, "sequence_number": n} for n, body in enumerate(bodies)))


def anthropic_stream(asked: Calls = ASKED) -> list[str]:
    start = {**anthropic_message(), "content": [], "stop_reason": None}
    bodies: list[dict] = [{"type": "message_start", "message": start}]
    for number, (call_id, name, arguments) in enumerate(asked):
        block = {"type": "tool_use", "id": call_id, "name": name, "input": {}}
        half = len(arguments) // 2
        bodies += [
            {"type": "content_block_start", "index": number, "content_block": block},
            *(
                {
                    "type": "content_block_delta",
                    "index": number,
                    "delta": {"type": "input_json_delta", "partial_json": piece},
                }
                for piece in (arguments[:half], arguments[half:])
            ),
            {"type": "content_block_stop", "index": number},
        ]
    end = {"stop_reason": "tool_use", "stop_sequence": None}
    bodies += [
        {"type": "message_delta", "delta": end, "usage": {"output_tokens": 7}},
        {"type": "message_stop"},
    ]
    return events(*bodies)


def chat_body(*calls: tuple[str, str, str]) -> dict:
    made = [
        {"id": i, "type": "function", "function": {"name": n, "arguments": a}} for i, n, a in calls
    ]
    return openai_chat("", tool_calls=made)


def responses_body(*calls: tuple[str, str, str]) -> dict:
    return openai_response(*(responses_call(n, *call, "completed") for n, call in enumerate(calls)))


def anthropic_body(*calls: tuple[str, str, str]) -> dict:
    blocks = [{"type": "tool_use", "id": i, "name": n, "input": json.loads(a)} for i, n, a in calls]
    return anthropic_message(*blocks, stop="tool_use")


WIRES = {
    "openai-chat": (CHAT, chat_body, chat_stream),
    "openai-responses": (RESPONSES, responses_body, responses_stream),
    "anthropic": (ANTHROPIC, anthropic_body, anthropic_stream),
}
BODIES = {CHAT: openai_chat, RESPONSES: lambda: openai_response(response_text("Hello."))}
BODIES[ANTHROPIC] = anthropic_message


def results_in(body: dict) -> list[tuple[str, str]]:
    """Return the ids of calls and of results in a request, in order."""
    found: list[tuple[str, str]] = []
    for item in body.get("input", []):
        if item.get("type") in ("function_call", "function_call_output"):
            found.append((item["type"].removeprefix("function_"), item["call_id"]))
    for message in body.get("messages", []):
        found += [("call", call["id"]) for call in message.get("tool_calls") or ()]
        if message["role"] == "tool":
            found.append(("call_output", message["tool_call_id"]))
        blocks = message["content"] if isinstance(message.get("content"), list) else []
        for block in blocks:
            if block.get("type") == "tool_use":
                found.append(("call", block["id"]))
            elif block.get("type") == "tool_result":
                found.append(("call_output", block["tool_use_id"]))
    return found


@pytest.mark.parametrize("streamed", [False, True], ids=["plain", "streamed"])
@pytest.mark.parametrize(("name", "body", "streaming"), WIRES.values(), ids=WIRES.keys())
async def test_calls_made_at_once_come_whole_and_their_results_find_back(
    name, body, streaming, streamed, make_request
):
    shown: list[Delta] = []
    first = stream(*streaming()) if streamed else answer(body(*ASKED))
    async with provider(name, first, answer(BODIES[name]())) as (server, model):
        question = user("weather and time?")
        request = make_request(question, tools=TOOLS)
        reply = await ask(model, request, on_delta=shown.append if streamed else None)
        calls = reply.message.tool_calls
        assert [(c.call_id, c.name, c.parsed()) for c in calls] == [
            ("c1", "weather", {"city": "Graz"}),
            ("c2", "time", {}),
        ]
        assert reply.finish_reason == "tool_call"
        stored = from_record(*to_record(reply.message))
        told = observation(
            ToolResult("c1", "weather", (Text("rain"),)), ToolResult("c2", "time", (Text("noon"),))
        )
        await model.request(make_request(question, stored, told, tools=TOOLS))
        assert [kind for kind, _ in results_in(server.requests[1].body)] == [
            *("call", "call", "call_output", "call_output")
        ]
        assert [i for _, i in results_in(server.requests[1].body)] == ["c1", "c2", "c1", "c2"]
    if streamed:
        for call_id, tool, arguments in ASKED:
            mine = [delta for delta in shown if delta.call_id == call_id]
            assert {delta.name for delta in mine} == {tool}
            assert "".join(delta.text for delta in mine) == arguments


@pytest.mark.parametrize("text", ['{"city": ', "Graz", '["Graz"]', '{"a":' * 300])
@pytest.mark.parametrize(("name", "body"), [(w[0], w[1]) for w in list(WIRES.values())[:2]])
async def test_malformed_arguments_are_kept_and_can_be_sent_back(name, body, text, make_request):
    first = answer(body(("c1", "weather", text)))
    async with provider(name, first, answer(BODIES[name]())) as (server, model):
        reply = await ask(model, make_request(tools=TOOLS))
        (call,) = reply.message.tool_calls
        assert call.arguments == text
        with pytest.raises(InvalidInput, match=r"arguments of 'weather' are .*pass a JSON object"):
            call.parsed()
        stored = from_record(*to_record(reply.message))
        told = observation(ToolResult("c1", "weather", (Text("not JSON"),), "error"))
        await model.request(make_request(user("x"), stored, told, tools=TOOLS))
    assert results_in(server.requests[1].body) == [("call", "c1"), ("call_output", "c1")]
    # Another provider, which takes objects only, is told of it too.
    foreign = await sent(
        ANTHROPIC, anthropic_message(), make_request(user("x"), stored, told, tools=TOOLS)
    )
    assert results_in(foreign) == [("call", "c1"), ("call_output", "c1")]


@pytest.mark.parametrize("text", ["NaN", '{"a": NaN}', '{"a": Infinity}', "null", "1"])
def test_arguments_that_are_not_an_object_of_json_are_refused(text):
    with pytest.raises(InvalidInput, match="pass a JSON object"):
        ToolCall("c", "f", text).parsed()


@pytest.mark.parametrize("text", ["", "  ", "{}"])
def test_a_call_without_arguments_has_none(text):
    assert ToolCall("c", "f", text).parsed() == {}


@pytest.mark.parametrize("name", [ANTHROPIC, CHAT, RESPONSES])
@pytest.mark.parametrize("foreign", ["call:1/x", "x" * 90, "é"])
async def test_ids_of_another_provider_are_sent_in_a_form_that_all_take(
    name, foreign, make_request
):
    call = ToolCall(foreign, "weather", "{}", ProviderNote("ollama", model="ollama:llama3"))
    messages = (
        user("x"),
        assistant(call),
        observation(ToolResult(foreign, "weather", (Text("rain"),))),
    )
    body = await sent(name, BODIES[name](), make_request(*messages, tools=TOOLS))
    (_, asked), (_, answered) = results_in(body)
    assert asked == answered
    assert len(asked) <= 40
    assert asked.replace("_", "").replace("-", "").isalnum()


async def test_calls_of_one_reply_have_different_ids_whatever_the_server_says(make_request):
    calls = [("same", "weather", "{}"), ("same", "time", "{}"), ("with space", "time", "{}")]
    async with provider(COMPATIBLE, answer(chat_body(*calls))) as (_, model):
        reply = await ask(model, make_request(tools=TOOLS))
    ids = [call.call_id for call in reply.message.tool_calls]
    assert ids[:2] == ["same", "same_2"]
    assert len(set(ids)) == 3
    assert " " not in ids[2]


@pytest.mark.parametrize(
    ("choice", "chat", "claude"),
    [
        ("required", "required", "any"),
        ("none", "none", "none"),
        ("time", {"type": "function", "function": {"name": "time"}}, "tool"),
    ],
)
async def test_the_choice_of_a_tool_reaches_the_provider(choice, chat, claude, make_request):
    request = make_request(tools=TOOLS, tool_choice=choice)
    body = await sent(CHAT, openai_chat(), request)
    offered = [tool["function"]["name"] for tool in body.get("tools", [])]
    # Tools may be left out instead of forbidden.
    assert body.get("tool_choice") == chat or (choice, offered) == ("none", [])
    body = await sent("anthropic:claude-haiku-4-5@{url}", anthropic_message(), request)
    assert body.get("tool_choice", {}).get("type") == claude or not body.get("tools")


async def test_a_choice_that_the_model_cannot_be_held_to_is_refused(make_request):
    async with provider(ANTHROPIC) as (server, model):
        with pytest.raises(errors.BadRequest, match="does not support forcing tool use"):
            await model.request(make_request(tools=TOOLS, tool_choice="required"))
        assert server.requests == []


async def test_a_choice_that_names_no_tool_is_refused_before_anything_is_sent(make_request):
    async with provider(CHAT) as (server, model):
        with pytest.raises(errors.BadRequest, match="tool_choice is 'nothing'"):
            await model.request(make_request(tools=TOOLS, tool_choice="nothing"))
        assert server.requests == []


async def test_the_schema_of_the_reply_is_enforced_where_the_provider_can(make_request):
    request = make_request(output_schema=CITY)
    chat = await sent(CHAT, openai_chat('{"city":"Graz"}'), request)
    assert chat["response_format"]["type"] == "json_schema"
    assert chat["response_format"]["json_schema"]["schema"]["required"] == ["city"]
    body = openai_response(response_text('{"city":"Graz"}'))
    responses = await sent(RESPONSES, body, request)
    assert responses["text"]["format"]["schema"]["required"] == ["city"]
    claude = await sent(ANTHROPIC, anthropic_message(), request)
    assert "city" in json.dumps(claude)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
async def test_the_schema_is_told_to_the_model_where_the_provider_cannot(make_request):
    request = make_request(system="Be brief.", output_schema=CITY)
    name = "anthropic:claude-sonnet-4-0@{url}"
    body = await sent(name, anthropic_message(), request)
    system = json.dumps(body["system"])
    assert "Be brief." in system
    assert "city" in system


async def test_an_image_in_a_result_reaches_both_providers(make_request):
    result = ToolResult("c1", "weather", (Text("a map"), Image(PNG, "image/png")))
    messages = user("x"), assistant(ToolCall("c1", "weather", "{}")), observation(result)
    encoded = base64.b64encode(PNG).decode()
    for name in (CHAT, RESPONSES, ANTHROPIC):
        body = json.dumps(await sent(name, BODIES[name](), make_request(*messages, tools=TOOLS)))
        assert encoded in body
        assert "a map" in body


async def test_a_result_without_content_is_sent_as_an_empty_one(make_request):
    messages = (
        user("x"),
        assistant(ToolCall("c1", "time", "{}")),
        observation(ToolResult("c1", "time", ())),
    )
    for name in (CHAT, RESPONSES, ANTHROPIC):
        body = await sent(name, BODIES[name](), make_request(*messages, tools=TOOLS))
        assert results_in(body) == [("call", "c1"), ("call_output", "c1")]


CLAUDE, GPT = "anthropic:claude-sonnet-5-5", "openai:gpt-5-mini"


def thought(model: str, provider: str) -> Message:
    note = ProviderNote(provider, id="rs_1", signature="SIGNED==", model=model)
    return assistant(
        Reasoning("a secret thought", note),
        Text("Hello.", ProviderNote(provider, id="msg_9", model=model)),
        ToolCall("c1", "weather", "{}", ProviderNote(provider, id="fc_9", model=model)),
    )


@pytest.mark.parametrize("name", [CHAT, RESPONSES, ANTHROPIC])
@pytest.mark.parametrize(
    "foreign",
    [
        thought("openai:gpt-4.1", "openai"),
        thought("anthropic:claude-opus-4-1", "anthropic"),
        thought("google:gemini-3-pro", "google"),
        assistant(Reasoning("a secret thought"), "Hello.", ToolCall("c1", "weather", "{}")),
    ],
    ids=["another of OpenAI", "another of Anthropic", "Google", "of unknown origin"],
)
async def test_another_model_gets_no_foreign_reasoning(name, foreign, make_request):
    told = observation(ToolResult("c1", "weather", (Text("rain"),)))
    request = make_request(user("hi"), foreign, told, tools=TOOLS)
    body = await sent(name, BODIES[name](), request)
    text = json.dumps(body)
    for part in ("a secret thought", "SIGNED==", "rs_1", "msg_9", "fc_9"):
        assert part not in text
    assert "Hello." in text
    assert results_in(body) == [("call", "c1"), ("call_output", "c1")]


async def test_a_model_gets_its_own_reasoning_back_at_another_address_too(make_request):
    body = await sent(
        ANTHROPIC, anthropic_message(), make_request(user("hi"), thought(CLAUDE, "anthropic"))
    )
    assert "SIGNED==" in json.dumps(body)
    assert GPT not in json.dumps(body)


async def test_code_in_a_later_part_after_reasoning_stands_on_lines_of_its_own(make_request):
    blocks = (
        {"type": "text", "text": "Let me see."},
        {"type": "thinking", "thinking": "hm", "signature": "S=="},
        {"type": "text", "text": "```python\nFINAL(1)\n```"},
    )
    async with provider(ANTHROPIC, answer(anthropic_message(*blocks))) as (_, model):
        reply = await model.request(make_request())
    assert reply.message.text == "Let me see.\n```python\nFINAL(1)\n```"


async def test_a_script_calls_tools(tmp_path, make_request):
    lines = [
        {
            "reply": "Let me look.",
            "tool_calls": [
                {"name": "weather", "arguments": {"city": "Graz"}},
                {"name": "time", "id": "mine"},
                {"name": "weather", "arguments": "{broken"},
            ],
        },
        {"reply": "Rain."},
    ]
    path = tmp_path / "script.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    model = model_from_name(f"script:{path}")
    shown: list[Delta] = []
    reply = await ask(model, make_request(tools=TOOLS), on_delta=shown.append)
    assert reply.message.text == "Let me look."
    assert [(c.call_id, c.name, c.arguments) for c in reply.message.tool_calls] == [
        ("call-0-1", "weather", '{"city":"Graz"}'),
        ("mine", "time", "{}"),
        ("call-0-3", "weather", "{broken"),
    ]
    assert [delta.kind for delta in shown] == ["text", "tool_call", "tool_call", "tool_call"]
    assert (await ask(model, make_request(ordinal=1))).message.text == "Rain."


async def test_a_function_calls_tools_by_returning_a_message(make_request):
    def answer_(request: ModelRequest) -> Message:
        return assistant(ToolCall("c1", request.tools[0].name, "{}"))

    reply = await ask(ScriptedModel(answer_), make_request(tools=TOOLS))
    assert reply.message.tool_calls[0].name == "weather"


@pytest.mark.parametrize(
    "calls",
    [
        (ToolCall("c1", "f", "{}"), ToolCall("c1", "g", "{}")),
        (ToolCall(1, "f", "{}"),),  # type: ignore[arg-type]
        (ToolCall("c1", None, "{}"),),  # type: ignore[arg-type]
        (ToolCall("c1", "f", {}),),  # type: ignore[arg-type]
    ],
)
async def test_calls_that_cannot_be_recorded_are_a_malformed_reply(calls, make_request):
    model = ScriptedModel(lambda request: ModelReply(assistant(*calls), "own"))
    with pytest.raises(errors.MalformedReply, match="message has"):
        await ask(model, make_request(tools=TOOLS))
