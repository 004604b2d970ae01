"""The store of runs: every verb, on every store; and the files that people see."""

import json
import shutil

import pytest
from lab import RUN, Lab, until_over
from test_workflow_runs import BEST_EFFORT, GATE, LOOP, ROBIN

from holdfast.core.errors import CallNotFound, LeaseHeld, NotFound
from holdfast.core.run_record import MAX_VALUE, Checkpoint, RunRecord
from holdfast.runs import ArtifactNotFound, RunNotFound, RunStore
from holdfast.stores.memory.store import MemorySessionStore
from holdfast.testing.faults import ProcessKilled
from holdfast.workflows.reading import read_text

STORES = ["memory", "sqlite", "files"]
GO = {"ask": {"answer": "go"}}
LOOPED = """
workflow: w
vars: {topic: string}
loops: {again: 2}
nodes:
  write:
    tool: work
    inputs: {what: "{{ vars.topic }} {{ loop.again.iteration }}"}
    publish: draft
    next: ask
  ask:
    human: "Is {{ outputs.write.did }} good?"
    output: {answer: yes_do | no_dont}
    next:
      - {to: write, loop: again, when: output.answer == "no_dont"}
      - {to: done}
"""


def flow(text):
    found, problems = read_text(text, "")
    assert problems == []
    return found


@pytest.fixture(params=[*STORES, pytest.param("postgres", marks=pytest.mark.soak)])
def place(request, tmp_path):
    match request.param:
        case "memory":
            return MemorySessionStore()
        case "postgres":
            from holdfast.testing.postgres_server import url_of

            return url_of(tmp_path)
    return f"{request.param}:{tmp_path / 'store'}"


async def paused(place):
    """Return a lab with a run that went round once and asks for the second time."""
    lab = Lab(place)
    process = await lab.process()
    await process.runs.create(
        flow(LOOPED), {"topic": "tea"}, run_id=RUN, by="ada", options={"app": "bot:app"}
    )
    await process.runs.drive(RUN)
    (asked,) = await process.runs.interactions(RUN)
    await process.runs.answer(RUN, asked.id, {"answer": "no_dont"}, by="bob")
    await process.runtime.settled()
    return lab, process


