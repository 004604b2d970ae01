"""Stores of earlier schemas are brought forward with their data, by one of those who start."""

import asyncio

from holdfast.stores.postgres import database
from holdfast.stores.postgres.location import read_location
from holdfast.stores.postgres.store import PostgresSessionStore
from holdfast.stores.verify import verify
from holdfast.testing.driver import drive
from holdfast.testing.postgres_server import shared_server, url_of


def go_back(url):
    """Make a store look as the first release with data left it: without what came later."""
    schema = read_location(url).schema
    tables = "procrastinate_events, procrastinate_periodic_defers, procrastinate_jobs"
    shared = shared_server()
    for name in [*tables.split(", "), "procrastinate_workers", "settings", "audit"]:
        shared.execute(f"DROP TABLE {schema}.{name} CASCADE")
    shared.execute(
        f"DO $$ DECLARE f record; BEGIN FOR f IN SELECT oid::regprocedure AS n FROM pg_proc "
        f"WHERE pronamespace = '{schema}'::regnamespace LOOP "
        f"EXECUTE 'DROP ROUTINE ' || f.n || ' CASCADE'; END LOOP; "
        f"FOR f IN SELECT typname AS n FROM pg_type WHERE typnamespace = '{schema}'::regnamespace "
        f"AND typname LIKE 'procrastinate%' AND typtype IN ('e', 'c') LOOP "
        f"EXECUTE format('DROP TYPE {schema}.%I CASCADE', f.n); END LOOP; END $$"
    )
    shared.execute(f"DELETE FROM {schema}.migrations WHERE version > 1")


async def test_a_store_of_the_first_schema_is_brought_forward_by_those_who_start_at_once(tmp_path):
    url = url_of(tmp_path)
    store = await PostgresSessionStore.open(url)
    driver = await drive(store)
    head = await driver.turn("before")
    await store.close()
    go_back(url)
    stores = await asyncio.gather(*(PostgresSessionStore.open(url) for _ in range(4)))
    schema = read_location(url).schema
    found = shared_server().execute(f"SELECT version FROM {schema}.migrations ORDER BY version")
    assert [number for (number,) in found] == [item.version for item in database.migrations()]
    assert (await verify(stores[0], "s-1")).problems == ()
    assert (await stores[0].session_info("s-1")).head == head
    await (await drive(stores[0], "s-2")).turn("after")
    for opened in stores:
        await opened.close()
