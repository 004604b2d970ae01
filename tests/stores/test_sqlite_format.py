"""The SQLite file: numbered migrations, refusals, and derived rows that may be wrong."""

import os
import re
from collections import defaultdict
from pathlib import Path

import apsw
import pytest
from msgspec.structs import replace

from holdfast.core import facts
from holdfast.core.errors import (
    Corruption,
    InvalidInput,
    InvalidRef,
    NothingWritten,
    SessionDeleted,
    StoreNewer,
    StoreUnsafe,
)
from holdfast.core.fold import FOLD_VERSION
from holdfast.core.payloads import slot
from holdfast.core.replay import Copy
from holdfast.stores import place, relational, snapshots, sqlite
from holdfast.stores.port import InboxDraft, SessionFilter
from holdfast.stores.portable import export_sessions, import_sessions
from holdfast.stores.sqlite import database
from holdfast.stores.sqlite.store import SqliteSessionStore
from holdfast.stores.verify import verify
from holdfast.testing.driver import drive

SOURCES = sorted(
    source
    for package in (sqlite, relational)
    for source in Path(package.__file__).parent.glob("*.py")
)


def connect(path):
    return apsw.Connection(str(path / "events.db"))


def schema(connection):
    return connection.execute("SELECT type, name, sql FROM sqlite_schema ORDER BY name").fetchall()


async def store_of(path, events):
    """Return a closed store at a path with one session of that many events."""
    store = await SqliteSessionStore.open(path)
    state = await store.create_session("talk", facts.SessionStarted())
    lease = await store.acquire("talk")
    for number in range(1, events):
        message = facts.MessageAppended(
            message=number, role="user", content=slot(f"line {number}", "message")
        )
        state = (await store.append(lease, state.seq, [message])).state
    await store.close()
    return state


async def test_a_fresh_schema_is_what_the_migrations_make_one_by_one(tmp_path):
    await (await SqliteSessionStore.open(tmp_path)).close()
    by_hand = apsw.Connection(":memory:")
    for _, _, text in database.migrations():
        by_hand.execute(text)
    assert schema(connect(tmp_path)) == schema(by_hand)


async def test_migrations_are_numbered_without_gap_and_recorded_with_their_checksums(tmp_path):
    await (await SqliteSessionStore.open(tmp_path)).close()
    numbers = [number for number, _, _ in database.migrations()]
    assert numbers == list(range(1, len(numbers) + 1))
    recorded = connect(tmp_path).execute("SELECT version, checksum FROM migrations").fetchall()
    assert [number for number, _ in recorded] == numbers
    assert all(checksum.startswith("sha256:") for _, checksum in recorded)
    assert connect(tmp_path).pragma("user_version") == numbers[-1]


FORMATS = sorted(Path(__file__).parent.glob("formats/*.sql"))


def store_of_format(path, dump):
    """Make a store as an earlier release left it."""
    path.mkdir(exist_ok=True)
    connect(path).execute(dump.read_text(encoding="utf-8"))
    connect(path).pragma("journal_mode", "wal")


@pytest.mark.parametrize("dump", FORMATS, ids=lambda dump: dump.stem)
async def test_a_store_of_an_older_format_is_brought_to_this_one_with_all_it_has(tmp_path, dump):
    store_of_format(tmp_path, dump)
    store = await SqliteSessionStore.open(tmp_path)
    shared, unused = slot("shared " * 200, "message"), slot("unused " * 200, "message")
    for name in ("first", "second"):
        assert (await verify(store, name)).ok
        assert await store.get_payload(name, shared.id) == shared.data
        info = await store.session_info(name)
        assert (await store.list_sessions(SessionFilter(name=info.name))).sessions == (info,)
    assert [item.key for item in await store.list_inbox("first")] == ["m"]
    with pytest.raises(InvalidRef):
        await store.get_payload("first", unused.id)
    with pytest.raises(SessionDeleted):
        await store.load_state("gone")
    theirs = store.of("acme")
    (wait,) = (await theirs.pending()).waits
    assert (wait.session, wait.tenant, wait.call_id, wait.wait) == ("asks", "acme", "c-1", 1)
    assert (await theirs.list_inbox("asks"))[0].content.value() == "yes"
    assert (await verify(theirs, "asks")).ok
    for handle in (store, theirs):
        with pytest.raises(SessionDeleted):
            await handle.create_session("gone", facts.SessionStarted(tenant=handle.tenant))
    await store.delete("first")
    assert (await store.gc(grace_seconds=0)).ids == (unused.id,)
    assert (await verify(store, "second")).ok
    await store.delete("second")
    assert (await store.gc(grace_seconds=0)).payloads == 1
    await store.close()


