"""A failing disk: the error tells nothing-written from unknown, and work goes on afterwards."""

import errno
from dataclasses import replace

import pytest
from workload import BIG, HUGE, LATER, STARTED, open_plain, open_watched

from holdfast.core.errors import NothingWritten, OutcomeUnknown, StoreFailed
from holdfast.stores.port import InboxDraft
from holdfast.stores.verify import verify
from holdfast.testing.driver import Driver, view
from holdfast.testing.faults import READS, WRITES, FailAt
from holdfast.testing.histories import finish_turn, start_turn

SYNCS = frozenset({"sync"})
CODES = (errno.ENOSPC, errno.EIO, errno.EROFS)
TRIES = 12


class Strained:
    """A store on a failing disk, and a second handle on a good one to compare it with."""

    def __init__(self, store, kind, path):
        self.store, self.kind, self.path = store, kind, path
        self.driver = None

    async def seen(self, store):
        listed = await again(store.list_sessions)
        return {info.id: await again(lambda i=info: view(store, i.id)) for info in listed.sessions}

    async def compare(self):
        mine = await self.seen(self.store)
        other = await open_plain(self.kind, self.path)
        try:
            assert mine == await self.seen(other)
        finally:
            await other.close()
        return mine

    async def attempt(self, action):
        """Try until it is done; check each failure for what it says."""
        for _ in range(TRIES):
            before = await self.seen(self.store)
            try:
                await action()
            except NothingWritten:
                assert await self.compare() == before
            except OutcomeUnknown:
                if await self.compare() != before:
                    break
            except StoreFailed:  # a read on the way failed: what was done before it stands
                await self.compare()
            else:
                break
        else:
            raise AssertionError("it never worked again")
        if self.driver is not None:
            self.driver.state = await again(lambda: self.store.load_state("s-1"))

    async def acquire(self):
        state = await again(lambda: self.store.load_state("s-1"))
        self.driver = Driver(self.store, await self.store.acquire("s-1"), state)


async def again(read):
    """Read until the disk lets us; a read that fails says so and changes nothing."""
    for _ in range(TRIES):
        try:
            return await read()
        except StoreFailed as error:
            failure = error
    raise failure


async def strain(kind, path, watcher):
    """Do a little of everything on a failing disk."""
    for _ in range(TRIES):
        try:
            store = await open_watched(kind, path, watcher)
            break
        except StoreFailed:
            continue
    it = Strained(store, kind, path)
    await it.attempt(lambda: store.create_session("s-1", STARTED))
    await it.attempt(it.acquire)
    driver = it.driver
    for item in ("small", BIG, HUGE):
        await it.attempt(lambda item=item: driver.say(item))
    await it.attempt(lambda: driver.play(start_turn(driver.state, "t" * 700)))
    await it.attempt(lambda: driver.play(finish_turn(driver.state, "end")))
    await it.attempt(lambda: store.put_payload("s-1", LATER))
    await it.attempt(lambda: driver.say(LATER.bare()))
    await it.attempt(lambda: store.put_inbox("s-1", InboxDraft("k-1", "message")))
    await it.attempt(lambda: driver.append(driver.message("got it"), consumes=["k-1"]))
    await it.attempt(lambda: store.erase("s-1", BIG.id, "asked"))
    await it.attempt(lambda: store.gc(grace_seconds=0))
    await it.attempt(lambda: store.renew(driver.lease))
    live = await it.compare()
    assert [item.consumed_seq for item in live["s-1"].inbox] == [11]
    assert live["s-1"].state.seq == 11
    assert set(live["s-1"].erased) == {BIG.id}
    if watcher.kinds != READS:  # a read that fails is a finding, too
        assert (await verify(store, "s-1")).problems == ()
    failed = len(watcher.failed)
    await store.close()
    reopened = await open_plain(kind, path)
    assert await view(reopened, "s-1") == live["s-1"]
    assert (await verify(reopened, "s-1")).problems == ()
    if failed == len(watcher.failed):  # a close that could not release leaves the lease to expire
        state = await reopened.load_state("s-1")
        driver = replace(driver, store=reopened, state=state, lease=await reopened.acquire("s-1"))
        await driver.say("later work goes on")
    await reopened.close()


async def strain_all(kind, tmp_path, numbers, kinds, times):
    failures = 0
    for number in numbers:
        watcher = FailAt(number, CODES[number % 3], times=times, kinds=kinds)
        try:
            await strain(kind, tmp_path / str(number), watcher)
        except BaseException as error:
            error.add_note(f"step {number} failed: {watcher.failed}")
            raise
        failures += bool(watcher.failed)
        if watcher.count < number:
            break
    return failures


@pytest.mark.parametrize("kind", ["sqlite", "files"])
async def test_a_write_that_fails_anywhere_says_what_it_did(kind, tmp_path):
    stride = 17 if kind == "sqlite" else 9
    assert await strain_all(kind, tmp_path, range(1, 100_000, stride), WRITES, 1) > 8


@pytest.mark.parametrize("kind", ["sqlite", "files"])
async def test_a_sync_that_keeps_failing_says_what_is_unknown(kind, tmp_path):
    assert await strain_all(kind, tmp_path, range(1, 100_000, 3), SYNCS, 2) > 5


@pytest.mark.parametrize("kind", ["sqlite", "files"])
async def test_a_read_that_fails_anywhere_harms_nothing(kind, tmp_path):
    stride = 31 if kind == "sqlite" else 101
    assert await strain_all(kind, tmp_path, range(1, 100_000, stride), READS, 1) > 3


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["sqlite", "files"])
@pytest.mark.parametrize("times", [1, 2, 4])
async def test_every_write_fails_once(kind, tmp_path, times):
    assert await strain_all(kind, tmp_path, range(1, 100_000), WRITES, times) > 50


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["sqlite", "files"])
async def test_every_read_fails_once(kind, tmp_path):
    assert await strain_all(kind, tmp_path, range(1, 100_000), READS, 1) > 50
