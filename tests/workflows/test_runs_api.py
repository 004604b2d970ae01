"""The life of a run as programs see it: resume, change, cancel, people, files, two processes."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from lab import RUN, Lab, until_over
from test_workflow_runs import AGENTS, FAN_OUT, GATE, LINE, LOOP

import holdfast
from holdfast.core.errors import Conflict, InvalidInput, LeaseHeld, SessionBusy
from holdfast.runs import ArtifactNotFound, RunNotFound, Runs, WorkflowChanged, registry
from holdfast.stores.memory.store import MemorySessionStore
from holdfast.workflows import InvalidWorkflow
from holdfast.workflows.git import git
from holdfast.workflows.reading import read_text

GO = {"ask": {"answer": "go"}}


@pytest.fixture
def lab():
    return Lab(MemorySessionStore())


def flow(text):
    found, problems = read_text(text, "")
    assert problems == []
    return found


SLOW = "workflow: w\nnodes:\n  a: {compute: slow, next: done}"


class Slow:
    """The function of a node that says when it has begun, and ends when it is told to."""

    def __init__(self):
        self.begun, self.go_on = asyncio.Event(), asyncio.Event()

    async def work(self):
        self.begun.set()
        await self.go_on.wait()
        return {"n": 1}


async def test_a_workflow_that_is_not_sound_is_refused_before_anything_is_stored(lab):
    process = await lab.process()
    with pytest.raises(InvalidWorkflow, match="there is no tool 'nothing'"):
        await process.runs.create(flow(LINE.replace("tool: work", "tool: nothing")))
    assert (await process.runs.page())[0] == []
    await process.end()


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({}, "needs the variable 'n'"),
        ({"n": "x"}, "n must be an integer"),
        ({"n": 1, "m": 2}, "no variable 'm'"),
    ],
)
async def test_variables_are_checked_before_a_run_begins(lab, given, why):
    process = await lab.process()
    text = "workflow: w\nvars: {n: integer}\nnodes:\n  a: {compute: {n: vars.n}, next: done}"
    with pytest.raises(InvalidInput, match=why):
        await process.runs.create(flow(text), given)
    result = await process.runs.run(flow(text), {"n": 4})
    assert result.output == {"n": 4}
    await process.end()


async def test_a_run_says_who_has_to_act_next(lab):
    process = await lab.process()
    result = await process.runs.run(flow(GATE), run_id=RUN)
    assert (result.status, result.next_to_act) == ("paused", "people")
    assert result.waiting == ("ask.2.1",)
    (asked,) = await process.runs.interactions(RUN)
    assert (asked.node, asked.open) == ("ask", True)
    await process.runs.answer(RUN, "ask.2.1", {"answer": "go"}, by="ada")
    await process.runtime.settled()
    assert (await process.runs.result(RUN)).status == "finished"
    (asked,) = await process.runs.interactions(RUN)
    assert (asked.outcome, asked.by) == ("ok", "ada")
    await process.end()


async def test_an_answer_that_breaks_the_form_is_refused_and_the_first_one_wins(lab):
    process = await lab.process()
    await process.runs.run(flow(GATE), run_id=RUN)
    with pytest.raises(InvalidInput, match="does not fit its schema"):
        await process.runs.answer(RUN, "ask.2.1", {"answer": "maybe"})
    await process.runs.answer(RUN, "ask.2.1", {"answer": "go"})
    await process.runtime.settled()
    with pytest.raises(holdfast.HoldfastError):
        await process.runs.answer(RUN, "ask.2.1", {"answer": "stop"})
    assert (await process.runs.result(RUN)).status == "finished"
    await process.end()


async def test_an_answer_while_nobody_drives_is_applied_by_the_next_process(lab):
    process = await lab.process()
    await process.runs.run(flow(GATE), run_id=RUN)
    await process.end()
    store = await lab.store()
    from holdfast.runtime import answers

    await answers.answer(store, RUN, "ask.2.1", {"answer": "go"})
    other = await lab.process()
    assert (await other.runs.drive(RUN)).status == "finished"
    assert dict(lab.witness.done) == {"a": 1, "b": 1}
    await other.end()


async def test_a_cancelled_run_can_be_resumed_and_cancelled_again(lab):
    process = await lab.process()
    await process.runs.run(flow(GATE), run_id=RUN)
    for _ in range(2):
        assert (await process.runs.cancel(RUN, by="ada")).status == "cancelled"
        assert (await process.runtime.state(RUN)).calls == {}
        assert (await process.runs.resume(RUN)).status == "paused"
    assert (await until_over(process, GO)).status == "finished"
    assert dict(lab.witness.done) == {"a": 1, "b": 1}
    await process.end()


async def test_a_finished_run_is_not_resumed_and_a_session_is_not_a_run(lab):
    process = await lab.process()
    await process.runs.run(flow(LINE), run_id=RUN)
    with pytest.raises(Conflict, match="rewind it"):
        await process.runs.resume(RUN)
    await process.runtime.start(session_id="s-1")
    with pytest.raises(RunNotFound, match="not a workflow run"):
        await process.runs.drive("s-1")
    await process.end()


async def test_a_failed_node_runs_again_on_resume_and_no_other(lab):
    calls = []

    def sometimes():
        calls.append(1)
        if len(calls) == 1:
            raise ValueError("not now")
        return {"n": 1}

    text = LINE.replace(
        "b: {tool: work, inputs: {what: \"{{ outputs.a.did + 'b' }}\"}", "b: {compute: sometimes"
    )
    text = text.replace("{{ outputs.b.did }}", "{{ outputs.b.n }}")
    process = await lab.process(functions={"sometimes": sometimes})
    result = await process.runs.run(flow(text), run_id=RUN)
    assert (result.status, result.code, result.node) == ("failed_resumable", "tool_error", "b")
    assert "not now" in result.error
    assert (await process.runs.resume(RUN, by="ada")).status == "finished"
    assert dict(lab.witness.done) == {"a": 1}
    await process.end()


async def test_a_changed_file_is_refused_with_what_differs_or_taken_on_record(lab, tmp_path):
    file = tmp_path / "w.yaml"
    file.write_text(GATE)
    process = await lab.process()
    run = await process.runs.create(file, run_id=RUN)
    await process.runs.drive(run)
    file.write_text("# a comment\n" + GATE)
    assert (await process.runs.resume(RUN)).status == "paused", "comments do not count"
    file.write_text(GATE.replace("{what: b}", "{what: changed}"))
    with pytest.raises(WorkflowChanged, match=r"node b was changed \(inputs\)") as caught:
        await process.runs.resume(RUN)
    assert caught.value.changes[0].fields == ("inputs",)
    await process.runs.resume(RUN, changed=True, by="ada")
    assert (await until_over(process, GO)).status == "finished"
    assert dict(lab.witness.done) == {"a": 1, "changed": 1}
    assert "run.changed" in [event.type for event in await process.runs.events(RUN)]
    await process.end()


async def test_a_change_that_takes_away_where_the_run_stands_is_refused_even_then(lab, tmp_path):
    file = tmp_path / "w.yaml"
    file.write_text(GATE)
    process = await lab.process()
    await process.runs.drive(await process.runs.create(file, run_id=RUN))
    file.write_text(GATE.replace("ask", "other"))
    with pytest.raises(Conflict, match="node 'ask', where branch 'main' stands"):
        await process.runs.resume(RUN, changed=True)
    assert (await process.runs.resume(RUN, stored=True)).status == "paused"
    await process.end()


async def test_events_are_read_by_half_open_bounds_and_a_scan_stops_early(lab):
    process = await lab.process()
    await process.runs.run(flow(LOOP), run_id=RUN)
    assert [event.seq for event in await process.runs.events(RUN, 3, 6)] == [3, 4, 5]
    assert len(await process.runs.events(RUN, limit=2)) == 2
    async for event in process.runs.scan(RUN, 4):
        assert event.seq == 4
        break
    assert await process.runs.driver(RUN) is None
    found = await process.runs.artifacts(RUN, "write")
    assert [one.version for one in found] == [0, 1, 2]
    assert await process.runs.artifact(RUN, "write") == {"did": "write 2"}
    with pytest.raises(ArtifactNotFound):
        await process.runs.artifact(RUN, "gate")
    (info,), _ = await process.runs.page()
    assert (info.id, info.workflow, info.status) == (RUN, "w", "finished")
    await process.end()


async def test_two_processes_never_drive_one_run_at_a_time(lab):
    slow = Slow()
    one = await lab.process(functions={"slow": slow.work})
    other = await lab.process(functions={"slow": slow.work})
    await one.runs.create(flow(SLOW), run_id=RUN)
    driving = asyncio.ensure_future(one.runs.drive(RUN))
    await slow.begun.wait()
    with pytest.raises((LeaseHeld, SessionBusy)):
        await other.runs.drive(RUN)
    slow.go_on.set()
    assert (await driving).status == "finished"
    assert (await other.runs.drive(RUN)).status == "finished"
    await one.end()
    await other.end()


async def test_a_cancel_that_races_the_last_node_leaves_one_outcome(lab):
    slow = Slow()
    process = await lab.process(functions={"slow": slow.work})
    await process.runs.create(flow(SLOW), run_id=RUN)
    driving = asyncio.ensure_future(process.runs.drive(RUN))
    await slow.begun.wait()
    asked = asyncio.ensure_future(process.runs.cancel(RUN))
    slow.go_on.set()
    await asyncio.gather(driving, asked)
    ends = [
        event.type
        for event in await process.runs.events(RUN)
        if event.type in ("run.finished", "run.cancelled")
    ]
    assert len(ends) == 1
    await process.end()


async def test_a_driver_that_is_told_to_leave_says_so_and_another_goes_on(lab):
    slow = Slow()
    process = await lab.process(functions={"slow": slow.work})
    await process.runs.create(flow(SLOW), run_id=RUN)
    driving = asyncio.ensure_future(process.runs.drive(RUN))
    await slow.begun.wait()
    driving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await driving
    assert (await process.runs.result(RUN)).status == "interrupted"
    await process.end()
    other = await lab.process(functions={"slow": lambda: {"n": 2}})
    assert (await other.runs.drive(RUN)).output == {"n": 2}
    await other.end()


async def test_a_budget_in_dollars_covers_agents_and_is_not_reset_by_a_resume(lab):
    text = AGENTS.replace("nodes:", "budget: {tokens: 1}\nnodes:")
    process = await lab.process()
    result = await process.runs.run(flow(text), run_id=RUN)
    assert result.status == "failed_resumable"
    assert result.code == "budget_exceeded"
    asked = sum(lab.witness.asked.values())
    again = await process.runs.resume(RUN)
    assert again.status == "failed_resumable"
    assert sum(lab.witness.asked.values()) == asked, "nothing was paid after the limit"
    await process.end()


async def test_an_agent_that_asks_goes_on_in_its_conversation(lab, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # its cells may read what is here, and nothing changes it

    def answered(request):
        if request.ordinal == 0:
            return "```python\ncolour = ask('Which colour?')\n```"
        return "```python\nFINAL('painted ' + colour)\n```"

    agents = [holdfast.Agent("writer"), holdfast.Agent("critic")]
    text = """
