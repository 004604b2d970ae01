"""Routes that read the history of a session, in pages by position, and its stored values."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request
from starlette.responses import Response

from holdfast.core.errors import InvalidInput
from holdfast.core.ids import check_content_id
from holdfast.runtime.replay import replay_session
from holdfast.server.forms import view_document
from holdfast.server.problems import Denied, JsonDocument
from holdfast.server.requests import After, Caller, Limit, Reader, SessionId
from holdfast.stores.verify import verify
from holdfast.views.divergence import divergence
from holdfast.views.documents import (
    Document,
    context_document,
    diff_document,
    edge_document,
    event_document,
    head_document,
    tree_document,
    variables_document,
    verify_document,
)

router = APIRouter(tags=["history"])

_RANGE = re.compile(r"bytes=(\d{0,15})-(\d{0,15})", re.ASCII)


@router.get("/sessions/{session_id}/events")
async def list_events(
    asked: Reader,
    session_id: SessionId,
    after: After = 0,
    before: Annotated[int | None, Query(ge=0, le=2**53)] = None,
    limit: Limit = 100,
    reverse: bool = False,
    type: Annotated[list[str] | None, Query(description="Only events of these types.")] = None,
) -> JsonDocument:
    """Return events as stored, between two positions."""
    events = await asked.runtime.events(
        session_id, after=after, before=before, limit=limit, reverse=reverse, types=type
    )
    last = events[-1].seq if len(events) == limit else None
    return JsonDocument({"events": [event_document(item) for item in events], "next": last})


@dataclass(frozen=True, slots=True)
class History:
    """A history that is read in pages by position: its name, what it holds, and how it is read."""

    name: str
    about: str
    read: Callable[[Caller, str, int, int], Awaitable[Sequence[Any]]]
    form: Callable[[Any], Document] = view_document


def _read(name: str) -> Callable[[Caller, str, int, int], Awaitable[Sequence[Any]]]:
    """Return the read of a history that the runtime has under the same name."""

    async def read(asked: Caller, session_id: str, after: int, limit: int) -> Sequence[Any]:
        found: Sequence[Any] = await getattr(asked.runtime, name)(
            session_id, after=after, limit=limit
        )
        return found

    return read


async def _heads(asked: Caller, session_id: str, after: int, limit: int) -> Sequence[Any]:
    current = (await asked.runtime.state(session_id)).head
    found = await asked.runtime.heads(session_id, after=after, limit=limit)
    return [(head, head.id == current) for head in found]


HISTORIES = (
    History("messages", "messages; those that a fork inherited come first", _read("messages")),
    History("turns", "turns that began", _read("turns")),
    History("steps", "steps that began", _read("steps")),
    History("evals", "evaluated cells", _read("evals")),
    History("leaves", "model calls that code made", _read("leaves")),
    History("calls", "calls that were requested", _read("calls")),
    History("edges", "lineage edges", _read("edges"), edge_document),
    History("heads", "heads", _heads, lambda item: head_document(item[0], current=item[1])),
)


def _add(history: History) -> None:
    """Add the route of a history; `after` of a page leads to the next one, null is the end."""

    async def read_page(
        asked: Reader, session_id: SessionId, after: After = 0, limit: Limit = 100
    ) -> JsonDocument:
        found = await history.read(asked, session_id, after, limit)
        rows = [history.form(item) for item in found]
        full = len(found) >= limit
        return JsonDocument({history.name: rows, "after": rows[-1]["seq"] if full else None})

    router.add_api_route(
        f"/sessions/{{session_id}}/{history.name}",
        read_page,
        methods=["GET"],
        name=f"list_{history.name}",
        description=f"Return {history.about}, after a position.",
    )


for _history in HISTORIES:
    _add(_history)


@router.get("/sessions/{session_id}/tree")
async def show_tree(asked: Reader, session_id: SessionId) -> JsonDocument:
    """Return the family of a session: parents, children and forks, with their cost."""
    await asked.runtime.state(session_id)
    return JsonDocument(tree_document(await asked.runtime.tree(session_id)))


@router.get("/sessions/{session_id}/variables")
async def show_variables(asked: Reader, session_id: SessionId) -> JsonDocument:
    """Return the namespace at the last checkpoint; nothing is run or loaded."""
    return JsonDocument(variables_document(await asked.runtime.variables(session_id)))


@router.get("/sessions/{session_id}/context")
async def show_context(asked: Reader, session_id: SessionId) -> JsonDocument:
    """Return what the model would be sent now, and why each part is in or out."""
    return JsonDocument(context_document(await asked.runtime.context(session_id)))


@router.get("/sessions/{session_id}/audit")
async def list_audit(
    asked: Reader, session_id: SessionId, after: After = 0, limit: Limit = 100
) -> JsonDocument:
    """Return what the audit has of the session's model calls."""
    rows = await asked.runtime.store.list_audit(session_id, after=after, limit=limit)
    return JsonDocument({"audit": [view_document(row) for row in rows]})


