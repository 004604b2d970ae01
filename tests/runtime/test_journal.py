"""A driver's handle on a log: whoever is cancelled in it leaves a state that is the log's."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast.core.errors import StoreFailed
from holdfast.core.facts import MessageAppended, SessionStarted
from holdfast.core.payloads import slot
from holdfast.core.state import State
from holdfast.runtime.journal import Journal
from holdfast.stores.memory.store import MemorySessionStore
from holdfast.stores.port import Appended


class HesitantStore(MemorySessionStore):
    """A store that can be made to wait before or after it writes."""

    def __init__(self) -> None:
        super().__init__()
        self.reached, self.go_on = asyncio.Event(), asyncio.Event()
        self.waits: str | None = None
        self.problem: Exception | None = None

    async def append(self, *arguments: Any, **options: Any) -> Appended:
        """Append, with a wait where it was asked for, once."""
        waits, self.waits = self.waits, None
        if waits == "before":
            await self._wait()
        if waits != "after" and self.problem is not None:
            raise self.problem
        done = await super().append(*arguments, **options)
        if waits == "after":
            await self._wait()
            if self.problem is not None:
                raise self.problem
        return done

    async def load_state(self, session_id: str) -> State:
        """Load a state, or fail."""
        if self.problem is not None:
            raise self.problem
        return await super().load_state(session_id)

    async def _wait(self) -> None:
        self.reached.set()
        await self.go_on.wait()


async def begun(store: MemorySessionStore) -> Journal:
    state = await store.create_session("s", SessionStarted())
    return Journal(store, await store.acquire("s"), state)


def message(state: State) -> list[MessageAppended]:
    number = state.next("message")
    return [MessageAppended(message=number, role="user", content=slot("hello", "message"))]


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_batch_whose_writer_is_cancelled_is_written_once_and_folded(moment: str) -> None:
    store = HesitantStore()
    journal = await begun(store)
    store.waits = moment
    task = asyncio.ensure_future(journal.append(message))
    await store.reached.wait()
    task.cancel()
    store.go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert journal.state == await store.load_state("s")
    assert journal.state.seq == 2
    await journal.append(message)
    assert [event.seq for event in await store.read_events("s")] == [1, 2, 3]


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("problem", [StoreFailed("the disk"), ConnectionResetError("the link")])
async def test_a_store_that_fails_after_a_cancellation_is_read_again_before_the_next_batch(
    moment: str, problem: Exception
) -> None:
    store = HesitantStore()
    journal = await begun(store)
    store.waits, store.problem = moment, problem
    task = asyncio.ensure_future(journal.append(message))
    await store.reached.wait()
    task.cancel()
    store.go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(type(problem)):
        await journal.append(message)
    store.problem = None
    await journal.append(message)
    assert journal.state == await store.load_state("s")
    # What was not written stays so: whoever was cancelled knows that it may be.
    assert journal.state.seq == (2 if moment == "before" else 3)


async def test_one_who_is_cancelled_while_he_waits_for_another_is_written_too() -> None:
    store = HesitantStore()
    journal = await begun(store)
    store.waits = "before"
    first = asyncio.ensure_future(journal.append(message))
    await store.reached.wait()
    second = asyncio.ensure_future(journal.append(message))
    await asyncio.sleep(0)
    second.cancel()
    store.go_on.set()
    await first
    with pytest.raises(asyncio.CancelledError):
        await second
    assert journal.state == await store.load_state("s")
    assert journal.state.seq == 3
