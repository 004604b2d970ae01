"""A disk that fails: the error says what became of the write, and memory equals what is stored."""

import asyncio
import errno
import os
from contextlib import suppress

import pytest

from holdfast.blobs.disk import Disk
from holdfast.core.errors import (
    HoldfastError,
    LeaseHeld,
    NothingWritten,
    OutcomeUnknown,
    SessionDeleted,
    SessionNotFound,
    StoreFailed,
)
from holdfast.core.facts import SessionStarted
from holdfast.core.payloads import slot
from holdfast.stores.files.store import FilesSessionStore
from holdfast.stores.port import InboxDraft
from holdfast.stores.verify import verify
from holdfast.testing.driver import Driver, drive, view

BIG = slot("a long story " * 200, "message")
STEPS = ("create", "append", "truncate", "sync", "sync_directory", "rename", "make_directory")
READS = ("read", "stat", "names", "unlink", "touch", "remove_directory")


class FailingDisk(Disk):
    """A disk whose n-th step fails, once or from then on; a failing write leaves half its bytes.

    Syncing is only counted: nothing here depends on a power cut, and the real thing is slow.
    """

    def __init__(self):
        self.left = None
        self.lasting = False
        self.only = STEPS + READS

    def fail(self, step, *, lasting=False, only=STEPS + READS):
        self.left, self.lasting, self.only = step, lasting, only

    def heal(self):
        done, self.left = self.left is not None and self.left <= 0, None
        return done

    def _step(self, name, path):
        if self.left is None or name not in self.only:
            return
        self.left -= 1
        if self.left == 0 or (self.left < 0 and self.lasting):
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    def sync(self, path):
        self._step("sync", path)

    def sync_directory(self, path):
        self._step("sync_directory", path)

    def append(self, path, data):
        try:
            self._step("append", path)
        except OSError:
            super().append(path, data[: len(data) // 2])
            raise
        super().append(path, data)


def _failing(name):
    whole = getattr(Disk, name)

    def step(self, path, *rest):
        self._step(name, path)
        return whole(self, path, *rest)

    return step


for _name in (*STEPS, *READS):
    if _name not in vars(FailingDisk):
        setattr(FailingDisk, _name, _failing(_name))


async def do_append(store, driver):
    await store.append(driver.lease, driver.state.seq, [driver.message(BIG)], consumes=["m-1"])


async def do_small_append(store, driver):
    await store.append(driver.lease, driver.state.seq, [driver.message("small")])


async def do_inbox(store, driver):
    await store.put_inbox("s-1", InboxDraft("m-2", "message", content=BIG))


async def do_payload(store, driver):
    await store.put_payload("s-1", BIG)


async def do_erase(store, driver):
    await store.erase("s-1", slot("hello", "message").id, "asked")


async def do_create(store, driver):
    await store.create_session("s-2", SessionStarted())


async def do_acquire(store, driver):
    await store.release(driver.lease)
    await store.acquire("s-1")


async def do_delete(store, driver):
    await store.release(driver.lease)
    await store.delete("s-1")


async def do_reads(store, driver):
    await view(store, "s-1")
    await store.list_sessions()


WORK = [
    do_append,
    do_small_append,
    do_inbox,
    do_payload,
    do_erase,
    do_create,
    do_acquire,
    do_delete,
    do_reads,
]


NOT_SEEN = (do_payload, do_acquire, do_reads)


async def seen(store):
    """Return what a reader sees of the store, errors by their kind."""
    out = []
    for session_id in ("s-1", "s-2"):
        try:
            out.append(await view(store, session_id))
        except HoldfastError as error:
            out.append(error.code)
    return out


@pytest.mark.parametrize(
    ("work", "lasting"),
    [*((work, False) for work in WORK), (do_append, True), (do_erase, True)],
    ids=lambda part: getattr(part, "__name__", "from then on" if part else "once"),
)
async def test_whichever_step_fails_the_error_says_what_became_of_it(tmp_path, work, lasting):
    for step in range(1, 200):
        root = tmp_path / f"{step}"
        disk = FailingDisk()
        store = await FilesSessionStore.open(root, disk=disk)
        driver = await drive(store)
        await driver.say("hello")
        await store.put_inbox("s-1", InboxDraft("m-1", "message"))
        before = await seen(store)
        disk.fail(step, lasting=lasting)
        error = None
        try:
            await work(store, driver)
        except HoldfastError as caught:
            error = caught
        reached = disk.heal()
        after = await seen(store)
        other = await FilesSessionStore.open(root)
        assert after == await seen(other), f"step {step}: memory differs from the files"
        if isinstance(error, NothingWritten):
            assert after == before, f"step {step} said that nothing was written"
        elif error is None and work not in NOT_SEEN:
            assert after != before, f"step {step} said that it was written"
        kinds = (StoreFailed,) if work is do_reads else (NothingWritten, OutcomeUnknown)
        assert error is None or isinstance(error, kinds), f"step {step}"
        for session_id in ("s-1", "s-2"):
            with suppress(SessionNotFound, SessionDeleted):
                assert (await verify(other, session_id)).ok, f"step {step}"
        await goes_on(store, driver)
        await store.close()
        await other.close()
        if not reached:
            assert error is None
            assert step > 3
            return
    pytest.fail("the work never came to its end")


async def goes_on(store, driver):
    """Drive the session on, whoever holds its lease after the failure."""
    try:
        state = await store.load_state("s-1")
    except HoldfastError:
        return
    lease = driver.lease
    try:
        lease = await store.acquire("s-1")
    except LeaseHeld as held:
        if held.details["epoch"] != lease.epoch:
            return
    await Driver(store, lease, state).say("later work goes on")


async def test_a_failed_write_that_was_taken_back_wrote_nothing(tmp_path):
    disk = FailingDisk()
    store = await FilesSessionStore.open(tmp_path / "s", disk=disk)
    driver = await drive(store)
    log = tmp_path / "s" / "runs" / "s-1" / "events.jsonl"
    whole = log.read_bytes()
    disk.fail(1, only=("append",))
    with pytest.raises(NothingWritten):
        await driver.say("no room")
    disk.heal()
    assert log.read_bytes() == whole
    disk.fail(1, only=("append", "truncate"), lasting=True)
    with pytest.raises(OutcomeUnknown):
        await driver.say("no room and no way back")
    disk.heal()
    assert (await store.load_state("s-1")).seq == 1
    assert (await driver.say("room again")).seq == 2
    await store.close()


async def test_a_failed_sync_leaves_the_outcome_unknown(tmp_path):
    disk = FailingDisk()
    store = await FilesSessionStore.open(tmp_path / "s", disk=disk)
    driver = await drive(store)
    disk.fail(1, only=("sync",))
    with pytest.raises(OutcomeUnknown, match="read again"):
        await driver.say("perhaps")
    disk.heal()
    driver.state = await store.load_state("s-1")
    await driver.say("certainly")
    assert (await verify(store, "s-1")).ok
    await store.close()


async def test_an_append_that_was_submitted_ends_before_its_caller_hears_of_a_cancel(tmp_path):
    store = await FilesSessionStore.open(tmp_path / "s")
    driver = await drive(store)
    for turns in range(12):
        task = asyncio.ensure_future(
            store.append(driver.lease, driver.state.seq, [driver.message(f"{turns}")])
        )
        for _ in range(turns):
            await asyncio.sleep(0)
        if task.cancel():  # else it was over before the cancel came
            with pytest.raises(asyncio.CancelledError):
                await task
        before = driver.state.seq
        driver.state = await store.load_state("s-1")
        assert driver.state.seq in (before, before + 1)
        await asyncio.sleep(0.002)
        assert await store.load_state("s-1") == driver.state, "it was written after the fact"
    await store.close()


async def test_a_read_only_directory_can_be_read_and_says_why_it_cannot_be_written(tmp_path):
    if os.geteuid() == 0:
        disk: Disk = FailingDisk()
    else:
        disk = Disk()
    store = await FilesSessionStore.open(tmp_path / "s", disk=disk)
    driver = await drive(store)
    await driver.say("hello")
    if isinstance(disk, FailingDisk):
        disk.fail(1, lasting=True, only=STEPS)
    else:
        (tmp_path / "s" / "runs" / "s-1" / "events.jsonl").chmod(0o400)
    with pytest.raises(OutcomeUnknown if isinstance(disk, FailingDisk) else NothingWritten):
        await driver.say("no")
    assert (await store.load_state("s-1")).seq == 2
    if isinstance(disk, FailingDisk):
        disk.heal()
    await store.close()


@pytest.mark.parametrize("name", ["events.jsonl.", "inbox.jsonl."])
async def test_an_erasure_that_failed_midway_can_be_repeated_by_anyone(tmp_path, name):
    class Full(Disk):
        full = False

        def create(self, path, data):
            if self.full and path.name.startswith(name):
                raise OSError(28, "No space left on device")
            super().create(path, data)

    disk = Full()
    asked = slot("i" * 5000, "input")
    store = await FilesSessionStore.open(tmp_path, disk=disk)
    await store.create_session("s-1", SessionStarted())
    await store.put_inbox("s-1", InboxDraft("k", "message", content=asked))
    disk.full = True
    with pytest.raises(StoreFailed) as failed:
        await store.erase("s-1", asked.id, "privacy")
    held = (await store.list_inbox("s-1"))[0].content
    assert held == asked or not isinstance(failed.value, NothingWritten)
    await store.close()
    store = await FilesSessionStore.open(tmp_path)
    assert await store.erase("s-1", asked.id, "privacy") == 1
    assert asked.id in await store.erased("s-1")
    assert (await store.list_inbox("s-1"))[0].content is None
    assert not list(tmp_path.rglob("*.zst"))
    await store.close()


async def test_gc_needs_no_room_on_a_full_disk(tmp_path):
    class Full(Disk):
        full = False

        def create(self, path, data):
            if self.full:
                raise OSError(28, "No space left on device")
            super().create(path, data)

        append = create

    disk = Full()
    store = await FilesSessionStore.open(tmp_path)
    driver = await drive(store, "s-1")
    await driver.say(slot("nobody needs this " * 5000, "message"))
    await store.release(driver.lease)
    await store.delete("s-1")
    await store.close()
    disk.full = True
    store = await FilesSessionStore.open(tmp_path, disk=disk)
    assert (await store.gc(grace_seconds=0)).payloads == 1
    assert not list(tmp_path.rglob("*.zst"))
    await store.close()
