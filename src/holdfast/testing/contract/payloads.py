"""Chapter: values are stored once by content, and a session reads only what is its own."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from holdfast.core import facts
from holdfast.core.errors import (
    Corruption,
    InvalidInput,
    InvalidRef,
    PayloadNotFound,
    SessionNotFound,
)
from holdfast.core.heads import HeadDraft
from holdfast.core.payloads import Slot, manifest, slot, slot_of_bytes, to_record
from holdfast.stores.port import ROW_PAYLOAD_BYTES, InboxDraft, SessionStore
from holdfast.stores.verify import verify
from holdfast.testing.contract.place import ContractPlace, Place
from holdfast.testing.driver import Driver, drive, view

SIZES = (513, 5000, ROW_PAYLOAD_BYTES, ROW_PAYLOAD_BYTES + 1, 400_000)


def text_of(size: int, letter: str = "t") -> Slot:
    """Return a text of exactly this many bytes."""
    return slot(letter * size, "message")


class PayloadContract(ContractPlace):
    """What a payload is and who may read it."""

    @pytest.mark.parametrize("size", SIZES)
    async def test_a_value_of_any_size_reads_back_after_a_reopen(
        self, place: Place, store: SessionStore, size: int
    ) -> None:
        driver = await drive(store)
        content = text_of(size)
        event = await driver.say(content)
        assert event.data["content"] == content.ref()
        assert await store.get_payload("s-1", content.id) == content.data
        store = await place.reopen(store)
        assert await store.get_payload("s-1", content.id) == content.data
        assert (await verify(store, "s-1")).payloads == 1

    async def test_values_up_to_512_bytes_stand_in_the_event_itself(
        self, store: SessionStore
    ) -> None:
        driver = await drive(store)
        event = await driver.say(text_of(512))
        assert event.data["content"]["$v"] == "t" * 512
        assert (await store.read_events("s-1", after=1))[0] == event

    async def test_a_payload_put_first_can_be_referred_to_without_its_bytes(
        self, store: SessionStore
    ) -> None:
        driver = await drive(store)
        for size in SIZES:
            content = text_of(size)
            bare = await store.put_payload("s-1", content)
            assert bare == content
            assert bare.data is None
            await driver.say(bare)
            assert await store.get_payload("s-1", content.id) == content.data
        assert (await verify(store, "s-1")).ok

    async def test_putting_the_same_payload_again_is_harmless(self, store: SessionStore) -> None:
        driver = await drive(store)
        for size in SIZES:
            for _ in range(3):
                await store.put_payload("s-1", text_of(size))
            await driver.say(text_of(size))
            await driver.say(text_of(size))
        assert (await verify(store, "s-1")).payloads == len(SIZES)

    async def test_a_value_referred_to_many_times_is_stored_once(self, store: SessionStore) -> None:
        driver = await drive(store)
        for number in range(5):
            await driver.say(text_of(100_000))
            other = await drive(store, f"o-{number}")
            await other.say(text_of(100_000))
        assert (await store.gc(dry_run=True, grace_seconds=0)).kept == 1

    async def test_bytes_that_do_not_match_their_id_are_never_stored(
        self, store: SessionStore
    ) -> None:
        driver = await drive(store)
        before = await view(store, "s-1")
        honest = text_of(5000)
        for lie in (
            structs.replace(honest, data=b"x" * 5000),
            structs.replace(honest, size=4999),
            structs.replace(honest, size=ROW_PAYLOAD_BYTES + 1),
        ):
            with pytest.raises(Corruption, match=honest.id):
                await store.put_payload("s-1", lie)
            with pytest.raises(Corruption, match=honest.id):
                await driver.say(lie)
        small = slot("yes", "message")
        with pytest.raises(Corruption):
            await driver.say(structs.replace(small, data=b"no!"))
        with pytest.raises(InvalidInput):
            await store.put_payload("s-1", honest.bare())
        assert await view(store, "s-1") == before
        with pytest.raises(InvalidRef):
            await store.get_payload("s-1", honest.id)

    async def test_a_ref_to_nothing_is_refused(self, store: SessionStore) -> None:
        driver = await drive(store)
        nothing = text_of(5000).bare()
        with pytest.raises(InvalidRef, match=nothing.id):
            await driver.say(nothing)
        with pytest.raises(InvalidRef):
            await driver.append(facts.VarsCheckpointed(vars=nothing))
        briefing = facts.SessionCompacted(message=1, content=slot("so far", "message"))
        with pytest.raises(InvalidRef):
            await driver.append(briefing, head=HeadDraft(kind="compaction", vars=nothing))
        with pytest.raises(InvalidRef):
            await store.create_session("s-2", facts.SessionStarted(settings=nothing))
        with pytest.raises(SessionNotFound):
            await store.load_state("s-2")
        assert (await store.load_state("s-1")).seq == 1

    @pytest.mark.parametrize("size", [600, ROW_PAYLOAD_BYTES + 1])
    async def test_a_ref_with_another_size_than_its_payload_is_refused(
        self, store: SessionStore, size: int
    ) -> None:
        driver = await drive(store)
        put, said = text_of(size, "p"), text_of(size, "s")
        await store.put_payload("s-1", put)
        await driver.say(said)
        before = await view(store, "s-1")
        for item in (put, said):
            lie = structs.replace(item.bare(), size=size + 7)
            part = manifest({"true": item.ref(), "lie": lie.ref()}, "vars")
            bare = await store.put_payload("s-1", part)
            for fact in (
                driver.message(lie),
                facts.VarsCheckpointed(vars=lie),
                facts.VarsCheckpointed(vars=part),
                facts.VarsCheckpointed(vars=bare),
            ):
                with pytest.raises(InvalidRef, match=f"{size}.*{size + 7}|{size + 7}.*{size}"):
                    await driver.append(fact)
            with pytest.raises(InvalidRef, match=item.id):
                await driver.append(driver.message(lie), payloads=[item])
            started = facts.SessionStarted(settings=lie)
            with pytest.raises(InvalidRef, match=item.id):
                await store.create_session("s-2", started, adopt_from="s-1")
        assert await view(store, "s-1") == before
        await driver.say(put.bare())
        await driver.say(said.bare())
        assert (await verify(store, "s-1")).ok

    @pytest.mark.parametrize("tenant", ["default", "other"])
    @pytest.mark.parametrize("size", [600, ROW_PAYLOAD_BYTES + 1])
    async def test_a_forged_ref_to_another_sessions_payload_is_refused(
        self, store: SessionStore, tenant: str, size: int
    ) -> None:
        secret = text_of(size, "s")
        victim = await drive(store, "victim", facts.SessionStarted(tenant=tenant))
        await victim.say(secret)
        thief = await drive(store, "thief")
        with pytest.raises(InvalidRef, match=secret.id):
            await store.get_payload("thief", secret.id)
        with pytest.raises(InvalidRef, match=secret.id):
            await thief.say(secret.bare())
        names = manifest({"x": secret.ref()}, "vars")
        with pytest.raises(InvalidRef, match=secret.id):
            await thief.append(facts.VarsCheckpointed(vars=names))
        with pytest.raises(InvalidRef, match=secret.id):
            await store.create_session("thief-2", facts.SessionStarted(settings=secret.bare()))
        with pytest.raises(InvalidRef):
            await store.erase("thief", secret.id, "theft")
        with pytest.raises(InvalidRef, match=secret.id):
            await store.get_payload("thief", secret.id)
        assert await victim.store.get_payload("victim", secret.id) == secret.data

    async def test_a_manifest_that_was_put_first_proves_its_parts_as_well(
        self, store: SessionStore
    ) -> None:
        secret = text_of(5000, "s")
        victim = await drive(store, "victim")
        await victim.say(secret)
        thief = await drive(store, "thief")
        bare = await store.put_payload("thief", manifest({"x": secret.ref()}, "vars"))
        with pytest.raises(InvalidRef, match=secret.id):
            await thief.append(facts.VarsCheckpointed(vars=bare))
        with pytest.raises(InvalidRef, match=secret.id):
            await store.get_payload("thief", secret.id)
        mine = text_of(6000, "m")
        await store.put_payload("thief", mine)
        good = await store.put_payload("thief", manifest({"x": mine.ref()}, "vars"))
        await thief.append(facts.VarsCheckpointed(vars=good))
        assert await store.get_payload("thief", mine.id) == mine.data
        assert (await verify(store, "thief")).ok

    async def test_adopting_needs_a_session_of_the_same_tenant_that_has_the_payload(
        self, store: SessionStore
    ) -> None:
        part, whole = text_of(5000, "p"), text_of(70_000, "w")
        names = manifest({"a": to_record(part), "b": to_record(whole)}, "transcript")
        source = await drive(store, "source", facts.SessionStarted(tenant="t-1"))
        store = source.store
        await source.append(facts.VarsCheckpointed(vars=names), payloads=[part, whole])
        started = facts.SessionStarted(
            tenant="t-1", kind="fork", transcript=structs.replace(names, data=None)
        )
        with pytest.raises(InvalidRef):
            await store.create_session("fork", started)
        await store.create_session("fork", started, adopt_from="source")
        await store.release(source.lease)
        await store.delete("source")
        await store.gc(grace_seconds=0)
        for item in (names, part, whole):
            assert await store.get_payload("fork", item.id) == item.data
        assert (await verify(store, "fork")).ok

    async def test_nothing_is_adopted_across_tenants_even_if_both_have_it(
        self, store: SessionStore
    ) -> None:
        secret = text_of(5000, "s")
        ours, theirs = facts.SessionStarted(tenant="t-1"), facts.SessionStarted(tenant="t-2")
        for name, started in (("foreign", theirs), ("neighbour", ours)):
            await (await drive(store, name, started)).say(secret)
        store = store.of("t-1")
        fork = replace(ours, kind="fork", transcript=secret.bare())
        with pytest.raises(SessionNotFound):
            await store.create_session("fork", fork, adopt_from="foreign")
        driver = await drive(store, "s-1", ours)
        with pytest.raises(SessionNotFound):
            await driver.append(driver.message(secret.bare()), adopt_from="foreign")
        with pytest.raises(InvalidRef, match=secret.id):
            await store.get_payload("s-1", secret.id)
        await store.create_session("fork", fork, adopt_from="neighbour")
        await driver.append(driver.message(secret.bare()), adopt_from="neighbour")
        assert await store.get_payload("s-1", secret.id) == secret.data

    async def test_an_append_may_adopt_what_another_session_has(self, store: SessionStore) -> None:
        secret = text_of(5000, "s")
        child = await drive(store, "child")
        await child.say(secret)
        parent = await drive(store, "parent")
        with pytest.raises(SessionNotFound):
            await parent.append(parent.message(secret.bare()), adopt_from="nobody")
        other = text_of(5000, "o").bare()
        with pytest.raises(InvalidRef):
            await parent.append(parent.message(other), adopt_from="child")
        await parent.append(parent.message(secret.bare()), adopt_from="child")
        assert await store.get_payload("parent", secret.id) == secret.data

    async def test_user_data_shaped_like_a_ref_grants_nothing_and_reads_back(
        self, store: SessionStore
    ) -> None:
        secret = text_of(5000, "s")
        victim = await drive(store, "victim", facts.SessionStarted(tenant="other"))
        await victim.say(secret)
        driver = await drive(store)
        for padding in ("", "p" * 600):
            for shape in (secret.ref(), {"$v": "x"}, [secret.ref()], str(secret.ref())):
                value = [shape, padding]
                item = slot(value, "message")
                event = await driver.say(item)
                content = event.fact().content  # type: ignore[attr-defined]
                data = content.data or await store.get_payload("s-1", item.id)
                assert slot_of_bytes("json", data, "message").value() == value
        await store.put_inbox(
            "s-1", InboxDraft("k", "message", content=slot([secret.ref()], "message"))
        )
        with pytest.raises(InvalidRef):
            await store.get_payload("s-1", secret.id)
        assert (await verify(store, "s-1")).ok

    async def test_a_fork_is_created_again_without_its_source(self, store: SessionStore) -> None:
        source = await drive(store, "source")
        namespace = text_of(5000)
        await source.append(facts.VarsCheckpointed(vars=namespace))
        await store.release(source.lease)
        started = facts.SessionStarted(kind="fork", vars=namespace.bare())
        state = await store.create_session("fork", started, adopt_from="source")
        await store.delete("source")
        assert await store.create_session("fork", started, adopt_from="source") == state

    async def test_a_text_with_the_bytes_of_a_manifest_opens_no_way_to_others_payloads(
        self, place: Place, store: SessionStore
    ) -> None:
        secret = text_of(5000, "s")
        victim = await drive(store, "victim")
        await victim.say(secret)
        driver = await drive(store)
        forged = manifest({"pad": "-" * 600, "part": secret.ref()}, "vars")
        assert forged.data is not None
        text = slot_of_bytes("text", forged.data, "message")
        checkpoint = facts.VarsCheckpointed(vars=forged.bare())
        for batch in (
            [driver.message(text), checkpoint],
            [checkpoint, driver.message(text)],
        ):
            with pytest.raises(InvalidRef):
                await driver.append(*batch)
        with pytest.raises(InvalidRef):
            await driver.append(checkpoint, payloads=[text])
        await driver.say(text)
        with pytest.raises(InvalidRef):
            await driver.append(checkpoint)
        with pytest.raises(InvalidRef):
            await store.put_inbox("s-1", InboxDraft("k", "message", content=forged))
        for handle in (store, await place.open()):
            with pytest.raises(InvalidRef):
                await handle.get_payload("s-1", secret.id)
            assert (await verify(handle, "s-1")).ok

    @pytest.mark.parametrize(("encoding", "kind"), [("rot13", "input"), ("text", "moon")])
    async def test_an_inbox_item_that_could_not_be_read_back_is_refused(
        self, store: SessionStore, encoding: str, kind: str
    ) -> None:
        await drive(store)
        content = structs.replace(slot("hello", "input"), encoding=encoding, kind=kind)
        with pytest.raises(InvalidRef):
            await store.put_inbox("s-1", InboxDraft("k", "message", content=content))
        assert await store.list_inbox("s-1") == []

    async def test_a_manifest_put_before_a_part_of_it_was_erased_can_be_referred_to(
        self, store: SessionStore
    ) -> None:
        one, two = text_of(5000, "1"), text_of(5000, "2")
        both = manifest({"one": one.ref(), "two": two.ref()}, "vars")
        driver = await drive(store)
        for item in (one, two, both):
            await store.put_payload("s-1", item)
        await store.erase("s-1", one.id, "privacy")
        await driver.append(facts.VarsCheckpointed(vars=both.bare()))
        await driver.append(facts.VarsCheckpointed(vars=both.bare()))
        report = await verify(store, "s-1")
        assert (report.ok, report.erased) == (True, 1)

    async def test_equal_bytes_of_two_tenants_are_two_payloads(self, store: SessionStore) -> None:
        one = await drive(store, "one", facts.SessionStarted(tenant="t-1"))
        two = await drive(store, "two", facts.SessionStarted(tenant="t-2"))
        content = text_of(5000)
        await one.say(content)
        with pytest.raises(InvalidRef):
            await two.say(content.bare())
        await two.say(content)
        await one.store.release(one.lease)
        await one.store.delete("one")
        await store.gc(grace_seconds=0)
        assert await two.store.get_payload("two", content.id) == content.data

    async def test_a_manifest_erased_and_said_again_inside_another_is_whole(
        self, place: Place, store: SessionStore
    ) -> None:
        part = text_of(3000, "p")
        inner = manifest({"x": to_record(part)}, "message")
        outer = manifest({"m": to_record(inner)}, "transcript")
        driver = await drive(store)
        await driver.append(driver.message(inner), payloads=[part])
        await store.erase("s-1", inner.id, "privacy")
        await driver.append(facts.VarsCheckpointed(vars=outer), payloads=[inner, part])
        for handle in (store, await place.open()):
            assert (await verify(handle, "s-1")).ok
            assert await handle.get_payload("s-1", part.id) == part.data

    async def test_an_erasure_elsewhere_leaves_what_was_put_again(
        self, store: SessionStore
    ) -> None:
        content = text_of(3000)
        one, two = await drive(store, "one"), await drive(store, "two")
        await one.say(content)
        await two.say(content)
        await store.erase("two", content.id, "privacy")
        bare = await store.put_payload("two", content)
        await store.erase("one", content.id, "privacy")
        assert await store.get_payload("two", content.id) == content.data
        await two.say(bare)
        assert (await verify(store, "two")).ok

    async def test_a_part_may_come_with_the_append_that_refers_to_its_manifest(
        self, place: Place, store: SessionStore
    ) -> None:
        part = text_of(3000, "p")
        whole = manifest({"x": part.ref()}, "vars")
        driver = await drive(store)
        bare = await store.put_payload("s-1", whole)
        await driver.append(facts.VarsCheckpointed(vars=bare), payloads=[part])
        await store.gc(grace_seconds=0)
        for handle in (store, await place.open()):
            assert await handle.get_payload("s-1", part.id) == part.data
            assert (await verify(handle, "s-1")).ok

    async def test_an_erased_part_of_the_namespace_may_be_said_again(
        self, store: SessionStore
    ) -> None:
        part = text_of(3000, "p")
        driver = await drive(store)
        vars_ = manifest({"x": part.ref()}, "vars")
        await driver.append(facts.VarsCheckpointed(vars=vars_), payloads=[part])
        await driver.append(facts.TurnStarted(turn=1))
        await store.erase("s-1", part.id, "privacy")
        await driver.append(
            driver.message(part),
            facts.TurnPut(turn=1, status="final"),
            head=HeadDraft(kind="turn_final", turn=1, vars=driver.state.vars),
        )
        assert await store.get_payload("s-1", part.id) == part.data
        assert (await verify(store, "s-1")).ok

    async def test_an_answer_that_equals_an_erased_part_brings_nothing_back(
        self, place: Place, store: SessionStore
    ) -> None:
        part = structs.replace(slot("yes", "chunk"), by_ref=True)
        driver = await drive(store)
        vars_ = manifest({"x": part.ref()}, "vars")
        await driver.append(facts.VarsCheckpointed(vars=vars_), payloads=[part])
        await store.erase("s-1", part.id, "privacy")
        await store.put_inbox("s-1", InboxDraft("k", "message", content=slot("yes", "message")))
        for handle in (store, await place.open()):
            with pytest.raises(PayloadNotFound):
                await handle.get_payload("s-1", part.id)
            assert (await verify(handle, "s-1")).ok

    async def test_a_value_erased_twice_keeps_the_first_mark_where_it_first_stood(
        self, store: SessionStore
    ) -> None:
        content = text_of(3000)
        driver = await drive(store)
        await driver.say(content)
        await store.erase("s-1", content.id, "first")
        await driver.say(content)
        await store.erase("s-1", content.id, "second")
        marks = [e.data["content"]["$erased"] for e in await store.read_events("s-1", after=1)]
        assert [mark["rule"] for mark in marks] == ["first", "second"]
        assert (await verify(store, "s-1")).ok

    @pytest.mark.parametrize("grace", [float("inf"), float("nan"), 1e300, "1", None])
    async def test_a_grace_that_is_no_span_of_time_is_refused(
        self, store: SessionStore, grace: float
    ) -> None:
        with pytest.raises(InvalidInput, match="grace"):
            await store.gc(grace_seconds=grace)

    async def test_a_payload_given_beside_the_facts_can_be_referred_to_later(
        self, place: Place, store: SessionStore
    ) -> None:
        part, other = slot("p" * 900, "chunk"), slot("q" * 900, "chunk")
        await store.create_session("s-1", facts.SessionStarted(), payloads=[other])
        driver = Driver(store, await store.acquire("s-1"), await store.load_state("s-1"))
        await driver.append(driver.message("hi"), payloads=[part])
        await store.release(driver.lease)
        store = await place.reopen(store)
        driver = Driver(store, await store.acquire("s-1"), await store.load_state("s-1"))
        for item in (part, other):
            assert await store.get_payload("s-1", item.id) == item.data
            await driver.say(item.bare())
        assert (await verify(store, "s-1")).ok
        await store.close()
