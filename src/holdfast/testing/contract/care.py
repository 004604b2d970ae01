"""Chapter: delete leaves a tombstone, erase keeps the proof."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from holdfast.core import facts
from holdfast.core.errors import (
    Corruption,
    InboxConflict,
    InvalidInput,
    InvalidRef,
    LeaseHeld,
    PayloadNotFound,
    SessionDeleted,
)
from holdfast.core.payloads import Slot, manifest, slot, to_record
from holdfast.core.replay import Copy
from holdfast.stores.port import ROW_PAYLOAD_BYTES, InboxDraft, Lease, SessionStore
from holdfast.stores.verify import verify
from holdfast.testing.contract.place import ContractPlace, Place
from holdfast.testing.driver import all_events, drive
from holdfast.testing.histories import finish_turn

TINY = slot("tiny", "message")
BIG = slot("b" * 3000, "message")
HUGE = slot("h" * (ROW_PAYLOAD_BYTES * 2), "message")


class DeleteContract(ContractPlace):
    """What is left of a deleted session."""

    async def test_a_deleted_session_is_gone_for_every_verb_and_its_id_is_never_reused(
        self, place: Place, store: SessionStore
    ) -> None:
        driver = await drive(store)
        await driver.say(BIG)
        events = await all_events(store, "s-1")
        with pytest.raises(LeaseHeld):
            await store.delete("s-1")
        await store.release(driver.lease)
        await store.delete("s-1")
        for _ in range(2):
            for attempt in (
                store.create_session("s-1", facts.SessionStarted()),
                store.load_state("s-1"),
                store.read_events("s-1"),
                store.session_info("s-1"),
                store.get_payload("s-1", BIG.id),
                store.put_payload("s-1", BIG),
                store.put_inbox("s-1", InboxDraft("k", "message")),
                store.list_inbox("s-1"),
                store.acquire("s-1"),
                store.lease_of("s-1"),
                store.delete("s-1"),
                store.erase("s-1", BIG.id, "again"),
                store.erased("s-1"),
                store.append(Lease("s-1", store.owner, 1), 1, [facts.SessionStopped()]),
                store.import_log(Copy("s-1", events, {BIG.id: BIG.data or b""})),
            ):
                with pytest.raises(SessionDeleted, match="s-1"):
                    await attempt
            assert (await store.list_sessions()).sessions == ()
            store = await place.reopen(store)

    async def test_deleting_frees_the_payloads_that_nobody_else_has(
        self, store: SessionStore
    ) -> None:
        for session in ("s-1", "s-2"):
            driver = await drive(store, session)
            await driver.say(BIG)
            await driver.say(slot(session * 2000, "message"))
            await store.release(driver.lease)
        await store.delete("s-1")
        report = await store.gc(grace_seconds=0)
        assert report.ids in ((slot("s-1" * 2000, "message").id,), ())
        assert (await store.gc(dry_run=True, grace_seconds=0)).kept == 2
        assert await store.get_payload("s-2", BIG.id) == BIG.data


class EraseContract(ContractPlace):
    """What is left of an erased value."""

    async def test_the_last_erasure_of_a_value_says_when_and_why(self, store: SessionStore) -> None:
        driver = await drive(store)
        for rule in ("expired:30d", "privacy"):
            await driver.say(BIG)
            await store.erase("s-1", BIG.id, rule)
        assert (await store.erased("s-1"))[BIG.id][1] == "privacy"
        with pytest.raises(PayloadNotFound, match="privacy"):
            await store.get_payload("s-1", BIG.id)

    async def test_verify_looks_at_a_value_that_was_erased_and_said_again(
        self, store: SessionStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        driver = await drive(store)
        await driver.say(BIG)
        await store.erase("s-1", BIG.id, "privacy")
        await driver.say(BIG)
        report = await verify(store, "s-1")
        assert (report.ok, report.payloads, report.erased) == (True, 1, 1)

        async def lost(session_id: str, payload_id: str) -> bytes:
            raise Corruption(f"payload {payload_id!r} is missing")

        monkeypatch.setattr(store, "get_payload", lost)
        assert [p.kind for p in (await verify(store, "s-1")).problems] == ["payload"]

    @pytest.mark.parametrize("item", [TINY, BIG, HUGE], ids=lambda i: str(i.size))
    async def test_an_erased_value_is_gone_everywhere_and_the_proof_still_holds(
        self, place: Place, store: SessionStore, item: Slot
    ) -> None:
        driver = await drive(store)
        await driver.say("before")
        await driver.say(item)
        await driver.append(
            driver.message(item),
            facts.TurnStarted(turn=1, inputs={"q": structs.replace(item, kind="input")}),
        )
        head = (await driver.play(finish_turn(driver.state, "end"))).state.head
        before = await verify(store, "s-1")
        assert await store.erase("s-1", item.id, "asked-by-user") == 3
        assert await store.erase("s-1", item.id, "asked-by-user") == 0
        for _ in range(2):
            report = await verify(store, "s-1")
            assert report.problems == ()
            assert (report.erased, report.head, report.digest) == (1, head, before.digest)
            (gone,) = (await store.erased("s-1")).items()
            assert gone[0] == item.id
            assert gone[1][1] == "asked-by-user"
            events = await all_events(store, "s-1")
            text = (item.data or b"").decode()
            assert text not in str([event.data for event in events])
            if not item.inline:
                with pytest.raises(PayloadNotFound) as caught:
                    await store.get_payload("s-1", item.id)
                assert caught.value.details["rule"] == "asked-by-user"
                assert caught.value.details["erased_at"] == gone[1][0]
            store = await place.reopen(store)
        driver = replace(driver, store=store, lease=await store.acquire("s-1"))
        await driver.say("life goes on")
        assert (await verify(store, "s-1")).ok

    @pytest.mark.parametrize("item", [BIG, HUGE], ids=lambda i: str(i.size))
    async def test_erasing_in_one_session_leaves_the_others_theirs(
        self, store: SessionStore, item: Slot
    ) -> None:
        for session in ("s-1", "s-2"):
            driver = await drive(store, session)
            await driver.say(item)
        await store.erase("s-1", item.id, "asked")
        assert await store.get_payload("s-2", item.id) == item.data
        assert (await verify(store, "s-2")).erased == 0
        await store.erase("s-2", item.id, "asked")
        assert (await store.gc(grace_seconds=0)).kept == 0

    async def test_an_erased_value_cannot_be_referred_to_by_its_id(
        self, store: SessionStore
    ) -> None:
        driver = await drive(store)
        await driver.say(BIG)
        await store.erase("s-1", BIG.id, "asked")
        with pytest.raises((InvalidRef, PayloadNotFound)):
            await driver.say(BIG.bare())
        assert (await verify(store, "s-1")).ok

    @pytest.mark.parametrize("item", [TINY, BIG, HUGE], ids=lambda i: str(i.size))
    async def test_a_value_said_again_after_its_erasure_is_there_again_and_erased_again(
        self, place: Place, store: SessionStore, item: Slot
    ) -> None:
        driver = await drive(store)
        await driver.say(item)
        await store.erase("s-1", item.id, "asked")
        event = await driver.say(item)
        content = event.fact().content  # type: ignore[attr-defined]
        assert (content.data or await store.get_payload("s-1", item.id)) == item.data
        assert (await verify(store, "s-1")).ok
        assert await store.erase("s-1", item.id, "asked-again") >= 1
        events = await all_events(await place.reopen(store), "s-1")
        assert (item.data or b"").decode() not in str([event.data for event in events])

    async def test_what_expired_is_told_from_what_was_erased_and_from_what_is_missing(
        self, store: SessionStore
    ) -> None:
        driver = await drive(store)
        for item, rule in ((TINY, "privacy"), (BIG, "expired"), (HUGE, "expired:30-days")):
            await driver.say(item)
            await store.erase("s-1", item.id, rule)
        report = await verify(store, "s-1")
        assert (report.problems, report.erased, report.expired) == ((), 1, 2)
        assert report.digest == driver.state.digest

    @pytest.mark.parametrize("first", ["text", "manifest"])
    async def test_a_text_that_equals_a_manifest_hides_none_of_its_parts(
        self, place: Place, store: SessionStore, first: str
    ) -> None:
        driver = await drive(store)
        names = manifest({"pad": "-" * 600, "x": to_record(BIG)}, "vars")
        text = slot((names.data or b"").decode(), "message")
        assert text.id == names.id
        for kind in (first, "text", "manifest"):
            if kind == "text":
                await driver.say(text)
            else:
                await driver.append(facts.VarsCheckpointed(vars=names), payloads=[BIG])
        for _ in range(2):
            assert (await store.gc(grace_seconds=0)).payloads == 0
            assert await store.get_payload("s-1", BIG.id) == BIG.data
            report = await verify(store, "s-1")
            assert (report.problems, report.payloads) == ((), 2)
            store = await place.reopen(store)
        driver = replace(driver, store=store, lease=await store.acquire("s-1"))
        await driver.say(BIG.bare())

    async def test_a_part_of_a_manifest_can_be_erased(self, store: SessionStore) -> None:
        driver = await drive(store)
        names = manifest({"x": to_record(BIG)}, "vars")
        await driver.append(facts.VarsCheckpointed(vars=names), payloads=[BIG])
        assert await store.erase("s-1", BIG.id, "asked") == 1
        report = await verify(store, "s-1")
        assert (report.problems, report.erased) == ((), 1)

    async def test_erasing_a_manifest_leaves_to_gc_what_nothing_else_refers_to(
        self, store: SessionStore
    ) -> None:
        driver = await drive(store)
        only, shared, said = (slot(letter * 3000, "chunk") for letter in "xyz")
        inner = manifest({"x": to_record(only)}, "vars")
        first = manifest({"i": to_record(inner), "y": to_record(shared), "z": said.ref()}, "vars")
        second = manifest({"y": to_record(shared)}, "vars")
        for names in (first, second):
            parts = [only, shared, said, inner]
            await driver.append(facts.VarsCheckpointed(vars=names), payloads=parts)
        await driver.say(structs.replace(said, kind="message"))
        await store.erase("s-1", first.id, "asked")
        assert (await store.gc(grace_seconds=0)).ids == tuple(sorted([only.id, inner.id]))
        for part in (only, inner):
            with pytest.raises((InvalidRef, PayloadNotFound)):
                await store.get_payload("s-1", part.id)
        for part in (shared, said, second):
            assert await store.get_payload("s-1", part.id) == part.data
        assert (await verify(store, "s-1")).problems == ()

    async def test_what_a_manifest_brought_back_stays_where_it_was_said_since(
        self, place: Place, store: SessionStore
    ) -> None:
        driver = await drive(store)
        names = manifest({"x": to_record(BIG)}, "vars")
        await driver.say(BIG)
        await store.erase("s-1", BIG.id, "asked")
        await driver.append(facts.VarsCheckpointed(vars=names), payloads=[BIG])
        await driver.say(BIG.bare())
        await store.erase("s-1", names.id, "asked")
        for handle in (store, await place.open()):
            assert await handle.get_payload("s-1", BIG.id) == BIG.data
        assert (await store.gc(grace_seconds=0)).payloads == 0
        assert await store.get_payload("s-1", BIG.id) == BIG.data
        await driver.say(BIG.bare())
        assert (await verify(store, "s-1")).ok

    async def test_what_a_manifest_brought_back_goes_with_it(
        self, place: Place, store: SessionStore
    ) -> None:
        driver = await drive(store)
        inner = manifest({"x": to_record(BIG), "pad": "-" * 600}, "vars")
        outer = manifest({"i": to_record(inner)}, "vars")
        for _ in range(2):
            await driver.append(facts.VarsCheckpointed(vars=outer), payloads=[inner, BIG])
            await store.erase("s-1", inner.id, "asked")
        await driver.append(facts.VarsCheckpointed(vars=outer), payloads=[inner, BIG])
        await store.erase("s-1", outer.id, "asked")
        store = await place.reopen(store)
        assert (await store.gc(grace_seconds=0)).ids == tuple(sorted([BIG.id, inner.id]))
        with pytest.raises((InvalidRef, PayloadNotFound)):
            await store.get_payload("s-1", BIG.id)

    async def test_parts_of_an_erased_manifest_are_the_sessions_own_until_gc(
        self, place: Place, store: SessionStore
    ) -> None:
        driver = await drive(store)
        part, gone = slot("p" * 3000, "message"), slot("g" * 3000, "message")
        inner = manifest({"x": to_record(part), "y": to_record(gone)}, "vars")
        outer = manifest({"i": to_record(inner)}, "vars")
        parts = [part, gone, inner]
        await driver.append(facts.VarsCheckpointed(vars=outer), payloads=parts)
        await store.erase("s-1", outer.id, "asked")
        assert await store.get_payload("s-1", part.id) == part.data
        await store.erase("s-1", gone.id, "asked")
        with pytest.raises(PayloadNotFound):
            await store.get_payload("s-1", gone.id)
        store = await place.reopen(store)
        driver = replace(driver, store=store, lease=await store.acquire("s-1"))
        await driver.say(part.bare())
        await store.gc(grace_seconds=0)
        assert await store.get_payload("s-1", part.id) == part.data
        assert (await verify(store, "s-1")).problems == ()

    @pytest.mark.parametrize("item", [TINY, BIG], ids=lambda i: str(i.size))
    async def test_a_value_that_stands_only_in_the_inbox_can_be_erased(
        self, place: Place, store: SessionStore, item: Slot
    ) -> None:
        await drive(store)
        await store.put_inbox("s-1", InboxDraft("k", "message", content=item))
        assert await store.erase("s-1", item.id, "asked") == 1
        assert await store.erase("s-1", item.id, "asked") == 0
        assert list(await store.erased("s-1")) == [item.id]
        (left,) = await (await place.reopen(store)).list_inbox("s-1")
        assert (left.key, left.content) == ("k", None)

    @pytest.mark.parametrize("item", [TINY, BIG, HUGE], ids=lambda i: str(i.size))
    async def test_asking_again_what_was_erased_from_the_inbox_returns_the_item_without_it(
        self, place: Place, store: SessionStore, item: Slot
    ) -> None:
        await drive(store)
        other = slot("another", "message")
        drafts = [InboxDraft("k", "message", content=item), InboxDraft("o", "message", None, other)]
        for draft in drafts:
            await store.put_inbox("s-1", draft)
        for erased in (item, other):
            await store.erase("s-1", erased.id, "asked")
        for handle in (store, await place.open()):
            stored = await handle.list_inbox("s-1")
            assert [await handle.put_inbox("s-1", draft) for draft in drafts] == stored
            assert [(entry.key, entry.content) for entry in stored] == [("k", None), ("o", None)]
            with pytest.raises(InboxConflict):
                await handle.put_inbox("s-1", InboxDraft("k", "message", content=other))
            with pytest.raises(InboxConflict):
                await handle.put_inbox("s-1", InboxDraft("k", "message"))
            with pytest.raises((InvalidRef, PayloadNotFound)):
                await handle.get_payload("s-1", item.id)
            assert await handle.erase("s-1", item.id, "asked") == 0
            assert (await verify(handle, "s-1")).ok
        await store.gc(grace_seconds=0)
        assert (await store.gc(dry_run=True, grace_seconds=0)).kept == 0

    async def test_erasing_an_inbox_value_removes_it_there_too(self, store: SessionStore) -> None:
        driver = await drive(store)
        for item in (BIG, slot("tiny", "message")):
            key = f"k-{item.size}"
            await store.put_inbox("s-1", InboxDraft(key, "message", content=item))
            await driver.append(driver.message(item), consumes=[key])
            await store.erase("s-1", item.id, "asked")
        stored = await store.list_inbox("s-1", pending=False)
        assert [item.content and item.content.data for item in stored] == [None, None]

    async def test_what_is_not_there_cannot_be_erased(self, store: SessionStore) -> None:
        await drive(store)
        with pytest.raises(InvalidRef):
            await store.erase("s-1", BIG.id, "asked")
        with pytest.raises(InvalidInput):
            await store.erase("s-1", BIG.id, "two words")
