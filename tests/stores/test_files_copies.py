"""Importing: it mends what is damaged, and never brings back what was erased."""

import pytest
import pytest_asyncio

from holdfast.core import facts
from holdfast.core.errors import Corruption, ImportConflict, LeaseHeld, PayloadNotFound
from holdfast.core.payloads import manifest, slot, to_record
from holdfast.stores.files.store import FilesSessionStore
from holdfast.stores.memory.store import MemorySessionStore
from holdfast.stores.port import InboxDraft
from holdfast.stores.portable import export_sessions, import_sessions
from holdfast.stores.verify import verify
from holdfast.testing.driver import Driver, all_events, drive, view

TINY = slot("a tiny secret", "message")
BIG = slot("a long story " * 200, "message")
PART = slot("a part " * 200, "chunk")


@pytest.fixture
def root(tmp_path):
    return tmp_path / "store"


@pytest_asyncio.fixture
async def store(root):
    store = await FilesSessionStore.open(root)
    yield store
    await store.close()


@pytest_asyncio.fixture(params=["files", "memory"])
async def two_stores(request, tmp_path):
    if request.param == "files":
        stores = [await FilesSessionStore.open(tmp_path / name) for name in ("here", "there")]
    else:
        stores = [MemorySessionStore(), MemorySessionStore()]
    yield stores
    for store in stores:
        await store.close()


def log_of(root):
    return root / "runs" / "s-1" / "events.jsonl"


async def exported(store, path):
    """Write a session with an asked-for message, a payload and a manifest, and export it."""
    driver = await drive(store)
    for number in range(4):
        await driver.say(f"message {number}")
    await store.put_inbox("s-1", InboxDraft("asked", "message", content=slot("hi", "message")))
    await driver.append(driver.message("hi"), consumes=["asked"])
    await driver.say(BIG)
    names = manifest({"x": to_record(PART)}, "vars")
    await driver.append(facts.VarsCheckpointed(vars=names), payloads=[PART])
    await export_sessions(store, ["s-1"], path)
    await store.release(driver.lease)
    return driver


@pytest.mark.parametrize("how", ["missing", "damaged"])
async def test_importing_the_same_log_puts_lost_payloads_back(root, store, tmp_path, how):
    await exported(store, tmp_path / "export")
    for path in (root / "payloads").rglob("*.zst"):
        path.unlink() if how == "missing" else path.write_bytes(b"no payload")
    assert not (await verify(store, "s-1")).ok
    (done,) = await import_sessions(store, tmp_path / "export")
    assert (done.outcome, done.events) == ("unchanged", 0)
    assert (await verify(store, "s-1")).problems == ()
    assert await store.get_payload("s-1", BIG.id) == BIG.data
    assert await store.get_payload("s-1", PART.id) == PART.data


@pytest.mark.parametrize("lines", [[2], [4], [7], [4, 5, 8], [9]], ids=str)
@pytest.mark.parametrize("snapshot", [True, False], ids=["with run.json", "without"])
async def test_importing_the_same_log_mends_damaged_lines(root, store, tmp_path, lines, snapshot):
    driver = await exported(store, tmp_path / "export")
    wanted = await view(store, "s-1")
    await store.close()
    if not snapshot:
        (log_of(root).parent / "run.json").unlink()
    text = log_of(root).read_bytes().splitlines(keepends=True)
    for number in lines:
        text[number - 1] = text[number - 1].replace(b'"type":', b'"tipe":')
    log_of(root).write_bytes(b"".join(text))
    again = await FilesSessionStore.open(root)
    assert not (await verify(again, "s-1")).ok
    await import_sessions(again, tmp_path / "export")
    assert (await verify(again, "s-1")).problems == ()
    assert await view(again, "s-1") == wanted
    assert await again.list_inbox("s-1") == [], "what was consumed is not asked again"
    driven = Driver(again, await again.acquire("s-1"), await again.load_state("s-1"))
    assert (await driven.say("goes on")).seq == driver.state.seq + 1
    await again.close()


