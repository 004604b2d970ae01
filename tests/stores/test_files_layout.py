"""The directory that people and tools see, and what happens when its derived files are touched."""

import asyncio
import hashlib
import json
import os
import shutil

import pytest
import pytest_asyncio

from holdfast.core.errors import Corruption, InvalidId, StoreNewer, StoreUnsafe
from holdfast.core.facts import CallRequested, CallResolved, SessionStarted
from holdfast.core.payloads import slot
from holdfast.core.records import canonical
from holdfast.core.replay import Copy
from holdfast.core.run_facts import ArtifactWritten
from holdfast.stores import place
from holdfast.stores.files.layout import file_name
from holdfast.stores.files.lines import seal, unseal
from holdfast.stores.files.store import FilesSessionStore
from holdfast.stores.port import InboxDraft, Lease, SessionFilter
from holdfast.stores.verify import verify
from holdfast.testing.driver import Driver, drive, view
from holdfast.testing.store_contract import HOSTILE_IDS

BIG = slot({"story": "long " * 300}, "artifact")


@pytest.fixture
def root(tmp_path):
    return tmp_path / "store"


@pytest_asyncio.fixture
async def store(root):
    store = await FilesSessionStore.open(root)
    yield store
    await store.close()


async def reopened(root):
    return await FilesSessionStore.open(root)


async def a_run(store, session_id="s-1"):
    """Drive a session that publishes artifacts, asks a person and gets an answer."""
    driver = await drive(store, session_id)
    await driver.turn("hello")
    await driver.append(ArtifactWritten(node="draft", version=0, data=slot("first", "artifact")))
    await driver.append(ArtifactWritten(node="draft", version=1, data=BIG))
    question = slot({"text": "go on?"}, "arguments")
    await driver.append(
        CallRequested(
            call_id="ask-1", name="ask", executor="human", effect="once", arguments=question
        )
    )
    answer = slot("yes", "answer")
    await driver.append(CallResolved(call_id="ask-1", outcome="ok", result=answer, by="ada"))
    await store.put_inbox(session_id, InboxDraft("m-1", "message", content=slot("hi", "message")))
    await store.put_inbox(session_id, InboxDraft("m-2", "message", content=slot("ho", "message")))
    await driver.append(driver.message("hi"), consumes=["m-1"])
    return driver