async def test_every_verb_of_the_store_of_runs(place):
    lab, process = await paused(place)
    store = await lab.store()
    runs = RunStore(store)  # what another process would use: neither workflow nor agents

    record = await runs.load(RUN)
    assert isinstance(record, RunRecord)
    assert (record.id, record.workflow_name, record.status) == (RUN, "w", "paused")
    assert (record.inputs, record.vars) == ({"topic": "tea"}, {"topic": "tea"})
    assert (record.options, record.launched_by) == ({"app": "bot:app"}, "ada")
    assert record.workflow_hash == flow(LOOPED).hash()
    assert record.artifact_index == {"write": 1}
    assert record.finished_at is None
    assert record.created_at <= record.updated_at
    assert await runs.status(RUN) == "paused"
    assert (await runs.workflow(RUN)).hash() == record.workflow_hash

    point = await runs.checkpoint(RUN)
    assert isinstance(point, Checkpoint)
    (first, second) = await runs.interactions(RUN)
    assert (point.node_id, point.interaction_id) == ("ask", second.id)
    assert "Is tea 1 good?" in json.dumps(point.interaction_questions)
    assert point.outputs["write"] == {"did": "tea 1"}
    assert point.loop_counters == {"again": 1}
    assert point.loop_current_output == {"again": {"answer": "no_dont"}}
    assert point.artifact_versions == {"write": 2}
    assert [(one.branch, one.node_id) for one in point.cursors] == [("main", "ask")]

    assert (first.open, first.outcome, first.by) == (False, "ok", "bob")
    assert (await runs.interaction(RUN, second.id)).open
    with pytest.raises(CallNotFound, match="it asked"):
        await runs.interaction(RUN, "nothing")

    last = point.seq
    assert [one.seq for one in await runs.events(RUN, 3, 6)] == [3, 4, 5]
    assert [one.seq for one in await runs.events(RUN, 3, 6, limit=2)] == [3, 4]
    assert await runs.events(RUN, last + 1) == []
    assert [one.seq async for one in runs.scan(RUN, 4, 7)] == [4, 5, 6]
    assert len([one async for one in runs.scan(RUN)]) == last

    versions = await runs.artifacts(RUN, "write")
    assert [(one.version, one.name) for one in versions] == [(0, "draft"), (1, "draft")]
    assert await runs.artifact(RUN, "write") == {"did": "tea 1"}
    assert await runs.artifact(RUN, "write", 0) == {"did": "tea 0"}
    with pytest.raises(ArtifactNotFound):
        await runs.artifact(RUN, "write", 2)

    (info,), cursor = await runs.page(workflow="w")
    assert (info.id, info.status, cursor) == (RUN, "paused", None)
    assert (await runs.page(workflow="other"))[0] == []
    assert (await runs.result(RUN)).next_to_act == "people"

    assert await runs.driver(RUN) is None
    async with runs.lock(RUN) as lease:
        driver = await runs.driver(RUN)
        assert driver is not None
        assert (driver.owner, driver.epoch) == (store.owner, lease.epoch)
        with pytest.raises(LeaseHeld):
            await process.runs.drive(RUN)
        with pytest.raises(LeaseHeld):
            async with runs.lock(RUN):
                pass
    assert await runs.driver(RUN) is None

    result = await until_over(process, {"ask": {"answer": "yes_do"}})
    assert result.status == "finished"
    record = await runs.load(RUN)
    assert (record.status, record.output) == ("finished", {"answer": "yes_do"})
    assert record.finished_at is not None
    await process.end()
    await store.close()


async def test_what_is_not_a_run_is_a_typed_not_found(place):
    lab = Lab(place)
    process = await lab.process()
    await process.runtime.start(session_id="s-1")
    for name in ("nobody", "s-1"):
        for ask in (
            process.runs.load,
            process.runs.status,
            process.runs.events,
            process.runs.driver,
            process.runs.artifacts,
            process.runs.interactions,
            process.runs.result,
        ):
            with pytest.raises(RunNotFound) as caught:
                await ask(name)
            assert isinstance(caught.value, NotFound)
    await process.end()


async def test_a_scan_that_is_stopped_reads_no_further(monkeypatch):
    _, process = await paused(MemorySessionStore())
    reads = []
    real = process.store.read_events

    async def counted(*arguments, **options):
        reads.append(options)
        return await real(*arguments, **options)

    monkeypatch.setattr(process.store, "read_events", counted)
    monkeypatch.setattr("holdfast.workflows.run_store.PAGE_EVENTS", 2)
    async for event in process.runs.scan(RUN):
        if event.seq == 3:
            break
    assert len(reads) == 2
    await process.end()


async def test_a_run_that_fails_or_is_cancelled_says_so_in_its_record(place):
    lab = Lab(place)
    process = await lab.process()
    text = "workflow: w\nnodes:\n  a: {compute: broken, next: done}"
    created = await process.runs.create(flow(text), run_id="new")
    assert (await process.runs.load(created)).status == "created"
    await process.runs.resume(created)
    record = await process.runs.load(created)
    assert (record.status, record.error_code) == ("failed_resumable", "tool_error")
    assert (record.failed_node, "never" in record.error) == ("a", True)
    assert record.finished_at is not None
    await process.runs.run(flow(GATE), run_id=RUN)
    await process.runs.cancel(RUN)
    assert await process.runs.status(RUN) == "cancelled"
    await process.runs.resume(RUN)
    record = await process.runs.load(RUN)
    assert (record.status, record.finished_at, record.error) == ("paused", None, None)
    await process.end()


