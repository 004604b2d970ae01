"""Backup and restore by PostgreSQL's own programs, beside a running store, as the how-to says."""

import asyncio
import subprocess

from holdfast.stores.postgres.location import read_location
from holdfast.stores.postgres.store import PostgresSessionStore
from holdfast.stores.verify import verify
from holdfast.testing.driver import Driver, drive
from holdfast.testing.postgres_server import binaries, shared_server, url_of


async def program(command):
    await asyncio.to_thread(subprocess.run, command, check=True)


async def test_a_dump_of_the_schema_is_a_store_in_another_database(tmp_path):
    url = url_of(tmp_path)
    store = await PostgresSessionStore.open(url)
    driver = await drive(store)
    head = await driver.turn("a value " * 20_000)
    await store.release(driver.lease)  # a lease is in the dump too, and its holder is alive
    location = read_location(url)
    host = shared_server().conninfo.split()[0].removeprefix("host=")
    connect = ["-h", host, "-U", "postgres"]
    dump = str(tmp_path / "agents.dump")
    command = [str(binaries() / "pg_dump"), *connect, "--format=custom", "-f", dump]
    await program([*command, f"--schema={location.schema}", "postgres"])
    again = f"again_{location.schema}"
    shared_server().execute(f"CREATE DATABASE {again}")
    restore = [str(binaries() / "pg_restore"), *connect, "-d", again, dump]
    await program(restore)
    other = await PostgresSessionStore.open(
        f"postgresql:///{again}?host={host}&user=postgres&schema={location.schema}", create=False
    )
    assert (await verify(other, "s-1")).problems == ()
    assert (await other.session_info("s-1")).head == head
    lease = await other.acquire("s-1")
    await Driver(other, lease, await other.load_state("s-1")).turn("goes on")
    await other.close()
    await store.close()
    shared_server().execute(f"DROP DATABASE {again} WITH (FORCE)")
