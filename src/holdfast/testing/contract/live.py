"""Chapter: subscribers get every durable event once and in order, and harm nobody."""

from __future__ import annotations

import asyncio
import os
import warnings
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from holdfast.core.errors import HandleForked, HoldfastError, NothingWritten, SessionDeleted
from holdfast.core.events import Event
from holdfast.core.facts import SessionStarted
from holdfast.core.payloads import Slot, slot
from holdfast.core.replay import Copy
from holdfast.stores.port import Gap, Hint, InboxDraft, SessionStore, Subscription, Transient
from holdfast.testing.contract.place import ContractPlace, Place
from holdfast.testing.driver import Driver, all_events, drive

WAIT = 10.0
"""A subscriber that has heard nothing for this long has lost something."""

FLOOD = 20_000
"""More transients than any bounded queue should hold."""


async def heard(subscription: Subscription, count: int) -> list[Event | Transient | Gap | Hint]:
    """Return the next items of a subscription."""
    return [await asyncio.wait_for(anext(subscription), WAIT) for _ in range(count)]


def verbs(driver: Driver, big: Slot, events: list[Event]) -> list[Callable[[], Awaitable[Any]]]:
    """Return every asynchronous verb of a store that holds the driver's session, but for close."""
    store = driver.store
    return [
        lambda: store.create_session("s-2", SessionStarted()),
        lambda: driver.say("hi"),
        lambda: store.put_payload("s-1", big),
        lambda: store.get_payload("s-1", big.id),
        lambda: store.load_state("s-1"),
        lambda: store.read_events("s-1"),
        lambda: store.session_info("s-1"),
        lambda: store.list_sessions(),
        lambda: store.put_inbox("s-1", InboxDraft("k", "message")),
        lambda: store.list_inbox("s-1"),
        lambda: store.acquire("s-1"),
        lambda: store.renew(driver.lease),
        lambda: store.release(driver.lease),
        lambda: store.lease_of("s-1"),
        lambda: store.delete("s-1"),
        lambda: store.erase("s-1", big.id, "rule"),
        lambda: store.erased("s-1"),
        lambda: store.gc(),
        lambda: store.import_log(Copy("s-1", events, {big.id: big.data or b""})),
    ]


def _taken(driver: Driver, big: Slot, events: list[Event]) -> int:
    """Return which verb a forked process may use, counted from one; 0 if none."""
    store = driver.store
    uses: list[Callable[[], object]] = [
        lambda verb=verb: verb().__await__().send(None)  # type: ignore[misc]
        for verb in [*verbs(driver, big, events), store.close]
    ]
    uses += [
        lambda: store.subscribe("s-1"),
        lambda: store.subscribe_all(),
        lambda: store.notify(Transient("s-1", "delta.token", "x")),
    ]
    for number, use in enumerate(uses, 1):
        try:
            use()
        except HandleForked:
            continue
        except BaseException:
            return number
        return number
    return 0


