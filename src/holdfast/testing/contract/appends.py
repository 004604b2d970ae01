"""Chapter: sessions are created once, and a batch is appended whole, in place and by its driver."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from holdfast.core import facts
from holdfast.core.errors import (
    HeadConflict,
    HoldfastError,
    IllegalTransition,
    InboxConsumed,
    InboxItemNotFound,
    InvalidInput,
    LeaseLost,
    PositionConflict,
    SessionNotFound,
    SettingsConflict,
)
from holdfast.core.heads import EdgeDraft, HeadDraft
from holdfast.core.payloads import slot
from holdfast.stores.port import InboxDraft, Lease, SessionStore
from holdfast.stores.verify import verify
from holdfast.testing.contract.place import ContractPlace, Place
from holdfast.testing.driver import all_events, drive, view
from holdfast.testing.histories import finish_turn, start_turn

BIG = "b" * 3000


class AppendContract(ContractPlace):
    """How sessions begin and logs grow."""

    async def test_creating_twice_with_the_same_content_changes_nothing(
        self, store: SessionStore
    ) -> None:
        started = facts.SessionStarted(agent="a", labels={"k": "v"}, settings=slot(BIG, "settings"))
        first = await store.create_session("s-1", started)
        assert (first.seq, first.status, first.agent) == (1, "idle", "a")
        again = await store.create_session("s-1", started)
        assert again == first
        assert len(await all_events(store, "s-1")) == 1

    async def test_creating_again_after_progress_returns_the_present_state(
        self, store: SessionStore
    ) -> None:
        driver = await drive(store)
        await driver.say("hi")
        assert await store.create_session("s-1", facts.SessionStarted()) == driver.state

    async def test_other_settings_on_an_existing_id_are_a_conflict(
        self, store: SessionStore
    ) -> None:
        await store.create_session("s-1", facts.SessionStarted(settings=slot("a", "settings")))
        for other in (
            facts.SessionStarted(),
            facts.SessionStarted(settings=slot("b", "settings")),
            facts.SessionStarted(settings=slot("a", "settings"), agent="else"),
        ):
            with pytest.raises(SettingsConflict, match="s-1"):
                await store.create_session("s-1", other)
        assert (await store.load_state("s-1")).agent == "default"

    async def test_what_is_no_fact_is_refused_with_all_that_comes_with_it(
        self, store: SessionStore
    ) -> None:
        driver = await drive(store)
        for wrong in ("text", None, {"message": 1}, facts.Fact()):
            new: list[Any] = [driver.message("before"), wrong]
            with pytest.raises(InvalidInput, match=f"{type(wrong).__name__} is not a fact type"):
                await driver.append(*new)
        assert len(await all_events(store, "s-1")) == driver.state.seq
        await driver.say("hi")

    async def test_creating_one_id_many_times_at_once_makes_one_session(
        self, place: Place, store: SessionStore
    ) -> None:
        other = await place.open()
        states = await asyncio.gather(
            *(s.create_session("s-1", facts.SessionStarted()) for s in (store, other) * 4)
        )
        assert len({state.digest for state in states}) == 1
        assert len(await all_events(store, "s-1")) == 1

    async def test_a_session_that_is_not_there_is_said_to_be_missing(
        self, store: SessionStore
    ) -> None:
        with pytest.raises(SessionNotFound, match="s-9"):
            await store.load_state("s-9")
        with pytest.raises(SessionNotFound):
            await store.append(Lease("s-9", "o-1", 1), 0, [facts.SessionStopped()])

    async def test_a_batch_gets_consecutive_seqs_and_is_returned_as_it_is_stored(
        self, store: SessionStore
    ) -> None:
        driver = await drive(store)
        done = await driver.play(start_turn(driver.state, "hi"))
        assert [event.seq for event in done.events] == [2, 3]
        assert await store.read_events("s-1", after=1) == list(done.events)
        assert await store.load_state("s-1") == done.state

    async def test_an_append_at_another_position_is_refused_and_says_where_the_log_is(
        self, store: SessionStore
    ) -> None:
        driver = await drive(store)
        await driver.say("hi")
        for wrong in (0, 1, 3, 99, -1):
            with pytest.raises((PositionConflict, InvalidInput)) as caught:
                await store.append(driver.lease, wrong, [driver.message("no")])
            if wrong >= 0:
                assert caught.value.details["seq"] == 2
        assert len(await all_events(store, "s-1")) == 2

    async def test_of_many_appends_at_one_position_exactly_one_is_stored(
        self, store: SessionStore
    ) -> None:
        driver = await drive(store)
        results = await asyncio.gather(
            *(store.append(driver.lease, 1, [driver.message(f"m{n}")]) for n in range(12)),
            return_exceptions=True,
        )
        lost = [result for result in results if isinstance(result, BaseException)]
        assert [type(error) for error in lost] == [PositionConflict] * 11
        assert [event.seq for event in await all_events(store, "s-1")] == [1, 2]
        assert (await verify(store, "s-1")).ok

    async def test_a_refused_append_harms_none_of_those_made_at_the_same_time(
        self, store: SessionStore
    ) -> None:
        drivers = [await drive(store, f"s-{n}") for n in range(6)]
        jobs = []
        for number, driver in enumerate(drivers):
            wrong = number % 2
            jobs.append(store.append(driver.lease, 1 + 7 * wrong, [driver.message(BIG)]))
        results = await asyncio.gather(*jobs, return_exceptions=True)
        for number, result in enumerate(results):
            assert isinstance(result, PositionConflict) == bool(number % 2)
            assert (await store.load_state(f"s-{number}")).seq == 2 - number % 2
            assert (await verify(store, f"s-{number}")).ok

    async def test_a_batch_with_one_illegal_fact_stores_nothing_at_all(
        self, store: SessionStore
    ) -> None:
        driver = await drive(store)
        before = await view(store, "s-1")
        for last, error in (
            (facts.StepStarted(step=1, turn=1, ordinal=1), IllegalTransition),
            (facts.TurnStarted(turn=7), InvalidInput),
            (facts.CallResolved(call_id="c", outcome="ok"), InvalidInput),
        ):
            with pytest.raises(error):
                await driver.append(driver.message(BIG), last)
        with pytest.raises(InvalidInput):
            await driver.append()
        assert await view(store, "s-1") == before

    async def test_an_append_without_the_lease_is_refused(self, store: SessionStore) -> None:
        driver = await drive(store)
        await drive(store, "s-2")
        good = driver.lease
        for forged in (
            replace(good, epoch=good.epoch + 1),
            replace(good, epoch=good.epoch - 1),
            replace(good, owner="o-else"),
            replace(good, session="s-2", epoch=good.epoch + 1),
        ):
            with pytest.raises(LeaseLost):
                await store.append(forged, 1, [driver.message("no")])
        await store.release(good)
        with pytest.raises(LeaseLost):
            await driver.say("no")
        assert len(await all_events(store, "s-1")) == len(await all_events(store, "s-2")) == 1

    async def test_a_head_is_computed_in_the_append_and_its_basis_is_checked(
        self, store: SessionStore
    ) -> None:
        driver = await drive(store)
        first = await driver.turn("one")
        assert driver.state.head == first
        draft = HeadDraft(kind="compaction", expected_basis=None)
        briefing = facts.SessionCompacted(
            message=driver.state.next("message"), content=slot("so far", "message")
        )
        with pytest.raises(HeadConflict) as caught:
            await driver.append(briefing, head=draft)
        assert caught.value.details["current"] == first
        done = await driver.append(briefing, head=replace(draft, expected_basis=first))
        assert done.head is not None
        assert done.head.basis == first
        assert (await store.session_info("s-1")).head == done.head.id
        assert (await verify(store, "s-1")).head == done.head.id

    async def test_a_turn_that_is_not_final_publishes_no_head(self, store: SessionStore) -> None:
        driver = await drive(store)
        await driver.play(start_turn(driver.state, "hi"))
        draft, failed = HeadDraft(kind="turn_final", turn=1), facts.TurnPut(turn=1, status="failed")
        for new in ([], [failed]):
            with pytest.raises(InvalidInput, match="final outcome"):
                await driver.append(*new, head=draft)
        with pytest.raises(InvalidInput, match="in the same append"):
            await driver.append(facts.TurnPut(turn=1, status="final"))
        await driver.append(failed)
        assert (driver.state.head, driver.state.last_turn) == (None, "failed")

    async def test_final_turn_head_and_lineage_are_one_batch(self, store: SessionStore) -> None:
        driver = await drive(store)
        await driver.play(start_turn(driver.state, "hi"))
        move = finish_turn(driver.state, BIG)
        edge = EdgeDraft(type="derivation", from_session="s-0", to_session="s-1")
        done = await driver.append(
            *move.facts, head=move.head, edges=[edge], payloads=move.payloads
        )
        types = [event.type for event in done.events]
        assert types == ["vars.checkpointed", "turn.put", "head.published", "lineage.added"]
        assert done.events[-1].data["to_head"] == driver.state.head
        assert (driver.state.derived, driver.state.status) == (True, "idle")

    async def test_an_append_consumes_inbox_items_with_its_events_or_not_at_all(
        self, store: SessionStore
    ) -> None:
        driver = await drive(store)
        await store.put_inbox("s-1", InboxDraft("k-1", "message"))
        await store.put_inbox("s-1", InboxDraft("k-2", "message"))
        with pytest.raises(InboxItemNotFound, match="k-9"):
            await driver.append(driver.message("no"), consumes=["k-1", "k-9"])
        with pytest.raises(PositionConflict):
            await store.append(driver.lease, 9, [driver.message("no")], consumes=["k-1"])
        assert len(await store.list_inbox("s-1")) == 2
        await driver.append(driver.message("yes"), consumes=["k-1"])
        with pytest.raises(InboxConsumed, match="k-1"):
            await driver.append(driver.message("no"), consumes=["k-2", "k-1"])
        with pytest.raises(InboxConsumed, match="k-1"):
            await driver.append(driver.message("no"), consumes=["k-1"])
        with pytest.raises(InboxItemNotFound, match="k-9"):
            await driver.append(driver.message("no"), consumes=["k-9"])
        assert [item.key for item in await store.list_inbox("s-1")] == ["k-2"]
        consumed = (await store.list_inbox("s-1", pending=False))[0]
        assert (consumed.key, consumed.consumed_seq) == ("k-1", 2)
        assert (await store.load_state("s-1")).seq == 2

    async def test_one_key_named_twice_is_consumed_once(self, store: SessionStore) -> None:
        driver = await drive(store)
        await store.put_inbox("s-1", InboxDraft("k-1", "message"))
        with pytest.raises(HoldfastError):
            await driver.append(driver.message("no"), consumes=["k-1", "k-1"])
        assert len(await store.list_inbox("s-1")) == 1

    async def test_what_a_reopened_store_shows_is_what_the_live_one_showed(
        self, place: Place, store: SessionStore
    ) -> None:
        driver = await drive(store, started=facts.SessionStarted(labels={"a": "b"}))
        await driver.turn(BIG)
        await driver.play(start_turn(driver.state, "second"))
        await store.put_inbox("s-1", InboxDraft("k", "message", content=slot(BIG, "message")))
        live = await view(store, "s-1")
        assert live.state == driver.state
        assert await view(await place.reopen(store), "s-1") == live

    @pytest.mark.parametrize("steps", [*range(12), 15, 20, 30, 50])
    async def test_a_cancelled_append_is_stored_whole_or_not_at_all(
        self, place: Place, store: SessionStore, steps: int
    ) -> None:
        driver = await drive(store)
        before = await view(store, "s-1")
        batch = [driver.message(BIG), facts.TurnStarted(turn=1)]
        task = asyncio.ensure_future(store.append(driver.lease, 1, batch))
        for _ in range(steps):
            await asyncio.sleep(0)
        cancelled = task.cancel()
        result = (await asyncio.gather(task, return_exceptions=True))[0]
        assert cancelled or not isinstance(result, BaseException)
        after = await view(store, "s-1")
        if cancelled:
            assert isinstance(result, asyncio.CancelledError)
        else:
            assert after.state.seq == 3
        assert after == before or after.state.seq == 3
        driver.state = after.state
        await driver.say("later work goes on")
        live = await view(store, "s-1")
        assert (await verify(store, "s-1")).ok
        assert await view(await place.reopen(store), "s-1") == live

    async def test_a_caller_who_cancels_again_and_again_changes_nothing_about_that(
        self, place: Place, store: SessionStore
    ) -> None:
        driver = await drive(store)
        task = asyncio.ensure_future(store.append(driver.lease, 1, [driver.message(BIG)]))
        await asyncio.sleep(0)
        while not task.done():
            task.cancel()
            await asyncio.sleep(0)
        state = await store.load_state("s-1")
        assert await store.load_state("s-1") == state
        driver.state = state
        await driver.say("later work goes on")
        live = await view(store, "s-1")
        assert await view(await place.reopen(store), "s-1") == live

    @pytest.mark.parametrize("size", [10, 100_000])
    async def test_what_is_appended_may_come_from_iterators(
        self, place: Place, store: SessionStore, size: int
    ) -> None:
        driver = await drive(store)
        other = await drive(store, "s-2")
        await store.put_inbox("s-1", InboxDraft("k", "message"))
        fact = driver.message("m" * size)
        head = "sha256:" + "0" * 64
        edge = EdgeDraft(type="derivation", from_session="s-2", to_session="s-1", to_head=head)
        done = await store.append(
            driver.lease,
            1,
            (one for one in [fact]),  # type: ignore[arg-type]
            edges=iter([edge]),  # type: ignore[arg-type]
            consumes=iter(["k"]),  # type: ignore[arg-type]
        )
        assert [event.type for event in done.events] == ["message.appended", "lineage.added"]
        assert await store.list_inbox("s-1") == []
        with pytest.raises(InvalidInput, match="at least one event"):
            await store.append(other.lease, 1, iter(()))  # type: ignore[arg-type]
        for handle in (store, await place.open()):
            assert (await verify(handle, "s-1")).ok
            assert len(await handle.read_events("s-1")) == 3