workflow: w
nodes:
  a: {agent: writer, prompt: Paint., next: end}
  end: {done: {said: "{{ outputs.a }}"}}
"""
    process = await lab.process(model=answered, agents=agents)
    result = await process.runs.run(flow(text), run_id=RUN)
    assert result.status == "paused", result
    (asked,) = await process.runs.interactions(RUN)
    assert (asked.node, asked.open) == ("a", True)
    assert asked.session != RUN
    await process.end()
    other = await lab.process(model=answered, agents=agents)
    await other.runs.answer(RUN, asked.id, "blue")
    await other.runtime.settled()
    result = await until_over(other, {})
    assert result.output == {"said": "painted blue"}
    children = [call for call in await other.runs.events(RUN) if call.type == "call.requested"]
    assert len(children) == 1, "the same session went on"
    await other.end()


def repository(tmp_path):
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "--quiet", "--initial-branch=main")
    (folder / "a.txt").write_text("one\n")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message", "first")
    return folder


WORKTREE = """
workflow: w
workspace: worktree
nodes:
  one:
    tool: write
    inputs: {path: "{{ run.workspace }}/b.txt", text: two}
    writes: workspace
    next: two
  two:
    tool: write
    inputs: {path: "{{ run.workspace }}/c.txt", text: three}
    writes: workspace
    next: done