async def test_a_run_whose_process_died_is_interrupted_and_has_no_driver():
    lab = Lab(MemorySessionStore())
    process = await lab.process(after=4)
    await process.runs.create(flow(LOOP), run_id=RUN)
    with pytest.raises(ProcessKilled):
        await process.until_killed(process.runs.drive(RUN))
    await process.end()
    runs = RunStore(await lab.store())
    assert await runs.status(RUN) == "interrupted"
    assert await runs.driver(RUN) is None
    assert (await runs.page())[0][0].status == "interrupted"


async def test_artifacts_are_text_bytes_or_json_by_schema_with_versions_from_the_log(place):
    text = """
workflow: w
nodes:
  said: {compute: said, output: string, publish: said, next: raw}
  raw: {compute: raw, publish: raw, next: made}
  made: {compute: made, output: {n: integer}, publish: made, next: wrong}
  wrong: {compute: said, output: {n: integer}, publish: wrong, next: done}
"""
    bodies = {"said": "plain text", "raw": b"\x00\xff", "made": {"n": 1}}
    functions = {name: lambda body=body: body for name, body in bodies.items()}
    lab = Lab(place)
    process = await lab.process(functions=functions)
    for run in ("one", "two"):
        result = await process.runs.run(flow(text), run_id=run)
        assert (result.code, result.node) == ("schema_invalid", "wrong")
        found = await process.runs.artifacts(run)
        assert [(one.node, one.version) for one in found] == [(name, 0) for name in bodies]
        assert all(one.size > 0 and one.written_at for one in found)
        for name, body in bodies.items():
            assert await process.runs.artifact(run, name) == body
        with pytest.raises(ArtifactNotFound):
            await process.runs.artifact(run, "wrong")
    await process.end()


# -- the files of a run


def contents(folder):
    """Return what the derived files of a run hold, by name."""
    found = {}
    for path in folder.rglob("*.json"):
        if path.name != "lease.json":
            found[str(path.relative_to(folder))] = json.loads(path.read_text())
    return found


def lose(folder):
    (folder / "run.json").unlink()
    shutil.rmtree(folder / "artifacts")
    shutil.rmtree(folder / "interactions")


async def test_the_files_of_a_run_are_what_its_record_says_and_come_back_when_lost(tmp_path):
    lab, process = await paused(f"files:{tmp_path / 'store'}")
    folder = tmp_path / "store" / "runs" / RUN
    record = await process.runs.load(RUN)
    asked = await process.runs.interactions(RUN)
    await process.end()
    before = contents(folder)
    assert sorted(before) == sorted(
        [
            "run.json",
            "artifacts/write/0.json",
            "artifacts/write/1.json",
            *(f"interactions/{one.id}.json" for one in asked),
        ]
    )
    run = before["run.json"]["run"]
    assert run == json.loads(json.dumps(record.document()))
    artifact = before["artifacts/write/1.json"]
    assert (artifact["run_id"], artifact["node_id"], artifact["version"]) == (RUN, "write", 1)
    assert (artifact["data"], artifact["iteration"]) == ({"did": "tea 1"}, {"again": 1})
    first = before[f"interactions/{asked[0].id}.json"]
    assert (first["id"], first["node_id"], first["answers"]) == (
        asked[0].id,
        "ask",
        {"answer": "no_dont"},
    )
    assert first["requested_at"] == asked[0].requested_at
    assert first["answered_at"] == asked[0].answered_at
    second = before[f"interactions/{asked[1].id}.json"]
    assert (second["answered_at"], second["answers"]) == (None, None)
    assert "Is tea 1 good?" in json.dumps(second["questions"])

    lose(folder)
    store = await lab.store()  # opening it is enough
    assert contents(folder) == before
    await store.close()

    for name in ("artifacts/write/0.json", f"interactions/{asked[0].id}.json"):
        (folder / name).unlink()
    other = await lab.process()
    assert (await until_over(other, {"ask": {"answer": "yes_do"}})).status == "finished"
    await other.end()
    after = contents(folder)
    assert after["artifacts/write/0.json"] == before["artifacts/write/0.json"]
    assert after[f"interactions/{asked[0].id}.json"] == first
    assert after["run.json"]["run"]["status"] == "finished"


