"""Payloads of the SQLite store: rows, blob files, gc and erasure, whoever comes in between."""

import asyncio
import os
from dataclasses import replace

import apsw
import pytest

from holdfast.blobs.disk import Disk
from holdfast.core import facts
from holdfast.core.errors import (
    Corruption,
    InboxConflict,
    InvalidRef,
    NothingWritten,
    OutcomeUnknown,
    PayloadNotFound,
)
from holdfast.core.payloads import manifest, slot, to_record
from holdfast.core.replay import Copy
from holdfast.stores.port import ROW_PAYLOAD_BYTES, InboxDraft
from holdfast.stores.sqlite.store import SqliteSessionStore
from holdfast.stores.verify import verify

LARGE = slot("a large value " * 20_000, "message")


def message(number, content="hello"):
    item = slot(content, "message") if isinstance(content, str) else content
    return facts.MessageAppended(message=number, role="user", content=item)


async def start(store, session_id="talk"):
    state = await store.create_session(session_id, facts.SessionStarted())
    return await store.acquire(session_id), state


@pytest.fixture
async def store(tmp_path):
    store = await SqliteSessionStore.open(tmp_path)
    yield store
    await store.close()


@pytest.mark.parametrize(
    ("sizes", "files"),
    [
        ([ROW_PAYLOAD_BYTES], 0),
        ([ROW_PAYLOAD_BYTES + 1], 1),
        ([900, ROW_PAYLOAD_BYTES], 0),
        ([900, ROW_PAYLOAD_BYTES + 1], 1),
        ([ROW_PAYLOAD_BYTES] * 6, 0),
    ],
)
async def test_only_large_values_are_files(store, sizes, files):
    lease, _ = await start(store)
    texts = [f"{n}" * size for n, size in enumerate(sizes)]
    new = [message(n, text) for n, text in enumerate(texts, 1)]
    await store.append(lease, 1, new)
    assert len(list(store._path.glob("blobs/*/*/*"))) == files
    for fact, text in zip(new, texts, strict=True):
        assert await store.get_payload("talk", fact.content.id) == text.encode()
    assert (await verify(store, "talk")).ok


class SweepingDisk(Disk):
    """A disk on which gc takes each new blob a few times, right after it was stored."""

    def __init__(self, times):
        self.times = times

    def replace(self, path, data):
        super().replace(path, data)
        if self.times:
            self.times -= 1
            self.unlink(path)


async def test_an_append_stores_a_blob_again_that_gc_took_before_the_transaction(tmp_path):
    store = await SqliteSessionStore.open(tmp_path, disk=SweepingDisk(times=3))
    lease, state = await start(store)
    await store.append(lease, state.seq, [message(1, LARGE)])
    assert await store.get_payload("talk", LARGE.id) == LARGE.data
    assert (await verify(store, "talk")).ok
    await store.close()


async def test_a_blob_that_is_always_taken_is_given_up_with_nothing_written(tmp_path):
    store = await SqliteSessionStore.open(tmp_path, disk=SweepingDisk(times=10_000))
    lease, state = await start(store)
    with pytest.raises(NothingWritten, match="grace"):
        await store.append(lease, state.seq, [message(1, LARGE)])
    assert await store.load_state("talk") == state
    await store.close()


@pytest.mark.parametrize("item", [LARGE, slot("small " * 200, "message")], ids=["blob", "row"])
async def test_a_put_that_gc_took_needs_its_bytes_again(store, item):
    lease, state = await start(store)
    bare = await store.put_payload("talk", item)
    report = await store.gc(grace_seconds=0)
    assert report.ids == (item.id,)
    with pytest.raises(InvalidRef):
        await store.append(lease, state.seq, [message(1, bare)])
    await store.append(lease, state.seq, [message(1, item)])
    assert (await verify(store, "talk")).ok


@pytest.mark.parametrize("item", [LARGE, slot("small " * 200, "message")], ids=["blob", "row"])
async def test_a_put_that_hits_an_orphan_makes_it_young_again(store, item):
    await start(store)
    await store.put_payload("talk", item)
    old = apsw.Connection(str(store._path / "events.db"))
    old.execute("UPDATE payloads SET at = 0")
    old.close()
    for path in store._path.glob("blobs/*/*/*"):
        os.utime(path, (0, 0))
    assert (await store.gc(dry_run=True)).ids == (item.id,)
    await store.put_payload("talk", item)
    assert (await store.gc()).ids == ()
    assert await store.get_payload("talk", item.id) == item.data


