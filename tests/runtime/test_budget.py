"""Limits are enforced before each call, from what the log says was used, across resume."""

import asyncio
import json
from decimal import Decimal
from pathlib import Path

import pytest

import holdfast
from holdfast.core import facts
from holdfast.core.errors import InvalidSettings
from holdfast.core.messages import assistant
from holdfast.core.payloads import slot
from holdfast.models.port import ModelReply, Usage
from holdfast.models.scripted import ScriptedModel
from holdfast.runtime.settings import resolve
from holdfast.stores.memory.store import MemorySessionStore

from .conftest import Lab, cell, replies


def priced(text: str, usd: str | None, tokens: int = 10) -> ModelReply:
    return ModelReply(assistant(text), "priced", usage=Usage(tokens, tokens, 0, 0, 0), cost_usd=usd)


async def test_the_step_limit_warns_the_model_and_then_ends_the_turn(lab: Lab) -> None:
    runtime = await lab.open(replies(*[cell("x = 1")] * 10), max_steps=4)
    session = await runtime.start()
    result = await session.send("x")
    assert isinstance(result, holdfast.BudgetExceeded)
    assert (result.limit, result.steps) == ("max_steps", 4)
    assert len(lab.requests) == 4
    notes = ["[limit]" in request.messages[-1].text for request in lab.requests]
    assert notes == [False, False, True, True]
    assert (await lab.facts(session.id, "turn.put"))[-1].status == "budget_exceeded"


@pytest.mark.parametrize(
    ("steps", "told"),
    [(1, ["this is the last step"]), (2, ["one more step", "this is the last step"])],
)
async def test_the_model_is_told_of_a_step_limit_that_is_near_from_the_start(
    lab: Lab, steps: int, told: list[str]
) -> None:
    runtime = await lab.open(replies(*[cell("x = 1")] * 3), max_steps=steps)
    session = await runtime.start()
    await session.send("x")
    for request, note in zip(lab.requests, told, strict=True):
        assert f"[limit] {note}" in request.messages[-1].text


async def test_the_turn_limit_opens_no_turn(lab: Lab) -> None:
    runtime = await lab.open(replies(*[cell("FINAL(1)")] * 3), max_turns=1)
    session = await runtime.start()
    await session.send("x")
    result = await session.send("y")
    assert isinstance(result, holdfast.BudgetExceeded)
    assert result.limit == "max_turns"
    assert len(await lab.facts(session.id, "turn.started")) == 1
    assert len(await lab.facts(session.id, "budget.exceeded")) == 1


async def test_the_spend_limit_holds_across_runtimes(lab: Lab) -> None:
    def respond(request):
        return priced(cell("FINAL(1)"), "0.40")

    first = await lab.open(respond, max_usd="1.00")
    session = await first.start()
    await session.send("x")
    await first.close()
    second = await lab.open(respond)
    await second.send(session.id, "y")
    assert isinstance(await second.send(session.id, "z"), holdfast.Final)
    result = await second.send(session.id, "too much")
    assert isinstance(result, holdfast.BudgetExceeded)
    assert (result.limit, result.used) == ("max_usd", Decimal("1.20"))
    assert len(lab.requests) == 3


async def test_leaves_count_towards_the_spend_limit(lab: Lab) -> None:
    def respond(request):
        return priced("ok" if request.purpose == "leaf" else cell("FINAL(map_lm(['x']*6))"), "0.3")

    runtime = await lab.open(respond, max_usd="1", leaf_concurrency=1)
    session = await runtime.start()
    result = await session.send("x")
    assert isinstance(result, holdfast.Final)
    assert [v if isinstance(v, str) else "refused" for v in result.value] == [
        "ok",
        "ok",
        "ok",
        "refused",
        "refused",
        "refused",
    ]
    assert result.cost_usd == Decimal("1.2")


async def test_a_dollar_limit_is_not_hoped_for_when_a_cost_is_unknown(lab: Lab) -> None:
    def respond(request):
        return priced("talk", None)

    runtime = await lab.open(respond, max_usd="5")
    session = await runtime.start()
    result = await session.send("x")
    assert isinstance(result, holdfast.BudgetExceeded)
    assert "and 1 call of unknown cost" in result.error
    assert len(lab.requests) == 1


