"""A driver of runs without a runtime: it appends what the scheduler says, and can be killed.

Nodes are functions of a world, which is the witness from outside: it counts what was begun and
refuses to begin again what the log says has finished. The clock moves only when the run waits.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from holdfast.core import facts
from holdfast.core.payloads import slot
from holdfast.core.run_facts import BranchFinished, NodeFinished, RunResumed, RunStarted
from holdfast.stores.memory.store import MemorySessionStore
from holdfast.testing.driver import Driver, all_events, drive
from holdfast.workflows.batch import Batch
from holdfast.workflows.calls_port import LimitReached, PlainCalls
from holdfast.workflows.check import check_text
from holdfast.workflows.graph import Graph
from holdfast.workflows.schedule import advance, cancel
from holdfast.workflows.values import Values, ValuesMissing

SESSION = "r-1"


class Killed(Exception):
    """The process is gone."""


class Fails(Exception):
    """An attempt fails, by a cause."""

    def __init__(self, code="tool_error", **more):
        super().__init__(code)
        self.error = {"code": code, "message": f"it failed: {code}", **more}


@dataclass
class Doing:
    """One attempt at a node, as the world sees it."""

    node: str
    branch: str
    iteration: dict[str, int]
    input: Any
    data: Any
    begun: int  # how often this position was begun, this time included

    @property
    def item(self):
        return int(self.branch.rsplit(":", 1)[1]) if ":" in self.branch else None


@dataclass
class World:
    """What nodes do, and what was done."""

    acts: dict[str, Any] = field(default_factory=dict)
    effects: dict[str, str] = field(default_factory=dict)
    begun: Counter = field(default_factory=Counter)
    positions: Counter = field(default_factory=Counter)
    finished: set = field(default_factory=set)
    asked: list[str] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    most_at_once: int = 0

    def begin(self, start):
        """Do an attempt; return its outcome."""
        iteration = dict(_iteration(start))
        position = (start.branch, start.node.id, tuple(sorted(iteration.items())))
        assert position not in self.finished, f"{position} had finished and was begun again"
        self.begun[start.node.id] += 1
        self.positions[position] += 1
        act = self.acts.get(start.node.id, lambda doing: {"approved": True, "notes": ""})
        doing = Doing(
            start.node.id,
            start.branch,
            iteration,
            dict(start.input),
            start.environment,
            self.positions[position],
        )
        try:
            return ("ok", act(doing) if callable(act) else act)
        except Fails as failed:
            return ("error", failed.error)


def _iteration(start):
    cursor = start.environment._batch.run.cursors[start.branch]
    around = start.environment._graph.loops_around[start.node.id]
    return {name: loop.passed for name, loop in cursor.loops.items() if name in around}


class Ledger(PlainCalls):
    """The calls of a run: people and waits are suspended at once, all others are dispatched."""

    def __init__(self, world, budget=None):
        self.world = world
        self.budget = budget

    def request(self, state, start):
        waits = start.node.kind in ("human", "wait") or start.asking is not None
        if self.budget is not None and self.world.begun.total() >= self.budget:
            raise LimitReached("usd", str(self.budget), str(self.budget))
        yield facts.CallRequested(
            call_id=start.call_id,
            name=start.node.id,
            executor="human" if waits else "server",
            effect=self.world.effects.get(start.node.id, "idempotent"),
            kind="node",
            arguments=slot(dict(start.input), "arguments"),
        )
        if waits:
            deadline = None
            if start.node.deadline_ms or (start.node.subject and start.node.kind == "wait"):
                wait = start.node.deadline_ms or start.node.subject
                deadline = later(start.environment._batch.at, wait / 1000)
            yield facts.CallSuspended(call_id=start.call_id, deadline=deadline)
        else:
            yield facts.CallDispatched(calls=[start.call_id])

    def cancel(self, state, call):
        in_flight = call.stage == "dispatched"
        outcome = "unknown" if in_flight and call.effect == "once" else "cancelled"
        yield facts.CallResolved(call_id=call.call_id, outcome=outcome)


def later(at, seconds):
    due = datetime.fromisoformat(at) + timedelta(seconds=seconds)
    return due.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class Simulation:
    """One run on a store that outlives its drivers."""

    def __init__(self, text, world=None, *, variables=None, seed=0, budget=None, known=None):
        flow, problems = check_text(text, "w.yaml")
        assert problems == [], "\n".join(map(str, problems))
        self.flow = flow
        self.graph = Graph(flow)
        self.world = world or World()
        self.store = MemorySessionStore()
        self.vars = {name: one.default for name, one in flow.vars.items()} | (variables or {})
        self.random = random.Random(seed)
        self.ledger = Ledger(self.world, budget)
        self.appends = 0
        self.kill_at: set[int] = set()
        self.kill_before: set[int] = set()
        self.now = "2030-01-01T00:00:00.000000Z"
        self.batches: list[list[str]] = []
        self.largest = 0

    async def state(self):
        return await self.store.load_state(SESSION)

    async def events(self):
        return await all_events(self.store, SESSION)

    async def run(self, *, resume=False, answers=()):
        """Drive until the run settles or pauses; a kill ends the driver and another takes over."""
        while True:
            try:
                return await self._drive(resume=resume, answers=answers)
            except Killed:
                continue

    async def _drive(self, *, resume, answers):
        started = facts.SessionStarted(kind="run")
        driver = await drive(self.store, SESSION, started)
        try:
            if driver.state.run is None:
                begin = RunStarted(
                    workflow=self.flow.name,
                    start=self.flow.start,
                    vars=slot(self.vars, "input"),
                )
                await self._append(driver, [begin])
            elif resume and driver.state.run.status in ("failed_resumable", "cancelled", "paused"):
                await self._append(driver, [RunResumed(by="ada")])
            return await _Driving(self, driver).loop(list(answers))
        finally:
            await self.store.release(driver.lease)

    async def _append(self, driver: Driver, new, **options):
        self.appends += 1
        if self.appends in self.kill_before:
            raise Killed
        await driver.append(*new, **options)
        self.batches.append([fact.TYPE for fact in new])
        for fact in new:
            self._witness(fact)
        import msgspec

        self.largest = max(self.largest, len(msgspec.json.encode(driver.state)))
        if self.appends in self.kill_at:
            raise Killed

    def _witness(self, fact):
        if isinstance(fact, NodeFinished) and fact.status == "ok":
            position = (fact.branch, fact.node, tuple(sorted(fact.iteration.items())))
            self.world.finished.add(position)

    async def output(self):
        """Return the output of the finished run."""
        for event in reversed(await self.events()):
            if event.type == "run.finished":
                return await self._value(event.fact().output)
        return None

    async def _value(self, item):
        data = item.data
        if data is None:
            data = await self.store.get_payload(SESSION, item.id)
        values = Values()
        values.learn_payload(item, data)
        return values.value(item)


class _Driving:
    """One driver's life."""

    def __init__(self, simulation, driver):
        self.simulation = simulation
        self.driver = driver
        self.values = Values()
        self.pending: dict[str, tuple[str, Any]] = {}

    async def loop(self, answers):
        await self._recover()
        ended: list[facts.Fact] = []
        while True:
            plan = await self._plan(ended)
            if plan.facts:
                after = self.driver.state.seq
                await self.simulation._append(
                    self.driver, plan.facts, head=plan.head, payloads=plan.payloads
                )
                self.values.learn_batch(after, plan.facts)
            for call_id in plan.cancelled:
                self.pending.pop(call_id, None)
                self.simulation.world.cancelled.append(call_id)
            self._dispatch(plan)
            run = self.driver.state.run
            if run.status not in ("running", "paused"):
                return run.status
            if plan.more:
                ended = []
                continue
            ended = self._outcomes() or self._answers(answers)
            if ended:
                continue
            if plan.wake is not None:
                self.simulation.now = max(plan.wake, self.simulation.now)
            elif run.status == "paused" and run.until is not None and not self._waits():
                self.simulation.now = run.until
                await self.simulation._append(self.driver, [RunResumed()])
            else:
                return run.status

    def _waits(self):
        return any(call.stage == "suspended" for call in self.driver.state.calls.values())

    async def _recover(self):
        """Do again what may be done again, and call the rest unknown."""
        lost = []
        for call in self.driver.state.calls.values():
            if call.stage == "suspended":
                continue
            if call.effect == "once" and call.stage == "dispatched":
                lost.append(facts.CallResolved(call_id=call.call_id, outcome="unknown"))
            else:
                await self._again(call)
        if lost:
            await self.simulation._append(self.driver, lost)

    async def _again(self, call):
        batch = Batch(self.driver.state, self.simulation.now)
        (branch,) = [
            name
            for name, cursor in self.driver.state.run.cursors.items()
            if cursor.call == call.call_id
        ]
        while True:
            try:
                from holdfast.workflows.calls_port import Start
                from holdfast.workflows.environment import Environment

                environment = Environment(batch, self.simulation.graph, self.values, branch)
                cursor = batch.run.cursors[branch]
                node = self.simulation.graph.node(cursor.node)
                given = environment.received(node)
                start = Start(
                    branch,
                    node,
                    cursor.execution,
                    cursor.attempt,
                    call.call_id,
                    given,
                    environment.having(input=given),
                )
                self.pending[call.call_id] = self.simulation.world.begin(start)
                return
            except ValuesMissing as missing:
                await self._load(missing)

    async def _plan(self, ended):
        while True:
            batch = Batch(self.driver.state, self.simulation.now)
            batch.add(*ended)
            try:
                return advance(batch, self.simulation.graph, self.values, self.simulation.ledger)
            except ValuesMissing as missing:
                await self._load(missing)

    async def _load(self, missing):
        store = self.simulation.store
        for seq in {*missing.events, *self.values.lacks(self.driver.state.run)}:
            self.values.learn_events(await store.read_events(SESSION, after=seq - 1, limit=1))
        for item in missing.payloads:
            self.values.learn_payload(item, await store.get_payload(SESSION, item.id))
        if missing.fork is not None:
            fork, since = missing.fork
            found = []
            for event in await all_events(store, SESSION):
                if event.seq > since and event.type == "branch.finished":
                    fact = event.fact()
                    if isinstance(fact, BranchFinished) and fact.fork == fork:
                        found.append((event.seq, fact))
            self.values.learn_ended(fork, found)

    def _dispatch(self, plan):
        world = self.simulation.world
        for start in plan.starts:
            call = self.driver.state.calls.get(start.call_id)
            if call is None:
                continue
            if call.stage == "suspended":
                world.asked.append(start.call_id)
                continue
            self.pending[start.call_id] = world.begin(start)
        world.most_at_once = max(world.most_at_once, len(self.pending))

    def _outcomes(self):
        """Let one or a few of those in flight end."""
        if not self.pending:
            return []
        choice = self.simulation.random
        count = choice.randint(1, min(3, len(self.pending)))
        picked = choice.sample(sorted(self.pending), count)
        return [self._resolved(call_id, *self.pending.pop(call_id)) for call_id in picked]

    def _resolved(self, call_id, outcome, value):
        if outcome == "ok":
            return facts.CallResolved(call_id=call_id, outcome="ok", result=slot(value, "answer"))
        return facts.CallResolved(call_id=call_id, outcome="error", error=slot(value, "error"))

    def _answers(self, answers):
        """Let people answer what they are asked, in the order that the test says."""
        waiting = sorted(
            call.call_id for call in self.driver.state.calls.values() if call.stage == "suspended"
        )
        for call_id in list(waiting):
            for number, (name, value) in enumerate(answers):
                if call_id.startswith(f"{name}."):
                    answers.pop(number)
                    if value == "expired":
                        return [facts.CallResolved(call_id=call_id, outcome="expired")]
                    result = slot(value, "answer")
                    return [facts.CallResolved(call_id=call_id, outcome="ok", result=result)]
        return []


async def ask_to_stop(simulation):
    """Cancel a run as a person does, without driving it."""
    driver = await drive(simulation.store, SESSION, facts.SessionStarted(kind="run"))
    batch = Batch(driver.state, simulation.now)
    cancel(batch, by="ada")
    plan = advance(batch, simulation.graph, Values(), simulation.ledger)
    await driver.append(*plan.facts)
    await simulation.store.release(driver.lease)
    return driver.state.run.status
