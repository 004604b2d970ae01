"""Workers: what has work is driven by one of them, whichever dies, and no mail is sent twice."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

import holdfast
from holdfast.core.errors import HoldfastError, InvalidSettings
from holdfast.runtime.results import Final, Queued
from holdfast.runtime.worker import Worker
from holdfast.stores.choose import open_store
from holdfast.stores.verify import verify
from holdfast.testing.postgres_server import url_of

from .children.worker_app import desk

PROGRAM = str(Path(__file__).with_name("children") / "worker_app.py")


@pytest.fixture(params=["sqlite", "postgres"])
def url(request, tmp_path, monkeypatch):
    monkeypatch.setenv("WORKER_WITNESS", str(tmp_path / "witness"))
    if request.param == "postgres":
        return url_of(tmp_path)
    return f"sqlite:{tmp_path / 'store'}"


def sent():
    """Return how often each mail was sent, as the world outside saw it."""
    path = Path(os.environ["WORKER_WITNESS"])
    lines = path.read_text().splitlines() if path.exists() else []
    return Counter(line.split()[1] for line in lines)


@asynccontextmanager
async def office(url):
    """Open a runtime that starts sessions and leaves the driving to workers."""
    async with holdfast.open(url, agents=[desk()]) as runtime:
        yield runtime


@asynccontextmanager
async def working(runtime, **options):
    """Run a worker beside the test, in this process."""
    worker, stop = Worker(runtime, **options), asyncio.Event()
    task = asyncio.ensure_future(worker.run(stop))
    try:
        yield worker
    finally:
        stop.set()
        await task


async def until_final(runtime, session, key, seconds=60.0):
    """Wait until a message has its result."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        result = await runtime.result(session, key)
        if isinstance(result, Final):
            return result
        await asyncio.sleep(0.02)
    raise AssertionError(f"{session} is not final: {result}")


async def test_a_message_that_nobody_waits_for_is_worked_by_a_worker(url):
    async with office(url) as web, office(url) as other:
        session = await web.start(agent="desk")
        queued = await session.send("mail ann", wait=False)
        assert isinstance(queued, Queued)
        assert await session.send("mail ann", wait=False, key=queued.key) == queued
        assert sent() == {}
        await Worker(other).drain()
        assert (await session.result(queued.key)).value == "done ann"
        assert sent() == {"ann": 1}
        again = await session.send("mail ann", wait=False, key=queued.key)
        assert again.value == "done ann"


async def test_a_hint_makes_a_worker_look_at_once(url):
    async with office(url) as web, office(url) as other:
        async with working(other, sweep_seconds=300):
            session = await web.start(agent="desk")
            queued = await session.send("mail ann", wait=False)
            assert (await until_final(web, session, queued.key)).value == "done ann"


async def test_without_any_hint_the_sweep_finds_all_work(url, monkeypatch):
    async with office(url) as web, office(url) as other:

        @asynccontextmanager
        async def deaf(self):
            yield

        monkeypatch.setattr(Worker, "_hints", deaf)
        async with working(other, sweep_seconds=0.2):
            sessions = [await web.start(agent="desk") for _ in range(5)]
            keys = [(await s.send(f"mail {n}", wait=False)).key for n, s in enumerate(sessions)]
            for session, key in zip(sessions, keys, strict=True):
                await until_final(web, session, key)


async def test_a_question_waits_without_a_worker_and_its_answer_is_taken_up(url):
    async with office(url) as web, office(url) as other:
        session = await web.start(agent="desk")
        queued = await session.send("ask tea?", wait=False)
        worker = Worker(other)
        await worker.drain()
        (wait,) = (await web.pending()).waits
        assert worker.status.driving == 0
        store = await open_store(url)  # whoever answers may have no agent at all
        async with holdfast.open(store) as front:
            await front.answer(session.id, wait.call_id, "yes")
            await front.settled()
        await store.close()
        await worker.drain()
        assert (await session.result(queued.key)).value == "done tea?"


