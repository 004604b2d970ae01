"""Rules that hold for every run: the order of its events, its ids, causes, and what ends it."""

import pytest
from lab import RUN, Lab, run_once, until_over
from test_recovery import AGENT, failing, one
from test_rewind import flow
from test_workflow_runs import FAN_OUT, GATE, LINE, SCENARIOS, options
from test_worktrees import begun

from holdfast.core.errors import HoldfastError, InvalidInput
from holdfast.models import errors as model_errors
from holdfast.stores.memory.store import MemorySessionStore
from holdfast.workflows.recovery import DEFAULTS, MODEL_CAUSES
from holdfast.workflows.workspace import WorkspaceFailed


@pytest.fixture
def lab():
    return Lab(MemorySessionStore())


@pytest.mark.parametrize("name", SCENARIOS)
async def test_the_events_of_any_run_are_coherent(lab, name):
    text, answers, _ = SCENARIOS[name]
    await run_once(lab, text, None, answers, **options(name))
    store = await lab.store()
    events = await store.read_events(RUN, limit=10_000)
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    types = [event.type for event in events]
    own = [kind for kind in types if kind.startswith("run.")]
    assert (own[0], own[-1]) == ("run.started", "run.finished")
    assert types.count("run.started") == types.count("run.finished") == 1
    begun, ended, branches = [], [], {"main"}
    for fact in (event.fact() for event in events):
        match fact.TYPE:
            case "node.started":
                assert fact.branch in branches
                begun.append(fact.execution)
            case "node.finished":
                assert fact.execution in begun
                ended.append(fact.execution)
            case "branch.started":
                branches.add(fact.branch)
    assert len(set(begun)) == len(begun)
    assert sorted(ended) == sorted(begun), "each execution that began has ended once"


async def test_a_fan_out_joins_once(lab):
    await run_once(lab, FAN_OUT, None, {})
    types = [event.type for event in await (await lab.store()).read_events(RUN)]
    assert types.count("branch.started") == types.count("branch.finished") == 3
    assert types.count("join.ready") == 1
    assert types.index("join.ready") > max(
        place for place, kind in enumerate(types) if kind == "branch.finished"
    )


async def test_a_question_its_answer_and_what_follows_stand_in_this_order(lab):
    await run_once(lab, GATE, None, {"ask": {"answer": "go"}})
    events = await (await lab.store()).read_events(RUN)
    seen = [
        (event.type, event.data.get("node"))
        for event in events
        if event.type.startswith(("run.", "node.")) or event.type == "call.suspended"
    ]
    assert seen == [
        ("run.started", None),
        ("node.started", "a"),
        ("node.finished", "a"),
        ("node.started", "ask"),
        ("call.suspended", None),
        ("run.paused", None),
        ("node.finished", "ask"),
        ("node.started", "b"),
        ("node.finished", "b"),
        ("node.started", "done"),
        ("node.finished", "done"),
        ("run.finished", None),
    ]


@pytest.mark.parametrize("name", ["", "..", "../up", "a/b", "a\\b", "a\0b", "a\nb", "x" * 300])
async def test_a_hostile_id_of_a_run_is_refused_by_reads_and_writes(tmp_path, name):
    lab = Lab(f"files:{tmp_path}/store")
    process = await lab.process()
    runs = process.runs
    with pytest.raises(InvalidInput):
        await runs.create(flow(LINE), run_id=name)
    for ask in (runs.load, runs.events, runs.artifacts, runs.interactions, runs.drive, runs.cancel):
        with pytest.raises(HoldfastError):
            await ask(name)
    await process.end()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["store"]


async def test_an_id_belongs_to_one_run(lab):
    process = await lab.process()
    await process.runs.run(flow(LINE), run_id=RUN)
    with pytest.raises(HoldfastError) as caught:
        await process.runs.create(flow(GATE), run_id=RUN)
    assert RUN in str(caught.value)
    assert (await process.runs.result(RUN)).status == "finished"
    await process.end()


def test_each_cause_that_a_model_gives_is_one_that_is_raised_and_one_with_a_rule():
    raised = {
        kind().code
        for kind in vars(model_errors).values()
        if isinstance(kind, type) and issubclass(kind, model_errors.ProviderError)
    }
    ours = {"invalid_output", "output_invalid"}
    assert set(MODEL_CAUSES) - ours <= raised
    assert set(MODEL_CAUSES.values()) <= set(DEFAULTS)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (model_errors.RateLimited, "rate_limited"),
        (model_errors.Overloaded, "overloaded"),
        (model_errors.ServerError, "overloaded"),
        (model_errors.Unreachable, "network"),
        (model_errors.ConnectionDropped, "network"),
        (model_errors.ModelTimeout, "timeout"),
        (model_errors.AuthenticationFailed, "agent_failed"),
        (model_errors.QuotaExceeded, "agent_failed"),
    ],
)
async def test_the_failure_of_a_model_is_a_cause_of_its_node(lab, error, code):
    def broken(request):
        raise error("it failed")

    rules = ", ".join(f"{name}: {{times: 0, then: fail}}" for name in DEFAULTS)
    process = await lab.process(model=broken)
    process.runs.resume_waits = ()
    result = await process.runs.run(flow(AGENT + f"retry: {{{rules}}}\n"), run_id=RUN)
    assert (result.status, result.code, result.node) == ("failed_resumable", code, "a")
    await process.end()


async def test_a_run_that_waits_for_its_next_attempt_can_be_cancelled_and_resumed(lab):
    work, calls = failing(1, "rate_limited", "2999-01-01T00:00:00.000000Z")
    process = await lab.process(functions={"work": work})
    assert (await process.runs.run(one(), run_id=RUN)).status == "paused"
    assert (await process.runs.cancel(RUN)).status == "cancelled"
    assert (await process.runs.load(RUN)).finished_at is not None
    assert len(calls) == 1
    await process.end()


FAILED = """
workflow: w
nodes:
  a: {tool: work, inputs: {what: a}, next: b}
  b: {tool: work, inputs: {what: b}, next: no}
  no: {fail: "it is not good enough", code: rejected}
"""


async def test_a_run_that_a_fail_node_ended_can_be_rewound(lab):
    process = await lab.process()
    result = await process.runs.run(flow(FAILED), run_id=RUN)
    assert (result.status, result.code) == ("failed", "rejected")
    better = flow(FAILED.replace("next: no", "next: done").replace(FAILED.splitlines()[-1], ""))
    new = await process.runs.rewind(RUN, "b", workflow=better, run_id="r-2")
    assert (await process.runs.drive(new)).status == "finished"
    assert dict(lab.witness.done) == {"a": 1, "b": 2}
    await process.end()


async def test_a_resume_without_its_repository_fails_and_loses_nothing(lab, tmp_path):
    process, folder = await begun(lab, tmp_path)
    await process.runs.cancel(RUN)
    before = await process.runs.checkpoint(RUN)
    aside = folder.rename(tmp_path / "aside")
    with pytest.raises(WorkspaceFailed):
        await process.runs.resume(RUN)
    assert (await process.runs.checkpoint(RUN)).outputs == before.outputs
    aside.rename(folder)
    await process.runs.resume(RUN)
    asked = [one for one in await process.runs.interactions(RUN) if one.open]
    await process.runs.answer(RUN, asked[0].id, {"answer": "go"})
    await process.runtime.settled()
    result = await until_over(process, {})
    assert (result.status, result.executions) == ("finished", 2), "neither file was written twice"
    await process.end()
