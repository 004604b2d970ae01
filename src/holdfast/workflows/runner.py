"""The runner: one driver's life with a run, from its lease to its pause or end.

It appends what the scheduler says, carries calls out, takes in what arrives, and schedules again.
Everything it knows stands in the log: another process that takes the lease goes on from there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from holdfast.core import messages
from holdfast.core.events import now
from holdfast.core.facts import (
    CallResolved,
    CallSuspended,
    Fact,
    SessionRevived,
    SessionStopRequested,
)
from holdfast.core.payloads import Slot, slot
from holdfast.core.run_facts import (
    RunCancelled,
    RunChanged,
    RunFailed,
    RunFinished,
    RunInterrupted,
    RunResumed,
    RunStarted,
)
from holdfast.core.run_state import FAILED_RESUMABLE, INTERRUPTED, OPEN, PAUSED, RUNNING, RunState
from holdfast.core.state import State
from holdfast.core.status import STOP_REQUESTED
from holdfast.runtime import answers, inbox
from holdfast.runtime import blueprint as blueprints
from holdfast.runtime.children import TASK_KEY, Children, is_wanted, report, schema_of
from holdfast.runtime.driver import Driver, Work
from holdfast.runtime.engine import Engine
from holdfast.runtime.inbox import InboxRest
from holdfast.runtime.shielding import ended, shielded
from holdfast.stores.port import InboxDraft, InboxItem
from holdfast.workflows import files
from holdfast.workflows.attempts import Attempts
from holdfast.workflows.batch import Batch
from holdfast.workflows.graph import Graph
from holdfast.workflows.launching import first_fact
from holdfast.workflows.loading import load
from holdfast.workflows.model import Workflow
from holdfast.workflows.nodes.agent import AgentPlan, plan_agent
from holdfast.workflows.nodes.calls import NodeCalls, is_child
from holdfast.workflows.nodes.continuing import continued
from holdfast.workflows.plan import Plan
from holdfast.workflows.reading import read_document
from holdfast.workflows.registry import Registry
from holdfast.workflows.results import launch_options
from holdfast.workflows.rewinding import Reuse, read_reuse
from holdfast.workflows.schedule import advance
from holdfast.workflows.slots import is_waiting
from holdfast.workflows.values import Values, ValuesMissing

logger = logging.getLogger("holdfast.workflows")

ENDS = (RunFinished, RunFailed, RunCancelled)


def task_draft(task: Any, inputs: Mapping[str, Any], output: Any) -> InboxDraft:
    """Return what a child is given to do: a message, or, of a run, how it is launched."""
    if isinstance(task, Mapping):
        return InboxDraft(
            key=TASK_KEY, kind="message", content=slot({"launch": dict(task)}, "input")
        )
    return Work(messages.user(str(task)), dict(inputs), output=schema_of(output)).draft(TASK_KEY)


class Runner:
    """The driver of one run."""

    # Made ready once the workflow in force is known.
    _graph: Graph
    _calls: NodeCalls
    _attempts: Attempts

    def __init__(self, engine: Engine, driver: Driver, registry: Registry, place: Path) -> None:
        self._engine = engine
        self._driver = driver
        self._journal = driver.journal
        self._registry = registry
        self._place = place
        self._values = Values()
        assert engine.driving is not None
        self._children = Children(
            log=self._journal,
            driving=engine.driving,
            message=task_draft,
            admit=lambda: inbox.admit(self._journal),
            gate=asyncio.Semaphore(engine.resolved.settings.child_concurrency),
        )

    @property
    def state(self) -> State:
        """Return where the log stands."""
        return self._journal.state

    @property
    def _run(self) -> RunState:
        assert self.state.run is not None
        return self.state.run

    # -- the life of a driver

    async def drive(
        self, resume: RunResumed | None = None, change: RunChanged | None = None
    ) -> None:
        """Drive the run until it settles, or nothing can move before someone acts."""
        await answers.expire_due(self._engine.store, self._journal.session)
        left = await inbox.admit(self._journal)
        if self.state.run is None and not await self._launch(left):
            return
        if not await is_wanted(self._engine.store, self.state):
            await self._stop(None)
        elif left.stop is not None:
            await self._stop(left.stop)
        if not await self._take_up(resume, change):
            return
        await self._prepare()
        try:
            await self._loop()
        except asyncio.CancelledError:
            await shielded(self._interrupted())
            raise
        finally:
            for task in list(self._attempts.tasks.values()):
                await ended(task)

    async def _launch(self, left: InboxRest) -> bool:
        """Begin the run with what it was launched with; tell whether there was something."""
        item = next((one for one in left.messages if one.key == TASK_KEY), None)
        if item is None or item.content is None:
            return False
        content: Any = await self._journal.value(item.content)
        launch = content["launch"]
        flow, started = first_fact(launch)
        facts: list[Fact] = [inbox.admitted(item), started]
        if flow.workspace.kind != "none":
            wanted, at = flow.workspace, Path(launch.get("folder") or ".")
            if "base" in launch:  # of the run that it was rewound from
                wanted = replace(wanted, base=launch["base"])
            elif "directory" in launch:
                wanted = replace(wanted, path=launch["directory"])
            facts.append(await files.open(wanted, self._journal.session, self._place, at))
        await self._journal.append(lambda _: facts, consumes=[item.key])
        return True

    async def _take_up(self, resume: RunResumed | None, change: RunChanged | None) -> bool:
        """Record that the run goes on, where it stood still; tell whether it does."""
        run = self._run
        if resume is not None and resume.code is not None and run.status != FAILED_RESUMABLE:
            resume = None  # nobody asked for it, and someone else has resumed the run since
        if run.status not in OPEN and resume is None:
            return False
        facts: list[Fact] = []
        if change is not None:
            # Only a run that stands still is changed.
            still: list[Fact] = [RunInterrupted(reason="changed")] if run.status == RUNNING else []
            facts = [*still, change, resume or RunResumed()]
            await files.restore(run.workspace)
            await self._journal.append(lambda _: facts)
            return True
        due = run.until is not None and run.until <= now()
        if run.status == RUNNING:
            # The process that drove it is gone, or this is its first drive.
            if self.state.seq > run.started + 1:
                facts.append(SessionRevived(owner=self._journal.lease.owner, found="run"))
                await files.restore(self._run.workspace)
        elif run.status == INTERRUPTED or resume is not None or (run.status == PAUSED and due):
            facts.append(resume or RunResumed())
            await files.restore(self._run.workspace)
        if facts:
            await self._journal.append(lambda _: facts)
        return True

    async def _prepare(self) -> None:
        """Read the workflow in force, and make ready what its nodes are carried out with."""
        flow = await self._workflow()
        limits = await blueprints.load(
            self._engine.store, self._journal.session, self.state.configured
        )
        self._graph = Graph(flow)
        folder = None if self._run.workspace is None else self._run.workspace.path
        plans: dict[str, AgentPlan] = {}
        stopping = self.state.status == STOP_REQUESTED  # no agent is needed then
        for node in () if stopping else flow.nodes.values():
            if is_child(node) and node.kind != "workflow":
                plans[node.id] = await plan_agent(self._engine, node, folder)
        self._calls = NodeCalls(
            workflow=flow,
            settings=limits.settings,
            registry=self._registry,
            plans=plans,
            reuse=await self._reuse(),
        )
        self._attempts = Attempts(
            self._journal, self._registry, self._graph, self._values, self._load
        )

    async def _workflow(self) -> Workflow:
        run = self._run
        started = await self._fact(run.started)
        assert isinstance(started, RunStarted)
        source: Slot | None = started.model
        if run.model != run.started:
            changed = await self._fact(run.model)
            assert isinstance(changed, RunChanged)
            source = changed.model
        assert source is not None
        document: Any = await self._journal.value(source)
        return read_document(document)

    async def _reuse(self) -> Reuse | None:
        """Return what is taken over from the run that this one was rewound from, if it was."""
        options = await launch_options(self._engine.store, self._journal.session)
        if "rewind" not in options:
            return None
        return await read_reuse(
            self._engine.store, self._journal.session, self.state.seq, options["rewind"]
        )

    async def _fact(self, seq: int) -> Fact:
        (event,) = await self._engine.store.read_events(
            self._journal.session, after=seq - 1, limit=1
        )
        return event.fact()

    # -- the loop

    async def _loop(self) -> None:
        await self._attempts.recover()
        self._children.take_up()
        finished: list[CallResolved] = []
        while True:
            plan = await self._step(finished)
            finished = []
            if self._run.status not in (RUNNING, PAUSED):
                return
            if plan.more:
                continue
            if await self._mark_waiting_children():
                continue
            if self._run.status == PAUSED and not self._attempts.tasks and not self._children.busy:
                if not await self._arrived():
                    return
                continue
            if await self._is_left(plan):
                if not await self._arrived():
                    await self._interrupted("a session that a node waits for was left")
                    return
                continue
            finished = await self._wait(plan)

    async def _is_left(self, plan: Plan) -> bool:
        """Tell whether all that the run waits for are sessions which nobody drives any more."""
        if self._run.status != RUNNING or plan.wake is not None:
            return False
        if self._attempts.tasks or self._children.busy or not self.state.calls:
            return False
        for call in self.state.calls.values():
            if is_waiting(call):
                continue
            if call.child is None or await self._engine.store.lease_of(call.child) is not None:
                return False
        return any(not is_waiting(call) for call in self.state.calls.values())

    async def _step(self, finished: list[CallResolved]) -> Plan:
        """Schedule once: append what follows, and begin what it says."""
        calls, graph = self._calls, self._graph
        calls.commits |= await files.commit(graph, self.state, finished, calls.commits)
        plan = await self._plan(finished)
        if plan.facts:
            await self._append(plan, calls)
        for call_id in plan.cancelled:
            task = self._attempts.tasks.pop(call_id, None)
            if task is not None:
                await ended(task)
        for start in plan.starts:
            await self._attempts.start(start)
        if any(is_child(start.node) for start in plan.starts):
            self._children.take_up()
        return plan

    async def _append(self, plan: Plan, calls: NodeCalls) -> None:
        """Append a batch; one that finishes the run also says what became of its files."""
        facts = plan.facts
        given: dict[str, Any] = {"payloads": [*plan.payloads, *calls.payloads]}
        if isinstance(facts[-1], RunFinished) and self._run.workspace is not None:
            # The last commit is on record before a branch is made of it: a kill in between
            # leaves one branch.
            ahead = files.before_the_end(facts)
            if ahead:
                await self._written(ahead, **given)
            facts = facts[len(ahead) :]
            merge = calls.workflow.workspace.merge
            told = await files.finalise(self._run.workspace, self._journal.session, merge)
            facts = [*facts[:-1], told, facts[-1]]
        posts = list(calls.posts)
        if isinstance(facts[-1], ENDS):
            posts += report(self.state)
        await self._written(facts, head=plan.head, posts=posts, **given)

    async def _written(self, facts: list[Fact], **given: Any) -> None:
        after = self.state.seq
        await self._journal.append(lambda _: facts, **given)
        self._values.learn_batch(after, facts)
        if self._calls.reuse is not None:
            self._calls.reuse.learn(facts)
            await files.adopt(self._run.workspace, self._journal.session, after, facts)

    async def _plan(self, finished: list[CallResolved]) -> Plan:
        while True:
            batch = Batch(self.state, now())
            self._calls.begin()
            batch.add(*(fact for fact in finished if fact.call_id in self.state.calls))
            try:
                return advance(batch, self._graph, self._values, self._calls)
            except ValuesMissing as missing:
                await self._load(missing)

    async def _load(self, missing: ValuesMissing) -> None:
        """Bring what scheduling needs of the log, and what it will need next."""
        if missing.reused is not None and self._calls.reuse is not None:
            await self._calls.reuse.load(missing.reused)
        if missing.continued is not None:
            self._calls.continued[missing.continued[0]] = await continued(
                self._engine.store, self._journal.session, *missing.continued
            )
        await load(self._engine.store, self._values, self._journal.session, self._run, missing)

    async def _mark_waiting_children(self) -> bool:
        """Say of calls whose session waits for a person that they wait too; tell if there are."""
        waits: list[CallSuspended] = []
        for call in self.state.calls.values():
            if call.kind != "child" or is_waiting(call) or call.child is None:
                continue
            if self._children.drives(call.call_id):
                continue
            below = await self._engine.store.load_state(call.child)
            if below.status == "suspended" and below.calls:
                on = f"{call.child}/{next(iter(below.calls))}"
                waits.append(
                    CallSuspended(call_id=call.call_id, wait=call.wait + 1, kind="question", on=on)
                )
        if waits:
            await self._journal.append(lambda _: waits)
        return bool(waits)

    # -- waiting

    async def _arrived(self) -> bool:
        """Take in what has arrived in the inbox; tell whether the run can go on."""
        before = self.state.seq
        left = await inbox.admit(self._journal)
        if left.stop is not None:
            await self._stop(left.stop)
        await self._attempts.approved()
        return self.state.seq > before

    async def _stop(self, item: InboxItem | None) -> None:
        """Record that someone wants the run to end; scheduling settles it."""
        admitted: list[Fact] = [] if item is None else [inbox.admitted(item)]
        keys = [] if item is None else [item.key]
        if self.state.run is not None and self._run.status in OPEN:
            request = SessionStopRequested(by=None if item is None else item.by)
            await self._journal.append(lambda _: [*admitted, request], consumes=keys)
        elif self.state.run is not None and self._run.status == "failed_resumable":
            await self._journal.append(lambda _: [*admitted, RunCancelled()], consumes=keys)
        elif admitted:
            await self._journal.append(lambda _: admitted, consumes=keys)

    async def _wait(self, plan: Plan) -> list[CallResolved]:
        """Wait until something ends or arrives; return the outcomes of what ended here."""
        watched = self._driver.watched
        waits: set[asyncio.Future[Any]] = {
            asyncio.ensure_future(watched.arrived.wait()),
            asyncio.ensure_future(self._children.changed()),
        }
        seconds = None
        if plan.wake is not None:
            due = datetime.fromisoformat(plan.wake) - datetime.fromisoformat(now())
            seconds = max(0.0, due.total_seconds())
        try:
            await asyncio.wait(
                {*waits, *self._attempts.tasks.values()},
                timeout=seconds,
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            for wait in waits:
                wait.cancel()
        if plan.wake is not None and plan.wake <= now():
            await answers.expire_due(self._engine.store, self._journal.session)
            watched.arrived.set()
        if watched.arrived.is_set():
            watched.arrived.clear()
            await self._arrived()
        over = [call_id for call_id, task in self._attempts.tasks.items() if task.done()]
        return [self._attempts.tasks.pop(call_id).result() for call_id in over]

    async def _interrupted(self, reason: str = "broken off") -> None:
        """Record that driving was broken off on purpose; another driver goes on."""
        for task in list(self._attempts.tasks.values()):
            await ended(task)
        if self.state.run is not None and self._run.status == RUNNING:
            await self._journal.append(lambda _: [RunInterrupted(reason=reason)])