"""


@holdfast.tool(effect="idempotent")
def write(path: str, text: str) -> dict[str, str]:
    """Write a file."""
    Path(path).write_text(text)
    return {"wrote": path}


async def worked(lab, folder, tmp_path, after=None):
    process = await lab.process(after, tools=[write])
    process.runs = Runs(process.runtime, registry(tools=[write]), place=tmp_path / "worktrees")
    try:
        await process.runs.create(flow(WORKTREE), run_id=RUN, folder=folder)
        return await process.runs.drive(RUN)
    except BaseException:
        return None
    finally:
        await process.end()


async def test_a_run_in_a_worktree_leaves_its_commits_in_the_branch(lab, tmp_path):
    folder = repository(tmp_path)
    result = await worked(lab, folder, tmp_path)
    assert result.status == "finished"
    assert (folder / "c.txt").read_text() == "three"
    log = git(folder, "log", "--format=%s").splitlines()
    assert log == ["two: execution 2", "one: execution 1", "first"]


async def test_a_run_in_a_worktree_cut_off_anywhere_ends_with_one_branch(tmp_path):
    for after in range(1, 9):
        place = tmp_path / str(after)
        place.mkdir()
        folder = repository(place)
        lab = Lab(MemorySessionStore())
        await worked(lab, folder, place, after)
        result = await worked(lab, folder, place)
        assert result.status == "finished", after
        assert (folder / "c.txt").read_text() == "three"
        branches = git(folder, "for-each-ref", "--format=%(refname:short)", "refs/heads").split()
        assert len(branches) == 2
        events = await (await lab.store()).read_events(RUN, types=["workspace.finalised"])
        assert len(events) == 1
        assert events[0].data["merged_into"] == "main"


PROGRAM = """
import asyncio, sys
sys.path.insert(0, {tests!r})
import holdfast
from pathlib import Path
from holdfast.runs import Runs, registry
from holdfast.runtime.tools import CallContext
from holdfast.workflows.reading import read_text

