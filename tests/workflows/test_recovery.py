"""Recovery for real: limits that reset, causes that pass, other edges, people, budgets."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from lab import RUN, Lab, until_over
from test_rewind import flow

from holdfast.core.run_facts import RunResumed
from holdfast.models.errors import RateLimited
from holdfast.stores.memory.store import MemorySessionStore


@pytest.fixture
def lab():
    return Lab(MemorySessionStore())


class Failing(Exception):
    """A failure with a code, and maybe with when it is over."""

    def __init__(self, code, until=None):
        super().__init__(code)
        self.code, self.until = code, until


def failing(times, code, until=None):
    """Return a function that fails so often, and how often it was called."""
    calls = []

    def work():
        calls.append(1)
        if len(calls) <= times:
            raise Failing(code, until)
        return {"n": len(calls)}

    return work, calls


ONE = "workflow: w\nRETRY\nnodes:\n  a: {compute: work, next: [{to: done}EDGE]}\n"


def one(retry="", edge=""):
    return flow(ONE.replace("RETRY", retry).replace("EDGE", edge))


async def test_a_rate_limit_that_resets_in_an_hour_frees_the_driver_until_then(lab):
    until = (datetime.now(UTC) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    work, calls = failing(1, "rate_limited", until)
    process = await lab.process(functions={"work": work})
    result = await process.runs.run(one(), run_id=RUN)
    assert (result.status, result.until) == ("paused", until)
    assert result.next_to_act == f"nobody: it goes on by itself at {until}"
    assert await process.runs.driver(RUN) is None
    assert await process.runs.tick() == []
    assert len(calls) == 1
    await process.end()


async def test_a_run_that_failed_by_a_cause_that_passes_is_resumed_a_few_times(lab):
    work, calls = failing(2, "network")
    process = await lab.process(functions={"work": work})
    process.runs.resume_waits = (0, 0, 0)
    result = await process.runs.run(one("retry: {network: {times: 0, then: fail}}"), run_id=RUN)
    assert (result.status, len(calls)) == ("finished", 3)
    resumed = [one for one in await process.runs.events(RUN) if one.type == "run.resumed"]
    assert [event.fact().code for event in resumed] == ["network", "network"]
    await process.end()


async def test_it_is_not_resumed_for_ever_nor_by_another_process(lab):
    work, calls = failing(99, "network")
    process = await lab.process(functions={"work": work})
    process.runs.resume_waits = (0, 0)
    text = "retry: {network: {times: 0, then: fail}}"
    result = await process.runs.run(one(text), run_id=RUN)
    assert (result.status, result.code, len(calls)) == ("failed_resumable", "network", 3)
    assert result.next_to_act == "whoever resumes it"
    await process.end()
    other = await lab.process(functions={"work": work})
    other.runs.resume_waits = (0, 0)
    await other.runs.resume(RUN, by="ada")
    assert len(calls) == 4
    await other.end()


AGENT = """
workflow: w
nodes:
  a: {agent: writer, prompt: Write., next: end}
  end: {done: {said: "{{ outputs.a }}"}}