async def test_gc_takes_files_without_rows_once_they_are_old(store):
    lease, state = await start(store)
    await store.append(lease, state.seq, [message(1, LARGE)])
    (kept,) = store._path.glob("blobs/*/*/*")
    stray = kept.parent.with_name("ff") / ("f" * 64 + ".zst")
    stray.parent.mkdir()
    stray.write_bytes(kept.read_bytes())
    part = kept.with_name("half.1-2.tmp")
    part.write_bytes(b"half")
    assert (await store.gc()).payloads == 0
    for path in (kept, stray, part):
        os.utime(path, (0, 0))
    assert (await store.gc(dry_run=True)).ids == ("sha256:" + "f" * 64,)
    assert stray.exists()
    report = await store.gc()
    assert (report.payloads, report.kept) == (1, 1)
    assert list(store._path.glob("blobs/*/*/*")) == [kept]


async def test_gc_never_takes_a_file_whose_row_came_back(store):
    lease, state = await start(store)
    await store.put_payload("talk", LARGE)
    # The rows go, then the same value is stored again before the files are swept.
    sweep = store._sweep
    again = [message(1, LARGE)]

    async def late(blobs):
        if again:
            await store.append(lease, state.seq, [again.pop()])
        await sweep(blobs)

    store._sweep = late
    await store.gc(grace_seconds=0)
    store._sweep = sweep
    assert await store.get_payload("talk", LARGE.id) == LARGE.data
    assert (await verify(store, "talk")).ok


@pytest.mark.parametrize("item", [LARGE, slot("small " * 200, "message")], ids=["blob", "row"])
async def test_gc_takes_nothing_that_is_in_use_whatever_its_ref_says(store, item):
    lease, state = await start(store)
    part = slot("part " * 500, "chunk")
    names = manifest({"part": to_record(part)}, "vars")
    waiting = slot("waiting " * 500, "message")
    await store.put_inbox("talk", InboxDraft("first", "message", content=waiting))
    new = [message(1, item), facts.VarsCheckpointed(vars=names)]
    state = (await store.append(lease, state.seq, new, payloads=[part])).state
    await store.put_payload("talk", slot("unused " * 500, "message"))
    await start(store, "other")
    await store.put_payload("other", item)
    other = apsw.Connection(str(store._path / "events.db"))
    other.execute("UPDATE payloads SET used = 0; UPDATE refs SET used = 0")
    unused = (slot("unused " * 500, "message").id,)
    assert (await store.gc(dry_run=True, grace_seconds=0)).ids == unused
    assert (await store.gc(grace_seconds=0)).ids == unused
    assert (await verify(store, "talk")).ok
    for kept in (item, part, names, waiting):
        assert await store.get_payload("talk", kept.id) == kept.data
    with pytest.raises(InvalidRef):
        await store.get_payload("other", item.id)
    # Where a manifest cannot be read, nobody can tell what it leads to.
    other.execute("DELETE FROM payloads WHERE id = ?", (bytes.fromhex(names.id[7:]),))
    other.close()
    assert (await store.gc(grace_seconds=0)).ids == ()


@pytest.mark.parametrize("content", ["tiny", "large " * 500])
async def test_asking_the_same_again_is_known_after_its_content_was_erased(store, content):
    await start(store)
    item = slot(content, "message")
    draft = InboxDraft("first", "answer", "call-1", item)
    asked = await store.put_inbox("talk", draft)
    await store.erase("talk", item.id, "rule")
    again = await store.put_inbox("talk", draft)
    assert (again.key, again.at, again.content) == (asked.key, asked.at, None)
    with pytest.raises(InboxConflict):
        await store.put_inbox("talk", replace(draft, content=slot("another", "message")))
    assert await store.list_inbox("talk") == [again]


class ErasingDisk(Disk):
    """A disk on which another process erases a value just before its file is read."""

    def __init__(self, place):
        self.place = place

    def read(self, path, offset=0, length=None):
        if path.exists():
            other = apsw.Connection(str(self.place / "events.db"))
            other.execute("DELETE FROM refs; DELETE FROM payloads")
            mark = (bytes.fromhex(LARGE.id[7:]),)
            other.execute("INSERT INTO erasures SELECT key, ?, 'then', 'rule' FROM sessions", mark)
            other.close()
            path.unlink()
        return super().read(path, offset, length)


