"""A subscription that is broken off while it reads loses nothing."""

import asyncio

import pytest

from holdfast.core.errors import NothingWritten
from holdfast.core.events import Event
from holdfast.stores.feed import HINT_ITEMS, Feed
from holdfast.stores.port import Gap, Hint
from holdfast.stores.tenancy import Address

WAIT = 10.0
FIRST = Event("s", 1, "session.started", 1, "2026-01-02T03:04:05.000006Z", {}, "0" * 64)


async def test_a_cancelled_read_is_made_again() -> None:
    reading, slow = asyncio.Event(), True

    async def read(session_id: str, *, after: int, limit: int) -> list[Event]:
        reading.set()
        if slow:
            await asyncio.Event().wait()
        return [FIRST] if after == 0 else []

    async with Feed().subscribe(Address("default", "s"), 0, read) as live:
        task = asyncio.ensure_future(anext(live))
        await reading.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        slow = False
        assert await asyncio.wait_for(anext(live), WAIT) == FIRST


async def test_hints_that_were_dropped_leave_one_marker_and_the_newest() -> None:
    feed = Feed()
    async with feed.subscribe_all("default") as hints:
        for number in range(HINT_ITEMS + 3):
            feed.wake(f"s-{number}", 1)
            feed.wake(f"s-{number}", 2)
        heard = [await asyncio.wait_for(anext(hints), WAIT) for _ in range(HINT_ITEMS + 1)]
        assert heard[0] == Gap("", 0)
        assert heard[1:] == [Hint(f"s-{number}", 2) for number in range(3, HINT_ITEMS + 3)]


async def test_a_failed_read_is_made_again() -> None:
    broken = True

    async def read(session_id: str, *, after: int, limit: int) -> list[Event]:
        if broken:
            raise NothingWritten("the disk is away")
        return [FIRST] if after == 0 else []

    async with Feed().subscribe(Address("default", "s"), 0, read) as live:
        with pytest.raises(NothingWritten):
            await anext(live)
        broken = False
        assert await asyncio.wait_for(anext(live), WAIT) == FIRST
