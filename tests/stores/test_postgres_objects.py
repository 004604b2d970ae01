"""Large payloads of a PostgreSQL store in an object store: written, read, collected, agreed on."""

import asyncio

import pytest

from holdfast.blobs.choose import open_blobs
from holdfast.core.errors import InvalidInput, NothingWritten, StoreUnsafe
from holdfast.stores.postgres.store import PostgresSessionStore
from holdfast.stores.verify import verify
from holdfast.testing.driver import drive
from holdfast.testing.postgres_server import shared_server, url_of
from holdfast.testing.s3_server import shared_bucket
from holdfast.testing.store_contract import StoreContract

LARGE = "a large value " * 20_000


@pytest.fixture
def url(tmp_path):
    return url_of(tmp_path, blobs=shared_bucket(tmp_path.name))


@pytest.fixture
def bucket(tmp_path):
    return open_blobs(shared_bucket(tmp_path.name))


async def test_small_payloads_are_rows_and_large_ones_objects(url, bucket):
    store = await PostgresSessionStore.open(url)
    driver = await drive(store)
    await driver.say("small " * 500)
    assert list(bucket.entries()) == []
    await driver.say(LARGE)
    assert len(list(bucket.entries())) == 1
    assert (await verify(store, "s-1")).problems == ()
    await store.close()


async def test_whoever_opens_the_store_finds_its_objects_without_naming_them(url, tmp_path, bucket):
    store = await PostgresSessionStore.open(url)
    await (await drive(store)).say(LARGE)
    await store.close()
    other = await PostgresSessionStore.open(url_of(tmp_path))
    assert (await verify(other, "s-1")).problems == ()
    await other.close()
    with pytest.raises(StoreUnsafe, match="leave blobs="):
        await PostgresSessionStore.open(url_of(tmp_path, blobs="s3://another"))


async def test_a_store_that_gets_an_object_store_later_still_reads_its_table(url, tmp_path, bucket):
    store = await PostgresSessionStore.open(url_of(tmp_path))
    first = await drive(store, "before")
    await first.say(LARGE)
    await store.release(first.lease)
    await store.close()
    store = await PostgresSessionStore.open(url)
    second = await drive(store, "after")
    await second.say(LARGE + "!")
    await store.release(second.lease)
    for name in ("before", "after"):
        assert (await verify(store, name)).problems == ()
        await store.delete(name)
    await store.gc(grace_seconds=0)
    assert list(bucket.entries()) == []
    schema = url_of(tmp_path).rpartition("schema=")[2]
    assert shared_server().execute(f"SELECT count(*) FROM {schema}.blobs") == [(0,)]
    await store.close()


async def test_gc_beside_writers_on_other_machines_takes_nothing_that_is_used(url):
    """Every round one handle collects without grace while others store the same large values."""
    stores = [await PostgresSessionStore.open(url) for _ in range(3)]
    drivers = [await drive(store, f"s-{number}") for number, store in enumerate(stores)]
    ended = asyncio.Event()

    async def collect():
        rounds = 0
        while not ended.is_set():
            await stores[0].gc(grace_seconds=0)
            rounds += 1
        return rounds

    async def talk(driver):
        for number in range(8):
            await driver.say(f"{LARGE} {number}")

    collecting = asyncio.ensure_future(collect())
    await asyncio.gather(*map(talk, drivers))
    ended.set()
    assert await collecting > 1
    for number, store in enumerate(stores):
        assert (await verify(store, f"s-{number}")).problems == ()
        await store.close()


async def test_an_object_store_that_is_out_of_reach_writes_nothing(tmp_path):
    place = "s3://bucket/x?endpoint=http%3A%2F%2F127.0.0.1%3A9&region=us-east-1"
    store = await PostgresSessionStore.open(url_of(tmp_path, blobs=place))
    driver = await drive(store)
    with pytest.raises(NothingWritten, match=r"127\.0\.0\.1:9"):
        await driver.say(LARGE)
    await driver.say("small")
    assert (await verify(store, "s-1")).problems == ()
    await store.close()


def test_credentials_do_not_go_into_the_url(tmp_path):
    with pytest.raises(InvalidInput, match="environment"):
        asyncio.run(PostgresSessionStore.open(url_of(tmp_path, blobs="s3://b?secret_key=x")))


@pytest.mark.soak
class TestPostgresWithObjects(StoreContract):
    """The whole contract, with large payloads in an object store."""

    async def open_store(self, path):
        return await PostgresSessionStore.open(
            url_of(path, blobs=shared_bucket(str(abs(hash(str(path))))))
        )
