"""The SQLite writer: group commit, refusals beside successes, cancellation, failed commits."""

import asyncio
import gc
import threading
import uuid
import weakref

import apsw
import pytest

from holdfast.core import facts
from holdfast.core.errors import (
    Corruption,
    InboxItemNotFound,
    InvalidRef,
    LeaseHeld,
    LeaseLost,
    NothingWritten,
    OutcomeUnknown,
    PositionConflict,
    StoreFailed,
)
from holdfast.core.payloads import slot
from holdfast.core.replay import prove
from holdfast.stores import feed
from holdfast.stores.feed import POLL_SECONDS
from holdfast.stores.port import InboxDraft, Lease, Transient
from holdfast.stores.relational.plan import Job
from holdfast.stores.snapshots import SNAPSHOT_EVENTS
from holdfast.stores.sqlite import writer
from holdfast.stores.sqlite.database import SQL
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


def doing(work):
    """Return a plan that is one function, run in the writer's thread."""

    def plan():
        return work()
        yield

    return plan


class Hold:
    """Keeps the writer busy inside a transaction until it is let go."""

    def __init__(self, store):
        self._store = store
        self._entered, self._leave = threading.Event(), threading.Event()

    async def __aenter__(self):
        self._task = self._store._engine._writer.run(Job(doing(self._work)))
        await asyncio.to_thread(self._entered.wait)

    async def __aexit__(self, *_):
        self._leave.set()
        await self._task

    def _work(self):
        self._entered.set()
        self._leave.wait()


async def submitted(store, count):
    """Wait until that many jobs stand in the writer's queue."""
    while store._engine._writer._queue.qsize() < count:  # noqa: ASYNC110 - the queue has no event for it
        await asyncio.sleep(0)


async def test_what_queues_during_a_commit_is_one_commit(store):
    sessions = [await start(store, f"talk-{n}") for n in range(16)]
    commits = []

    def committing():
        commits.append(1)
        return False

    store._engine._connection.set_commit_hook(committing)
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

    store._engine._connection.set_commit_hook(committing)
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


async def test_an_append_of_a_group_that_gives_its_lease_back_hears_what_waits(store):
    sessions = [await start(store, f"talk-{n}") for n in range(3)]
    await store.put_inbox("talk-1", InboxDraft("key", "message"))
    done = await append_at_once(
        store,
        [
            store.append(lease, 1, [message(1)], release=lease.session != "talk-2")
            for lease, _ in sessions
        ],
    )
    assert [one.inbox for one in done] == [0, 1, None]
    for n in range(2):
        assert (await store.acquire(f"talk-{n}")).epoch == 2
    await store.append(sessions[2][0], 2, [message(2)])


async def test_of_two_in_a_group_who_ask_for_a_lease_one_gets_it(store):
    lease, _ = await start(store)
    await store.release(lease)
    done = await append_at_once(store, [store.acquire("talk"), store.acquire("talk")])
    assert sorted(type(one).__name__ for one in done) == ["Lease", "LeaseHeld"]


def io_error(code):
    error = apsw.IOError("disk I/O error")
    error.extendedresult = code
    return error


class LateFailure:
    """A cursor whose commits fail with the given errors, in turn, after they were done."""

    def __init__(self, cursor, errors):
        self._cursor, self._errors = cursor, errors

    def execute(self, sql, *bindings):
        done = self._cursor.execute(sql, *bindings)
        if sql == SQL["commit"] and self._errors and (error := self._errors.pop(0)):
            raise error
        return done

    def __getattr__(self, name):
        return getattr(self._cursor, name)


