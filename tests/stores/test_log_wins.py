"""The log wins over every derived row: what differs is noticed, reported once and made anew."""

import json

import apsw
import pytest

from holdfast.core import facts
from holdfast.core.errors import Corruption
from holdfast.core.payloads import slot
from holdfast.stores.files.store import FilesSessionStore
from holdfast.stores.port import PendingFilter, SessionFilter
from holdfast.stores.snapshots import SNAPSHOT_EVENTS
from holdfast.stores.sqlite.store import SqliteSessionStore
from holdfast.stores.verify import verify
from holdfast.testing.driver import drive


def change(path, sql):
    with apsw.Connection(str(path / "events.db")) as connection:
        connection.execute(sql)


def warnings(caplog, words):
    return [r.message for r in caplog.records if words in r.message and r.levelname == "WARNING"]


async def talk(path, events=3, store=SqliteSessionStore):
    """Return what readers see of a session of some events, in a store that was closed again."""
    store = await store.open(path)
    driver = await drive(store, "talk", facts.SessionStarted(agent="clerk", labels={"a": "b"}))
    for number in range(events):
        await driver.say(f"message {number}")
    await driver.turn("hello")
    await store.release(driver.lease)
    info = await store.session_info("talk")
    await store.close()
    return driver.state, info


FALSIFIED = {
    "a later position": "seq = seq + 2",
    "an earlier position": "seq = seq - 2",
    "a position that is text": "seq = 'many'",
    "another digest": "digest = zeroblob(32)",
    "a digest that is text": "digest = 'none'",
    "another status": "status = 'failed'",
    "other sums": "usd = '9.99', tokens = 5, unknown_usd = 2, turns = 7",
    "another head": "head = 'sha256:00', last_turn = 'failed'",
    "another agent": "agent = 'boss', kind = 'child', labels = '{}', parent = 's-9'",
    "another name": "name = 'bold-badger-0000'",
    "other times": "started_at = 'x', updated_at = 'y'",
    "garbled text": "status = CAST(x'61ff62' AS TEXT), usd = CAST(x'ff' AS TEXT)",
}


@pytest.mark.parametrize("falsified", FALSIFIED.values(), ids=FALSIFIED)
async def test_a_falsified_session_row_is_noticed_reported_once_and_made_anew(
    tmp_path, falsified, caplog
):
    state, info = await talk(tmp_path)
    change(tmp_path, f"UPDATE sessions SET {falsified}")
    store = await SqliteSessionStore.open(tmp_path)
    assert not (await verify(store, "talk")).ok
    for _ in range(2):
        assert await store.session_info("talk") == info
        assert await store.load_state("talk") == state
        assert len(await store.read_events("talk")) == state.seq
        assert len(await store.read_events("talk", reverse=True)) == state.seq
    lease = await store.acquire("talk")
    assert lease.seq == state.seq
    assert len(warnings(caplog, "the row of session talk does not agree")) == 1
    assert (await verify(store, "talk")).ok
    fact = facts.MessageAppended(
        message=state.next("message"), role="user", content=slot("goes on", "message")
    )
    assert (await store.append(lease, state.seq, [fact])).state.seq == state.seq + 1
    found = await store.list_sessions(SessionFilter(name=info.name, status="idle"))
    assert [(one.id, one.seq) for one in found.sessions] == [("talk", state.seq + 1)]
    assert (await verify(store, "talk")).ok
    await store.close()


async def test_a_falsified_row_is_noticed_by_an_append_under_a_lease(tmp_path, caplog):
    store = await SqliteSessionStore.open(tmp_path)
    driver = await drive(store, "talk")
    change(tmp_path, "UPDATE sessions SET seq = seq + 5, status = 'failed'")
    await driver.say("goes on")
    assert len(warnings(caplog, "the row of session talk does not agree")) == 1
    assert (await verify(store, "talk")).ok
    await store.close()


async def test_a_row_ahead_of_its_log_is_believed_where_events_may_be_lost(tmp_path):
    state, _ = await talk(tmp_path)
    change(tmp_path, f"DELETE FROM events WHERE seq = {state.seq}")
    store = await SqliteSessionStore.open(tmp_path)
    with pytest.raises(Corruption, match=f"event {state.seq} of session 'talk'"):
        await store.load_state("talk")
    assert not (await verify(store, "talk")).ok
    await store.close()


async def test_a_row_that_names_another_tenant_gives_that_tenant_nothing(tmp_path):
    await talk(tmp_path)
    change(tmp_path, "UPDATE sessions SET tenant = 'acme'")
    store = await SqliteSessionStore.open(tmp_path)
    with pytest.raises(Corruption, match="another tenant"):
        await store.of("acme").load_state("talk")
    assert not (await verify(store.of("acme"), "talk")).ok
    await store.close()


