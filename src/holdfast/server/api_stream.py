"""Live streams as server-sent events: the log of a session, and hints about all sessions.

The id of a stored event is its number, so a browser that reconnects is sent what follows the last
one it has, once. Token deltas have no id: they are never repeated, and the stored message replaces
them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Annotated, Any

from fastapi import APIRouter, Header, Request
from starlette.responses import Response, StreamingResponse

from holdfast.core.errors import HoldfastError, InvalidInput
from holdfast.core.events import Event
from holdfast.server.problems import Denied
from holdfast.server.requests import After, Caller, Reader, Serving, SessionId
from holdfast.stores.port import Gap, Hint, Subscription, Transient
from holdfast.views.documents import event_document

router = APIRouter(tags=["live"])

HEARTBEAT_SECONDS = 15.0
RETRY_MS = 1000


class Streams:
    """How many streams each caller has open."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, str], int] = {}

    def enter(self, serving: Serving, who: tuple[str, str]) -> None:
        """Count one more stream; refuse it where there are too many."""
        mine = self._open.get(who, 0)
        limits = serving.limits
        if mine >= limits.streams or serving.metrics.streams >= limits.all_streams:
            raise Denied(429, "too_many_streams", "too many streams are open; close some")
        self._open[who] = mine + 1
        serving.metrics.streams += 1

    def leave(self, serving: Serving, who: tuple[str, str]) -> None:
        """Count one stream less."""
        serving.metrics.streams -= 1
        left = self._open[who] - 1
        if left:
            self._open[who] = left
        else:
            del self._open[who]


@router.get("/sessions/{session_id}/stream", response_class=Response)
async def stream_session(
    asked: Reader,
    request: Request,
    session_id: SessionId,
    after: After = 0,
    last_event_id: Annotated[str | None, Header()] = None,
) -> Response:
    """Follow a session: stored events after a position, then live ones and token deltas."""
    if last_event_id:
        if not last_event_id.isascii() or not last_event_id.isdecimal():
            raise InvalidInput("Last-Event-ID is not the number of an event")
        after = int(last_event_id[:16])
    await asked.runtime.store.load_state(session_id)
    return _response(request, asked, asked.runtime.subscribe(session_id, after=after))


@router.get("/stream", response_class=Response)
async def stream_hints(asked: Reader, request: Request) -> Response:
    """Follow all sessions by hints: which one has moved, and how far."""
    return _response(request, asked, asked.runtime.store.subscribe_all())


def _response(request: Request, asked: Caller, subscription: Subscription) -> Response:
    streams: Streams = request.app.state.streams
    streams.enter(asked.serving, _who(asked))
    return StreamingResponse(
        _lines(asked, streams, subscription),
        media_type="text/event-stream",
        headers={"x-accel-buffering": "no"},
    )


def _who(asked: Caller) -> tuple[str, str]:
    return asked.principal.tenant, asked.principal.name


async def _lines(
    asked: Caller, streams: Streams, subscription: Subscription
) -> AsyncIterator[bytes]:
    try:
        yield f"retry: {RETRY_MS}\n\n".encode()
        async with subscription, aclosing(_items(asked, subscription)) as items:
            async for item in items:
                yield item
    finally:
        streams.leave(asked.serving, _who(asked))


async def _items(asked: Caller, subscription: Subscription) -> AsyncGenerator[bytes, None]:
    closing = asyncio.create_task(asked.hub.closing.wait())
    upcoming: asyncio.Task[Any] | None = None
    try:
        while True:
            upcoming = upcoming or asyncio.ensure_future(anext(subscription))
            done, _ = await asyncio.wait(
                {upcoming, closing}, timeout=HEARTBEAT_SECONDS, return_when="FIRST_COMPLETED"
            )
            if closing in done:
                return
            if not done:
                yield b": alive\n\n"
                continue
            task, upcoming = upcoming, None
            try:
                item = task.result()
            except StopAsyncIteration:
                return
            except HoldfastError as error:
                yield _line("error", {"code": error.code, "message": str(error)})
                return
            asked.serving.metrics.events_sent += 1
            yield _item(item)
    finally:
        closing.cancel()
        if upcoming is not None:
            upcoming.cancel()


def _item(item: Event | Transient | Gap | Hint) -> bytes:
    match item:
        case Event():
            return _line("event", event_document(item), item.seq)
        case Transient():
            return _line("delta", {"kind": item.kind, "data": _plain(item.data)})
        case Gap():
            return _line("gap", {"last_seq": item.last_seq})
    return _line("hint", {"session": item.session, "seq": item.seq})


def _plain(data: Any) -> Any:
    try:
        json.dumps(data)
    except (TypeError, ValueError):
        return str(data)
    return data


def _line(name: str, data: Any, number: int | None = None) -> bytes:
    mark = "" if number is None else f"id: {number}\n"
    return f"{mark}event: {name}\ndata: {json.dumps(data)}\n\n".encode("ascii")
