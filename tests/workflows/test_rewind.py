"""Rewinding: a new run takes over what another one finished, but for what depends on a node."""

import contextlib
import subprocess

import pytest
from lab import RUN, Lab, until_over
from test_workflow_runs import AGENTS, EACH, FAN_OUT, GATE, LINE, LOOP

from holdfast.core.errors import Conflict, InvalidInput
from holdfast.stores.memory.store import MemorySessionStore
from holdfast.stores.verify import verify
from holdfast.testing.faults import ProcessKilled
from holdfast.workflows.reading import read_text

GO = {"ask": {"answer": "go"}}


@pytest.fixture
def lab():
    return Lab(MemorySessionStore())


def flow(text):
    found, problems = read_text(text, "")
    assert problems == []
    return found


async def done_again(lab, text, to, answers=None, **given):
    """Run a workflow, rewind it and drive the new run; return its result and what it did."""
    process = await lab.process(**given)
    await process.runs.create(flow(text), run_id=RUN)
    first = await until_over(process, answers or {})
    assert first.status == "finished", first
    lab.witness.done.clear()
    lab.witness.asked.clear()
    again = await process.runs.rewinding(RUN, to)
    new = await process.runs.rewind(RUN, to, run_id="r-2")
    result = await process.runs.drive(new)
    report = await verify(process.store, new)
    assert report.ok, report
    assert (await process.runs.result(RUN)).status == "finished"  # it is left as it was
    await process.end()
    assert result.output == first.output
    return result, again


@pytest.mark.parametrize(
    ("text", "to", "did"),
    [
        (LINE, "a", {"a": 1, "ab": 1}),
        (LINE, "b", {"ab": 1}),
        (LOOP, "write:1", {"write 1": 1, "write 2": 1}),
        (LOOP, "gate:1", {"write 2": 1}),
        (LOOP, "write", {"write 0": 1, "write 1": 1, "write 2": 1}),
        (FAN_OUT, "b2", {"b2": 1, "meet": 1}),
        (FAN_OUT, "a", {"a": 1, "meet": 1}),
        (FAN_OUT, "split", {"a": 1, "b": 1, "b2": 1, "c": 1, "meet": 1}),
        (EACH, "one:2", {"item 3": 1}),
        (EACH, "one:all=4", {"item 5": 1}),
    ],
)
async def test_only_what_depends_on_the_node_runs_again(lab, text, to, did):
    result, again = await done_again(lab, text, to)
    assert result.status == "finished"
    assert dict(lab.witness.done) == did
    assert len([one for one in again if one.kind == "tool"]) == sum(did.values())


async def test_the_new_run_says_where_each_result_came_from_and_pays_for_none_of_them(lab):
    result, _ = await done_again(lab, LINE, "b")
    assert result.executions == 1
    process = await lab.process()
    ends = [one.fact() for one in await process.runs.events("r-2") if one.type == "node.finished"]
    assert [one.reused is not None for one in ends] == [True, False, False]
    assert ends[0].reused["session"] == RUN
    state = await process.runtime.state("r-2")
    assert state.origin["session"] == RUN
    await process.end()


async def test_answers_of_people_and_conversations_of_agents_are_taken_over(lab):
    await done_again(lab, GATE, "b", GO)
    assert dict(lab.witness.done) == {"b": 1}
    lab = Lab(MemorySessionStore())
    await done_again(lab, AGENTS, "judge")
    assert [task.split()[0] for task in lab.witness.asked] == ["Judge"]


async def test_rewinding_to_a_person_asks_again(lab):
    process = await lab.process()
    await process.runs.create(flow(GATE), run_id=RUN)
    await until_over(process, GO)
    await process.runs.rewind(RUN, "ask", run_id="r-2")
    assert (await process.runs.drive("r-2")).status == "paused"
    (asked,) = await process.runs.interactions("r-2")
    await process.runs.answer("r-2", asked.id, {"answer": "stop"})
    await process.runtime.settled()
    assert (await process.runs.result("r-2")).status == "failed"
    assert dict(lab.witness.done) == {"a": 1, "b": 1}
    await process.end()


async def test_versions_of_artifacts_go_on_from_those_that_were_taken_over(lab):
    await done_again(lab, LOOP, "write:2")
    process = await lab.process()
    assert [one.version for one in await process.runs.artifacts("r-2", "write")] == [0, 1, 2]
    await process.end()


CAUGHT = """
workflow: w
nodes:
  a: {compute: broken, next: [{to: b, on: failure}, {to: b}]}
  b: {tool: work, inputs: {what: b}, next: c}
  c: {tool: work, inputs: {what: c}, next: done}
"""


async def test_a_failure_that_an_edge_caught_is_not_tried_again(lab):
    await done_again(lab, CAUGHT, "c")
    assert dict(lab.witness.done) == {"c": 1}