"""


async def test_when_the_limit_of_a_model_resets_reaches_the_node_of_its_agent(lab):
    asked = []

    def limited(request):
        asked.append(1)
        raise RateLimited("come back in an hour", retry_after=3600)

    process = await lab.process(model=limited)
    before = datetime.now(UTC)
    result = await process.runs.run(flow(AGENT), run_id=RUN)
    assert (result.status, len(asked)) == ("paused", 1)
    wait = datetime.fromisoformat(result.until) - before
    assert timedelta(minutes=59) < wait < timedelta(minutes=61)
    assert await process.runs.driver(RUN) is None
    (tried,) = [one.fact() for one in await process.runs.events(RUN) if one.type == "node.retried"]
    assert (tried.code, tried.until) == ("rate_limited", result.until)
    await process.end()


async def test_a_limit_of_a_model_that_resets_soon_is_waited_for(lab):
    asked = []

    def limited(request):
        asked.append(1)
        if len(asked) == 1:
            raise RateLimited("not so fast", retry_after=0.05)
        return "written"

    process = await lab.process(model=limited)
    result = await asyncio.wait_for(process.runs.run(flow(AGENT), run_id=RUN), 3)
    assert result.output == {"said": "written"}, "the usual wait is four seconds"
    assert len(asked) == 2
    await process.end()


async def until_failed(process, calls):
    """Let a run fail, and its driver leave it."""
    for _ in range(10_000):
        driven = not calls or await process.runs.driver(RUN) is not None
        if not driven and (await process.runs.result(RUN)).status == "failed_resumable":
            return
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("verb", ["tick", "recover"])
async def test_a_resume_that_was_due_when_its_process_died_is_made_by_another(lab, verb):
    work, calls = failing(1, "network")
    process = await lab.process(functions={"work": work})
    process.runs.resume_waits = (60,)
    text = "retry: {network: {times: 0, then: fail}}"
    driving = asyncio.ensure_future(process.runs.run(one(text), run_id=RUN))
    await until_failed(process, calls)
    driving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await driving
    await process.end()
    other = await lab.process(functions={"work": work})
    other.runs.resume_waits = (60,)
    assert await getattr(other.runs, verb)() == [], "its time has not come"
    other.runs.resume_waits = (0,)
    assert await getattr(other.runs, verb)() == [RUN]
    assert (await other.runs.result(RUN)).status == "finished"
    assert len(calls) == 2
    assert await other.runs.tick() == []
    await other.end()


async def test_a_run_that_someone_resumed_in_between_is_not_resumed_again(lab):
    work, calls = failing(1, "network")
    process = await lab.process(functions={"work": work})
    process.runs.resume_waits = ()
    text = "retry: {network: {times: 0, then: fail}}"
    assert (await process.runs.run(one(text), run_id=RUN)).status == "failed_resumable"
    assert (await process.runs.resume(RUN, by="ada")).status == "finished"
    late = RunResumed(code="network")  # of a process that waited meanwhile
    assert (await process.runs.drive(RUN, resume=late)).status == "finished"
    assert len(calls) == 2
    await process.end()


async def test_attempts_are_counted_by_node_and_cause_across_a_resume(lab):
    work, calls = failing(99, "tool_transient")
    process = await lab.process(functions={"work": work})
    text = "retry: {tool_transient: {times: 2, wait: 1ms, then: fail}}"
    await process.runs.run(one(text), run_id=RUN)
    assert len(calls) == 3
    await process.runs.resume(RUN)
    assert len(calls) == 4, "a resume gives one attempt, not three"
    await process.end()


async def test_a_failure_goes_by_another_edge(lab):
    work, _ = failing(9, "tool_error")
    process = await lab.process(functions={"work": work})
    result = await process.runs.run(one(edge=", {to: done, on: failure}"), run_id=RUN)
    assert result.status == "finished"
    await process.end()


@pytest.mark.parametrize(
    ("said", "status", "count"),
    [
        ({"action": "retry"}, "finished", 2),
        ({"action": "replace", "value": {"n": 7}}, "finished", 1),
        ({"action": "fail"}, "failed_resumable", 1),
    ],
)
async def test_a_person_says_what_becomes_of_a_failure(lab, said, status, count):
    work, calls = failing(1, "network")
    process = await lab.process(functions={"work": work})
    process.runs.resume_waits = ()
    text = "retry: {network: {times: 0, then: ask}}"
    result = await process.runs.run(one(text), run_id=RUN)
    assert (result.status, result.next_to_act) == ("paused", "people")
    result = await until_over(process, {"a": said}, result)
    assert (result.status, len(calls)) == (status, count)
    await process.end()


BUDGET = """
workflow: w
budget: {executions: 5}
loops: {again: 9}
nodes:
  a: {tool: work, inputs: {what: a}, next: [{to: a, loop: again}, {to: done}]}
"""


async def test_a_budget_warns_once_at_four_fifths_and_refuses_before_a_node_starts(lab):
    process = await lab.process()
    result = await process.runs.run(flow(BUDGET), run_id=RUN)
    assert (result.status, result.code) == ("failed_resumable", "budget_exceeded")
    assert dict(lab.witness.done) == {"a": 5}
    types = [event.type for event in await process.runs.events(RUN)]
    assert types.count("budget.warned") == 1
    assert types.count("budget.exceeded") == 1
    assert (await process.runs.resume(RUN)).status == "failed_resumable"
    assert dict(lab.witness.done) == {"a": 5}, "a resume does not reset it"
    await process.end()
