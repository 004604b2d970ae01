"""What the SQLite store costs: appends against a raw floor, size, cold loads, payloads, a peer.

The floor (bare apsw, insert and commit) runs in alternating slices with the store, on the same
disk with the same sync setting, so that a busy moment of the machine hits both. Where a process's
threads come to lie makes a tenth of a difference for as long as it runs, so what hangs on that is
measured in several processes; the figure is their median, and all of them are told. A time counts
only after the log it produced was verified from end to end.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import random
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

import apsw

from bench import peers
from bench.table import Figure, as_result, number
from holdfast.core import facts
from holdfast.core.heads import HeadDraft
from holdfast.core.payloads import slot
from holdfast.core.state import State
from holdfast.stores.port import Lease
from holdfast.stores.sqlite.store import SqliteSessionStore
from holdfast.stores.verify import verify

EVENT_BYTES = 1200
USER_BYTES, ASSISTANT_BYTES = 200, 1000
SLICES, SLICE_APPENDS, SESSIONS = 12, 200, 50
TURNS = 1000
_WORDS = [
    "".join(random.Random(n).choices("etaoinshrdlucmfwypvbgkjqxz", k=2 + n % 9))
    for n in range(4000)
]


def text(seed: int, size: int) -> str:
    """Return that many bytes of words, always the same for a seed."""
    source = random.Random(seed)
    return " ".join(source.choices(_WORDS, k=size // 4 + 2))[:size].ljust(size, ".")


def run() -> dict[str, object]:
    """Return the figures of the stores."""
    figures: list[Figure] = []
    for part, processes in ((appends, 5), (turns, 1), (cold_loads, 1), (payloads, 3)):
        figures += _median_of([_apart(part) for _ in range(processes)])
    ours = {figure.name: figure.value for figure in figures}
    figures += peers.langgraph(TURNS, text, USER_BYTES, ASSISTANT_BYTES, ours)
    return as_result("stores (SQLite, WAL, synchronous=FULL)", figures)


Part = Callable[[Path], Awaitable[list[Figure]]]


def _apart(part: Part) -> list[Figure]:
    """Run a part in a process of its own."""
    os.sync()  # what the part before left to the disk is not this one's
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_run, part).result()


def _run(part: Part) -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir=Path.cwd()) as place:
        return asyncio.run(part(Path(place)))


def _median_of(runs: list[list[Figure]]) -> list[Figure]:
    """Return one figure for each, from what all processes measured."""
    if len(runs) == 1:
        return runs[0]
    figures = []
    for same in zip(*runs, strict=True):
        told = [figure.value for figure in same]
        note = same[0].note or "of " + ", ".join(map(number, sorted(told)))
        figures.append(replace(same[0], value=statistics.median(told), note=note))
    return figures


class Session:
    """A session being driven: its lease and where it stands."""

    def __init__(self, store: SqliteSessionStore, lease: Lease, state: State) -> None:
        self.store, self.lease, self.state = store, lease, state

    @classmethod
    async def start(cls, store: SqliteSessionStore, session_id: str) -> Session:
        """Create a session and take its lease."""
        state = await store.create_session(session_id, facts.SessionStarted())
        return cls(store, await store.acquire(session_id), state)

    async def append(self, *new: facts.Fact, head: HeadDraft | None = None) -> None:
        """Append one batch."""
        done = await self.store.append(self.lease, self.state.seq, new, head=head)
        self.state = done.state

    def message(self, role: str, content: str, offset: int = 0) -> facts.MessageAppended:
        """Return the next message."""
        number = self.state.next("message") + offset
        return facts.MessageAppended(message=number, role=role, content=slot(content, "message"))


async def check(store: SqliteSessionStore, session_id: str, events: int) -> None:
    """Stop the bench where a log is not what was appended."""
    report = await verify(store, session_id)
    if not report.ok or report.events != events:
        raise SystemExit(f"{session_id}: {report.events} of {events} events, {report.problems}")


class Floor:
    """Bare apsw: one table, one insert and one commit per event."""

    def __init__(self, path: Path) -> None:
        self._connection = apsw.Connection(str(path))
        self._connection.pragma("journal_mode", "wal")
        self._connection.pragma("synchronous", "FULL")
        self._cursor = self._connection.cursor()
        self._cursor.execute(
            "CREATE TABLE events (key INTEGER PRIMARY KEY, session INTEGER, seq INTEGER, "
            "data TEXT, UNIQUE (session, seq))"
        )
        self._seq = 0

    def rate(self, contents: list[str]) -> float:
        """Return inserts and commits per second."""
        started = time.perf_counter()
        for content in contents:
            self._seq += 1
            self._cursor.execute("BEGIN IMMEDIATE")
            self._cursor.execute(
                "INSERT INTO events (session, seq, data) VALUES (1, ?, ?)", (self._seq, content)
            )
            self._cursor.execute("COMMIT")
        return len(contents) / (time.perf_counter() - started)


async def appends(place: Path) -> list[Figure]:
    """Measure one session, and fifty at once, against the floor."""
    floor = Floor(place / "floor.db")
    store = await SqliteSessionStore.open(place / "store")
    one, watched = [await Session.start(store, name) for name in ("one", "watched")]
    many = [await Session.start(store, f"many-{n}") for n in range(SESSIONS)]
    raw, single, fifty, lags = [], [], [], []

    async def drive(session: Session, contents: list[str]) -> None:
        for content in contents:
            await session.append(session.message("assistant", content))

    for n in range(SLICES):
        contents = [text(n * 1000 + i, EVENT_BYTES) for i in range(SLICE_APPENDS)]
        each = [[text(n * 9000 + k * 20 + i, EVENT_BYTES) for i in range(20)] for k in range(50)]
        raw.append(floor.rate(contents))
        single.append(await rate(SLICE_APPENDS, lambda c=contents: drive(one, c)))
        fifty.append(await rate(SESSIONS * 20, lambda e=each: asyncio.gather(*map(drive, many, e))))
    for n in range(SLICES):  # not in what is timed: the watch wakes the loop all the time
        contents = [text(n * 1000 + 500_000 + i, EVENT_BYTES) for i in range(SLICE_APPENDS)]
        async with LoopLag() as lag:
            await drive(watched, contents)
        lags.append(lag.worst)
    await check(store, "one", 1 + SLICES * SLICE_APPENDS)
    await check(store, "watched", 1 + SLICES * SLICE_APPENDS)
    for session in many:
        await check(store, session.lease.session, 1 + SLICES * 20)
    await store.close()
    ratio = statistics.median(a / b for a, b in zip(single, raw, strict=True))
    gain = statistics.median(a / b for a, b in zip(fifty, single, strict=True))
    return [
        Figure("raw insert and commit, 1.2 kB", statistics.median(raw), "/s"),
        Figure("one session, 1.2 kB events", statistics.median(single), "/s"),
        Figure("one session against raw", ratio, "x", at_least=0.38),
        Figure("fifty sessions at once", statistics.median(fifty), "/s"),
        Figure("fifty against one", gain, "x", at_least=6),
        Figure("longest the event loop was away", max(lags) * 1000, "ms"),
    ]


async def rate(count: int, work: Callable[[], Awaitable[object]]) -> float:
    """Return how often per second something was done."""
    started = time.perf_counter()
    await work()
    return count / (time.perf_counter() - started)


class LoopLag:
    """How late the event loop wakes a task that asks for a millisecond."""

    def __init__(self) -> None:
        self.worst = 0.0

    async def __aenter__(self) -> LoopLag:
        self._task = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()

    async def _watch(self) -> None:
        while True:
            started = time.perf_counter()
            await asyncio.sleep(0.001)
            self.worst = max(self.worst, time.perf_counter() - started - 0.001)


async def turns(place: Path) -> list[Figure]:
    """Measure the bytes and the time of a long conversation."""
    plain, full = place / "plain", place / "full"
    took = await _converse(plain, _plain_turn, events=2)
    await _converse(full, _full_turn, events=7)
    written = TURNS * (USER_BYTES + ASSISTANT_BYTES)
    early, late = statistics.median(took[:100]), statistics.median(took[-100:])
    return [
        Figure("1,000 turns, two messages each", sum(took), "s"),
        Figure("ms per turn at the end", late * 1000, "ms"),
        Figure("last 100 turns against first", late / early, "x", at_most=1.3),
        Figure("stored bytes", _size(plain), "B"),
        Figure("stored against text", _size(plain) / written, "x", at_most=2),
        Figure("stored against text, all events of a turn", _size(full) / written, "x", at_most=4),
    ]


async def _converse(
    path: Path, turn: Callable[[Session, int], Awaitable[None]], events: int
) -> list[float]:
    store = await SqliteSessionStore.open(path)
    session = await Session.start(store, "talk")
    took = []
    for index in range(TURNS):
        started = time.perf_counter()
        await turn(session, index)
        took.append(time.perf_counter() - started)
    await check(store, "talk", 1 + TURNS * events)
    await store.close()
    return took


async def _plain_turn(session: Session, number: int) -> None:
    await session.append(session.message("user", text(2 * number, USER_BYTES)))
    await session.append(session.message("assistant", text(2 * number + 1, ASSISTANT_BYTES)))


async def _full_turn(session: Session, number: int) -> None:
    turn = session.state.next("turn")
    reply = text(2 * number + 1, ASSISTANT_BYTES)
    usage = {"input_tokens": 900, "output_tokens": 250}
    await session.append(
        facts.TurnStarted(turn=turn), session.message("user", text(2 * number, USER_BYTES))
    )
    await session.append(
        facts.StepStarted(step=turn, turn=turn, ordinal=turn, model="model", reserved_usd="0.02")
    )
    await session.append(
        facts.StepPut(
            step=turn,
            turn=turn,
            status="replied",
            model="model",
            usage=usage,
            cost_usd="0.011",
            latency_ms=812,
            finish_reason="stop",
        ),
        session.message("assistant", reply),
    )
    final = slot(reply, "final")
    await session.append(
        facts.TurnPut(
            turn=turn, status="final", steps=1, final=final, usage=usage, cost_usd="0.011"
        ),
        head=HeadDraft(kind="turn_final", turn=turn, final=final),
    )


def _size(path: Path) -> int:
    return sum(f.stat().st_blocks * 512 for f in path.rglob("*") if f.is_file())


async def cold_loads(place: Path) -> list[Figure]:
    """Measure what loading and reading cost at two lengths of history."""
    store = await SqliteSessionStore.open(place)
    for length in (1_000, 100_000):
        session = await Session.start(store, f"long-{length}")
        while session.state.seq < length:
            # The last ones come singly, so that the tip lies past the last snapshot as it may.
            count = max(1, min(500, length - 50 - session.state.seq))
            await session.append(
                *(session.message("user", f"line {i} of {length}", i) for i in range(count))
            )
        await check(store, f"long-{length}", length)
    await store.close()
    small, large = await _cold(place, 1_000), await _cold(place, 100_000)
    tail = statistics.median([await _tail(place) for _ in range(15)])
    return [
        Figure("cold load of state, 1,000 events", small * 1000, "ms"),
        Figure("cold load of state, 100,000 events", large * 1000, "ms"),
        Figure("cold load, 100,000 against 1,000", large / small, "x", at_most=2),
        Figure("last 100 of 100,000 events", tail * 1000, "ms", at_most=10),
    ]


async def _cold(place: Path, length: int) -> float:
    took = []
    for _ in range(15):
        store = await SqliteSessionStore.open(place)
        started = time.perf_counter()
        state = await store.load_state(f"long-{length}")
        took.append(time.perf_counter() - started)
        await store.close()
        if state.seq != length:
            raise SystemExit(f"loaded {state.seq} of {length} events")
    return statistics.median(took)


async def _tail(place: Path) -> float:
    store = await SqliteSessionStore.open(place)
    started = time.perf_counter()
    events = await store.read_events("long-100000", limit=100, reverse=True)
    took = time.perf_counter() - started
    await store.close()
    if [event.seq for event in events] != list(range(100_000, 99_900, -1)):
        raise SystemExit("the last 100 events are not the last 100")
    return took


async def payloads(place: Path) -> list[Figure]:
    """Measure large values: how fast they are stored, and that equal ones are stored once."""
    store = await SqliteSessionStore.open(place)
    session = await Session.start(store, "large")
    figures = []
    for megabytes in (1, 5, 20):
        rates = []
        for n in range(8):
            value = text(megabytes * 100 + n, megabytes * 1_000_000)
            started = time.perf_counter()
            kept = await store.put_payload("large", slot(value, "output"))
            rates.append(megabytes / (time.perf_counter() - started))
            if await store.get_payload("large", kept.id) != value.encode():
                raise SystemExit("a payload came back changed")
        name = f"put of {megabytes} MB of text"
        figures.append(Figure(name, statistics.median(rates), "MB/s", at_least=100))
    value = slot(text(7, 5_000_000), "output")
    before = _size(place / "blobs")
    for _ in range(SESSIONS):
        await session.append(facts.MessageAppended(
            message=session.state.next("message"), role="observation", content=value
        ))  # fmt: skip
    stored = (_size(place / "blobs") - before) / 5_000_000
    await check(store, "large", 1 + SESSIONS)
    await store.close()
    note = "below 1: compressed, and stored once"
    return [*figures, Figure("5 MB referred to 50 times", stored, "x", at_most=1.05, note=note)]
