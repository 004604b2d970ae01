"""Runs that are rewound: what would run again, and the new run that leaves the old one as it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from holdfast.core.errors import Conflict, InvalidInput
from holdfast.core.facts import SessionStarted
from holdfast.core.ids import check_id, new_session_id
from holdfast.core.payloads import slot
from holdfast.core.run_facts import RunStarted
from holdfast.core.state import State
from holdfast.runtime import blueprint as blueprints
from holdfast.runtime.children import TASK_KEY
from holdfast.stores.port import InboxDraft, SessionStore
from holdfast.views.values import read_value
from holdfast.workflows.changes import changes_between
from holdfast.workflows.check import require_sound
from holdfast.workflows.graph import Graph
from holdfast.workflows.known import Known
from holdfast.workflows.launching import session_started
from holdfast.workflows.model import Workflow
from holdfast.workflows.reading import read_document
from holdfast.workflows.results import RunNotFound, launch_options, state_of
from holdfast.workflows.rewinding import Again, Target, read_target, runs_again

IRRELEVANT = frozenset({"next", "description", "publish", "retry", "timeout"})
"""Parts of a node that say nothing about its result."""


@dataclass(frozen=True, slots=True)
class RewindPlan:
    """What rewinding a run comes to."""

    state: State
    flow: Workflow
    target: Target | None
    changed: frozenset[str]
    again: list[Again]


async def rewind_plan(
    store: SessionStore, run: str, to: str | None, workflow: Workflow | None
) -> RewindPlan:
    """Return what would run again if a run were rewound."""
    state = await state_of(store, run)
    if state.run is None:
        raise RunNotFound(f"run {run!r} has not begun; there is nothing to rewind")
    old = await _stored(store, state)
    flow = workflow or old
    if to is None and workflow is None:
        raise InvalidInput("say what to rewind to: a node of the run, or a changed workflow")
    target = None if to is None else read_target(to, Graph(flow))
    changed = frozenset(
        change.where.removeprefix("node ")
        for change in changes_between(old, flow)
        if change.where.startswith("node ")
        and not (change.fields and set(change.fields) <= IRRELEVANT)
    )
    again = await runs_again(store, run, state.seq, target, changed)
    if target is not None and not any(one.node == target.node for one in again):
        raise InvalidInput(f"run {run!r} has not come to {to!r}, so it cannot be rewound to it")
    return RewindPlan(state, flow, target, changed, again)


async def _stored(store: SessionStore, state: State) -> Workflow:
    assert state.run is not None
    (event,) = await store.read_events(state.session, after=state.run.model - 1, limit=1)
    fact: Any = event.fact()
    document: Any = await read_value(store, state.session, fact.model)
    return read_document(document)


async def rewound(
    store: SessionStore,
    known: Known,
    run: str,
    to: str | None,
    *,
    workflow: Workflow | None,
    run_id: str | None,
    by: str | None,
    force: bool,
) -> str:
    """Create a run that takes over what another one finished; return its id."""
    plan = await rewind_plan(store, run, to, workflow)
    require_sound(plan.flow, known)
    _check_files(plan, force=force)
    state, new = plan.state, new_session_id() if run_id is None else check_id(run_id)
    assert state.run is not None
    (event,) = await store.read_events(run, after=state.run.started - 1, limit=1)
    began = event.fact()
    assert isinstance(began, RunStarted)
    options = await launch_options(store, run)
    options["rewind"] = {
        "run": run,
        "seq": state.seq,
        "changed": sorted(plan.changed),
        **({} if plan.target is None else plan.target.document()),
    }
    source = None if began.source is None else await read_value(store, run, began.source)
    place = state.run.workspace
    launch = {
        "workflow": plan.flow.document(),
        "source": plan.flow.source if workflow is not None else source,
        "place": began.place,
        "vars": {name: await read_value(store, run, one) for name, one in began.inputs.items()},
        "options": options,
        "by": by,
    }
    if place is not None and place.repository is not None:
        launch |= {"folder": place.repository, "base": place.base_commit}
    elif place is not None:
        launch["directory"] = place.path
    blueprint = await blueprints.load(store, run, state.configured)
    origin: dict[str, str | int] = {"session": run, "seq": state.seq, "digest": state.digest}
    started: SessionStarted
    started, parts = session_started(
        plan.flow, blueprint.settings, tenant=store.tenant, origin=origin
    )
    await store.create_session(new, started, payloads=parts)
    draft = InboxDraft(key=TASK_KEY, kind="message", content=slot({"launch": launch}, "input"))
    await store.put_inbox(new, draft)
    return new


def _check_files(plan: RewindPlan, *, force: bool) -> None:
    """Refuse to rewind past what was written to a directory, of which only one state is there."""
    run = plan.state.run
    assert run is not None
    if run.workspace is None or run.workspace.kind != "directory" or force:
        return
    wrote = [one.node for one in plan.again if one.node in plan.flow.nodes]
    wrote = [name for name in wrote if plan.flow.nodes[name].writes]
    if wrote:
        raise Conflict(
            f"{wrote[0]!r} wrote to the directory {run.workspace.path}, which keeps no earlier "
            "state; rewind with force=True to run on the files as they are, or use a worktree"
        )