async def test_what_stands_in_run_json_is_never_believed(tmp_path):
    lab, process = await paused(f"files:{tmp_path / 'store'}")
    wanted = await process.runs.load(RUN)
    await process.end()
    path = tmp_path / "store" / "runs" / RUN / "run.json"
    told = json.loads(path.read_text())
    told["run"] |= {"status": "finished", "checkpoint": {"node_id": "nowhere"}}
    path.write_text(json.dumps(told))
    other = await lab.process()
    assert await other.runs.load(RUN) == wanted
    assert (await until_over(other, {"ask": {"answer": "yes_do"}})).status == "finished"
    await other.end()


async def test_large_values_are_named_and_odd_ones_are_shown(tmp_path):
    text = """
workflow: w
nodes:
  big: {compute: big, next: odd}
  odd: {compute: odd, next: ask}
  ask: {human: "Go on?", output: {answer: go | stop}, next: done}
"""
    functions = {
        "big": lambda: {"text": "x" * (MAX_VALUE + 1)},
        "odd": lambda: {"half": 0.5, "huge": 2**80, "bytes": b"\x00", "text": "\udcff"},
    }
    lab = Lab(f"files:{tmp_path / 'store'}")
    process = await lab.process(functions=functions)
    await process.runs.run(flow(text), run_id=RUN)
    point = await process.runs.checkpoint(RUN)
    assert point.outputs["big"]["$ref"].startswith("sha256:")
    assert point.outputs["odd"]["half"] == 0.5
    await process.end()
    run = json.loads((tmp_path / "store" / "runs" / RUN / "run.json").read_text())["run"]
    assert run["checkpoint"]["outputs"]["big"]["size"] > MAX_VALUE
    assert run["checkpoint"]["outputs"]["odd"]["half"] == 0.5


@pytest.mark.parametrize("text", [BEST_EFFORT, ROBIN], ids=["best effort", "round robin"])
async def test_counters_and_branches_stand_in_the_checkpoint(text, tmp_path):
    lab = Lab(f"files:{tmp_path / 'store'}")
    process = await lab.process()
    await process.runs.run(flow(text), run_id=RUN)
    point = await process.runs.checkpoint(RUN)
    if text is ROBIN:
        assert point.round_robin_counters == {"pick": 4}
        assert point.loop_counters == {"again": 3}
    else:
        assert (point.node_id, point.executions) == ("done", 4)
    await process.end()


async def test_an_erased_value_is_in_no_file_of_a_run(tmp_path):
    text = """
workflow: w
vars: {word: string}
nodes:
  a: {tool: work, inputs: {what: "{{ vars.word }}"}, publish: word, next: ask}
  ask: {human: "Go on?", output: {answer: go | stop}, next: done}
"""
    lab = Lab(f"files:{tmp_path / 'store'}")
    process = await lab.process()
    await process.runs.run(flow(text), {"word": "xyzzy-" * 200}, run_id=RUN)
    (artifact,) = await process.runs.artifacts(RUN)
    folder = tmp_path / "store" / "runs" / RUN
    assert "xyzzy" in (folder / "artifacts" / "a" / "0.json").read_text()
    await process.store.erase(RUN, artifact.data.id, "asked")
    shown = json.loads((folder / "artifacts" / "a" / "0.json").read_text())
    assert shown["data"]["erased"]["rule"] == "asked"
    run = json.loads((folder / "run.json").read_text())["run"]
    assert run["checkpoint"]["outputs"]["a"]["erased"]["rule"] == "asked"

    await process.end()
