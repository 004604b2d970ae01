"""Retries: inside one deadline, as the provider asks, and every attempt on record."""

from __future__ import annotations

import asyncio

import pytest
from test_provider_wire import FORMATS, KEY
from wire_server import answer, wire_server

from holdfast.core.errors import InvalidSettings
from holdfast.models import errors
from holdfast.models.choose import model_from_name
from holdfast.models.port import Usage
from holdfast.models.retry import RetryPolicy, elapsed_ms, with_retries

QUICK = RetryPolicy(max_attempts=4, first_wait_seconds=0.001)


def failing(*failures: Exception, then: str = "done"):
    left = list(failures)

    async def call() -> str:
        if left:
            raise left.pop(0)
        return then

    return call


async def test_a_retryable_error_is_tried_again_and_both_attempts_are_recorded():
    reply, attempts = await with_retries(
        failing(errors.ServerError("boom")), deadline_seconds=5, policy=QUICK
    )
    assert reply == "done"
    assert [(a.outcome, a.error, a.message) for a in attempts] == [
        ("error", "server_error", "boom"),
        ("ok", None, None),
    ]
    assert attempts[0].wait_ms == 0
    assert all(attempt.started_at.endswith("Z") for attempt in attempts)
    assert elapsed_ms(attempts) >= sum(attempt.wait_ms for attempt in attempts)


async def test_an_error_that_retrying_cannot_mend_is_raised_at_once():
    call = failing(errors.AuthenticationFailed())
    with pytest.raises(errors.AuthenticationFailed) as caught:
        await with_retries(call, deadline_seconds=5, policy=QUICK)
    assert len(caught.value.attempts) == 1
    assert await call() == "done"


async def test_the_last_error_is_raised_with_all_attempts_when_they_are_used_up():
    call = failing(*(errors.ConnectionDropped(f"drop {n}") for n in range(9)))
    with pytest.raises(errors.ConnectionDropped, match="drop 3") as caught:
        await with_retries(call, deadline_seconds=5, policy=QUICK)
    assert [a.message for a in caught.value.attempts] == ["drop 0", "drop 1", "drop 2", "drop 3"]


async def test_an_outage_is_waited_out_as_long_as_the_deadline_allows():
    kinds = (errors.RateLimited, errors.ServerError, errors.Overloaded, errors.Unreachable)
    call = failing(*(kind() for _ in range(10) for kind in kinds))
    patient = RetryPolicy(first_wait_seconds=0.001, max_wait_seconds=0.002)
    reply, attempts = await with_retries(call, deadline_seconds=30, policy=patient)
    assert (reply, len(attempts)) == ("done", 41)


async def test_an_outage_that_lasts_ends_with_its_own_error_at_the_deadline():
    call = failing(*(errors.RateLimited("slow down") for _ in range(10_000)))
    patient = RetryPolicy(first_wait_seconds=0.01, max_wait_seconds=0.05)
    with pytest.raises(errors.RateLimited, match="slow down") as caught:
        await with_retries(call, deadline_seconds=0.5, policy=patient)
    assert len(caught.value.attempts) > 4


async def test_replies_that_are_not_replies_are_paid_for_a_few_times_only():
    call = failing(*(errors.MalformedReply() for _ in range(100)))
    patient = RetryPolicy(first_wait_seconds=0.001)
    with pytest.raises(errors.MalformedReply) as caught:
        await with_retries(call, deadline_seconds=30, policy=patient)
    assert len(caught.value.attempts) == 4


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("deadline", RetryPolicy(max_attempts=None)),
        ("off", RetryPolicy(max_attempts=1)),
        ("3", RetryPolicy(max_attempts=3)),
    ],
)
def test_the_setting_says_how_often_to_try(text, policy):
    assert RetryPolicy.from_setting(text) == policy


@pytest.mark.parametrize("text", ["", "0", "-1", "often", "1.5", "٣", "1000"])
def test_a_setting_that_says_nothing_of_use_is_refused(text):
    with pytest.raises(InvalidSettings, match="retry is"):
        RetryPolicy.from_setting(text)


async def test_a_model_without_a_policy_of_its_own_goes_by_the_request(make_request):
    wire = FORMATS["anthropic"]
    broken = answer(wire.error("api_error", "on fire"), 500, retry_after_ms="1")
    async with wire_server(*[broken] * 3) as server:
        model = model_from_name(wire.name.format(url=server.url), api_key=KEY)
        with pytest.raises(errors.ServerError):
            await model.request(make_request(retry="2"))
        with pytest.raises(errors.ServerError):
            await model.request(make_request(retry="off"))
        await model.close()
    assert len(server.requests) == 3


async def test_retry_after_is_waited_for_before_the_next_attempt():
    call = failing(errors.RateLimited(retry_after=0.05))
    _, attempts = await with_retries(call, deadline_seconds=5, policy=QUICK)
    assert attempts[1].wait_ms == 50


async def test_a_wait_that_would_outlast_the_deadline_is_not_begun():
    call = failing(errors.RateLimited(retry_after=3600))
    with pytest.raises(errors.RateLimited):
        async with asyncio.timeout(10):
            await with_retries(call, deadline_seconds=30, policy=QUICK)


async def test_the_deadline_cancels_the_attempt_in_flight():
    cancelled = asyncio.Event()

    async def hang() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return "never"

    with pytest.raises(errors.ModelTimeout, match=r"0\.02 s") as caught:
        async with asyncio.timeout(10):
            await with_retries(hang, deadline_seconds=0.02, policy=QUICK)
    assert cancelled.is_set()
    assert [a.outcome for a in caught.value.attempts] == ["timeout"]


async def test_the_deadline_covers_all_attempts_together():
    async def fail_then_hang() -> str:
        if not made:
            made.append(1)
            raise errors.ServerError
        await asyncio.Event().wait()
        return "never"

    made: list[int] = []
    with pytest.raises(errors.ModelTimeout) as caught:
        await with_retries(fail_then_hang, deadline_seconds=0.05, policy=QUICK)
    assert [a.outcome for a in caught.value.attempts] == ["error", "timeout"]


async def test_cancelling_the_caller_is_not_taken_for_a_timeout():
    entered = asyncio.Event()

    async def hang() -> str:
        entered.set()
        await asyncio.Event().wait()
        return "never"

    task = asyncio.create_task(with_retries(hang, deadline_seconds=60, policy=QUICK))
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_waits_grow_with_jitter_up_to_the_cap():
    policy = RetryPolicy(first_wait_seconds=1, max_wait_seconds=8)
    for failures, expected in ((1, 1), (2, 2), (3, 4), (4, 8), (5, 8), (5000, 8)):
        wait = policy.wait_seconds(failures, errors.ServerError())
        assert expected / 2 <= wait <= expected


def test_sums_of_usage_keep_the_unknown_unknown():
    known = Usage(10, 5, 2, 0, 1)
    assert (known + known).total_tokens == 30
    assert (known + Usage(input_tokens=1)).to_record() == {
        "input_tokens": 11,
        "output_tokens": None,
        "cached_tokens": None,
        "cache_write_tokens": None,
        "reasoning_tokens": None,
    }
    assert Usage.from_record(known.to_record()) == known
    assert Usage(input_tokens=3).total_tokens is None
