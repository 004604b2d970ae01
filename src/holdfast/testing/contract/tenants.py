"""Chapter: a handle addresses the sessions of one tenant; others do not exist for it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from holdfast.core.errors import (
    InvalidId,
    InvalidInput,
    InvalidRef,
    SessionDeleted,
    SessionNotFound,
)
from holdfast.core.events import now
from holdfast.core.facts import SessionStarted
from holdfast.core.ids import friendly_name
from holdfast.core.payloads import slot
from holdfast.stores.port import (
    Hint,
    InboxDraft,
    Lease,
    PendingFilter,
    SessionFilter,
    SessionStore,
    Transient,
)
from holdfast.stores.portable import export_sessions, import_sessions
from holdfast.stores.tenancy import ALL_TENANTS
from holdfast.stores.verify import verify
from holdfast.testing.contract.place import ContractPlace, Place
from holdfast.testing.driver import Driver, all_events, drive

BIG = slot("a value of its own " * 9000, "message")
PAST = "2020-01-01T00:00:00Z"


async def drive_in(store: SessionStore, tenant: str, session_id: str = "s-1") -> Driver:
    """Create a session of a tenant and take its lease."""
    return await drive(store, session_id, SessionStarted(tenant=tenant))


class TenantContract(ContractPlace):
    """Tenants."""

    async def test_the_same_id_in_two_tenants_is_two_sessions(
        self, place: Place, store: SessionStore
    ) -> None:
        drivers = {name: await drive_in(store, name) for name in ("default", "acme", "zeta")}
        for name, driver in drivers.items():
            await driver.say(f"said by {name}")
            await driver.say(BIG)
        other = await place.open()
        for name, driver in drivers.items():
            for handle in (driver.store, other.of(name)):
                assert (await handle.load_state("s-1")).tenant == name
                events = await all_events(handle, "s-1")
                assert events[1].fact().content.value() == f"said by {name}"  # type: ignore[attr-defined]
                assert await handle.get_payload("s-1", BIG.id) == BIG.data
                assert (await verify(handle, "s-1")).ok
        await drivers["acme"].store.release(drivers["acme"].lease)
        await drivers["acme"].store.delete("s-1")
        await store.gc(grace_seconds=0)
        reopened = await place.reopen(store)
        with pytest.raises(SessionDeleted):
            await reopened.of("acme").load_state("s-1")
        for name in ("default", "zeta"):
            assert await reopened.of(name).get_payload("s-1", BIG.id) == BIG.data

    async def test_every_verb_takes_a_foreign_session_for_one_that_does_not_exist(
        self, store: SessionStore
    ) -> None:
        theirs = await drive_in(store, "acme")
        await theirs.say(BIG)
        lease = theirs.lease
        forged = Lease("s-1", lease.owner, lease.epoch)
        for handle in (store, store.of("default"), store.of("zeta")):
            for attempt in (
                handle.append(forged, 2, [theirs.message("x")]),
                handle.put_payload("s-1", BIG),
                handle.get_payload("s-1", BIG.id),
                handle.load_state("s-1"),
                handle.read_events("s-1"),
                handle.session_info("s-1"),
                handle.put_inbox("s-1", InboxDraft("k", "message")),
                handle.list_inbox("s-1"),
                handle.acquire("s-1"),
                handle.renew(forged),
                handle.lease_of("s-1"),
                handle.delete("s-1"),
                handle.erase("s-1", BIG.id, "rule"),
                handle.erased("s-1"),
                verify(handle, "s-1"),
            ):
                with pytest.raises(SessionNotFound):
                    await attempt
            await handle.release(forged)  # which harms nobody
        await theirs.say("still driven")

    async def test_nothing_is_created_adopted_posted_or_imported_across_tenants(
        self, place: Place, store: SessionStore, tmp_path: Path
    ) -> None:
        theirs, ours = await drive_in(store, "acme", "s-1"), await drive_in(store, "zeta", "s-2")
        await theirs.say(BIG)
        with pytest.raises(InvalidInput, match="tenant"):
            await store.create_session("s-3", SessionStarted(tenant="acme"))
        with pytest.raises(SessionNotFound):
            await ours.append(ours.message(BIG.bare()), adopt_from="s-1")
        with pytest.raises(InvalidRef):
            await ours.say(BIG.bare())
        if store.flags.posts:
            await ours.append(ours.message("x"), posts=[("s-1", InboxDraft("k", "message"))])
            assert await theirs.store.list_inbox("s-1") == []
        await export_sessions(theirs.store, ["s-1"], tmp_path / "export")
        elsewhere = await place.sibling("copy").open()
        with pytest.raises(InvalidInput, match="tenant"):
            await import_sessions(elsewhere.of("zeta"), tmp_path / "export")
        await import_sessions(elsewhere, tmp_path / "export")
        assert (await elsewhere.of("acme").load_state("s-1")) == theirs.state

    async def test_listings_are_of_one_tenant_and_of_all_only_for_who_opened_the_store(
        self, store: SessionStore
    ) -> None:
        for tenant in ("default", "acme", "zeta"):
            for name in ("s-1", "s-2"):
                driver = await drive_in(store, tenant, name)
                await driver.ask("c-1", deadline=PAST)
                await driver.store.release(driver.lease)

        async def seen(handle: SessionStore, tenant: str | None) -> list[set[tuple[str, str]]]:
            waits, due = PendingFilter(tenant=tenant), await handle.work_due(now(), tenant=tenant)
            by_name = SessionFilter(tenant=tenant, name=friendly_name("s-1"))
            listed = await handle.list_sessions(SessionFilter(tenant=tenant))
            named = await handle.list_sessions(by_name)
            assert {info.id for info in named.sessions} <= {"s-1"}
            assert len(named.sessions) * 2 == len(listed.sessions)
            return [
                {(info.tenant, info.id) for info in listed.sessions},
                {(wait.tenant, wait.session) for wait in (await handle.pending(waits)).waits},
                {(session.tenant, session.session) for session in due.sessions},
            ]

        def of(*tenants: str) -> list[set[tuple[str, str]]]:
            return [{(tenant, name) for tenant in tenants for name in ("s-1", "s-2")}] * 3

        assert await seen(store, None) == of("default")
        assert await seen(store, "acme") == of("acme")
        assert await seen(store, ALL_TENANTS) == of("default", "acme", "zeta")
        view = store.of("acme")
        assert await seen(view, None) == await seen(view, "acme") == of("acme")
        assert await seen(view, "zeta") == await seen(view, ALL_TENANTS) == of()
        assert len((await store.list_sessions(SessionFilter(tenant=ALL_TENANTS))).sessions) == 6
        ids = []
        cursor = None
        while True:
            where = SessionFilter(tenant=ALL_TENANTS, status="suspended")
            page = await store.list_sessions(where, limit=1, cursor=cursor)
            ids += [(info.tenant, info.id) for info in page.sessions]
            cursor = page.cursor
            if cursor is None:
                break
        assert len(ids) == len(set(ids)) == 6

    async def test_a_view_has_no_view_of_another_tenant_and_closes_nothing(
        self, store: SessionStore
    ) -> None:
        view = store.of("acme")
        assert (store.tenant, view.tenant, view.of("acme").tenant) == ("default", "acme", "acme")
        assert view.owner == store.owner
        with pytest.raises(InvalidInput, match="view"):
            view.of("default")
        for hostile in ("../x", "", "A", "a/b", ALL_TENANTS):
            with pytest.raises(InvalidId):
                store.of(hostile)
        driver = await drive_in(store, "acme")
        await view.close()
        await driver.say("goes on")
        await store.close()
        with pytest.raises(Exception, match="closed"):
            await driver.say("too late")

    async def test_who_follows_hears_of_the_own_tenant_alone_unless_all_are_asked_for(
        self, place: Place, store: SessionStore
    ) -> None:
        theirs, ours = await drive_in(store, "acme"), await drive_in(store, "default")
        other = await place.open()
        everything = {("default", "s-1"), ("acme", "s-1")}
        for handle, tenant, wanted in (
            (store, None, {("default", "s-1")}),
            (store, ALL_TENANTS, everything),
            (other, ALL_TENANTS, everything),
            (store.of("acme"), None, {("acme", "s-1")}),
            (store.of("acme"), "default", set()),
        ):
            heard: set[tuple[str, str]] = set()
            async with handle.subscribe_all(tenant=tenant) as hints:
                await theirs.say("by them")
                await ours.say("by us")
                async with asyncio.timeout(10):
                    while heard != wanted:
                        hint = await anext(aiter(hints))
                        assert isinstance(hint, Hint)
                        heard.add((hint.tenant, hint.session))
                        assert heard <= wanted
        async with theirs.store.subscribe("s-1", after=theirs.state.seq) as events:
            store.notify(Transient("s-1", "delta.token", "ours"))
            theirs.store.notify(Transient("s-1", "delta.token", "theirs"))
            async with asyncio.timeout(10):
                item = await anext(aiter(events))
            assert isinstance(item, Transient)
            assert item.data == "theirs"

    async def test_a_view_collects_the_payloads_of_its_tenant(self, store: SessionStore) -> None:
        kept = [await drive_in(store, tenant) for tenant in ("default", "acme")]
        for driver in kept:
            await driver.store.put_payload("s-1", BIG)
        assert (await store.of("zeta").gc(grace_seconds=-1)).payloads == 0
        report = await store.of("acme").gc(grace_seconds=-1)
        assert (report.payloads, report.kept) == (1, 0)
        assert await store.get_payload("s-1", BIG.id) == BIG.data
        assert (await store.gc(grace_seconds=-1)).payloads == 1
