"""What only a database can meet: starts at once, other formats, lacking rights, lost links."""

import asyncio

import psycopg
import pytest

from holdfast.core.errors import (
    InvalidInput,
    PositionConflict,
    StoreDenied,
    StoreFailed,
    StoreNewer,
    StoreNotFound,
    StoreUnsafe,
)
from holdfast.core.facts import SessionStarted
from holdfast.stores.postgres.database import migrations
from holdfast.stores.postgres.location import read_location
from holdfast.stores.postgres.store import PostgresSessionStore
from holdfast.stores.verify import verify
from holdfast.testing.driver import Driver, all_events, drive
from holdfast.testing.postgres_server import PostgresServer, shared_server, url_of


def schema_of(path):
    return read_location(url_of(path)).schema


async def test_stores_that_start_at_once_make_one_schema(tmp_path):
    opened = [PostgresSessionStore.open(url_of(tmp_path)) for _ in range(5)]
    stores = await asyncio.gather(*opened)
    found = shared_server().execute(f"SELECT version FROM {schema_of(tmp_path)}.migrations")
    assert sorted(found) == [(migration.version,) for migration in migrations()]
    for store in stores:
        await store.close()


async def test_a_newer_schema_is_refused(tmp_path):
    await (await PostgresSessionStore.open(url_of(tmp_path))).close()
    table = f"{schema_of(tmp_path)}.migrations"
    shared_server().execute(f"INSERT INTO {table} VALUES (999, 'later', 'x', 'now')")
    with pytest.raises(StoreNewer, match="999"):
        await PostgresSessionStore.open(url_of(tmp_path))


async def test_looking_makes_no_store_and_a_schema_of_something_else_is_left_alone(tmp_path):
    with pytest.raises(StoreNotFound):
        await PostgresSessionStore.open(url_of(tmp_path), create=False)
    server, schema = shared_server(), schema_of(tmp_path)
    server.execute(f"CREATE SCHEMA {schema}")
    server.execute(f"CREATE TABLE {schema}.theirs (n integer)")
    with pytest.raises(StoreUnsafe, match="something else"):
        await PostgresSessionStore.open(url_of(tmp_path))


async def test_a_role_without_rights_is_told_so(tmp_path):
    await (await PostgresSessionStore.open(url_of(tmp_path))).close()
    shared_server().execute(
        "DO $$ BEGIN CREATE ROLE guest LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$"
    )
    with pytest.raises(StoreDenied):
        await PostgresSessionStore.open(url_of(tmp_path, user="guest"))


async def test_a_server_that_is_not_there_is_a_failure_that_names_it(tmp_path):
    with pytest.raises(StoreFailed, match="postgresql:"):
        await PostgresSessionStore.open(f"postgresql:///postgres?host={tmp_path}")


@pytest.mark.parametrize("url", ["postgresql:///x?schema=A-b", "postgresql:///x?pool=1"])
def test_a_url_that_cannot_be_meant_is_refused(url):
    with pytest.raises(InvalidInput):
        read_location(url)


def test_no_password_is_shown():
    location = read_location("postgresql://ann:secret@host/db?password=other")
    assert "secret" not in location.shown
    assert "other" not in location.shown
    assert "secret" in location.conninfo


async def test_connections_that_are_terminated_lose_nothing_that_was_acknowledged(tmp_path):
    store = await PostgresSessionStore.open(url_of(tmp_path, application_name=tmp_path.name))
    driver = await drive(store)
    said = []
    for number in range(30):
        if number % 5 == 0:
            end = (
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s"
            )
            await asyncio.to_thread(shared_server().execute, end, tmp_path.name)
        said.append((await driver.say(f"line {number}")).digest)
    events = await all_events(store, "s-1")
    assert [event.digest for event in events[1:]] == said
    await store.close()


async def test_a_server_that_is_killed_and_restarted_loses_nothing_that_was_acknowledged():
    server = PostgresServer()
    try:
        store = await PostgresSessionStore.open(server.url())
        drivers = [await drive(store, f"s-{number}") for number in range(4)]
        said = {driver.state.session: [] for driver in drivers}

        async def talk(driver):
            for number in range(25):
                said[driver.state.session].append((await driver.say(f"line {number}")).digest)

        talking = asyncio.gather(*map(talk, drivers))
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)
        await talking
        for session, digests in said.items():
            assert [event.digest for event in (await all_events(store, session))[1:]] == digests
            assert (await verify(store, session)).problems == ()
        await store.close()
    finally:
        server.stop()


async def test_a_commit_that_becomes_visible_late_is_not_missed(tmp_path):
    """An older transaction that commits after a younger one was seen is still reported."""
    server, schema = shared_server(), schema_of(tmp_path)
    store = await PostgresSessionStore.open(url_of(tmp_path))
    for name in ("early", "late"):
        await store.create_session(name, SessionStarted())
    other = await PostgresSessionStore.open(url_of(tmp_path))
    moved = "moved = pg_current_xact_id()::text::bigint"
    async with other.subscribe_all() as hints:
        with psycopg.connect(server.conninfo) as slow:
            slow.execute(f"UPDATE {schema}.sessions SET {moved} WHERE id = 'late'".encode())
            lease = await store.acquire("early")
            state = await store.load_state("early")
            await Driver(store, lease, state).say("first")
            seen = await asyncio.wait_for(anext(hints), 20)
            assert seen.session == "early"
            slow.commit()
        while (await asyncio.wait_for(anext(hints), 20)).session != "late":
            pass
    await store.close()
    await other.close()


async def test_appends_of_many_sessions_share_transactions_and_one_refusal_harms_no_other(tmp_path):
    store = await PostgresSessionStore.open(url_of(tmp_path))
    drivers = [await drive(store, f"s-{number}") for number in range(40)]
    stale = drivers[7]
    await stale.say("ahead")
    refused = store.append(stale.lease, 1, [stale.message("behind")])
    others = [driver.say("together") for driver in drivers if driver is not stale]
    outcome, *events = await asyncio.gather(refused, *others, return_exceptions=True)
    assert isinstance(outcome, PositionConflict)
    assert [event.seq for event in events] == [2] * 39
    statement = f"SELECT count(DISTINCT moved) FROM {schema_of(tmp_path)}.sessions WHERE seq = 2"
    ((transactions,),) = shared_server().execute(statement)
    assert transactions < 20
    await store.close()


async def test_behind_a_transaction_pooler_nothing_is_left_on_a_connection(tmp_path):
    url = url_of(tmp_path, pooler="transaction")
    store = await PostgresSessionStore.open(url)
    driver = await drive(store)
    for number in range(10):
        await driver.say(f"line {number}")
    assert store.flags.url.endswith("pooler=transaction")
    assert (await verify(store, "s-1")).problems == ()
    await store.close()
