"""What a call is counted as, by what happened to each of its requests: one table for all."""

from __future__ import annotations

import asyncio
import re
import socket
from decimal import Decimal
from pathlib import Path

import pytest
from test_provider_wire import FORMATS, KEY, good, half
from wire_server import Silence, answer, drop_after, wire_server

from holdfast.core.errors import InvalidSettings, ModelError
from holdfast.core.messages import assistant, user
from holdfast.models import errors
from holdfast.models.asking import ask, attempts_of, ceiling_of
from holdfast.models.choose import model_from_name
from holdfast.models.port import Attempt, ModelReply, ModelRequest, Usage
from holdfast.models.prices import Price, PricedModel, declared_prices, prices_text
from holdfast.models.retry import RetryPolicy
from holdfast.models.scripted import ScriptedModel
from holdfast.models.spend import Ceiling, Spent, affordable_attempts, spent

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "spend.md"
CEILING = Ceiling("0.50", 100, 200)
QUICK = RetryPolicy(max_attempts=2, first_wait_seconds=0.001)


def error(wire, status):
    return answer(wire.error("some_error", "no"), status)


# What the server does, by what the page calls it.
PLAYS = {
    "a reply": lambda wire, watch: [good(wire, watch)],
    "the request is rejected (400)": lambda wire, watch: [error(wire, 400)],
    "the credentials are rejected (401, 403)": lambda wire, watch: [error(wire, 401)],
    "no such model (404)": lambda wire, watch: [error(wire, 404)],
    "rate limited (429)": lambda wire, watch: [error(wire, 429)] * 2,
    "unavailable or overloaded (503, 529)": lambda wire, watch: [error(wire, 503)] * 2,
    "a server error (500, 502, 504)": lambda wire, watch: [error(wire, 500)] * 2,
    "the connection breaks off": lambda wire, watch: (
        [drop_after(*half(wire)) if watch else drop_after()] * 2
    ),
    "the deadline passes": lambda wire, watch: [Silence()],
    "a reply that is not one": lambda wire, watch: [answer(b"<html>hello</html>")] * 2,
    "rate limited, then a reply": lambda wire, watch: [error(wire, 429), good(wire, watch)],
    "a server error, then a reply": lambda wire, watch: [error(wire, 500), good(wire, watch)],
    "nobody listens": None,
    "the name is not known": None,
}


