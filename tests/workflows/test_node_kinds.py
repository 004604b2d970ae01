"""Kinds of nodes for real: programs, the first of several branches, and names that are refused."""

import asyncio
from pathlib import Path

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


CONFINED = """
workflow: w
nodes:
  see: {run: [sh, -c, "env | cut -d= -f1 | sort; cat"], effect: idempotent, next: end}
  end: {done: {said: "{{ outputs.see.output }}"}}
"""


async def test_a_program_gets_no_secret_of_the_environment_and_no_input(lab, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    process = await lab.process(programs=["sh"])
    result = await asyncio.wait_for(process.runs.run(flow(CONFINED), run_id=RUN), 60)
    names = set(result.output["said"].split())
    assert names <= {"PATH", "LANG", "TMPDIR", "PWD", "OLDPWD", "SHLVL", "_"}
    await process.end()


LONG = """
workflow: w
nodes:
  a:
    run: [sh, -c, "sleep 600 & echo $! > PLACE; wait"]
    timeout: 1s
    retry: {timeout: {times: 0, then: fail}}
    next: done
"""


async def test_what_a_program_started_ends_with_its_timeout(lab, tmp_path):
    place = tmp_path / "pid"
    process = await lab.process(programs=["sh"])
    result = await process.runs.run(flow(LONG.replace("PLACE", str(place))), run_id=RUN)
    assert (result.status, result.code) == ("failed_resumable", "timeout")
    assert not is_alive(int(place.read_text()))
    await process.end()


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except FileNotFoundError:
        return False


async def test_a_program_that_prints_too_much_fails_and_its_output_is_not_held(lab):
    text = "workflow: w\nnodes:\n  a: {run: [head, -c, '20000000', /dev/zero], next: done}"
    process = await lab.process(programs=["head"])
    result = await process.runs.run(flow(text), run_id=RUN)
    assert (result.status, result.code) == ("failed_resumable", "tool_error")
    assert "printed more than" in result.error
    await process.end()


async def test_a_program_that_is_not_there_is_named(lab):
    text = "workflow: w\nnodes:\n  a: {run: [no-such-program], next: done}"
    process = await lab.process(programs=["no-such-program"])
    result = await process.runs.run(flow(text), run_id=RUN)
    assert (result.status, result.code) == ("failed_resumable", "tool_error")
    assert "no-such-program" in result.error
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
