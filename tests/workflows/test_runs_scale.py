"""Long and wide runs cost the same per node, and hostile outputs are failures with a code."""

from __future__ import annotations

import time
import tracemalloc
from datetime import datetime

import msgspec
import pytest
from lab import RUN, Lab
from test_runs_api import flow

from holdfast.stores.memory.store import MemorySessionStore

LONG = """
workflow: w
loops: {again: 999}
nodes:
  write:
    tool: work
    inputs: {what: "write"}
    next: [{to: write, loop: again}, {to: done}]
"""
WIDE = """
workflow: w
vars: {xs: list of integer}
nodes:
  all:
    each: vars.xs
    as: x
    parallel: 200
    do:
      one: {tool: work, inputs: {what: "item {{ x }}"}}
    next: end
  end: {done: {count: "{{ len(outputs.all.items) }}"}}
"""


@pytest.fixture
def lab():
    return Lab(MemorySessionStore())


async def all_events(runs):
    return [event async for event in runs.scan(RUN)]


async def test_a_thousand_executions_cost_the_same_each(lab):
    process = await lab.process()
    result = await process.runs.run(flow(LONG), run_id=RUN)
    assert (result.status, result.executions) == ("finished", 1000)
    assert lab.witness.done["write"] == 1000
    events = await all_events(process.runs)
    half = len(events) // 2
    sizes = [len(msgspec.json.encode(event.data)) for event in events]
    early, late = sum(sizes[100:half]) / (half - 100), sum(sizes[half:]) / (len(events) - half)
    assert late < 1.2 * early, "bytes per event"
    at = [datetime.fromisoformat(event.at) for event in events]
    assert (at[-1] - at[half]) < 4 * (at[half] - at[0]), "time per node"
    state = await process.runtime.state(RUN)
    assert len(msgspec.json.encode(state)) < 8_000
    await process.end()


async def test_two_hundred_branches_run_at_once_within_a_small_state(lab):
    process = await lab.process()
    sizes = []
    append = process.store.append

    async def measured(*arguments, **options):
        done = await append(*arguments, **options)
        sizes.append(len(msgspec.json.encode(done.state)))
        return done

    process.store.append = measured
    result = await process.runs.run(flow(WIDE), {"xs": list(range(200))}, run_id=RUN)
    assert (result.status, result.output) == ("finished", {"count": 200})
    assert set(lab.witness.done.values()) == {1}
    assert max(sizes) < 64_000
    await process.end()


def size_of(folder):
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


async def cost_of(folder, kind, text, variables):
    """Return seconds of processor, bytes on disk and bytes of memory that a run takes."""
    lab = Lab(f"{kind}:{folder}")
    process = await lab.process()
    await process.runs.create(flow(text), variables, run_id=RUN)
    tracemalloc.start()
    began = time.process_time()
    try:
        result = await process.runs.drive(RUN)
        seconds, (_, memory) = time.process_time() - began, tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert result.status == "finished"
    await process.end()
    return seconds, size_of(folder), memory


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["sqlite", "files"])
@pytest.mark.parametrize("what", ["long", "wide"])
async def test_a_node_costs_the_same_in_a_short_and_in_a_long_run(kind, what, tmp_path):
    costs = []
    for count in (250, 1000):
        text, given = LONG.replace("999", str(count - 1)), {}
        if what == "wide":
            text, given = WIDE, {"xs": list(range(count))}
        seconds, disk, memory = await cost_of(tmp_path / str(count), kind, text, given)
        costs.append((seconds / count, disk / count))
        assert memory < 40_000_000
    (seconds, disk), (seconds_long, disk_long) = costs
    assert seconds_long < 1.5 * seconds, "time per node"
    assert disk_long < 1.2 * disk, "bytes per node"


async def test_outputs_that_break_their_schema_fail_with_a_code_and_ten_megabytes_are_kept(lab):
    text = """
workflow: w
nodes:
  big: {compute: big, publish: big, next: wrong}
  wrong:
    compute: wrong
    output: {n: integer}
    next: [{to: done}, {to: caught, on: failure}]
  caught: {done: {code: "{{ input.code }}"}}
"""
    text = text.replace("on: failure}", 'on: failure, inputs: {code: "{{ error.code }}"}}')
    functions = {"big": lambda: {"text": "x" * 10_000_000}, "wrong": lambda: {"n": "no number"}}
    process = await lab.process(functions=functions)
    result = await process.runs.run(flow(text), run_id=RUN)
    assert result.output == {"code": "schema_invalid"}
    assert len((await process.runs.artifact(RUN, "big"))["text"]) == 10_000_000
    await process.end()


async def test_a_judge_that_answers_nonsense_is_asked_once_more_and_then_fails(lab):
    text = "workflow: w\nnodes:\n  judge: {judge: critic, prompt: Judge., next: done}"
    process = await lab.process()
    result = await process.runs.run(flow(text), run_id=RUN)
    assert (result.status, result.code) == ("failed_resumable", "schema_invalid")
    assert lab.witness.asked["Judge."] == 4  # one repair in the conversation, and a second one
    await process.end()


async def test_items_with_hostile_names_are_values_and_nothing_else(lab):
    names = ["../../etc", "main/all@x:0", "{{ run.id }}", "a\nb", "\x00", "'; drop", "é" * 50]
    text = """
workflow: w
vars: {names: list of string}
nodes:
  all:
    each: vars.names
    as: name
    do:
      one: {tool: work, inputs: {what: "{{ name }}"}}
    next: end
  end: {done: {did: "{{ [one.did for one in outputs.all.items] }}"}}
"""
    process = await lab.process()
    result = await process.runs.run(flow(text), {"names": names}, run_id=RUN)
    assert result.output == {"did": names}
    await process.end()
