"""Runs for real: driven by a runtime, cut off at every append, taken up by another process."""

import pytest
from killing import GATE, INSIDE, ROBIN, SUB_RUN
from lab import RUN, Lab, finished_by_another, run_once

from holdfast.stores.memory.store import MemorySessionStore
from holdfast.stores.verify import verify

LINE = """
workflow: w
nodes:
  a: {tool: work, inputs: {what: a}, next: b}
  b: {tool: work, inputs: {what: "{{ outputs.a.did + 'b' }}"}, next: end}
  end: {done: {did: "{{ outputs.b.did }}"}}
"""
LOOP = """
workflow: w
loops: {again: 2}
nodes:
  write:
    tool: work
    inputs: {what: "write {{ loop.again.iteration }}"}
    publish: draft
    next: gate
  gate:
    compute: {n: loop.again.iteration}
    next: [{to: write, loop: again}, {to: done}]
"""
NESTED = """
workflow: w
loops: {inner: 1, outer: 1}
nodes:
  top: {tool: work, inputs: {what: "top {{ loop.outer.iteration }}"}, next: write}
  write:
    tool: work
    inputs: {what: "write {{ loop.outer.iteration }}.{{ loop.inner.iteration }}"}
    next: [{to: write, loop: inner}, {to: gate}]
  gate:
    compute: {n: 1}
    next: [{to: top, loop: outer}, {to: done}]
"""
FAN_OUT = """
workflow: w
nodes:
  split: {router: all, next: [a, b, c]}
  a: {tool: work, inputs: {what: a}, next: meet}
  b: {tool: work, inputs: {what: b}, next: b2}
  b2: {tool: work, inputs: {what: b2}, next: meet}
  c: {tool: work, inputs: {what: c}, next: meet}
  meet: {tool: work, join: all, inputs: {what: meet}, next: done}
"""
BEST_EFFORT = FAN_OUT.replace("tool: work, inputs: {what: c}", "compute: broken").replace(
    "join: all", "join: best_effort"
)
RETRY = """
workflow: w
nodes:
  a:
    compute: flaky
    retry: {tool_transient: {times: 2, wait: 10ms}}
    next: end
  end: {done: {tries: "{{ outputs.a }}"}}
"""
EACH = """
workflow: w
nodes:
  list: {compute: {xs: "[1, 2, 3, 4, 5]"}, next: all}
  all:
    each: outputs.list.xs
    as: x
    parallel: 2
    do:
      one: {tool: work, inputs: {what: "item {{ x }}"}}
    next: end
  end: {done: {items: "{{ [one.did for one in outputs.all.items] }}"}}
"""
AGENTS = """
workflow: w
nodes:
  write: {agent: writer, prompt: Write., next: judge}
  judge: {agent: critic, prompt: "Judge {{ outputs.write }}", next: end}
  end: {done: {said: "{{ outputs.judge }}"}}
"""
WAIT = """
workflow: w
nodes:
  a: {wait: 20ms, next: b}
  b: {tool: work, inputs: {what: b}, next: done}
"""

SCENARIOS = {
    "line": (LINE, {}, {"a": 1, "ab": 1}),
    "loop": (LOOP, {}, {"write 0": 1, "write 1": 1, "write 2": 1}),
    "nested": (
        NESTED,
        {},
        {"top 0": 1, "top 1": 1, "write 0.0": 1, "write 0.1": 1, "write 1.0": 1, "write 1.1": 1},
    ),
    "fan_out": (FAN_OUT, {}, {"a": 1, "b": 1, "b2": 1, "c": 1, "meet": 1}),
    "best_effort": (BEST_EFFORT, {}, {"a": 1, "b": 1, "b2": 1, "meet": 1}),
    "robin": (ROBIN, {}, {"a 0": 1, "b 1": 1, "a 2": 1, "b 3": 1}),
    "gate": (GATE, {"ask": {"answer": "go"}}, {"a": 1, "b": 1}),
    "retry": (RETRY, {}, {"flaky": 3}),
    "wait": (WAIT, {"a": "expired"}, {"b": 1}),
    "each": (EACH, {}, {f"item {n}": 1 for n in range(1, 6)}),
    "agents": (AGENTS, {}, {}),
    "sub_run": (SUB_RUN, {}, {"a": 1, "inner 3": 1, "inner two": 1}),
}


def options(name):
    from holdfast.workflows.reading import read_text

    inside, _ = read_text(INSIDE)
    return {"workflows": [inside]} if name == "sub_run" else {}


@pytest.mark.parametrize("name", SCENARIOS)
async def test_a_run_does_everything_once(name):
    text, answers, done = SCENARIOS[name]
    lab = Lab(MemorySessionStore())
    killed, result, _ = await run_once(lab, text, None, answers, **options(name))
    assert not killed
    assert result.status == "finished", result
    assert dict(lab.witness.done) == done
    store = await lab.store()
    for info in (await store.list_sessions()).sessions:
        report = await verify(store, info.id)
        assert report.ok, report


async def finished_calls(lab):
    """Return the calls that have an outcome on record, of the run and of what is below it."""
    store = await lab.store()
    found = set()
    for info in (await store.list_sessions()).sessions:
        events = await store.read_events(info.id, types=["call.resolved"])
        found |= {event.data["call_id"] for event in events}
    return found


@pytest.mark.parametrize("name", SCENARIOS)
async def test_a_run_cut_off_at_any_append_is_finished_by_another_process(name):
    text, answers, done = SCENARIOS[name]
    plain = Lab(MemorySessionStore())
    _, expected, appends = await run_once(plain, text, None, answers, **options(name))
    for after in range(1, appends):
        lab = Lab(MemorySessionStore())
        await run_once(lab, text, after, answers, **options(name))
        before, finished = lab.witness.by_call.copy(), await finished_calls(lab)
        result = await finished_by_another(lab, text, answers, **options(name))
        assert result.status == "finished", (after, result)
        assert result.output == expected.output
        assert result.executions == expected.executions
        assert lab.witness.done.keys() == done.keys(), after
        for call, times in lab.witness.by_call.items():
            # Nothing that had finished was done again; what was in flight was done once more.
            assert times == before[call] + (call not in finished) <= 2, (after, call)
        store = await lab.store()
        report = await verify(store, RUN)
        assert report.ok, (after, report)
        await store.close()


async def test_a_tool_that_must_run_once_is_never_begun_twice(tmp_path):
    text = LINE.replace("b: {tool: work", "b: {tool: pay").replace(
        "outputs.b.did", "outputs.b.paid"
    )
    answers = {"b": {"action": "replace", "value": {"paid": "by hand"}}}
    plain = Lab(MemorySessionStore())
    _, _, appends = await run_once(plain, text, None, answers)
    for after in range(1, appends):
        lab = Lab(MemorySessionStore())
        await run_once(lab, text, after, answers)
        result = await finished_by_another(lab, text, answers)
        assert result.status == "finished"
        assert lab.witness.done["ab"] <= 1
        assert result.output["did"] in ("ab", "by hand")
