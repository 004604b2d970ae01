"""What the files store does about torn, damaged and missing bytes: it names them, skips nothing."""

import json
import re
from contextlib import suppress

import pytest
import pytest_asyncio

from holdfast.core.errors import Corruption, HoldfastError, LeaseLost
from holdfast.core.payloads import slot
from holdfast.stores import portable
from holdfast.stores.files.lines import seal
from holdfast.stores.files.store import FilesSessionStore
from holdfast.stores.port import InboxDraft
from holdfast.stores.verify import verify
from holdfast.testing.driver import all_events, drive

BIG = slot("a long story " * 200, "message")


@pytest.fixture
def root(tmp_path):
    return tmp_path / "store"


@pytest_asyncio.fixture
async def store(root):
    store = await FilesSessionStore.open(root)
    yield store
    await store.close()


@pytest_asyncio.fixture
async def again(root):
    """Open the store anew, as a process that has nothing in memory."""
    opened = []

    async def open_store():
        opened.append(await FilesSessionStore.open(root))
        return opened[-1]

    yield open_store
    for handle in opened:
        await handle.close()


def log_of(root, session_id="s-1"):
    return root / "runs" / session_id / "events.jsonl"


async def ten_messages(store):
    """Write a log of a header, a start and ten messages, one line each."""
    driver = await drive(store)
    for number in range(10):
        await driver.say(f"message {number}")
    return driver


def change_line(path, number, change):
    lines = path.read_bytes().splitlines(keepends=True)
    lines[number - 1] = change(lines[number - 1])
    path.write_bytes(b"".join(lines))


def forget_derived(root, session_id="s-1"):
    with suppress(FileNotFoundError):
        (root / "runs" / session_id / "run.json").unlink()


@pytest.mark.parametrize("left", [1, 20, -1])
async def test_a_torn_last_line_is_no_event_and_the_next_writer_takes_it_away(
    root, store, again, left
):
    driver = await ten_messages(store)
    whole = log_of(root).read_bytes()
    await driver.say("this was never acknowledged")
    forget_derived(root)
    torn = log_of(root).read_bytes()[len(whole) :][:left]
    log_of(root).write_bytes(whole + torn)

    reader = await again()
    assert (await reader.load_state("s-1")).seq == 11
    assert [event.seq for event in await all_events(reader, "s-1")] == list(range(1, 12))
    assert (await verify(reader, "s-1")).ok
    assert log_of(root).read_bytes() == whole + torn, "a reader repairs nothing"

    driver.state = await store.load_state("s-1")
    event = await driver.say("after the repair")
    assert event.seq == 12
    assert log_of(root).read_bytes().startswith(whole)
    kept = [path.read_bytes() for path in log_of(root).parent.glob("torn-*.bin")]
    assert kept == [torn], "what was cut is kept beside the log"
    assert (await verify(await again(), "s-1")).ok


async def unfinished_line(root, store, text):
    """Write a last line that nothing but the log knows of; return what precedes it, and it."""
    driver = await ten_messages(store)
    whole = log_of(root).read_bytes()
    await driver.say(text)
    forget_derived(root)
    return driver, whole, log_of(root).read_bytes()[len(whole) :]


async def test_a_block_of_the_last_line_that_was_never_written_is_a_torn_write_too(
    root, store, again
):
    driver, whole, line = await unfinished_line(root, store, "the disk never wrote this" * 60)
    start = -len(whole) % 512
    log_of(root).write_bytes(whole + line[:start] + b"\0" * 512 + line[start + 512 :])
    reader = await again()
    assert (await reader.load_state("s-1")).seq == 11
    assert len(await reader.read_events("s-1", reverse=True)) == 11
    driver.state = await store.load_state("s-1")
    assert (await driver.say("next")).seq == 12


