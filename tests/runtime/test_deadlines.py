"""Deadlines: by the runtime's own timer, racing answers, and moved or called off."""

import asyncio
import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import holdfast
from holdfast import Agent, ScriptedModel, tool
from holdfast.core.errors import AnswerStale, CallNotFound, HoldfastError
from holdfast.core.events import Event
from holdfast.core.facts import CallResolved
from holdfast.core.messages import ToolCall, assistant
from holdfast.runtime import answers
from holdfast.runtime import runtime as runtimes
from holdfast.stores.memory.store import MemorySessionStore
from holdfast.stores.sqlite.store import SqliteSessionStore


def asker(deadline_seconds=None):
    """Return an agent that asks a person one thing, and then answers with the result."""

    @tool(executor="human", deadline_seconds=deadline_seconds)
    def which() -> str:
        """Which one?"""

    def respond(request):
        if request.ordinal % 2 == 0:
            return assistant(ToolCall(f"x{request.ordinal}", "which", "{}"))
        return request.messages[-1].parts[0].content[0].text

    return Agent(harness="tools", model=ScriptedModel(respond), tools=[which])


def resident_bytes():
    """Return how much memory this process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def ended(session, turn=1):
    """Wait until a turn of a session is over."""
    async with asyncio.timeout(20), session.subscribe() as events:
        async for event in events:
            if isinstance(event, Event) and event.type == "turn.put" and event.data["turn"] == turn:
                return event.data["status"]


async def test_a_long_running_runtime_applies_a_deadline_by_itself(monkeypatch):
    monkeypatch.setattr(runtimes, "TICK_SECONDS", 0.05)
    agent = asker(0.1)
    async with holdfast.open(MemorySessionStore(), agents=[agent]) as runtime:
        session = await runtime.start(agent=agent)
        waiting = await session.send("go")
        assert waiting.status == "suspended"
        assert await ended(session) == "final"
        (call,) = await session.calls()
        assert call.outcome == "expired"


async def test_the_deadline_that_passed_while_nobody_was_alive_is_applied_after_a_restart(
    monkeypatch,
):
    monkeypatch.setattr(runtimes, "TICK_SECONDS", 0.05)
    store, agent = MemorySessionStore(), asker(0.01)
    async with holdfast.open(store, agents=[agent]) as runtime:
        session = await runtime.start(session_id="s-1", agent=agent)
        await session.send("go")
    async with holdfast.open(store, agents=[agent], recover=True) as runtime:
        assert await ended(runtime.session("s-1")) == "final"


async def test_a_deadline_is_moved_and_a_wait_is_called_off():
    store, agent = MemorySessionStore(), asker(0.2)
    async with holdfast.open(store, agents=[agent]) as runtime:
        session = await runtime.start(agent=agent)
        (call_id,) = (await session.send("go")).calls
        later = datetime.now(UTC) + timedelta(hours=1)
        await session.extend(call_id, later, by="ann")
        await runtime.settled()
        (wait,) = (await runtime.pending()).waits
        assert datetime.fromisoformat(wait.deadline) == later
        assert await answers.expire_due(store) == []
        await session.cancel(call_id, by="ann")
        assert await ended(session) == "final"
        (call,) = await session.calls()
        assert (call.outcome, call.resolved.by) == ("cancelled", "ann")
        with pytest.raises((AnswerStale, CallNotFound)):
            await session.extend(call_id, later)


@pytest.mark.parametrize("times", [60, pytest.param(500, marks=pytest.mark.soak)])
async def test_of_two_answers_that_race_one_wins_and_the_other_is_stale(tmp_path, times):
    store = await SqliteSessionStore.open(tmp_path / "store")
    agent = asker()
    async with holdfast.open(store, agents=[agent]) as runtime:
        session = await runtime.start(agent=agent)
        for turn in range(1, times + 1):
            (call_id,) = (await session.send("go")).calls
            said = await asyncio.gather(
                *(answers.answer(store, session.id, call_id, word) for word in ("left", "right")),
                return_exceptions=True,
            )
            lost = [item for item in said if isinstance(item, HoldfastError)]
            assert [type(item) for item in lost] == [AnswerStale]
            word = "left" if said[1] is lost[0] else "right"
            assert (await session.resume()).unwrap() == word
            assert (await session.state()).counters["turn"] == turn
    await store.close()


@pytest.mark.parametrize("times", [40, pytest.param(500, marks=pytest.mark.soak)])
async def test_of_an_answer_and_the_deadline_exactly_one_counts(tmp_path, times, monkeypatch):
    monkeypatch.setattr(runtimes, "TICK_SECONDS", 3600)  # a drive of its own would race ours
    store = await SqliteSessionStore.open(tmp_path / "store")
    agent = asker(0.01)
    outcomes = set()
    async with holdfast.open(store, agents=[agent]) as runtime:
        session = await runtime.start(agent=agent)
        for _ in range(times):
            (call_id,) = (await session.send("go")).calls
            answer, expired = await asyncio.gather(
                answers.answer(store, session.id, call_id, "yes"),
                answers.expire_due(store),
                return_exceptions=True,
            )
            result = await session.resume()
            events = await session.events(types=[CallResolved.TYPE], reverse=True, limit=1)
            outcome = events[0].fact().outcome
            assert outcome in ("ok", "expired")
            assert isinstance(answer, AnswerStale) == (outcome == "expired"), (answer, expired)
            assert result.status == "final"
            outcomes.add(outcome)
        assert len(await session.events(types=[CallResolved.TYPE])) == times
    await store.close()
    assert outcomes


async def test_the_same_call_id_of_a_provider_in_two_sessions_is_two_calls():
    agent = asker()
    async with holdfast.open(MemorySessionStore(), agents=[agent]) as runtime:
        sessions = [await runtime.start(agent=agent) for _ in range(2)]
        calls = [(await session.send("go")).calls[0] for session in sessions]
        assert calls[0] == calls[1]
        for session, word in zip(sessions, ("one", "two"), strict=True):
            await session.answer(calls[0], word)
        await runtime.settled()
        for session, word in zip(sessions, ("one", "two"), strict=True):
            (call,) = await session.calls()
            assert await session.value(call.result) == word


DEEP = "[" * 400 + "]" * 400


@pytest.mark.parametrize(
    ("said", "taken"),
    [
        (7, False),
        ({"x": 1}, False),
        (None, False),
        ("x" * (50 << 20), False),
        (json.loads(DEEP), False),
        ("\ud800", False),
        ("\x00\x1b[31m\u202e odd", True),
    ],
    ids=["number", "object", "none", "50 MB", "deep", "surrogate", "control"],
)
async def test_hostile_answers_are_refused_and_change_nothing_or_are_kept_as_they_are(said, taken):
    store, agent = MemorySessionStore(), asker()
    async with holdfast.open(store, agents=[agent]) as runtime:
        session = await runtime.start(agent=agent)
        (call_id,) = (await session.send("go")).calls
        before = (await session.state()).seq
        if taken:
            await session.answer(call_id, said)
            await runtime.settled()
            (call,) = await session.calls()
            assert await session.value(call.result) == said
            return
        with pytest.raises(HoldfastError):
            await session.answer(call_id, said)
        assert (await session.state()).seq == before
        assert await store.list_inbox(session.id, pending=False) == []
        await session.answer(call_id, "fine")
        await runtime.settled()
        assert (await session.state()).last_turn == "final"


@pytest.mark.parametrize("number", [50, pytest.param(1000, marks=pytest.mark.soak)])
async def test_many_suspended_sessions_are_answered_after_a_restart(tmp_path, number):
    store, agent = await SqliteSessionStore.open(tmp_path / "store"), asker()
    async with holdfast.open(store, agents=[agent]) as runtime:
        for index in range(number):
            session = await runtime.start(session_id=f"s-{index}", agent=agent)
            assert (await session.send("go")).status == "suspended"
    await store.close()
    store = await SqliteSessionStore.open(tmp_path / "store")
    async with holdfast.open(store, agents=[agent]) as runtime:
        found, cursor, before = 0, None, resident_bytes()
        while True:
            page = await runtime.pending(limit=20, cursor=cursor)
            for wait in page.waits:
                await runtime.answer(wait.session, wait.call_id, f"to {wait.session}")
                found += 1
            cursor = page.cursor
            if cursor is None:
                break
        await runtime.settled()
        grown = resident_bytes() - before
        print(f"{number} sessions: {before >> 20} MiB resident, {grown >> 10} KiB more")
        assert grown < 48 << 20, "what is answered is kept in memory"
        assert found == number
        for index in range(number):
            assert (await runtime.state(f"s-{index}")).last_turn == "final"
    await store.close()
