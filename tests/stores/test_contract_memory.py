"""The memory store keeps the whole contract, and what only a store in one process can promise."""

from pathlib import Path

import pytest

from holdfast.core.errors import Corruption, LeaseHeld
from holdfast.core.facts import SessionStarted
from holdfast.core.payloads import Slot, slot
from holdfast.stores.memory.database import MemoryDatabase
from holdfast.stores.memory.store import MemorySessionStore
from holdfast.stores.port import InboxDraft
from holdfast.testing.driver import drive
from holdfast.testing.store_contract import StoreContract

BIG = slot("a long story " * 200, "message")


class TestMemory(StoreContract):
    databases: dict[Path, MemoryDatabase]

    async def open_store(self, path):
        databases = self.__dict__.setdefault("databases", {})
        return MemorySessionStore(databases.setdefault(path, MemoryDatabase()))

    async def die_holding(self, store, session_id):
        doomed = MemorySessionStore(store.database)
        await doomed.acquire(session_id)
        store.database.owners.pop(doomed.owner)


async def test_bytes_that_are_not_what_they_say_reach_nobody():
    store = MemorySessionStore()
    driver = await drive(store)
    await driver.say(BIG)
    await store.create_session("s-2", SessionStarted())
    forged = Slot(BIG.id, "text", "message", BIG.size, b"x" * BIG.size)
    with pytest.raises(Corruption):
        await store.put_inbox("s-2", InboxDraft("k", "message", content=forged))
    assert await store.list_inbox("s-2") == []
    assert await store.get_payload("s-1", BIG.id) == BIG.data


async def test_a_payload_that_was_changed_in_place_is_not_handed_out():
    store = MemorySessionStore()
    driver = await drive(store)
    await driver.say(BIG)
    store.database.payloads["default", BIG.id].data = b"changed"
    with pytest.raises(Corruption):
        await store.get_payload("s-1", BIG.id)


async def test_an_open_handle_is_alive_however_long_it_writes_nothing():
    database = MemoryDatabase()
    store, other = MemorySessionStore(database, lease_seconds=0), MemorySessionStore(database)
    driver = await drive(store)
    with pytest.raises(LeaseHeld):
        await other.acquire("s-1")
    info = await other.lease_of("s-1")
    assert (info.live, info.expires_in) == (True, None)
    await driver.say("still mine")
    await store.close()
    await other.acquire("s-1")


async def test_by_a_clock_of_its_own_a_bank_lets_leases_run_out():
    now = 0.0
    database = MemoryDatabase(clock=lambda: now)
    store, other = MemorySessionStore(database), MemorySessionStore(database)
    driver = await drive(store)
    now = 14.0
    await store.renew(driver.lease)
    now = 28.0
    with pytest.raises(LeaseHeld):
        await other.acquire("s-1")
    now = 30.0
    await other.acquire("s-1")
