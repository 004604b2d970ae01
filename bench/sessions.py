"""What the engine itself costs per step, and how many sessions it carries at once.

A step is one model call and one cell, stored durably (SQLite, fsync) with everything around them:
state, lease, transcript, checkpoint, head. The model and the cell are not the engine: the scripted
model answers at once and says how long it took, the kernel's share is measured around `evaluate`,
and both are subtracted. What is left must stay flat from the first turn to the thousandth. Of the
rounds of many sessions at once the best counts: in the others the machine had something else to do.
A round lasts some seconds, because all begin at one moment and only then come apart.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import holdfast
from bench.table import Figure, as_result
from holdfast.core.messages import assistant
from holdfast.kernels.cpython import CpythonSession
from holdfast.models.port import ModelReply, ModelRequest, Usage
from holdfast.models.scripted import ScriptedModel
from holdfast.stores.sqlite.store import SqliteSessionStore
from holdfast.stores.verify import verify

STEPS, TURNS, WINDOW = 3, 1000, 100
SESSIONS, SESSION_TURNS, MODEL_SECONDS, ROUNDS = 50, 12, 0.1, 3
CELL = "```python\ncount = globals().get('count', 0) + 1\nprint(count)\n```"
LAST = "```python\nFINAL(count)\n```"


class Clock:
    """Sums what was spent outside the engine."""

    def __init__(self) -> None:
        self.outside = 0.0


def plain_model(clock: Clock, seconds: float = 0.0) -> ScriptedModel:
    """Return a model of a few cells and a final one per turn; its time is put on the clock."""

    async def respond(request: ModelRequest) -> ModelReply:
        started = time.perf_counter()
        if seconds:
            await asyncio.sleep(seconds)
        text = LAST if request.ordinal % STEPS == STEPS - 1 else CELL
        reply = ModelReply(assistant(text), "plain", usage=Usage(10, 10), cost_usd="0")
        clock.outside += time.perf_counter() - started
        return reply

    return ScriptedModel(respond, name="plain")


def run() -> dict[str, object]:
    """Return the figures of the engine."""
    figures: list[Figure] = []
    for part in (overhead, concurrency):
        with tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir=Path.cwd()) as place:
            figures += asyncio.run(part(Path(place)))
    return as_result("sessions (cpython kernel, SQLite, synchronous=FULL)", figures)


async def overhead(place: Path) -> list[Figure]:
    """Measure what is left of a step without its model and its cell."""
    clock = Clock()
    evaluate = CpythonSession.evaluate

    async def timed(self: CpythonSession, *arguments: Any, **options: Any) -> Any:
        started = time.perf_counter()
        try:
            return await evaluate(self, *arguments, **options)
        finally:
            clock.outside += time.perf_counter() - started

    store = await SqliteSessionStore.open(place)
    CpythonSession.evaluate = timed  # type: ignore[method-assign]
    try:
        async with await holdfast.open(
            store, model=plain_model(clock), context_tokens=0
        ) as runtime:
            old, new = await runtime.start(), await runtime.start()
            for _ in range(TURNS):
                await _turn(old, clock)
            await _turn(new, clock)
            # In turns, so that a busy moment of the machine hits both alike.
            spent = [(await _turn(new, clock), await _turn(old, clock)) for _ in range(WINDOW)]
        report = await verify(store, old.id)
        assert report.ok
    finally:
        CpythonSession.evaluate = evaluate  # type: ignore[method-assign]
        await store.close()
    first, last = (statistics.median(times) / STEPS * 1000 for times in zip(*spent, strict=True))
    return [
        Figure("engine overhead per step", first, "ms", at_most=5.0),
        Figure(
            f"engine overhead per step after {TURNS} turns",
            last,
            "ms",
            at_most=5.0,
            note=f"{report.events} events verified",
        ),
        Figure("growth over the session", last / first, "x", at_most=1.2),
    ]


async def _turn(session: holdfast.Session, clock: Clock) -> float:
    clock.outside = 0.0
    started = time.perf_counter()
    result = await session.send("go on")
    assert isinstance(result, holdfast.Final)
    return time.perf_counter() - started - clock.outside


async def concurrency(place: Path) -> list[Figure]:
    """Drive many sessions at once with a model that takes a while."""
    clock = Clock()
    store = await SqliteSessionStore.open(place)
    async with await holdfast.open(
        store, model=plain_model(clock, MODEL_SECONDS), context_tokens=0
    ) as runtime:
        sessions = [await runtime.start() for _ in range(SESSIONS)]

        async def work(session: holdfast.Session) -> None:
            for _ in range(SESSION_TURNS):
                assert isinstance(await session.send("go on"), holdfast.Final)

        await asyncio.gather(*(session.send("warm up") for session in sessions))
        took = []
        for _ in range(ROUNDS):
            started = time.perf_counter()
            await asyncio.gather(*map(work, sessions))
            took.append(time.perf_counter() - started)
        for session in sessions:
            assert (await verify(store, session.id)).ok
    await store.close()
    steps = SESSIONS * SESSION_TURNS * STEPS
    ideal = SESSION_TURNS * STEPS * MODEL_SECONDS
    return [
        Figure(
            f"{SESSIONS} sessions with a {MODEL_SECONDS * 1000:.0f} ms model, of ideal",
            ideal / min(took) * 100,
            "%",
            at_least=80.0,
            note=f"{steps / min(took):.0f} steps/s of {steps / ideal:.0f}; the best of {ROUNDS} "
            f"rounds, median {ideal / statistics.median(took) * 100:.0f} %",
        )
    ]