witness = Path({witness!r})

@holdfast.tool(effect="idempotent")
def work(what: str, context: CallContext) -> dict[str, str]:
    with witness.open("a") as file:
        file.write(what + "\\n")
    return {{"did": what}}

async def main():
    flow, _ = read_text(Path({flow!r}).read_text(), "")
    async with await holdfast.open("sqlite:" + {store!r}, agents=[holdfast.Agent()]) as runtime:
        runs = Runs(runtime, registry(tools=[work]))
        await runs.create(flow, run_id="r-1")
        print((await runs.drive("r-1")).status, flush=True)

asyncio.run(main())
"""


@pytest.mark.soak
def test_a_process_that_is_really_killed_loses_only_what_was_in_flight(tmp_path):
    (tmp_path / "w.yaml").write_text(FAN_OUT)
    text = PROGRAM.format(
        tests=str(Path(__file__).parent),
        witness=str(tmp_path / "witness"),
        flow=str(tmp_path / "w.yaml"),
        store=str(tmp_path / "store"),
    )
    (tmp_path / "program.py").write_text(text)
    command = [sys.executable, str(tmp_path / "program.py")]
    told = ""
    for attempt in range(8):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        if attempt < 6:
            deadline = time.monotonic() + 60
            size = attempt  # let each attempt get one step further than the last
            witness = tmp_path / "witness"
            while process.poll() is None and time.monotonic() < deadline:
                done = len(witness.read_text().splitlines()) if witness.exists() else 0
                if done > size:
                    os.kill(process.pid, signal.SIGKILL)
                    break
        told = process.communicate()[0].strip()
        if told == "finished":
            break
    assert told == "finished"
    counts = (tmp_path / "witness").read_text().split()
    assert set(counts) == {"a", "b", "b2", "c", "meet"}
    assert len(counts) <= 5 + 3 * 6


async def test_an_agent_that_runs_short_gets_more_of_what_its_run_has_left(lab):
    # Each of the branches that may run at a time is granted its share at first.
    text = AGENTS.replace("nodes:", "budget: {tokens: 200000}\nparallel: 4\nnodes:")
    process = await lab.process()
    result = await process.runs.run(flow(text), run_id=RUN)
    assert result.status == "finished", result
    await process.end()
