"""Programs built on top keep records in a session's log: by kind and key, retractable, in order."""

from __future__ import annotations

import asyncio
import time

import pytest

import holdfast
from holdfast.core.errors import InvalidId, InvalidInput, RecordConflict
from holdfast.core.payloads import Erased

from .conftest import cell, replies

KEEPER = holdfast.Agent("keeper", external=True)


@pytest.fixture
async def session():
    async with holdfast.open("memory:", agents=[KEEPER]) as runtime:
        yield await runtime.session("thread", agent=KEEPER, create=True)


async def test_records_are_found_by_kind_key_and_prefix_in_order_and_in_pages(session) -> None:
    for number in range(5):
        await session.record("item", number, key=f"ns{number % 2}/{number}")
    await session.record("other", "x")
    assert [view.value for view in await session.records("item")] == [0, 1, 2, 3, 4]
    assert [view.value for view in await session.records("item", prefix="ns1/")] == [1, 3]
    assert [view.value for view in await session.records("item", key="ns0/2")] == [2]
    assert [view.value for view in await session.records(numbers=[6, 1])] == [0, "x"]
    assert [view.value for view in await session.records()] == [0, 1, 2, 3, 4, "x"]
    page = await session.records("item", limit=2)
    rest = await session.records("item", after=page[-1].seq)
    assert [view.value for view in page + rest] == [0, 1, 2, 3, 4]
    newest = await session.records("item", limit=2, reverse=True)
    assert [view.value for view in newest] == [4, 3]
    older = await session.records("item", before=newest[-1].seq, limit=2, reverse=True)
    assert [view.value for view in older] == [2, 1]


async def test_the_latest_record_of_a_key_replaces_nothing_but_is_found_first(session) -> None:
    await session.record("config", {"a": 1}, key="x")
    last = await session.record("config", {"a": 2}, key="x")
    assert await session.latest("config", "x") == last
    assert (await session.latest("config")).value == {"a": 2}
    assert await session.latest("config", "y") is None
    assert len(await session.records("config", key="x")) == 2


async def test_a_retracted_record_is_left_out_and_stays_in_the_log(session) -> None:
    one = await session.record("item", "one", key="k")
    two = await session.record("item", "two", key="k")
    await session.retract(two.number)
    assert await session.latest("item", "k") == one
    assert [view.value for view in await session.records("item")] == ["one"]
    assert await session.records(numbers=[two.number]) == []
    events = await session.events(types=["record.put"])
    assert [event.data.get("retracts") for event in events] == [None, None, [two.number]]
    with pytest.raises(RecordConflict, match="retracted already"):
        await session.retract(two.number)
    with pytest.raises(InvalidInput, match="no record 99"):
        await session.retract(99)
    assert (await holdfast.verify(session.runtime.store, "thread")).ok


async def test_several_records_and_retractions_are_one_batch(session) -> None:
    old = await session.record("checkpoint", "old", key="1")
    views = await session.record_all(
        [holdfast.Record("checkpoint", "new", "2"), holdfast.Record("blob", b"\x00", "2/a")],
        retracts=[old.number],
    )
    assert [(view.kind, view.value, view.number) for view in views] == [
        ("checkpoint", "new", 2),
        ("blob", b"\x00", 3),
    ]
    assert [view.value for view in await session.records("checkpoint")] == ["new"]
    with pytest.raises(RecordConflict):
        await session.record_all([holdfast.Record("blob", 1)], retracts=[old.number])
    assert len(await session.records("blob")) == 1


async def test_a_writer_that_expects_another_latest_record_writes_nothing(session) -> None:
    first = await session.record("head", "a", key="root", expected=0)
    with pytest.raises(RecordConflict, match="someone else wrote") as caught:
        await session.record("head", "b", key="root", expected=0)
    assert caught.value.details["latest"] == first.number
    await session.record("head", "b", key="root", expected=first.number)
    with pytest.raises(RecordConflict):
        await session.record_all([holdfast.Record("blob", 1)], expected={"head": first.number})
    with pytest.raises(RecordConflict):
        await session.record_all([holdfast.Record("blob", 1)], expected={("head", "root"): 0})
    assert await session.records("blob") == []


@pytest.mark.parametrize("kind", ["sqlite", "files"])
async def test_of_writers_in_two_runtimes_each_position_is_won_by_one(tmp_path, kind) -> None:
    place = f"{kind}:{tmp_path / 'store'}"

    async def write(runtime: holdfast.Runtime, name: str) -> int:
        session, won = runtime.session("thread"), 0
        while (latest := await session.latest("step")) is None or latest.value[0] < 10:
            step = 1 if latest is None else latest.value[0] + 1
            try:
                expected = 0 if latest is None else latest.number
                await session.record("step", [step, name], expected=expected)
                won += 1
            except RecordConflict:
                pass
        return won

    async with (
        holdfast.open(place, agents=[KEEPER]) as one,
        holdfast.open(place, agents=[KEEPER]) as two,
    ):
        session = await one.session("thread", agent=KEEPER, create=True)
        await asyncio.gather(*(write(r, n) for r, n in ((one, "a"), (one, "b"), (two, "c"))))
        steps = [view.value[0] for view in await session.records("step")]
        assert steps == list(range(1, len(steps) + 1))
        assert len(steps) >= 10


async def test_many_writers_at_once_share_one_lease(session) -> None:
    await asyncio.gather(*(session.record("item", number) for number in range(100)))
    values = [view.value for view in await session.records("item", limit=1000)]
    assert sorted(values) == list(range(100))


async def test_a_tool_records_in_the_turn_that_calls_it(lab) -> None:
    handles: list[holdfast.Session] = []

    async def note(text: str) -> int:
        return (await handles[0].record("note", text)).number

    agent = holdfast.Agent("noting", tools=[note])
    runtime = await lab.open(replies(cell("FINAL(note('seen'))")), agents=[agent])
    handles.append(await runtime.session("s", agent=agent, create=True))
    assert await handles[0].ask("x") == 1
    assert [view.value for view in await handles[0].records("note")] == ["seen"]
    assert await handles[0].records("note") == await runtime.records("s", "note")


async def test_an_erased_value_of_a_record_says_so_and_the_others_are_read(session) -> None:
    secret = await session.record("item", "s" * 2000)
    await session.record("item", "public")
    event = (await session.events(types=["record.put"]))[0]
    await session.runtime.store.erase("thread", event.fact().value.id, "asked-for")
    one, two = await session.records("item")
    assert isinstance(one.value, Erased)
    assert one.number == secret.number
    assert two.value == "public"


async def test_names_and_empty_writes_are_refused(session) -> None:
    with pytest.raises(InvalidId, match="kind of a record"):
        await session.record("two words", 1)
    with pytest.raises(InvalidId, match="key of a record"):
        await session.record("item", 1, key="")
    with pytest.raises(InvalidInput, match="nothing to record"):
        await session.record_all([])
    with pytest.raises(InvalidInput, match="pass the kind"):
        await session.records(key="k")


async def test_ten_thousand_records_are_paged_without_reading_all_each_time(session) -> None:
    for start in range(0, 10_000, 1000):
        await session.record_all(
            [holdfast.Record("item", number, f"k{number}") for number in range(start, start + 1000)]
        )
    assert (await session.latest("item", "k77")).value == 77
    started = time.monotonic()
    for number in range(0, 10_000, 500):
        assert (await session.latest("item", f"k{number}")).value == number
    assert time.monotonic() - started < 2