@router.get("/sessions/{session_id}/verify")
async def verify_session(asked: Reader, session_id: SessionId) -> JsonDocument:
    """Prove the session from its first event to its last."""
    return JsonDocument(verify_document([await verify(asked.runtime.store, session_id)]))


@router.get("/sessions/{session_id}/diff/{other}")
async def compare_sessions(asked: Reader, session_id: SessionId, other: str) -> JsonDocument:
    """Return where the histories of two sessions part."""
    found = await divergence(asked.runtime.store, session_id, other)
    return JsonDocument(diff_document(found))


@router.get("/sessions/{session_id}/replay")
async def replay(asked: Reader, session_id: SessionId) -> JsonDocument:
    """Execute the session again from its log alone; nothing is asked or dispatched."""
    report = await replay_session(asked.runtime.store, session_id)
    found = report.difference
    return JsonDocument(
        {
            "session": report.session,
            "turns": report.turns,
            "steps": report.steps,
            "cells": report.cells,
            "cut": report.cut,
            "difference": None
            if found is None
            else {"kind": found.kind, "turn": found.turn, "seq": found.seq},
        }
    )


@router.head("/sessions/{session_id}/payloads/{payload_id}", include_in_schema=False)
@router.get("/sessions/{session_id}/payloads/{payload_id}")
async def read_payload(
    asked: Reader,
    request: Request,
    session_id: SessionId,
    payload_id: str,
    range: Annotated[str | None, Header(description="One range of bytes.")] = None,
) -> Response:
    """Return the stored bytes of a value that the session refers to; one range may be asked for."""
    check_content_id(payload_id)
    data = await asked.runtime.payload(session_id, payload_id)
    most = asked.serving.limits.payload_bytes
    begin, end, status = 0, len(data), 200
    headers = {
        "accept-ranges": "bytes",
        "etag": f'"{payload_id}"',
        "content-disposition": f'attachment; filename="{payload_id.replace(":", "-")}"',
    }
    if range is not None:
        begin, end = _part(range, len(data))
        status = 206
        headers["content-range"] = f"bytes {begin}-{end - 1}/{len(data)}"
    if end - begin > most and request.method == "GET":
        raise Denied(
            413,
            "too_large",
            f"the value has {len(data)} bytes, at most {most} are sent at once; ask for a range",
        )
    headers["content-length"] = str(end - begin)
    body = data[begin:end] if request.method == "GET" else b""
    return Response(body, status, headers, media_type="application/octet-stream")


def _part(text: str, size: int) -> tuple[int, int]:
    """Return the bytes that a Range header means; only one range is understood."""
    match = _RANGE.fullmatch(text.strip())
    if match is None or match.group() == "bytes=-":
        raise InvalidInput(f"{text[:80]!r} is not a valid range; write bytes=FIRST-LAST")
    first, last = match.groups()
    if not first:
        begin, end = max(0, size - int(last)), size
    else:
        begin = int(first)
        end = min(size, int(last) + 1) if last else size
    if begin >= end:
        raise Denied(416, "range", f"the value has {size} bytes; the range is not in it")
    return begin, end
