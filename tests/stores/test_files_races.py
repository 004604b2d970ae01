"""Reads of the files store beside an erasure of another handle, at the worst of moments."""

import asyncio
import errno
import threading

import pytest

from holdfast.blobs.disk import Disk
from holdfast.core.errors import InboxConsumed
from holdfast.core.facts import SessionStarted
from holdfast.core.payloads import slot
from holdfast.stores.files.store import FilesSessionStore
from holdfast.stores.port import InboxDraft
from holdfast.testing.driver import Driver, drive


class AfterStat(Disk):
    """Does something once, after the n-th look at the size of a file."""

    def __init__(self, name):
        self._name, self.count, self.then = name, 0, None

    def stat(self, path):
        found = super().stat(path)
        if self.then is not None and path.name == self._name:
            self.count -= 1
            if self.count == 0:
                then, self.then = self.then, None
                then()
        return found


async def handles(place, disk):
    writer = await FilesSessionStore.open(place)
    return writer, await FilesSessionStore.open(place, disk=disk)


def erasing(store, text):
    """Return what erases a text from another thread than the event loop's."""
    loop = asyncio.get_running_loop()

    def erase():
        erasure = store.erase("s-1", slot(text, "message").id, "privacy")
        asyncio.run_coroutine_threadsafe(erasure, loop).result(10)

    return erase


@pytest.mark.parametrize("nth", [1, 2, 3])
@pytest.mark.parametrize("what", ["read_events", "load_state", "session_info"])
async def test_a_read_that_an_erasure_overtakes_comes_whole(tmp_path, what, nth):
    disk = AfterStat("events.jsonl")
    writer, reader = await handles(tmp_path, disk)
    driver = await drive(writer)
    for text in ("abc", "second", "third"):
        await driver.say(text)
    (tmp_path / "runs" / "s-1" / "run.json").unlink()  # derived; without it the log is read
    disk.count, disk.then = nth, erasing(writer, "abc")
    found = await getattr(reader, what)("s-1")
    assert (found[-1] if what == "read_events" else found).seq == 4
    await driver.say("more")
    assert (await reader.load_state("s-1")).seq == 5
    assert [event.seq for event in await reader.read_events("s-1")] == [1, 2, 3, 4, 5]
    await writer.close()
    await reader.close()


class Meeting:
    """An erasure that is about to replace an inbox, and a reader that has looked at its size."""

    def __init__(self):
        self.begun, self.looked, self.replaced = (threading.Event() for _ in range(3))


class Replacing(Disk):
    def __init__(self, meeting):
        self._meeting = meeting

    def replace(self, path, data):
        if path.name == "inbox.jsonl":
            self._meeting.begun.set()
            self._meeting.looked.wait(10)
        super().replace(path, data)
        if path.name == "inbox.jsonl":
            self._meeting.replaced.set()


class Looking(Disk):
    def __init__(self, meeting):
        self._meeting = meeting

    def read(self, path, offset=0, length=None):
        meeting = self._meeting
        if meeting.begun.is_set() and path.name == "inbox.jsonl" and not meeting.looked.is_set():
            meeting.looked.set()
            meeting.replaced.wait(10)
        return super().read(path, offset, length)


async def test_an_item_is_consumed_once_though_the_inbox_is_replaced_while_it_is_read(tmp_path):
    meeting = Meeting()
    writer = await FilesSessionStore.open(tmp_path, disk=Replacing(meeting))
    reader = await FilesSessionStore.open(tmp_path, disk=Looking(meeting))
    driver = await drive(writer)
    for key in ("k1", "k2"):
        content = slot(f"hi {key}", "message")
        await writer.put_inbox("s-1", InboxDraft(key, "message", content=content))
    await driver.append(driver.message("took both"), consumes=["k1", "k2"])
    await writer.release(driver.lease)
    erasure = asyncio.ensure_future(writer.erase("s-1", slot("hi k1", "message").id, "privacy"))
    await asyncio.to_thread(meeting.begun.wait, 10)
    await reader.load_state("s-1")
    await erasure
    assert meeting.replaced.is_set()
    assert await reader.list_inbox("s-1") == []
    other = Driver(reader, await reader.acquire("s-1"), await reader.load_state("s-1"))
    with pytest.raises(InboxConsumed):
        await other.append(other.message("again"), consumes=["k2"])
    await writer.close()
    await reader.close()


class FailsOnce(Disk):
    """Fails to read a log once, where the feed polls."""

    armed = False

    def read(self, path, offset=0, length=None):
        polls = threading.current_thread().name == "holdfast-feed"
        if self.armed and polls and path.name == "events.jsonl":
            self.armed = False
            raise OSError(errno.EMFILE, "too many open files")
        return super().read(path, offset, length)


async def test_a_read_that_fails_once_costs_a_subscriber_no_event(tmp_path):
    disk = FailsOnce()
    writer, reader = await handles(tmp_path, disk)
    driver = await drive(writer)
    following = reader.subscribe("s-1")
    assert (await anext(following)).seq == 1
    await driver.say("one")
    assert (await anext(following)).seq == 2
    disk.armed = True
    await driver.say("two")
    assert (await asyncio.wait_for(anext(following), 20)).seq == 3
    assert not disk.armed
    await writer.close()
    await reader.close()


class Listing(Disk):
    """Waits in the middle of a listing of the sessions, if it is asked to."""

    def __init__(self):
        self.entered, self.go = threading.Event(), threading.Event()
        self.waits = False

    def names(self, path):
        found = super().names(path)
        if self.waits and path.name == "runs":
            self.waits = False
            self.entered.set()
            self.go.wait(10)
        return found


async def test_a_second_subscriber_takes_no_session_from_the_first(tmp_path):
    disk = Listing()
    writer, reader = await handles(tmp_path, disk)
    first = reader.subscribe_all()
    disk.waits = True
    await asyncio.to_thread(disk.entered.wait, 10)
    await writer.create_session("s-new", SessionStarted())  # the listing is without it
    await asyncio.sleep(0.25)  # so that it is older than the second one
    second = reader.subscribe_all()
    disk.go.set()
    assert (await asyncio.wait_for(anext(first), 20)).session == "s-new"
    second.close()
    await writer.close()
    await reader.close()