@pytest.mark.parametrize(
    "error",
    [
        io_error(apsw.SQLITE_IOERR_FSYNC),
        apsw.FullError("database or disk is full"),
        MemoryError(),
    ],
)
async def test_a_group_whose_commit_failed_after_it_was_stored_is_found(store, error):
    sessions = [await start(store, f"talk-{n}") for n in range(3)]
    await store.create_session("free", facts.SessionStarted())
    store._engine._writer._cursor = LateFailure(store._engine._writer._cursor, [None, error])
    appends = [store.append(lease, 1, [message(1)]) for lease, _ in sessions]
    done = await append_at_once(store, [*appends, store.acquire("free")])
    assert [one.state.seq for one in done[:3]] == [2, 2, 2]
    assert done[3].epoch == 1
    for n in range(3):
        assert (await verify(store, f"talk-{n}")).ok


async def test_a_lease_given_back_in_vain_is_still_held(tmp_path, vfs):
    store = await SqliteSessionStore.open(tmp_path, vfs=vfs.registered)
    lease, _ = await start(store)
    commit = store._engine._writer._commit

    def committing(jobs):
        vfs.fail_sync = 1 if len(jobs) == 2 else 0
        commit(jobs)

    store._engine._writer._commit = committing
    async with Hold(store):
        left = asyncio.create_task(store.append(lease, 1, [message(1)], release=True))
        await submitted(store, 1)
        taken = asyncio.create_task(store.acquire("talk"))
        await submitted(store, 2)
    done = await asyncio.gather(left, taken, return_exceptions=True)
    assert [type(one) for one in done] == [NothingWritten, NothingWritten]
    with pytest.raises(LeaseHeld):
        await store.acquire("talk")
    await store.append(lease, 1, [message(1)])
    await store.close()


async def test_nothing_is_written_into_a_transaction_that_could_not_be_rolled_back(store):
    lease, state = await start(store)
    denied = [1]

    def may(operation, what, *_):
        refuse = operation == apsw.SQLITE_TRANSACTION and what == "ROLLBACK" and denied
        return apsw.SQLITE_DENY if refuse else apsw.SQLITE_OK

    def fail():
        raise io_error(apsw.SQLITE_IOERR_READ)

    store._engine._connection.authorizer = may
    with pytest.raises(StoreFailed):
        await store._engine._writer.run(Job(doing(fail)))
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
    once = [apsw.IOError("once")]

    def fail_once():
        if once:
            raise once.pop()

    async def run_failing():
        await store._engine._writer.run(Job(doing(fail_once)))

    done = await append_at_once(
        store,
        [
            store.append(lease, 1, [message(1)]),
            store.append(lease, 1, [message(1, "late")]),
            run_failing(),
        ],
    )
    assert [type(one).__name__ for one in done] == ["Appended", "PositionConflict", "NoneType"]
    assert (await store.load_state("talk")).seq == 2


async def test_an_append_that_waits_too_long_for_another_process_wrote_nothing(store):
    lease, state = await start(store)
    other = apsw.Connection(str(store._path / "events.db"))
    other.execute("BEGIN IMMEDIATE")
    busy_wait, waits = store._engine._writer.busy_wait, []
    busy_wait.seconds = 0.01

    def wait(attempt):
        if attempt == 0:
            waits.append(1)
        return busy_wait(attempt)

    store._engine._connection.set_busy_handler(wait)
    with pytest.raises(NothingWritten):
        await store.append(lease, state.seq, [message(1)])
    assert waits == [1]
    other.execute("ROLLBACK")
    assert (await store.append(lease, state.seq, [message(1)])).state.seq == 2


@pytest.mark.parametrize("release", [False, True])
@pytest.mark.parametrize("change", ["epoch = epoch + 1", "owner = 'o-else'", "owner = NULL"])
async def test_an_append_whose_lease_is_gone_is_fenced_off(store, change, release):
    lease, state = await start(store, "talk")
    state = (await store.append(lease, state.seq, [message(1)])).state
    other = apsw.Connection(str(store._path / "events.db"))
    other.execute(f"UPDATE sessions SET {change}")
    with pytest.raises(LeaseLost):
        await store.append(lease, state.seq, [message(2)], release=release)
    assert [event.seq for event in await store.read_events("talk")] == [1, 2]


