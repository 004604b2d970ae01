"""`turn_seconds` is driving time: what a turn waits for people is not counted."""

from __future__ import annotations

import asyncio

import holdfast

from .conftest import Lab, cell, replies


async def test_waiting_for_a_person_is_not_driving_time(lab: Lab) -> None:
    runtime = await lab.open(replies(cell("FINAL(ask('Who?'))")), turn_seconds=4)
    session = await runtime.start()
    assert isinstance(await session.send("x"), holdfast.Suspended)
    await asyncio.sleep(4.2)  # longer than the turn may be driven
    (call,) = await session.open_calls()
    await session.answer(call.call_id, "Ada")
    await runtime.settled()
    (turn,) = await session.turns()
    assert turn.status == "final"
