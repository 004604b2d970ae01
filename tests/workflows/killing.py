"""Runs in processes that are really killed: a server that forks one process per attempt.

Run as a program it reads one request a line, forks, and lets the new process work a scenario. That
process may end itself with SIGKILL right after its n-th durable write, or in the middle of its n-th
effect. What tools and models did is noted in a file outside of the store, the witness; the process
that goes on afterwards also tells what was on record when it began.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

import holdfast
from holdfast.core.errors import (
    AnswerStale,
    CallNotFound,
    Conflict,
    LeaseHeld,
    SessionBusy,
    SessionNotFound,
)
from holdfast.core.messages import ToolCall, assistant
from holdfast.models.port import ModelRequest
from holdfast.models.scripted import ScriptedModel
from holdfast.runs import Runs, registry
from holdfast.runtime.tools import CallContext, make_tool
from holdfast.stores.choose import open_store
from holdfast.stores.verify import verify
from holdfast.views.values import read_value
from holdfast.workflows.reading import read_text

RUN = "r-1"

LINE = """
workflow: w
nodes:
  a: {tool: work, inputs: {what: a}, publish: draft, next: b}
  b: {tool: work, inputs: {what: "{{ outputs.a.did + 'b' }}"}, next: end}
  end: {done: {did: "{{ outputs.b.did }}"}}
"""
LOOP = """
workflow: w
loops: {again: 2}
nodes:
  write:
    tool: work
    inputs:
      what: "{{ loop.again.iteration }} after {{ default(loop.again.previous_output, 0) }}"
    publish: draft
    next: gate
  gate:
    compute: {n: loop.again.iteration, of: outputs.write.did}
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
    publish: draft
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
  b: {tool: slow, inputs: {what: b}, next: b2}
  b2: {tool: work, inputs: {what: b2}, publish: draft, next: meet}
  c: {tool: work, inputs: {what: c}, next: meet}
  meet: {tool: work, join: all, inputs: {what: meet}, next: done}
"""
BEST_EFFORT = FAN_OUT.replace("tool: work, inputs: {what: c}", "compute: broken").replace(
    "join: all", "join: best_effort"
)
ROBIN = """
workflow: w
loops: {again: 3}
nodes:
  pick: {router: round_robin, next: [a, b]}
  a: {tool: work, inputs: {what: "a {{ loop.again.iteration }}"}, publish: draft, next: gate}
  b: {tool: work, inputs: {what: "b {{ loop.again.iteration }}"}, next: gate}
  gate:
    compute: {n: 1}
    next: [{to: pick, loop: again}, {to: done}]
"""
GATE = """
workflow: w
nodes:
  a: {tool: work, inputs: {what: a}, next: ask}
  ask:
    human: Go on?
    output: {answer: go | stop}
    next: [{to: b, when: output.answer == "go"}, {to: fail}]
  b: {tool: work, inputs: {what: b}, next: done}
"""
ASKING = """
workflow: w
nodes:
  paint: {agent: painter, prompt: Paint., next: end}
  end: {done: {said: "{{ outputs.paint }}"}}
"""
RETRY = """
workflow: w
nodes:
  a:
    tool: flaky
    inputs: {what: a, until: 3}
    retry: {tool_transient: {times: 2, wait: 5ms}}
    next: b
  b:
    tool: flaky
    inputs: {what: b, until: 9}
    retry: {tool_transient: {times: 2, wait: 5ms}}
    next: [{to: done}, {to: end, on: failure}]
  end: {done: {tries: "{{ outputs.a.tries }}"}}
"""
SUB_RUN = """
workflow: w
nodes:
  a: {tool: work, inputs: {what: a}, next: inner}
  inner: {workflow: inside, inputs: {n: 3}, next: end}
  end: {done: {inner: "{{ outputs.inner }}"}}
"""
INSIDE = """
workflow: inside
vars: {n: integer}
nodes:
  one: {tool: work, inputs: {what: "inner {{ vars.n }}"}, publish: draft, next: two}
  two: {tool: work, inputs: {what: inner two}, next: end}
  end: {done: {n: "{{ vars.n * 2 }}"}}
"""
EACH = """
workflow: w
vars: {count: integer}
nodes:
  list: {tool: numbers, inputs: {count: "{{ vars.count }}"}, next: all}
  all:
    each: outputs.list.numbers
    as: x
    parallel: WIDTH
    do:
      one: {tool: work, inputs: {what: "item {{ x }}"}}
    next: end
  end: {done: {did: "{{ [one.did for one in outputs.all.items] }}"}}