async def test_a_newer_format_is_refused_and_untouched(tmp_path):
    await (await SqliteSessionStore.open(tmp_path)).close()
    connect(tmp_path).pragma("user_version", 999)
    with pytest.raises(StoreNewer, match="999"):
        await SqliteSessionStore.open(tmp_path)
    assert connect(tmp_path).pragma("user_version") == 999


async def test_a_migration_with_other_content_is_refused(tmp_path):
    await (await SqliteSessionStore.open(tmp_path)).close()
    connect(tmp_path).execute("UPDATE migrations SET checksum = 'sha256:other'")
    with pytest.raises(Corruption, match="migration 1"):
        await SqliteSessionStore.open(tmp_path)


async def test_a_migration_that_fails_leaves_the_database_as_it_was(tmp_path, monkeypatch):
    await (await SqliteSessionStore.open(tmp_path)).close()
    before = schema(connect(tmp_path))
    known = database.migrations()
    broken = (len(known) + 1, "9999_broken.sql", "CREATE TABLE half (x); SELECT nonsense(")
    monkeypatch.setattr(database, "migrations", lambda: [*known, broken])
    with pytest.raises(NothingWritten):
        await SqliteSessionStore.open(tmp_path)
    assert schema(connect(tmp_path)) == before
    assert connect(tmp_path).pragma("user_version") == len(known)


async def test_a_database_of_something_else_is_refused(tmp_path):
    connect(tmp_path).execute("CREATE TABLE theirs (x)")
    with pytest.raises(StoreUnsafe, match="something else"):
        await SqliteSessionStore.open(tmp_path)
    assert [name for _, name, _ in schema(connect(tmp_path))] == ["theirs"]


async def test_a_file_that_is_no_database_is_corruption(tmp_path):
    (tmp_path / "events.db").write_bytes(b"these are not the bytes " * 500)
    with pytest.raises(Corruption, match=r"events\.db"):
        await SqliteSessionStore.open(tmp_path)


async def test_a_network_file_system_is_refused_unless_forced(tmp_path, monkeypatch):
    monkeypatch.setattr(place, "file_system", lambda _: "nfs4")
    with pytest.raises(StoreUnsafe, match="nfs4"):
        await SqliteSessionStore.open(tmp_path)
    await (await SqliteSessionStore.open(tmp_path, force_network=True)).close()


@pytest.mark.parametrize("kind", ["nfs", "cifs", "9p", "fuse.sshfs", "fuse.s3fs"])
def test_network_file_systems_are_known(kind):
    assert place.is_network(kind)


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "tmpfs", "apfs", "overlay", "fuse.ntfs"])
def test_local_file_systems_are_known(kind):
    assert not place.is_network(kind)


def test_every_named_query_is_used_and_every_used_one_is_named():
    used = set()
    for source in SOURCES:
        used |= set(re.findall(r'"([a-z_]+)"', source.read_text(encoding="utf-8")))
    ways = {f"{name}_{way}" for name in ("events", "events_of_types") for way in WAYS}
    assert set(database.SQL) - ways <= used
    text = "".join(source.read_text(encoding="utf-8") for source in SOURCES)
    named = re.findall(r'SQL\["(\w+)"\]|(?:Query|Change|ChangeMany|first)\(\s*"(\w+)"', text)
    named = {one or other for one, other in named}
    assert set(named) <= set(database.SQL)


WAYS = ("forward", "backward")


LISTINGS = [name for name in database.SQL if name.startswith(("list_sessions_", "list_pending_"))]


