"""Waits: a signal from outside by its name, and a time."""

import pytest
from lab import RUN, Lab

from holdfast.core.errors import CallNotFound, InvalidInput
from holdfast.stores.memory.store import MemorySessionStore
from holdfast.workflows.reading import read_text

WAITS = """
workflow: w
vars: {order: {type: string, default: "17"}}
nodes:
  paid:
    wait:
    signal: "paid {{ vars.order }}"
    output: {amount: integer}
    next: ship
  ship: {tool: work, inputs: {what: "ship {{ outputs.paid.amount }}"}, next: done}
"""


def flow(text):
    found, problems = read_text(text, "")
    assert problems == [], "\n".join(map(str, problems))
    return found


@pytest.fixture
def lab():
    return Lab(MemorySessionStore())


async def test_a_run_waits_for_a_signal_by_its_name_and_takes_what_it_brings(lab):
    process = await lab.process()
    result = await process.runs.run(flow(WAITS), run_id=RUN)
    assert (result.status, result.next_to_act) == ("paused", "whoever sends: paid 17")
    with pytest.raises(CallNotFound, match="does not wait for the signal 'paid 18'"):
        await process.runs.signal(RUN, "paid 18")
    with pytest.raises(InvalidInput, match="does not fit its schema"):
        await process.runs.signal(RUN, "paid 17", {"amount": "much"})
    await process.runs.signal(RUN, "paid 17", {"amount": 5}, by="bank")
    await process.runtime.settled()
    assert (await process.runs.result(RUN)).status == "finished"
    assert dict(lab.witness.done) == {"ship 5": 1}
    await process.end()


async def test_a_signal_while_nobody_drives_is_taken_by_the_next_process(lab):
    process = await lab.process()
    await process.runs.run(flow(WAITS), run_id=RUN)
    await process.end()
    other = await lab.process()
    await other.runs.answer(RUN, "paid.1.1", {"amount": 7})  # by the call is as good
    await other.runtime.settled()
    assert (await other.runs.result(RUN)).status == "finished"
    await other.end()


LATE = """
workflow: w
nodes:
  paid:
    wait: 20ms
    signal: paid
    next: [{to: done}, {to: dun, on: failure}]
  dun: {tool: work, inputs: {what: dun}, next: done}
"""


async def test_a_signal_that_does_not_come_in_time_can_be_caught(lab):
    process = await lab.process()
    await process.runs.run(flow(LATE), run_id=RUN)
    for _ in range(200):
        if (await process.runs.result(RUN)).status == "finished":
            break
        await process.runtime.tick()
        await process.runtime.settled()
        await process.runs.drive(RUN)
    assert (await process.runs.result(RUN)).status == "finished"
    assert dict(lab.witness.done) == {"dun": 1}
    await process.end()
