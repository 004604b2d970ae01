"""Races over one run: two that resume it, a cancel against the last node, answers and kills."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from killing import Server, noted
from lab import RUN, Lab, until_over
from test_runs_api import flow
from test_workflow_runs import GATE

from holdfast.core.errors import AnswerStale, CallNotFound, HoldfastError
from holdfast.runtime import answers
from holdfast.stores.memory.store import MemorySessionStore
from holdfast.testing.faults import ProcessKilled

STORES = ["sqlite", pytest.param("files", marks=pytest.mark.soak)]
PEOPLE = """
workflow: w
nodes:
  split: {router: all, next: [ask, slow]}
  ask: {human: "Go on?", output: {answer: go | stop}, next: meet}
  slow: {tool: work, inputs: {what: slow}, next: slower}
  slower: {tool: work, inputs: {what: slower}, next: meet}
  meet: {tool: work, join: all, inputs: {what: meet}, next: end}
  end: {done: {said: "{{ outputs.ask.answer }}"}}
"""


@pytest.mark.parametrize("kind", STORES)
def test_two_processes_that_resume_one_run_do_nothing_twice(kind, tmp_path):
    servers = Server(), Server()
    url = f"{kind}:{tmp_path / 'store'}"
    try:
        killed = servers[0].work("fan_out", url, tmp_path, kill=["effect", 2])
        assert killed == -9
        before = noted(tmp_path / "witness")
        with ThreadPoolExecutor(2) as pool:
            ends = pool.map(
                lambda server: server.work("fan_out", url, tmp_path, again=True), servers
            )
            assert list(ends) == [0, 0]
    finally:
        for server in servers:
            server.close()
    told = json.loads((tmp_path / "told.json").read_text())
    assert told["shape"]["status"] == "finished"
    for call, times in noted(tmp_path / "witness").items():
        assert times - before[call] <= 1, f"{call} was done by both"


CANCELLED = """
workflow: w
nodes:
  a: {tool: work, inputs: {what: a}, next: b}
  b: {compute: hold, next: c}
  c: {tool: work, inputs: {what: c}, next: end}
  end: {done: {did: "{{ outputs.c.did }}"}}
"""


async def cancelled_after(number: int) -> tuple[str, Lab]:
    """Ask for a cancel right after an append of the driver; return how the run ended."""
    lab, asked = Lab(MemorySessionStore()), False

    async def hold():
        if asked:
            await asyncio.Event().wait()  # the cancel alone ends it
        return {"n": 1}

    process = await lab.process(functions={"hold": hold})
    append, count = process.store.append, 0

    async def watched(*arguments, **options):
        nonlocal count, asked
        done = await append(*arguments, **options)
        count += 1
        if count == number:
            asked = True
            await process.runs.cancel(RUN, by="ada")
        return done

    process.store.append = watched
    await process.runs.create(flow(CANCELLED), run_id=RUN)
    await process.runs.drive(RUN)
    await process.runtime.settled()
    result = await process.runs.drive(RUN)
    await process.end()
    return result.status, lab


async def test_a_cancel_at_any_moment_leaves_one_outcome_and_what_was_done():
    seen = set()
    for number in range(1, 8):
        status, lab = await cancelled_after(number)
        seen.add(status)
        store = await lab.store()
        ends = await store.read_events(RUN, types=["run.finished", "run.cancelled", "run.failed"])
        assert [event.type for event in ends] == [f"run.{status}"], number
        assert (await store.load_state(RUN)).calls == {}
        if status == "cancelled":
            process = await lab.process(functions={"hold": lambda: {"n": 1}})
            assert (await process.runs.resume(RUN)).output == {"did": "c"}
            await process.end()
        assert dict(lab.witness.done) == {"a": 1, "c": 1}, number
        finished = await store.read_events(RUN, types=["node.finished"])
        kept = [event.data["node"] for event in finished if "status" not in event.data]
        assert len(kept) == len(set(kept)), "nothing that had ended ran again"
    assert seen == {"cancelled", "finished"}


async def test_an_answer_that_arrives_while_the_owner_dies_is_applied_once():
    plain = Lab(MemorySessionStore())
    process = await plain.process()
    await process.runs.create(flow(PEOPLE), run_id=RUN)
    assert (await until_over(process, {"ask": {"answer": "go"}})).status == "finished"
    appends = process.appends
    await process.end()
    applied = 0
    for after in range(2, appends):
        lab = Lab(MemorySessionStore())
        process = await lab.process(after)
        outside = await lab.store()
        append = process.store.append

        async def answered(*arguments, append=append, outside=outside, **options):
            done = await append(*arguments, **options)
            state = await outside.load_state(RUN)
            waiting = [call for call in state.calls.values() if call.stage == "suspended"]
            if waiting:  # someone answers at once, whatever becomes of the owner
                with suppress(AnswerStale, CallNotFound):
                    await answers.answer(outside, RUN, waiting[0].call_id, {"answer": "go"})
            return done

        process.store.append = answered
        await process.runs.create(flow(PEOPLE), run_id=RUN)
        with suppress(ProcessKilled):
            await process.until_killed(until_over(process, {}))
        await process.end()
        other = await lab.process()
        # Said only where the question had not been put before.
        result = await until_over(other, {"ask": {"answer": "stop"}})
        assert result.status == "finished", after
        await other.end()
        resolved = await outside.read_events(RUN, types=["call.resolved"])
        to_people = [one for one in resolved if one.data["call_id"].startswith("ask.")]
        assert len(to_people) == 1, after
        applied += result.output == {"said": "go"}
        assert set(lab.witness.done) == {"slow", "slower", "meet"}
        await outside.close()
    assert applied >= appends // 2


@pytest.mark.parametrize("kind", ["memory", *STORES])
async def test_of_two_answers_to_one_form_the_first_counts(kind, tmp_path):
    lab = Lab(MemorySessionStore() if kind == "memory" else f"{kind}:{tmp_path / 'store'}")
    process = await lab.process()
    await process.runs.run(flow(GATE), run_id=RUN)
    await process.end()
    first, second = await lab.store(), await lab.store()

    async def say(store, answer):
        try:
            await answers.answer(store, RUN, "ask.2.1", {"answer": answer})
        except HoldfastError as error:
            return error
        return answer

    said = await asyncio.gather(say(first, "go"), say(second, "stop"))
    accepted = [one for one in said if isinstance(one, str)]
    assert len(accepted) == 1
    assert any(isinstance(one, AnswerStale) for one in said)
    other = await lab.process()
    result = await other.runs.drive(RUN)
    assert result.status == ("finished" if accepted == ["go"] else "failed")
    with pytest.raises((AnswerStale, CallNotFound)):
        await answers.answer(second, RUN, "ask.2.1", {"answer": "go"})
    resolved = await first.read_events(RUN, types=["call.resolved"])
    assert [one.data["call_id"] for one in resolved].count("ask.2.1") == 1
    await other.end()
    for store in (first, second):
        await store.close()
