"""Chapter: leases fence off every earlier driver, and outsiders ask through the inbox."""

from __future__ import annotations

import asyncio

import pytest
from msgspec import structs

from holdfast.core.errors import (
    InboxConflict,
    InvalidInput,
    InvalidRef,
    LeaseHeld,
    LeaseLost,
    PositionConflict,
)
from holdfast.core.facts import SessionStarted
from holdfast.core.payloads import Erased, slot, slot_of_bytes
from holdfast.stores.port import InboxDraft, SessionStore
from holdfast.stores.verify import verify
from holdfast.testing.contract.place import ContractPlace, Place
from holdfast.testing.driver import drive

BIG = "b" * 3000


class LeaseContract(ContractPlace):
    """Who may drive."""

    async def test_a_held_lease_is_refused_and_the_holder_is_named(
        self, place: Place, store: SessionStore
    ) -> None:
        driver = await drive(store)
        other = await place.open()
        assert other.owner != store.owner
        for asker in (other, store):
            with pytest.raises(LeaseHeld) as caught:
                await asker.acquire("s-1")
            assert caught.value.details["owner"] == store.owner
            assert caught.value.details["epoch"] == driver.lease.epoch
            assert str(caught.value.details["holder"]) in str(caught.value)

    async def test_of_many_who_ask_at_once_one_gets_the_lease(
        self, place: Place, store: SessionStore
    ) -> None:
        await store.create_session("s-1", SessionStarted())
        stores = [store, *[await place.open() for _ in range(3)]]
        results = await asyncio.gather(
            *(handle.acquire("s-1") for handle in stores * 2), return_exceptions=True
        )
        assert sum(not isinstance(result, BaseException) for result in results) == 1
        assert sum(isinstance(result, LeaseHeld) for result in results) == 7

    async def test_a_released_lease_is_free_and_the_next_has_a_higher_epoch(
        self, place: Place, store: SessionStore
    ) -> None:
        driver = await drive(store)
        await store.renew(driver.lease)
        await store.release(driver.lease)
        assert await store.lease_of("s-1") is None
        other = await place.open()
        lease = await other.acquire("s-1")
        assert lease.epoch > driver.lease.epoch
        with pytest.raises(LeaseLost) as caught:
            await driver.say("too late")
        assert caught.value.details["owner"] == other.owner
        with pytest.raises(LeaseLost):
            await store.renew(driver.lease)
        await store.release(driver.lease)
        assert await other.lease_of("s-1") is not None

    async def test_a_lease_says_where_the_log_stands_and_what_waits(
        self, place: Place, store: SessionStore
    ) -> None:
        driver = await drive(store)
        assert (driver.lease.seq, driver.lease.inbox) == (1, 0)
        outsider = await place.open()
        for key in ("one", "two", "three"):
            await outsider.put_inbox("s-1", InboxDraft(key, "message"))
        await driver.append(driver.message("took it"), consumes=["two"])
        await store.release(driver.lease)
        for asker in (outsider, store):
            lease = await asker.acquire("s-1")
            assert (lease.seq, lease.inbox) == (driver.state.seq, 2)
            await asker.release(lease)

    async def test_a_batch_that_releases_gives_the_lease_back_and_says_what_waits(
        self, place: Place, store: SessionStore
    ) -> None:
        driver = await drive(store)
        outsider = await place.open()
        for key in ("one", "two"):
            await outsider.put_inbox("s-1", InboxDraft(key, "message"))
        kept = await driver.append(driver.message("hi"))
        assert kept.inbox is None
        for waiting, text, options in ((2, "swift", {}), (1, BIG, {"consumes": ["one"]})):
            done = await driver.append(driver.message(text), release=True, **options)
            assert done.inbox == waiting
            assert await outsider.lease_of("s-1") is None
            with pytest.raises(LeaseLost):
                await driver.say("too late")
            await store.release(driver.lease)
            theirs = await outsider.acquire("s-1")
            assert theirs.seq == driver.state.seq
            await store.release(driver.lease)
            assert await outsider.lease_of("s-1") is not None
            await outsider.release(theirs)
            driver.lease = await store.acquire("s-1")
            assert driver.lease.epoch == theirs.epoch + 1
        assert (await verify(store, "s-1")).ok

    async def test_a_batch_that_is_refused_keeps_the_lease(self, store: SessionStore) -> None:
        driver = await drive(store)
        early = driver.state.seq
        await driver.say("hi")
        with pytest.raises(PositionConflict):
            await store.append(driver.lease, early, [driver.message("again")], release=True)
        with pytest.raises(LeaseHeld):
            await store.acquire("s-1")
        await driver.say("still driving")

    async def test_closing_a_store_gives_its_leases_back(
        self, place: Place, store: SessionStore
    ) -> None:
        await drive(store)
        await store.close()
        await store.close()
        other = await place.open()
        assert await other.lease_of("s-1") is None
        await other.acquire("s-1")

    async def test_the_lease_of_a_dead_process_is_stolen_and_its_driver_fenced_off(
        self, store: SessionStore
    ) -> None:
        await store.create_session("s-1", SessionStarted())
        await self.die_holding(store, "s-1")
        dead = await store.lease_of("s-1")
        assert dead is not None
        assert not dead.live
        assert (await store.session_info("s-1")).status == "idle"
        lease = await store.acquire("s-1")
        assert lease.epoch == dead.epoch + 1
        now = await store.lease_of("s-1")
        assert now is not None
        assert (now.live, now.owner) == (True, store.owner)

    async def test_taking_a_dead_owners_lease_is_logged_as_a_warning(
        self, place: Place, store: SessionStore, caplog: pytest.LogCaptureFixture
    ) -> None:
        driver = await drive(store)
        await store.release(driver.lease)
        await (await place.open()).acquire("s-1")
        assert not [record for record in caplog.records if "takes the lease" in record.message]
        await store.create_session("s-2", SessionStarted())
        await self.die_holding(store, "s-2")
        lease = await store.acquire("s-2")
        (record,) = [record for record in caplog.records if "takes the lease" in record.message]
        assert record.levelname == "WARNING"
        assert f"session s-2: epoch {lease.epoch}" in record.message

    @pytest.mark.parametrize("steps", range(10))
    async def test_a_cancelled_acquire_leaves_no_lease_that_nobody_has(
        self, store: SessionStore, steps: int
    ) -> None:
        await store.create_session("s-1", SessionStarted())
        task = asyncio.ensure_future(store.acquire("s-1"))
        for _ in range(steps):
            await asyncio.sleep(0)
        if task.cancel():
            with pytest.raises(asyncio.CancelledError):
                await task
            await store.acquire("s-1")
        else:
            await store.release(await task)

    async def test_holding_one_session_says_nothing_about_another(
        self, place: Place, store: SessionStore
    ) -> None:
        await drive(store, "s-1")
        other = await place.open()
        driver = await drive(other, "s-2")
        await driver.say("hi")


