"""The SQLite writer: group commit, refusals beside successes, failures told apart."""

import asyncio
import gc
import os
import threading
import uuid
import weakref
from dataclasses import replace

import apsw
import pytest
from msgspec import structs

from holdfast.blobs.disk import Disk
from holdfast.core import facts
from holdfast.core.errors import (
    Corruption,
    InboxConflict,
    InboxConsumed,
    InboxItemNotFound,
    InvalidRef,
    LeaseHeld,
    LeaseLost,
    NothingWritten,
    OutcomeUnknown,
    PayloadNotFound,
    PositionConflict,
    StoreFailed,
)
from holdfast.core.heads import HeadDraft
from holdfast.core.payloads import manifest, slot, to_record
from holdfast.core.replay import Copy, prove
from holdfast.core.state import Spend, empty
from holdfast.stores import feed
from holdfast.stores.feed import POLL_SECONDS
from holdfast.stores.port import ROW_PAYLOAD_BYTES, InboxDraft, Lease, Transient
from holdfast.stores.snapshots import SNAPSHOT_EVENTS
from holdfast.stores.sqlite import events as event_rows
from holdfast.stores.sqlite import leases
from holdfast.stores.sqlite import sessions as session_rows
from holdfast.stores.sqlite.foreseen import AHEAD_BYTES, AHEAD_FACTS, MOST_ROWS
from holdfast.stores.sqlite.store import SqliteSessionStore
from holdfast.stores.sqlite.writer import Job
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


class Hold:
    """Keeps the writer busy inside a transaction until it is let go."""

    def __init__(self, store):
        self._store = store
        self._entered, self._leave = threading.Event(), threading.Event()

    async def __aenter__(self):
        self._task = self._store._writer.run(Job(self._work))
        await asyncio.to_thread(self._entered.wait)

    async def __aexit__(self, *_):
        self._leave.set()
        await self._task

    def _work(self, _):
        self._entered.set()
        self._leave.wait()


async def submitted(store, count):
    """Wait until that many jobs stand in the writer's queue."""
    while store._writer._queue.qsize() < count:  # noqa: ASYNC110 - the queue has no event for it
        await asyncio.sleep(0)


async def test_what_queues_during_a_commit_is_one_commit(store):
    sessions = [await start(store, f"talk-{n}") for n in range(16)]
    commits = []

    def committing():
        commits.append(1)
        return False

    store._connection.set_commit_hook(committing)
    async with Hold(store):
        tasks = [
            asyncio.create_task(store.append(lease, state.seq, [message(1)]))
            for lease, state in sessions
        ]
        await submitted(store, 16)
    await asyncio.gather(*tasks)
    assert len(commits) == 2  # the one that was held, and all the rest


async def test_of_many_the_first_half_goes_on_while_the_second_is_committed(store):
    sessions = [await start(store, f"talk-{n}") for n in range(40)]
    told = threading.Event()
    early = []

    def committing():
        if len(early) == 2:  # the one that was held and the first half are behind us
            early.append(told.wait(20))
        else:
            early.append(None)
        return False

    store._connection.set_commit_hook(committing)
    async with Hold(store):
        tasks = [
            asyncio.create_task(store.append(lease, state.seq, [message(1)]))
            for lease, state in sessions
        ]
        await submitted(store, 40)
    await asyncio.gather(*tasks[:20])
    told.set()
    await asyncio.gather(*tasks)
    assert early == [None, None, True]


async def test_of_many_the_first_half_is_told_before_the_writer_waits_for_another_process(store):
    sessions = [await start(store, f"talk-{n}") for n in range(40)]
    other = apsw.Connection(str(store._path / "events.db"))
    commit, groups = store._writer._commit, []

    def committing(jobs):
        commit(jobs)
        if len(jobs) > 1 and not groups:
            groups.append(len(jobs))
            other.execute("BEGIN IMMEDIATE")

    store._writer._commit = committing
    async with Hold(store):
        tasks = [
            asyncio.create_task(store.append(lease, state.seq, [message(1)]))
            for lease, state in sessions
        ]
        await submitted(store, 40)
    half = 21  # of these and the one that was held, who may come back
    told, waiting = await asyncio.wait(tasks[:half], timeout=20)
    later = [task.done() for task in tasks[half:]]
    other.execute("ROLLBACK")
    await asyncio.gather(*tasks)
    assert (groups, len(told), len(waiting)) == ([half], half, 0)
    assert not any(later)


async def append_at_once(store, appends):
    """Append to several sessions in one group; return what became of each."""
    async with Hold(store):
        tasks = [asyncio.create_task(append) for append in appends]
        await submitted(store, len(tasks))
    return await asyncio.gather(*tasks, return_exceptions=True)


async def test_in_a_group_only_the_append_whose_lease_is_lost_is_refused(store):
    sessions = [await start(store, f"talk-{n}") for n in range(5)]
    other = apsw.Connection(str(store._path / "events.db"))
    other.execute("UPDATE sessions SET epoch = epoch + 1 WHERE id = 'talk-3'")
    done = await append_at_once(
        store, [store.append(lease, 1, [message(1)]) for lease, _ in sessions]
    )
    assert [type(one).__name__ for one in done] == [
        *["Appended"] * 3,
        "LeaseLost",
        "Appended",
    ]
    for n in range(5):
        assert (await store.load_state(f"talk-{n}")).seq == (1 if n == 3 else 2)
        assert (await verify(store, f"talk-{n}")).ok