async def test_appends_leave_snapshots(store):
    lease, state = await start(store, "talk")
    for number in range(1, SNAPSHOT_EVENTS + 3):
        state = (await store.append(lease, state.seq, [message(number)])).state
    other = apsw.Connection(str(store._path / "events.db"))
    assert other.execute("SELECT seq FROM snapshots").get == SNAPSHOT_EVENTS


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


async def test_a_cancellation_that_the_outcome_overtakes_ends_the_append(store, monkeypatch):
    lease, state = await start(store)
    delivered, deliver = threading.Event(), writer.deliver
    monkeypatch.setattr(writer, "deliver", lambda jobs: (deliver(jobs), delivered.set()))
    task = asyncio.create_task(store.append(lease, state.seq, [message(1)]))
    await asyncio.sleep(0)
    delivered.wait()  # with the loop held up, which hears of it next
    await asyncio.sleep(0)
    task.cancel()  # between the loop's noticing of the outcome and the one who waits
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(asyncio.shield(task), 10)
    assert task.cancelled()
    assert (await store.load_state("talk")).seq == 2


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


@pytest.mark.filterwarnings("ignore")
async def test_a_writer_that_dies_fails_what_is_queued_and_what_comes_later(tmp_path):
    store = await SqliteSessionStore.open(tmp_path)
    lease, state = await start(store)

    def dying(_):
        raise SystemExit("no more threads")

    async with Hold(store):
        tasks = [
            store._engine._writer.run(Job(doing(lambda: None), None, dying)),
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
    failed = apsw.IOError("sync failed")
    store._engine._writer._cursor = LateFailure(store._engine._writer._cursor, [failed, failed])
    with pytest.raises(OutcomeUnknown):
        await store.acquire("talk")
    info = await store.lease_of("talk")
    assert (info.owner, info.epoch) == (store.owner, 2)
    taken = await store.acquire("talk")
    assert taken.epoch == 3
    with pytest.raises(LeaseHeld):
        await store.acquire("talk")
    await store.append(taken, 1, [message(1)])


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

    beat = Job(doing(threading.get_ident))
    async with asyncio.TaskGroup() as group:
        async with Hold(store):
            here = [group.create_task(append(lease)) for lease in leases[::2]]
            await submitted(store, 2)
            there = group.create_task(asyncio.to_thread(elsewhere, leases[1]))
            await submitted(store, 3)
            blocked = group.create_task(asyncio.to_thread(store._engine._writer.run_blocking, beat))
            await submitted(store, 4)
    assert {task.result() for task in here} == {threading.get_ident()}
    assert len(set(there.result())) == 1
    assert blocked.result() == store._engine._writer._thread.ident


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


async def test_followers_hear_what_their_own_handle_writes_without_a_look_at_the_file(
    store, tmp_path, monkeypatch
):
    elsewhere = await SqliteSessionStore.open(tmp_path / "elsewhere")
    await start(elsewhere, "copied")
    copy = await elsewhere.read_events("copied")
    await elsewhere.close()
    monkeypatch.setattr(feed, "POLL_SECONDS", 3600)
    lease, _ = await start(store)
    many = [message(n) for n in range(1, 35)]
    heard = []
    async with store.subscribe_all() as hints:
        for write in (
            store.create_session("another", facts.SessionStarted()),
            store.import_log(prove("copied", copy)),
            store.put_inbox("talk", InboxDraft("key", "message")),
            store.append(lease, 1, many, consumes=["key"]),
            store.append(lease, 1 + len(many), [message(1 + len(many))]),
            store.append(lease, 2 + len(many), [message(2 + len(many))], release=True),
            store.delete("talk"),
        ):
            await write
            hint = await asyncio.wait_for(anext(hints), 10)
            heard.append((hint.session, hint.seq))
    last = 1 + len(many)
    told = [("another", 1), ("copied", 1), ("talk", 1), ("talk", last), ("talk", last + 1)]
    assert heard == [*told, ("talk", last + 2), ("talk", 0)]
