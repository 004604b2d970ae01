"""Routes that read workflow runs: how they stand, what they published, what people were asked."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query

from holdfast.server.forms import view_document
from holdfast.server.problems import JsonDocument
from holdfast.server.requests import Limit, Reader, SessionId
from holdfast.views.values import value_form
from holdfast.workflows import artifacts
from holdfast.workflows.run_store import RunStore

router = APIRouter(tags=["runs"])

NodeId = Annotated[str, Path(max_length=200)]
Version = Annotated[int | None, Query(ge=0, le=2**31)]


@router.get("/runs")
async def list_runs(asked: Reader, limit: Limit = 100, cursor: str | None = None) -> JsonDocument:
    """Return one page of runs, newest first."""
    found, following = await RunStore(asked.runtime.store).page(limit=limit, cursor=cursor)
    return JsonDocument({"runs": [view_document(info) for info in found], "cursor": following})


@router.get("/runs/{session_id}")
async def show_run(asked: Reader, session_id: SessionId) -> JsonDocument:
    """Return what a run has come to so far, or what it waits for."""
    result = await RunStore(asked.runtime.store).result(session_id)
    document = view_document(result) | {
        "output": value_form(result.output),
        "next_to_act": result.next_to_act,
    }
    return JsonDocument(document)


@router.get("/runs/{session_id}/artifacts")
async def list_artifacts(
    asked: Reader, session_id: SessionId, node: str | None = None
) -> JsonDocument:
    """Return the versions that nodes of a run published, without what they hold."""
    found = await RunStore(asked.runtime.store).artifacts(session_id, node)
    return JsonDocument({"artifacts": [view_document(item) for item in found]})


@router.get("/runs/{session_id}/artifacts/{node}")
async def read_artifact(
    asked: Reader,
    session_id: SessionId,
    node: NodeId,
    version: Version = None,
    against: Version = None,
) -> JsonDocument:
    """Return what a version of an artifact holds, and how it differs from another one."""
    store = RunStore(asked.runtime.store)
    body = await store.artifact(session_id, node, version)
    document: dict[str, Any] = {"node": node, "version": version, "value": value_form(body)}
    if against is not None:
        old = await store.artifact(session_id, node, against)
        document["difference"] = artifacts.difference(old, body, f"@{against}", f"@{version}")
    return JsonDocument(document)


@router.get("/runs/{session_id}/interactions")
async def list_interactions(asked: Reader, session_id: SessionId) -> JsonDocument:
    """Return what people were asked in a run, and what they said."""
    found = await RunStore(asked.runtime.store).interactions(session_id)
    return JsonDocument({"interactions": [view_document(item) for item in found]})