class LiveContract(ContractPlace):
    """What subscribers see."""

    async def test_backlog_and_live_join_without_gap_or_repeat(self, store: SessionStore) -> None:
        driver = await drive(store)
        for number in range(10):
            await driver.say(f"old {number}")

        async def write() -> None:
            for number in range(60):
                await driver.say(f"new {number}")

        async with store.subscribe("s-1") as live:
            writing = asyncio.ensure_future(write())
            items = await heard(live, 71)
            await writing
        assert items == await all_events(store, "s-1")

    async def test_a_subscription_starts_after_the_position_it_names(
        self, store: SessionStore
    ) -> None:
        driver = await drive(store)
        for number in range(5):
            await driver.say(f"m{number}")
        for after in (0, 3, 6):
            async with store.subscribe("s-1", after=after) as live:
                await driver.say("one more")
                first = (await heard(live, 1))[0]
                assert isinstance(first, Event)
                assert first.seq == after + 1

    async def test_a_subscriber_of_another_handle_sees_events_too(
        self, place: Place, store: SessionStore
    ) -> None:
        driver = await drive(store)
        other = await place.open()
        async with other.subscribe("s-1") as live:
            for number in range(5):
                await driver.say(f"m{number}")
            assert await heard(live, 6) == await all_events(store, "s-1")

    async def test_a_slow_or_throwing_subscriber_harms_nobody(self, store: SessionStore) -> None:
        driver = await drive(store)
        slow = store.subscribe("s-1")
        await heard(slow, 1)

        async def throw() -> None:
            async for _ in store.subscribe("s-1"):
                raise ZeroDivisionError

        throwing = asyncio.ensure_future(throw())
        async with store.subscribe("s-1") as live:
            for number in range(50):
                await asyncio.wait_for(driver.say(f"m{number}"), WAIT)
            assert await heard(live, 51) == await all_events(store, "s-1")
        with pytest.raises(ZeroDivisionError):
            await throwing
        late = await heard(slow, 50)
        assert late == (await all_events(store, "s-1"))[1:]
        await slow.close()

    async def test_transients_reach_live_subscribers_and_are_never_stored(
        self, place: Place, store: SessionStore
    ) -> None:
        driver = await drive(store)
        async with store.subscribe("s-1", after=1) as live:
            token = Transient("s-1", "delta.token", "he")
            store.notify(token)
            store.notify(Transient("s-2", "delta.token", "not yours"))
            assert await heard(live, 1) == [token]
            event = await driver.say("hello")
            assert await heard(live, 1) == [event]
        assert len(await all_events(await place.reopen(store), "s-1")) == 2

    async def test_under_load_transients_go_first_and_leave_one_gap_marker(
        self, store: SessionStore
    ) -> None:
        driver = await drive(store)
        async with store.subscribe("s-1") as live:
            for number in range(FLOOD):
                store.notify(Transient("s-1", "delta.token", number))
            for number in range(3):
                await driver.say(f"m{number}")
            store.notify(Transient("s-1", "delta.token", "last"))
            items: list[object] = []
            while not items or items[-1] != Transient("s-1", "delta.token", "last"):
                items += await heard(live, 1)
        events = [item for item in items if isinstance(item, Event)]
        gaps = [item for item in items if isinstance(item, Gap)]
        kept = [item for item in items if isinstance(item, Transient)]
        assert events == await all_events(store, "s-1")
        assert 0 < len(kept) < FLOOD
        assert len(gaps) == 1
        before = [item for item in items[: items.index(gaps[0])] if isinstance(item, Event)]
        assert gaps[0].last_seq == (before[-1].seq if before else 0)

    async def test_hints_tell_of_every_session_that_moved(
        self, place: Place, store: SessionStore
    ) -> None:
        other = await place.open()
        first = await drive(store, "s-1")
        async with store.subscribe_all() as hints:
            second = await drive(other, "s-2")
            await first.say("hi")
            await second.say("hi")
            await store.put_inbox("s-1", InboxDraft("k", "message"))
            newest: dict[str, int] = {}
            while newest.get("s-1", 0) < 2 or newest.get("s-2", 0) < 2:
                for hint in await heard(hints, 1):
                    assert isinstance(hint, Hint)
                    newest[hint.session] = max(hint.seq, newest.get(hint.session, 0))

    async def test_an_inbox_item_wakes_those_who_watch(
        self, place: Place, store: SessionStore
    ) -> None:
        await drive(store)
        outsider = await place.open()
        async with store.subscribe_all() as hints:
            await outsider.put_inbox("s-1", InboxDraft("k", "message"))
            hint = (await heard(hints, 1))[0]
            assert isinstance(hint, Hint)
            assert hint.session == "s-1"

    async def test_closing_ends_the_iteration_whoever_closes(self, store: SessionStore) -> None:
        await drive(store)

        async def follow(subscription: Subscription) -> list[object]:
            return [item async for item in subscription]

        mine = store.subscribe("s-1", after=1)
        following = asyncio.ensure_future(follow(mine))
        await asyncio.sleep(0)
        await mine.close()
        await mine.close()
        assert await asyncio.wait_for(following, WAIT) == []
        others: list[Subscription] = [store.subscribe("s-1", after=1), store.subscribe_all()]
        tasks = [asyncio.ensure_future(follow(item)) for item in others]
        await asyncio.sleep(0)
        await store.close()
        assert await asyncio.wait_for(asyncio.gather(*tasks), WAIT) == [[], []]

    @pytest.mark.parametrize("passes", [0, 1, 2, 5])
    async def test_a_close_that_was_cancelled_is_seen_through(
        self, place: Place, store: SessionStore, passes: int
    ) -> None:
        """Whoever closes again waits for it, and finds the leases given back."""
        names = [f"s-{number}" for number in range(1, 9)]
        for name in names:
            await drive(store, name)
        closing = asyncio.ensure_future(store.close())
        for _ in range(passes):
            await asyncio.sleep(0)
        closing.cancel()
        await asyncio.wait([closing])
        await store.close()
        other = await place.open()
        assert [(await other.acquire(name)).session for name in names] == names
        await other.close()

    async def test_a_closed_handle_refuses_every_verb_and_changes_nothing(
        self, place: Place, store: SessionStore
    ) -> None:
        driver = await drive(store)
        big = slot("b" * 3000, "message")
        await driver.say(big)
        events = await all_events(store, "s-1")
        await store.close()
        for verb in verbs(driver, big, events):
            with pytest.raises(NothingWritten, match="closed; open the store again"):
                await verb()
        with pytest.raises(NothingWritten, match="closed"):
            store.subscribe("s-1")
        with pytest.raises(NothingWritten, match="closed"):
            store.subscribe_all()
        store.notify(Transient("s-1", "delta.token", "x"))
        other = await place.open()
        assert await all_events(other, "s-1") == events
        assert (await other.list_inbox("s-1"), await other.lease_of("s-1")) == ([], None)

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="there is nothing to fork here")
    async def test_a_forked_process_cannot_use_a_handle_and_harms_it_not(
        self, store: SessionStore
    ) -> None:
        driver = await drive(store)
        big = slot("b" * 3000, "message")
        await driver.say(big)
        events = await all_events(store, "s-1")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            os._exit(_taken(driver, big, events))
        _, ended = await asyncio.to_thread(os.waitpid, child, 0)
        assert os.waitstatus_to_exitcode(ended) == 0, "a verb was not refused"
        told = await driver.say("on we go")
        assert await all_events(store, "s-1") == [*events, told]

    @pytest.mark.parametrize("by", ["this handle", "another"])
    async def test_who_follows_a_session_learns_of_its_deletion(
        self, place: Place, store: SessionStore, by: str
    ) -> None:
        deleting = store if by == "this handle" else await place.open()
        await store.create_session("s-1", SessionStarted())
        async with store.subscribe("s-1", after=1) as live, store.subscribe_all():
            following = asyncio.ensure_future(heard(live, 1))
            await asyncio.wait([following], timeout=0.2)
            await deleting.delete("s-1")
            with pytest.raises(SessionDeleted, match="s-1"):
                await following

    async def test_following_a_session_that_is_not_there_is_an_error_and_no_silence(
        self, store: SessionStore
    ) -> None:
        await store.create_session("s-1", SessionStarted())
        with pytest.raises(HoldfastError):
            await heard(store.subscribe("s-9"), 1)
        await store.delete("s-1")
        with pytest.raises(HoldfastError):
            await heard(store.subscribe("s-1"), 1)
