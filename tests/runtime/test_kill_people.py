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
from holdfast.testing.postgres_server import url_of

from .children import people, workload

CHILD = Path(people.__file__)
WRITES = 53
"""So many durable writes there are with no kill, give or take the order of threads."""
EVERY = [(kind, at) for kind in ("sqlite", "files", "postgres") for at in range(1, WRITES + 2)]


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


@pytest.mark.parametrize("kind", ["sqlite"])
@pytest.mark.parametrize("at", range(3, WRITES, 10))
async def test_a_turn_with_tools_and_people_ends_whenever_its_process_was_killed(
    kind: str, at: int, tmp_path: Path
) -> None:
    url = url_of(tmp_path) if kind == "postgres" else f"{kind}:{tmp_path / 'store'}"
    killed = await run(url, tmp_path, at)
    if killed:
        assert await run(url, tmp_path, 0) == 0
    witness = [json.loads(line) for line in (tmp_path / "witness").read_text().splitlines()]
    made = Counter((tool, call, session) for tool, session, call in witness)
    for (tool, _, _), times in made.items():
        assert times == 1 or tool not in ("once", "gated"), "what runs once ran again"
    same = {(call, session) for tool, call, session in made if tool == "same"}
    assert len(same) == 4, "a repeated call has another key"
    store = await workload.open_place(url)
    try:
        sessions = (await store.list_sessions()).sessions
        assert len(sessions) == 4
        unknown = 0
        for info in sessions:
            state = await store.load_state(info.id)
            assert (state.status, state.last_turn, state.calls) == ("idle", "final", {})
            assert (await verify(store, info.id)).ok
            assert await store.list_inbox(info.id) == []
            for event in await store.read_events(info.id, types=["call.resolved"]):
                assert event.data["outcome"] in ("ok", "unknown")
                unknown += event.data["outcome"] == "unknown"
        assert unknown <= (2 if killed else 0), "more is unknown than ran at the kill"
        if not unknown:
            for session, value in people.VALUES.items():
                (put,) = await store.read_events(session, types=["turn.put"])
                assert put.fact().final.value() == value
    finally:
        await store.close()
