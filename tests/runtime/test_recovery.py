"""Whatever a driver left unfinished is taken up where the log stands; reading never repairs."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.core.errors import (
    AgentMissing,
    InvalidInput,
    LeaseHeld,
    NothingWritten,
    NotRestorable,
    ReadOnlySession,
    SessionBusy,
)
from holdfast.core.messages import user
from holdfast.core.payloads import slot
from holdfast.models.scripted import ScriptedModel
from holdfast.runtime.driver import Work
from holdfast.runtime.tools import Tool, Toolset
from holdfast.stores.memory.store import MemorySessionStore
from holdfast.stores.portable import export_sessions, import_sessions
from holdfast.stores.verify import verify
from holdfast.testing.faults import DyingStore, ProcessKilled

from .conftest import Lab, cell, replies

WORK = [
    cell("found = map_lm(['a', 'b'])\nmore = lm('c')") + "\n" + cell("n = len(found)"),
    cell("FINAL([*found, more, n])"),
]
ANSWER = ["<a>", "<b>", "<c>", 2]


async def cut_short(lab: Lab, after: int) -> str:
    """Work a session whose driver dies at once after so many appends; return its id."""
    return await cut_off(lab, replies(*WORK), lambda appends: appends >= after)


async def cut_while_asking(lab: Lab, **options: Any) -> str:
    """Work a session whose driver dies once both items of its `map_lm` are asked."""
    asked = 0

    async def respond(request: Any) -> str:
        nonlocal asked
        if request.purpose == "step":
            return WORK[request.ordinal]
        asked += 1
        if asked == 2:
            raise ProcessKilled
        await asyncio.Event().wait()
        raise AssertionError

    return await cut_off(lab, respond, lambda _: asked == 2, **options)


async def cut_off(lab: Lab, respond: Any, is_dead: Callable[[int], bool], **options: Any) -> str:
    store = DyingStore(lab.store.database, lambda appends, _: is_dead(appends))
    runtime = await holdfast.open(store, model=model_of(lab, respond))
    session = await runtime.start(**options)
    try:
        with pytest.raises(BaseException):  # noqa: B017
            await session.send("work")
    finally:
        store.bury()
        await runtime.close()
    return session.id


def model_of(lab: Lab, responder):
    from holdfast.models.scripted import ScriptedModel

    def heard(request):
        lab.requests.append(request)
        return responder(request)

    return ScriptedModel(heard, name="scripted")


@pytest.mark.parametrize("after", range(1, 12))
async def test_a_turn_cut_anywhere_ends_with_the_same_value(lab: Lab, after: int) -> None:
    session_id = await cut_short(lab, after)
    before = await lab.store.read_events(session_id)
    assert (await lab.store.session_info(session_id)).status == "interrupted"
    paid = {r.prompt for r in lab.requests if r.purpose == "leaf"}
    stored = len(await lab.facts(session_id, "leaf.called"))
    lab.requests.clear()
    runtime = await lab.open(replies(*WORK))
    result = await runtime.resume(session_id)
    assert isinstance(result, holdfast.Final)
    assert result.value == ANSWER
    events = await lab.store.read_events(session_id)
    assert events[: len(before)] == before
    assert events[len(before)].type == "session.revived"
    asked = [r.prompt for r in lab.requests if r.purpose == "leaf"]
    assert len(asked) == 3 - stored
    assert {r.ordinal for r in lab.requests if r.purpose == "leaf"} == set(range(3)) - {
        {"a": 0, "b": 1, "c": 2}[p] for p in paid - set(asked)
    }
    assert (await verify(lab.store, session_id)).ok


async def test_a_lost_model_call_is_settled_as_unknown_and_made_again(lab: Lab) -> None:
    session_id = await cut_short(lab, 1)
    runtime = await lab.open(replies(*WORK))
    await runtime.resume(session_id)
    steps = await runtime.steps(session_id)
    assert [step.status for step in steps] == ["unknown", "replied", "replied"]
    assert [step.started.ordinal for step in steps] == [0, 0, 1]
    turn = (await runtime.turns(session_id))[0]
    assert turn.put.unknown_calls == 1
    assert turn.put.steps == 2


async def test_leaf_calls_that_a_crash_took_are_settled_as_unknown_and_made_again(lab: Lab) -> None:
    session_id = await cut_while_asking(lab)
    before = await lab.types(session_id)
    assert before[-2:] == ["budget.reserved", "budget.reserved"]
    runtime = await lab.open(replies(*WORK))
    result = await runtime.resume(session_id)
    assert isinstance(result, holdfast.Final)
    assert (result.value, result.unknown_calls) == (ANSWER, 2)
    since = (await lab.types(session_id))[len(before) :]
    assert since[:3] == ["session.revived", "budget.settled", "budget.settled"]
    settled = await lab.facts(session_id, "budget.settled")
    aside = await lab.facts(session_id, "budget.reserved")
    assert all(fact.unknown for fact in settled)
    assert [(fact.reservation, fact.tokens) for fact in settled] == [
        (fact.reservation, fact.tokens) for fact in aside[:2]
    ]
    state = await runtime.state(session_id)
    assert state.reserved == {}
    assert state.spend.unknown_usd == state.spend.unknown_tokens == 2
    assert [leaf.fact.status for leaf in await runtime.leaves(session_id)] == ["ok"] * 3


async def test_leaf_calls_that_a_crash_took_count_against_the_limits(lab: Lab) -> None:
    session_id = await cut_while_asking(lab, max_tokens=60_000)
    lab.requests.clear()
    runtime = await lab.open(replies(*WORK))
    result = await runtime.resume(session_id)
    assert isinstance(result, holdfast.BudgetExceeded)
    assert result.limit == "max_tokens"
    assert lab.requests == []  # what is set aside for a reply is 32,768 tokens, twice


async def test_a_stop_settles_the_leaf_calls_that_a_crash_took(lab: Lab) -> None:
    session_id = await cut_while_asking(lab)
    runtime = await lab.open(replies(*WORK))
    result = await runtime.stop(session_id)
    assert isinstance(result, holdfast.Stopped)
    assert result.unknown_calls == 2
    assert len(await lab.facts(session_id, "budget.settled")) == 2
    state = await runtime.state(session_id)
    assert state.reserved == {}
    assert state.spend.unknown_usd == 2


async def test_send_finishes_the_open_turn_first(lab: Lab) -> None:
    session_id = await cut_short(lab, 4)
    runtime = await lab.open(replies(*WORK, cell("FINAL('next')")))
    result = await runtime.send(session_id, "and then?")
    assert isinstance(result, holdfast.Final)
    assert result.value == "next"
    turns = await runtime.turns(session_id)
    assert [turn.status for turn in turns] == ["final", "final"]


async def test_opening_with_recover_takes_up_interrupted_sessions(lab: Lab) -> None:
    session_id = await cut_short(lab, 3)
    runtime = await lab.open(replies(*WORK), recover=True)
    await runtime.settled()
    assert (await runtime.state(session_id)).last_turn == "final"


async def queued(lab: Lab, session_id: str, *texts: str) -> None:
    """Leave messages as a driver does that is killed between its turn's end and its inbox."""
    for text in texts:
        await lab.store.put_inbox(session_id, Work(user(text)).draft(f"message-{text}"))


