"""Routes that list and change sessions: create, send, resume, stop, fork, attach, compact."""

from __future__ import annotations

import secrets
from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field

from holdfast.core.errors import InvalidInput, SessionNotFound
from holdfast.core.state import State
from holdfast.runtime import results
from holdfast.runtime.results import Pending, Stopped
from holdfast.runtime.runtime import Runtime
from holdfast.server.forms import view_document
from holdfast.server.problems import JsonDocument
from holdfast.server.requests import Actor, Admin, Caller, Limit, Reader, SessionId
from holdfast.server.session_pages import limits_of
from holdfast.stores.port import SessionFilter
from holdfast.views.costs import cost_of
from holdfast.views.documents import (
    Document,
    cost_document,
    result_document,
    session_document,
)

router = APIRouter(tags=["sessions"])

Text = Annotated[str, Field(min_length=1, max_length=4 << 20)]
Wait = Annotated[float, Field(ge=0, le=600, description="Seconds to wait for the result; 0: none")]


class Body(BaseModel):
    """A request whose every field is known."""

    model_config = ConfigDict(extra="forbid")


class NewSession(Body):
    """A session to create, and the first message to it."""

    agent: str | None = None
    labels: dict[str, str] = {}
    message: Text | None = None
    inputs: dict[str, Any] = {}
    wait: Wait = 0


class NewMessage(Body):
    """A message to a session."""

    message: Text
    inputs: dict[str, Any] = {}
    when_busy: Literal["error", "queue", "steer", "interrupt"] = "queue"
    wait: Wait = 0


class Resumption(Body):
    """How to go on with a session."""

    force: bool = False
    retry: bool = False
    takeover: bool = False
    wait: Wait = 0


class NewFork(Body):
    """A fork to make; without a head or a step it goes on from the current head."""

    head: str | None = None
    step: Annotated[int | None, Field(ge=1, le=2**53)] = None
    model: str | None = None


class Attachment(Body):
    """A session of a registered agent that goes on from a head of another, and its message."""

    agent: str
    head: str | None = None
    message: Text | None = None
    inputs: dict[str, Any] = {}
    wait: Wait = 0


class NewLimits(Body):
    """Limits of a session from its next turn on; what is left out stays as it is."""

    max_usd: Annotated[str | None, Field(max_length=40)] = None
    max_tokens: Annotated[int | None, Field(ge=0, le=2**53)] = None
    max_steps: Annotated[int | None, Field(ge=1, le=2**31)] = None
    max_seconds: Annotated[int | None, Field(ge=0, le=2**31)] = None


class Compacting(Body):
    """How to shorten the transcript; without strategies those of the settings are used."""

    strategies: list[Literal["evict", "summary", "window"]] = []


@router.get("/sessions")
async def list_sessions(
    asked: Reader,
    status: str | None = None,
    kind: str | None = None,
    agent: str | None = None,
    name: str | None = None,
    parent: str | None = None,
    label: Annotated[str | None, Query(description="KEY=VALUE")] = None,
    waiting: bool | None = None,
    limit: Limit = 100,
    cursor: str | None = None,
) -> JsonDocument:
    """Return one page of sessions, newest first."""
    where = SessionFilter(
        status=status,
        kind=kind,
        agent=agent,
        name=name,
        parent=parent,
        label=_pair(label),
        waiting=waiting,
    )
    page = await asked.runtime.sessions(where, limit=limit, cursor=cursor)
    rows = [session_document(info) for info in page.sessions]
    return JsonDocument({"sessions": rows, "cursor": page.cursor})


def _pair(text: str | None) -> tuple[str, str] | None:
    if text is None:
        return None
    key, equals, value = text.partition("=")
    if not equals:
        raise InvalidInput(f"label {text!r} is not a valid label; write KEY=VALUE")
    return key, value