async def test_a_value_that_a_whole_group_brings_is_stored_once_and_everyones(store):
    sessions = [await start(store, f"talk-{n}") for n in range(5)]
    same = slot("the same " * 100, "message")
    await store.put_payload("talk-4", same)
    await append_at_once(
        store, [store.append(lease, 1, [message(1, same)]) for lease, _ in sessions]
    )
    other = apsw.Connection(str(store._path / "events.db"))
    assert other.execute("SELECT count(*) FROM payloads").get == 1
    for lease, _ in sessions[:4]:
        await store.release(lease)
    for n in range(4):
        assert await store.get_payload(f"talk-{n}", same.id) == same.data
        await store.delete(f"talk-{n}")
        await store.gc(grace_seconds=-1)
    assert await store.get_payload("talk-4", same.id) == same.data


async def test_a_group_of_more_rows_than_a_statement_has_is_written_whole(store):
    sessions = [await start(store, f"talk-{n}") for n in range(16)]
    texts = [[f"{n}-{i} " * 200 for i in range(MOST_ROWS // 16 + 1)] for n in range(16)]
    commits = []
    store._connection.set_commit_hook(lambda: bool(commits.append(1)))
    await append_at_once(
        store,
        [
            store.append(lease, 1, [message(i, text) for i, text in enumerate(said, 1)])
            for (lease, _), said in zip(sessions, texts, strict=True)
        ],
    )
    assert len(commits) == 2  # the one that was held, and the group
    for n in range(16):
        said = await store.read_events(f"talk-{n}", after=1)
        values = [await store.get_payload(f"talk-{n}", e.fact().content.id) for e in said]
        assert [value.decode() for value in values] == texts[n]
        assert (await verify(store, f"talk-{n}")).ok


async def test_an_append_of_a_group_that_gives_its_lease_back_hears_what_waits(store, monkeypatch):
    sessions = [await start(store, f"talk-{n}") for n in range(3)]
    waiting, looks = leases.waiting, []

    def look(cursor, row):
        looks.append(cursor.connection.in_transaction)
        return waiting(cursor, row)

    monkeypatch.setattr(leases, "waiting", look)
    await store.put_inbox("talk-1", InboxDraft("key", "message"))
    done = await append_at_once(
        store,
        [
            store.append(lease, 1, [message(1)], release=lease.session != "talk-2")
            for lease, _ in sessions
        ],
    )
    assert [one.inbox for one in done] == [0, 1, None]
    assert looks == [True, True]
    for n in range(2):
        assert (await store.acquire(f"talk-{n}")).epoch == 2
    await store.append(sessions[2][0], 2, [message(2)])


async def at_once(store, calls):
    """Return what calls give that were foreseen, and whether one statement did them all."""
    steps, work = [], store._writer._work
    store._writer._work = lambda job, **how: (steps.append(job), work(job, **how))
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(call) for call in calls]
    finally:
        store._writer._work = work
    return [task.result() for task in tasks], not steps


async def test_a_lease_is_taken_again_at_once_while_nobody_else_had_it(store):
    lease, _ = await start(store)
    done, swift = await at_once(store, [store.append(lease, 1, [message(1)], release=True)])
    assert (done[0].inbox, swift) == (0, True)
    taken, swift = await at_once(store, [store.acquire("talk")])
    assert (taken[0].epoch, taken[0].seq, taken[0].inbox, swift) == (2, 2, 0, True)
    with pytest.raises(LeaseLost):
        await store.append(lease, 2, [message(2)])
    with pytest.raises(LeaseHeld):
        await store.acquire("talk")
    await store.append(taken[0], 2, [message(2)])


@pytest.mark.parametrize("waiting", [1, 2])
async def test_a_lease_is_given_back_with_the_last_item_that_waits_and_with_no_other(
    store, waiting
):
    lease, _ = await start(store)
    for n in range(waiting):
        await store.put_inbox("talk", InboxDraft(f"item-{n}", "message"))
    append = store.append(lease, 1, [message(1)], consumes=["item-0"], release=True)
    (done,), swift = await at_once(store, [append])
    assert (done.inbox, swift) == (waiting - 1, waiting == 1)
    assert [item.key for item in await store.list_inbox("talk")] == ["item-1"][: waiting - 1]
    assert (await store.lease_of("talk")) is None


async def test_a_lease_that_is_taken_at_once_is_one_of_two_who_ask(store):
    lease, _ = await start(store)
    await store.release(lease)
    done = await append_at_once(store, [store.acquire("talk"), store.acquire("talk")])
    assert sorted(type(one).__name__ for one in done) == ["Lease", "LeaseHeld"]


async def test_a_lease_taken_beside_slower_work_is_held_for_it_too(store):
    lease, _ = await start(store)
    await store.release(lease)
    store._holdings._left.clear()
    first = store.acquire("talk")
    async with Hold(store):
        one = asyncio.create_task(first)
        await submitted(store, 1)
        store._log.states._known.clear()  # the second one cannot be foreseen
        two = asyncio.create_task(store.acquire("talk"))
        await submitted(store, 2)
    assert (await one).epoch == 2
    with pytest.raises(LeaseHeld):
        await two


@pytest.mark.parametrize("other", ["drives", "drove", "appended", "asked"])
async def test_a_lease_is_not_taken_at_once_where_others_were(store, other):
    lease, state = await start(store)
    await store.release(lease)
    theirs = await SqliteSessionStore.open(store._path)
    if other == "asked":
        await theirs.put_inbox("talk", InboxDraft("key", "message"))
    else:
        held = await theirs.acquire("talk")
    if other == "appended":
        await theirs.append(held, state.seq, [message(1)])
    if other in ("drove", "appended"):
        await theirs.release(held)
    if other == "drives":
        with pytest.raises(LeaseHeld):
            await store.acquire("talk")
    else:
        taken = await store.acquire("talk")
        assert taken.epoch == (2 if other == "asked" else 3)
        assert taken.seq == (2 if other == "appended" else 1)
        assert taken.inbox == (1 if other == "asked" else 0)
    await theirs.close()


@pytest.mark.parametrize(
    ("change", "outcome"),
    [
        ("seq = seq + 1", 2),
        ("imported = 1", "ReadOnlySession"),
        ("owner = :theirs", "LeaseHeld"),
        ("epoch = 'spoilt'", "Corruption"),
    ],
)
async def test_a_lease_is_not_taken_at_once_where_the_row_says_else(store, change, outcome):
    await store.release((await start(store))[0])
    await store.close()
    theirs = await SqliteSessionStore.open(store._path)
    await start(theirs, "another")  # shows that they are alive
    other = apsw.Connection(str(store._path / "events.db"))
    if outcome == "Corruption":
        other.execute(f"UPDATE sessions SET {change} WHERE id = 'talk'")
    ours = await SqliteSessionStore.open(store._path)
    await start(ours, "ours")
    await ours.load_state("talk")
    other.execute(f"UPDATE sessions SET {change} WHERE id = 'talk'", {"theirs": theirs.owner})
    (taken,) = await asyncio.gather(ours.acquire("talk"), return_exceptions=True)
    assert (taken.seq if isinstance(taken, Lease) else type(taken).__name__) == outcome
    await ours.close()
    await theirs.close()


def failing(store, error, *, after=False):
    """Let the next statement of a group fail, before or after it is committed."""
    realize = store._writer._realize

    def fail(cursor, items):
        store._writer._realize = realize
        if after:
            realize(cursor, items)
        raise error

    store._writer._realize = fail


def io_error(code):
    error = apsw.IOError("disk I/O error")
    error.extendedresult = code
    return error


@pytest.mark.parametrize(
    "error",
    [
        io_error(apsw.SQLITE_IOERR_SHMMAP),
        io_error(apsw.SQLITE_IOERR_SHMSIZE),
        io_error(apsw.SQLITE_IOERR_FSYNC),
        apsw.FullError("database or disk is full"),
        apsw.NoMemError("out of memory"),
        MemoryError(),
    ],
)
async def test_a_group_whose_statement_failed_after_its_commit_is_found(store, error):
    sessions = [await start(store, f"talk-{n}") for n in range(3)]
    failing(store, error, after=True)
    done = await append_at_once(
        store, [store.append(lease, 1, [message(1)]) for lease, _ in sessions]
    )
    assert [one.state.seq for one in done] == [2, 2, 2]
    for n in range(3):
        assert (await verify(store, f"talk-{n}")).ok


async def test_a_lease_that_was_refused_by_a_full_disk_takes_none_from_its_holder(store):
    lease, _ = await start(store)
    await store.release(lease)
    async with Hold(store):
        first, second = (asyncio.create_task(store.acquire("talk")) for _ in range(2))
        await submitted(store, 2)
        commit = store._writer._commit

        def one_by_one(jobs):
            for job in jobs:
                if job is jobs[-1] and len(jobs) == 2:
                    failing(store, apsw.FullError("database or disk is full"))
                commit([job])

        store._writer._commit = one_by_one
    held = await first
    with pytest.raises(OutcomeUnknown):
        await second
    with pytest.raises(LeaseHeld):
        await store.acquire("talk")
    await store.append(held, 1, [message(1)])


async def test_a_lease_given_back_in_vain_is_still_held(tmp_path, vfs):
    store = await SqliteSessionStore.open(tmp_path, vfs=vfs.registered)
    lease, _ = await start(store)
    commit = store._writer._commit

    def committing(jobs):
        vfs.fail_sync = 1 if len(jobs) == 2 else 0
        commit(jobs)

    store._writer._commit = committing
    async with Hold(store):
        left = asyncio.create_task(store.append(lease, 1, [message(1)], release=True))
        await submitted(store, 1)
        taken = asyncio.create_task(store.acquire("talk"))
        await submitted(store, 2)
    done = await asyncio.gather(left, taken, return_exceptions=True)
    assert [type(one) for one in done] == [NothingWritten, OutcomeUnknown]
    with pytest.raises(LeaseHeld):
        await store.acquire("talk")
    await store.append(lease, 1, [message(1)])
    await store.close()


async def test_what_was_foreseen_is_not_written_into_a_transaction_left_open(store):
    lease, state = await start(store)
    denied = [1]

    def may(operation, what, *_):
        refuse = operation == apsw.SQLITE_TRANSACTION and what == "ROLLBACK" and denied
        return apsw.SQLITE_DENY if refuse else apsw.SQLITE_OK

    def fail(_):
        raise io_error(apsw.SQLITE_IOERR_READ)

    store._connection.authorizer = may
    with pytest.raises(StoreFailed):
        await store._writer.run(Job(fail))
    with pytest.raises(StoreFailed):
        await store.append(lease, state.seq, [message(1)])
    denied.clear()
    assert (await store.append(lease, state.seq, [message(1)])).state.seq == 2
    other = apsw.Connection(str(store._path / "events.db"))
    assert other.execute("SELECT max(seq) FROM events").get == 2


@pytest.mark.parametrize(
    ("owner", "epoch"), [(None, 1), ("\ud800", 1), (None, 2**63), ("o-none", 2**63)]
)
async def test_a_lease_that_none_can_be_harms_only_its_own_append(store, owner, epoch):
    sessions = [await start(store, f"talk-{n}") for n in range(3)]
    leases = [lease for lease, _ in sessions]
    leases[1] = Lease("talk-1", owner, epoch)
    done = await append_at_once(store, [store.append(lease, 1, [message(1)]) for lease in leases])
    assert [getattr(one, "inbox", one) for one in (done[0], done[2])] == [None, None]
    assert isinstance(done[1], LeaseLost)
    for n, events in enumerate([2, 1, 2]):
        report = await verify(store, f"talk-{n}")
        assert (report.ok, report.events) == (True, events)


async def test_a_group_that_is_done_over_forgets_what_it_refused_before(store):
    lease, _ = await start(store)
    once = [apsw.ConstraintError("once")]

    def fail_once(_):
        if once:
            raise once.pop()

    async def run_failing():
        await store._writer.run(Job(fail_once))

    slow = [message(n) for n in range(1, AHEAD_FACTS + 3)]
    done = await append_at_once(
        store,
        [
            store.append(lease, 1, slow),
            store.append(lease, 1, [message(1, "foreseen")]),
            run_failing(),
        ],
    )
    assert [type(one).__name__ for one in done] == ["Appended", "PositionConflict", "NoneType"]
    assert (await store.load_state("talk")).seq == 1 + len(slow)


async def test_an_append_that_waits_too_long_for_another_process_wrote_nothing(store):
    lease, state = await start(store)
    other = apsw.Connection(str(store._path / "events.db"))
    other.execute("BEGIN IMMEDIATE")
    patience, waits = store._writer.patience, []
    patience.seconds = 0.01

    def wait(attempt):
        if attempt == 0:
            waits.append(1)
        return patience(attempt)

    store._connection.set_busy_handler(wait)
    with pytest.raises(NothingWritten):
        await store.append(lease, state.seq, [message(1)])
    assert waits == [1]
    other.execute("ROLLBACK")
    assert (await store.append(lease, state.seq, [message(1)])).state.seq == 2


@pytest.mark.parametrize("release", [False, True])
@pytest.mark.parametrize("change", ["epoch = epoch + 1", "owner = 'o-else'", "owner = NULL"])
async def test_an_append_that_was_foreseen_is_fenced_off_like_any_other(store, change, release):
    lease, state = await start(store, "talk")
    state = (await store.append(lease, state.seq, [message(1)])).state
    other = apsw.Connection(str(store._path / "events.db"))
    other.execute(f"UPDATE sessions SET {change}")
    with pytest.raises(LeaseLost):
        await store.append(lease, state.seq, [message(2)], release=release)
    assert [event.seq for event in await store.read_events("talk")] == [1, 2]


async def test_an_append_foreseen_from_another_log_of_the_same_length_is_refused(store):
    lease, state = await start(store, "talk")
    other = apsw.Connection(str(store._path / "events.db"))
    other.execute("UPDATE sessions SET digest = zeroblob(32)")
    with pytest.raises(Corruption):
        await store.append(lease, state.seq, [message(1)])
    assert other.execute("SELECT count(*) FROM events").get == 1


async def test_appends_that_were_foreseen_leave_snapshots(store):
    lease, state = await start(store, "talk")
    for number in range(1, SNAPSHOT_EVENTS + 3):
        state = (await store.append(lease, state.seq, [message(number)])).state
    other = apsw.Connection(str(store._path / "events.db"))
    row = session_rows.find(other.cursor(), "talk")
    assert event_rows._restore(other.cursor(), row).seq == SNAPSHOT_EVENTS


async def test_a_row_says_how_things_stand_after_every_append_that_was_foreseen(store):
    lease, state = await start(store, "talk")
    other = apsw.Connection(str(store._path / "events.db"))
    usage = {"input_tokens": 900, "output_tokens": 250}
    about = slot("what to ask", "arguments")
    asked = {"call_id": "c-1", "name": "ask", "executor": "human", "turn": 1, "effect": "once"}
    put = {"step": 1, "turn": 1, "model": "m"}
    final = slot("the answer " * 100, "final")
    head = HeadDraft(kind="turn_final", turn=1, final=final)
    for new in (
        [message(1)],
        [facts.TurnStarted(turn=1)],
        [facts.StepStarted(step=1, turn=1, ordinal=1, model="m")],
        [facts.StepPut(**put, status="replied", usage=usage, cost_usd="0.011")],
        [facts.CallRequested(**asked, arguments=about)],
        [facts.CallSuspended(call_id="c-1")],
        [facts.CallResolved(call_id="c-1", outcome="ok")],
        [facts.StepPut(**put, status="replied")],  # of unknown cost
        [facts.TurnPut(turn=1, status="final", final=final), message(2)],
    ):
        ends = head if isinstance(new[0], facts.TurnPut) else None
        before = state
        (done,), swift = await at_once(store, [store.append(lease, state.seq, new, head=ends)])
        state = done.state
        stored = other.execute(
            f"SELECT {', '.join(session_rows.STANDING)} FROM sessions"
        ).fetchone()
        assert (stored, swift) == (session_rows.standing(state), True)
        same = session_rows.standing(before) == stored
        assert session_rows.stands_as_before(before, state) == same, new
    assert stored == ("idle", 1, "final", state.head, "0.011", 1150, 1)


@pytest.mark.parametrize(
    "change",
    [
        {"status": "suspended"},
        {"counters": {"turn": 1}},
        {"last_turn": "final"},
        {"head": "sha256:" + "0" * 64},
        {"spend": Spend(usd="0.01")},
        {"spend": Spend(output_tokens=1)},
        {"spend": Spend(unknown_usd=1)},
    ],
)
def test_whatever_a_row_says_is_written_where_only_that_has_changed(change):
    before = empty("talk")
    after = structs.replace(before, **change)
    assert session_rows.standing(before) != session_rows.standing(after)
    assert not session_rows.stands_as_before(before, after)


@pytest.mark.parametrize(
    ("sizes", "files", "ahead"),
    [
        ([ROW_PAYLOAD_BYTES], 0, True),
        ([ROW_PAYLOAD_BYTES + 1], 1, False),
        ([900, ROW_PAYLOAD_BYTES], 0, True),
        ([900, ROW_PAYLOAD_BYTES + 1], 1, False),
        ([AHEAD_BYTES // 4] * 4, 0, True),
        ([AHEAD_BYTES // 5] * 6, 0, False),
    ],
)
async def test_large_values_are_files_and_much_is_left_to_the_writer(store, sizes, files, ahead):
    lease, _ = await start(store)
    texts = [f"{n}" * size for n, size in enumerate(sizes)]
    new = [message(n, text) for n, text in enumerate(texts, 1)]
    _, swift = await at_once(store, [store.append(lease, 1, new)])
    assert swift == ahead
    assert len(list(store._path.glob("blobs/*/*/*"))) == files
    for fact, text in zip(new, texts, strict=True):
        assert await store.get_payload("talk", fact.content.id) == text.encode()
    assert (await verify(store, "talk")).ok


async def test_an_append_may_rely_on_the_very_value_it_refers_to_and_on_no_other(store):
    lease, state = await start(store, "talk")
    one, two = (slot(f"{n} of the same size " * 100, "message") for n in (1, 2))
    state = (await store.append(lease, state.seq, [message(1, one)])).state
    await store.put_payload("talk", two)  # which no event refers to yet
    again = store.append(lease, state.seq, [message(2, one.bare())])
    (done,), swift = await at_once(store, [again])
    assert swift
    first = store.append(lease, done.state.seq, [message(3, two.bare())])
    (done,), swift = await at_once(store, [first])
    assert not swift
    assert await store.get_payload("talk", two.id) == two.data
    await store.gc(grace_seconds=-1)
    assert (await verify(store, "talk")).ok


async def test_an_append_that_was_foreseen_consumes_an_item_once_and_none_that_is_missing(store):
    lease, state = await start(store, "talk")
    await store.put_inbox("talk", InboxDraft("key", "message"))
    with pytest.raises(InboxItemNotFound):
        await store.append(lease, state.seq, [message(1)], consumes=["missing"])
    state = (await store.append(lease, state.seq, [message(1)], consumes=["key"])).state
    with pytest.raises(InboxConsumed):
        await store.append(lease, state.seq, [message(2)], consumes=["key"])
    assert (await store.load_state("talk")).seq == 2


async def test_an_append_foreseen_from_a_log_that_has_moved_is_refused(store):
    lease, state = await start(store, "talk")
    other = await SqliteSessionStore.open(store._path)
    held = Lease("talk", lease.owner, lease.epoch)
    await other.append(held, state.seq, [message(1, "theirs")])
    await other.close()
    with pytest.raises(PositionConflict):
        await store.append(lease, state.seq, [message(1, "ours")])
    assert (await store.load_state("talk")).seq == 2
    assert (await verify(store, "talk")).ok


async def test_a_refused_append_leaves_the_rest_of_its_group_alone(store):
    good, bad = await start(store, "good"), await start(store, "bad")
    async with Hold(store):
        first = asyncio.create_task(store.append(good[0], 1, [message(1)]))
        wrong = asyncio.create_task(store.append(bad[0], 7, [message(1)]))
        illegal = asyncio.create_task(store.append(bad[0], 1, [message(1), message(5)]))
        second = asyncio.create_task(store.append(good[0], 2, [message(2)]))
        await submitted(store, 4)
    await first
    await second
    with pytest.raises(PositionConflict):
        await wrong
    with pytest.raises(Exception, match="next message"):
        await illegal
    assert (await store.load_state("good")).seq == 3
    assert (await store.load_state("bad")).seq == 1
    assert (await verify(store, "good")).ok
    assert (await verify(store, "bad")).ok


async def test_an_append_refused_while_it_writes_takes_back_only_its_own(store):
    plain, late = await start(store, "plain"), await start(store, "late")
    other = await start(store, "other")
    await store.put_inbox("late", InboxDraft("first", "message"))
    async with Hold(store):
        good = asyncio.create_task(store.append(plain[0], 1, [message(1)]))
        bad = asyncio.create_task(
            store.append(late[0], 1, [message(1)], consumes=["first", "missing"])
        )
        foreign = asyncio.create_task(store.append(other[0], 1, [message(1, LARGE.bare())]))
        await submitted(store, 3)
    await good
    with pytest.raises(InboxItemNotFound):
        await bad
    with pytest.raises(InvalidRef):
        await foreign
    assert (await store.load_state("plain")).seq == 2
    assert (await store.load_state("late")).seq == 1
    assert [item.key for item in await store.list_inbox("late")] == ["first"]
    assert (await store.load_state("other")).seq == 1


async def test_a_cancelled_append_is_settled_before_the_caller_hears(store):
    lease, state = await start(store)
    async with Hold(store):
        task = asyncio.create_task(store.append(lease, state.seq, [message(1)]))
        await submitted(store, 1)
        task.cancel()
        task.cancel()
        await asyncio.sleep(0)
        assert not task.done()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await store.load_state("talk")).seq == 2


async def test_a_cancellation_that_the_outcome_overtakes_ends_the_append(store):
    lease, state = await start(store)
    rung = threading.Event()
    (bell,) = store._writer._bells.values()
    ring = bell.ring
    bell.ring = lambda jobs: (ring(jobs), rung.set())
    task = asyncio.create_task(store.append(lease, state.seq, [message(1)]))
    await asyncio.sleep(0)
    rung.wait()  # with the loop held up, which hears of it next
    await asyncio.sleep(0)
    task.cancel()  # between the loop's noticing of the outcome and the one who waits
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(asyncio.shield(task), 10)
    assert task.cancelled()
    assert (await store.load_state("talk")).seq == 2


def test_where_a_task_ends_the_loop_the_others_of_its_group_go_on_with_the_next(tmp_path):
    async def open_and_start():
        store = await SqliteSessionStore.open(tmp_path)
        return store, [await start(store, f"talk-{n}") for n in range(4)]

    async def append(store, lease, state):
        await store.append(lease, state.seq, [message(1)])
        if lease.session == "talk-1":
            raise SystemExit(3)
        return lease.session

    async def submit(store, sessions):
        async with Hold(store):
            tasks = [asyncio.create_task(append(store, *session)) for session in sessions]
            await submitted(store, 4)
        return tasks

    async def finish(store, tasks):
        done, _ = await asyncio.wait(tasks, timeout=10)
        await store.close()
        return sorted(task.result() for task in done)

    loop = asyncio.new_event_loop()
    try:
        store, sessions = loop.run_until_complete(open_and_start())
        tasks = loop.run_until_complete(submit(store, sessions))
        with pytest.raises(SystemExit):
            loop.run_until_complete(asyncio.gather(*tasks))
        del tasks[1]
        done = loop.run_until_complete(finish(store, tasks))
    finally:
        loop.close()
    assert done == ["talk-0", "talk-2", "talk-3"]


async def test_a_transient_that_is_sent_after_an_append_comes_after_its_event(store):
    lease, state = await start(store)
    got, wanted = [], 400
    seen = asyncio.Event()

    async def follow():
        async for item in store.subscribe("talk", after=state.seq):
            got.append(item.data if isinstance(item, Transient) else -item.seq)
            if len(got) == wanted:
                seen.set()

    following = asyncio.create_task(follow())
    await asyncio.sleep(0)
    seq = state.seq
    for number in range(1, wanted // 2 + 1):
        seq = (await store.append(lease, seq, [message(number)])).state.seq
        store.notify(Transient("talk", "delta.token", seq))
        await asyncio.sleep(0.001)
    await asyncio.wait_for(seen.wait(), 20)
    following.cancel()
    assert [item for item in got if item > 0 and -item not in got[: got.index(item)]] == []


async def test_an_idle_writer_keeps_nothing_of_what_it_wrote(store):
    class Mine:
        pass

    async def refused():
        mine = Mine()
        try:
            await store.append(lease, 99, [message(1)])
        except PositionConflict:
            return weakref.ref(mine)

    lease, _ = await start(store)
    mine = await asyncio.create_task(refused())
    for _ in range(30):  # until the writer waits again
        gc.collect()
        if mine() is None:
            break
        await asyncio.sleep(0.01)
    assert mine() is None


async def test_hints_of_one_group_come_in_the_order_of_what_was_done(store, monkeypatch):
    monkeypatch.setattr(feed, "POLL_SECONDS", 1000)  # which would put it right
    lease, state = await start(store)
    hints = store.subscribe_all()
    async with Hold(store):
        append = store.append(lease, state.seq, [message(1)], release=True)
        appending = asyncio.create_task(append)
        await submitted(store, 1)
        deleting = asyncio.create_task(store.delete("talk"))
        await submitted(store, 2)
    await asyncio.gather(appending, deleting)
    hint = await asyncio.wait_for(anext(aiter(hints)), 10)
    assert (hint.session, hint.seq) == ("talk", 0)


async def test_what_memory_had_wrong_of_a_row_is_learnt_from_it(store):
    lease, state = await start(store)
    await store.create_session("other", facts.SessionStarted(tenant="other"))
    apsw.Connection(str(store._path / "events.db")).execute(
        "UPDATE sessions SET tenant_key = (SELECT tenant_key FROM sessions WHERE id = 'other') "
        "WHERE id = 'talk'"
    )
    in_steps, steps = store._writer._commit_in_steps, []
    store._writer._commit_in_steps = lambda jobs, **how: (steps.append(1), in_steps(jobs, **how))
    for number in (1, 2, 3):
        state = (await store.append(lease, state.seq, [message(number)])).state
    assert len(steps) == 1


async def test_a_cancelled_append_that_fails_leaves_no_error_that_nobody_heard(store):
    lease, _ = await start(store)
    unheard = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unheard.append(context))
    async with Hold(store):
        wrong = asyncio.create_task(store.append(lease, 7, [message(1)]))
        await submitted(store, 1)
        wrong.cancel()
    with pytest.raises(asyncio.CancelledError):
        await wrong
    del wrong
    gc.collect()
    assert unheard == []


async def test_a_timeout_around_an_append_waits_for_its_outcome(store):
    lease, state = await start(store)
    hold = Hold(store)
    async with hold:
        waiting = asyncio.create_task(
            asyncio.wait_for(store.append(lease, state.seq, [message(1)]), 0.01)
        )
        await submitted(store, 1)
        done, _ = await asyncio.wait([waiting], timeout=0.1)
        assert not done
    with pytest.raises((asyncio.TimeoutError, TimeoutError)):
        await waiting
    assert (await store.load_state("talk")).seq == 2


@pytest.mark.parametrize("spoil", ["DELETE FROM events", "DELETE FROM events WHERE seq = 1"])
async def test_a_session_without_its_first_event_is_named_and_harms_nobody_else(store, spoil):
    lease, state = await start(store)
    await store.append(lease, state.seq, [message(1)])
    other = apsw.Connection(str(store._path / "events.db"))
    other.execute(spoil)
    other.close()
    async with Hold(store):
        tasks = [asyncio.create_task(start(store, name)) for name in ("talk", "other")]
        await submitted(store, 2)
    with pytest.raises(Corruption, match="event 1 of session 'talk'"):
        await tasks[0]
    await tasks[1]


async def test_a_job_that_fails_as_no_future_can_hold_is_settled_beside_its_group(store):
    lease, state = await start(store)
    async with Hold(store):
        odd = store._writer.run(Job(lambda _: next(iter(()))))
        good = asyncio.create_task(store.append(lease, state.seq, [message(1)]))
        await submitted(store, 2)
    with pytest.raises(StoreFailed, match="StopIteration"):
        await odd
    await good


@pytest.mark.filterwarnings("ignore")
async def test_a_writer_that_dies_fails_what_is_queued_and_what_comes_later(tmp_path):
    store = await SqliteSessionStore.open(tmp_path)
    lease, state = await start(store)

    def dying(_):
        raise SystemExit("no more threads")

    async with Hold(store):
        tasks = [
            store._writer.run(Job(lambda _: None, None, dying)),
            asyncio.create_task(store.append(lease, state.seq, [message(1)])),
        ]
        await submitted(store, 2)
    for task in tasks:
        with pytest.raises(StoreFailed, match="died"):
            await task
    with pytest.raises(StoreFailed, match="died"):
        await store.append(lease, state.seq, [message(1)])
    await store.close()
    store = await SqliteSessionStore.open(tmp_path)
    assert (await verify(store, "talk")).ok
    await store.close()


class FaultyVfs(apsw.VFS):
    """The real file system, until it is told that writes to the log fail."""

    def __init__(self, name):
        self.registered = name
        self.fail_write = self.fail_sync = 0
        super().__init__(name, "")

    def xOpen(self, name, flags):
        return FaultyFile(self, name, flags)


class FaultyFile(apsw.VFSFile):
    def __init__(self, vfs, name, flags):
        self._vfs = vfs
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        self._is_log = bool(path) and path.endswith("-wal")
        super().__init__("", name, flags)

    def xWrite(self, data, offset):
        if self._is_log and self._vfs.fail_write:
            self._vfs.fail_write -= 1
            raise apsw.FullError("disk full")
        super().xWrite(data, offset)

    def xSync(self, flags):
        if self._is_log and self._vfs.fail_sync:
            self._vfs.fail_sync -= 1
            raise apsw.IOError("sync failed")
        super().xSync(flags)


@pytest.fixture
def vfs():
    return FaultyVfs(f"faulty-{uuid.uuid4().hex}")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("fault", ["fail_write", "fail_sync"])
async def test_a_commit_that_fails_once_wrote_nothing_and_work_goes_on(tmp_path, vfs, fault):
    store = await SqliteSessionStore.open(tmp_path, vfs=vfs.registered)
    lease, state = await start(store)
    setattr(vfs, fault, 1)
    with pytest.raises(NothingWritten):
        await store.append(lease, state.seq, [message(1)])
    assert (await store.load_state("talk")) == state
    await store.append(lease, state.seq, [message(1, "again")])
    await store.close()
    store = await SqliteSessionStore.open(tmp_path)
    events = await store.read_events("talk", after=1)
    assert [event.fact().content.value() for event in events] == ["again"]
    await store.close()


@pytest.mark.filterwarnings("ignore")
async def test_a_commit_that_keeps_failing_is_unknown_and_the_log_decides(tmp_path, vfs):
    store = await SqliteSessionStore.open(tmp_path, vfs=vfs.registered)
    lease, state = await start(store)
    vfs.fail_sync = 2
    with pytest.raises(OutcomeUnknown):
        await store.append(lease, state.seq, [message(1)])
    state = await store.load_state("talk")
    await store.append(lease, state.seq, [message(state.next("message"), "again")])
    assert (await verify(store, "talk")).ok
    await store.close()


async def test_a_lease_from_a_commit_that_seemed_to_fail_does_not_lock_its_owner_out(store):
    lease, _ = await start(store)
    await store.release(lease)
    other = apsw.Connection(str(store._path / "events.db"))
    other.execute("UPDATE sessions SET owner = ?, epoch = 7", (store.owner,))
    other.close()
    assert (await store.acquire("talk")).epoch == 8


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


async def test_two_loops_can_share_one_handle(store):
    lease, state = await start(store)

    def elsewhere():
        return asyncio.run(store.append(lease, state.seq, [message(1)]))

    done = await asyncio.to_thread(elsewhere)
    assert done.state.seq == 2
    assert await store.load_state("talk") == done.state


async def test_of_a_group_each_goes_on_in_the_loop_that_asked(store):
    leases = [(await start(store, f"talk-{n}"))[0] for n in range(3)]

    async def append(lease):
        await store.append(lease, 1, [message(1)])
        return threading.get_ident()

    def elsewhere(lease):
        return asyncio.run(append(lease)), threading.get_ident()

    beat = Job(lambda _: threading.get_ident())
    async with asyncio.TaskGroup() as group:
        async with Hold(store):
            here = [group.create_task(append(lease)) for lease in leases[::2]]
            await submitted(store, 2)
            there = group.create_task(asyncio.to_thread(elsewhere, leases[1]))
            await submitted(store, 3)
            blocked = group.create_task(asyncio.to_thread(store._writer.run_blocking, beat))
            await submitted(store, 4)
    assert {task.result() for task in here} == {threading.get_ident()}
    assert len(set(there.result())) == 1
    assert blocked.result() == store._writer._thread.ident


async def test_a_closed_handle_says_so(tmp_path):
    store = await SqliteSessionStore.open(tmp_path)
    lease, state = await start(store)
    await store.close()
    await store.close()
    with pytest.raises(NothingWritten, match="closed"):
        await store.append(lease, state.seq, [message(1)])
    with pytest.raises(Exception, match="closed"):
        await store.load_state("talk")


async def test_subscribers_that_come_and_go_leave_no_connection_behind(tmp_path):
    store = await SqliteSessionStore.open(tmp_path)
    await store.create_session("s-1", facts.SessionStarted())
    counts = []
    for _ in range(4):
        async with store.subscribe("s-1", after=1):
            await asyncio.sleep(3 * POLL_SECONDS)
        counts.append(len(apsw.connections()))
    await store.close()
    assert counts[-1] == counts[0]


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


async def test_followers_hear_what_their_own_handle_writes_without_a_look_at_the_file(
    store, tmp_path, monkeypatch
):
    elsewhere = await SqliteSessionStore.open(tmp_path / "elsewhere")
    await start(elsewhere, "copied")
    copy = await elsewhere.read_events("copied")
    await elsewhere.close()
    monkeypatch.setattr(feed, "POLL_SECONDS", 3600)
    lease, _ = await start(store)
    slow = [message(n) for n in range(1, AHEAD_FACTS + 3)]
    heard = []
    async with store.subscribe_all() as hints:
        for write in (
            store.create_session("another", facts.SessionStarted()),
            store.import_log(prove("copied", copy)),
            store.put_inbox("talk", InboxDraft("key", "message")),
            store.append(lease, 1, slow, consumes=["key"]),
            store.append(lease, 1 + len(slow), [message(1 + len(slow))]),
            store.append(lease, 2 + len(slow), [message(2 + len(slow))], release=True),
            store.delete("talk"),
        ):
            await write
            hint = await asyncio.wait_for(anext(hints), 10)
            heard.append((hint.session, hint.seq))
    last = 1 + len(slow)
    told = [("another", 1), ("copied", 1), ("talk", 1), ("talk", last), ("talk", last + 1)]
    assert heard == [*told, ("talk", last + 2), ("talk", 0)]
