"""The page of a workflow run: graph, executions, one node, its artifacts and their differences."""

from __future__ import annotations

import json
from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.responses import HTMLResponse, Response

from holdfast.server.comparison import difference
from holdfast.server.page import API, page
from holdfast.server.requests import Caller, Reader, SessionId
from holdfast.server.run_pages import MOST_EXECUTIONS, Execution, drawing, progress
from holdfast.views.values import value_form, value_or_erased
from holdfast.workflows import artifacts
from holdfast.workflows.interactions import Interaction
from holdfast.workflows.report import report
from holdfast.workflows.results import state_of
from holdfast.workflows.run_store import RunStore

router = APIRouter()

Version = Annotated[int | None, Query(ge=0, le=2**31)]


@router.get("/r/{session_id}")
async def run_page(
    asked: Reader,
    session_id: SessionId,
    node: Annotated[str, Query(max_length=200)] = "",
    execution: Version = None,
    version: Version = None,
    against: Version = None,
) -> Response:
    """Show a run: the graph with its live state, and one node."""
    store = asked.runtime.store
    runs = RunStore(store)
    state = await state_of(store, session_id)
    done = await progress(store, session_id, state)
    run = state.run
    workflow = None if run is None else await runs.workflow(session_id)
    chosen = node if workflow is not None and node in workflow.nodes else ""
    found = next((item for item in done.of(chosen) if item.number == execution), None)
    found = found or done.latest(chosen)
    asked_people = [item for item in await runs.interactions(session_id) if item.open]
    result = await runs.result(session_id)
    return await page(
        "run.html",
        asked,
        nav="runs",
        stream=f"{API}/sessions/{session_id}/stream?after={state.seq}",
        info=await store.session_info(session_id),
        result=result,
        output=result.output,
        total=state.total,
        driven_ms=0 if run is None else run.driven_ms,
        workspace=None if run is None else run.workspace,
        workflow_name="" if workflow is None else workflow.name,
        budget={} if workflow is None else workflow.budget,
        loops={} if workflow is None else workflow.loops,
        graph=None if workflow is None else drawing(workflow, done),
        done=done,
        executions=list(reversed(done.executions))[:MOST_EXECUTIONS],
        execution=found,
        chosen=chosen,
        node_about="" if workflow is None or not chosen else workflow.nodes[chosen].kind,
        open_questions=asked_people,
        question_text=await _question(asked, asked_people),
        **await _node_values(asked, session_id, found),
        **await _artifact_values(asked, session_id, chosen, version, against),
    )


async def _question(asked: Caller, found: list[Interaction]) -> str:
    if not found:
        return ""
    value = await value_or_erased(asked.runtime.store, found[0].session, found[0].question)
    form = value_form(value)
    return form if isinstance(form, str) else json.dumps(form, ensure_ascii=False)


async def _node_values(asked: Caller, run: str, item: Execution | None) -> dict[str, Any]:
    names = ("input", "output", "error")
    if item is None:
        return {f"node_{name}": None for name in names}
    store = asked.runtime.store
    return {
        f"node_{name}": await value_or_erased(store, run, getattr(item, name)) for name in names
    }


async def _artifact_values(
    asked: Caller, run: str, node: str, version: int | None, against: int | None
) -> dict[str, Any]:
    """Return the artifacts of a run, or of one node two versions and how they differ."""
    store = asked.runtime.store
    found = await artifacts.versions(store, run, node or None)
    values: dict[str, Any] = {
        "artifacts": found[-100:],
        "versions": found if node else [],
        "version": None,
        "against": None,
        "artifact": None,
        "changes": [],
    }
    if not node or not found:
        return values
    last = found[-1].version
    new = last if version is None else min(version, last)
    old = max(0, new - 1) if against is None else min(against, last)
    bodies = [
        await artifacts.body(store, run, await artifacts.find(store, run, node, number))
        for number in (old, new)
    ]
    texts = [_text(body) for body in bodies]
    return values | {
        "version": new,
        "against": old,
        "artifact": bodies[1],
        "changes": difference(*texts),
    }


def _text(body: Any) -> str:
    form = value_form(body)
    return form if isinstance(form, str) else json.dumps(form, indent=2, ensure_ascii=False)


@router.get("/r/{session_id}/report.html")
async def report_page(asked: Reader, session_id: SessionId) -> Response:
    """Return the report of a run as a page of its own."""
    await state_of(asked.runtime.store, session_id)
    made = await report(asked.runtime.store, session_id)
    return HTMLResponse(made.html())
