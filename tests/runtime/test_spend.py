"""A session says truthfully what it spent: known, held for what nobody knows, and how often."""

from __future__ import annotations

import socket
from decimal import Decimal

import pytest

import holdfast
from holdfast.core.messages import assistant
from holdfast.models import errors
from holdfast.models.port import ModelReply, ModelRequest, Usage
from holdfast.models.prices import Price, PricedModel
from holdfast.models.retry import RetryPolicy
from holdfast.models.scripted import ScriptedModel
from holdfast.stores.verify import verify
from holdfast.views.documents import turn_document
from holdfast.views.transcript import TurnTranscript

from .conftest import cell

QUICK = RetryPolicy(first_wait_seconds=0.001)
PRICE = {"scripted": ("1", "1")}  # a dollar for a million tokens, in and out


def failing(*failures: Exception, code: str = "FINAL('done')"):
    left = list(failures)

    def answer(request: ModelRequest) -> ModelReply:
        if left and request.purpose == "step":
            raise left.pop(0)
        return ModelReply(assistant(cell(code)), "m", usage=Usage(1000, 1000))

    return ScriptedModel(answer, retry=QUICK)


async def spend_of(runtime, session):
    assert (await verify(runtime.store, session.id)).ok
    return (await runtime.state(session.id)).spend


async def test_an_address_where_nobody_listens_costs_nothing():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    name = f"openai-chat:gpt-4o@{url}/v1"
    options = {"max_usd": "2.50", "call_timeout_seconds": 2}
    async with await holdfast.open("memory:", model=name, **options) as runtime:
        session = await runtime.start()
        for _ in range(2):
            result = await session.send("six words in a short message")
            assert isinstance(result, holdfast.Failed)
            assert result.code == "unreachable"
            assert (result.cost_usd, result.held_usd, result.unknown_calls) == (0, None, 0)
            assert result.usage == {"input_tokens": 0, "output_tokens": 0}
        spend = await spend_of(runtime, session)
        assert (spend.usd, spend.held_usd, spend.tokens, spend.held_tokens) == ("0", "0", 0, 0)
        (first, _) = await runtime.store.read_events(session.id, types=["step.put"])
        attempts = await runtime.value(session.id, first.fact().attempts)
        assert len(attempts) > 1
        assert not any(one["accepted"] for one in attempts)


@pytest.mark.parametrize(
    "failure", [errors.BadRequest("no"), errors.AuthenticationFailed("no"), errors.ContextTooLong()]
)
async def test_a_rejected_request_costs_nothing(failure):
    model = failing(failure)
    async with await holdfast.open("memory:", model=model, prices=PRICE) as runtime:
        session = await runtime.start()
        result = await session.send("x")
        assert isinstance(result, holdfast.Failed)
        spend = await spend_of(runtime, session)
        assert (spend.usd, spend.held_usd, spend.unknown_usd) == ("0", "0", 0)


async def test_a_retried_server_error_counts_beside_the_reply_that_followed():
    model = failing(errors.ServerError("boom"), errors.RateLimited("slow down"))
    options = {"prices": PRICE, "max_output_tokens": 100_000, "max_usd": "1"}
    async with await holdfast.open("memory:", model=model, **options) as runtime:
        session = await runtime.start()
        result = await session.send("x")
        assert isinstance(result, holdfast.Final)
        assert result.cost_usd == Decimal("0.002")
        assert result.unknown_calls == 1
        # One attempt may have cost what 100,000 tokens of reply and the prompt cost.
        assert 0.1 < float(result.held_usd) < 0.11
        spend = await spend_of(runtime, session)
        assert (spend.usd, spend.unknown_usd, spend.unbounded_usd) == ("0.002", 1, 0)
        assert spend.tokens == 2000
        assert spend.held_tokens > 100_000
        (turn,), (step,) = await session.turns(), await session.steps()
        assert (turn.cost_usd, turn.held_usd) == (result.cost_usd, result.held_usd)
        assert step.cost_usd == Decimal("0.002")
        money = (turn.cost_usd, turn.held_usd, step.cost_usd)
        assert all(isinstance(amount, Decimal) for amount in money)
        (told,) = [item async for item in session.transcript()]
        assert isinstance(told, TurnTranscript)
        assert (told.cost_usd, told.held_usd) == (result.cost_usd, result.held_usd)
        assert turn_document(told)["cost_usd"] == "0.002"


async def test_retries_that_may_be_charged_end_where_the_limit_does():
    model = failing(*(errors.ServerError("boom") for _ in range(50)))
    options = {"prices": PRICE, "max_output_tokens": 100_000, "max_usd": "0.35"}
    async with await holdfast.open("memory:", model=model, **options) as runtime:
        session = await runtime.start()
        result = await session.send("x")
        assert isinstance(result, holdfast.Failed)
        spend = await spend_of(runtime, session)
        assert spend.usd == "0"
        assert 0.3 < float(spend.held_usd) <= 0.35


async def test_a_retried_leaf_call_counts_by_itself():
    left = [errors.ServerError("boom")]

    def answer(request: ModelRequest) -> ModelReply:
        if request.purpose == "leaf":
            if left:
                raise left.pop()
            return ModelReply(assistant("leaf"), "m", usage=Usage(10, 10))
        return ModelReply(assistant(cell("FINAL(lm('x'))")), "m", usage=Usage(1000, 1000))

    model = ScriptedModel(answer, retry=QUICK)
    options = {"prices": PRICE, "max_output_tokens": 100_000}
    async with await holdfast.open("memory:", model=model, **options) as runtime:
        session = await runtime.start()
        result = await session.send("x")
        assert isinstance(result, holdfast.Final)
        assert (result.value, result.unknown_calls) == ("leaf", 1)
        spend = await spend_of(runtime, session)
        assert spend.usd == "0.00202"
        assert 0.1 < float(spend.held_usd) < 0.11


async def test_a_limit_in_dollars_works_with_a_local_model_whose_price_is_declared():
    model = failing(code="print('on')")
    options = {"prices": PRICE, "max_usd": "0.005", "max_steps": 9}
    async with await holdfast.open("memory:", model=model, **options) as runtime:
        session = await runtime.start()
        result = await session.send("x")
        assert isinstance(result, holdfast.BudgetExceeded)
        assert (result.limit, result.cost_usd, result.steps) == ("max_usd", Decimal("0.006"), 3)


async def test_a_model_that_was_priced_where_it_was_made_needs_no_setting():
    model = PricedModel(failing(), Price.of(("1", "1")))
    async with await holdfast.open("memory:", model=model, max_usd="1") as runtime:
        session = await runtime.start()
        assert (await session.send("x")).cost_usd == Decimal("0.002")


async def test_retrying_can_be_switched_off():
    asked: list[int] = []

    class Own:
        """A model that keeps to the request."""

        name = "own"

        def ceiling_usd(self, input_tokens, output_tokens):
            return "0"

        async def request(self, request, *, on_delta=None):
            asked.append(1)
            assert request.retry == "off"
            raise errors.RateLimited("slow down")

        async def close(self):
            pass

    async with await holdfast.open("memory:", model=Own(), retry="off") as runtime:
        session = await runtime.start()
        assert isinstance(await session.send("x"), holdfast.Failed)
    assert asked == [1]
