"""Results: what a run has come to, who has to act next, and one page of a store's runs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from holdfast.core.errors import NotFound, SessionNotFound
from holdfast.core.facts import CallSuspended
from holdfast.core.ids import friendly_name
from holdfast.core.run_facts import RunFailed, RunFinished, RunStarted
from holdfast.core.run_state import OPEN, PAUSED
from holdfast.core.state import State
from holdfast.stores.port import SessionFilter, SessionStore
from holdfast.views.values import read_value


class RunNotFound(NotFound):
    """No run has this id."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """What a run has come to, or what it waits for."""

    run: str
    status: str
    output: Any = None
    code: str | None = None
    error: str | None = None
    node: str | None = None
    waiting: tuple[str, ...] = ()
    until: str | None = None
    executions: int = 0
    signals: tuple[str, ...] = ()
    assignees: tuple[str, ...] = ()

    @property
    def next_to_act(self) -> str:
        """Return who has to act next."""
        if self.status == PAUSED:
            if self.signals and len(self.signals) == len(self.waiting):
                return f"whoever sends: {', '.join(self.signals)}"
            if self.waiting:
                named = ", ".join(self.assignees)
                return f"people: {named}" if named else "people"
            return "nobody: it goes on by itself" + (f" at {self.until}" if self.until else "")
        return {
            "running": "nobody: it is at work",
            "interrupted": "whoever resumes it",
            "failed_resumable": "whoever resumes it",
            "cancelled": "whoever resumes it",
        }.get(self.status, "nobody: it is over")


@dataclass(frozen=True, slots=True)
class RunInfo:
    """One run of a listing."""

    id: str
    name: str
    workflow: str
    status: str
    created_at: str
    updated_at: str


async def page_of(
    store: SessionStore,
    limit: int = 100,
    cursor: str | None = None,
    workflow: str | None = None,
) -> tuple[list[RunInfo], str | None]:
    """Return one page of a store's runs, newest first, and where the next page begins."""
    label = None if workflow is None else ("workflow", workflow)
    where = SessionFilter(kind="run", label=label)
    page = await store.list_sessions(where, limit=limit, cursor=cursor)
    found = []
    for info in page.sessions:
        state = await store.load_state(info.id)
        status = "created" if state.run is None else state.run.status
        if info.status == "interrupted" and status == "running":
            status = "interrupted"  # nobody drives it
        found.append(
            RunInfo(
                info.id,
                friendly_name(info.id),
                info.labels.get("workflow", ""),
                status,
                info.started_at,
                info.updated_at,
            )
        )
    return found, page.cursor


async def result_of(store: SessionStore, run: str) -> RunResult:
    """Return what a run has come to so far."""
    state = await state_of(store, run)
    found = state.run
    if found is None:
        return RunResult(run, "created")
    about: dict[str, Any] = {"executions": found.executions}
    if found.ended is not None and found.status not in OPEN:
        (event,) = await store.read_events(run, after=found.ended - 1, limit=1)
        fact = event.fact()
        if isinstance(fact, RunFinished) and fact.output is not None:
            about["output"] = await read_value(store, run, fact.output)
        elif isinstance(fact, RunFailed):
            told: Any = {}
            if fact.error is not None:
                told = await read_value(store, run, fact.error)
            about |= {"code": fact.code, "error": told.get("message"), "node": fact.node}
    if found.status == PAUSED:
        waiting = [call.call_id for call in state.calls.values() if call.stage == "suspended"]
        about |= {
            "waiting": tuple(waiting),
            "until": found.until,
            "signals": tuple([name async for name in _signals(store, state)]),
            "assignees": tuple(
                dict.fromkeys(call.assignee for call in state.calls.values() if call.assignee)
            ),
        }
    return RunResult(run, found.status, **about)


async def _signals(store: SessionStore, state: State) -> AsyncIterator[str]:
    """Yield the names of the signals that a run waits for."""
    for call in state.calls.values():
        if call.waits_for != "signal" or call.wait_seq is None:
            continue
        (event,) = await store.read_events(state.session, after=call.wait_seq - 1, limit=1)
        fact = event.fact()
        if isinstance(fact, CallSuspended) and fact.prompt is not None:
            yield str(await read_value(store, state.session, fact.prompt))


async def state_of(store: SessionStore, run: str) -> State:
    """Return the state of a session that is a run; refuse any other."""
    try:
        state = await store.load_state(run)
    except SessionNotFound as error:
        raise RunNotFound(f"there is no run {run!r}; `holdfast runs` lists those") from error
    if state.kind != "run":
        raise RunNotFound(f"session {run!r} is not a workflow run; `holdfast runs` lists those")
    return state


async def launch_options(store: SessionStore, run: str) -> dict[str, Any]:
    """Return the options that a run was launched with."""
    state = (await state_of(store, run)).run
    if state is None:
        return {}
    (event,) = await store.read_events(run, after=state.started - 1, limit=1)
    fact = event.fact()
    assert isinstance(fact, RunStarted)
    found: Any = {} if fact.options is None else await read_value(store, run, fact.options)
    return dict(found)