@pytest.mark.parametrize("name", [*LISTINGS, "list_work_due", "sessions_without_pending"])
async def test_a_listing_searches_an_index(tmp_path, name):
    await store_of(tmp_path, 3)
    plan = connect(tmp_path).execute(f"EXPLAIN QUERY PLAN {database.SQL[name]}", defaultdict(int))
    scans = [step for *_, step in plan if re.match(r"SCAN (s|p|i|e|sessions|events|inbox)\b", step)]
    assert [step for step in scans if "INDEX" not in step] == []


async def test_waits_whose_rows_were_lost_are_made_anew_by_the_next_open(tmp_path, caplog):
    store = await SqliteSessionStore.open(tmp_path)
    driver = await drive(store)
    await driver.ask("c-1", "May I?", deadline="2020-01-01T00:00:00Z", assignee="ann")
    await driver.ask("c-2", "And now?", wait=1)
    await driver.ask("c-2", "And now?", wait=2)
    listed = (await store.pending()).waits
    connect(tmp_path).execute("DELETE FROM pending_calls")
    assert not (await verify(store, "s-1")).ok
    await store.close()
    store = await SqliteSessionStore.open(tmp_path)
    assert (await store.pending()).waits == listed
    assert (await verify(store, "s-1")).ok
    assert len([r for r in caplog.records if "waiting calls" in r.message]) == 1
    await store.close()


def test_no_sql_stands_in_python():
    statement = re.compile(r'"\s*(SELECT|INSERT|UPDATE|DELETE|CREATE|PRAGMA|BEGIN)\b')
    for source in SOURCES:
        assert not statement.search(source.read_text(encoding="utf-8")), source.name


SPOILS = {
    "missing": "DELETE FROM snapshots",
    "of another log": "UPDATE snapshots SET digest = zeroblob(32)",
    "of another fold": "UPDATE snapshots SET fold = fold + 1",
    "with a wrong position": "UPDATE snapshots SET seq = seq - 1",
    "beyond the log": "UPDATE snapshots SET seq = 100000",
    "with a wrong checksum": "UPDATE snapshots SET checksum = zeroblob(32)",
    "with altered content": "UPDATE snapshots SET body ="
    " CAST(replace(CAST(body AS TEXT), '\"idle\"', '\"failed\"') AS BLOB)",
    "of the wrong type": "UPDATE snapshots SET digest = 5, checksum = 'x', body = 1.5",
}


@pytest.mark.parametrize("spoil", SPOILS)
async def test_a_spoiled_snapshot_changes_nothing(tmp_path, spoil):
    state = await store_of(tmp_path, events=150)
    connection = connect(tmp_path)
    assert connection.execute("SELECT seq FROM snapshots").get == 128
    connection.execute(SPOILS[spoil])
    connection.close()
    store = await SqliteSessionStore.open(tmp_path)
    assert await store.load_state("talk") == state
    await store.close()


async def test_a_snapshot_of_another_fold_is_not_believed(tmp_path, monkeypatch):
    state = await store_of(tmp_path, events=150)
    connection = connect(tmp_path)
    with monkeypatch.context() as older:
        # What an older release would have made of the same events, sealed as it should be.
        older.setattr(snapshots, "FOLD_VERSION", FOLD_VERSION + 1)
        digest = connection.execute("SELECT digest FROM events WHERE seq = 128").get.hex()
        wrong = snapshots.take(replace(state, seq=128, digest=digest, last_turn="failed"))
    connection.execute(
        "UPDATE snapshots SET fold = ?, checksum = ?, body = ?",
        (wrong.fold, bytes.fromhex(wrong.checksum), wrong.body),
    )
    connection.close()
    store = await SqliteSessionStore.open(tmp_path)
    assert await store.load_state("talk") == state
    await store.close()