class InboxContract(ContractPlace):
    """How outsiders ask."""

    async def test_an_item_is_stamped_by_the_store_and_listed_in_order_of_arrival(
        self, place: Place, store: SessionStore
    ) -> None:
        await drive(store)
        outsider = await place.open()
        for key in ("z", "a", "m"):
            item = await outsider.put_inbox("s-1", InboxDraft(key, "message"))
            assert item.at.endswith("Z")
            assert item.consumed_seq is None
        assert [item.key for item in await store.list_inbox("s-1")] == ["z", "a", "m"]
        assert (await store.session_info("s-1")).inbox == 3
        assert await (await place.reopen(store)).list_inbox("s-1") == await outsider.list_inbox(
            "s-1"
        )

    async def test_asking_the_same_again_returns_the_stored_item(self, store: SessionStore) -> None:
        driver = await drive(store)
        for text in ("small", BIG):
            draft = InboxDraft(f"k-{len(text)}", "message", content=slot(text, "message"))
            first = await store.put_inbox("s-1", draft)
            assert await store.put_inbox("s-1", draft) == first
            await driver.append(driver.message("took it"), consumes=[draft.key])
            again = await store.put_inbox("s-1", draft)
            assert again.consumed_seq == driver.state.seq
            assert again.at == first.at
        assert await store.list_inbox("s-1") == []

    async def test_other_content_under_the_same_key_is_a_conflict(
        self, store: SessionStore
    ) -> None:
        await drive(store)
        draft = InboxDraft("k", "message", content=slot("one", "message"))
        first = await store.put_inbox("s-1", draft)
        for other in (
            InboxDraft("k", "message", content=slot("two", "message")),
            InboxDraft("k", "message"),
            InboxDraft("k", "stop", content=slot("one", "message")),
            InboxDraft("k", "message", call_id="c", content=slot("one", "message")),
        ):
            with pytest.raises(InboxConflict, match="'k'"):
                await store.put_inbox("s-1", other)
        assert await store.list_inbox("s-1") == [first]

    async def test_the_same_key_in_two_sessions_is_two_items(self, store: SessionStore) -> None:
        for session in ("s-1", "s-2"):
            await drive(store, session)
            await store.put_inbox(
                session, InboxDraft("k", "answer", "c-1", slot(session, "answer"))
            )
        assert len(await store.list_inbox("s-2")) == 1

    async def test_large_content_is_the_sessions_own_and_survives_gc(
        self, store: SessionStore
    ) -> None:
        driver = await drive(store)
        content = slot(BIG * 50, "message")
        await store.put_inbox("s-1", InboxDraft("k", "message", content=content))
        assert (await store.gc(grace_seconds=0)).payloads == 0
        item = (await store.list_inbox("s-1"))[0]
        assert item.content == content
        await driver.append(driver.message(content.bare()), consumes=["k"])
        assert await store.get_payload("s-1", content.id) == content.data
        assert (await verify(store, "s-1")).ok

    async def test_drafts_that_nobody_could_consume_are_refused(self, store: SessionStore) -> None:
        await drive(store)
        with pytest.raises(InvalidInput):
            await store.put_inbox("s-1", InboxDraft("k", "party"))  # type: ignore[arg-type]
        bare = slot(BIG, "message").bare()
        with pytest.raises((InvalidInput, InvalidRef)):
            await store.put_inbox("s-1", InboxDraft("k", "message", content=bare))
        odd = structs.replace(slot(BIG, "message"), size=float(len(BIG)))
        gone = slot("x", "message").without(Erased("2026-01-01T00:00:00.000000Z", "privacy"))
        no_text = slot_of_bytes("text", b"\xff", "message")
        for content in (odd, structs.replace(gone, data=b"x"), no_text):
            with pytest.raises(InvalidRef):
                await store.put_inbox("s-1", InboxDraft("k", "message", content=content))
        assert await store.list_inbox("s-1") == []