@pytest.mark.parametrize("first", [0, 40, 600, -40], ids=["start", "block 1", "block 2", "end"])
async def test_zero_bytes_within_the_last_complete_line_are_damage(root, store, again, first):
    _, whole, line = await unfinished_line(root, store, "this was acknowledged" * 60)
    await store.close()
    forget_derived(root)
    place = first % len(line)
    damaged = whole + line[:place] + b"\0" * 30 + line[place + 30 :]
    log_of(root).write_bytes(damaged)
    reader = await again()
    with pytest.raises(Corruption, match="line 13 of the log of session 's-1' is damaged"):
        await reader.load_state("s-1")
    assert (await verify(reader, "s-1")).problems[0].seq == 12
    with pytest.raises(Corruption):
        await reader.acquire("s-1")
    assert log_of(root).read_bytes() == damaged, "nothing that was acknowledged is cut off"


@pytest.mark.parametrize("left", [0, 20], ids=["line gone", "line torn"])
async def test_a_run_file_that_is_ahead_of_the_log_says_that_events_are_missing(
    root, store, again, left, tmp_path
):
    await ten_messages(store)
    exported = tmp_path / "session.holdfast"
    await portable.export_sessions(store, ["s-1"], exported)
    await store.close()
    whole = log_of(root).read_bytes()
    last = whole.rindex(b"\n", 0, -1) + 1
    log_of(root).write_bytes(whole[: last + left])
    reader = await again()
    said = "ends at event 10, but run.json beside it was written after event 11"
    for verb in (reader.load_state, reader.acquire):
        with pytest.raises(Corruption, match=said):
            await verb("s-1")
    assert [event.seq for event in await all_events(reader, "s-1")] == list(range(1, 11))
    assert (await reader.session_info("s-1")).seq == 11
    problems = (await verify(reader, "s-1")).problems
    assert problems[0].seq == 11
    assert any(said in problem.message for problem in problems)
    await portable.import_sessions(reader, exported)
    assert (await reader.load_state("s-1")).seq == 11
    assert (await verify(reader, "s-1")).ok


@pytest.mark.parametrize("number", [2, 3, 7, 12])
@pytest.mark.parametrize(
    "change",
    [
        lambda line: b"garbage\n",
        lambda line: line[:-1] + b"x",
        lambda line: line.replace(b'"at"', b'"aT"', 1),
        lambda line: line.replace(b"message", b"massage", 1) if b"message" in line else b"{}\n",
        lambda line: line.replace(b" ", b"\0", 1) if b" " in line else b"{}\n",
    ],
    ids=["garbage", "newline gone", "flipped bit", "another word", "space to zero"],
)
async def test_a_damaged_line_is_named_and_the_rest_stays_readable(
    root, store, again, number, change
):
    await ten_messages(store)
    await store.close()
    forget_derived(root)
    change_line(log_of(root), number, change)
    reader = await again()
    bad = number - 1
    with pytest.raises(Corruption, match=f"line {number} of the log of session 's-1'") as caught:
        await reader.load_state("s-1")
    assert caught.value.details["seq"] == bad
    for options in ({}, {"reverse": True}):
        with pytest.raises(Corruption):
            await reader.read_events("s-1", **options)
    before = await reader.read_events("s-1", before=bad) if bad > 1 else []
    assert [event.seq for event in before] == list(range(1, bad))
    down = await reader.read_events("s-1", before=bad, reverse=True) if bad > 1 else []
    assert down == before[::-1]
    # A newline that is gone takes the line behind it along.
    first = bad + (2 if change(b"a\n") == b"ax" else 1)
    behind = await reader.read_events("s-1", after=first - 1) if first <= 11 else []
    assert [event.seq for event in behind] == list(range(first, 12))
    report = await verify(reader, "s-1")
    assert not report.ok
    assert report.problems[0].seq == bad
    assert (await reader.session_info("s-1")).seq >= 11
    assert [info.id for info in (await reader.list_sessions()).sessions] == ["s-1"]
    with pytest.raises(Corruption):
        await reader.acquire("s-1")


