"""How many steps one process makes with few and with very many active code sessions.

Every session drives turns without a pause, with a model that answers at once, so all are active at
the same time; each keeps its worker. A step is one model call and one cell, stored durably. Beside
the steps stands the CPU time of the host for each of them: it must not grow with the sessions.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path

import holdfast
from bench.sessions import STEPS, Clock, plain_model
from bench.table import Figure, as_result
from holdfast.stores.sqlite.store import SqliteSessionStore

WIDTHS = (1, 40, 400, 1000)
STEPS_IN_ALL = 3000
LEAST_TURNS = 2


def run() -> dict[str, object]:
    """Return the figures."""
    figures: list[Figure] = []
    rates: dict[int, float] = {}
    for width in WIDTHS:
        with tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir=Path.cwd()) as place:
            rates[width], cpu = asyncio.run(_steps(Path(place), width))
        aim = 0.8 * rates[40] if width == 400 and 40 in rates else None
        note = f"{cpu * 1000:.2f} ms CPU of the host a step"
        name = f"{width} session{'s' if width > 1 else ''}"
        figures.append(Figure(name, rates[width], "steps/s", at_least=aim, note=note))
    return as_result("active code sessions in one process (cpython, SQLite)", figures)


async def _steps(place: Path, width: int) -> tuple[float, float]:
    turns = max(LEAST_TURNS, STEPS_IN_ALL // (width * STEPS))
    store = await SqliteSessionStore.open(place)
    async with await holdfast.open(store, model=plain_model(Clock()), context_tokens=0) as runtime:
        sessions = [await runtime.start() for _ in range(width)]

        async def work(session: holdfast.Session, turns: int) -> None:
            for _ in range(turns):
                assert isinstance(await session.send("go on"), holdfast.Final)

        await asyncio.gather(*(work(session, 1) for session in sessions))
        began, cpu = time.perf_counter(), time.process_time()
        await asyncio.gather(*(work(session, turns) for session in sessions))
        took, spent = time.perf_counter() - began, time.process_time() - cpu
    await store.close()
    return width * turns * STEPS / took, spent / (width * turns * STEPS)
