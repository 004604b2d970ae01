"""Providers that fail in each way at each step, kernels that die: typed, settled, survived."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.core.errors import KernelDied, ModelError, StoreFailed
from holdfast.core.messages import Text, assistant, user
from holdfast.kernels.cpython import CpythonSession
from holdfast.models.asking import checked
from holdfast.models.errors import KINDS, MalformedReply, ModelTimeout, ProviderError, RateLimited
from holdfast.models.port import Attempt, ModelReply, ModelRequest, Usage
from holdfast.models.scripted import ScriptedModel
from holdfast.runtime.tools import Tool, Toolset
from holdfast.stores.memory.store import MemorySessionStore
from holdfast.stores.verify import verify

from .conftest import Lab, cell, replies

STEPS = (cell("total = 1"), cell("total += 1"), cell("FINAL(total)"), cell("FINAL(total + 40)"))
PLACES = range(3)


# A request that is too long is compacted and made again: see test_compaction.
@pytest.mark.parametrize("kind", sorted(KINDS.keys() - {"context_too_long"}))
async def test_a_provider_failing_at_any_step_settles_the_turn_and_the_session_goes_on(
    lab: Lab, kind: str
) -> None:
    error = KINDS[kind]

    def respond(request: ModelRequest) -> str:
        """Fail where the first message says; serve the same steps before and after."""
        place = int(request.first_user_text)
        if request.ordinal == place:
            raise error(f"it is {kind}")
        return STEPS[request.ordinal - (request.ordinal > place)]

    runtime = await lab.open(respond)
    for place in PLACES:
        session = await runtime.start()
        failed = await session.send(str(place))
        expected = holdfast.TimedOut if error is ModelTimeout else holdfast.Failed
        assert type(failed) is expected
        assert f"it is {kind}" in failed.error  # type: ignore[attr-defined]
        if isinstance(failed, holdfast.Failed):
            assert failed.code == error().code
        assert failed.head is None
        state = await runtime.state(session.id)
        assert (state.status, state.turn) == ("idle", None)
        steps = await runtime.steps(session.id)
        assert [step.status for step in steps] == ["replied"] * place + ["failed"]
        result = await session.send("go on")
        assert isinstance(result, holdfast.Final)
        assert result.value == 2
        assert (await verify(lab.store, session.id)).ok


@pytest.mark.parametrize("kind", sorted(KINDS))
async def test_a_provider_failing_in_a_leaf_is_an_error_that_code_sees(lab: Lab, kind: str) -> None:
    def leaf(prompt: str) -> str:
        if "bad" in prompt:
            raise KINDS[kind](f"it is {kind}")
        return prompt

    code = (
        "try:\n    lm('bad')\nexcept Exception as error:\n    one = str(error)\n"
        "many = map_lm(['good', 'bad one', 'fine'])\nFINAL([one, many])"
    )
    runtime = await lab.open(replies(cell(code), leaf=leaf))
    session = await runtime.start()
    result = await session.send("x")
    assert isinstance(result, holdfast.Final)
    one, many = result.value
    assert f"it is {kind}" in one
    assert (many[0], many[2]) == ("good", "fine")
    assert many[1]["failed"] is True
    assert f"it is {kind}" in many[1]["error"]


@pytest.mark.parametrize("purpose", ["step", "leaf"])
@pytest.mark.parametrize(
    "kind", [KeyError, asyncio.CancelledError, StoreFailed, TimeoutError, SystemExit]
)
async def test_a_provider_that_breaks_its_own_rules_fails_the_call_and_no_more(
    lab: Lab, purpose: str, kind: type[BaseException]
) -> None:
    def respond(request: ModelRequest) -> str:
        if request.purpose == purpose and "break" in request.prompt:
            raise kind("an adapter's own mistake")
        if request.purpose == "leaf":
            return "fine"
        return cell("FINAL(map_lm(['break', 'x']))")

    runtime = await lab.open(respond)
    session = await runtime.start()
    result = await session.send("break" if purpose == "step" else "x")
    if purpose == "step":
        assert isinstance(result, holdfast.Failed)
        assert "an adapter's own mistake" in result.error
    else:
        assert isinstance(result, holdfast.Final)
        assert result.value[1] == "fine"
        assert "an adapter's own mistake" in result.value[0]["error"]
    assert (await runtime.state(session.id)).status == "idle"
    later = await session.send("again")
    assert isinstance(later, holdfast.Final)


async def test_a_surface_that_has_no_text_for_a_request_does_not_fail_the_turn(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[str] = []

    def respond(request: ModelRequest) -> str:
        told.append(request.messages[-1].text)
        return cell("FINAL(1)")

    def transient(module: str, text: Callable[[], Any]) -> Toolset:
        return Toolset(module, 1, (Tool("page", print),), transient=text)

    surfaces = (
        transient("broken", lambda: 1 // 0),
        transient("wrong", lambda: 7),
        transient("empty", lambda: None),
        transient("right", lambda: "it is noon"),
    )
    async with await holdfast.open(
        lab.store, model=ScriptedModel(respond), agents=[holdfast.Agent(tools=surfaces)]
    ) as runtime:
        result = await (await runtime.start()).send("x")
    assert isinstance(result, holdfast.Final)
    assert told == ["it is noon"]
    assert "'broken'" in caplog.text
    assert "'wrong'" in caplog.text


async def test_a_provider_that_never_answers_is_cut_off_at_the_deadline(lab: Lab) -> None:
    ended = asyncio.Event()

    async def respond(request: ModelRequest) -> str:
        if request.first_user_text == "hang" and not ended.is_set():
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()
        return cell("FINAL('later')")

    async with await holdfast.open(
        lab.store, model=ScriptedModel(respond), call_timeout_seconds=1
    ) as runtime:
        session = await runtime.start()
        result = await session.send("hang")
        assert isinstance(result, holdfast.TimedOut)
        assert ended.is_set(), "a call that timed out is really cancelled"
        later = await session.send("again")
        assert isinstance(later, holdfast.Final)


class OwnModel:
    """A model as someone may write it: it answers with anything, and looks at no deadline."""

    name = "own"

    def __init__(self, answer: Any, leaf: Any = None) -> None:
        self._answers = {"step": answer, "leaf": leaf}

    def ceiling_usd(self, input_tokens: int, output_tokens: int) -> str | None:
        return "0.25"

    async def request(self, request: ModelRequest, *, on_delta: Any = None) -> Any:
        answer = self._answers[request.purpose]
        if answer == "hang":
            await asyncio.Event().wait()
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def close(self) -> None:
        """Nothing is held."""


def reply(code: str, **fields: Any) -> ModelReply:
    return ModelReply(assistant(cell(code)), "own", **fields)


NO_REPLIES: dict[str, tuple[Any, str]] = {
    "nothing": (None, "NoneType"),
    "plain text": ("FINAL(1)", "str"),
    "a float for a cost": (reply("FINAL(1)", cost_usd=0.01), "cost_usd is 0.01"),
    "a word for a cost": (reply("FINAL(1)", cost_usd="abc"), "cost_usd is 'abc'"),
    "no number for a cost": (reply("FINAL(1)", cost_usd="NaN"), "cost_usd is 'NaN'"),
    "a cost below nothing": (reply("FINAL(1)", cost_usd="-1"), "cost_usd is '-1'"),
    "a dict for usage": (reply("FINAL(1)", usage={"input_tokens": 1}), "not a Usage"),
    "half a token": (reply("FINAL(1)", usage=Usage(1.5, 2)), "input_tokens 1.5"),  # type: ignore[arg-type]
    "fewer tokens than none": (reply("FINAL(1)", usage=Usage(1, -2)), "output_tokens -2"),
    "a model without a name": (ModelReply(assistant("x"), None), "model is None"),  # type: ignore[arg-type]
    "a reason that is no text": (reply("FINAL(1)", finish_reason=7), "finish_reason is 7"),
    "a latency in fractions": (reply("FINAL(1)", latency_ms=1.5), "latency_ms is 1.5"),
    "attempts of another kind": (reply("FINAL(1)", attempts=[1]), "attempts are [1]"),
    "a user's message": (ModelReply(user("x"), "own"), "role 'assistant'"),
    "text that is none": (ModelReply(assistant(Text(None)), "own"), "not a string"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("what", NO_REPLIES)
async def test_a_reply_that_is_none_fails_the_step_at_its_ceiling(lab: Lab, what: str) -> None:
    answer, named = NO_REPLIES[what]
    async with await holdfast.open(lab.store, model=OwnModel(answer)) as runtime:
        session = await runtime.start()
        result = await session.send("x")
        assert isinstance(result, holdfast.Failed)
        assert result.code == "malformed_reply"
        assert named in result.error
        state = await session.state()
        assert (state.status, state.spend.held_usd) == ("idle", "0.25")
        assert (await verify(lab.store, session.id)).ok


@pytest.mark.parametrize("what", NO_REPLIES)
async def test_a_reply_that_is_none_fails_the_leaf_at_its_ceiling(lab: Lab, what: str) -> None:
    answer, named = NO_REPLIES[what]
    model = OwnModel(reply("FINAL(map_lm(['a']))", cost_usd="0"), leaf=answer)
    async with await holdfast.open(lab.store, model=model) as runtime:
        session = await runtime.start()
        result = await session.send("x")
        assert isinstance(result, holdfast.Final)
        assert named in result.value[0]["error"]
        assert (await session.state()).spend.held_usd == "0.25"


class OddCode(ModelError):
    code = 5  # type: ignore[assignment]


class Wordless(ModelError):
    def __str__(self) -> str:
        raise RuntimeError("no words")


ODD_ERRORS: dict[str, tuple[ModelError, str]] = {
    "attempts that are no list": (RateLimited("slow down"), "rate_limited: slow down"),
    "attempts of another kind": (RateLimited("slow down"), "rate_limited: slow down"),
    "a code that is no text": (OddCode("why"), "model_error: OddCode: why"),
    "no words": (Wordless("x"), "model_error: Wordless: (it does not say why)"),
}
ODD_ERRORS["attempts that are no list"][0].attempts = 7  # type: ignore[attr-defined]
ODD_ERRORS["attempts of another kind"][0].attempts = (1,)  # type: ignore[attr-defined]


@pytest.mark.parametrize("what", ODD_ERRORS)
async def test_an_odd_error_of_a_model_fails_its_call_like_any_other(lab: Lab, what: str) -> None:
    error, told = ODD_ERRORS[what]
    async with await holdfast.open(lab.store, model=OwnModel(error)) as runtime:
        result = await (await runtime.start()).send("x")
        assert isinstance(result, holdfast.Failed)
        assert f"{result.code}: {result.error}" == told
    leaf = OwnModel(reply("FINAL(map_lm(['a']))", cost_usd="0"), leaf=error)
    async with await holdfast.open(lab.store, model=leaf) as runtime:
        result = await (await runtime.start()).send("x")
        assert isinstance(result, holdfast.Final)
        assert result.value[0]["error"] == told


@pytest.mark.parametrize("purpose", ["step", "leaf"])
async def test_a_model_that_looks_at_no_deadline_is_cut_off_soon_after_it(
    lab: Lab, purpose: str
) -> None:
    model = OwnModel("hang" if purpose == "step" else reply("FINAL(map_lm(['a']))"), leaf="hang")
    limits = {"call_timeout_seconds": 1, "leaf_timeout_seconds": 1}
    async with await holdfast.open(lab.store, model=model, **limits) as runtime:
        session = await runtime.start()
        result = await asyncio.wait_for(session.send("x"), 30)
        if purpose == "step":
            assert isinstance(result, holdfast.TimedOut)
        else:
            assert isinstance(result, holdfast.Final)
            assert "model_timeout" in result.value[0]["error"]


DEATHS = {
    "exit": "import os\nos._exit(3)",
    "abort": "import os\nos.abort()",
    "fault": "import ctypes\nctypes.string_at(0)",
}


@pytest.mark.parametrize("how", sorted(DEATHS))
async def test_a_cell_that_ends_its_worker_is_told_to_the_model_and_keeps_the_namespace(
    lab: Lab, how: str
) -> None:
    runtime = await lab.open(
        replies(cell("kept = 1"), cell(f"kept = 2\n{DEATHS[how]}"), cell("FINAL(kept)"))
    )
    session = await runtime.start()
    result = await session.send("x")
    assert isinstance(result, holdfast.Final)
    assert result.value == 1
    evals = [entry.fact.status for entry in await runtime.evals(session.id)]
    assert evals[0] == "ok"
    assert evals[1] in ("died", "error")
    assert evals[2] == "final"


def living() -> dict[int, int]:
    """Return the processes that have not ended, with their parents."""
    found = {}
    for place in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent, *_ = place.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if state != "Z":
            found[int(place.parent.name)] = int(parent)
    return found


def kill_workers() -> int:
    """Kill every process below this one, as an out-of-memory killer might, and see them end."""
    parents = living()
    below = [os.getpid()]
    for process in below:  # which grows by its children
        below += [child for child, parent in parents.items() if parent == process]
    killed = below[1:]
    for process in killed:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    while not living().keys().isdisjoint(killed):
        os.sched_yield()
    return len(killed)


async def test_a_worker_killed_in_mid_cell_costs_the_cell_and_nothing_else(lab: Lab) -> None:
    def leaf(prompt: str) -> str:
        if prompt == "kill":
            assert kill_workers() > 0
        return prompt

    runtime = await lab.open(
        replies(
            cell("kept = [1]"),
            cell("kept.append(lm('paid'))\nlm('kill')"),
            cell("FINAL([kept, lm('last')])"),
            leaf=leaf,
        )
    )
    session = await runtime.start()
    result = await session.send("x")
    assert isinstance(result, holdfast.Final)
    assert result.value == [[1], "last"]
    statuses = [entry.fact.status for entry in await runtime.evals(session.id)]
    assert statuses == ["ok", "died", "final"]
    assert (await verify(lab.store, session.id)).ok


async def test_workers_killed_between_turns_are_not_noticed(lab: Lab) -> None:
    runtime = await lab.open(replies(cell("x = 1\nFINAL(x)"), cell("FINAL(x + 1)")))
    session = await runtime.start()
    await session.send("one")
    kill_workers()
    result = await session.send("two")
    assert isinstance(result, holdfast.Final)
    assert result.value == 2


class DeafStore:
    """A store of which one reading verb fails for a while."""

    def __init__(self, verb: str) -> None:
        self.inner = MemorySessionStore()
        self.verb = verb
        self.fails = False

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        if name != self.verb or not self.fails:
            return found

        async def fail(*arguments: Any, **options: Any) -> Any:
            raise StoreFailed(f"{name} failed")

        return fail


@pytest.mark.parametrize("verb", ["list_inbox", "load_state", "get_payload", "read_events"])
async def test_a_store_that_cannot_be_read_for_a_while_leaves_no_lease_and_no_wrong_turn(
    verb: str,
) -> None:
    store: Any = DeafStore(verb)

    def respond(request: ModelRequest) -> str:
        store.fails = request.prompt == "fail from here"
        return cell("FINAL(big[:4])")

    async with await holdfast.open(store, model=ScriptedModel(respond)) as runtime:
        session = await runtime.start()
        first = await session.send("warm up", inputs={"big": "text " * 10_000})
        assert isinstance(first, holdfast.Final)
        with suppress(StoreFailed):  # a drive that did not need to read comes to its end
            await session.send("fail from here")
        store.fails = False
        await runtime.settled()
        assert await store.lease_of(session.id) is None
        await session.resume()
        last = await session.send("and on")
        assert isinstance(last, holdfast.Final)
        assert last.value == "text"
        turns = [turn.status for turn in await runtime.turns(session.id)]
        assert turns == ["final", "final", "final"]
        assert (await verify(store, session.id)).ok


async def test_a_read_that_fails_right_after_the_lease_was_taken_gives_it_back() -> None:
    store: Any = DeafStore("load_state")
    acquire = store.inner.acquire

    async def acquire_then_fail(*arguments: Any, **options: Any) -> Any:
        lease = await acquire(*arguments, **options)
        store.fails = True
        return lease

    async with await holdfast.open(
        store, model=ScriptedModel(lambda request: cell("FINAL(1)"))
    ) as runtime:
        session = await runtime.start()
    async with await holdfast.open(
        store, model=ScriptedModel(lambda request: cell("FINAL(1)"))
    ) as runtime:
        session = holdfast.Session(runtime, session.id)
        store.inner.acquire = acquire_then_fail
        with pytest.raises(StoreFailed):
            await session.send("x")
        store.inner.acquire, store.fails = acquire, False
        assert isinstance(await session.send("y"), holdfast.Final)


async def test_an_attempt_log_comes_with_a_failure(lab: Lab) -> None:
    def respond(request: ModelRequest) -> str:
        raise ProviderError("no")

    runtime = await lab.open(respond)
    session = await runtime.start()
    await session.send("x")
    (step,) = await runtime.steps(session.id)
    assert step.put is not None
    assert step.put.attempts is not None
    (attempt,) = await runtime.value(session.id, step.put.attempts)
    assert attempt["outcome"] == "error"


async def test_a_stored_message_whose_inputs_no_worker_takes_fails_and_blocks_no_other(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = CpythonSession.checkpoint
    tries = []

    async def choosy(self: CpythonSession) -> Any:
        if "poison" in self._inputs:
            tries.append(self)
            raise KernelDied("the worker ended")
        return await checkpoint(self)

    monkeypatch.setattr(CpythonSession, "checkpoint", choosy)
    runtime = await lab.open(replies(cell("FINAL('poison' in globals())")))
    session = await runtime.start()
    # One that is not stored is its sender's to hear of.
    with pytest.raises(KernelDied):
        await session.send("one", inputs={"poison": "x"})
    assert (await runtime.state(session.id)).seq == 1
    result = await session.send("two", inputs={"poison": "x"}, key="k")
    assert isinstance(result, holdfast.Failed)
    assert (result.turn, result.code, len(tries)) == (1, "kernel_died", 3)
    assert all(item.consumed_seq for item in await lab.store.list_inbox(session.id))
    again = await session.send("two", inputs={"poison": "x"}, key="k")
    assert (type(again), again.turn, len(tries)) == (holdfast.Failed, 1, 3)
    final = await session.send("three")
    assert isinstance(final, holdfast.Final)
    assert final.value is False
    assert (await verify(lab.store, session.id)).ok


@pytest.mark.parametrize(
    "said", ["x", "nan", "sNaN", "-1", "9e999999", 0.5, 7, "\ud800", ValueError], ids=ascii
)
@pytest.mark.parametrize("fails", [False, True])
async def test_a_model_that_says_nonsense_of_its_costs_costs_an_unknown_amount(
    tmp_path, said: Any, fails: bool
) -> None:
    class Vague(ScriptedModel):
        def ceiling_usd(self, input_tokens: int, output_tokens: int) -> Any:
            if said is ValueError:
                raise said
            return said

    def respond(request: ModelRequest) -> str:
        if fails and request.purpose == "step":
            raise KeyError("no reply")
        return "fine" if request.purpose == "leaf" else cell("FINAL(lm('x'))")

    async with await holdfast.open(tmp_path, model=Vague(respond, name="vague")) as runtime:
        session = await runtime.start()
        for _ in range(2):
            result = await session.send("x")
            assert isinstance(result, holdfast.Failed if fails else holdfast.Final)
        assert (await runtime.state(session.id)).status == "idle"


@pytest.mark.parametrize(
    "change",
    [
        {"model": "\ud800"},
        {"finish_reason": "\ud800"},
        {"price_table": "\ud800"},
        {"cost_usd": "9e999999"},
        {"cost_usd": "1e-999999"},
        {"attempts": (Attempt(object(), 0, 0, "ok"),)},
        {"attempts": (Attempt("now", 0, 0, "ok", message="\ud800"),)},
        {"attempts": (Attempt("now", -1, 0, "ok"),)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_reply_that_could_not_be_stored_is_none(change) -> None:
    good = ModelReply(assistant("x"), "m", Usage(1, 1), "0.10")
    assert checked(good) is good
    with pytest.raises(MalformedReply):
        checked(replace(good, **change))