async def test_a_lost_call_counts_at_its_ceiling_and_the_limit_goes_on_holding(
    tmp_path: Path,
) -> None:
    """A kill during a call must neither be free nor end a session that has budget left."""
    script = tmp_path / "script.jsonl"
    line = {"reply": cell("FINAL(1)"), "cost_usd": 0.25}
    script.write_text("".join(json.dumps(line) + "\n" for _ in range(4)))
    store = MemorySessionStore()
    options = {"model": f"script:{script}", "max_usd": "0.60", "max_output_tokens": 100}
    async with await holdfast.open(store, **options) as runtime:
        session = await runtime.start()
        lease = await store.acquire(session.id)
        state = await store.load_state(session.id)
        # What a process leaves behind that is killed while the model is being asked.
        await store.append(
            lease,
            state.seq,
            [
                facts.TurnStarted(turn=1),
                facts.MessageAppended(message=1, role="user", content=slot("x", "message"), turn=1),
                facts.StepStarted(
                    step=1,
                    turn=1,
                    ordinal=0,
                    reserved_usd="0.25",
                    reserved_input_tokens=500,
                    reserved_output_tokens=100,
                ),
            ],
        )
        await store.release(lease)
        first = await runtime.resume(session.id)
        assert isinstance(first, holdfast.Final)
        assert first.unknown_calls == 1  # nobody knows what the lost call cost
        spend = (await runtime.state(session.id)).spend
        assert (spend.usd, spend.held_usd) == ("0.25", "0.25")
        assert (spend.unknown_usd, spend.unbounded_usd) == (1, 0)
        assert isinstance(await session.send("again"), holdfast.Final)
        last = await session.send("and again")
        assert isinstance(last, holdfast.BudgetExceeded)
        assert last.used == Decimal("0.75")
        started = [step.started for step in await runtime.steps(session.id)]
        assert {step.reserved_usd for step in started} == {"0.25"}
        assert all(step.reserved_output_tokens == 100 for step in started)


async def test_the_token_limit_ends_the_turn(lab: Lab) -> None:
    runtime = await lab.open(lambda request: priced(cell("x = 1"), "0", 50), max_tokens=250)
    session = await runtime.start()
    result = await session.send("x")
    assert isinstance(result, holdfast.BudgetExceeded)
    assert (result.limit, result.used) == ("max_tokens", 300)


async def test_the_context_limit_warns_and_then_ends_the_turn(lab: Lab) -> None:
    reply = cell("print('x' * 4000)")
    runtime = await lab.open(replies(*[reply] * 20), context_tokens=8000, compaction="")
    session = await runtime.start()
    result = await session.send("x")
    assert isinstance(result, holdfast.BudgetExceeded)
    assert result.limit == "context_tokens"
    assert any("context tokens are used" in r.messages[-1].text for r in lab.requests)


async def test_driving_time_ends_a_model_call_in_flight(lab: Lab) -> None:
    never = asyncio.Event()

    async def respond(request):
        await never.wait()
        return "late"

    runtime = await lab.open(respond, turn_seconds=1)
    session = await runtime.start()
    result = await session.send("x")
    assert isinstance(result, holdfast.TimedOut)
    assert (await runtime.state(session.id)).status == "idle"


async def test_driving_time_is_counted_across_resumes(lab: Lab) -> None:
    """What a turn has used up before it was broken off is not given to it again."""
    asked = 0
    never, waiting = asyncio.Event(), asyncio.Event()

    async def respond(request):
        nonlocal asked
        asked += 1
        if asked == 1:
            return ModelReply(assistant("talk"), "slow", usage=Usage(), latency_ms=59_500)
        waiting.set()
        await never.wait()

    class Slow(ScriptedModel):
        async def request(self, request, *, on_delta=None):
            return await respond(request)

    options = {"model": Slow(respond, name="slow"), "turn_seconds": 60}
    async with await holdfast.open(lab.store, **options) as runtime:
        session = await runtime.start()
        task = asyncio.ensure_future(session.send("x"))
        await waiting.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    async with await holdfast.open(lab.store, **options) as runtime:
        result = await asyncio.wait_for(runtime.resume(session.id), 20)
        assert isinstance(result, holdfast.TimedOut)


@pytest.mark.parametrize(
    "given",
    [
        {"max_steps": 0},
        {"max_steps": -1},
        {"max_usd": "lots"},
        {"max_usd": "NaN"},
        {"kernel": "java"},
        {"profile": "root"},
        {"max_turns": "many"},
        {"colour": "red"},
        {"max_steps": 2.9},
        {"max_steps": True},
        {"max_steps": float("inf")},
        {"max_tokens": 10**20},
        {"leaf_timeout_seconds": 0},
        {"model": ["a"]},
        {"max_usd": True},
        {"instructions": "\ud800"},
    ],
)
def test_a_bad_setting_is_named(given: dict[str, object]) -> None:
    with pytest.raises(InvalidSettings, match=next(iter(given))):
        resolve(given, environment={})


def test_an_unknown_name_in_the_environment_is_an_error_that_names_the_nearest() -> None:
    with pytest.raises(InvalidSettings, match=r"'HOLDFAST_MAX_USDD'.* HOLDFAST_MAX_USD\b"):
        resolve(environment={"HOLDFAST_MAX_USDD": "1"})
    with pytest.raises(InvalidSettings, match="holdfast config"):
        resolve(environment={"HOLDFAST_ZZZZ": "1"})
    known = {"HOLDFAST_STORE": "memory:", "HOLDFAST_MODEL_API_KEY": "x", "OTHER": "1"}
    assert set(resolve(environment=known).origins.values()) == {"default"}