@router.post("/sessions", status_code=201)
async def create_session(asked: Actor, body: NewSession) -> JsonDocument:
    """Create a session of a registered agent, and send it a first message where one is given.

    With an idempotency key the id follows from it, so that repeating the request finds the session.
    """
    session_id = asked.new_id("session")
    if session_id is None:
        session = await asked.runtime.start(agent=body.agent, labels=body.labels)
        session_id = session.id
    else:
        await asked.runtime.session(session_id, agent=body.agent, create=True, labels=body.labels)
    result = None
    if body.message is not None:
        key = "first" if asked.key else f"message-{secrets.token_hex(8)}"
        message = NewMessage(message=body.message, inputs=body.inputs, wait=body.wait)
        result = await _sent(asked, session_id, message, key)
    document = await _session(asked.runtime, session_id) | {"result": result}
    return JsonDocument(document, status_code=201)


@router.get("/sessions/{session_id}")
async def show_session(asked: Reader, session_id: SessionId) -> JsonDocument:
    """Return how a session stands, with what it has cost."""
    return JsonDocument(await _session(asked.runtime, session_id))


@router.post("/sessions/{session_id}/messages", status_code=202)
async def send_message(asked: Actor, session_id: SessionId, body: NewMessage) -> JsonDocument:
    """Send a message; it is durable on return. With `wait` the result is returned if it is in time.

    The idempotency key is the key of the message: it is worked once, and its result read by it.
    """
    key = asked.key or f"message-{secrets.token_hex(8)}"
    document = await _sent(asked, session_id, body, key)
    settled = document["status"] not in ("pending", "queued")
    return JsonDocument(document, status_code=200 if settled else 202)


@router.get("/sessions/{session_id}/messages/{key}/result")
async def read_result(asked: Reader, session_id: SessionId, key: str) -> JsonDocument:
    """Return what came of the message with a key."""
    return JsonDocument(result_document(await asked.runtime.result(session_id, key)))


@router.post("/sessions/{session_id}/resume")
async def resume_session(asked: Actor, session_id: SessionId, body: Resumption) -> JsonDocument:
    """Go on with an interrupted turn and with queued messages."""
    runtime = asked.runtime
    state = await runtime.state(session_id)
    if not body.wait and not (body.force or body.retry or body.takeover):
        asked.hub.go_on(runtime, session_id)
        return JsonDocument(_so_far(state), status_code=202)

    async def work() -> Document:
        if body.retry:
            result = await runtime.retry(session_id, takeover=body.takeover)
        else:
            result = await runtime.resume(session_id, force=body.force, takeover=body.takeover)
        return _so_far(await runtime.state(session_id)) if result is None else _result(result)

    return JsonDocument(await asked.hub.once(asked.repeat("resume", session_id), work))


@router.post("/sessions/{session_id}/stop")
async def stop_session(asked: Actor, session_id: SessionId) -> JsonDocument:
    """Ask a session to end; asking again is harmless."""
    result = await asked.runtime.stop(session_id)
    if result is None:
        return JsonDocument(_so_far(await asked.runtime.state(session_id)), status_code=202)
    return JsonDocument(_result(result))


@router.post("/sessions/{session_id}/forks", status_code=201)
async def fork_session(asked: Actor, session_id: SessionId, body: NewFork) -> JsonDocument:
    """Create a session that goes on from a head of this one; what follows the head is not in it."""
    new_id = await _forked(asked, session_id, "fork", body.head, body.step, body.model, None)
    return JsonDocument(await _session(asked.runtime, new_id), status_code=201)


@router.post("/sessions/{session_id}/attachments", status_code=201)
async def attach(asked: Actor, session_id: SessionId, body: Attachment) -> JsonDocument:
    """Create a session of another agent that goes on from a head of this one, and send to it."""
    new_id = await _forked(asked, session_id, "attach", body.head, None, None, body.agent)
    result = None
    if body.message is not None:
        key = "first" if asked.key else f"message-{secrets.token_hex(8)}"
        message = NewMessage(message=body.message, inputs=body.inputs, wait=body.wait)
        result = await _sent(asked, new_id, message, key)
    document = await _session(asked.runtime, new_id) | {"result": result}
    return JsonDocument(document, status_code=201)


