"""Erasing a tenant: all of it, nothing of others, and a certificate that proves itself."""

import pytest

from holdfast.core.errors import LeaseHeld, SessionDeleted
from holdfast.core.facts import SessionStarted
from holdfast.core.payloads import slot
from holdfast.core.records import record_id
from holdfast.stores.choose import open_store
from holdfast.stores.port import SessionFilter
from holdfast.stores.tenant_erasure import delete_tenant
from holdfast.testing.driver import drive

BIG = "a private value " * 9000


@pytest.mark.parametrize("kind", ["memory", "sqlite", "files"])
async def test_everything_of_a_tenant_goes_and_the_certificate_says_what(kind, tmp_path):
    store = await open_store("memory:" if kind == "memory" else f"{kind}:{tmp_path / 'store'}")
    for tenant in ("default", "acme"):
        for session in ("s-1", "s-2"):
            driver = await drive(store, session, SessionStarted(tenant=tenant))
            await driver.say(slot(f"{tenant} {session} {BIG}", "message"))
            await store.of(tenant).put_audit(session, {"model": "m"})
            await store.of(tenant).release(driver.lease)
    digests = {
        info.id: info.digest
        for info in (await store.list_sessions(SessionFilter(tenant="acme"))).sessions
    }
    made = await delete_tenant(store, "acme")
    assert {item["session"]: item["digest"] for item in made["sessions"]} == digests
    assert [item["audit_rows"] for item in made["sessions"]] == [1, 1]
    assert made["payloads"] >= 2
    assert made["payloads_left"] == 0
    body = {name: value for name, value in made.items() if name != "id"}
    assert made["id"] == record_id(body)
    assert "private" not in repr(made)
    assert (await store.list_sessions(SessionFilter(tenant="acme"))).sessions == ()
    with pytest.raises(SessionDeleted):
        await store.of("acme").load_state("s-1")
    for session in ("s-1", "s-2"):
        assert (await store.load_state(session)).seq == 2
        assert len(await store.list_audit(session)) == 1
    assert (await delete_tenant(store, "acme"))["sessions"] == []
    await store.close()


async def test_a_tenant_with_a_session_that_is_driven_is_not_deleted():
    store = await open_store("memory:")
    for session in ("s-1", "s-2"):
        driver = await drive(store, session, SessionStarted(tenant="acme"))
        if session == "s-1":
            await store.of("acme").release(driver.lease)
    with pytest.raises(LeaseHeld):
        await delete_tenant(store, "acme")
    assert len((await store.list_sessions(SessionFilter(tenant="acme"))).sessions) == 2
    await store.close()
