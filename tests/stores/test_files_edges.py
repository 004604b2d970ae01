"""Corners of the files store: copies that cannot be made, values that must be gone, other hands."""

import asyncio
from dataclasses import replace

import pytest
import pytest_asyncio

from holdfast.core.errors import PayloadNotFound, SessionDeleted
from holdfast.core.events import Event, chain_start, event_digest
from holdfast.core.facts import SessionStarted, VarsCheckpointed
from holdfast.core.payloads import manifest, slot, slot_of_bytes, to_record
from holdfast.core.replay import prove
from holdfast.core.run_facts import ArtifactWritten
from holdfast.stores.files import copies, writes
from holdfast.stores.files.lines import read_header
from holdfast.stores.files.store import FilesSessionStore
from holdfast.stores.port import InboxDraft
from holdfast.stores.verify import verify
from holdfast.testing.driver import drive

TINY = slot("a tiny secret", "message")
BIG = slot("a long story " * 200, "message")


@pytest.fixture
def root(tmp_path):
    return tmp_path / "store"


@pytest_asyncio.fixture
async def store(root):
    store = await FilesSessionStore.open(root)
    yield store
    await store.close()


def newer_log():
    """Return a log with an artifact as only a newer release can read it."""
    events, previous, at = [], chain_start("s-1"), "2026-01-01T00:00:00.000000Z"
    for seq, (kind, version, data) in enumerate(
        [("session.started", 1, {}), ("artifact.written", 2, {"shape": "new"})], 1
    ):
        previous = event_digest(previous, seq, kind, version, at, data)
        events.append(Event("s-1", seq, kind, version, at, data, previous))
    return events


async def test_an_artifact_of_a_newer_release_is_imported_and_has_no_copy(root, store, caplog):
    assert (await store.import_log(prove("s-1", newer_log()))).outcome == "created"
    assert (root / "runs" / "s-1" / "run.json").exists()
    assert not (root / "runs" / "s-1" / "artifacts").exists()
    assert caplog.text == "", "it is no failure"


async def test_text_that_is_no_text_is_shown_as_bytes(root, store):
    driver = await drive(store)
    odd = slot_of_bytes("text", b"\xff" * 600, "artifact")
    await driver.append(ArtifactWritten(node="odd", version=0, data=odd))
    await driver.append(ArtifactWritten(node="even", version=0, data=slot("fine", "artifact")))
    await store.release(driver.lease)
    folder = root / "runs" / "s-1"
    assert '"base64"' in (folder / "artifacts" / "odd" / "0.json").read_text()
    assert '"fine"' in (folder / "artifacts" / "even" / "0.json").read_text()
    assert (folder / "run.json").exists()


async def test_a_copy_that_fails_says_nothing_against_the_write(store, monkeypatch, caplog):
    driver = await drive(store)

    def fail(record):
        raise RecursionError("too deep")

    monkeypatch.setattr("holdfast.stores.files.derived._pretty", fail)
    await driver.append(ArtifactWritten(node="a", version=0, data=slot("x", "artifact")))
    await store.release(driver.lease)
    assert (await store.load_state("s-1")).seq == 2
    assert "were not written" in caplog.text


async def test_erasing_reaches_what_interrupted_writes_left_behind(root, store):
    driver = await drive(store)
    await driver.say(TINY)
    folder = root / "runs" / "s-1"
    line = folder.joinpath("events.jsonl").read_bytes().splitlines(keepends=True)[-1]

    def leave():
        with folder.joinpath("events.jsonl").open("ab") as log:
            log.write(line[:-3])
        folder.joinpath("torn-2026-01-01.bin").write_bytes(line)
        folder.joinpath("events.jsonl.1-0.tmp").write_bytes(line)
        folder.joinpath("inbox.jsonl.1-0.tmp").write_bytes(line)

    for places in (1, 0):
        leave()
        assert await store.erase("s-1", TINY.id, "asked") == places
        held = [p for p in folder.rglob("*") if p.is_file() and TINY.data in p.read_bytes()]
        assert held == []


async def test_a_slot_that_claims_an_erased_payload_gives_no_right_to_it(root, store):
    for session in ("s-1", "s-2"):
        driver = await drive(store, session)
        await driver.say(BIG)
        await store.release(driver.lease)
    path = root / "runs" / "s-1" / "events.jsonl"
    first, rest = path.read_bytes().split(b"\n", 1)
    header = read_header(first)
    mark = {BIG.id: ("2026-01-01T00:00:00.000000Z", "asked")}
    path.write_bytes(replace(header, rewrites=header.rewrites + 1, erased=mark).line() + rest)
    for handle in (store, await FilesSessionStore.open(root)):
        await handle.read_events("s-1")
        with pytest.raises(PayloadNotFound, match="asked"):
            await handle.get_payload("s-1", BIG.id)
    await handle.close()
    assert await store.get_payload("s-2", BIG.id) == BIG.data
    await store.delete("s-2")
    assert (await store.gc(grace_seconds=0)).ids == (BIG.id,)


async def test_what_is_said_or_asked_again_after_its_erasure_is_there_with_all_its_parts(
    root, store
):
    driver = await drive(store)
    names = manifest({"x": to_record(BIG)}, "vars")
    await driver.append(VarsCheckpointed(vars=names), payloads=[BIG])
    await store.erase("s-1", names.id, "asked")
    await driver.append(VarsCheckpointed(vars=names), payloads=[BIG])
    other = slot("another story " * 200, "message")
    await driver.say(other)
    await store.erase("s-1", other.id, "asked")
    await store.put_inbox("s-1", InboxDraft("k", "message", content=other))
    again = await FilesSessionStore.open(root)
    assert (await again.gc(grace_seconds=0)).payloads == 0
    for item in (BIG, names, other):
        assert await again.get_payload("s-1", item.id) == item.data
    assert (await verify(again, "s-1")).problems == ()
    await again.close()


async def test_sessions_made_in_the_same_microsecond_are_all_listed(store, monkeypatch):
    for module in (writes, copies):
        monkeypatch.setattr(module, "new_order", lambda: 7)
    wanted = {f"s-{number}" for number in range(5)}
    for session in wanted:
        await store.create_session(session, SessionStarted())
    for limit in (1, 2, 5):
        page = await store.list_sessions(limit=limit)
        seen = [info.id for info in page.sessions]
        while page.cursor is not None:
            page = await store.list_sessions(limit=limit, cursor=page.cursor)
            seen += [info.id for info in page.sessions]
        assert (len(seen), set(seen)) == (5, wanted)


@pytest.mark.parametrize("hinted", [False, True])
async def test_who_follows_a_session_learns_that_another_process_deleted_it(root, store, hinted):
    await store.create_session("s-1", SessionStarted())
    other = await FilesSessionStore.open(root)
    hints = store.subscribe_all() if hinted else None
    async with store.subscribe("s-1", after=1) as live:
        following = asyncio.ensure_future(anext(live))
        await asyncio.wait([following], timeout=0.2)
        await other.delete("s-1")
        with pytest.raises(SessionDeleted, match="s-1"):
            await asyncio.wait_for(following, 10)
    if hints is not None:
        await hints.close()
    await other.close()
