"""Notices between processes: they hurry a look, and losing every one of them loses no event."""

import asyncio

import pytest

from holdfast.core.facts import SessionStarted
from holdfast.stores.feed import POLL_SECONDS
from holdfast.stores.postgres import notices
from holdfast.stores.postgres.notices import Notices
from holdfast.stores.postgres.store import PostgresSessionStore
from holdfast.testing.driver import drive
from holdfast.testing.postgres_server import shared_server, url_of


@pytest.fixture
async def writer(tmp_path):
    store = await PostgresSessionStore.open(url_of(tmp_path))
    yield store
    await store.close()


@pytest.fixture
async def reader(tmp_path):
    store = await PostgresSessionStore.open(url_of(tmp_path, application_name=tmp_path.name))
    yield store
    await store.close()


async def follow(reader, session, count, ready=None):
    seqs = []
    async with reader.subscribe(session) as events:
        async for event in events:
            seqs.append(event.seq)
            if ready is not None:
                ready.set()
            if len(seqs) == count:
                return seqs


async def listening(reader):
    """Wait until the server has the reader's LISTEN."""
    for _ in range(2000):
        if reader._engine._notices.is_listening:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("nobody listens")


async def test_a_notice_brings_events_of_another_process_long_before_the_next_look(
    writer, reader, monkeypatch
):
    monkeypatch.setattr(notices, "LOOK_SECONDS", 60.0)
    driver = await drive(writer)
    ready = asyncio.Event()
    following = asyncio.ensure_future(follow(reader, "s-1", 4, ready))
    await ready.wait()
    await listening(reader)
    for number in range(3):
        await driver.say(f"line {number}")
    assert await asyncio.wait_for(following, 20) == [1, 2, 3, 4]


async def test_a_reader_that_hears_nothing_still_sees_every_event_in_order(
    writer, reader, monkeypatch
):
    monkeypatch.setattr(Notices, "say", lambda self: None)
    monkeypatch.setattr(notices, "LOOK_SECONDS", POLL_SECONDS)
    drivers = [await drive(writer, f"s-{number}") for number in range(3)]
    following = [
        asyncio.ensure_future(follow(reader, driver.state.session, 11)) for driver in drivers
    ]
    for number in range(10):
        await asyncio.gather(*(driver.say(f"line {number}") for driver in drivers))
    for seqs in await asyncio.wait_for(asyncio.gather(*following), 30):
        assert seqs == list(range(1, 12))


async def test_a_listener_that_loses_its_connection_comes_back(
    writer, reader, tmp_path, monkeypatch
):
    driver = await drive(writer)
    ready = asyncio.Event()
    following = asyncio.ensure_future(follow(reader, "s-1", 7, ready))
    await ready.wait()
    await listening(reader)
    end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s"
    for number in range(3):
        await driver.say(f"before {number}")
        await asyncio.to_thread(shared_server().execute, end, tmp_path.name)
        await driver.say(f"after {number}")
    assert await asyncio.wait_for(following, 30) == list(range(1, 8))
    await asyncio.wait_for(listening(reader), 20)


async def test_who_begins_to_follow_during_a_wait_misses_nothing(writer, reader, monkeypatch):
    """The look that was waited for began before the session was followed."""
    for name in ("first", "second"):
        await writer.create_session(name, SessionStarted())
    ready = asyncio.Event()
    first = asyncio.ensure_future(follow(reader, "first", 2, ready))
    await ready.wait()
    await listening(reader)
    began = asyncio.Event()
    second = asyncio.ensure_future(follow(reader, "second", 2, began))
    await began.wait()
    driver = await drive(writer, "second")
    await driver.say("hello")
    assert await asyncio.wait_for(second, 20) == [1, 2]
    first.cancel()


async def test_a_store_that_nobody_follows_keeps_no_listener(writer):
    await drive(writer)
    assert not writer._engine._notices.is_listening