async def test_a_stale_snapshot_changes_nothing(tmp_path):
    state = await store_of(tmp_path, events=100)
    connection = connect(tmp_path)
    (old,) = connection.execute("SELECT * FROM snapshots").fetchall()
    store = await SqliteSessionStore.open(tmp_path)
    lease = await store.acquire("talk")
    for number in range(100, 200):
        message = facts.MessageAppended(
            message=number, role="user", content=slot("more", "message")
        )
        state = (await store.append(lease, state.seq, [message])).state
    await store.close()
    connection.execute("DELETE FROM snapshots")
    connection.execute("INSERT INTO snapshots VALUES (?, ?, ?, ?, ?, ?)", old)
    connection.close()
    store = await SqliteSessionStore.open(tmp_path)
    assert await store.load_state("talk") == state
    await store.close()


async def test_a_flipped_bit_in_an_event_is_named_and_the_rest_stays_readable(tmp_path):
    await store_of(tmp_path, events=20)
    connect(tmp_path).execute(
        "UPDATE events SET data = replace(data, 'line 7', 'line 8') WHERE seq = 8"
    )
    connect(tmp_path).execute("UPDATE events SET data = substr(data, 2) WHERE seq = 12")
    store = await SqliteSessionStore.open(tmp_path)
    with pytest.raises(Corruption) as refused:
        await store.load_state("talk")
    assert refused.value.details["seq"] == 8
    with pytest.raises(Corruption, match="event 12"):
        await store.read_events("talk", after=10, limit=5)
    assert [event.seq for event in await store.read_events("talk", after=12)] == list(range(13, 21))
    report = await verify(store, "talk")
    found = [(problem.kind, problem.seq) for problem in report.problems]
    assert found == [("digest", 8), ("line", 12), ("state", None)]
    await store.close()


async def test_a_missing_event_is_a_gap(tmp_path):
    await store_of(tmp_path, events=20)
    connect(tmp_path).execute("DELETE FROM events WHERE seq = 20")
    store = await SqliteSessionStore.open(tmp_path)
    with pytest.raises(Corruption) as found:
        await store.load_state("talk")
    assert found.value.details["seq"] == 20
    await store.close()


@pytest.mark.parametrize("lost", [1, 7, 20])
async def test_no_page_passes_over_an_event_that_is_missing(tmp_path, lost):
    await store_of(tmp_path, events=20)
    connect(tmp_path).execute(f"DELETE FROM events WHERE seq = {lost}")
    store = await SqliteSessionStore.open(tmp_path)
    around = {"after": max(lost - 3, 0), "before": lost + 3}
    for bounds in ({}, {"limit": lost}, around, {"after": lost - 1, "limit": 1}):
        for reverse in (False, True):
            if reverse and "limit" in bounds:
                bounds = {"before": lost + 1, "limit": 1}
            with pytest.raises(Corruption) as found:
                await store.read_events("talk", **bounds, reverse=reverse)
            assert found.value.details["seq"] == lost
    with pytest.raises(Corruption):
        await export_sessions(store, ["talk"], tmp_path / "export")
    with pytest.raises(Corruption):
        await store.erase("talk", slot("line 3", "message").id, "asked-to")
    before = await store.read_events("talk", before=lost)
    after = await store.read_events("talk", after=lost, reverse=True)
    assert [event.seq for event in before] == list(range(1, lost))
    assert [event.seq for event in after] == list(range(20, lost, -1))
    (problem, *_) = (await verify(store, "talk")).problems
    assert (problem.kind, problem.seq) == ("gap", lost)
    await store.close()


async def test_no_flipped_bit_in_the_index_hides_events_or_breaks_verify(tmp_path):
    await store_of(tmp_path / "good", events=30)
    connection = connect(tmp_path / "good")
    named = "SELECT rootpage FROM sqlite_schema WHERE name = 'sqlite_autoindex_events_1'"
    page, size = connection.execute(named).get, connection.pragma("page_size")
    connection.close()
    good = (tmp_path / "good" / "events.db").read_bytes()
    start = (page - 1) * size
    for number in range(2, 30, 3):
        pointer = start + 8 + 2 * number
        # A cell: its length, its header's, then the types of session, seq and row.
        at = start + int.from_bytes(good[pointer : pointer + 2], "big") + 3
        spoiled = tmp_path / str(number)
        spoiled.mkdir()
        (spoiled / "events.db").write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
        store = await SqliteSessionStore.open(spoiled)
        assert (await verify(store, "talk")).problems
        for reverse in (False, True):
            with pytest.raises(Corruption):
                await store.read_events("talk", reverse=reverse)
        await store.close()