CHOSEN = """
workflow: w
nodes:
  pick: {router: model, many: true, prompt: Choose., next: [a, b, c]}
  a: {tool: work, inputs: {what: a}, next: meet}
  b: {tool: work, inputs: {what: b}, next: meet}
  c: {tool: work, inputs: {what: c}, next: meet}
  meet: {tool: work, join: all, inputs: {what: meet}, next: done}
"""


async def test_what_a_model_chose_is_not_chosen_again(lab):
    asked = []

    def model(request):
        asked.append(request)
        return '{"chosen": ["a", "c"]}'

    await done_again(lab, CHOSEN, "c", model=model)
    assert dict(lab.witness.done) == {"c": 1, "meet": 1}
    assert len(asked) == 1


async def test_a_rewound_run_cut_off_at_any_append_comes_to_the_same(lab):
    process = await lab.process()
    await process.runs.create(flow(LOOP), run_id=RUN)
    await process.runs.drive(RUN)
    await process.end()
    for after in range(1, 9):
        lab.witness.done.clear()
        process = await lab.process(after)
        new = f"r-cut-{after}"
        await process.runs.rewind(RUN, "write:2", run_id=new)
        with contextlib.suppress(ProcessKilled):
            await process.until_killed(process.runs.drive(new))
        await process.end()
        other = await lab.process()
        result = await other.runs.drive(new)
        assert result.status == "finished"
        assert (result.executions, set(lab.witness.done)) == (1, {"write 2"})
        assert lab.witness.done["write 2"] <= 2
        await other.end()


async def test_a_changed_workflow_runs_what_differs_and_what_follows_from_it(lab):
    process = await lab.process()
    await process.runs.create(flow(LINE), run_id=RUN)
    await process.runs.drive(RUN)
    changed = flow(LINE.replace("outputs.a.did + 'b'", "outputs.a.did + 'c'"))
    await process.runs.rewind(RUN, workflow=changed, run_id="r-2")
    result = await process.runs.drive("r-2")
    assert result.output == {"did": "ac"}
    assert dict(lab.witness.done) == {"a": 1, "ab": 1, "ac": 1}
    await process.end()


@pytest.mark.parametrize(
    ("to", "why"),
    [
        ("nothing", "no node 'nothing'"),
        ("b:1", "nothing repeats 'b'"),
        ("b:x=1", "not a valid round"),
        (None, "say what to rewind to"),
    ],
)
async def test_a_target_that_is_not_there_is_refused_with_what_is(lab, to, why):
    process = await lab.process()
    await process.runs.run(flow(LINE), run_id=RUN)
    with pytest.raises(InvalidInput, match=why):
        await process.runs.rewind(RUN, to)
    await process.end()


async def test_a_node_that_has_not_run_cannot_be_rewound_to(lab):
    process = await lab.process()
    await process.runs.run(flow(GATE), run_id=RUN)
    with pytest.raises(InvalidInput, match="has not come to 'b'"):
        await process.runs.rewind(RUN, "b")
    await process.end()


WRITING = """
workflow: w
workspace: KIND
nodes:
  one: {run: [touch, one], writes: workspace, effect: idempotent, next: two}
  two: {run: [cp, one, two], writes: workspace, effect: idempotent, next: done}
"""


async def test_a_directory_is_not_rewound_past_a_write_unless_forced(lab, tmp_path):
    process = await lab.process(programs=["touch", "cp"])
    text = WRITING.replace("KIND", f"{{kind: directory, path: {tmp_path}/files}}")
    await process.runs.run(flow(text), run_id=RUN)
    with pytest.raises(Conflict, match="keeps no earlier state"):
        await process.runs.rewind(RUN, "two")
    new = await process.runs.rewind(RUN, "two", force=True)
    assert (await process.runs.drive(new)).status == "finished"
    await process.end()


def a_repository(tmp_path):
    repository = tmp_path / "repository"
    repository.mkdir()
    for words in (
        ["init", "-q", "-b", "main"],
        ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m", "x"],
    ):
        subprocess.run(["git", *words], cwd=repository, check=True)
    return repository


async def test_a_worktree_has_the_files_that_the_results_taken_over_left(lab, tmp_path):
    repository = a_repository(tmp_path)
    process = await lab.process(programs=["touch", "cp"])
    process.runs._place = tmp_path / "trees"
    text = WRITING.replace("KIND", "{kind: worktree, merge: false}")
    await process.runs.create(flow(text), run_id=RUN, folder=repository)
    await process.runs.drive(RUN)
    await process.runs.rewind(RUN, "two", run_id="r-2")
    result = await process.runs.drive("r-2")
    assert result.status == "finished", result  # `cp one two` found the file
    assert result.executions == 1
    assert {path.name for path in (tmp_path / "trees" / "r-2").iterdir()} >= {"one", "two"}
    await process.end()
