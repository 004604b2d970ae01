"""Behind PgBouncer, which lends a connection for a single transaction: the store keeps its word."""

import asyncio

import pytest
from pgbouncer import PgBouncer

from holdfast.stores.postgres.store import PostgresSessionStore
from holdfast.stores.verify import verify
from holdfast.testing.driver import drive
from holdfast.testing.postgres_server import shared_server


@pytest.fixture(scope="module")
def bouncer():
    proxy = PgBouncer(shared_server())
    yield proxy
    proxy.stop()


async def test_many_sessions_are_written_and_read_through_few_connections(bouncer):
    store = await PostgresSessionStore.open(bouncer.url("through"))
    drivers = [await drive(store, f"s-{number}") for number in range(12)]
    for number in range(5):
        await asyncio.gather(*(driver.turn(f"line {number}") for driver in drivers))
    for driver in drivers:
        assert (await verify(store, driver.state.session)).problems == ()
    await store.close()


async def test_others_events_arrive_without_anybody_listening(bouncer):
    writer = await PostgresSessionStore.open(bouncer.url("followed"))
    reader = await PostgresSessionStore.open(bouncer.url("followed"))
    driver = await drive(writer)
    seqs = []

    async def follow():
        async with reader.subscribe("s-1") as events:
            async for event in events:
                seqs.append(event.seq)
                if len(seqs) == 4:
                    return

    following = asyncio.ensure_future(follow())
    for number in range(3):
        await driver.say(f"line {number}")
    await asyncio.wait_for(following, 30)
    assert seqs == [1, 2, 3, 4]
    assert reader.work_queue() is None
    await writer.close()
    await reader.close()


async def test_stores_that_start_at_once_behind_it_make_one_schema(bouncer):
    opened = [PostgresSessionStore.open(bouncer.url("at_once")) for _ in range(4)]
    for store in await asyncio.gather(*opened):
        await store.close()