async def _forked(
    asked: Caller,
    session_id: str,
    purpose: str,
    head: str | None,
    step: int | None,
    model: str | None,
    agent: str | None,
) -> str:
    """Make a fork, once for a key; return its id."""
    runtime = asked.runtime
    new_id = asked.new_id(f"{purpose}:{session_id}")
    if new_id is not None and await _exists(runtime, new_id):
        return new_id
    fork = await runtime.fork(
        session_id, head, step=step, model=model, agent=agent, session_id=new_id
    )
    return fork.id


async def _exists(runtime: Runtime, session_id: str) -> bool:
    try:
        await runtime.store.session_info(session_id)
    except SessionNotFound:
        return False
    return True


@router.get("/sessions/{session_id}/budget")
async def show_budget(asked: Reader, session_id: SessionId) -> JsonDocument:
    """Return the limits of a session, what it used, what its children used, what is set aside."""
    state = await asked.runtime.state(session_id)
    return JsonDocument(
        {
            "session": session_id,
            "limits": await limits_of(asked.runtime.store, state),
            "own": cost_document(cost_of(state)),
            "delegated": _plain(state.delegated),
            "total": _plain(state.total),
            "reserved": {key: _plain(item) for key, item in state.reserved.items()},
        }
    )


@router.post("/sessions/{session_id}/budget")
async def set_budget(asked: Admin, session_id: SessionId, body: NewLimits) -> JsonDocument:
    """Change the limits of a session; the log says who did it."""

    async def work() -> Document:
        given: Any = body.model_dump(exclude_none=True)
        await asked.runtime.configure(session_id, by=asked.principal.name, **given)
        state = await asked.runtime.state(session_id)
        limits = await limits_of(asked.runtime.store, state)
        return {"session": session_id, "limits": limits}

    return JsonDocument(await asked.hub.once(asked.repeat("budget", session_id), work))


def _plain(record: Any) -> Document:
    found: Document = msgspec.to_builtins(record)
    return found


@router.post("/sessions/{session_id}/compact")
async def compact_session(asked: Actor, session_id: SessionId, body: Compacting) -> JsonDocument:
    """Shorten what the model is sent; the log keeps everything."""

    async def work() -> Document:
        done = await asked.runtime.compact(session_id, *body.strategies)
        return {"session": session_id, "compaction": None if done is None else view_document(done)}

    return JsonDocument(await asked.hub.once(asked.repeat("compact", session_id), work))


async def _sent(asked: Caller, session_id: str, body: NewMessage, key: str) -> Document:
    runtime = asked.runtime
    state = await runtime.state(session_id)
    if state.status == "stopped":
        return _result(Stopped(session=session_id, head=state.head))
    if not asked.hub.drives and body.when_busy != "error":
        await asked.hub.leave(runtime, session_id, body.message, body.inputs, body.when_busy, key)
        return _result(await asked.hub.result_within(runtime, session_id, key, body.wait))
    if body.wait or body.when_busy == "error":
        result = await runtime.send(
            session_id,
            body.message,
            inputs=body.inputs,
            when_busy=body.when_busy,
            key=key,
            timeout=body.wait or 600,
        )
        return _result(result)
    await asked.hub.leave(runtime, session_id, body.message, body.inputs, body.when_busy, key)
    return _result(await runtime.result(session_id, key))


def _result(result: Any) -> Document:
    return result_document(result)


def _so_far(state: State) -> Document:
    """Return the document of a session whose driver goes on."""
    return _result(Pending(key="", **results.so_far(state, state.turn_spend()))) | {"key": None}


async def _session(runtime: Runtime, session_id: str) -> Document:
    info = await runtime.store.session_info(session_id)
    state = await runtime.state(session_id)
    lease = await runtime.store.lease_of(session_id)
    live = lease is not None and lease.live
    return {
        "session": session_document(info),
        "cost": cost_document(cost_of(state)),
        "driver": {
            "live": live,
            "here": lease is not None and live and lease.owner == runtime.store.owner,
        },
        "calls": sorted(state.calls),
    }