def rows() -> dict[str, tuple[str, str]]:
    """Return (known, unknown requests) of each row of the page."""
    pattern = r"^\| (.+?) \| (nothing|its cost) \| (\d) \|"
    found = re.findall(pattern, PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return {what: (known, unknown) for what, known, unknown in found}


def test_the_page_has_a_row_for_each_thing_that_can_happen():
    assert set(rows()) == set(PLAYS)


@pytest.mark.parametrize("streamed", [False, True], ids=["plain", "streamed"])
@pytest.mark.parametrize("wire", FORMATS.values(), ids=FORMATS.keys())
@pytest.mark.parametrize("what", PLAYS)
async def test_a_call_is_counted_as_the_page_says(what, wire, streamed, make_request):
    watch = (lambda delta: None) if streamed else None
    plays = PLAYS[what]
    # A name below .invalid is never known, and the port of a closed listener is not listened to.
    place = "http://holdfast.invalid" if what == "the name is not known" else _closed_port()
    async with wire_server(*(plays(wire, watch) if plays else [])) as server:
        name = wire.name.format(url=server.url if plays else place)
        model = model_from_name(name, api_key=KEY, retry=QUICK)
        request = make_request(deadline_seconds=0.3 if what == "the deadline passes" else 20)
        reply, attempts = None, ()
        try:
            reply = await model.request(request, on_delta=watch)
            attempts = reply.attempts
        except ModelError as failure:
            attempts = attempts_of(failure)
        finally:
            await model.close()
    counted = spent(attempts, CEILING, reply)
    known, unknown = rows()[what]
    # Each of two attempts that failed alike counts by itself.
    times = len([one for one in attempts if one.outcome != "ok"]) if unknown != "0" else 0
    assert counted.unknown == int(unknown) * times
    assert Decimal(counted.held_usd) == Decimal("0.50") * times
    if known == "nothing":
        assert (counted.usd, counted.usage["output_tokens"]) == ("0", 0)
    else:
        assert Decimal(counted.usd) > 0
        assert counted.usage["output_tokens"] > 0


def _closed_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"http://127.0.0.1:{listener.getsockname()[1]}"


def attempt(outcome="error", accepted=True) -> Attempt:
    return Attempt("2026-01-01T00:00:00.000000Z", 0, 0, outcome, accepted=accepted)


def test_each_attempt_that_may_have_been_charged_is_held_at_the_ceiling():
    counted = spent([attempt(), attempt(accepted=False), attempt("timeout")], CEILING)
    assert counted == Spent(
        "0",
        {"input_tokens": 0, "output_tokens": 0},
        2,
        "1.00",
        {"input_tokens": 200, "output_tokens": 400},
    )


def test_a_reply_after_a_retried_server_error_has_a_known_and_an_unknown_part():
    reply = ModelReply(assistant("hi"), "m", usage=Usage(10, 5), cost_usd="0.02")
    counted = spent([attempt(), attempt("ok")], CEILING, reply)
    assert (counted.usd, counted.usage["output_tokens"]) == ("0.02", 5)
    assert (counted.unknown, counted.held_usd) == (1, "0.50")


def test_a_call_without_a_word_about_its_attempts_may_have_cost_one():
    assert spent([], CEILING).unknown == 1
    assert spent([], CEILING, ModelReply(assistant("hi"), "m", cost_usd="0")).unknown == 0


def test_without_a_ceiling_the_unknown_has_no_bound():
    counted = spent([attempt()], Ceiling(None, 1, 1))
    assert (counted.unknown, counted.held_usd) == (1, None)


@pytest.mark.parametrize(
    ("failure", "accepted"),
    [
        (errors.BadRequest("no"), False),
        (errors.Unreachable("nobody"), False),
        (errors.ServerError("boom"), True),
        (errors.RateLimited("in the middle of a stream", accepted=True), True),
        (ModelError("something else"), True),
    ],
)
def test_an_error_without_attempts_stands_for_one(failure, accepted):
    (one,) = attempts_of(failure)
    assert (one.outcome, one.error, one.accepted) == ("error", failure.code, accepted)


async def test_no_more_attempts_are_made_than_the_caller_can_pay_for():
    asked: list[int] = []

    def fail(request: ModelRequest) -> str:
        asked.append(1)
        raise errors.ServerError("boom")

    model = ScriptedModel(fail, retry=RetryPolicy(first_wait_seconds=0.001))
    request = ModelRequest((user("x"),), deadline_seconds=20, max_charged_attempts=3)
    with pytest.raises(errors.ServerError):
        await model.request(request)
    assert len(asked) == 3


async def test_attempts_that_cost_nothing_are_not_counted_against_the_caller():
    left = [errors.RateLimited() for _ in range(5)]

    def answer_later(request: ModelRequest) -> str:
        if left:
            raise left.pop()
        return "at last"

    model = ScriptedModel(answer_later, retry=RetryPolicy(first_wait_seconds=0.001))
    request = ModelRequest((user("x"),), max_charged_attempts=1)
    assert (await model.request(request)).message.text == "at last"


@pytest.mark.parametrize(
    ("left", "ceiling", "attempts"),
    [("1.00", "0.30", 3), ("0.10", "0.30", 1), ("1", "0", None), ("1", None, None)],
)
def test_how_many_attempts_fit_into_what_is_left(left, ceiling, attempts):
    assert affordable_attempts(left, Ceiling(ceiling, 1, 1)) == attempts


async def test_a_connection_that_is_never_made_is_not_begun_again_shortly_before_the_deadline():
    """Cut off while it connects, nobody would know whether the request was accepted."""

    async def connect(request: ModelRequest) -> str:
        await asyncio.sleep(0.2)
        raise errors.Unreachable("no route")

    model = ScriptedModel(connect, retry=RetryPolicy(first_wait_seconds=0.001))
    with pytest.raises(errors.Unreachable) as caught:
        await model.request(ModelRequest((user("x"),), deadline_seconds=0.5))
    assert [one.accepted for one in caught.value.attempts] == [False, False]


PRICE = Price.of({"input": "0.10", "output": "0.40"})


@pytest.mark.parametrize(
    ("price", "usage", "cost"),
    [
        (PRICE, Usage(1_000_000, 1_000_000), "0.5"),
        (PRICE, Usage(3, 7, cached_tokens=3), "0.0000031"),
        (PRICE, Usage(3, None), None),
        (Price.of(("1", "2")), Usage(10, 10), "0.00003"),
        (
            Price.of({"input": "1", "output": "0", "cached_input": "0.1", "cache_write": "1.25"}),
            Usage(1_000_000, 5, cached_tokens=400_000, cache_write_tokens=100_000),
            "0.665",
        ),
    ],
)
def test_a_declared_price_gives_the_exact_cost(price, usage, cost):
    assert price.cost(usage) == cost


async def test_a_local_model_with_a_declared_price_has_a_cost_and_a_ceiling():
    model = PricedModel(ScriptedModel(lambda request: "four"), PRICE)
    assert ceiling_of(model, 1_000_000, 1_000_000) == "0.5"
    reply = await ask(model, ModelRequest((user("x" * 40),)))
    assert (reply.usage.input_tokens, reply.usage.output_tokens) == (10, 1)
    assert reply.cost_usd == "0.0000014"
    assert reply.price_table == 'declared {"input":"0.10","output":"0.40"}'


async def test_a_reply_without_usage_has_no_cost_whatever_was_declared():
    model = PricedModel(ScriptedModel(lambda r: ModelReply(assistant("x"), "m")), PRICE)
    reply = await ask(model, ModelRequest((user("x"),)))
    assert (reply.cost_usd, reply.price_table) == (None, None)


def test_the_ceiling_takes_the_dearest_kind_of_input():
    price = Price.of({"input": "1", "output": "0", "cache_write": "2"})
    assert PricedModel(ScriptedModel(lambda r: ""), price).ceiling_usd(1_000_000, 0) == "2"


def test_declared_prices_have_one_text():
    text = '{"b":{"input":"1","output":"2"},"a:b@http://c/v1":["0.5",1]}'
    prices = declared_prices(text)
    assert prices["a:b@http://c/v1"] == Price(Decimal("0.5"), Decimal(1))
    again = prices_text(prices)
    assert declared_prices(again) == prices
    assert prices_text(declared_prices(again)) == again
    assert prices_text({}) == ""
    assert declared_prices("") == {}


@pytest.mark.parametrize(
    "wrong",
    [
        "[]",
        "nothing",
        '{"a":' * 5000,
        '{"m": "0.1"}',
        '{"m": {"input": "0.1"}}',
        '{"m": {"input": "0.1", "output": "lots"}}',
        '{"m": {"input": "-1", "output": "1"}}',
        '{"m": {"input": "NaN", "output": "1"}}',
        '{"m": {"input": true, "output": "1"}}',
        '{"m": {"input": "1e999", "output": "1"}}',
        '{"m": {"input": "1", "output": "1", "per": "month"}}',
    ],
)
def test_a_price_that_cannot_be_used_is_refused(wrong):
    with pytest.raises(InvalidSettings, match="price"):
        declared_prices(wrong)
