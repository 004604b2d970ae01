"""Verify compares what a store keeps beside the log with what the log says."""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import apsw
import pytest

from holdfast.core import facts
from holdfast.core.errors import HoldfastError
from holdfast.core.escrow import closing
from holdfast.core.heads import HeadDraft
from holdfast.core.payloads import slot
from holdfast.core.records import canonical, parse
from holdfast.stores.memory.store import MemorySessionStore
from holdfast.stores.port import InboxDraft
from holdfast.stores.sqlite.store import SqliteSessionStore
from holdfast.stores.verify import verify


async def filled(path: Path) -> None:
    store = await SqliteSessionStore.open(path)
    await store.create_session("a", facts.SessionStarted(labels={"team": "red"}))
    lease = await store.acquire("a")
    await store.append(
        lease,
        1,
        [
            facts.TurnStarted(turn=1),
            facts.MessageAppended(message=1, role="user", content=slot("hello", "message"), turn=1),
            facts.TurnPut(turn=1, status="final", final=slot("x" * 900, "final")),
        ],
        head=HeadDraft(kind="turn_final", turn=1),
    )
    await store.put_inbox("a", InboxDraft("k", "message", content=slot("y" * 900, "input")))
    await store.release(lease)
    assert (await verify(store, "a")).ok
    await store.close()


@pytest.mark.parametrize(
    ("statement", "kind"),
    [
        ("UPDATE sessions SET status = 'suspended'", "state"),
        ("UPDATE sessions SET usd = '9.99'", "state"),
        ("UPDATE sessions SET labels = '{}'", "state"),
        ("UPDATE sessions SET kind = 'fork'", "state"),
        ("UPDATE sessions SET head = NULL", "state"),
        ("UPDATE sessions SET digest = zeroblob(32)", "state"),
        ("UPDATE sessions SET seq = 3", "state"),
        ("UPDATE sessions SET seq = 9", "state"),
        ("UPDATE inbox SET consumed_seq = 77", "inbox"),
        (
            "DELETE FROM payloads WHERE data = CAST(replace(hex(zeroblob(450)), '0', 'y') AS BLOB)",
            "",
        ),
        ("UPDATE events SET at = '2020-01-01T00:00:00.000000Z' WHERE seq = 2", "digest"),
        ("UPDATE events SET type = 'step.started' WHERE seq = 2", "digest"),
        ("UPDATE events SET version = 2 WHERE seq = 2", "digest"),
        ("DELETE FROM events WHERE seq = 3", "gap"),
        ("UPDATE events SET data = replace(data, 'sha256:', 'sha257:') WHERE seq = 4", "digest"),
        ("UPDATE events SET data = replace(data, '\"kind\"', '\"kine\"') WHERE seq = 4", "digest"),
        ("UPDATE events SET data = replace(data, '\"text\"', '\"tezt\"') WHERE seq = 4", "digest"),
        ("UPDATE sessions SET labels = '{'", "state"),
        ("UPDATE events SET data = replace(data, ':900', ':901') WHERE seq = 4", "payload"),
        ("UPDATE inbox SET content = replace(content, ':900', ':901')", "payload"),
        # One flipped bit in the head of a row makes another type of a value.
        ("UPDATE sessions SET seq = 'abc'", "state"),
        ("UPDATE sessions SET digest = hex(digest)", "state"),
        ("UPDATE payloads SET data = CAST(data AS TEXT)", "payload"),
        ("UPDATE inbox SET content = 'abc'", "inbox"),
        ("UPDATE inbox SET consumed_seq = 'abc'", "inbox"),
        ("INSERT INTO erasures SELECT key, 'abc', 'at', 'rule' FROM sessions", "erased"),
    ],
)
async def test_a_changed_row_is_found(tmp_path: Path, statement: str, kind: str) -> None:
    await filled(tmp_path)
    database = apsw.Connection(str(tmp_path / "events.db"))
    database.execute(statement)
    assert database.changes() > 0
    database.close()
    store = await SqliteSessionStore.open(tmp_path)
    report = await verify(store, "a")
    for read in (store.load_state, store.read_events, store.list_inbox, store.erased):
        with suppress(HoldfastError):  # and with nothing else
            await read("a")
    await store.close()
    assert not report.ok
    assert kind == "" or kind in {problem.kind for problem in report.problems}


TEXTS = ("id", "kind", "agent", "parent", "origin", "labels", "started_at", "owner")
MOVING_TEXTS = ("status", "updated_at", "last_turn", "head", "usd")


@pytest.mark.parametrize("column", [*TEXTS, *MOVING_TEXTS])
async def test_a_row_with_a_text_that_does_not_decode_hides_no_other_session(
    tmp_path: Path, column: str
) -> None:
    await filled(tmp_path)
    store = await SqliteSessionStore.open(tmp_path)
    await store.create_session("b", facts.SessionStarted())
    database = apsw.Connection(str(tmp_path / "events.db"))
    database.execute(f"UPDATE sessions SET {column} = CAST(x'61ff62' AS TEXT) WHERE id = 'a'")
    database.close()
    page = await store.list_sessions()
    assert page.sessions[0] == await store.session_info("b")
    assert len(page.sessions) == 2
    if column != "id":
        assert page.sessions[1].id == "a"
        assert column == "owner" or not (await verify(store, "a")).ok
    await store.close()


async def test_a_tombstone_that_nobody_wrote_is_found(tmp_path: Path) -> None:
    await filled(tmp_path)
    database = apsw.Connection(str(tmp_path / "events.db"))
    data = parse(database.execute("SELECT data FROM events WHERE seq = 3").get)
    item = slot("hello", "message")
    data["content"] = item.ref() | {"$erased": {"at": "2026-01-01", "rule": "privacy"}}
    database.execute("UPDATE events SET data = ? WHERE seq = 3", (canonical(data).decode(),))
    database.close()
    store = await SqliteSessionStore.open(tmp_path)
    report = await verify(store, "a")
    await store.close()
    assert [(p.kind, p.seq) for p in report.problems] == [("erased", 3)]


@pytest.mark.parametrize(("calls", "ok"), [(1, True), (2, False)])
async def test_verify_compares_what_closed_a_grant_with_the_log_of_the_child(
    calls: int, ok: bool
) -> None:
    store = MemorySessionStore()
    await store.create_session("above", facts.SessionStarted())
    parent = {"session": "above", "call": "c1"}
    await store.create_session("below", facts.SessionStarted(kind="child", parent=parent))
    lease = await store.acquire("below")
    usage: facts.Usage = {"input_tokens": 3, "output_tokens": 4}
    await store.append(
        lease,
        1,
        [
            facts.TurnStarted(turn=1),
            facts.StepStarted(step=1, turn=1, ordinal=0),
            facts.StepPut(step=1, turn=1, status="replied", usage=usage, cost_usd="0.5"),
            facts.TurnPut(turn=1, status="failed"),
        ],
    )
    told = closing("c1", await store.load_state("below"))
    await store.append(
        await store.acquire("above"),
        1,
        [
            facts.BudgetReserved(reservation="call:c1", child="below", calls=9),
            replace(told, calls=calls),
        ],
    )
    report = await verify(store, "above")
    assert [problem.kind for problem in report.problems] == ([] if ok else ["children"])
