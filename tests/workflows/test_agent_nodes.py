"""Agent nodes: conversations that go on, verdicts, choices of a model, recovery by its cause."""

import json

import pytest
from lab import RUN, Lab
from test_rewind import flow

from holdfast.stores.memory.store import MemorySessionStore
from holdfast.stores.verify import verify


@pytest.fixture
def lab():
    return Lab(MemorySessionStore())


CONTINUE = """
workflow: w
loops: {again: 2}
nodes:
  write:
    agent: writer
    prompt: "Round {{ loop.again.iteration }}"
    session: continue
    next: gate
  gate:
    compute: {n: loop.again.iteration}
    next: [{to: write, loop: again}, {to: done}]
"""


def talk(seen):
    def model(request):
        said = [one.text for one in request.messages if one.role == "user"]
        seen.append([text.split("\n")[0] for text in said if text.startswith("Round")])
        return f"reply {len(seen)}"

    return model


async def test_a_conversation_goes_on_from_one_execution_to_the_next(lab):
    seen = []
    process = await lab.process(model=talk(seen))
    result = await process.runs.run(flow(CONTINUE), run_id=RUN)
    assert result.status == "finished", result
    assert seen == [["Round 0"], ["Round 0", "Round 1"], ["Round 0", "Round 1", "Round 2"]]
    for info in (await process.store.list_sessions()).sessions:
        assert (await verify(process.store, info.id)).ok
    await process.end()


async def test_a_fresh_session_knows_nothing_of_the_one_before(lab):
    seen = []
    process = await lab.process(model=talk(seen))
    await process.runs.run(flow(CONTINUE.replace("continue", "fresh")), run_id=RUN)
    assert seen == [["Round 0"], ["Round 1"], ["Round 2"]]
    await process.end()


async def test_a_rewound_conversation_goes_on_from_where_it_was_then(lab):
    seen = []
    process = await lab.process(model=talk(seen))
    await process.runs.run(flow(CONTINUE), run_id=RUN)
    seen.clear()
    await process.runs.rewind(RUN, "write:1", run_id="r-2")
    assert (await process.runs.drive("r-2")).status == "finished"
    assert seen == [["Round 0", "Round 1"], ["Round 0", "Round 1", "Round 2"]]
    await process.end()


JUDGED = """
workflow: w
nodes:
  judge: {judge: critic, prompt: Judge., next: [{to: done, when: output.approved}, {to: fail}]}
"""


@pytest.mark.parametrize(
    ("replies", "status", "asked"),
    [
        (['{"approved": true, "notes": ""}'], "finished", 1),
        (['```json\n{"approved": true, "notes": "x"}\n```'], "finished", 1),
        (["It is fine.", '{"approved": true, "notes": ""}'], "finished", 2),
        (["It is fine."], "failed_resumable", 4),  # one repair, and one more session with one
        (['{"approved": "perhaps", "notes": ""}'], "failed_resumable", 4),
        (["[" * 5000], "failed_resumable", 4),
    ],
    ids=["plain", "fenced", "repaired", "prose", "wrong type", "deep"],
)
async def test_a_judge_that_answers_nonsense_is_asked_again_and_then_fails(
    lab, replies, status, asked
):
    requests = []

    def model(request):
        requests.append(request)
        return replies[min(len(requests), len(replies)) - 1]

    process = await lab.process(model=model)
    result = await process.runs.run(flow(JUDGED), run_id=RUN)
    assert (result.status, len(requests)) == (status, asked), result
    if status != "finished":
        assert (result.code, result.node) == ("schema_invalid", "judge")
    await process.end()


PICK = """
workflow: w
nodes:
  pick: {router: model, MANY prompt: Choose., next: [a, b, c]}
  a: {tool: work, inputs: {what: a}, next: meet}
  b: {tool: work, inputs: {what: b}, next: meet}
  c: {tool: work, inputs: {what: c}, next: meet}
  meet: {tool: work, JOIN inputs: {what: meet}, next: done}
"""
ONE = PICK.replace("MANY", "").replace("JOIN", "")
SEVERAL = PICK.replace("MANY", "many: true,").replace("JOIN", "join: all,")


@pytest.mark.parametrize(
    ("text", "chosen", "did"),
    [
        (ONE, "b", {"b": 1, "meet": 1}),
        (SEVERAL, ["a", "c"], {"a": 1, "c": 1, "meet": 1}),
        (SEVERAL, ["b"], {"b": 1, "meet": 1}),
    ],
)
async def test_a_model_chooses_where_the_run_goes(lab, text, chosen, did):
    process = await lab.process(model=lambda request: json.dumps({"chosen": chosen}))
    result = await process.runs.run(flow(text), run_id=RUN)
    assert result.status == "finished", result
    assert dict(lab.witness.done) == did
    await process.end()


@pytest.mark.parametrize(("text", "chosen"), [(ONE, "meet"), (SEVERAL, []), (SEVERAL, ["a", "x"])])
async def test_a_choice_that_is_not_there_fails_the_router(lab, text, chosen):
    process = await lab.process(model=lambda request: json.dumps({"chosen": chosen}))
    result = await process.runs.run(flow(text), run_id=RUN)
    assert (result.status, result.code) == ("failed_resumable", "schema_invalid")
    assert dict(lab.witness.done) == {}
    await process.end()
