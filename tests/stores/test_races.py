"""Two real processes at one session: no seq lost or doubled, and the loser learns who holds it."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path

import apsw
import pytest
from racer import HELD_SECONDS, open_racer

from holdfast.core.errors import LeaseHeld
from holdfast.core.facts import SessionStarted
from holdfast.stores.verify import verify
from holdfast.testing.driver import Driver, all_events
from holdfast.testing.postgres_server import shared_server, url_of

PROGRAM = str(Path(__file__).with_name("racer.py"))
APPENDS = 150


@pytest.fixture(params=["sqlite", "files", "postgres"])
async def place(request, tmp_path):
    url = f"{request.param}:{tmp_path / 'store'}"
    if request.param == "postgres":
        url = url_of(tmp_path, application_name="racers")
    store = await open_racer(url)
    await store.create_session("s-1", SessionStarted())
    yield url, store
    await store.close()


def start(url, *arguments):
    return subprocess.Popen(
        [sys.executable, PROGRAM, url, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def ask(process, command):
    """Send a command and return the answer."""
    process.stdin.write(command + "\n")
    process.stdin.flush()
    return json.loads(process.stdout.readline())


def stop(process, url):
    """Stop a process, but not inside a transaction, where it would lock all others out."""
    kind, _, path = url.partition(":")
    while True:
        os.kill(process.pid, signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        if kind == "files" or (kind == "sqlite" and not is_locked(Path(path) / "events.db")):
            return
        if kind == "postgresql" and not is_in_transaction():
            return
        os.kill(process.pid, signal.SIGCONT)


def is_in_transaction():
    """Tell whether a connection of a racer waits for it inside a transaction."""
    statement = (
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'racers' "
        "AND state LIKE 'idle in transaction%%'"
    )
    return shared_server().execute(statement) != [(0,)]


def is_locked(path):
    other = apsw.Connection(str(path))
    try:
        other.execute("BEGIN IMMEDIATE")
        other.execute("ROLLBACK")
    except apsw.BusyError:
        return True
    finally:
        other.close()
    return False


async def test_racing_processes_append_every_event_exactly_once(place):
    url, store = place
    racers = [start(url, "append", APPENDS) for _ in range(2)]
    outputs = [racer.communicate(timeout=120)[0] for racer in racers]
    assert [racer.returncode for racer in racers] == [0, 0]
    said = [json.loads(line) for text in outputs for line in text.splitlines()]
    appended = {fact["seq"]: fact["digest"] for fact in said if "digest" in fact}
    events = await all_events(store, "s-1")
    assert len(appended) == sum("digest" in fact for fact in said) == 2 * APPENDS
    assert {event.seq: event.digest for event in events[1:]} == appended
    assert [event.seq for event in events] == list(range(1, 2 * APPENDS + 2))
    assert sum(fact.get("refused") == "position" for fact in said) == 2 * APPENDS / 3
    assert sum(fact.get("refused") == "lost" for fact in said) == 2 * APPENDS / 3
    held = [fact for fact in said if fact.get("refused") == "held"]
    assert all(fact["owner"].startswith("o-") and "process" in fact["holder"] for fact in held)
    assert (await verify(store, "s-1")).problems == ()


async def rob(url, store, rounds):
    acknowledged = {}
    holder = start(url, "hold")
    try:
        for number in range(rounds):
            owner = ask(holder, "take")["owner"]
            first = ask(holder, "append")
            acknowledged[first["seq"]] = first["digest"]
            with pytest.raises(LeaseHeld) as caught:
                await store.acquire("s-1")
            assert caught.value.details["owner"] == owner
            assert f"process {holder.pid} " in caught.value.details["holder"]
            stop(holder, url)
            lease = await steal(store)
            if number % 2:
                driver = Driver(store, lease, await store.load_state("s-1"))
                event = await driver.say("mine now")
                acknowledged[event.seq] = event.digest
            os.kill(holder.pid, signal.SIGCONT)
            late = ask(holder, "append")
            assert (late["refused"], late["owner"]) == ("lease_lost", store.owner)
            assert ask(holder, "take")["owner"] == store.owner
            await store.release(lease)
            assert ask(holder, "append")["refused"] == "lease_lost"
    finally:
        os.kill(holder.pid, signal.SIGCONT)
        holder.communicate(timeout=30)
    events = await all_events(store, "s-1")
    assert {event.seq: event.digest for event in events[1:]} == acknowledged
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert (await verify(store, "s-1")).problems == ()


async def test_a_stopped_holder_is_robbed_and_finds_out_when_it_wakes(place):
    await rob(*place, rounds=20)


@pytest.mark.soak
async def test_a_stopped_holder_is_robbed_hundreds_of_times(place):
    await rob(*place, rounds=300)


async def test_a_holder_that_wakes_before_anyone_stole_goes_on(place):
    url, store = place
    holder = start(url, "hold")
    ask(holder, "take")
    stop(holder, url)
    await expired(store)
    os.kill(holder.pid, signal.SIGCONT)
    assert ask(holder, "append")["seq"] == 2
    await live(store)
    with pytest.raises(LeaseHeld):
        await store.acquire("s-1")
    holder.communicate(timeout=30)


async def expired(store):
    """Wait until a stopped holder counts as dead."""
    await shown(store, live=False)


async def live(store):
    """Wait until a woken holder counts as alive."""
    await shown(store, live=True)


async def shown(store, *, live):
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        lease = await store.lease_of("s-1")
        if (lease is not None and lease.live) == live:
            return
    raise AssertionError(f"the lease never showed as live={live}")


async def steal(store):
    """Take the lease as soon as its stopped holder's heartbeat is old."""
    began = time.monotonic()
    await expired(store)
    assert time.monotonic() - began < HELD_SECONDS * 10
    return await store.acquire("s-1")


async def test_events_of_another_process_are_seen_within_100_ms(place):
    url, store = place
    async with store.subscribe("s-1", after=1) as live:
        other = start(url, "pace", 30)
        delays, seqs = [], []
        while len(seqs) < 30:
            event = await asyncio.wait_for(anext(live), 30)
            stamped = datetime.fromisoformat(event.at).timestamp()
            delays.append(time.time() - stamped)  # from before the commit, sync included
            seqs.append(event.seq)
        other.communicate(timeout=30)
    assert seqs == list(range(2, 32))
    assert sorted(delays)[len(delays) // 2] < 0.1


async def test_gc_in_another_process_never_takes_what_is_referred_to(place):
    url, store = place
    sweeper = start(url, "sweep")
    writer = start(url, "write", 60)
    output = writer.communicate(timeout=120)[0]
    assert writer.returncode == 0
    swept = json.loads(sweeper.communicate(timeout=60)[0])
    said = [json.loads(line) for line in output.splitlines()]
    assert swept["rounds"] > 0
    payloads = {fact["payload"] for fact in said if "seq" in fact}
    for payload in payloads:
        await store.get_payload("s-1", payload)
    report = await verify(store, "s-1")
    assert (report.problems, report.payloads) == ((), len(payloads))
    assert report.events == 1 + sum("seq" in fact for fact in said)
