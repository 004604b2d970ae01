"""The connection to one MCP server: opened when needed, again after it died, in its own thread.

A server over stdio is a process in its own process group, with a minimal environment; it ends with
the connection. What is lost with a connection in mid-call is said by `ConnectionLost`: whether the
call took effect is then for its effect class to decide.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import tempfile
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx2
import mcp_types as types
from mcp import Client, StdioServerParameters
from mcp.client.session import ElicitationFnT
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

from holdfast.errors import HoldfastError, InvalidInput

T = TypeVar("T")

RESTARTS = 5
RESTART_SECONDS = 60.0
SHOWN_CHARACTERS = 1000
CONNECT_SECONDS = 30.0
LOST_CODES = (types.CONNECTION_CLOSED, types.REQUEST_TIMEOUT)


class McpServerFailed(HoldfastError):
    """An MCP server cannot be started or reached."""


class ConnectionLost(Exception):
    """The connection ended, or the time was over, while a call was under way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a server is: a command to start, or a URL."""

    name: str
    stdio: StdioServerParameters | None = None
    url: str | None = None
    headers: dict[str, str] | None = None
    legacy: bool = False
    timeout_seconds: float = 60.0
    on_question: ElicitationFnT | None = None


class _Watched:
    """The stream from a server; it knows when it is at its end."""

    def __init__(self, stream: Any, ended: Callable[[], None]) -> None:
        self._stream = stream
        self._ended = ended

    async def receive(self) -> Any:
        try:
            return await self._stream.receive()
        except Exception:
            self._ended()
            raise

    def __aiter__(self) -> _Watched:
        return self

    async def __anext__(self) -> Any:
        try:
            return await self._stream.__anext__()
        except BaseException:
            self._ended()
            raise

    async def __aenter__(self) -> _Watched:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> Any:
        return await self._stream.__aexit__(*error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _Life:
    """One connection, from its opening to its end."""

    def __init__(self, place: Place) -> None:
        loop = asyncio.get_running_loop()
        self._place = place
        self.client: asyncio.Future[Client] = loop.create_future()
        self.ended = asyncio.Event()
        self._closing = asyncio.Event()
        self._errors: Any = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
        self.task = asyncio.ensure_future(self._run())

    async def close(self) -> None:
        self._closing.set()
        await asyncio.wait({self.task})

    async def _run(self) -> None:
        place = self._place
        try:
            client = Client(
                self._transport(),
                read_timeout_seconds=place.timeout_seconds,
                elicitation_callback=place.on_question,
                mode="legacy" if place.legacy else "auto",
            )
            async with client:
                self.client.set_result(client)
                await self._closing.wait()
        except (Exception, asyncio.CancelledError) as error:
            if not self.client.done():
                self.client.set_exception(self._failure(error))
        finally:
            self.ended.set()
            self._errors.close()

    @asynccontextmanager
    async def _transport(self) -> AsyncIterator[Any]:
        place = self._place
        if place.stdio is not None:
            async with stdio_client(place.stdio, errlog=self._errors) as (read, write):
                yield _Watched(read, self.ended.set), write
            return
        assert place.url is not None
        patience = httpx2.Timeout(CONNECT_SECONDS, read=place.timeout_seconds)
        async with httpx2.AsyncClient(headers=place.headers, timeout=patience) as http:
            async with streamable_http_client(place.url, http_client=http) as (read, write):
                yield _Watched(read, self.ended.set), write

    def _failure(self, error: BaseException) -> McpServerFailed:
        place = self._place
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        self._errors.seek(0)
        said = self._errors.read()[-SHOWN_CHARACTERS:].strip()
        where = place.url if place.stdio is None else place.stdio.command
        told = f"MCP server {place.name!r} ({where}) did not start: {type(error).__name__}: {error}"
        return McpServerFailed(f"{told}\n{said}" if said else told, server=place.name)


class Connection:
    """A server as its callers see it: they may be in any thread and in any event loop."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._guard = threading.Lock()
        self._opening: asyncio.Lock | None = None
        self._life: _Life | None = None
        self._starts: deque[float] = deque(maxlen=RESTARTS)

    async def run(self, work: Callable[[Client], Coroutine[Any, Any, T]]) -> T:
        """Do something with the connected client, from the caller's own event loop."""
        return await asyncio.wrap_future(self._submit(work))

    def wait(self, work: Callable[[Client], Coroutine[Any, Any, T]]) -> T:
        """Do something with the connected client, and block until it is done."""
        return self._submit(work).result()

    def close(self) -> None:
        """End the server's process or session, and the thread; closing twice does nothing."""
        with self._guard:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is None or thread is None:
            return
        asyncio.run_coroutine_threadsafe(self._end(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        atexit.unregister(self.close)

    def _submit(
        self, work: Callable[[Client], Coroutine[Any, Any, T]]
    ) -> concurrent.futures.Future[T]:
        with self._guard:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=_turn, args=(self._loop,), name=f"mcp-{self.place.name}", daemon=True
                )
                self._thread.start()
                self._opening = None
                atexit.register(self.close)
            return asyncio.run_coroutine_threadsafe(self._work(work), self._loop)

    async def _end(self) -> None:
        life, self._life = self._life, None
        if life is not None:
            await life.close()

    async def _work(self, work: Callable[[Client], Coroutine[Any, Any, T]]) -> T:
        life = await self._connected()
        task = asyncio.ensure_future(work(life.client.result()))
        over = asyncio.ensure_future(life.ended.wait())
        try:
            await asyncio.wait({task, over}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                # What had arrived when the connection ended is still taken.
                await asyncio.wait({task}, timeout=0.1)
            if not task.done():
                raise ConnectionLost(f"MCP server {self.place.name!r} ended during a call")
            return self._result(task, life)
        finally:
            for leftover in (task, over):
                leftover.cancel()
            await asyncio.wait({task, over})
            if task.done() and not task.cancelled():
                task.exception()

    def _result(self, task: asyncio.Task[T], life: _Life) -> T:
        try:
            return task.result()
        except MCPError as error:
            if error.error.code in LOST_CODES:
                raise ConnectionLost(
                    f"MCP server {self.place.name!r}: {error.error.message}"
                ) from error
            raise
        except (httpx2.HTTPError, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and not life.ended.is_set():
                raise
            raise ConnectionLost(f"MCP server {self.place.name!r}: {error!r}") from error

    async def _connected(self) -> _Life:
        if self._opening is None:
            self._opening = asyncio.Lock()
        async with self._opening:
            life = self._life
            if life is not None and life.ended.is_set():
                await life.close()
                life = self._life = None
            if life is None:
                self._count_start()
                life = _Life(self.place)
                try:
                    await asyncio.shield(life.client)
                except asyncio.CancelledError:
                    await life.close()
                    raise
                self._life = life
            return life

    def _count_start(self) -> None:
        now = asyncio.get_running_loop().time()
        if len(self._starts) == RESTARTS and now - self._starts[0] < RESTART_SECONDS:
            raise McpServerFailed(
                f"MCP server {self.place.name!r} has ended {RESTARTS} times within "
                f"{RESTART_SECONDS:.0f} seconds and is not started again; look at its own log",
                server=self.place.name,
            )
        self._starts.append(now)


def _turn(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


def place_of(
    name: str,
    command: str | None,
    args: tuple[str, ...],
    url: str | None,
    env: dict[str, str] | None,
    cwd: str | None,
) -> tuple[StdioServerParameters | None, str | None]:
    """Return the command or the URL of a server; refuse both and neither."""
    if (command is None) == (url is None):
        raise InvalidInput(f"MCP server {name!r} has a command or a url; give one of them")
    if command is None:
        return None, url
    return StdioServerParameters(command=command, args=list(args), env=env, cwd=cwd), None
