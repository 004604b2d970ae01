"""Routes for people: calls that wait for someone, and answers to them."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path
from pydantic import Field

from holdfast.server import waits
from holdfast.server.api_sessions import Body
from holdfast.server.problems import JsonDocument
from holdfast.server.requests import Answerer, Limit, Reader, SessionId
from holdfast.stores.port import PendingFilter

router = APIRouter(tags=["people"])

CallId = Annotated[str, Path(max_length=200)]


class Answer(Body):
    """One answer: a value, an approval, a denial, a failure, more time, or calling it off."""

    value: Any = None
    approve: bool = False
    arguments: dict[str, Any] | None = Field(None, description="Edited arguments of an approval.")
    digest: str | None = Field(None, description="Of the arguments shown; an approval needs it.")
    deny: str | None = Field(None, description="Why it is denied.")
    fail: str | None = Field(None, description="What went wrong, from whoever carries it out.")
    extend: str | None = Field(None, description="The new deadline, as ISO 8601.")
    cancel: bool = False
    wait: int | None = Field(None, ge=0, le=2**53, description="The wait that is answered.")


@router.get("/pending")
async def list_pending(
    asked: Reader,
    session: str | None = None,
    assignee: str | None = None,
    kind: str | None = None,
    agent: str | None = None,
    limit: Limit = 100,
    cursor: str | None = None,
) -> JsonDocument:
    """Return calls of all sessions that wait for someone, longest wait first."""
    where = PendingFilter(session=session, assignee=assignee, kind=kind, agent=agent)
    page = await asked.runtime.pending(where, limit=limit, cursor=cursor)
    store = asked.runtime.store
    rows = [await waits.pending_row(store, wait) for wait in page.waits]
    return JsonDocument({"pending": rows, "cursor": page.cursor})


@router.get("/sessions/{session_id}/calls/{call_id}/wait")
async def show_wait(asked: Reader, session_id: SessionId, call_id: CallId) -> JsonDocument:
    """Return a call that waits, with the schema of its answer and the digest of its arguments."""
    found = await waits.find_wait(asked.runtime, session_id, call_id)
    return JsonDocument(waits.wait_document(found))


@router.post("/sessions/{session_id}/calls/{call_id}/answer", status_code=202)
async def answer_call(
    asked: Answerer, session_id: SessionId, call_id: CallId, body: Answer
) -> JsonDocument:
    """Answer a call that waits; durable on return. The first answer counts, the same is harmless.

    `by` is whoever the token names.
    """
    given = body.model_dump(exclude_unset=True)
    by, drives = asked.principal.name, asked.hub.drives
    await waits.apply(asked.runtime, session_id, call_id, given, by, drives=drives)
    return JsonDocument({"session": session_id, "call": call_id, "stored": True}, status_code=202)
