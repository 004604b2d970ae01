"""Pages: the viewer, the inbox and the chat, rendered on the server; all work without a script."""

from __future__ import annotations

import json
import secrets
from typing import Any
from urllib.parse import urlencode

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from holdfast.core.errors import Conflict, HoldfastError, InvalidInput, NotFound
from holdfast.core.ids import check_key
from holdfast.server import waits
from holdfast.server.access import COOKIE, COOKIE_SECONDS, Access
from holdfast.server.fields import fields_of, value_of
from holdfast.server.page import API, NOBODY, form_of, page
from holdfast.server.rendering import rendered
from holdfast.server.requests import Actor, Answerer, Caller, Reader, SessionId
from holdfast.stores.port import SessionFilter
from holdfast.views.values import value_form

router = APIRouter()

PAGE_ROWS = 50


@router.get("/login")
async def sign_in(request: Request, code: str = "") -> Response:
    """Sign a browser in by its one-time link.

    The cookie is not sent along with a redirect that another site began, so a page leads on.
    """
    access: Access = request.app.state.access
    principal = access.use_link(code)
    if principal is None:
        return sign_in_page()
    response = HTMLResponse(
        "<!doctype html><html lang=en><meta charset=utf-8>"
        '<meta http-equiv=refresh content="0;url=/sessions"><title>Signed in · Holdfast</title>'
        '<p>Signed in. <a href="/sessions">Go on</a>'
    )
    response.set_cookie(
        COOKIE, access.cookie(principal), max_age=COOKIE_SECONDS, httponly=True, samesite="strict"
    )
    return response


def sign_in_page() -> Response:
    """Return the page for whoever is not signed in."""
    text = "Pages are shown to browsers that came by a one-time link; each link works once."
    commands = [("Open the viewer with a new link", "holdfast view")]
    values = {"title": "Sign in first", "text": text, "commands": commands, "shape": "shield"}
    return HTMLResponse(rendered("blank.html", **NOBODY, **values, detail=""), 401)


def error_page(
    request: Request, status: int, code: str, message: str, request_id: str | None
) -> Response:
    """Return the page of an error, which names the next command."""
    commands = [("List what there is", "holdfast sessions"), ("Check the store", "holdfast doctor")]
    title = "There is nothing here" if status == 404 else "That did not work"
    values = {"title": title, "text": message, "commands": commands, "shape": "unknown"}
    detail = f"{status} {code} · request {request_id}"
    return HTMLResponse(rendered("blank.html", **NOBODY, **values, detail=detail), status)


@router.get("/")
async def front_page() -> Response:
    """Lead to the list of sessions."""
    return RedirectResponse("/sessions", 303)


@router.get("/sessions")
async def sessions_page(
    asked: Reader,
    status: str = "",
    name: str = "",
    agent: str = "",
    label: str = "",
    cursor: str | None = None,
    kind: str | None = None,
) -> Response:
    """Show sessions, newest first; the filter is in the address."""
    key, equals, value = label.partition("=")
    where = SessionFilter(
        status=status or None,
        name=name or None,
        agent=agent or None,
        label=(key, value) if equals else None,
        kind=kind,
    )
    found = await asked.runtime.sessions(where, limit=PAGE_ROWS, cursor=cursor)
    if not (found.sessions or status or name or agent or label or kind):
        return await _empty(asked)
    given = {"status": status, "name": name, "agent": agent, "label": label}
    return await page(
        "sessions.html",
        asked,
        heading="Runs" if kind == "run" else "Sessions",
        nav="runs" if kind == "run" else "sessions",
        rows=found.sessions,
        cursor=found.cursor,
        query=urlencode(given | {"cursor": found.cursor or ""}),
        stream=f"{API}/stream",
        **given,
    )


@router.get("/runs")
async def runs_page(asked: Reader, status: str = "", cursor: str | None = None) -> Response:
    """Show workflow runs, newest first."""
    return await sessions_page(asked, status=status, cursor=cursor, kind="run")


async def _empty(asked: Caller) -> Response:
    commands = [
        ("Take the tour: no key, no network", "holdfast demo"),
        ("Ask something", 'holdfast run "What is to be done?" --model PROVIDER:MODEL'),
        ("See what this machine can do", "holdfast doctor"),
    ]
    return await page(
        "blank.html",
        asked,
        nav="sessions",
        title="No sessions in this store yet",
        text="Sessions appear here as soon as something is written, from any process.",
        commands=commands,
        shape="layers",
        detail="",
    )


