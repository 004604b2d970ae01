"""Kinds of nodes for real: programs, the first of several branches, and names that are refused."""

import asyncio

import pytest
from lab import RUN, Lab
from test_rewind import flow

from holdfast.stores.memory.store import MemorySessionStore
from holdfast.workflows import check_text


@pytest.fixture
def lab():
    return Lab(MemorySessionStore())


PROGRAM = """
workflow: w
vars: {word: string}
nodes:
  say: {run: [echo, "{{ vars.word }}"], effect: idempotent, next: end}
  end: {done: {said: "{{ outputs.say.output }}", exit: "{{ outputs.say.exit }}"}}
"""


async def test_a_program_runs_with_its_words_as_they_are_and_no_shell(lab):
    process = await lab.process(programs=["echo"])
    result = await process.runs.run(flow(PROGRAM), {"word": "$(id); `id` *"}, run_id=RUN)
    assert result.output == {"said": "$(id); `id` *\n", "exit": 0}
    await process.end()


async def test_a_program_that_was_not_allowed_is_denied_before_it_starts(lab):
    process = await lab.process(programs=["true"])
    result = await process.runs.run(flow(PROGRAM), {"word": "x"}, run_id=RUN)
    assert (result.status, result.code, result.node) == ("failed_resumable", "denied", "say")
    await process.end()


FIRST = """
workflow: w
nodes:
  race: {router: all, next: [quick, slow]}
  quick: {tool: work, inputs: {what: quick}, next: meet}
  slow: {compute: slow, next: late}
  late: {tool: work, inputs: {what: late}, next: meet}
  meet: {tool: work, join: first, inputs: {what: meet}, next: done}
"""


async def test_the_first_branch_wins_and_what_the_others_had_under_way_is_stopped(lab):
    stopped = asyncio.Event()

    async def slow():
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    process = await lab.process(functions={"slow": slow})
    result = await asyncio.wait_for(process.runs.run(flow(FIRST), run_id=RUN), 60)
    assert result.status == "finished"
    assert dict(lab.witness.done) == {"quick": 1, "meet": 1}
    assert stopped.is_set()
    ends = [one.fact() for one in await process.runs.events(RUN) if one.type == "branch.finished"]
    assert {one.branch: one.status for one in ends} == {
        "main/race:quick": "ok",
        "main/race:slow": "cancelled",
    }
    await process.end()


@pytest.mark.parametrize(
    "name", ["../up", "a/b", "a b", "Ä", "a\\0b", "run", "main", "x" * 300, "-a", "a:1", "a@1"]
)
def test_a_hostile_name_of_a_node_is_refused(name):
    text = f'workflow: w\nnodes:\n  "{name}": {{compute: {{n: "1"}}, next: done}}\n'
    found, problems = check_text(text, "w.yaml")
    assert problems or found.nodes.keys() >= {name}
    if any(mark in name for mark in "./\\ :@-") or not name.isascii() or len(name) > 100:
        assert problems