async def test_a_value_erased_while_it_is_read_is_erased_and_not_missing(tmp_path):
    store = await SqliteSessionStore.open(tmp_path, disk=ErasingDisk(tmp_path))
    lease, state = await start(store)
    await store.append(lease, state.seq, [message(1, LARGE)])
    with pytest.raises(PayloadNotFound) as found:
        await store.get_payload("talk", LARGE.id)
    assert found.value.details["rule"] == "rule"
    await store.close()


async def test_importing_an_older_copy_does_not_bring_an_erased_blob_back(store):
    lease, state = await start(store)
    await store.append(lease, state.seq, [message(1, LARGE)])
    events = await store.read_events("talk")
    await store.erase("talk", LARGE.id, "rule")
    done = await store.import_log(Copy("talk", events, {LARGE.id: LARGE.data}))
    assert done.outcome == "unchanged"
    assert not list(store._path.glob("blobs/*/*/*"))
    with pytest.raises(PayloadNotFound):
        await store.get_payload("talk", LARGE.id)


@pytest.mark.parametrize("item", [LARGE, slot("small " * 200, "message")], ids=["blob", "row"])
async def test_importing_a_good_copy_heals_a_damaged_payload(store, item):
    lease, state = await start(store)
    await store.append(lease, state.seq, [message(1, item)])
    events = await store.read_events("talk")
    other = apsw.Connection(str(store._path / "events.db"))
    other.execute("UPDATE payloads SET data = zeroblob(size) WHERE data IS NOT NULL")
    other.close()
    for path in store._path.glob("blobs/*/*/*"):
        path.write_bytes(b"damaged")
    with pytest.raises(Corruption):
        await store.get_payload("talk", item.id)
    await store.import_log(Copy("talk", events, {item.id: item.data}))
    assert await store.get_payload("talk", item.id) == item.data


async def test_an_erasure_beside_a_long_reader_succeeds_and_says_what_is_left(store, caplog):
    lease, state = await start(store)
    secret = slot("an inline secret", "message")
    await store.append(lease, state.seq, [message(1, secret)])
    reader = apsw.Connection(str(store._path / "events.db"))
    reader.execute("BEGIN; SELECT count(*) FROM events").fetchall()
    assert await store.erase("talk", secret.id, "rule") == 1
    assert "not emptied yet" in caplog.text
    reader.close()
    await store.close()
    assert not any(b"an inline secret" in p.read_bytes() for p in store._path.glob("events.db*"))


async def test_gc_forgets_owners_that_are_dead_and_hold_nothing(store):
    await start(store)
    other = apsw.Connection(str(store._path / "events.db"))
    other.execute("INSERT INTO owners SELECT 'o-dead', host, boot, namespace, pid, 'x', 0, 0, 1"
                  " FROM owners")  # fmt: skip
    await store.gc()
    assert other.execute("SELECT id FROM owners").fetchall() == [(store.owner,)]
    other.close()


async def test_an_erasure_that_is_cancelled_takes_the_bytes_all_the_same(tmp_path):
    store = await SqliteSessionStore.open(tmp_path)
    lease, _ = await start(store)
    await store.append(lease, 1, [message(1, LARGE)])
    erasing = asyncio.ensure_future(store.erase("talk", LARGE.id, "privacy"))
    await asyncio.sleep(0)
    erasing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await erasing
    assert LARGE.id in await store.erased("talk")
    assert not list(tmp_path.rglob("*.zst"))
    await store.close()


async def test_an_erasure_that_could_not_take_the_bytes_says_so_and_can_be_repeated(tmp_path):
    class Stubborn(Disk):
        stubborn = True

        def unlink(self, path):
            if self.stubborn and path.name.endswith(".zst"):
                raise OSError(5, "Input/output error")
            super().unlink(path)

    disk = Stubborn()
    store = await SqliteSessionStore.open(tmp_path, disk=disk)
    lease, _ = await start(store)
    await store.append(lease, 1, [message(1, LARGE)])
    with pytest.raises(OutcomeUnknown, match="was erased"):
        await store.erase("talk", LARGE.id, "privacy")
    disk.stubborn = False
    assert await store.erase("talk", LARGE.id, "privacy") == 0
    assert not list(tmp_path.rglob("*.zst"))
    await store.close()