def names(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


async def test_a_person_finds_a_session_as_plain_files(root, store):
    driver = await a_run(store)
    await store.release(driver.lease)
    folder = root / "runs" / "s-1"
    assert names(folder) == [
        "artifacts/draft/0.json",
        "artifacts/draft/1.json",
        "events.jsonl",
        "inbox.jsonl",
        "interactions/ask-1.json",
        "lease.json",
        "lock",
        "run.json",
    ]
    run = json.loads((folder / "run.json").read_text())
    assert (run["id"], run["status"], run["seq"]) == ("s-1", "idle", driver.state.seq)
    assert run["inbox"] == 1
    assert json.loads((folder / "artifacts/draft/0.json").read_text())["data"] == "first"
    second = json.loads((folder / "artifacts/draft/1.json").read_text())
    assert second["data"] == {"story": "long " * 300}
    asked = json.loads((folder / "interactions/ask-1.json").read_text())
    assert (asked["questions"], asked["answers"], asked["answered_by"]) == (
        {"text": "go on?"},
        "yes",
        "ada",
    )
    lines = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    assert lines[0]["session"] == "s-1"
    assert [line["after"] for line in lines[1:3]] == [0, 1]
    assert lines[-1]["consumes"] == ["m-1"]


@pytest.mark.parametrize("damage", ["deleted", "garbage", "of another time", "flipped"])
async def test_derived_files_that_are_touched_change_nothing_but_time(root, store, damage):
    driver = await drive(store)
    await driver.say("early")
    folder = root / "runs" / "s-1"
    early = (folder / "run.json").read_bytes()
    await store.release(driver.lease)
    driver = await a_run(store)
    await store.release(driver.lease)
    wanted, row = await view(store, "s-1"), await store.session_info("s-1")
    written = {name: (folder / name).read_bytes() for name in names(folder)}
    await store.close()

    path = folder / "run.json"
    if damage == "deleted":
        path.unlink()
    elif damage == "garbage":
        path.write_bytes(b"\xff\x00 no JSON")
    elif damage == "flipped":
        path.write_bytes(path.read_bytes().replace(b"1", b"2"))
    else:
        path.write_bytes(early)
    if damage == "deleted":
        shutil.rmtree(folder / "artifacts")
        shutil.rmtree(folder / "interactions")

    again = await reopened(root)
    assert await view(again, "s-1") == wanted
    assert await again.session_info("s-1") == row
    assert [info.id for info in (await again.list_sessions()).sessions] == ["s-1"]
    assert (await verify(again, "s-1")).ok
    lease = await again.acquire("s-1")
    await again.release(lease)
    await again.close()
    for name in ("artifacts/draft/0.json", "artifacts/draft/1.json", "interactions/ask-1.json"):
        assert (folder / name).read_bytes() == written[name], "the next writer made it again"
    assert json.loads((folder / "run.json").read_text())["seq"] == wanted.state.seq


@pytest.mark.parametrize("resealed", [False, True], ids=["altered", "of another fold"])
async def test_a_snapshot_that_this_release_did_not_write_is_not_believed(root, store, resealed):
    driver = await a_run(store)
    await store.release(driver.lease)
    wanted = await store.load_state("s-1")
    await store.close()
    path = root / "runs/s-1/run.json"
    run = json.loads(path.read_text())
    body = run["snapshot"]["tip"]
    body["state"]["last_turn"] = "failed"
    if resealed:
        run["snapshot"]["fold"] += 1
        run["snapshot"]["check"] = hashlib.sha256(canonical(body)).hexdigest()
    path.write_text(json.dumps(run))
    again = await reopened(root)
    assert await again.load_state("s-1") == wanted
    await again.close()


async def test_a_snapshot_of_another_log_is_not_believed(root, store):
    for session_id, texts in (("s-1", 3), ("s-2", 3)):
        driver = await drive(store, session_id)
        for number in range(texts):
            await driver.say(f"{session_id} {number}")
        await store.release(driver.lease)
    wanted = await store.load_state("s-1")
    await store.close()
    shutil.copy(root / "runs/s-2/run.json", root / "runs/s-1/run.json")
    again = await reopened(root)
    assert await again.load_state("s-1") == wanted
    await again.close()


async def test_an_erased_value_is_in_no_file_of_the_store(root, store):
    driver = await a_run(store)
    secret = slot("the secret word is xyzzy", "artifact")
    await driver.append(ArtifactWritten(node="draft", version=2, data=secret))
    await store.put_inbox("s-1", InboxDraft("m-3", "message", content=secret))
    await store.release(driver.lease)
    (root / "runs/s-1/torn-earlier.bin").write_bytes(b"...xyzzy")
    assert any(b"xyzzy" in path.read_bytes() for path in root.rglob("*") if path.is_file())
    assert await store.erase("s-1", secret.id, "asked") == 1
    for path in root.rglob("*"):
        assert not path.is_file() or b"xyzzy" not in path.read_bytes(), path
    shown = json.loads((root / "runs/s-1/artifacts/draft/2.json").read_text())["data"]
    assert shown["erased"]["rule"] == "asked"
    assert (await verify(store, "s-1")).ok


async def test_erasing_in_one_handle_is_seen_by_readers_in_the_middle_of_another(root, store):
    driver = await drive(store)
    for number in range(50):
        await driver.say(f"message {number} " + "x" * 300)
    other = await reopened(root)
    first = await other.read_events("s-1", limit=20)
    gone = slot("message 30 " + "x" * 300, "message")
    await store.erase("s-1", gone.id, "asked")
    rest = await other.read_events("s-1", after=20)
    assert [event.seq for event in [*first, *rest]] == list(range(1, 52))
    assert list(await other.erased("s-1")) == [gone.id]
    driver = Driver(other, driver.lease, await other.load_state("s-1"))
    assert driver.state == await store.load_state("s-1")
    await other.close()


@pytest.mark.parametrize("text", ["../../x", "a/b", "", "con", ".hidden", "A", "ü" * 90, "x" * 300])
def test_free_names_become_safe_file_names(text):
    name = file_name(text)
    assert name not in ("", ".", "..")
    assert "/" not in name
    assert len(name) <= 100
    assert not name.startswith(".")
    assert file_name(text) == name != file_name(text + "?")


async def test_a_hostile_node_or_call_name_stays_inside_its_run(root, store):
    driver = await drive(store)
    data = slot("x", "artifact")
    await driver.append(ArtifactWritten(node="../../../../evil", version=0, data=data))
    await driver.append(
        CallRequested(
            call_id="../../evil", name="ask", executor="human", effect="once", arguments=data
        )
    )
    await store.release(driver.lease)
    assert not list(root.parent.glob("evil*"))
    found = [name for name in names(root) if "evil" in name]
    assert len(found) == 2
    assert all(name.startswith("runs/s-1/") for name in found)


@pytest.mark.parametrize("hostile", HOSTILE_IDS, ids=lambda text: repr(text)[:20])
async def test_hostile_ids_never_reach_the_file_system(root, store, hostile):
    before = names(root.parent)
    started = SessionStarted()
    calls = [
        store.create_session(hostile, started),
        store.create_session("s-1", SessionStarted(tenant=hostile)),
        store.load_state(hostile),
        store.acquire(hostile),
        store.release(Lease(hostile, "o-1", 1)),
        store.delete(hostile),
        store.import_log(Copy(hostile, [])),
        store.session_info(hostile),
    ]
    for call in calls:
        with pytest.raises(InvalidId):
            await call
    if hostile is not None:
        with pytest.raises(InvalidId):
            await store.list_sessions(SessionFilter(tenant=hostile, parent=hostile))
    assert names(root.parent) == before


async def test_files_that_are_no_sessions_are_not_listed(root, store):
    await drive(store)
    (root / "runs" / "README").write_text("notes")
    (root / "runs" / "Not-An-Id").mkdir()
    (root / "runs" / "s-empty").mkdir()
    assert [info.id for info in (await store.list_sessions()).sessions] == ["s-1"]
    await store.gc(grace_seconds=0)


async def test_a_newer_store_is_refused(root, store):
    await store.close()
    (root / "holdfast.json").write_text('{"format":"files","v":99}')
    with pytest.raises(StoreNewer, match="format 99"):
        await reopened(root)


@pytest.mark.parametrize(
    "text",
    [
        '{"format":"sqlite","v":1}',
        '{"v":1}',
        '{"format":"files"}',
        '{"format":"files","v":true}',
        '{"format":"files","v":0}',
        '{"format":"files","v":-1}',
        '{"format":"files","v":"1"}',
        "[]",
        "{}",
    ],
)
async def test_a_store_that_says_something_odd_of_itself_is_refused(root, store, text):
    await store.close()
    (root / "holdfast.json").write_text(text)
    with pytest.raises(Corruption, match=r"holdfast.json' is damaged; it should read"):
        await reopened(root)


def make_newer(root, session):
    """Give a session's log a format that this release does not know."""
    log = root / "runs" / session / "events.jsonl"
    head, rest = log.read_bytes().split(b"\n", 1)
    record = unseal(head)
    record.pop("sum")
    log.write_bytes(seal(record | {"format": 99}) + rest)


async def test_a_log_of_a_newer_format_is_refused_by_name(root, store):
    await drive(store)
    await store.close()
    make_newer(root, "s-1")
    again = await reopened(root)
    for work in (again.acquire, again.load_state, again.read_events, again.erased):
        with pytest.raises(StoreNewer, match=r"session 's-1'.*format 99.*upgrade") as caught:
            await work("s-1")
        assert caught.value.details["session"] == "s-1"
    with pytest.raises(StoreNewer, match="session 's-1'"):
        await again.gc(grace_seconds=0)
    await again.close()


async def test_a_log_of_a_newer_format_hides_no_other_session(root, store):
    await drive(store, "s-1")
    driver = await drive(store, "s-2")
    await driver.append(driver.message(BIG))
    seq = driver.state.seq
    await store.close()
    make_newer(root, "s-1")
    again = await reopened(root)
    listed = (await again.list_sessions()).sessions
    assert [(info.id, info.seq) for info in listed] == [("s-2", seq), ("s-1", 1)]
    assert [problem.kind for problem in (await verify(again, "s-1")).problems][:1] == ["state"]
    assert await again.erase("s-2", BIG.id, "privacy") == 1
    other = await reopened(root)
    async with again.subscribe_all() as hints:
        os.utime(root / "runs/s-1/events.jsonl")  # as if it had moved
        await other.put_inbox("s-2", InboxDraft("key", "message"))
        async with asyncio.timeout(10):
            while (await anext(aiter(hints))).session != "s-2":
                pass
    await other.close()
    await again.close()


async def test_a_network_file_system_is_refused_unless_forced(root, monkeypatch):
    monkeypatch.setattr(place, "_mounts", lambda: [("/", "nfs4")])
    with pytest.raises(StoreUnsafe, match="nfs4"):
        await reopened(root)
    assert not root.exists()
    forced = await FilesSessionStore.open(root, force_network=True)
    await forced.close()


async def test_files_are_for_their_owner_alone(root, store):
    driver = await a_run(store)
    await store.release(driver.lease)
    for path in root.rglob("*"):
        assert os.stat(path).st_mode & 0o077 == 0, path


async def test_a_deleted_session_leaves_only_its_tombstone(root, store):
    driver = await a_run(store)
    await store.release(driver.lease)
    await store.delete("s-1")
    assert not (root / "runs" / "s-1").exists()
    assert (root / "deleted" / "s-1.json").exists()


async def test_gc_ends_a_delete_that_was_cut_short(root, store):
    driver = await a_run(store)
    await store.release(driver.lease)
    copy = root.parent / "copy"
    shutil.copytree(root / "runs" / "s-1", copy)
    await store.delete("s-1")
    shutil.copytree(copy, root / "runs" / "s-1")
    assert (await store.list_sessions()).sessions == ()
    await store.gc(grace_seconds=0)
    assert not (root / "runs" / "s-1").exists()
