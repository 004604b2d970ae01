"""Killed after any durable write, a turn with tools and people ends, and nothing runs twice."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections import Counter
from pathlib import Path

import pytest

from holdfast.stores.verify import verify

from .children import workload

CHILD = Path(__file__).parent / "children" / "people.py"
SESSIONS = ("with-tools", "with-code")
WRITES = 26
PLACES = [("sqlite", at) for at in range(2, WRITES, 2)] + [("files", at) for at in (5, 11, 19)]
EVERY = [(kind, at) for kind in ("sqlite", "files") for at in range(2, WRITES + 6)]


async def run(url: str, folder: Path, at: int) -> int:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(CHILD), url, str(folder), str(at)),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    _, errors = await process.communicate()
    assert process.returncode in (0, -signal.SIGKILL), errors.decode()
    return process.returncode


@pytest.mark.soak
@pytest.mark.parametrize(("kind", "at"), EVERY)
async def test_a_kill_after_every_durable_write(kind: str, at: int, tmp_path: Path) -> None:
    await test_a_turn_with_tools_and_people_ends_whenever_its_process_was_killed(kind, at, tmp_path)


@pytest.mark.parametrize(("kind", "at"), PLACES)
async def test_a_turn_with_tools_and_people_ends_whenever_its_process_was_killed(
    kind: str, at: int, tmp_path: Path
) -> None:
    url = f"{kind}:{tmp_path / 'store'}"
    killed = await run(url, tmp_path, at)
    if killed:
        assert await run(url, tmp_path, 0) == 0
    witness = [json.loads(line) for line in (tmp_path / "witness").read_text().splitlines()]
    made = Counter((tool, session) for tool, session, _ in witness)
    for session in SESSIONS:
        assert made["once", session] <= 1
        assert made["gated", session] <= 1
        keys = {call for tool, found, call in witness if (tool, found) == ("same", session)}
        assert len(keys) == 1
    store = await workload.open_place(url)
    try:
        for session in SESSIONS:
            state = await store.load_state(session)
            assert (state.status, state.last_turn, state.calls) == ("idle", "final", {})
            assert (await verify(store, session)).ok
            outcomes = Counter()
            for event in await store.read_events(session, types=["call.resolved"]):
                outcomes[event.data["outcome"]] += 1
            assert outcomes["unknown"] <= (1 if killed else 0)
    finally:
        await store.close()