def test_each_setting_says_where_it_came_from(tmp_path) -> None:
    config = '\ufeffmax_steps = 7\nmodel = "script:a"\n'  # the mark of some editors does no harm
    (tmp_path / "config.toml").write_text(config, encoding="utf-8")
    environment = {"HOLDFAST_MODEL": "script:b", "HOLDFAST_MAX_TURNS": "3"}
    found = resolve({"max_turns": 4}, folder=tmp_path, environment=environment)
    assert (found.settings.max_steps, found.origins["max_steps"]) == (7, "config.toml")
    assert (found.settings.model, found.origins["model"]) == ("script:b", "environment")
    assert (found.settings.max_turns, found.origins["max_turns"]) == (4, "given")
    assert found.origins["profile"] == "default"


@pytest.mark.parametrize(
    ("limit", "calls"), [({"max_usd": "1"}, 3), ({"max_tokens": 90, "max_output_tokens": 19}, 4)]
)
async def test_leaves_in_flight_together_do_not_go_beyond_a_limit_together(
    lab: Lab, limit: dict[str, object], calls: int
) -> None:
    async def respond(request):
        if request.purpose == "step":
            return priced(cell("FINAL(map_lm(['x'] * 12))"), "0.3")
        await asyncio.sleep(0)
        return priced("ok", "0.3")

    runtime = await lab.open(respond, leaf_concurrency=12, **limit)
    session = await runtime.start()
    result = await session.send("x")
    assert isinstance(result, holdfast.Final)
    assert result.value.count("ok") == calls
    assert len(lab.requests) == 1 + calls
    refused = [value["error"] for value in result.value if value != "ok"]
    assert len(refused) == 12 - calls
    assert all("budget_exceeded" in error for error in refused)


async def test_leaves_far_from_a_limit_are_made_at_once(lab: Lab) -> None:
    together = asyncio.Barrier(6)

    async def respond(request):
        if request.purpose == "step":
            return priced(cell("FINAL(map_lm(['x'] * 6))"), "0")
        await together.wait()
        return priced("ok", "0")

    runtime = await lab.open(respond, max_tokens=10_000, max_output_tokens=100)
    session = await runtime.start()
    assert (await session.send("x")).value == ["ok"] * 6


async def test_a_setting_that_is_none_at_the_start_leaves_the_runtime_s_limit(lab: Lab) -> None:
    runtime = await lab.open(lambda request: "", max_usd="0.00", max_steps=7)
    session = await runtime.start(max_usd=None, max_steps=None)
    result = await session.send("x")
    assert isinstance(result, holdfast.BudgetExceeded)
    assert (result.limit, lab.requests) == ("max_usd", [])


async def test_a_call_that_failed_counts_at_its_ceiling_and_the_session_goes_on(
    tmp_path: Path,
) -> None:
    """One broken leaf call, or one broken step, must not end a session that has budget left."""
    lines = [
        {"reply": cell("r = map_lm(['a', 'b'])\nFINAL(r[1])"), "cost_usd": 0.01},
        {"error": "server"},
        {"reply": cell("FINAL('went on')"), "cost_usd": 0.01},
        {"leaf": True, "match": "a", "error": "connection"},
        {"leaf": True, "match": "b", "reply": "B", "cost_usd": 0.05},
    ]
    script = tmp_path / "script.jsonl"
    script.write_text("".join(json.dumps(line) + "\n" for line in lines))
    options = {"model": f"script:{script}", "max_usd": "5"}
    async with await holdfast.open("memory:", **options) as runtime:
        session = await runtime.start()
        first = await session.send("x")
        assert isinstance(first, holdfast.Final)
        assert first.value == "B"
        assert first.unknown_calls == 1  # what the failed leaf cost, nobody knows
        failed = await session.send("x")
        assert isinstance(failed, holdfast.Failed)
        assert failed.unknown_calls == 1
        last = await session.send("x")
        assert isinstance(last, holdfast.Final)
        assert last.value == "went on"
        spend = (await runtime.state(session.id)).spend
        assert (spend.usd, spend.held_usd) == ("0.07", "0.10")
        assert (spend.unknown_usd, spend.unbounded_usd) == (2, 0)


async def test_little_left_of_a_limit_is_written_once_and_told_to_the_model(lab: Lab) -> None:
    runtime = await lab.open(
        lambda request: priced(cell("x = 1"), "0.3"), max_usd="1", max_steps=10
    )
    session = await runtime.start()
    result = await session.send("x")
    assert isinstance(result, holdfast.BudgetExceeded)
    (warned,) = await lab.facts(session.id, "budget.warned")
    assert (warned.limit, warned.used, warned.allowed) == ("max_usd", "0.9", "1")
    told = ["dollars are spent" in request.messages[-1].text for request in lab.requests]
    assert told == [False, False, False, True]
