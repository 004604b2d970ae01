"""A store that fails in the middle of a turn: memory equals the log, and the session goes on.

The write may have failed cleanly, may be lost without anyone knowing, or may be stored although
its answer was lost. After each of them the same runtime, with whatever it kept warm, must come to
the same end as one that never saw a failure.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.core.errors import NothingWritten, OutcomeUnknown, StoreFailed
from holdfast.stores.memory.store import MemorySessionStore
from holdfast.stores.verify import verify

from .children import workload
from .children.workload import FINALS, SESSION, Ledger, StoreAround
from .test_kill import count_writes, finals, paid_for

AT_ONCE = 3


class FailingStore(StoreAround):
    """Fails at chosen writes, in one of three ways."""

    def __init__(self, at: set[int], how: str) -> None:
        super().__init__(MemorySessionStore())
        self.at = at
        self.how = how

    async def around(self, verb: str, write: Any, arguments: Any, options: Any) -> Any:
        self.writes += 1
        if self.writes not in self.at or verb == "create":
            return await write(*arguments, **options)
        if self.how == "nothing":
            raise NothingWritten("the disk is full")
        if self.how == "written":
            await write(*arguments, **options)
        raise OutcomeUnknown("the disk said nothing")


async def works_in_spite_of(store: FailingStore, folder: Path) -> int:
    """Work the session in one runtime, trying again after each failure; return the failures."""
    ledger = Ledger(folder / "ledger")
    failures = 0
    async with await holdfast.open(store, model=workload.model(ledger)) as runtime:  # type: ignore[arg-type]
        while True:
            try:
                await workload.work(runtime, folder)
                break
            except StoreFailed:
                failures += 1
                stored = await paid_for(store)  # type: ignore[arg-type]
                asked = ledger.asked()
                assert await store.lease_of(SESSION) is None, "a failed drive gives its lease back"
    again = {q for q in stored if ledger.asked()[q] > asked[q]} if failures else set()
    assert not again, f"paid twice: {again}"
    assert await finals(store) == list(FINALS)  # type: ignore[arg-type]
    report = await verify(store, SESSION)  # type: ignore[arg-type]
    assert report.ok, report.problems
    return failures


async def for_every_write(tmp_path: Path, how: str, width: int = 1) -> list[int]:
    writes = await count_writes()
    gate = asyncio.Semaphore(AT_ONCE)
    problems: list[str] = []

    async def one(at: int) -> int:
        folder = tmp_path / str(at)
        folder.mkdir()
        async with gate:
            try:
                store = FailingStore(set(range(at, at + width)), how)
                return await works_in_spite_of(store, folder)
            except Exception as error:
                problems.append(f"write {at}: {type(error).__name__}: {error}")
                return -1

    failures = await asyncio.gather(*(one(at) for at in range(2, writes + 1)))
    assert not problems, "\n".join(problems)
    return failures


async def test_a_write_that_failed_is_told_and_the_session_goes_on(tmp_path: Path) -> None:
    failures = await for_every_write(tmp_path, "nothing")
    assert set(failures) == {1}


@pytest.mark.parametrize("how", ["lost", "written"])
async def test_a_write_of_unknown_outcome_is_looked_up_and_nobody_notices(
    tmp_path: Path, how: str
) -> None:
    failures = await for_every_write(tmp_path, how)
    assert set(failures) == {0}


async def test_a_store_that_stays_silent_for_two_writes_is_told(tmp_path: Path) -> None:
    failures = await for_every_write(tmp_path, "lost", width=2)
    assert min(failures) >= 0
    assert max(failures) == 1
