"""Sessions for MCP clients: list, show, search, send, pending and fork, with transcripts to read.

A client only names agents that are registered here. It acts for an agent, so it never decides an
approval; it answers questions only where the operator allows that.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Awaitable, Callable
from typing import Any

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations

from holdfast.core.errors import AnswerRefused, HoldfastError, NotFound
from holdfast.runtime.runtime import Runtime
from holdfast.stores.port import PendingFilter, SessionFilter
from holdfast.views.documents import (
    pending_document,
    result_document,
    session_document,
    show_document,
)
from holdfast.views.values import value_or_erased

INSTRUCTIONS = (
    "Durable agent sessions. `list_sessions`, then `show_session` or the resource "
    "holdfast://sessions/{id}/transcript; `send_message` works one message and returns its result."
)
BY = "mcp"
MOST = 200
SEARCHED_SESSIONS = 500
PAGE_MESSAGES = 500
READS = ToolAnnotations(read_only_hint=True)
ADDS = ToolAnnotations(read_only_hint=False, destructive_hint=False)
Application = Callable[[Any, Any, Any], Awaitable[None]]


def session_server(runtime: Runtime, *, answers: bool = False) -> MCPServer:
    """Return an MCP server over the sessions of a runtime."""
    server = MCPServer("holdfast", instructions=INSTRUCTIONS)
    _add_reads(server, runtime)
    _add_writes(server, runtime)
    if answers:
        _add_answers(server, runtime)
    return server


def _add_reads(server: MCPServer, runtime: Runtime) -> None:
    @server.tool(annotations=READS)
    async def list_sessions(
        status: str | None = None, limit: int = 50, cursor: str | None = None
    ) -> dict[str, Any]:
        """List sessions, newest first; `cursor` of one page gives the next."""
        async with _told():
            where = None if status is None else SessionFilter(status=status)
            page = await runtime.sessions(where, limit=_most(limit), cursor=cursor)
            return {
                "sessions": [session_document(info) for info in page.sessions],
                "cursor": page.cursor,
            }

    @server.tool(annotations=READS)
    async def show_session(session: str, turn: int | None = None) -> dict[str, Any]:
        """Show what happened in a session, or in one of its turns."""
        async with _told():
            return _plain(await _shown(runtime, session, turn))

    @server.tool(annotations=READS)
    async def search_sessions(text: str, limit: int = 20) -> dict[str, Any]:
        """Find messages that contain a text, in the newest sessions."""
        async with _told():
            return {"found": await _search(runtime, text, _most(limit))}

    @server.tool(annotations=READS)
    async def list_pending(session: str | None = None, limit: int = 50) -> dict[str, Any]:
        """List the calls that wait for a person or a client."""
        async with _told():
            where = None if session is None else PendingFilter(session=session)
            page = await runtime.pending(where, limit=_most(limit))
            store = runtime.store
            return _plain(
                {
                    "pending": [
                        pending_document(
                            wait, await value_or_erased(store, wait.session, wait.prompt)
                        )
                        for wait in page.waits
                    ]
                }
            )

    @server.resource("holdfast://sessions/{session}/transcript", mime_type="application/json")
    async def transcript(session: str) -> str:
        """The transcript of a session."""
        async with _told():
            return json.dumps(_plain(await _shown(runtime, session, None)), ensure_ascii=False)


def _add_writes(server: MCPServer, runtime: Runtime) -> None:
    @server.tool(annotations=ADDS)
    async def send_message(
        message: str,
        session: str | None = None,
        agent: str | None = None,
        key: str | None = None,
        timeout_seconds: float = 300.0,
    ) -> dict[str, Any]:
        """Send a message to a session, or to a new one of a registered agent.

        Sending again with the same `key` returns the same result. A turn that takes longer goes on.
        """
        async with _told():
            if session is None:
                session = (await runtime.start(agent=agent)).id
            else:
                await runtime.state(session)
            result = await runtime.send(session, message, key=key, timeout=timeout_seconds)
            return _plain(result_document(result))

    @server.tool(annotations=ADDS)
    async def fork_session(session: str, head: str | None = None) -> dict[str, Any]:
        """Create a session that goes on from a head of another, by default its current one."""
        async with _told():
            fork = await runtime.fork(session, head)
            return {"session": fork.id}


def _add_answers(server: MCPServer, runtime: Runtime) -> None:
    @server.tool(annotations=ToolAnnotations(destructive_hint=True))
    async def answer_call(session: str, call: str, value: Any) -> dict[str, Any]:
        """Answer a question that waits; approvals are for people and are refused."""
        async with _told():
            found = [item for item in await runtime.open_calls(session) if item.call_id == call]
            if not found:
                raise NotFound(f"session {session!r} has no open call {call!r}")
            pending = (await runtime.state(session)).calls[call]
            if pending.waits_for == "approval":
                raise AnswerRefused("an approval is for a person: use `holdfast answer`")
            await runtime.answer(session, call, value, by=BY)
            return {"session": session, "call": call, "answered": True}


class _told:
    """Turns errors of ours into what a client is told; others are not shown to it."""

    async def __aenter__(self) -> None:
        return None

    async def __aexit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, HoldfastError):
            raise ToolError(f"{error.code}: {error}") from error


def _most(limit: int) -> int:
    return max(1, min(limit, MOST))


def _plain(document: Any) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(json.dumps(document, default=str))
    return made


async def _shown(runtime: Runtime, session: str, turn: int | None) -> Any:
    info = await runtime.store.session_info(session)
    items = [item async for item in runtime.transcript(session, turn=turn)]
    return show_document(info, items)


async def _search(runtime: Runtime, text: str, limit: int) -> list[dict[str, Any]]:
    wanted = text.casefold()
    found: list[dict[str, Any]] = []
    page = await runtime.sessions(limit=SEARCHED_SESSIONS)
    for info in page.sessions:
        after = 0
        while views := await runtime.messages(info.id, after=after, limit=PAGE_MESSAGES):
            for view in views:
                said = view.message.text
                place = said.casefold().find(wanted)
                if place >= 0:
                    start = max(0, place - 80)
                    excerpt = said[start : place + len(text) + 80]
                    about = {"session": info.id, "role": view.message.role, "seq": view.seq}
                    found.append({**about, "excerpt": excerpt})
                    if len(found) == limit:
                        return found
            after = views[-1].seq
            if len(views) < PAGE_MESSAGES:
                break
    return found


def guarded(application: Application, token: str) -> Application:
    """Return an application that serves only requests with the token."""

    async def serve(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            given = dict(scope["headers"]).get(b"authorization", b"")
            if not hmac.compare_digest(given, f"Bearer {token}".encode()):
                headers = [(b"www-authenticate", b"Bearer"), (b"content-length", b"0")]
                await send({"type": "http.response.start", "status": 401, "headers": headers})
                await send({"type": "http.response.body", "body": b""})
                return
        await application(scope, receive, send)

    return serve
