"""Limits of what runs meet for real: large outputs, several asks, spend near its limit, crashes."""

import pytest
from lab import RUN, Lab, until_over
from test_rewind import flow

import holdfast
from holdfast.core.messages import assistant
from holdfast.models.port import ModelReply, Usage
from holdfast.stores.memory.store import MemorySessionStore


@pytest.fixture
def lab():
    return Lab(MemorySessionStore())


BIG = """
workflow: w
nodes:
  big: {compute: big, publish: big, next: [{to: measure, inputs: {text: "{{ outputs.big.text }}"}}]}
  measure: {compute: measure, next: gate}
  gate: {human: "Go on?", next: end}
  end: {done: {size: "{{ outputs.measure.size }}", text: "{{ outputs.big.text }}"}}
"""
SIZE = 10_000_000


@pytest.mark.parametrize("kind", ["sqlite", "files"])
async def test_an_output_of_ten_megabytes_goes_from_node_to_node_and_to_the_next_process(
    tmp_path, kind
):
    lab = Lab(f"{kind}:{tmp_path}/store")
    given = {
        "functions": {
            "big": lambda: {"text": "x" * SIZE},
            "measure": lambda text: {"size": len(text)},
        }
    }
    process = await lab.process(**given)
    result = await process.runs.run(flow(BIG), run_id=RUN)
    assert result.status == "paused"
    events = await process.runs.events(RUN)
    assert sum(len(repr(one.data)) for one in events) < 64_000, "the log names it, and has it not"
    await process.end()
    other = await lab.process(**given)
    result = await until_over(other, {"gate": {"answer": "yes"}})
    assert result.status == "finished"
    assert result.output["size"] == len(result.output["text"]) == SIZE
    assert len((await other.runs.artifact(RUN, "big"))["text"]) == SIZE
    await other.end()


TWICE = """
workflow: w
nodes:
  a: {agent: writer, prompt: Paint., next: end}
  end: {done: {said: "{{ outputs.a }}"}}
"""


async def test_two_asks_of_one_node_are_two_records(lab, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def answered(request):
        asks = ["first = ask('Which colour?')", "second = ask('Which wall?')"]
        if request.ordinal < 2:
            return f"```python\n{asks[request.ordinal]}\n```"
        return "```python\nFINAL(first + ' on ' + second)\n```"

    process = await lab.process(model=answered, agents=[holdfast.Agent("writer")])
    result = await process.runs.run(flow(TWICE), run_id=RUN)
    for said in ("blue", "north"):
        (asked,) = [one for one in await process.runs.interactions(RUN) if one.open]
        await process.runs.answer(RUN, asked.id, said, by="ada")
        await process.runtime.settled()
        result = await until_over(process, {})
    assert result.output == {"said": "blue on north"}
    found = await process.runs.interactions(RUN)
    assert [(one.node, one.answer.value(), one.by) for one in found] == [
        ("a", "blue", "ada"),
        ("a", "north", "ada"),
    ]
    assert len({one.id for one in found}) == 2
    assert all(one.answered_at >= one.requested_at for one in found)
    await process.end()


SPENDING = """
workflow: w
budget: {BUDGET}
parallel: 1
loops: {again: 4}
nodes:
  a:
    agent: writer
    prompt: Write.
    next: [{to: a, loop: again}, {to: done}]
"""


@pytest.mark.parametrize(
    ("budget", "limit"), [("usd: 0.50", "max_usd"), ("tokens: 5000", "max_tokens")]
)
async def test_a_run_warns_once_when_four_fifths_of_its_money_or_tokens_are_used(
    lab, budget, limit
):
    def dear(request):
        usage = Usage(input_tokens=500, output_tokens=350)
        return ModelReply(assistant("said"), "scripted", usage=usage, cost_usd="0.085")

    process = await lab.process(model=dear)
    result = await process.runs.run(flow(SPENDING.replace("BUDGET", budget)), run_id=RUN)
    assert result.status == "finished", result
    events = await process.runs.events(RUN)
    warned = [one for one in events if one.type == "budget.warned"]
    assert [one.fact().limit for one in warned] == [limit]
    started = [one.seq for one in events if one.type == "node.started"]
    assert sum(seq < warned[0].seq for seq in started) < 6, "told before the run is over"
    await process.end()


async def test_a_run_whose_agent_nobody_drives_any_more_is_interrupted_and_goes_on_later(
    lab, monkeypatch
):
    broken = []

    async def crash(self, *given, **options):
        broken.append(1)
        raise RuntimeError("the driver of a session broke")

    process = await lab.process()
    monkeypatch.setattr(holdfast.runtime.driver.Driver, "resume", crash)
    result = await process.runs.run(flow(TWICE), run_id=RUN)
    assert broken
    assert result.status == "interrupted"
    assert result.next_to_act == "whoever resumes it"
    monkeypatch.undo()
    await process.end()
    other = await lab.process()
    assert (await other.runs.resume(RUN)).output == {"said": "said Paint."}
    await other.end()


async def test_a_run_that_used_up_its_tokens_is_resumed_with_more(lab):
    process = await lab.process()
    text = TWICE.replace("nodes:", "budget: {tokens: 1}\nnodes:")
    result = await process.runs.run(flow(text), run_id=RUN)
    assert (result.status, result.code) == ("failed_resumable", "budget_exceeded")
    result = await process.runs.resume(RUN, budget={"tokens": 100_000}, by="ada")
    assert result.output == {"said": "said Paint."}
    (told,) = [one for one in await process.runs.events(RUN) if one.type == "session.configured"]
    assert told.fact().by == "ada"
    await process.end()


async def test_a_run_that_used_up_its_executions_is_resumed_with_a_file_that_allows_more(
    lab, tmp_path
):
    file = tmp_path / "w.yaml"
    text = """
workflow: w
budget: {executions: 1}
nodes:
  a: {tool: work, inputs: {what: a}, next: b}
  b: {tool: work, inputs: {what: b}, next: done}
"""
    file.write_text(text)
    process = await lab.process()
    result = await process.runs.run(file, run_id=RUN)
    assert (result.status, result.code) == ("failed_resumable", "budget_exceeded")
    file.write_text(text.replace("executions: 1", "executions: 2"))
    result = await process.runs.resume(RUN, changed=True, by="ada")
    assert (result.status, dict(lab.witness.done)) == ("finished", {"a": 1, "b": 1})
    await process.end()


async def test_a_changed_file_brings_its_limits_along(lab, tmp_path):
    file = tmp_path / "w.yaml"
    file.write_text(TWICE.replace("nodes:", "budget: {tokens: 1}\nnodes:"))
    process = await lab.process()
    assert (await process.runs.run(file, run_id=RUN)).code == "budget_exceeded"
    file.write_text(TWICE.replace("nodes:", "budget: {tokens: 100000}\nnodes:"))
    result = await process.runs.resume(RUN, changed=True, by="ada")
    assert result.output == {"said": "said Paint."}
    await process.end()