async def test_a_copy_that_is_too_short_or_another_does_not_mend(root, store, tmp_path):
    driver = await drive(store)
    await driver.say("one")
    await export_sessions(store, ["s-1"], tmp_path / "short")
    await driver.say("two")
    await store.release(driver.lease)
    elsewhere = MemorySessionStore()
    other = await drive(elsewhere)
    for text in ("another one", "another two", "another three"):
        await other.say(text)
    await export_sessions(elsewhere, ["s-1"], tmp_path / "other")
    lines = log_of(root).read_bytes().splitlines(keepends=True)
    log_of(root).write_bytes(b"".join(lines[:-1]) + lines[-1].replace(b"two", b"tvo"))
    damaged = log_of(root).read_bytes()
    again = await FilesSessionStore.open(root)
    with pytest.raises(Corruption, match="line 4"):
        await import_sessions(again, tmp_path / "short")
    with pytest.raises(ImportConflict):
        await import_sessions(again, tmp_path / "other")
    assert log_of(root).read_bytes() == damaged
    await again.close()


async def test_a_log_is_not_mended_under_a_live_driver(root, store, tmp_path):
    await exported(store, tmp_path / "export")
    await store.acquire("s-1")
    lines = log_of(root).read_bytes().splitlines(keepends=True)
    log_of(root).write_bytes(b"".join([*lines[:3], b"garbage\n", *lines[4:]]))
    with pytest.raises(LeaseHeld):
        await import_sessions(store, tmp_path / "export")


@pytest.mark.parametrize("lines", [[], [3]], ids=["whole", "damaged"])
async def test_mending_brings_no_erased_value_back(root, store, tmp_path, lines):
    driver = await drive(store)
    await driver.say(TINY)
    await driver.say(BIG)
    names = manifest({"x": to_record(PART)}, "vars")
    await driver.append(facts.VarsCheckpointed(vars=names), payloads=[PART])
    await export_sessions(store, ["s-1"], tmp_path / "export")
    await store.release(driver.lease)
    for item in (TINY, BIG, PART):
        await store.erase("s-1", item.id, "asked")
    text = log_of(root).read_bytes().splitlines(keepends=True)
    for number in lines:
        text[number - 1] = b"garbage\n"
    log_of(root).write_bytes(b"".join(text))
    await store.close()
    again = await FilesSessionStore.open(root)
    await import_sessions(again, tmp_path / "export")
    report = await verify(again, "s-1")
    assert (report.problems, report.erased) == ((), 3)
    assert TINY.data not in log_of(root).read_bytes()
    assert len(list((root / "payloads").rglob("*.zst"))) == 1, "only the manifest is there"
    await again.close()


@pytest.mark.parametrize("item", [TINY, BIG], ids=["inline", "payload"])
async def test_a_longer_copy_does_not_bring_an_erased_value_back(two_stores, tmp_path, item):
    here, there = two_stores
    driver = await drive(there)
    await driver.say(item)
    await export_sessions(there, ["s-1"], tmp_path / "short")
    await driver.say(item)
    names = manifest({"x": to_record(BIG)}, "vars")
    await driver.append(facts.VarsCheckpointed(vars=names), payloads=[BIG])
    await export_sessions(there, ["s-1"], tmp_path / "long")
    await import_sessions(here, tmp_path / "short")
    await here.erase("s-1", item.id, "asked-here")
    (done,) = await import_sessions(here, tmp_path / "long")
    assert (done.outcome, done.events) == ("forwarded", 2)
    report = await verify(here, "s-1")
    assert (report.problems, report.erased) == ((), 1)
    assert (await here.erased("s-1"))[item.id][1] == "asked-here"
    events = await all_events(here, "s-1")
    assert (item.data or b"").decode() not in str([event.data for event in events])
    assert await here.erase("s-1", item.id, "asked") == 0
    if item is BIG:
        with pytest.raises(PayloadNotFound):
            await here.get_payload("s-1", BIG.id)


@pytest.mark.parametrize("item", [TINY, BIG], ids=["inline", "payload"])
async def test_what_the_original_said_again_after_an_erasure_travels(two_stores, tmp_path, item):
    here, there = two_stores
    driver = await drive(there)
    await driver.say(item)
    await there.erase("s-1", item.id, "asked")
    await driver.say(item)
    await export_sessions(there, ["s-1"], tmp_path / "export")
    await import_sessions(here, tmp_path / "export")
    assert await all_events(here, "s-1") == await all_events(there, "s-1")
    assert (await verify(here, "s-1")).problems == ()
    if item is BIG:
        assert await here.get_payload("s-1", BIG.id) == BIG.data
        assert (await here.gc(grace_seconds=0)).payloads == 0
