"""Chapter: gc takes only what nobody needs."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.core import facts
from holdfast.core.errors import InvalidRef
from holdfast.core.payloads import Slot, manifest, slot, to_record
from holdfast.stores.port import ROW_PAYLOAD_BYTES, SessionStore
from holdfast.stores.verify import verify
from holdfast.testing.contract.place import ContractPlace, Place
from holdfast.testing.driver import drive

BIG = slot("b" * 3000, "message")
HUGE = slot("h" * (ROW_PAYLOAD_BYTES * 2), "message")


class GcContract(ContractPlace):
    """What gc takes."""

    async def test_gc_takes_orphans_and_nothing_else(
        self, place: Place, store: SessionStore
    ) -> None:
        driver = await drive(store)
        part = slot("p" * 5000, "chunk")
        names = manifest({"x": to_record(part)}, "vars")
        await driver.append(facts.VarsCheckpointed(vars=names), payloads=[part])
        await driver.say(HUGE)
        orphans = [slot(letter * 90_000, "message") for letter in "xy"]
        orphans.append(slot("z" * 900, "message"))
        for orphan in orphans:
            await store.put_payload("s-1", orphan)
        ids = tuple(sorted(orphan.id for orphan in orphans))
        young = await store.gc(grace_seconds=3600)
        assert (young.payloads, young.kept) == (0, 6)
        dry = await store.gc(dry_run=True, grace_seconds=0)
        assert (dry.payloads, dry.kept, dry.ids, dry.dry_run) == (3, 3, ids, True)
        assert await store.get_payload("s-1", orphans[0].id) == orphans[0].data
        wet = await store.gc(grace_seconds=0)
        assert (wet.payloads, wet.kept, wet.ids, wet.dry_run) == (3, 3, ids, False)
        assert wet.bytes > 0
        assert (await store.gc(grace_seconds=0)).payloads == 0
        store = await place.reopen(store)
        assert (await verify(store, "s-1")).payloads == 3
        for item in (part, names, HUGE):
            assert await store.get_payload("s-1", item.id) == item.data

    async def test_a_swept_payload_is_refused_by_name_and_can_be_put_again(
        self, store: SessionStore
    ) -> None:
        driver = await drive(store)
        for item in (BIG, HUGE):
            await store.put_payload("s-1", item)
            await store.gc(grace_seconds=0)
            with pytest.raises(InvalidRef, match=item.id):
                await driver.say(item.bare())
            await store.put_payload("s-1", item)
            await driver.say(item.bare())
            await store.gc(grace_seconds=0)
            assert await store.get_payload("s-1", item.id) == item.data
        assert (await verify(store, "s-1")).ok

    @pytest.mark.parametrize("item", [BIG, HUGE], ids=lambda i: str(i.size))
    @pytest.mark.parametrize("said", ["before", "after"])
    async def test_a_right_to_what_was_put_and_never_used_ends_whoever_else_uses_it(
        self, place: Place, store: SessionStore, item: Slot, said: str
    ) -> None:
        driver, other = await drive(store), await drive(store, "s-2")
        await store.put_payload("s-1", item)
        if said == "before":
            await other.say(item)
        await store.gc(dry_run=True, grace_seconds=0)
        await store.gc(grace_seconds=3600)
        assert await store.get_payload("s-1", item.id) == item.data
        await store.gc(grace_seconds=0)
        if said == "after":
            await other.say(item)
        for handle in (store, await place.open()):
            with pytest.raises(InvalidRef, match=item.id):
                await handle.get_payload("s-1", item.id)
        with pytest.raises(InvalidRef, match=item.id):
            await driver.say(item.bare())
        assert await store.get_payload("s-2", item.id) == item.data
        await store.put_payload("s-1", item)
        await driver.say(item.bare())
        assert (await verify(store, "s-1")).ok

    async def test_putting_an_old_orphan_again_makes_it_young(self, store: SessionStore) -> None:
        driver = await drive(store)
        for item in (BIG, HUGE):
            await store.put_payload("s-1", item)
        await asyncio.sleep(1.0)  # age them: the grace counts real seconds
        for item in (BIG, HUGE):
            await store.put_payload("s-1", item)
        assert (await store.gc(grace_seconds=0.9)).payloads == 0
        for item in (BIG, HUGE):
            await driver.say(item.bare())
        assert (await verify(store, "s-1")).ok

    async def test_gc_beside_appends_never_takes_what_they_refer_to(
        self, place: Place, store: SessionStore
    ) -> None:
        driver = await drive(store)
        sweeper = await place.open()
        stop = False

        async def sweep() -> None:
            while not stop:
                await sweeper.gc(grace_seconds=0)

        sweeping = asyncio.ensure_future(sweep())
        for number in range(15):
            await driver.say(slot(f"{number} " * 400, "message"))
            await driver.say(slot(f"{number} " * 40_000, "message"))
        stop = True
        await sweeping
        assert (await verify(store, "s-1")).problems == ()

    async def test_a_payload_that_came_along_and_that_nothing_leads_to_is_collected(
        self, store: SessionStore
    ) -> None:
        loose = [slot(letter * 3000, "message") for letter in "lm"] + [HUGE]
        part, whole = slot("p" * 3000, "message"), slot("w" * 3000, "message")
        inner = manifest({"part": to_record(part)}, "vars")
        outer = manifest({"inner": to_record(inner)}, "vars")
        driver = await drive(store, payloads=loose[:1])
        await driver.append(driver.message("hi"), payloads=loose[1:2])
        await driver.append(driver.message(whole), payloads=[whole, *loose[2:]])
        await driver.append(facts.VarsCheckpointed(vars=outer), payloads=[part, inner])
        assert (await store.gc()).payloads == 0
        assert (await store.gc(grace_seconds=0)).ids == tuple(sorted(i.id for i in loose))
        for item in (part, inner, outer, whole):
            assert await store.get_payload("s-1", item.id) == item.data
        await driver.append(driver.message("again"), payloads=[loose[1]])
        await driver.say(loose[1])
        assert (await store.gc(grace_seconds=0)).payloads == 0
        assert (await verify(store, "s-1")).ok

    @pytest.mark.parametrize("erased", [False, True])
    async def test_what_only_a_payload_leads_to_that_nothing_leads_to_is_collected(
        self, store: SessionStore, erased: bool
    ) -> None:
        driver = await drive(store)
        part = slot("p" * 3000, "message")
        names = manifest({"part": to_record(part)}, "vars")
        if erased:  # and put again, which is not to say it again
            await driver.say(part)
            await store.erase("s-1", part.id, "asked")
        await driver.append(driver.message("hi"), payloads=[part])
        await driver.append(driver.message("ho"), payloads=[names])
        assert await store.get_payload("s-1", part.id) == part.data
        assert (await store.gc(grace_seconds=0)).ids == tuple(sorted([part.id, names.id]))
        assert (await verify(store, "s-1")).ok
