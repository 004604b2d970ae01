"""Cells that wait for children: what their re-runs see, and what is left when nobody waits."""

from __future__ import annotations

import asyncio
from pathlib import Path

import holdfast
from holdfast.models.port import ModelRequest
from holdfast.stores.port import SessionFilter
from holdfast.stores.verify import verify

from .conftest import Lab, cell
from .test_children_kill import sums_agree


async def test_a_cell_with_reads_writes_and_threads_goes_on_as_if_it_had_never_stopped(
    lab: Lab, tmp_path: Path
) -> None:
    """Its pure call answers otherwise, its own write changed what it read, answers come reversed.

    The first child ends only after the cell was given up and run again for the second.
    """
    note = tmp_path / "note.txt"
    note.write_text("as it was")
    rows = iter(range(100))
    second_told = asyncio.Event()

    @holdfast.tool(effect="pure")
    def search() -> int:
        """Search; nobody gets the same answer twice."""
        return next(rows)

    code = f"""
import work
from concurrent.futures import ThreadPoolExecutor
row = search()
said = open({str(note)!r}).read()
size = work.write_text('note.txt', said + ', and more')
def ask(task):
    return [rlm(task + str(row))['value'], lm(task + said)]
with ThreadPoolExecutor(2) as pool:
    first, second = pool.map(ask, ['first', 'second'])
FINAL([row, said, size, first, second])
"""

    async def respond(request: ModelRequest) -> str:
        if request.purpose == "leaf":
            if request.prompt.startswith("second"):
                second_told.set()
            return f"<{{{request.prompt}}}>"
        if request.first_user_text == "root":
            return cell(code)
        if request.first_user_text.startswith("first"):
            await second_told.wait()  # so the other thread has gone on, in a second run of the cell
            await asyncio.sleep(0.5)  # longer than a cell that only waits is kept in place
        else:
            await asyncio.sleep(0.5)
        return cell(f"FINAL('by {request.first_user_text}')")

    agent = holdfast.Agent(tools=[search])
    runtime = await lab.open(respond, agents=[agent], profile="trusted", work_area=str(tmp_path))
    session = await runtime.start()
    result = await session.send("root")
    assert isinstance(result, holdfast.Final), result
    row, said, size, first, second = result.value
    assert (row, said, size) == (0, "as it was", len("as it was, and more"))
    assert first == ["by first0", "<{firstas it was}>"]
    assert second == ["by second0", "<{secondas it was}>"]
    assert note.read_text() == "as it was, and more"
    calls = await lab.facts(session.id, "call.requested")
    assert [call.name for call in calls if call.kind == "tool"] == ["search", "work.write_text"]
    assert [call.name for call in calls if call.kind == "child"] == ["rlm", "rlm"]
    asked = [r.prompt for r in lab.requests if r.purpose == "leaf"]
    assert sorted(asked) == ["firstas it was", "secondas it was"], "each is asked once"
    by_call = {call.call_id: await session.value(call.arguments) for call in calls}
    ends = [
        by_call[fact.call_id]["task"]
        for fact in await lab.facts(session.id, "call.resolved")
        if isinstance(by_call[fact.call_id], dict) and "task" in by_call[fact.call_id]
    ]
    assert ends == ["second0", "first0"]
    (evaluated,) = await lab.facts(session.id, "eval.added")
    assert evaluated.status == "final"


async def test_children_that_were_not_made_yet_are_never_made_once_their_parent_has_ended(
    lab: Lab,
) -> None:
    code = """
import threading, time
threading.Thread(target=map_rlm, args=(['never', 'not begun', 'not begun'],)).start()
time.sleep(60)
"""

    async def respond(request: ModelRequest) -> str:
        if request.first_user_text == "root":
            return cell(code)
        await asyncio.Event().wait()
        raise AssertionError

    runtime = await lab.open(respond)
    session = await runtime.start(child_concurrency=1, max_calls=30, turn_seconds=3)
    assert isinstance(await session.send("root"), holdfast.TimedOut)
    await runtime.settled()
    state = await runtime.state(session.id)
    assert (state.calls, state.reserved) == ({}, {}), "nothing stays set aside for them"
    (made,) = (await runtime.sessions(SessionFilter(parent=session.id))).sessions
    assert (await runtime.state(made.id)).turn is None
    await sums_agree(lab.store)
    for info in (await runtime.sessions()).sessions:
        assert (await verify(lab.store, info.id)).ok