async def test_a_worker_drives_no_more_sessions_at_once_than_it_may(url):
    async with office(url) as web, office(url) as other:
        for number in range(6):
            await (await web.start(agent="desk")).send(f"mail {number}", wait=False)
        worker, most = Worker(other, concurrency=2), 0
        draining = asyncio.ensure_future(worker.drain())
        while not draining.done():
            most = max(most, worker.status.driving)
            await asyncio.sleep(0)
        assert most == 2
        assert sent() == {str(number): 1 for number in range(6)}


async def test_a_worker_that_could_do_nothing_is_not_made():
    async with holdfast.open("memory:") as runtime:
        with pytest.raises(InvalidSettings):
            Worker(runtime, concurrency=0)


def start(url, **environment):
    command = [sys.executable, "-m", "holdfast", "worker", "--store", url, "--with", PROGRAM]
    command += ["--sweep-seconds", "0.3"]
    return subprocess.Popen(
        command, env=os.environ | environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )


async def first_mail():
    """Wait until the first mail is on its way."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if sent():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("no mail was sent")


async def test_a_worker_that_is_asked_to_stop_finishes_its_turns(url):
    async with office(url) as web:
        session = await web.start(agent="desk")
        queued = await session.send("mail ann", wait=False)
        worker = start(url, WORKER_PAUSE="0.5")
        await first_mail()
        worker.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(worker.wait, 30) == 0
        assert (await session.result(queued.key)).value == "done ann"
        assert sent() == {"ann": 1}


async def answer_all(web):
    """Answer whatever is asked, again and again."""
    while True:
        for wait in (await web.pending()).waits:
            with suppress(HoldfastError):  # a worker came first
                await web.answer(wait.session, wait.call_id, "yes")
        await asyncio.sleep(0.2)


async def massacre(url, *, sessions, workers, kills, every, asking=0):
    """Kill workers while they serve; every `asking`-th session waits for a person meanwhile."""
    async with office(url) as web:
        queued = []
        for number in range(sessions):
            session = await web.start(agent="desk")
            verb = "ask" if asking and number % asking == 0 else "mail"
            queued.append((session, (await session.send(f"{verb} {number}", wait=False)).key))
        answering = asyncio.ensure_future(answer_all(web))
        crew = [start(url, WORKER_PAUSE="0.05") for _ in range(workers)]
        try:
            await first_mail()
            for number in range(kills):
                await asyncio.sleep(every)
                crew[number % workers].kill()
                crew[number % workers].communicate()
                crew[number % workers] = start(url, WORKER_PAUSE="0.05")
            for session, key in queued:
                await until_final(web, session, key, seconds=120)
        finally:
            answering.cancel()
            for worker in crew:
                worker.terminate()
            for worker in crew:
                worker.communicate(timeout=60)
        assert max(sent().values()) == 1
        for session, _ in queued:
            assert (await verify(web.store, session.id)).problems == ()


async def test_whichever_worker_is_killed_all_sessions_end_and_no_mail_is_sent_twice(url):
    await massacre(url, sessions=8, workers=2, kills=1, every=0.3)


@pytest.mark.soak
async def test_workers_are_killed_for_a_minute(url):
    await massacre(url, sessions=200, workers=4, kills=30, every=2.0, asking=3)


@pytest.mark.soak
async def test_a_worker_that_wakes_after_its_lease_is_fenced_off(url):
    async with office(url) as web:
        session = await web.start(agent="desk")
        queued = await session.send("mail ann", wait=False)
        paused = start(url, WORKER_PAUSE="2")
        await first_mail()
        paused.send_signal(signal.SIGSTOP)
        other = start(url)
        try:
            assert (await until_final(web, session, queued.key)).value == "done ann"
            before = (await web.state(session)).seq
            paused.send_signal(signal.SIGCONT)
            paused.send_signal(signal.SIGTERM)
            paused.communicate(timeout=60)
            assert (await web.state(session)).seq == before
            assert sent() == {"ann": 1}
            assert (await verify(web.store, session.id)).problems == ()
        finally:
            other.terminate()
            other.communicate(timeout=60)
