"""A scripted workload that a test may kill, starve or cut the power of, and what must be left.

Run as a program it works on one store in a process of its own and prints what it was told.
"""

import asyncio
import json
import os
import pickle
import sys
from pathlib import Path

from holdfast.core.errors import (
    PayloadNotFound,
    SessionDeleted,
    SessionNotFound,
)
from holdfast.core.facts import SessionStarted
from holdfast.core.payloads import slot
from holdfast.stores.files.store import FilesSessionStore
from holdfast.stores.memory.store import MemorySessionStore
from holdfast.stores.port import InboxDraft
from holdfast.stores.sqlite.store import SqliteSessionStore
from holdfast.stores.verify import verify
from holdfast.testing.driver import Driver, all_events, drive
from holdfast.testing.faults import KillAt, StepJournal, WatchedDisk, WatchedVfs
from holdfast.testing.histories import finish_turn, start_turn

STARTED = SessionStarted(labels={"a": "b"}, settings=slot("s" * 900, "settings"))
BIG = slot("b" * 3000, "message")
HUGE = slot("huge " * 20_000, "message")
LATER = slot("later " * 20_000, "message")
ORPHAN = slot("orphan " * 20_000, "message")
ANSWER = slot("answer " * 200, "answer")


async def open_watched(kind, path, watcher, **options):
    """Open a store whose every step a watcher sees."""
    if kind == "files":
        return await FilesSessionStore.open(path, disk=WatchedDisk(watcher), **options)
    name = f"watched-{id(watcher)}"
    watcher.vfs = WatchedVfs(name, watcher)  # SQLite does not keep it alive
    return await SqliteSessionStore.open(path, vfs=name, disk=WatchedDisk(watcher), **options)


async def open_plain(kind, path):
    """Open a store on the real disk."""
    return await (FilesSessionStore if kind == "files" else SqliteSessionStore).open(path)


async def work(store, tell):
    """Do a little of everything; tell what is durable as soon as the store says so."""

    def told(driver):
        tell({"tip": driver.lease.session, "seq": driver.state.seq, "digest": driver.state.digest})

    first = await drive(store, "s-1", STARTED)
    told(first)
    await first.play(start_turn(first.state, "hi"))
    told(first)
    await first.play(finish_turn(first.state, "t" * 2000))
    told(first)
    for item in (BIG, HUGE, "small"):
        await first.say(item)
        told(first)
    await store.put_payload("s-1", LATER)
    await first.say(LATER.bare())
    told(first)
    await store.put_inbox("s-1", InboxDraft("k-1", "answer", "call-1", ANSWER))
    tell({"inbox": "k-1"})
    await first.append(first.message("took it"), consumes=["k-1"])
    told(first)
    await store.erase("s-1", BIG.id, "asked")
    tell({"erased": BIG.id})
    second = await drive(store, "s-2")
    told(second)
    await second.turn("x" * 600)
    told(second)
    await store.release(second.lease)
    await store.delete("s-2")
    tell({"deleted": "s-2"})
    await store.put_payload("s-1", ORPHAN)
    await store.gc(grace_seconds=0)
    await first.turn("end")
    told(first)
    await store.close()


async def expected():
    """Return each session's whole log as (seq, type) and the seqs at which its batches end."""
    store = MemorySessionStore()
    ends: dict[str, set[int]] = {}

    def tell(fact):
        if "tip" in fact:
            ends.setdefault(fact["tip"], set()).add(fact["seq"])

    await work(store, tell)
    left = MemorySessionStore(store.database)
    log = [(event.seq, event.type) for event in await all_events(left, "s-1")]
    ends["s-1"].add(13)  # a turn is two batches, told as one
    ends["s-2"].add(3)
    return log, ends


async def check_left(store, told, log, ends):
    """Check that what was told is there, that no batch is half there, and that work goes on."""
    tips = {fact["tip"]: fact for fact in told if "tip" in fact}
    deleted = any("deleted" in fact for fact in told)
    for session in ("s-1", "s-2"):
        try:
            events = await all_events(store, session)
        except SessionNotFound:
            assert session not in tips, f"{session} was acknowledged and is gone"
            continue
        except SessionDeleted:
            assert session == "s-2"
            continue
        assert not (deleted and session == "s-2"), "a deletion was acknowledged and is undone"
        assert [event.seq for event in events] == list(range(1, len(events) + 1))
        assert len(events) in ends[session], f"half a batch: {len(events)} events"
        if session in tips:
            tip = tips[session]
            assert len(events) >= tip["seq"], f"acknowledged {tip}, stored {len(events)}"
            assert events[tip["seq"] - 1].digest == tip["digest"]
        if session == "s-1":
            assert [(event.seq, event.type) for event in events] == log[: len(events)]
        assert (await store.load_state(session)).digest == events[-1].digest
        report = await verify(store, session)
        assert report.problems == (), report.problems
    await _check_rest(store, told)


async def _check_rest(store, told):
    try:
        state = await store.load_state("s-1")
    except SessionNotFound:
        state = await store.create_session("s-1", STARTED)
    if any("inbox" in fact for fact in told):
        (item,) = await store.list_inbox("s-1", pending=False)
        assert item.key == "k-1"
        assert (item.consumed_seq is not None) == (state.seq >= 11)
    if any("erased" in fact for fact in told):
        assert set(await store.erased("s-1")) == {BIG.id}
        try:
            await store.get_payload("s-1", BIG.id)
            raise AssertionError("an erased value came back")
        except PayloadNotFound:
            pass
    driver = Driver(store, await store.acquire("s-1"), state)
    await driver.say("later work goes on")
    await driver.say(HUGE)
    await store.gc(grace_seconds=0)
    assert (await verify(store, "s-1")).problems == ()


def main():
    """Work in this process: `workload.py kind path journal FILE` or `... kill N before|after`."""
    kind, path, mode = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    watcher = StepJournal()
    if mode == "kill":
        watcher = KillAt(int(sys.argv[4]), after=sys.argv[5] == "after")

    def tell(fact):
        text = json.dumps(fact)
        if isinstance(watcher, StepJournal):
            watcher.acknowledge(text)
        os.write(1, text.encode() + b"\n")

    async def run():
        await work(await open_watched(kind, path, watcher), tell)

    asyncio.run(run())
    if isinstance(watcher, StepJournal):
        Path(sys.argv[4]).write_bytes(pickle.dumps(watcher.steps))
    os._exit(0)


if __name__ == "__main__":
    main()