SPOILED = {
    "of another log": "digest = zeroblob(32)",
    "with a wrong checksum": "checksum = zeroblob(32)",
    "with another content": "body = CAST(replace(CAST(body AS TEXT), 'clerk', 'boss') AS BLOB)",
    "with garbage": "body = 5, digest = 'x'",
}


@pytest.mark.parametrize("spoiled", SPOILED.values(), ids=SPOILED)
async def test_a_damaged_snapshot_is_noticed_reported_once_and_made_anew(tmp_path, spoiled, caplog):
    state, _ = await talk(tmp_path, SNAPSHOT_EVENTS)
    change(tmp_path, f"UPDATE snapshots SET {spoiled}")
    store = await SqliteSessionStore.open(tmp_path)
    assert await store.load_state("talk") == state
    assert await store.load_state("talk") == state
    driver = await drive(store, "talk", facts.SessionStarted(agent="clerk", labels={"a": "b"}))
    await driver.say("goes on")
    assert len(warnings(caplog, "the snapshot of session talk does not agree")) == 1
    await store.close()
    caplog.clear()
    store = await SqliteSessionStore.open(tmp_path)
    assert await store.load_state("talk") == driver.state
    assert caplog.records == []
    await store.close()


async def test_a_lost_snapshot_of_a_long_log_is_made_anew_by_the_next_append(tmp_path):
    await talk(tmp_path, 3 * SNAPSHOT_EVENTS)
    change(tmp_path, "DELETE FROM snapshots")
    store = await SqliteSessionStore.open(tmp_path)
    driver = await drive(store, "talk", facts.SessionStarted(agent="clerk", labels={"a": "b"}))
    await driver.say("goes on")
    rows = apsw.Connection(str(tmp_path / "events.db")).execute("SELECT seq FROM snapshots")
    assert rows.fetchall() == [(driver.state.seq,)]
    await store.close()


async def test_falsified_rows_of_waiting_calls_are_made_anew_by_who_takes_the_lease(
    tmp_path, caplog
):
    store = await SqliteSessionStore.open(tmp_path)
    driver = await drive(store, "talk")
    await driver.ask("c-1", deadline="2999-01-01T00:00:00Z", assignee="ann")
    listed = (await store.pending()).waits
    await store.release(driver.lease)
    change(tmp_path, "UPDATE pending_calls SET deadline = '2020-01-01T00:00:00Z', due_at = 0")
    assert not (await verify(store, "talk")).ok
    await store.acquire("talk")
    assert (await store.pending(PendingFilter(session="talk"))).waits == listed
    assert len(warnings(caplog, "waiting calls of session talk")) == 1
    await store.close()


@pytest.mark.parametrize("column", ["ticks", "wall", "seconds", "pid"])
async def test_a_garbled_owner_row_is_a_typed_error(tmp_path, column):
    store = await SqliteSessionStore.open(tmp_path)
    await drive(store, "talk")
    other = await SqliteSessionStore.open(tmp_path)
    change(tmp_path, f"UPDATE owners SET {column} = 'garbled'")
    for verb in (other.acquire, other.lease_of, other.delete):
        with pytest.raises(Corruption, match="heartbeat of owner") as refused:
            await verb("talk")
        assert refused.value.details["owner"] == store.owner
    assert [info.id for info in (await other.list_sessions()).sessions] == ["talk"]
    assert (await other.acquire("talk", takeover=True)).epoch == 2
    await other.close()
    await store.close()


def spoil_run(record):
    yield b"\xff\x00 not JSON"
    yield b"[]"
    yield json.dumps(record | {"status": "failed", "usd": "9.99"}).encode()
    state = record["snapshot"]["tip"]["state"] | {"agent": "boss"}
    tip = record["snapshot"]["tip"] | {"state": state}
    yield json.dumps(record | {"snapshot": record["snapshot"] | {"tip": tip}}).encode()
    yield json.dumps({key: value for key, value in record.items() if key != "check"}).encode()


@pytest.mark.parametrize("number", range(5))
async def test_a_falsified_run_file_is_noticed_reported_once_and_made_anew(
    tmp_path, number, caplog
):
    state, info = await talk(tmp_path, store=FilesSessionStore)
    path = tmp_path / "runs" / "talk" / "run.json"
    good = json.loads(path.read_bytes())
    path.write_bytes(list(spoil_run(good))[number])
    store = await FilesSessionStore.open(tmp_path)
    for _ in range(2):
        assert await store.load_state("talk") == state
        assert await store.session_info("talk") == info
    assert (await verify(store, "talk")).ok
    await store.release(await store.acquire("talk"))
    await store.close()
    assert len(warnings(caplog, "run.json of session talk does not agree")) == 1
    made = json.loads(path.read_bytes())
    assert {key for key in good if made[key] != good[key]} <= {"snapshot", "check"}
    assert made["snapshot"]["tip"]["state"]["digest"] == state.digest