async def test_erased_bytes_are_in_no_file_of_the_store(tmp_path):
    store = await SqliteSessionStore.open(tmp_path)
    state = await store.create_session("talk", facts.SessionStarted())
    lease = await store.acquire("talk")
    secrets = {
        "inline": slot("xyzzy-inline-secret", "message"),
        "row": slot("xyzzy-row-secret " * 100, "message"),
        "blob": slot("xyzzy-blob-secret " * 9000, "message"),
    }
    for number, item in enumerate(secrets.values(), 1):
        message = facts.MessageAppended(message=number, role="user", content=item)
        state = (await store.append(lease, state.seq, [message])).state
    for item in secrets.values():
        assert await store.erase("talk", item.id, "asked-to") == 1
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not any(b"xyzzy" in path.read_bytes() for path in files)
    assert not any(path.name.endswith(".zst") for path in files)
    assert (await verify(store, "talk")).ok
    await store.close()


async def test_bytes_of_a_deleted_session_are_in_no_file_of_the_store_after_gc(tmp_path):
    store = await SqliteSessionStore.open(tmp_path)
    await store.create_session("talk", facts.SessionStarted())
    lease = await store.acquire("talk")
    secrets = [slot("xyzzy" * times, "message") for times in (5, 500, 50_000)]
    new = [
        facts.MessageAppended(message=number, role="user", content=item)
        for number, item in enumerate(secrets, 1)
    ]
    await store.append(lease, 1, new)
    await store.put_inbox("talk", InboxDraft("first", "message", content=secrets[0]))
    await store.release(lease)
    await store.delete("talk")
    await store.gc(grace_seconds=0)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not any(b"xyzzy" in path.read_bytes() for path in files)
    assert not any(path.name.endswith(".zst") for path in files)
    await store.close()


DAMAGE = {
    "a flipped inline value": "UPDATE events SET data = replace(data, 'tiny', 'tinx')",
    "an event that does not decode": "UPDATE events SET data = substr(data, 2) WHERE seq = 3",
    "an event that is no text": "UPDATE events SET data = CAST(x'7bff7d' AS TEXT) WHERE seq = 3",
    "an event's type that is no text": "UPDATE events SET type = CAST(x'ff' AS TEXT) WHERE seq = 3",
    "an event's time that is no text": "UPDATE events SET at = CAST(x'ff' AS TEXT) WHERE seq = 5",
    "a status that is no text": "UPDATE sessions SET status = CAST(x'ff' AS TEXT)",
    "an event of another time": "UPDATE events SET at = 'then' WHERE seq = 2",
    "the first event lost": "DELETE FROM events WHERE seq = 1",
    "an event in the middle lost": "DELETE FROM events WHERE seq = 3",
    "the last event lost": "DELETE FROM events WHERE seq = 5",
    "all events lost": "DELETE FROM events",
    "a wrong digest in the middle": "UPDATE events SET digest = zeroblob(32) WHERE seq = 3",
    "a wrong digest at the end": "UPDATE events SET digest = zeroblob(32) WHERE seq = 5",
    "a digest of the wrong type": "UPDATE events SET digest = 5",
    "a wrong digest in the session's row": "UPDATE sessions SET digest = zeroblob(32)",
    "a session's row of another kind": "UPDATE sessions SET kind = 'child', agent = 'other'",
    "a session's row with other sums": "UPDATE sessions SET usd = '9', status = 'stopped'",
    "a payload row lost": "DELETE FROM payloads WHERE data IS NOT NULL",
    "all payload rows lost": "DELETE FROM payloads",
    "the refs lost": "UPDATE payloads SET session = NULL, used = 0",
    "payload bytes lost": "UPDATE payloads SET data = NULL",
    "payload bytes flipped": "UPDATE payloads SET data = zeroblob(size) WHERE data IS NOT NULL",
    "payload bytes where a file is": "UPDATE payloads SET data = zeroblob(size)",
    "wrong payload sizes": "UPDATE payloads SET size = size + 1",
}