async def test_no_flipped_bit_of_a_log_goes_unnoticed(root, store, again):
    driver = await drive(store)
    for text in ("one", "two"):
        await driver.say(text)
    wanted = await all_events(store, "s-1")
    await store.close()
    whole = log_of(root).read_bytes()
    reader = await again()
    for position in range(0, len(whole), 3):
        forget_derived(root)
        damaged = bytearray(whole)
        damaged[position] ^= 1 << (position % 8)
        log_of(root).write_bytes(damaged)
        try:
            same = await all_events(reader, "s-1") == wanted
            await reader.erased("s-1")
        except HoldfastError:
            continue
        assert same, f"a bit of byte {position} was flipped and nobody said so"
        pytest.fail(f"byte {position} is not covered by any check")


async def test_a_cut_log_names_what_it_can_no_longer_say(root, store, again):
    await ten_messages(store)
    await store.close()
    forget_derived(root)
    whole = log_of(root).read_bytes()
    log_of(root).write_bytes(whole[:50])
    reader = await again()
    with pytest.raises(Corruption):
        await reader.load_state("s-1")
    assert not (await verify(reader, "s-1")).ok
    assert len((await reader.list_sessions()).sessions) == 1


async def test_a_missing_payload_file_is_corruption_and_verify_names_its_event(root, store):
    driver = await drive(store)
    await driver.say("before")
    event = await driver.say(BIG)
    (path,) = (root / "payloads").rglob("*.zst")
    path.unlink()
    with pytest.raises(Corruption, match=re.escape(BIG.id)):
        await store.get_payload("s-1", BIG.id)
    (problem,) = (await verify(store, "s-1")).problems
    assert (problem.seq, problem.payload) == (event.seq, BIG.id)
    assert len(await all_events(store, "s-1")) == 3


async def test_a_damaged_payload_file_is_never_handed_out(root, store):
    driver = await drive(store)
    await driver.say(BIG)
    (path,) = (root / "payloads").rglob("*.zst")
    whole = path.read_bytes()
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 4
        path.write_bytes(damaged)
        try:
            assert await store.get_payload("s-1", BIG.id) == BIG.data
        except Corruption:
            continue


async def test_a_damaged_inbox_line_is_named(root, store, again):
    await drive(store)
    for key in ("a", "b"):
        await store.put_inbox("s-1", InboxDraft(key, "message", content=slot("hello", "message")))
    path = root / "runs" / "s-1" / "inbox.jsonl"
    change_line(path, 1, lambda line: line.replace(b"hello", b"hullo"))
    with pytest.raises(Corruption, match="line 1 of the inbox of session 's-1'"):
        await (await again()).list_inbox("s-1")


async def test_a_torn_inbox_line_was_never_put(root, store, again):
    await drive(store)
    await store.put_inbox("s-1", InboxDraft("a", "message"))
    path = root / "runs" / "s-1" / "inbox.jsonl"
    path.write_bytes(path.read_bytes() + b'{"at":"2026')
    assert [item.key for item in await (await again()).list_inbox("s-1")] == ["a"]
    await store.put_inbox("s-1", InboxDraft("b", "message"))
    assert [item.key for item in await (await again()).list_inbox("s-1")] == ["a", "b"]


async def test_gc_refuses_while_a_damaged_log_hides_what_it_refers_to(root, store, again):
    driver = await ten_messages(store)
    await driver.say(BIG)
    change_line(log_of(root), 5, lambda line: b"garbage\n")
    other = await again()
    with pytest.raises(Corruption, match="line 5"):
        await other.gc(grace_seconds=0)
    assert await other.get_payload("s-1", BIG.id) == BIG.data


async def test_a_log_under_another_sessions_name_is_refused(root, store, again):
    await ten_messages(store)
    await store.close()
    log_of(root).parent.rename(root / "runs" / "s-2")
    reader = await again()
    with pytest.raises(Corruption, match="belongs to session 's-1'"):
        await reader.acquire("s-2")
    assert not (await verify(reader, "s-2")).ok


async def test_a_damaged_lease_file_lets_the_session_go_on_under_a_higher_epoch(root, store, again):
    driver = await ten_messages(store)
    (root / "runs" / "s-1" / "lease.json").write_text("not a lease")
    other = await again()
    lease = await other.acquire("s-1")
    assert lease.epoch > driver.lease.epoch
    with pytest.raises(HoldfastError, match="is lost"):
        await driver.say("too late")


