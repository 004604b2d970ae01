"""The pytest plugin: an exported session is a golden test, without a key and without a network.

`assert_replays(path)` verifies every session of an export and executes it again from its log; it
fails with the first divergence. It is a fixture too, in every project that has Holdfast installed.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from holdfast.runtime.replay import ReplayReport


def assert_replays(path: str | Path) -> list[ReplayReport]:
    """Fail unless every session of an export verifies and replays without divergence."""
    # Imported here: pytest loads this module in every project that has Holdfast installed.
    from holdfast.runtime.replay import replay_export
    from holdfast.stores.memory.store import MemorySessionStore
    from holdfast.stores.portable import import_sessions
    from holdfast.stores.verify import verify

    reports: list[ReplayReport] = []
    problems: list[str] = []
    failure: list[BaseException] = []

    async def check() -> None:
        store = MemorySessionStore()
        for outcome in await import_sessions(store, path):
            found = await verify(store, outcome.session)
            problems.extend(f"{outcome.session}: {problem}" for problem in found.problems)
        reports.extend(await replay_export(path))

    def run() -> None:
        try:
            asyncio.run(check())
        except BaseException as error:
            failure.append(error)

    # In a thread of its own, because a test may be a coroutine with its own loop.
    thread = threading.Thread(target=run, name="holdfast-replay")
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
    assert not problems, f"{path} does not verify: {'; '.join(problems)}"
    for report in reports:
        assert report.difference is None, (
            f"{path}: session {report.session} diverges from its recording: {report.difference}"
        )
    return reports


@pytest.fixture(name="assert_replays")
def assert_replays_fixture() -> Callable[[str | Path], list[ReplayReport]]:
    """Return the assertion that an exported session replays."""
    return assert_replays