"""
WORKTREE = """
workflow: w
workspace: worktree
nodes:
  one:
    tool: write
    inputs: {path: "{{ run.workspace }}/b.txt", text: two}
    writes: workspace
    next: two
  two:
    tool: write
    inputs: {path: "{{ run.workspace }}/c.txt", text: three}
    writes: workspace
    next: done
"""
ONCE = LINE.replace("b: {tool: work", "b: {tool: pay")


@dataclass(frozen=True)
class Scenario:
    """A workflow, what people say in it, and what it is launched with."""

    text: str
    answers: dict[str, Any] = field(default_factory=dict)
    variables: dict[str, Any] = field(default_factory=dict)


SCENARIOS = {
    "line": Scenario(LINE),
    "loop": Scenario(LOOP),
    "nested": Scenario(NESTED),
    "fan_out": Scenario(FAN_OUT),
    "best_effort": Scenario(BEST_EFFORT),
    "robin": Scenario(ROBIN),
    "gate": Scenario(GATE, {"ask": {"answer": "go"}}),
    "asking": Scenario(ASKING, {"paint": "blue"}),
    "retry": Scenario(RETRY),
    "sub_run": Scenario(SUB_RUN),
    "each": Scenario(EACH.replace("WIDTH", "4"), variables={"count": 20}),
    "worktree": Scenario(WORKTREE),
    "once": Scenario(ONCE, {"b": {"action": "replace", "value": {"did": "by hand"}}}),
    "many": Scenario(EACH.replace("WIDTH", "200"), variables={"count": 10_000}),
}


class Transient(Exception):
    """A failure that may pass."""

    code = "tool_transient"


def die() -> None:
    """End this process as a power cut would."""
    os.kill(os.getpid(), signal.SIGKILL)


class Points:
    """Counts durable writes and effects; the process dies at the one that was asked for."""

    def __init__(self, kind: str | None, number: int) -> None:
        self.counts: Counter[str] = Counter()
        self._at = (kind, number)

    def reach(self, kind: str) -> None:
        """Count a point, and die at it if it is the one."""
        self.counts[kind] += 1
        if self._at == (kind, self.counts[kind]):
            die()


class Killing:
    """A store whose process may die right after one of its durable writes."""

    def __init__(self, inner: Any, points: Points, measuring: bool) -> None:
        self.inner = inner
        self.points = points
        self.measuring = measuring
        self.largest = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def create_session(self, *arguments: Any, **options: Any) -> Any:
        done = await self.inner.create_session(*arguments, **options)
        self.points.reach("write")
        return done

    async def put_inbox(self, *arguments: Any, **options: Any) -> Any:
        done = await self.inner.put_inbox(*arguments, **options)
        self.points.reach("write")
        return done

    async def append(self, *arguments: Any, **options: Any) -> Any:
        done = await self.inner.append(*arguments, **options)
        if self.measuring:
            self.largest = max(self.largest, len(msgspec.json.encode(done.state)))
        self.points.reach("write")
        return done


class World:
    """Tools and a model that note what they do, each with the call that it is done for."""

    def __init__(self, folder: Path, points: Points) -> None:
        self.witness = folder / "witness"
        self._points = points

    def note(self, session: str, call: str, what: str) -> None:
        """Write down that something was done; it stays done, whatever becomes of the process."""
        with self.witness.open("ab", buffering=0) as file:
            file.write(json.dumps([session, call, what]).encode() + b"\n")
        self._points.reach("effect")

    def tools(self) -> list[Any]:
        """Return what nodes do."""

        def work(what: str, context: CallContext) -> dict[str, str]:
            self.note(context.session, context.call_id, what)
            return {"did": what}

        async def slow(what: str, context: CallContext) -> dict[str, str]:
            self.note(context.session, context.call_id, what)
            await asyncio.sleep(0.05)
            return {"did": what}

        def pay(what: str, context: CallContext) -> dict[str, str]:
            self.note(context.session, context.call_id, what)
            return {"did": what}

        def flaky(what: str, until: int, context: CallContext) -> dict[str, int]:
            attempt = int(context.call_id.rpartition(".")[2])
            self.note(context.session, context.call_id, f"{what} {attempt}")
            if attempt < until:
                raise Transient
            return {"tries": attempt}

        def numbers(count: int, context: CallContext) -> dict[str, Any]:
            self.note(context.session, context.call_id, "numbers")
            return {"numbers": list(range(count))}

        def write(path: str, text: str, context: CallContext) -> dict[str, str]:
            Path(path).write_text(text)
            self.note(context.session, context.call_id, text)
            return {"wrote": Path(path).name}

        again = (work, slow, flaky, numbers, write)
        return [*(make_tool(one, effect="idempotent") for one in again), make_tool(pay)]

    def functions(self) -> dict[str, Any]:
        """Return functions of compute nodes."""

        def broken() -> None:
            raise ValueError("never")

        return {"broken": broken}

    def agent(self) -> holdfast.Agent:
        """Return an agent that looks something up, asks a person and goes on."""

        def colour(of: str) -> str:
            raise AssertionError("a person says it")

        def look(at: str, context: CallContext) -> str:
            self.note(context.session, context.call_id, f"look {at}")
            return f"a {at}"

        return holdfast.Agent(
            "painter",
            harness="tools",
            tools=[
                make_tool(colour, executor="human"),
                make_tool(look, effect="idempotent"),
            ],
        )

    def respond(self, request: ModelRequest) -> Any:
        """Say what the model says: look, then ask, then the answer."""
        self.note(request.session_id, f"step {request.ordinal}", f"step {request.ordinal}")
        match request.ordinal:
            case 0:
                return assistant(ToolCall("c-1", "look", json.dumps({"at": "fence"})))
            case 1:
                return assistant(ToolCall("c-2", "colour", json.dumps({"of": "fence"})))
        return f"painted {request.messages[-1].text}"


async def work(request: dict[str, Any]) -> None:
    """Work a scenario to its end, whatever was done before; write down what came of it."""
    folder = Path(request["folder"])
    scenario = SCENARIOS[request["scenario"]]
    if "variables" in request:
        scenario = replace(scenario, variables=request["variables"])
    kind, number = request.get("kill") or (None, 0)
    points = Points(kind, number)
    world = World(folder, points)
    inner = await open_store(request["url"])
    before = await on_record(inner, world.witness) if request.get("again") else {}
    store: Any = Killing(inner, points, "variables" in request)
    model = ScriptedModel(world.respond, name="scripted")
    runtime = await holdfast.open(store, model=model, agents=[world.agent()])
    inside, _ = read_text(INSIDE, "")
    assert inside is not None
    known = registry(tools=world.tools(), functions=world.functions(), workflows=[inside])
    runs = Runs(runtime, known, place=folder / "worktrees")
    result = await to_the_end(runs, runtime, scenario, folder)
    told = {
        "before": before,
        "after": dict(noted(world.witness)),
        "did": sorted({line[2] for line in lines_of(world.witness)}),
        "shape": await shape(runs, inner, result, folder),
        "points": dict(points.counts),
        "largest": store.largest,
    }
    (folder / "told.json").write_text(json.dumps(told))
    await runtime.close()
    await inner.close()


async def to_the_end(runs: Runs, runtime: Any, scenario: Scenario, folder: Path) -> Any:
    """Create or resume the run, and answer what it asks, until it is over."""
    flow, problems = read_text(scenario.text, "")
    assert flow is not None, problems
    repository = folder / "repository"
    try:
        begun = (await runs.store.load_state(RUN)).run is not None
    except SessionNotFound:
        begun = False
    if begun:
        result = await runs.result(RUN)
        if result.status in ("finished", "failed"):
            return result
        result = await driven(runs, runs.resume)
    else:  # nobody was told that it exists
        options = {"folder": repository} if repository.exists() else {}
        await runs.create(flow, scenario.variables, run_id=RUN, **options)
        result = await runs.drive(RUN)
    for _ in range(40):
        if result.status != "paused":
            break
        for asked in await runs.interactions(RUN):
            if asked.open and asked.node in scenario.answers:
                try:
                    await runs.answer(RUN, asked.id, scenario.answers[asked.node])
                except (AnswerStale, CallNotFound):
                    continue
        await runtime.settled()
        result = await driven(runs, runs.drive)
    return result


async def driven(runs: Runs, drive: Any) -> Any:
    """Drive the run, or wait for whoever else does."""
    while True:
        try:
            return await drive(RUN)
        except (LeaseHeld, SessionBusy):
            await asyncio.sleep(0.01)
        except Conflict:
            return await runs.result(RUN)  # it is over


def noted(witness: Path) -> Counter[str]:
    """Return how often each thing was done, by session and call."""
    return Counter(":".join(line[:2]) for line in lines_of(witness))


def lines_of(witness: Path) -> list[list[str]]:
    """Return what was noted: session, call and what was done."""
    lines = witness.read_text().splitlines() if witness.exists() else []
    return [json.loads(line) for line in lines]


async def on_record(store: Any, witness: Path) -> dict[str, Any]:
    """Return what had been done, and of that what was finished as far as the logs say."""
    finished = []
    for info in (await store.list_sessions(limit=1000)).sessions:
        after = 0
        while page := await store.read_events(
            info.id, after=after, limit=500, types=["call.resolved"]
        ):
            finished += [f"{info.id}:{event.data['call_id']}" for event in page]
            after = page[-1].seq
        answered = (await store.load_state(info.id)).counters.get("answered", 0)
        finished += [f"{info.id}:step {ordinal}" for ordinal in range(answered)]
    return {"done": dict(noted(witness)), "finished": finished}


async def shape(runs: Runs, store: Any, result: Any, folder: Path) -> dict[str, Any]:
    """Return all that must be the same whether or not a process was killed on the way."""
    record = await runs.load(RUN)
    point = record.checkpoint
    nodes, retried = [], []
    async for event in runs.scan(RUN):
        if event.type == "node.finished" and event.data.get("status", "ok") != "cancelled":
            keys = ("node", "branch", "iteration", "status", "code")
            nodes.append([event.data.get(key) for key in keys])
        if event.type == "node.retried":
            retried.append([event.data["node"], event.data["code"], event.data["attempt"]])
    published = []
    for info in (await store.list_sessions(limit=1000)).sessions:
        report = await verify(store, info.id)
        assert report.ok, report
        for one in await runs.artifacts(info.id) if info.kind == "run" else []:
            body = await read_value(store, info.id, one.data)
            published.append([one.node, one.version, one.iteration, body])
    asked = [[one.node, one.kind, one.outcome] for one in await runs.interactions(RUN)]
    state = await store.load_state(RUN)
    found = {
        "status": result.status,
        "output": result.output,
        "executions": result.executions,
        "nodes": sorted(map(json.dumps, nodes)),
        "retried": sorted(map(json.dumps, retried)),
        "published": sorted(map(json.dumps, published)),
        "asked": sorted(map(json.dumps, asked)),
        "loops": point.loop_counters,
        "previous": point.loop_previous_output,
        "current": point.loop_current_output,
        "robin": point.round_robin_counters,
        "versions": point.artifact_versions,
        "open calls": len(state.calls),
        "reserved": len(state.reserved),
    }
    if (folder / "repository").exists():
        found["files"] = _files(folder / "repository") | {"merged into": record.merged_into}
    return found


def _files(repository: Path) -> dict[str, Any]:
    from holdfast.workflows.git import git

    return {
        "log": git(repository, "log", "--format=%s").splitlines(),
        "branches": len(git(repository, "for-each-ref", "refs/heads").splitlines()),
        "text": (repository / "c.txt").read_text(),
    }


def _load_all(folder: str) -> None:
    """Import what a scenario imports on its way, so that no forked process has to."""
    read, write = os.pipe()
    if os.fork() == 0:
        asyncio.run(work({"scenario": "asking", "url": "memory:", "folder": folder}))
        os.write(write, json.dumps(list(sys.modules)).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as file:
        names = json.loads(file.read())
    os.wait()
    for name in names:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def serve() -> None:
    """Fork one process per request; answer with how it ended."""
    with tempfile.TemporaryDirectory() as folder:
        _load_all(folder)
    gc.freeze()
    for line in sys.stdin:
        request = json.loads(line)
        pid = os.fork()
        if pid == 0:
            try:
                asyncio.run(work(request))
                os._exit(0)
            except BaseException:
                import traceback

                traceback.print_exc()
                os._exit(1)
        _, status = os.waitpid(pid, 0)
        print(json.dumps(os.waitstatus_to_exitcode(status)), flush=True)


class Server:
    """The other end: one process that forks."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def work(self, scenario: str, url: str, folder: Path, **options: Any) -> int:
        """Let a process work a scenario; return its exit code, -9 if it was killed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        request = {"scenario": scenario, "url": url, "folder": str(folder), **options}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return int(json.loads(self._process.stdout.readline()))

    def close(self) -> None:
        """End it."""
        self._process.communicate()


if __name__ == "__main__":
    serve()