@router.post("/s/{session_id}/send")
async def send_form(asked: Actor, request: Request, session_id: SessionId) -> Response:
    """Send the message of a form."""
    form = await form_of(request)
    key = check_key(form.get("key") or secrets.token_hex(8), "key of a message")
    text = form.get("message", "")
    if not text.strip():
        raise InvalidInput("the message is empty; say what is to be done")
    await asked.runtime.state(session_id)
    await asked.hub.leave(asked.runtime, session_id, text, {}, "queue", key)
    return RedirectResponse(f"/s/{session_id}", 303)


@router.post("/s/{session_id}/resume")
async def resume_form(asked: Actor, session_id: SessionId) -> Response:
    """Go on with a session."""
    await asked.runtime.state(session_id)
    asked.hub.go_on(asked.runtime, session_id)
    return RedirectResponse(f"/s/{session_id}", 303)


@router.post("/s/{session_id}/stop")
async def stop_form(asked: Actor, session_id: SessionId) -> Response:
    """End a session."""
    await asked.runtime.stop(session_id)
    return RedirectResponse(f"/s/{session_id}", 303)


@router.get("/inbox")
async def inbox_page(asked: Reader, note: str = "") -> Response:
    """Show everything that waits for someone."""
    return await _inbox(asked, None, "")


@router.get("/inbox/{session_id}/{call_id}")
async def wait_page(asked: Reader, session_id: SessionId, call_id: str) -> Response:
    """Show one call that waits, with the form of its answer."""
    try:
        wait = await waits.find_wait(asked.runtime, session_id, call_id)
    except NotFound:
        return await _inbox(asked, None, "Nothing waits there any more: it was answered or ended.")
    return await _inbox(asked, wait, "")


@router.post("/inbox/{session_id}/{call_id}")
async def answer_form(
    asked: Answerer, request: Request, session_id: SessionId, call_id: str
) -> Response:
    """Take the answer of a form; a second or late one is told and changes nothing."""
    form = await form_of(request)
    wait: waits.Wait | None = None
    try:
        wait = await waits.find_wait(asked.runtime, session_id, call_id)
        given = _given(form, wait) | {"wait": int(form.get("wait", "0"))}
        by, drives = asked.principal.name, asked.hub.drives
        await waits.apply(asked.runtime, session_id, call_id, given, by, drives=drives)
    except (NotFound, Conflict) as error:
        return await _inbox(asked, None, f"Already answered; yours changed nothing. {error}")
    except HoldfastError as error:
        return await _inbox(asked, wait, f"Not stored. {error}")
    return RedirectResponse(f"/s/{session_id}", 303)


def _given(form: dict[str, str], wait: waits.Wait) -> dict[str, Any]:
    match form.get("do"):
        case "approve":
            return {"approve": True, "digest": form.get("digest")}
        case "edit":
            try:
                edited = json.loads(form.get("arguments", ""))
            except ValueError as error:
                raise InvalidInput(f"the edited arguments are not valid JSON: {error}") from error
            return {"approve": True, "digest": form.get("digest"), "arguments": edited}
        case "deny":
            return {"deny": form.get("reason") or "denied"}
    return {"value": value_of(wait.schema, form)}


def _editable(arguments: Any) -> Any:
    """Return arguments as they are edited: by name, where they can be."""
    try:
        return waits.by_name(value_form(arguments))
    except InvalidInput:
        return arguments


async def _inbox(asked: Caller, wait: waits.Wait | None, note: str) -> Response:
    found = await asked.runtime.pending(limit=200)
    store = asked.runtime.store
    rows = [await waits.pending_row(store, item) for item in found.waits]
    approval = wait is not None and wait.suspended.kind == "approval"
    schema = None if wait is None else value_form(wait.schema)
    return await page(
        "inbox.html",
        asked,
        nav="inbox",
        rows=rows,
        wait=wait,
        note=note,
        approval=approval,
        editable=None if wait is None else _editable(wait.arguments),
        fields=[] if wait is None or approval else fields_of(schema),
    )


@router.get("/chat")
async def chat_page(asked: Reader) -> Response:
    """Offer to talk to an agent."""
    agents = [name for name, agent in asked.runtime.agents.items() if not agent.external]
    key = secrets.token_hex(8)
    return await page("chat.html", asked, nav="chat", agents=agents, key=key)


@router.post("/chat")
async def chat_form(asked: Actor, request: Request) -> Response:
    """Start a session with a first message."""
    form = await form_of(request)
    session = await asked.runtime.start(agent=form.get("agent") or None)
    text = form.get("message", "")
    if text.strip():
        await asked.hub.leave(asked.runtime, session.id, text, {}, "queue", "first")
    return RedirectResponse(f"/s/{session.id}", 303)
