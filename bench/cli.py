"""The command line: how long `holdfast --help` takes, and a listing over 10,000 sessions.

Each figure is the best of several runs of the real command in a process of its own: what else the
machine does can only make a run slower. The listing's output is checked, not only timed.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time

from bench.table import Figure, as_result
from holdfast.core.facts import SessionStarted
from holdfast.stores.choose import open_store

SESSIONS = 10_000
AT_ONCE = 500
RUNS = 5


def run() -> dict[str, object]:
    """Return the figures, in milliseconds."""
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        environment = os.environ | {"HOLDFAST_STORE": folder}
        help_ms, shown = _best(["--help"], environment)
        assert "Start a session" in shown
        asyncio.run(_fill(folder))
        page_ms, page = _best(["sessions", "--json"], environment)
        newest = [row["id"] for row in json.loads(page)["sessions"]]
        assert newest == [_id(SESSIONS - 1 - place) for place in range(len(newest))]
        all_ms, everything = _best(["sessions", "--all", "--json"], environment)
        assert len(json.loads(everything)["sessions"]) == SESSIONS
    note = f"newest {len(newest)} of {SESSIONS:,}"
    figures = [
        Figure("holdfast --help", help_ms, "ms", at_most=250),
        Figure("holdfast sessions", page_ms, "ms", at_most=500, note=note),
        Figure("holdfast sessions --all", all_ms, "ms", note=f"all {SESSIONS:,}, as JSON"),
    ]
    return as_result("command line (whole process, best of several)", figures)


def _id(number: int) -> str:
    return f"bench-{number:05d}"


async def _fill(folder: str) -> None:
    store = await open_store(folder)
    try:
        for first in range(0, SESSIONS, AT_ONCE):
            # In order, many at a time: group commit makes one transaction of each round.
            await asyncio.gather(
                *(
                    store.create_session(_id(number), SessionStarted(labels={"for": "bench"}))
                    for number in range(first, first + AT_ONCE)
                )
            )
    finally:
        await store.close()


def _best(words: list[str], environment: dict[str, str]) -> tuple[float, str]:
    best, shown = float("inf"), ""
    for _ in range(RUNS):
        started = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "holdfast", *words],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        best, shown = min(best, time.perf_counter() - started), done.stdout
    return round(best * 1000, 1), shown
