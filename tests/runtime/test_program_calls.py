"""Programs built on top make calls through the ledger: once per key, whatever happens between."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

import holdfast
from holdfast.core.errors import CallConflict, CallFailed, CallWaits, SessionBusy

from .conftest import cell, replies

HARNESS = holdfast.Agent("harness", external=True)

KILLED = """
import asyncio, os, signal, sys
import holdfast

place, effect, unknown = sys.argv[1:]

def size(of: list[int]) -> int:
    return len(of)

@holdfast.tool(effect=effect, unknown=unknown)
def charge(cents: int, context: holdfast.CallContext) -> int:
    with open("effects", "a") as file:
        file.write(f"{context.call_id} {cents}\\n")
    os.kill(os.getpid(), signal.SIGKILL)
    return cents

async def main() -> None:
    agent = holdfast.Agent("harness", external=True)
    async with holdfast.open(place, agents=[agent]) as runtime:
        session = runtime.session("order-1", agent=agent, create=True)
        assert await session.call(size, {"of": [1, 2]}, key="first") == 2
        await session.call(charge, {"cents": 5}, key="charge")

asyncio.run(main())
"""


@pytest.fixture
async def runtime():
    async with holdfast.open("memory:", agents=[HARNESS]) as opened:
        yield opened


def size(of: list[int]) -> int:
    return len(of)


def counted(**declared):
    seen = []

    @holdfast.tool(**declared)
    def double(number: int) -> int:
        seen.append(number)
        return 2 * number

    return double, seen


async def types(session) -> list[str]:
    return [event.type for event in await session.events()]


async def test_a_call_is_recorded_before_and_after_and_answered_from_the_log_again(runtime) -> None:
    session = runtime.session("s", agent="harness", create=True)
    double, seen = counted()
    assert await session.call(double, {"number": 21}, key="a") == 42
    assert await session.call(double, {"number": 21}, key="a") == 42
    assert await session.call(double, {"number": 21}, key="b") == 42
    assert seen == [21, 21]
    assert (await types(session))[1:4] == ["call.requested", "call.dispatched", "call.resolved"]
    view = (await session.calls())[0]
    assert (view.name, view.effect, view.outcome, view.turn) == ("double", "once", "ok", None)
    assert (await session.state()).status == "idle"
    assert (await holdfast.verify(runtime.store, "s")).ok


async def test_a_key_that_was_used_for_another_call_is_refused(runtime) -> None:
    session = runtime.session("s", agent="harness", create=True)
    double, seen = counted()
    await session.call(double, {"number": 1}, key="a")
    with pytest.raises(CallConflict, match="key of its own"):
        await session.call(double, {"number": 2}, key="a")
    with pytest.raises(CallConflict):
        await session.call(double, {"number": 1}, key="a", name="other-tool")
    assert seen == [1]


async def test_what_a_function_raises_is_its_outcome_each_time(runtime) -> None:
    session = runtime.session("s", agent="harness", create=True)
    seen = []

    def fails() -> None:
        seen.append(1)
        raise ValueError("no such city")

    for _ in range(2):
        with pytest.raises(CallFailed, match="ValueError: no such city") as caught:
            await session.call(fails, key="a")
        assert (caught.value.outcome, caught.value.call_id) == ("error", "key:a")
    assert seen == [1]


async def test_the_same_call_made_twice_at_once_is_made_once(runtime) -> None:
    session = await runtime.session("s", agent="harness", create=True)
    begun, go_on, seen = asyncio.Event(), asyncio.Event(), []

    async def slow(place: str) -> str:
        seen.append(place)
        begun.set()
        await go_on.wait()
        return place

    one = asyncio.create_task(session.call(slow, {"place": "x"}, key="a"))
    await begun.wait()
    two = asyncio.create_task(session.call(slow, {"place": "x"}, key="a"))
    other = asyncio.create_task(session.call(slow, {"place": "y"}, key="b"))
    with pytest.raises(SessionBusy):
        await runtime.resume(session)
    go_on.set()
    assert await asyncio.gather(one, two, other) == ["x", "x", "y"]
    assert sorted(seen) == ["x", "y"]


async def test_a_call_for_a_person_waits_and_is_answered_by_asking_again(runtime) -> None:
    session = await runtime.session("s", agent="harness", create=True)
    choose = holdfast.Tool("choose", executor="human", doc="Which one?")
    with pytest.raises(CallWaits, match="answer it, then ask again") as caught:
        await session.call(choose, {"options": ["a", "b"]}, key="q")
    assert (await session.state()).status == "suspended"
    assert [wait.call_id for wait in (await runtime.pending()).waits] == [caught.value.call_id]
    with pytest.raises(CallWaits):
        await session.call(choose, {"options": ["a", "b"]}, key="q")
    await session.answer(caught.value.call_id, "b")
    assert await session.call(choose, {"options": ["a", "b"]}, key="q") == "b"


async def test_a_gated_call_runs_once_it_is_approved_with_the_arguments_of_the_approver(
    runtime,
) -> None:
    session = await runtime.session("s", agent="harness", create=True)
    double, seen = counted(approval=True)
    with pytest.raises(CallWaits) as caught:
        await session.call(double, {"number": 1}, key="a")
    assert seen == []
    await session.answer(caught.value.call_id, holdfast.Approve(arguments={"number": 4}))
    await runtime.settled()
    assert await session.call(double, {"number": 1}, key="a") == 8
    assert await session.call(double, {"number": 1}, key="a") == 8
    assert seen == [4]
    with pytest.raises(CallWaits) as caught:
        await session.call(double, {"number": 2}, key="b")
    await session.answer(caught.value.call_id, holdfast.Deny("too much"))
    with pytest.raises(CallFailed, match="too much") as denied:
        await session.call(double, {"number": 2}, key="b")
    assert denied.value.outcome == "denied"


def killed(place, effect: str, unknown: str = "tell") -> None:
    folder = str(place).rpartition(":")[2].rpartition("/")[0]
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(place), effect, unknown],
        capture_output=True,
        text=True,
        cwd=folder,
    )
    assert done.returncode == -9, done.stderr


def charging(effect: str, unknown: str = "tell"):
    seen = []

    @holdfast.tool(effect=effect, unknown=unknown)
    def charge(cents: int, context: holdfast.CallContext) -> int:
        seen.append(context.call_id)
        return cents

    return charge, seen


@pytest.mark.parametrize("kind", ["sqlite", "files"])
async def test_after_a_kill_a_once_call_is_unknown_and_never_made_again(tmp_path, kind) -> None:
    place = f"{kind}:{tmp_path / 'store'}"
    killed(place, "once")
    charge, seen = charging("once")
    async with holdfast.open(place, agents=[HARNESS]) as runtime:
        session = runtime.session("order-1")
        assert (await runtime.store.session_info("order-1")).status == "interrupted"
        for _ in range(2):
            with pytest.raises(CallFailed, match="whether it took effect is unknown") as caught:
                await session.call(charge, {"cents": 5}, key="charge")
            assert caught.value.outcome == "unknown"
        assert await session.call(size, {"of": [1, 2]}, key="first") == 2
        assert (await holdfast.verify(runtime.store, "order-1")).ok
    assert seen == []


async def test_after_a_kill_an_idempotent_call_is_made_again_with_its_id(tmp_path) -> None:
    place = tmp_path / "store"
    killed(place, "idempotent")
    charge, seen = charging("idempotent")
    async with holdfast.open(place, agents=[HARNESS]) as runtime:
        session = runtime.session("order-1")
        assert await session.call(charge, {"cents": 5}, key="charge") == 5
    assert seen == ["key:charge"]
    assert (tmp_path / "effects").read_text() == "key:charge 5\n"


async def test_a_tool_that_has_become_stricter_is_not_called_again(tmp_path) -> None:
    place = tmp_path / "store"
    killed(place, "idempotent")
    charge, seen = charging("once")
    async with holdfast.open(place, agents=[HARNESS]) as runtime:
        with pytest.raises(CallFailed, match="unknown"):
            await runtime.session("order-1").call(charge, {"cents": 5}, key="charge")
    assert seen == []


async def test_after_a_kill_a_person_can_be_asked_what_became_of_a_call(tmp_path) -> None:
    place = tmp_path / "store"
    killed(place, "once", "ask")
    charge, seen = charging("once", "ask")
    async with holdfast.open(place, agents=[HARNESS]) as runtime:
        session = runtime.session("order-1")
        with pytest.raises(CallWaits) as caught:
            await session.call(charge, {"cents": 5}, key="charge")
        wait = (await runtime.pending()).waits[0]
        assert (wait.call_id, wait.kind) == (caught.value.call_id, "unknown")
        await session.answer(caught.value.call_id, 5)
        assert await session.call(charge, {"cents": 5}, key="charge") == 5
    assert seen == []


async def test_a_session_with_turns_settles_calls_that_a_dead_program_left(lab) -> None:
    runtime = await lab.open(replies(cell("FINAL(1)")))
    session = await runtime.session("s", create=True)

    begun = asyncio.Event()

    async def stuck() -> None:
        begun.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(session.call(stuck, key="a"))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await session.ask("x") == 1
    with pytest.raises(CallFailed, match="unknown"):
        await session.call(stuck, key="a")


async def test_a_session_of_another_program_takes_no_messages(runtime) -> None:
    session = await runtime.session("s", agent="harness", create=True)
    with pytest.raises(holdfast.errors.Refused, match="not driven"):
        await session.send("hello")
    assert await runtime.recover() == []


def test_the_blocking_face_calls_and_records_too(tmp_path) -> None:
    with holdfast.open_sync(tmp_path / "store", agents=[HARNESS]) as runtime:
        session = runtime.session("s", agent=HARNESS, create=True)
        assert session.call(size, {"of": [1]}, key="a") == 1
        first = session.record("note", {"text": "x"}, key="k")
        assert session.latest("note", "k") == first
        session.retract(first.number)
        assert session.records("note") == []
