"""Jobs of a PostgreSQL store: left with the append, one for each cause, and only hints."""

from __future__ import annotations

import asyncio
import time

import pytest

import holdfast
from holdfast.runtime.results import Final
from holdfast.runtime.worker import Worker
from holdfast.stores.postgres.jobs import installed
from holdfast.stores.postgres.location import read_location
from holdfast.stores.postgres.store import PostgresSessionStore
from holdfast.testing.driver import drive
from holdfast.testing.histories import start_turn
from holdfast.testing.postgres_server import shared_server, url_of

from .children.worker_app import desk


@pytest.fixture
def url(tmp_path, monkeypatch):
    monkeypatch.setenv("WORKER_WITNESS", str(tmp_path / "witness"))
    return url_of(tmp_path)


def run(url, statement):
    schema = read_location(url).schema
    return shared_server().execute(statement.format(schema=schema))


def register(url):
    """Make it look as if a worker served the store."""
    run(url, "INSERT INTO {schema}.procrastinate_workers DEFAULT VALUES")


def jobs(url):
    return run(url, "SELECT queueing_lock, lock FROM {schema}.procrastinate_jobs ORDER BY id")


async def test_messages_leave_one_job_with_their_append_and_none_without_workers(url):
    async with holdfast.open(url, agents=[desk()]) as web:
        session = await web.start(agent="desk")
        await session.send("mail zoe", wait=False)
        assert jobs(url) == []
        register(url)
        await session.send("mail ann", wait=False)
        await session.send("mail bob", wait=False)
        ((cause, lock),) = jobs(url)
        assert cause.startswith("inbox ")
        assert lock is None


async def test_a_deadline_is_a_job_for_its_time(url):
    store = await PostgresSessionStore.open(url)
    register(url)
    driver = await drive(store)
    await driver.play(start_turn(driver.state, "hello"))
    await driver.ask("call_1", deadline="2040-01-01T00:00:00.000000Z")
    ((at,),) = run(url, "SELECT scheduled_at FROM {schema}.procrastinate_jobs")
    assert at.year == 2040
    await store.close()


async def test_no_append_sends_notices(url):
    await (await PostgresSessionStore.open(url)).close()
    found = run(
        url,
        "SELECT tgenabled FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid "
        "WHERE c.relnamespace = '{schema}'::regnamespace AND tgname LIKE '%%job_inserted%%'",
    )
    assert found
    assert {flag for (flag,) in found} <= {"D", b"D"}
    version = run(url, "SELECT value FROM {schema}.settings WHERE name = 'procrastinate'")
    assert version == [(installed(),)]


async def finals(runtime, queued, seconds=60.0):
    deadline = time.monotonic() + seconds
    for session, key in queued:
        while not isinstance(await runtime.result(session, key), Final):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)


async def test_with_every_job_lost_the_sweep_finds_all_work(url):
    async with holdfast.open(url, agents=[desk()]) as web:
        register(url)
        queued = []
        for number in range(3):
            session = await web.start(agent="desk")
            queued.append((session, (await session.send(f"mail {number}", wait=False)).key))
        run(url, "DELETE FROM {schema}.procrastinate_jobs")
        worker, stop = Worker(web, sweep_seconds=0.5), asyncio.Event()
        working = asyncio.ensure_future(worker.run(stop))
        await finals(web, queued)
        stop.set()
        await working
        assert jobs(url) == [] or all(cause.startswith("sweep") for cause, _ in jobs(url))


async def test_a_job_of_a_worker_that_is_gone_is_handed_out_again(url):
    async with holdfast.open(url, agents=[desk()]) as web:
        register(url)
        session = await web.start(agent="desk")
        key = (await session.send("mail ann", wait=False)).key
        run(
            url,
            "UPDATE {schema}.procrastinate_jobs SET status = 'doing', "
            "worker_id = (SELECT max(id) FROM {schema}.procrastinate_workers)",
        )
        run(
            url,
            "UPDATE {schema}.procrastinate_workers SET last_heartbeat = now() - interval '1 hour'",
        )
        worker, stop = Worker(web, sweep_seconds=1), asyncio.Event()
        working = asyncio.ensure_future(worker.run(stop))
        await finals(web, [(session, key)])
        deadline = time.monotonic() + 30
        while any(cause.startswith("inbox") for cause, _ in jobs(url)):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.1)
        stop.set()
        await working


async def test_a_worker_keeps_to_the_limit_of_a_model(url):
    async with holdfast.open(url, agents=[desk()]) as web:
        for number in range(4):
            await (await web.start(agent="desk")).send(f"mail {number}", wait=False)
        worker, most = Worker(web, concurrency=4, model_concurrency=1), 0
        draining = asyncio.ensure_future(worker.drain())
        while not draining.done():
            most = max(most, worker.status.driving)
            await asyncio.sleep(0)
        assert most == 1
        assert worker.status.driven >= 4
