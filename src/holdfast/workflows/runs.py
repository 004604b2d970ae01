"""Runs: workflows that are started, driven, answered, resumed, cancelled and read on any store.

A run is a session, so everything that sessions have serves it. Reading needs neither the workflow
nor its agents; driving needs what the workflow names.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from holdfast.core.errors import Conflict, LeaseHeld, SessionBusy
from holdfast.core.events import now
from holdfast.core.facts import SessionConfigured
from holdfast.core.ids import check_id, new_session_id
from holdfast.core.payloads import slot
from holdfast.core.run_facts import RunChanged, RunFailed, RunResumed, RunStarted
from holdfast.core.run_state import FAILED, FAILED_RESUMABLE, FINISHED, RunState
from holdfast.core.run_state import due as due_at
from holdfast.runtime import blueprint as blueprints
from holdfast.runtime.children import STOP_KEY, TASK_KEY
from holdfast.runtime.runtime import Runtime
from holdfast.stores.port import InboxDraft, SessionFilter
from holdfast.workflows import worktrees
from holdfast.workflows.builder import Workflow as Builder
from holdfast.workflows.changes import change_of
from holdfast.workflows.launching import (
    checked_vars,
    require_launchable,
    run_settings,
    session_started,
    with_budget,
)
from holdfast.workflows.model import Workflow
from holdfast.workflows.reading import load, read_document
from holdfast.workflows.recovery import TRANSIENT
from holdfast.workflows.registry import Registry
from holdfast.workflows.results import RunResult
from holdfast.workflows.rewind_runs import rewind_plan, rewound
from holdfast.workflows.rewinding import Again
from holdfast.workflows.run_store import RunStore
from holdfast.workflows.runner import Runner
from holdfast.workflows.signals import waiting_for
from holdfast.workflows.worktrees import WorktreesRemoved

logger = logging.getLogger("holdfast.workflows")

PAGE_RUNS = 500


RESUME_WAITS = (1, 5, 25)
"""Seconds before each time that a run is resumed without anyone asking, per cause."""

FORGOTTEN = timedelta(days=1)
"""How long a run that failed is looked at for that; a tick reads no state of older ones."""


class Runs(RunStore):
    """The runs of one runtime: the store of runs, and what starts and drives them."""

    def __init__(
        self, runtime: Runtime, registry: Registry | None = None, *, place: Path | None = None
    ) -> None:
        super().__init__(runtime.store)
        self._runtime = runtime
        self._engine = runtime.engine
        self._registry = registry or Registry()
        self._place = place or worktrees.PLACE
        self._engine.runs = self.take_up
        self.resume_waits: tuple[float, ...] = RESUME_WAITS
        self.watch: Callable[[str, int], None] | None = None
        """Is told of each run that is driven, and where its log stands."""

    # -- starting

    async def create(
        self,
        workflow: Workflow | Builder | str | Path,
        variables: Mapping[str, Any] | None = None,
        *,
        run_id: str | None = None,
        budget: Mapping[str, Any] | None = None,
        folder: Path | None = None,
        by: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> str:
        """Create a run, checked before anything is paid; return its id. It is driven by `drive`.

        `options` are kept for whoever resumes it: such as the program that has its agents.
        """
        flow = _model(workflow)
        require_launchable(flow, self._registry, self._engine.agents)
        given = checked_vars(flow, variables or {})
        run = new_session_id() if run_id is None else check_id(run_id)
        launch = {
            "workflow": flow.document(),
            "source": flow.source,
            "place": _absolute(flow.file) if flow.file else None,
            "vars": given,
            "options": dict(options or {}),
            "folder": _absolute(folder or ""),
            "by": by,
        }
        settings = run_settings(self._engine.resolved.settings, flow, budget or {})
        started, parts = session_started(flow, settings, tenant=self._store.tenant)
        await self._store.create_session(run, started, payloads=parts)
        await self._store.put_inbox(
            run, InboxDraft(key=TASK_KEY, kind="message", content=slot({"launch": launch}, "input"))
        )
        return run

    async def rewind(
        self,
        run: str,
        to: str | None = None,
        *,
        workflow: Workflow | Builder | str | Path | None = None,
        run_id: str | None = None,
        by: str | None = None,
        force: bool = False,
    ) -> str:
        """Create a run that takes over another one's results, but for what depends on a node.

        `to` is NODE for all of its executions, NODE:N for one round, or NODE:NAME=N,… where several
        loops or `each` nodes repeat it. With another `workflow`, nodes that differ run again too.
        Return the id of the new run; `drive` it.
        """
        return await rewound(
            self._store,
            self._registry.known(self._engine.agents),
            run,
            to,
            workflow=None if workflow is None else _model(workflow),
            run_id=run_id,
            by=by,
            force=force,
        )

    async def rewinding(
        self,
        run: str,
        to: str | None = None,
        *,
        workflow: Workflow | Builder | str | Path | None = None,
    ) -> list[Again]:
        """Return what of a run would run again if it were rewound, without doing anything."""
        plan = await rewind_plan(
            self._store, run, to, None if workflow is None else _model(workflow)
        )
        return plan.again

    async def run(
        self,
        workflow: Workflow | Builder | str | Path,
        variables: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> RunResult:
        """Create a run and drive it until it settles or waits."""
        return await self.drive(await self.create(workflow, variables, **options))

    # -- driving

    async def drive(
        self,
        run: str,
        *,
        resume: RunResumed | None = None,
        change: RunChanged | None = None,
        takeover: bool = False,
    ) -> RunResult:
        """Drive a run until it settles, or nothing can move before someone acts."""
        while True:
            result = await self._drive(run, resume, change, takeover=takeover)
            again = await self._resumed_by_itself(result)
            if again is None:
                return result
            resume, change = again, None

    async def _resumed_by_itself(self, result: RunResult) -> RunResumed | None:
        """Wait and return what resumes a run that failed by a cause which passes, a few times."""
        state = await self._state(result.run)
        own = None if state.run is None else await self._own_resume(result.run, state.run)
        if own is None:
            return None
        due, resume = own
        left = (due - datetime.now(UTC)).total_seconds()
        await asyncio.sleep(max(0.0, left))
        return resume

    async def _own_resume(self, run: str, state: RunState) -> tuple[datetime, RunResumed] | None:
        """Return when a run that failed is resumed without anyone asking, and by what."""
        if state.status != FAILED_RESUMABLE or state.ended is None:
            return None
        (event,) = await self._store.read_events(run, after=state.ended - 1, limit=1)
        fact = event.fact()
        code = fact.code if isinstance(fact, RunFailed) else None
        if code is None or code not in TRANSIENT:
            return None
        done = state.resumes.get(code, 0)
        if done >= len(self.resume_waits):
            return None
        wait = timedelta(seconds=self.resume_waits[done])
        return datetime.fromisoformat(event.at) + wait, RunResumed(code=code)

    async def _drive(
        self, run: str, resume: RunResumed | None, change: RunChanged | None, *, takeover: bool
    ) -> RunResult:
        state = await self._state(run)
        if self.watch is not None:
            self.watch(run, state.seq)
        async with self._runtime.claims.driving(
            run, takeover=takeover, needs_agent=False
        ) as driver:
            runner = Runner(self._engine, driver, self._registry, Path(_absolute(self._place)))
            await runner.drive(resume, change)
        return await self.result(run)

    async def take_up(self, run: str) -> None:
        """Drive a run in the background; what goes wrong is logged."""
        await self._take_up(run, None)

    async def _take_up(self, run: str, resume: RunResumed | None) -> None:
        try:
            await self.drive(run, resume=resume)
        except (SessionBusy, LeaseHeld):
            logger.debug("run %s is driven by someone else", run)

    async def tick(self) -> list[str]:
        """Drive every run whose time has come, and return their ids.

        That is one which paused until a time, or failed by a cause which passes and is resumed
        without anyone asking, whoever was to do that.
        """
        found = await self._due()
        await asyncio.gather(*(self._take_up(run, resume) for run, resume in found.items()))
        return list(found)

    async def recover(self) -> list[str]:
        """Take up what processes that died left, as the runtime's `recover`, and due runs too."""
        taken = await self._runtime.recover()
        return [*taken, *await self.tick()]

    async def _due(self) -> dict[str, RunResumed | None]:
        """Return the runs whose time has come, with what resumes those that failed."""
        found: dict[str, RunResumed | None] = {}
        at = datetime.now(UTC)
        async for run, state in self._standing("suspended"):
            until = due_at(state)
            if until is not None and until <= now():
                found[run] = None
        async for run, state in self._standing("idle", since=at - FORGOTTEN):
            own = await self._own_resume(run, state)
            if own is not None and own[0] <= at:
                found[run] = own[1]
        return found

    async def _standing(
        self, status: str, since: datetime | None = None
    ) -> AsyncIterator[tuple[str, RunState]]:
        """Yield runs that stand still, of those that something was written of since a time."""
        cursor = None
        while True:
            where = SessionFilter(kind="run", status=status)
            page = await self._store.list_sessions(where, limit=PAGE_RUNS, cursor=cursor)
            for info in page.sessions:
                if since is None or datetime.fromisoformat(info.updated_at) >= since:
                    state = (await self._store.load_state(info.id)).run
                    if state is not None:
                        yield info.id, state
            cursor = page.cursor
            if cursor is None:
                return

    async def resume(
        self,
        run: str,
        *,
        by: str | None = None,
        changed: bool = False,
        stored: bool = False,
        takeover: bool = False,
        budget: Mapping[str, Any] | None = None,
    ) -> RunResult:
        """Go on with a run: where it failed, was cancelled or was broken off.

        A file that has changed since is refused with what differs, unless `stored` says to go on
        with the workflow as it was, or `changed` to go on with the new one, which is recorded, with
        the limits that it has now. `budget` sets those on `usd` and `tokens` instead.
        """
        state = await self._state(run)
        if state.run is None:
            return await self.drive(run, takeover=takeover)  # it begins with what it was given
        if state.run.status in (FINISHED, FAILED):
            raise Conflict(
                f"run {run!r} is {state.run.status}; rewind it to run a part of it again"
            )
        change = None
        if not stored:
            started = await self._started(run, state.run)
            old = await self.workflow(run)
            known = self._registry.known(self._engine.agents)
            change = await change_of(state, started.place, old, known, changed=changed, by=by)
        limits = dict(budget or {})
        if change is not None:
            new: Any = change.model.value()
            limits = {**read_document(new).budget, **limits}
        if limits:
            await self._limit(run, limits, by, takeover=takeover)
        resume = None
        if state.run.status != "running":
            resume = RunResumed(by=by)
        return await self.drive(run, resume=resume, change=change, takeover=takeover)

    async def _limit(
        self, run: str, budget: Mapping[str, Any], by: str | None, *, takeover: bool
    ) -> None:
        """Put other limits of a run on record, where they differ from those it has."""
        async with self._runtime.claims.driving(
            run, takeover=takeover, needs_agent=False
        ) as driver:
            old = await blueprints.load(self._store, run, driver.state.configured)
            settings = with_budget(old.settings, budget)
            if settings == old.settings:
                return
            item, parts = replace(old, settings=settings).slots()
            fact = SessionConfigured(settings=item, by=by)
            await driver.journal.append(lambda _: [fact], payloads=parts)

    async def cancel(self, run: str, *, by: str | None = None) -> RunResult:
        """End a run, here or by whoever drives it; it can be resumed."""
        state = await self._state(run)
        # One that was resumed since can be cancelled again.
        key = f"{STOP_KEY}:{state.seq}"
        await self._store.put_inbox(run, InboxDraft(key=key, kind="stop", by=by))
        try:
            return await self.drive(run)
        except (SessionBusy, LeaseHeld):
            return await self.result(run)

    async def answer(self, run: str, call_id: str, value: Any, *, by: str | None = None) -> None:
        """Answer a question of a run, or of an agent in it; durable on return."""
        for asked in await self.interactions(run):
            if asked.id == call_id and asked.open:
                await self._runtime.answer(asked.session, call_id, value, by=by)
                return
        await self._runtime.answer(run, call_id, value, by=by)

    async def remove_worktrees(
        self, *, idle_days: float = worktrees.IDLE_DAYS, dry_run: bool = False
    ) -> WorktreesRemoved:
        """Remove the worktrees of runs that are over, were given up or deleted; commits stay."""
        place = Path(_absolute(self._place))
        return await worktrees.collect(self._store, place, idle_days=idle_days, dry_run=dry_run)

    async def signal(
        self, run: str, name: str, value: Any = None, *, by: str | None = None
    ) -> list[str]:
        """Give a run the signal that some of its nodes wait for; durable on return.

        Return their calls. A signal for which no node waits is refused.
        """
        found = await waiting_for(self._store, run, name)
        for call_id in found:
            await self._runtime.answer(run, call_id, value, by=by)
        return found

    async def _started(self, run: str, state: RunState) -> RunStarted:
        (event,) = await self._store.read_events(run, after=state.started - 1, limit=1)
        fact = event.fact()
        assert isinstance(fact, RunStarted)
        return fact


def _model(workflow: Workflow | Builder | str | Path) -> Workflow:
    if isinstance(workflow, Builder):
        return workflow.build()
    if isinstance(workflow, str | Path):
        return load(workflow)
    return workflow


def _absolute(path: str | Path) -> str:
    return str(Path(path).resolve())
