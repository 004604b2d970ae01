"""A message that is sent again with its key is worked once and answered each time."""

from __future__ import annotations

import asyncio

import pytest

import holdfast
from holdfast.core.errors import InboxConflict, InboxConsumed
from holdfast.models.errors import RateLimited
from holdfast.models.port import ModelRequest
from holdfast.stores.verify import verify

from .conftest import Lab, cell, replies


async def test_a_message_sent_again_with_its_key_is_worked_once(lab: Lab) -> None:
    runtime = await lab.open(replies(cell("FINAL('first')"), cell("FINAL('second')")))
    session = await runtime.start()
    first = await session.send("x", inputs={"n": 1}, key="k")
    assert isinstance(first, holdfast.Final)
    assert await session.send("x", inputs={"n": 1}, key="k") == first
    assert await session.send("x", inputs={"n": 1}, key="k", when_busy="queue") == first
    assert len(lab.requests) == 1
    later = await session.send("y", key="another")
    assert isinstance(later, holdfast.Final)
    assert later.value == "second"
    assert await session.send("x", inputs={"n": 1}, key="k") == first
    with pytest.raises(InboxConflict, match="'k'"):
        await session.send("another message", key="k")
    assert await lab.store.list_inbox(session.id) == []
    assert (await verify(lab.store, session.id)).ok


@pytest.mark.parametrize(
    "limits",
    [{"max_turns": 1}, {"max_steps": 1}, {}],
    ids=["no turn allowed", "no further step allowed", "a provider that fails"],
)
async def test_what_a_key_came_to_is_told_again_however_it_ended(
    lab: Lab, limits: dict[str, int]
) -> None:
    def respond(request: ModelRequest) -> str:
        if request.ordinal == 0:
            return cell("FINAL(1)")
        if "max_steps" in limits:
            return cell("x = 1")
        raise RateLimited("slower")

    runtime = await lab.open(respond, **limits)
    session = await runtime.start()
    await session.send("before")
    first = await session.send("x", key="k")
    assert isinstance(first, holdfast.BudgetExceeded | holdfast.Failed)
    asked = len(lab.requests)
    assert await session.send("x", key="k") == first
    assert len(lab.requests) == asked


async def test_a_key_whose_turn_is_being_worked_says_so_and_one_that_waits_is_queued(
    lab: Lab,
) -> None:
    asked, go = asyncio.Event(), asyncio.Event()

    async def respond(request: ModelRequest) -> str:
        asked.set()
        await go.wait()
        return cell(f"FINAL({request.ordinal})")

    runtime = await lab.open(respond)
    session = await runtime.start()
    first = asyncio.ensure_future(session.send("x", key="k"))
    await asked.wait()
    with pytest.raises(InboxConsumed, match="turn 1"):
        await session.send("x", key="k", when_busy="queue")
    for _ in range(2):
        assert isinstance(await session.send("y", key="l", when_busy="queue"), holdfast.Queued)
    go.set()
    result = await first
    await runtime.settled()
    assert await session.send("x", key="k") == result
    worked = await session.send("y", key="l")
    assert isinstance(worked, holdfast.Final)
    assert (worked.turn, worked.value) == (2, 1)
    assert len(lab.requests) == 2
