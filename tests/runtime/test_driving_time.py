"""`turn_seconds` is driving time: what a turn waits for people is not counted."""

from __future__ import annotations

import asyncio

import holdfast
from holdfast.models.port import ModelRequest

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


async def test_what_a_cell_was_driven_for_before_it_was_given_up_counts(lab: Lab) -> None:
    code = "import time\ntime.sleep(0.6)\nFINAL(rlm('slow')['value'])"

    async def respond(request: ModelRequest) -> str:
        if request.first_user_text == "root":
            return cell(code)
        await asyncio.sleep(1)  # longer than a cell that only waits is kept in place
        return cell("FINAL('done')")

    runtime = await lab.open(respond)
    session = await runtime.start()
    result = await session.send("root")
    assert isinstance(result, holdfast.Final), result
    (wait,) = await lab.facts(session.id, "call.suspended")
    assert wait.driven_ms >= 600
    (evaluated,) = await lab.facts(session.id, "eval.added")
    (put,) = await lab.facts(session.id, "turn.put")
    assert put.elapsed_ms >= wait.driven_ms + evaluated.elapsed_ms
    assert (await runtime.state(session.id)).spend.driven_ms == put.elapsed_ms
