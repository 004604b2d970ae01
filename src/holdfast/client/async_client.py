"""The client for async code.

Every change carries a key, so that a request whose answer was lost is made again without harm. A
stream that breaks off goes on after the last event that it brought.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Mapping
from types import TracebackType
from typing import Any

import httpx2

from holdfast.client.answers import Event, RequestRefused, Result, Session, Wait

TRIES = 4
PAGE = 200


class AsyncClient:
    """Talks to one server with one token."""

    def __init__(
        self, url: str, token: str, *, timeout: float = 30.0, transport: Any = None
    ) -> None:
        self._timeout = timeout
        self._http = httpx2.AsyncClient(
            base_url=f"{url.rstrip('/')}/api/v1",
            headers={"authorization": f"Bearer {token}"},
            timeout=timeout,
            transport=transport,
        )

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Let go of connections."""
        await self._http.aclose()

    # -- sessions

    async def create(
        self,
        message: str | None = None,
        *,
        agent: str | None = None,
        labels: Mapping[str, str] | None = None,
        inputs: Mapping[str, Any] | None = None,
        wait: float = 0,
        key: str | None = None,
    ) -> tuple[Session, Result | None]:
        """Create a session, and send it a first message; the same key makes the same session."""
        body = {
            "agent": agent,
            "labels": dict(labels or {}),
            "message": message,
            "inputs": dict(inputs or {}),
            "wait": wait,
        }
        found = await self._post("/sessions", body, key, wait)
        result = found["result"]
        return Session.read(found["session"]), None if result is None else Result.read(result)

    async def session(self, session: str) -> Session:
        """Return how a session stands."""
        return Session.read((await self._get(f"/sessions/{session}"))["session"])

    async def sessions(self, **where: str) -> AsyncIterator[Session]:
        """Yield sessions, newest first; `where` is as for `GET /sessions`."""
        async for row in self._rows("/sessions", "sessions", where):
            yield Session.read(row)

    async def send(
        self,
        session: str,
        message: str,
        *,
        inputs: Mapping[str, Any] | None = None,
        when_busy: str = "queue",
        wait: float = 0,
        key: str | None = None,
    ) -> Result:
        """Send a message; with `wait` its result is returned if it is there in time."""
        key = key or _new_key()
        body = {
            "message": message,
            "inputs": dict(inputs or {}),
            "when_busy": when_busy,
            "wait": wait,
        }
        found = await self._post(f"/sessions/{session}/messages", body, key, wait)
        return Result.read(found, key)

    async def result(self, session: str, key: str) -> Result:
        """Return what came of the message with a key."""
        return Result.read(await self._get(f"/sessions/{session}/messages/{key}/result"), key)

    async def resume(self, session: str, *, wait: float = 0, force: bool = False) -> Result:
        """Go on with a session."""
        body = {"wait": wait, "force": force}
        return Result.read(await self._post(f"/sessions/{session}/resume", body, None, wait))

    async def stop(self, session: str) -> Result:
        """End a session."""
        return Result.read(await self._post(f"/sessions/{session}/stop", None))

    async def fork(
        self,
        session: str,
        *,
        head: str | None = None,
        step: int | None = None,
        model: str | None = None,
        key: str | None = None,
    ) -> Session:
        """Create a session that goes on from a head of another, or from before a step of it."""
        body = {"head": head, "step": step, "model": model}
        return Session.read((await self._post(f"/sessions/{session}/forks", body, key))["session"])

    async def compact(self, session: str, *strategies: str, key: str | None = None) -> Any:
        """Shorten what the model is sent; return what was done, or None."""
        body = {"strategies": list(strategies)}
        return (await self._post(f"/sessions/{session}/compact", body, key))["compaction"]

    # -- people

    async def pending(self, **where: str) -> AsyncIterator[Wait]:
        """Yield calls that wait for someone, longest wait first."""
        async for row in self._rows("/pending", "pending", where):
            yield Wait.read(row)

    async def answer(self, session: str, call: str, value: Any) -> None:
        """Answer a question."""
        await self._post(f"/sessions/{session}/calls/{call}/answer", {"value": value})

    async def approve(
        self, session: str, call: str, *, arguments: Mapping[str, Any] | None = None
    ) -> None:
        """Approve a call as it stands now, or with edited arguments."""
        path = f"/sessions/{session}/calls/{call}"
        shown = await self._get(f"{path}/wait")
        body = {"approve": True, "wait": shown["wait"], "digest": shown["digest"]}
        if arguments is not None:
            body["arguments"] = dict(arguments)
        await self._post(f"{path}/answer", body)

    async def deny(self, session: str, call: str, reason: str) -> None:
        """Deny a call."""
        await self._post(f"/sessions/{session}/calls/{call}/answer", {"deny": reason})

    # -- history

    async def events(self, session: str, *, after: int = 0) -> AsyncIterator[Event]:
        """Yield the stored events after a position."""
        place: int | None = after
        while place is not None:
            params = {"after": str(place), "limit": str(PAGE)}
            page = await self._get(f"/sessions/{session}/events", params)
            for row in page["events"]:
                yield Event(row["seq"], row["type"], row["data"])
            place = page["next"]

    async def follow(self, session: str, *, after: int = 0) -> AsyncIterator[Event]:
        """Yield stored events after a position and then live ones, each once, until closed.

        Token deltas come between them, without a number. A lost connection is made again.
        """
        failures = 0
        while True:
            try:
                async for event in self._stream(session, after):
                    failures = 0
                    after = after if event.seq is None else event.seq
                    yield event
            except httpx2.TransportError:
                failures += 1
                await asyncio.sleep(min(5.0, 0.1 * 2**failures))

    async def payload(self, session: str, payload: str) -> bytes:
        """Return the bytes of a stored value."""
        answer = await self._http.get(f"/sessions/{session}/payloads/{payload}")
        _check(answer)
        return bytes(answer.content)

    async def verify(self, session: str) -> bool:
        """Tell whether the log of a session proves itself."""
        return bool((await self._get(f"/sessions/{session}/verify"))["ok"])

    # -- requests

    async def _stream(self, session: str, after: int) -> AsyncIterator[Event]:
        headers = {"last-event-id": str(after)} if after else {}
        path = f"/sessions/{session}/stream"
        # The server says that it is there every 15 s.
        async with self._http.stream("GET", path, headers=headers, timeout=60) as answer:
            if answer.status_code != 200:
                await answer.aread()
                _check(answer)
            fields: dict[str, str] = {}
            async for line in answer.aiter_lines():
                name, _, value = line.partition(": ")
                if line:
                    fields[name] = value
                    continue
                event = _event(fields)
                fields = {}
                if event is not None:
                    yield event

    async def _rows(
        self, path: str, name: str, where: Mapping[str, str]
    ) -> AsyncIterator[Mapping[str, Any]]:
        cursor: str | None = None
        while True:
            params = dict(where) | ({} if cursor is None else {"cursor": cursor})
            page = await self._get(path, params)
            for row in page[name]:
                yield row
            cursor = page["cursor"]
            if cursor is None:
                return

    async def _get(self, path: str, params: Mapping[str, str] | None = None) -> Any:
        return await self._tried("GET", path, params=dict(params or {}))

    async def _post(self, path: str, body: Any, key: str | None = None, wait: float = 0.0) -> Any:
        headers = {"idempotency-key": key or _new_key()}
        timeout = self._timeout + wait
        return await self._tried("POST", path, json=body, headers=headers, timeout=timeout)

    async def _tried(self, method: str, path: str, **options: Any) -> Any:
        """Make a request, again where no answer came: reads and keyed changes can be repeated."""
        for left in reversed(range(TRIES)):
            try:
                answer = await self._http.request(method, path, **options)
            except httpx2.TransportError:
                if not left:
                    raise
            else:
                if answer.status_code != 429 or not left:
                    _check(answer)
                    return answer.json()
            await asyncio.sleep(0.1 * 2 ** (TRIES - left))
        raise AssertionError("the last try returned or raised")


def _new_key() -> str:
    return f"c-{secrets.token_hex(12)}"


def _check(answer: httpx2.Response) -> None:
    if answer.status_code < 400:
        return
    try:
        problem = answer.json()
    except ValueError:
        problem = {}
    raise RequestRefused(answer.status_code, problem if isinstance(problem, dict) else {})


def _event(fields: Mapping[str, str]) -> Event | None:
    match fields.get("event"):
        case "event":
            row = json.loads(fields["data"])
            return Event(row["seq"], row["type"], row["data"])
        case "delta":
            row = json.loads(fields["data"])
            data = row["data"] if isinstance(row["data"], dict) else {"text": row["data"]}
            return Event(None, row["kind"], data)
    return None
