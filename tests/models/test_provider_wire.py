"""Real SDKs against a local server: what is sent, what comes back, and how it fails.

Every way to fail is played for both wire formats, plain and streamed.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
from wire_formats import (
    anthropic_events,
    anthropic_message,
    openai_chat,
    openai_chat_events,
    openai_response,
    openai_response_events,
    response_text,
)
from wire_server import Play, Silence, answer, drop_after, stream, wire_server

from holdfast.models import errors
from holdfast.models.choose import model_from_name
from holdfast.models.port import Delta, Model
from holdfast.models.retry import RetryPolicy

KEY = "sk-test-0123456789abcdef"
ONE_TRY = RetryPolicy(max_attempts=1)
QUICK = RetryPolicy(max_attempts=3, first_wait_seconds=0.001)


@dataclass(frozen=True)
class Format:
    name: str
    body: Callable[..., dict]
    events: Callable[..., list[str]]
    error: Callable[[str, str], dict]


FORMATS = {
    "openai-responses": Format(
        "openai:gpt-5-mini@{url}/v1",
        lambda: openai_response(response_text("Hello.")),
        openai_response_events,
        lambda kind, text: {"error": {"message": text, "type": kind, "code": kind}},
    ),
    "openai-chat": Format(
        "openai-chat:gpt-4o@{url}/v1",
        openai_chat,
        openai_chat_events,
        lambda kind, text: {"error": {"message": text, "type": kind, "code": kind}},
    ),
    "anthropic": Format(
        "anthropic:claude-sonnet-5-5@{url}",
        anthropic_message,
        anthropic_events,
        lambda kind, text: {"type": "error", "error": {"type": kind, "message": text}},
    ),
}


@pytest.fixture(params=sorted(FORMATS))
def wire(request) -> Format:
    return FORMATS[request.param]


@pytest.fixture(params=["plain", "streamed"])
def watch(request) -> Callable[[Delta], None] | None:
    return (lambda delta: None) if request.param == "streamed" else None


@asynccontextmanager
async def provider(wire: Format, *plays: Play, retry: RetryPolicy = ONE_TRY):
    async with wire_server(*plays) as server:
        model = model_from_name(wire.name.format(url=server.url), api_key=KEY, retry=retry)
        try:
            yield server, model
        finally:
            await model.close()


def good(wire: Format, watch: object) -> Play:
    return stream(*wire.events("Hel", "lo.")) if watch else answer(wire.body())


def half(wire: Format) -> list[str]:
    """Return the events of a streamed "Hello." up to its first half."""
    events = wire.events("Hel", "lo.")
    return events[: next(n for n, event in enumerate(events) if "lo." in event)]


async def failure(
    model: Model, request, watch, kind: type[errors.ProviderError]
) -> errors.ProviderError:
    with pytest.raises(kind) as caught:
        await model.request(request, on_delta=watch)
    assert type(caught.value) is kind
    assert caught.value.attempts
    assert KEY not in str(caught.value)
    assert KEY not in repr(caught.value.attempts)
    return caught.value


async def test_a_good_reply_says_all_that_is_known_about_it(wire, watch, make_request):
    async with provider(wire, good(wire, watch)) as (server, model):
        reply = await model.request(make_request(system="Be brief."), on_delta=watch)
    assert reply.message.text == "Hello."
    assert reply.finish_reason == "stop"
    assert reply.response_id
    assert reply.usage.input_tokens
    assert reply.usage.output_tokens
    assert reply.cost_usd is not None
    assert float(reply.cost_usd) > 0
    assert reply.price_table.startswith("genai-prices ")
    assert [attempt.outcome for attempt in reply.attempts] == ["ok"]
    assert KEY in str(server.requests[0].headers)
    assert KEY not in repr(reply)
    assert KEY not in model.name


async def test_a_streamed_reply_is_shown_piece_by_piece_while_it_is_written(wire, make_request):
    first_shown = asyncio.Event()
    shown: list[Delta] = []
    events = wire.events("Hel", "lo.")

    def watch(delta: Delta) -> None:
        shown.append(delta)
        first_shown.set()

    async def play(connection) -> None:
        await connection.start_stream()
        for event in events:
            if "lo." in event:
                await first_shown.wait()
            await connection.send_event(event)
        await connection.end_stream()

    async with provider(wire, play) as (_, model):
        reply = await model.request(make_request(), on_delta=watch)
    assert shown == [Delta("text", "Hel"), Delta("text", "lo.")]
    assert reply.message.text == "Hello."


async def test_429_with_retry_after_is_waited_for_and_tried_again(wire, watch, make_request):
    limited = answer(wire.error("rate_limit_error", "slow down"), 429, retry_after_ms="30")
    async with provider(wire, limited, good(wire, watch), retry=QUICK) as (server, model):
        reply = await model.request(make_request(), on_delta=watch)
    assert len(server.requests) == 2
    assert [(a.outcome, a.error) for a in reply.attempts] == [
        ("error", "rate_limited"),
        ("ok", None),
    ]
    assert reply.attempts[1].wait_ms == 30


async def test_a_retry_after_past_the_deadline_gives_up_at_once(wire, watch, make_request):
    limited = answer(wire.error("rate_limit_error", "slow down"), 429, retry_after="3600")
    async with provider(wire, limited, retry=QUICK) as (server, model):
        error = await failure(model, make_request(), watch, errors.RateLimited)
    assert error.retry_after == 3600
    assert "slow down" in str(error)
    assert len(server.requests) == 1


@pytest.mark.parametrize("status", [500, 502, 503, 529])
async def test_a_server_error_is_tried_again_by_us_and_never_by_the_sdk(
    wire, watch, status, make_request
):
    broken = answer(wire.error("api_error", "on fire"), status)
    async with provider(wire, broken, broken, broken, retry=QUICK) as (server, model):
        kind = errors.Overloaded if status in (503, 529) else errors.ServerError
        error = await failure(model, make_request(), watch, kind)
    assert len(server.requests) == len(error.attempts) == 3
    assert {attempt.error for attempt in error.attempts} == {error.code}


@pytest.mark.parametrize(
    ("status", "kind", "text", "expected"),
    [
        (400, "invalid_request_error", "no such field", errors.BadRequest),
        (401, "authentication_error", f"bad key {KEY}", errors.AuthenticationFailed),
        (403, "permission_error", "not for you", errors.AuthenticationFailed),
        (404, "not_found_error", "no such model", errors.BadRequest),
        (413, "request_too_large", "too many bytes", errors.BadRequest),
        (402, "billing_error", "no credit", errors.QuotaExceeded),
    ],
)
async def test_a_rejected_request_is_not_tried_again(
    wire, watch, status, kind, text, expected, make_request
):
    rejected = answer(wire.error(kind, text), status)
    async with provider(wire, rejected, retry=QUICK) as (server, model):
        error = await failure(model, make_request(), watch, expected)
    assert len(server.requests) == 1
    assert error.details["status"] == status


@pytest.mark.parametrize(
    ("name", "kind", "text"),
    [
        ("openai-responses", "context_length_exceeded", "the input exceeds the context window"),
        ("openai-chat", "context_length_exceeded", "maximum context length is 128000 tokens"),
        ("anthropic", "invalid_request_error", "prompt is too long: 210000 tokens > 200000"),
    ],
)
async def test_a_request_too_long_for_the_model_has_its_own_error(
    name, kind, text, watch, make_request
):
    wire = FORMATS[name]
    async with provider(wire, answer(wire.error(kind, text), 400)) as (_, model):
        await failure(model, make_request(), watch, errors.ContextTooLong)


@pytest.mark.parametrize(
    "body", [b"{ not json", b"", b"[]", b'"text"', b'{"surprise": true}', b"\xff\xfe"]
)
async def test_a_malformed_body_is_a_malformed_reply(wire, body, make_request):
    async with provider(wire, answer(body), answer(wire.body()), retry=QUICK) as (_, model):
        reply = await model.request(make_request())
    assert [a.error for a in reply.attempts] == ["malformed_reply", None]


async def test_a_malformed_event_in_a_stream_is_a_malformed_reply(wire, make_request):
    garbage = "event: content_block_delta\ndata: { not json\n\n"
    broken = stream(*half(wire), garbage)
    shown: list[Delta] = []
    plays = broken, stream(*wire.events("Hel", "lo."))
    async with provider(wire, *plays, retry=QUICK) as (_, model):
        reply = await model.request(make_request(), on_delta=shown.append)
    assert [a.error for a in reply.attempts] == ["malformed_reply", None]
    restart = shown.index(Delta("restart"))
    assert "".join(delta.text for delta in shown[restart:]) == reply.message.text == "Hello."


async def test_the_deadline_really_closes_the_connection(wire, watch, make_request):
    silence = Silence()
    async with provider(wire, good(wire, watch), silence, retry=QUICK) as (server, model):
        # The first request of a process loads half of an SDK, which is not what is timed here.
        await model.request(make_request(), on_delta=watch)
        error = await failure(model, make_request(deadline_seconds=1), watch, errors.ModelTimeout)
        await asyncio.wait_for(silence.client_left.wait(), 10)
    assert [attempt.outcome for attempt in error.attempts] == ["timeout"]
    assert len(server.requests) == 2


async def test_a_stream_that_stalls_is_cut_at_the_deadline(wire, make_request):
    stalled = Silence()

    async def play(connection) -> None:
        await connection.start_stream()
        await connection.send_event(wire.events("Hel")[0])
        await stalled(connection)

    async with provider(wire, stream(*wire.events("Hi.")), play) as (_, model):
        await model.request(make_request(), on_delta=lambda delta: None)
        request = make_request(deadline_seconds=1)
        await failure(model, request, lambda delta: None, errors.ModelTimeout)
        await asyncio.wait_for(stalled.client_left.wait(), 10)


async def test_cancelling_the_caller_closes_the_connection_and_leaves_the_model_usable(
    wire, watch, make_request
):
    silence = Silence()
    async with provider(wire, silence, good(wire, watch)) as (_, model):
        asking = asyncio.create_task(model.request(make_request(), on_delta=watch))
        await silence.asked.wait()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await asyncio.wait_for(silence.client_left.wait(), 10)
        assert (await model.request(make_request(), on_delta=watch)).message.text == "Hello."


async def test_a_connection_dropped_before_the_answer_is_tried_again(wire, watch, make_request):
    async with provider(wire, drop_after(), good(wire, watch), retry=QUICK) as (_, model):
        reply = await model.request(make_request(), on_delta=watch)
    assert [a.error for a in reply.attempts] == ["connection_dropped", None]


async def test_a_stream_cut_in_the_middle_is_void_and_said_so_to_the_watcher(wire, make_request):
    shown: list[Delta] = []
    plays = drop_after(*half(wire)), stream(*wire.events("Hel", "lo."))
    async with provider(wire, *plays, retry=QUICK) as (_, model):
        reply = await model.request(make_request(), on_delta=shown.append)
    assert [a.error for a in reply.attempts] == ["connection_dropped", None]
    restart = shown.index(Delta("restart"))
    assert restart > 0
    assert "".join(delta.text for delta in shown[restart:]) == "Hello."


async def test_a_stream_that_ends_politely_but_early_is_not_taken_for_a_reply(wire, make_request):
    async with provider(wire, stream(*half(wire))) as (_, model):
        await failure(model, make_request(), lambda delta: None, errors.ConnectionDropped)


@pytest.mark.parametrize(
    ("name", "event"),
    [
        ("anthropic", {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}),
        (
            "openai-chat",
            {"error": {"type": "server_error", "code": "x", "message": "x"}},
        ),
        (
            "openai-responses",
            {"type": "error", "code": "server_error", "message": "x", "sequence_number": 4},
        ),
    ],
)
async def test_an_error_told_inside_a_stream_is_sorted_like_any_other(name, event, make_request):
    wire = FORMATS[name]
    told = f"event: error\ndata: {json.dumps(event)}\n\n"
    plays = stream(*half(wire), told), stream(*wire.events("Hello."))
    async with provider(wire, *plays, retry=QUICK) as (_, model):
        reply = await model.request(make_request(), on_delta=lambda delta: None)
    error = "overloaded" if name == "anthropic" else "server_error"
    # It had begun to answer, so it may charge for that, whatever it says went wrong.
    assert [(a.error, a.accepted) for a in reply.attempts] == [(error, True), (None, True)]


async def test_a_server_that_is_not_there_is_unreachable(wire, watch, make_request):
    async with wire_server() as server:
        url = server.url
    model = model_from_name(wire.name.format(url=url), api_key=KEY, retry=ONE_TRY)
    await failure(model, make_request(), watch, errors.Unreachable)
    await model.close()


async def test_many_requests_at_once_share_one_model(wire, make_request):
    async with provider(wire, *(answer(wire.body()) for _ in range(20))) as (server, model):
        replies = await asyncio.gather(*(model.request(make_request()) for _ in range(20)))
    assert {reply.message.text for reply in replies} == {"Hello."}
    assert len(server.requests) == 20