async def test_damage_in_one_session_leaves_the_others_alone(root, store, again):
    await ten_messages(store)
    driver = await drive(store, "s-2")
    change_line(log_of(root), 4, lambda line: b"garbage\n")
    await driver.say("still fine")
    reader = await again()
    assert (await reader.load_state("s-2")).seq == 2
    assert {info.id for info in (await reader.list_sessions()).sessions} == {"s-1", "s-2"}
    assert json.loads(log_of(root, "s-2").read_bytes().splitlines()[-1])["after"] == 1


OWNERS = ["../../o-1", "O-1", "o-1/x", "o-\x01", ""]


@pytest.mark.parametrize("owner", OWNERS)
async def test_a_lease_file_with_a_damaged_owner_means_that_nobody_holds_it(
    root, store, again, owner
):
    driver = await ten_messages(store)
    await drive(store, "s-2")
    held = json.dumps({"owner": owner, "epoch": driver.lease.epoch, "taken": None})
    (root / "runs/s-1/lease.json").write_text(held)
    fresh = await again()
    assert await fresh.lease_of("s-1") is None
    assert {info.id for info in (await fresh.list_sessions()).sessions} == {"s-1", "s-2"}
    assert (await verify(fresh, "s-1")).ok
    with pytest.raises(LeaseLost):
        await driver.say("the holder is fenced off")
    assert (await fresh.acquire("s-1")).epoch > driver.lease.epoch


@pytest.mark.parametrize("spoil", ["deep", "a folder"])
async def test_a_run_json_that_cannot_be_read_costs_only_time(root, store, again, spoil):
    driver = await ten_messages(store)
    await store.release(driver.lease)
    path = root / "runs/s-1/run.json"
    if spoil == "deep":
        path.write_bytes(b"[" * 100_000)
    else:
        path.unlink()
        path.mkdir()
    fresh = await again()
    assert await fresh.load_state("s-1") == driver.state
    assert [info.seq for info in (await fresh.list_sessions()).sessions] == [11]
    assert (await verify(fresh, "s-1")).ok
    lease = await fresh.acquire("s-1")
    await fresh.append(lease, 11, [driver.message("later work goes on")])


async def test_an_inbox_item_whose_content_is_no_value_is_named(root, store, again):
    await ten_messages(store)
    await drive(store, "s-2")
    odd = {"at": "2030-01-02T03:04:05.000000Z", "key": "k", "kind": "message", "content": {"$v": 1}}
    (root / "runs/s-1/inbox.jsonl").write_bytes(seal(odd))
    fresh = await again()
    with pytest.raises(Corruption, match="line 1 of the inbox"):
        await fresh.list_inbox("s-1")
    assert {info.id for info in (await fresh.list_sessions()).sessions} == {"s-1", "s-2"}
    assert "inbox" in {problem.kind for problem in (await verify(fresh, "s-1")).problems}


async def test_an_inbox_line_can_be_taken_out_as_the_error_says(tmp_path):
    store = await FilesSessionStore.open(tmp_path)
    driver = await drive(store)
    for key in ("k-1", "k-2"):
        await store.put_inbox("s-1", InboxDraft(key, "message", content=slot(key, "message")))
    await driver.say("on")
    await store.close()
    inbox = tmp_path / "runs" / "s-1" / "inbox.jsonl"
    first, second = inbox.read_bytes().splitlines(keepends=True)
    inbox.write_bytes(first.replace(b"k-1", b"k-9") + second)
    store = await FilesSessionStore.open(tmp_path)
    with pytest.raises(Corruption, match=r"line 1 .* by hand and delete run\.json beside it"):
        await store.list_inbox("s-1")
    await store.close()
    inbox.write_bytes(second)
    inbox.with_name("run.json").unlink()
    store = await FilesSessionStore.open(tmp_path)
    await store.put_inbox("s-1", InboxDraft("k-3", "message", content=slot("k-3", "message")))
    assert [item.key for item in await store.list_inbox("s-1")] == ["k-2", "k-3"]
    await store.close()