async def messages_of(runtime: holdfast.Runtime, session_id: str) -> list[str]:
    views = await runtime.messages(session_id)
    return [view.message.text for view in views if view.message.role == "user"]


async def test_opening_with_recover_takes_up_what_waits_in_an_inbox(lab: Lab) -> None:
    runtime = await lab.open(lambda request: cell("FINAL(1)"))
    waits, rests = await runtime.start(), await runtime.start()
    await runtime.close()
    await queued(lab, waits.id, "one", "two")
    runtime = await lab.open(lambda request: cell("FINAL(1)"), recover=True)
    await runtime.settled()
    assert await messages_of(runtime, waits.id) == ["one", "two"]
    assert (await runtime.state(rests.id)).seq == 1


async def test_recovery_looks_only_at_sessions_that_have_something_to_do(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = await lab.open(lambda request: cell("FINAL(1)"))
    waits, *_ = [await runtime.start() for _ in range(5)]
    await queued(lab, waits.id, "one")
    listed: list[str] = []
    whole = lab.store.list_sessions

    async def watched(*arguments: Any, **options: Any) -> Any:
        page = await whole(*arguments, **options)
        listed.extend(info.id for info in page.sessions)
        return page

    monkeypatch.setattr(lab.store, "list_sessions", watched)
    assert await runtime.recover() == [waits.id]
    await runtime.settled()
    assert listed == [waits.id]


async def test_a_message_does_not_overtake_those_that_wait(lab: Lab) -> None:
    runtime = await lab.open(lambda request: cell(f"FINAL({request.ordinal})"))
    session = await runtime.start()
    await queued(lab, session.id, "one", "two")
    assert (await session.send("three")).value == 2
    await runtime.settled()
    assert await messages_of(runtime, session.id) == ["one", "two", "three"]
    await queued(lab, session.id, "four")
    assert (await session.send("four", key="message-four")).value == 3
    assert await messages_of(runtime, session.id) == ["one", "two", "three", "four"]


async def test_recovery_takes_every_session_that_is_its_own_and_no_other(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.runtime.runtime.RECOVER_PAGE", 1)
    mine = [await cut_short(lab, 3) for _ in range(3)]
    other = await lab.open(replies(*WORK), agents=[holdfast.Agent(name="other")])
    foreign = await other.start(agent="other")
    await queued(lab, foreign.id, "one")
    await other.close()
    runtime = await lab.open(replies(*WORK))
    assert sorted(await runtime.recover()) == sorted(mine)
    await runtime.settled()
    assert [(await runtime.state(one)).last_turn for one in mine] == ["final"] * 3
    assert (await runtime.state(foreign.id)).seq == 1


async def test_a_stop_that_is_refused_leaves_nothing_behind(lab: Lab, tmp_path: Path) -> None:
    """A copy that is taken over later must not end by a stop that was said to have failed."""
    session_id = await cut_short(lab, 3)
    await export_sessions(lab.store, [session_id], tmp_path / "copy")
    store = MemorySessionStore()
    await import_sessions(store, tmp_path / "copy")
    async with await holdfast.open(store, model=model_of(lab, replies(*WORK))) as runtime:
        with pytest.raises(ReadOnlySession):
            await runtime.stop(session_id)
        assert await store.list_inbox(session_id) == []
        result = await runtime.resume(session_id, takeover=True)
        assert isinstance(result, holdfast.Final)
        assert isinstance(await runtime.stop(session_id), holdfast.Stopped)


async def test_reading_never_recovers(lab: Lab) -> None:
    session_id = await cut_short(lab, 3)
    before = await lab.store.read_events(session_id)
    runtime = await lab.open(replies(*WORK))
    await runtime.messages(session_id)
    await runtime.state(session_id)
    await runtime.turns(session_id)
    await verify(lab.store, session_id)
    assert await lab.store.read_events(session_id) == before


async def test_a_third_revival_without_an_outcome_is_refused_until_forced(lab: Lab) -> None:
    session_id = await cut_short(lab, 3)
    for _ in range(2):
        store = DyingStore(lab.store.database, 1)
        runtime = await holdfast.open(store, model=model_of(lab, replies(*WORK)))
        with pytest.raises(BaseException):  # noqa: B017
            await runtime.resume(session_id)
        store.bury()
        await runtime.close()
    runtime = await lab.open(replies(*WORK))
    seq = (await runtime.state(session_id)).seq
    for result in (await runtime.resume(session_id), await runtime.send(session_id, "hello")):
        assert isinstance(result, holdfast.Failed)
        assert result.code == "revival_limit"
    assert (await runtime.state(session_id)).seq == seq
    forced = await runtime.resume(session_id, force=True)
    assert isinstance(forced, holdfast.Final)
    assert forced.value == ANSWER


async def test_breaking_off_is_recorded_and_can_be_resumed(lab: Lab) -> None:
    waiting, go_on = asyncio.Event(), False

    async def respond(request):
        if request.purpose == "step" and not go_on:
            waiting.set()
            await asyncio.Event().wait()
        return replies(*WORK)(request)

    runtime = await lab.open(respond)
    session = await runtime.start()
    task = asyncio.ensure_future(session.send("work"))
    await waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    put = (await lab.facts(session.id, "turn.put"))[-1]
    assert put.status == "interrupted"
    assert (await lab.store.session_info(session.id)).status == "interrupted"
    assert await lab.store.lease_of(session.id) is None
    go_on = True
    result = await runtime.resume(session.id)
    assert result.value == ANSWER


async def test_breaking_off_any_number_of_times_is_no_crash(lab: Lab) -> None:
    waiting, patient = asyncio.Event(), False

    async def respond(request):
        if not patient:
            waiting.set()
            await asyncio.Event().wait()
        return cell("FINAL(1)")

    runtime = await lab.open(respond)
    session = await runtime.start()
    for life in range(4):
        waiting.clear()
        task = asyncio.ensure_future(session.resume() if life else session.send("work"))
        await asyncio.wait_for(waiting.wait(), 20)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    patient = True
    assert (await session.resume()).value == 1


async def test_stop_settles_an_idle_session(lab: Lab) -> None:
    runtime = await lab.open(replies(*WORK))
    session = await runtime.start()
    await session.send("work")
    assert isinstance(await session.stop(), holdfast.Stopped)
    assert (await runtime.state(session.id)).status == "stopped"
    assert isinstance(await session.send("more"), holdfast.Stopped)
    assert isinstance(await session.stop(), holdfast.Stopped)
    assert (await lab.facts(session.id, "input.admitted"))[0].kind == "stop"


async def test_a_session_is_stopped_whatever_keys_its_messages_had(lab: Lab) -> None:
    runtime = await lab.open(replies(*WORK))
    session = await runtime.start()
    await session.send("work", key="stop")
    with pytest.raises(InvalidInput, match="reserved"):
        await session.send("more", key="holdfast:stop")
    assert isinstance(await session.stop(), holdfast.Stopped)


async def test_a_model_that_does_not_close_keeps_nothing_else_open(tmp_path: Path, caplog) -> None:
    class Stubborn(ScriptedModel):
        async def close(self) -> None:
            raise ValueError("not now")

    runtime = await holdfast.open(tmp_path, model=Stubborn(replies(*WORK), name="stubborn"))
    await runtime.close()
    assert "'stubborn' did not close" in caplog.text
    with pytest.raises(NothingWritten, match="closed"):
        await runtime.start()


async def test_stop_ends_a_turn_in_flight_from_elsewhere(lab: Lab) -> None:
    waiting = asyncio.Event()

    async def respond(request):
        waiting.set()
        await asyncio.Event().wait()

    runtime = await lab.open(respond)
    session = await runtime.start()
    task = asyncio.ensure_future(session.send("work"))
    await waiting.wait()
    elsewhere = await holdfast.open(MemorySessionStore(lab.store.database))
    assert await elsewhere.stop(session.id) is None
    assert isinstance(await task, holdfast.Stopped)
    assert (await runtime.turns(session.id))[0].status == "stopped"
    assert (await lab.store.list_inbox(session.id)) == []
    await elsewhere.close()


async def test_a_busy_session_refuses_or_queues(lab: Lab) -> None:
    waiting, release = asyncio.Event(), asyncio.Event()

    async def respond(request):
        if request.ordinal == 0:
            waiting.set()
            await release.wait()
        return cell(f"FINAL({request.ordinal})")

    runtime = await lab.open(respond)
    session = await runtime.start()
    first = asyncio.ensure_future(session.send("one"))
    await waiting.wait()
    with pytest.raises(SessionBusy):
        await session.send("two")
    elsewhere = await holdfast.open(
        MemorySessionStore(lab.store.database), model=model_of(lab, respond)
    )
    with pytest.raises(LeaseHeld, match="is driven by"):
        await elsewhere.send(session.id, "two")
    queued = await elsewhere.send(session.id, "three", inputs={"n": 3}, when_busy="queue")
    assert isinstance(queued, holdfast.Queued)
    release.set()
    assert (await first).value == 0
    await runtime.settled()
    texts = [m.message.text for m in await runtime.messages(session.id)]
    assert sum(text.startswith("three") for text in texts) == 1
    assert (await runtime.state(session.id)).last_turn == "final"
    assert await lab.store.list_inbox(session.id) == []
    await elsewhere.close()


async def test_a_runtime_drives_only_sessions_whose_agent_it_has(lab: Lab) -> None:
    special = holdfast.Agent(name="special")
    runtime = await lab.open(replies(*WORK), agents=[special])
    session = await runtime.start(agent="special")
    await runtime.close()
    other = await lab.open(replies(*WORK))
    with pytest.raises(AgentMissing, match="special"):
        await other.send(session.id, "x")
    assert (await other.state(session.id)).status == "idle"
    assert isinstance(await other.stop(session.id), holdfast.Stopped)


async def test_a_turn_that_was_not_stored_leaves_nothing_in_the_namespace(lab: Lab) -> None:
    """The warm kernel has bound an input that the log never got: it must not be used again."""
    append = lab.store.append
    broken = True

    async def fails_once(lease, seq, facts, **options):
        nonlocal broken
        if broken and any(fact.TYPE == "turn.started" for fact in facts):
            broken = False
            raise NothingWritten("the disk is full")
        return await append(lease, seq, facts, **options)

    lab.store.append = fails_once
    runtime = await lab.open(replies(cell("FINAL('n' in globals())")))
    session = await runtime.start()
    with pytest.raises(NothingWritten):
        await session.send("count", inputs={"n": 1})
    result = await session.send("and now?")
    assert result.value is False


async def test_a_queued_message_that_cannot_be_worked_is_refused_when_it_is_queued(
    lab: Lab,
) -> None:
    runtime = await lab.open(replies(cell("FINAL(1)")))
    session = await runtime.start()
    lease = await MemorySessionStore(lab.store.database).acquire(session.id)
    with pytest.raises(InvalidInput):
        await session.send("x", inputs={"1x": 1}, when_busy="queue")
    assert await lab.store.list_inbox(session.id) == []
    await lab.store.release(lease)


async def test_a_process_that_cannot_drive_uses_up_no_revival(lab: Lab) -> None:
    session_id = await cut_short(lab, 3)
    seq = (await lab.store.load_state(session_id)).seq
    desk = Toolset("desk", 1, (Tool("post", print),))
    wrong = holdfast.Agent(tools=(desk,))
    runtime = await lab.open(replies(*WORK), agents=[wrong])
    assert (await runtime.resume(session_id)).value == ANSWER  # more surfaces do no harm
    other = await cut_short(lab, 3)
    broken = await lab.open(replies(*WORK))

    async def refuse(*arguments, **options):
        raise NotRestorable("this engine cannot read the checkpoint")

    broken.engine.kernels.choose = refuse
    for _ in range(3):
        with pytest.raises(NotRestorable):
            await broken.resume(other)
    assert (await lab.store.load_state(other)).seq == seq
    assert (await runtime.resume(other)).value == ANSWER


async def test_a_session_whose_model_is_an_object_says_that_it_takes_that_object(lab: Lab) -> None:
    session_id = await cut_short(lab, 3)
    seq = (await lab.store.load_state(session_id)).seq
    async with await holdfast.open(MemorySessionStore(lab.store.database)) as elsewhere:
        with pytest.raises(AgentMissing, match=r"'scripted'.*open\(model="):
            await elsewhere.resume(session_id)
    assert (await lab.store.load_state(session_id)).seq == seq


async def test_a_session_whose_variable_was_erased_says_so_before_it_asks_a_model(lab: Lab) -> None:
    """A large input is the same payload as the variable it became."""
    text = "z" * 100_000
    runtime = await lab.open(replies(cell("n = len(text)\nFINAL(n)"), cell("FINAL(n + 1)")))
    session = await runtime.start()
    assert (await session.send("count", inputs={"text": text})).value == 100_000
    await runtime.close()
    await lab.store.erase(session.id, slot(text, "input").id, "gdpr-17")
    before, asked = await lab.types(session.id), len(lab.requests)
    runtime = await lab.open(replies(cell("FINAL(n + 1)")))
    for attempt in (runtime.send(session.id, "more"), runtime.fork(session.id)):
        with pytest.raises(NotRestorable, match=r"erased at .* by rule 'gdpr-17'; fork it at"):
            await attempt
    assert (await lab.types(session.id), len(lab.requests)) == (before, asked)
    assert (await runtime.state(session.id)).status == "idle"
