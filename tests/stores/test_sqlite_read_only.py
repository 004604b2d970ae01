"""A SQLite store that this user may not write: looking works, writing says why it does not."""

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import apsw
import pytest

from holdfast.core.facts import SessionStarted
from holdfast.stores.sqlite.store import SqliteSessionStore
from holdfast.testing.driver import drive

FORMATS = sorted(Path(__file__).parent.glob("formats/*.sql"))
SECONDS = 60

# Answers each line with what it sees. Permissions do not bind root, so it becomes another user,
# once all is loaded that he might not be allowed to read.
LOOKER = """
import asyncio, json, os, sys, urllib.parse
from pathlib import Path
from holdfast.core.errors import HoldfastError
from holdfast.core.facts import SessionStarted
from holdfast.core.payloads import slot
from holdfast.stores.choose import open_store
from holdfast.stores.port import InboxDraft
import holdfast.stores.sqlite.store
from holdfast.stores.verify import verify

async def seen(store):
    page = await store.list_sessions()
    return {
        "sessions": {info.id: info.seq for info in page.sessions},
        "events": len(await store.read_events("s-1")),
        "problems": [p.message for p in (await verify(store, "s-1")).problems],
    }

async def refused(work):
    try:
        await work
    except HoldfastError as error:
        return [error.code, str(error)]

async def writes(store, item=slot("z" * 100_000, "message")):
    return [
        await refused(store.create_session("s-2", SessionStarted())),
        await refused(store.create_session("s-2", SessionStarted(), payloads=[item])),
        await refused(store.acquire("s-1")),
        await refused(store.put_inbox("s-1", InboxDraft("key", "message"))),
        await refused(store.put_payload("s-1", item)),
        await refused(store.erase("s-1", item.id, "rule")),
        await refused(store.delete("s-1")),
        await refused(store.gc(grace_seconds=0)),
    ]

async def main():
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    try:
        store = await open_store(sys.argv[1], create=False)
    except HoldfastError as error:
        print(json.dumps([error.code, str(error)]))
        return
    for line in sys.stdin:
        answer = await {"seen": seen, "writes": writes}[line.strip()](store)
        print(json.dumps(answer), flush=True)
    await store.close()

asyncio.run(main())
"""


class Place:
    """A folder whose store can be closed to writers, and another user's look at it."""

    def __init__(self, root):
        self.store = root / "store"
        self.root = root

    def lock(self):
        for path in [*self.store.rglob("*"), self.store]:
            path.chmod(0o555 if path.is_dir() else 0o444)

    def unlock(self):
        self.store.chmod(0o755)
        for path in self.store.rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)

    def look(self):
        pipe = subprocess.PIPE
        command = [sys.executable, "-c", LOOKER, str(self.store)]
        return Look(subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True))

    def names(self):
        return sorted(str(path.relative_to(self.store)) for path in self.store.rglob("*"))


class Look:
    """A process that looks."""

    def __init__(self, process):
        self._process = process

    def ask(self, question):
        """Return what it answers."""
        self._process.stdin.write(question + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def end(self):
        """Return the rest of what it says."""
        rest, _ = self._process.communicate(timeout=SECONDS)
        assert self._process.returncode == 0
        return rest


@pytest.fixture
def place():
    # Not in pytest's own folder, which nobody but its owner may enter.
    root = Path(tempfile.mkdtemp(prefix="holdfast-"))
    root.chmod(0o755)
    made = Place(root)
    yield made
    made.unlock()
    shutil.rmtree(root)


async def begun(place):
    """Return a driver of a session with one turn in it, on an open store."""
    driver = await drive(await SqliteSessionStore.open(place.store), "s-1", SessionStarted())
    await driver.turn("hello " * 20_000)
    return driver


async def test_a_closed_store_can_be_looked_at(place):
    driver = await begun(place)
    await driver.store.close()
    place.lock()
    before = place.names()
    look = place.look()
    seen = {"sessions": {"s-1": driver.state.seq}, "events": driver.state.seq, "problems": []}
    assert look.ask("seen") == seen
    for code, message in look.ask("writes"):
        assert code == "nothing_written"
        assert str(place.store / "events.db") in message
        assert "read-only here" in message
        assert "copy the folder" in message
    assert look.ask("seen") == seen
    assert look.end() == ""
    assert place.names() == before


@pytest.mark.parametrize("dump", FORMATS, ids=lambda dump: dump.stem)
async def test_a_store_of_an_older_format_can_be_looked_at(place, dump):
    place.store.mkdir()
    connection = apsw.Connection(str(place.store / "events.db"))
    connection.execute(dump.read_text(encoding="utf-8"))
    connection.execute("UPDATE sessions SET id = 's-1' WHERE id = 'first'")
    connection.close()
    place.lock()
    before = {path: path.read_bytes() for path in place.store.rglob("*")}
    look = place.look()
    for _ in range(2):
        seen = look.ask("seen")
        assert seen["sessions"] == {"s-1": 2, "second": 2}
        assert seen["events"] == 2
    assert {code for code, _ in look.ask("writes")} == {"nothing_written"}
    assert look.end() == ""
    assert {path: path.read_bytes() for path in place.store.rglob("*")} == before


async def test_a_look_sees_what_others_write_meanwhile(place):
    driver = await begun(place)
    place.lock()
    look = place.look()
    assert look.ask("seen")["events"] == driver.state.seq
    await driver.turn("more")
    assert look.ask("seen")["events"] == driver.state.seq
    place.unlock()
    await driver.turn("and more")
    await driver.store.close()
    place.lock()
    assert look.ask("seen") == {
        "sessions": {"s-1": driver.state.seq},
        "events": driver.state.seq,
        "problems": [],
    }
    place.unlock()
    again = await SqliteSessionStore.open(place.store)
    await again.create_session("s-2", SessionStarted())
    place.lock()
    assert look.ask("seen")["sessions"].keys() == {"s-1", "s-2"}
    place.unlock()
    await again.close()
    assert look.ask("seen")["sessions"].keys() == {"s-1", "s-2"}
    assert look.end() == ""


async def test_what_a_killed_writer_left_is_seen(place):
    driver = await begun(place)
    left = place.root / "left"
    shutil.copytree(place.store, left)  # as if it ended here
    await driver.store.close()
    shutil.rmtree(place.store)
    left.rename(place.store)
    place.lock()
    before = place.names()
    look = place.look()
    assert look.ask("seen")["events"] == driver.state.seq
    assert look.ask("writes")[0][0] == "nothing_written"
    assert look.end() == ""
    assert place.names() == before


async def test_a_log_that_cannot_be_read_without_writing_is_refused(place):
    driver = await begun(place)
    left = place.root / "left"
    shutil.copytree(place.store, left)
    await driver.store.close()
    shutil.rmtree(place.store)
    left.rename(place.store)
    (place.store / "events.db-shm").unlink()
    place.lock()
    code, message = json.loads(place.look().end())
    assert code == "store_failed"
    assert str(place.store / "events.db") in message
    assert "copy the folder" in message


@pytest.mark.parametrize("name", [".", "events.db"])
async def test_what_may_not_even_be_read_is_refused(place, name):
    driver = await begun(place)
    await driver.store.close()
    place.lock()
    (place.store / name).chmod(0o000)
    code, message = json.loads(place.look().end())
    assert code == "store_failed"
    assert str(place.store / "events.db") in message
    assert "ask its owner" in message
