"""A send that is cancelled at any moment records an interruption, and resume comes to the same end.

The task is cancelled at the n-th write of the log, while the write is under way or right after it,
and in the middle of model calls and cells.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.core.facts import TurnPut
from holdfast.models.port import ModelRequest
from holdfast.models.scripted import ScriptedModel
from holdfast.stores.memory.store import MemorySessionStore
from holdfast.stores.port import SessionStore
from holdfast.stores.verify import verify

from .children import workload
from .children.workload import FINALS, SESSION, Ledger, StoreAround
from .conftest import Lab, cell, replies
from .test_kill import count_writes, finals, paid_for

AT_ONCE = 3


class CancellingStore(StoreAround):
    """Cancels the task that drives at one write."""

    def __init__(self, at: int, when: str) -> None:
        super().__init__(MemorySessionStore())
        self.at = at
        self.when = when
        self.task: asyncio.Task[Any] | None = None

    async def around(self, verb: str, write: Any, arguments: Any, options: Any) -> Any:
        self.writes += 1
        chosen = self.writes == self.at and self.task is not None
        if chosen and self.when == "during":
            self._cancel()
            # The cancellation reaches the driver while this write is still on its way.
            for _ in range(20):
                await asyncio.sleep(0)
        done = await write(*arguments, **options)
        if chosen and self.when == "after":
            self._cancel()
        return done

    def _cancel(self) -> None:
        assert self.task is not None
        self.task.cancel()


def folder_for(place: Path, at: int) -> Path:
    folder = place / str(at)
    folder.mkdir()
    return folder


async def check_interruption(store: SessionStore) -> None:
    state = await store.load_state(SESSION)
    assert await store.lease_of(SESSION) is None, "a cancelled drive gives its lease back"
    if state.turn is None:
        return
    (last,) = await store.read_events(SESSION, reverse=True, limit=1)
    fact = last.fact()
    assert isinstance(fact, TurnPut), f"the log ends in {last.type}"
    assert fact.status == "interrupted"


async def is_taken_up_after_a_cancellation(at: int, when: str, folder: Path) -> bool:
    store = CancellingStore(at, when)
    ledger = Ledger(folder / "ledger")
    async with await holdfast.open(store, model=workload.model(ledger)) as runtime:  # type: ignore[arg-type]
        store.task = asyncio.ensure_future(workload.work(runtime, folder))
        await asyncio.wait({store.task})
        if not store.task.cancelled():
            store.task.result()
            return False
        inner = store.inner
        await check_interruption(inner)
        stored, asked = await paid_for(inner), ledger.asked()
        await workload.work(runtime, folder)
        assert await finals(inner) == list(FINALS)
        again = {question for question in stored if ledger.asked()[question] > asked[question]}
        assert not again, f"paid twice: {again}"
        assert (await verify(inner, SESSION)).ok
    return True


@pytest.mark.parametrize("when", ["during", "after"])
async def test_a_send_cancelled_at_any_write_is_interrupted_and_taken_up(
    tmp_path: Path, when: str
) -> None:
    gate = asyncio.Semaphore(AT_ONCE)
    problems: list[str] = []

    async def one(at: int) -> bool:
        async with gate:
            try:
                return await is_taken_up_after_a_cancellation(at, when, folder_for(tmp_path, at))
            except Exception as error:
                problems.append(f"write {at}: {type(error).__name__}: {error}")
                return False

    cancelled = await asyncio.gather(*(one(at) for at in range(2, await count_writes() + 1)))
    assert not problems, "\n".join(problems)
    assert cancelled.count(True) > 15


async def test_a_send_cancelled_in_a_model_call_ends_the_call_and_is_taken_up(lab: Lab) -> None:
    asked, ended = asyncio.Event(), asyncio.Event()

    async def respond(request: ModelRequest) -> str:
        if not ended.is_set():
            asked.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()
        return cell("FINAL('there')")

    runtime = await holdfast.open(lab.store, model=ScriptedModel(respond))
    async with runtime:
        session = await runtime.start()
        task = asyncio.ensure_future(session.send("x"))
        await asked.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended.is_set()
        (turn,) = await runtime.turns(session.id)
        assert turn.status == "interrupted"
        result = await session.resume()
        assert isinstance(result, holdfast.Final)
        assert result.value == "there"
        assert result.unknown_calls == 1  # nobody knows what the broken call cost


async def test_a_send_cancelled_in_a_cell_runs_the_cell_again_from_its_start(lab: Lab) -> None:
    runtime = await lab.open(
        replies(
            cell("count = 1"),
            cell("count += 1\nlm('here')\nwhile lm('go on?') != 'yes':\n    pass\nFINAL(count)"),
            leaf=lambda prompt: "yes" if ready.is_set() else "no",
        )
    )
    ready = asyncio.Event()
    session = await runtime.start()
    task = asyncio.ensure_future(session.send("x"))
    async with runtime.subscribe(session.id) as items:
        async for item in items:
            if getattr(item, "type", "") == "leaf.called":
                break
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    ready.set()
    result = await session.resume()
    assert isinstance(result, holdfast.Final)
    assert result.value == 2


async def test_closing_a_runtime_breaks_off_what_it_drives_and_records_it() -> None:
    store = MemorySessionStore()
    asked = asyncio.Event()

    async def respond(request: ModelRequest) -> str:
        asked.set()
        await asyncio.Event().wait()
        return ""

    async with await holdfast.open(store, model=ScriptedModel(respond)) as runtime:
        session = await runtime.start()
        task = asyncio.ensure_future(session.send("x"))
        await asked.wait()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await store.lease_of(session.id) is None
    model = ScriptedModel(replies(cell("FINAL('later')")))
    async with await holdfast.open(store, model=model) as runtime:
        (turn,) = await runtime.turns(session.id)
        assert turn.status == "interrupted"
        result = await runtime.resume(session.id)
        assert isinstance(result, holdfast.Final)