@pytest.mark.parametrize("damage", [*DAMAGE, "files lost"])
async def test_importing_the_same_log_heals_what_is_damaged(tmp_path, damage):
    store = await SqliteSessionStore.open(tmp_path)
    await store.create_session("talk", facts.SessionStarted())
    lease = await store.acquire("talk")
    gone = slot("a value that was erased before", "message")
    contents = [slot(text, "message") for text in ("tiny", "row " * 500, "blob " * 50_000)]
    new = [
        facts.MessageAppended(message=number, role="user", content=item)
        for number, item in enumerate([gone, *contents], 1)
    ]
    await store.append(lease, 1, new)
    await export_sessions(store, ["talk"], tmp_path / "export")
    await store.erase("talk", gone.id, "rule")
    await store.close()
    connection = connect(tmp_path)
    connection.execute(DAMAGE.get(damage, "SELECT 1"))
    connection.close()
    if damage == "files lost":
        for path in tmp_path.glob("blobs/*/*/*"):
            path.unlink()
    store = await SqliteSessionStore.open(tmp_path)
    assert not (await verify(store, "talk")).ok
    (done,) = await import_sessions(store, tmp_path / "export")
    assert done.outcome == "unchanged"
    report = await verify(store, "talk")
    assert (report.problems, report.events, report.erased) == ((), 5, 1)
    assert "erased before" not in str([event.data for event in await store.read_events("talk")])
    assert (await store.gc(grace_seconds=0)).payloads == 0
    lease = await store.acquire("talk")
    state = await store.load_state("talk")
    more = facts.MessageAppended(message=5, role="user", content=slot("more", "message"))
    await store.append(lease, state.seq, [more])
    assert (await verify(store, "talk")).ok
    await store.close()


async def test_gc_takes_an_orphan_whose_size_is_damaged_and_names_it(tmp_path, caplog):
    store = await SqliteSessionStore.open(tmp_path)
    await store.create_session("talk", facts.SessionStarted())
    one, two = [await store.put_payload("talk", slot(n * 600, "message")) for n in "ab"]
    connect(tmp_path).execute("UPDATE payloads SET size = 'lost' WHERE key = 1")
    for dry_run in (True, False):
        caplog.clear()
        report = await store.gc(dry_run=dry_run, grace_seconds=-1)
        assert (sorted(report.ids), report.bytes) == (sorted([one.id, two.id]), two.size)
        assert one.id in caplog.text
    await store.close()


async def test_a_copy_that_does_not_prove_itself_heals_nothing(tmp_path):
    await store_of(tmp_path, events=5)
    store = await SqliteSessionStore.open(tmp_path)
    events = await store.read_events("talk")
    connect(tmp_path).execute("DELETE FROM events WHERE seq = 3")
    forged = [*events[:2], replace(events[2], data=events[3].data), *events[3:]]
    with pytest.raises(Corruption, match="event 3"):
        await store.import_log(Copy("talk", forged))
    assert not (await verify(store, "talk")).ok
    await store.close()


@pytest.mark.parametrize("epoch", ["'abc'", "2.5", "x'ff'"])
async def test_a_damaged_epoch_is_named_when_a_lease_is_wanted(tmp_path, epoch):
    state = await store_of(tmp_path, 3)
    connection = connect(tmp_path)
    connection.execute(f"UPDATE sessions SET epoch = {epoch}")
    connection.close()
    store = await SqliteSessionStore.open(tmp_path)
    with pytest.raises(Corruption, match="session 'talk' is damaged") as caught:
        await store.acquire("talk")
    assert caught.value.details["session"] == "talk"
    assert await store.load_state("talk") == state
    await export_sessions(store, ["talk"], tmp_path / "talk.jsonl")
    await store.close()


async def test_a_place_whose_name_is_not_utf_8_is_refused_and_left_alone(tmp_path):
    place = tmp_path / os.fsdecode(b"caf\xe9")
    with pytest.raises(InvalidInput, match="not in UTF-8"):
        await SqliteSessionStore.open(place)
    assert not list(tmp_path.iterdir())
