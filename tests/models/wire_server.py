"""A provider on the loopback: speaks just enough HTTP for the real SDKs to talk to it.

Each request is answered by the next play of the script, and everything that arrived is kept. A
play gets the open connection, so it can also hang, cut it off, or watch the client leave.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Request:
    path: str
    headers: dict[str, str]
    body: dict[str, Any]


@dataclass
class Connection:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def respond(
        self, status: int, body: bytes, headers: dict[str, str] | None = None
    ) -> None:
        fields = {
            "content-type": "application/json",
            "content-length": str(len(body)),
            **(headers or {}),
        }
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        self.writer.write(f"HTTP/1.1 {status} X\r\n{head}\r\n".encode() + body)
        await self.writer.drain()

    async def start_stream(self) -> None:
        self.writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
            b"transfer-encoding: chunked\r\n\r\n"
        )
        await self.writer.drain()

    async def send_event(self, text: str) -> None:
        data = text.encode()
        self.writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        await self.writer.drain()

    async def end_stream(self) -> None:
        self.writer.write(b"0\r\n\r\n")
        await self.writer.drain()


Play = Callable[[Connection], Awaitable[None]]


@dataclass
class WireServer:
    url: str = ""
    plays: list[Play] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while request := await _read_request(reader):
                self.requests.append(request)
                await self.plays.pop(0)(Connection(reader, writer))
                if writer.is_closing():
                    break


async def _read_request(reader: asyncio.StreamReader) -> Request | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    except asyncio.IncompleteReadError:
        return None
    headers = {
        name.lower(): value.strip()
        for name, _, value in (line.partition(":") for line in head[1:] if line)
    }
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Request(head[0].split(" ")[1], headers, json.loads(body))


@asynccontextmanager
async def wire_server(*plays: Play):
    server = WireServer(plays=list(plays))
    tasks: set[asyncio.Task[None]] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        with suppress(asyncio.CancelledError):
            await server.serve(reader, writer)
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

    listener = await asyncio.start_server(handle, "127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    try:
        yield server
    finally:
        listener.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def answer(body: Any, status: int = 200, **headers: str) -> Play:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}

    async def play(connection: Connection) -> None:
        await connection.respond(status, data, named)

    return play


def stream(*events: str) -> Play:
    async def play(connection: Connection) -> None:
        await connection.start_stream()
        for event in events:
            await connection.send_event(event)
        await connection.end_stream()

    return play


def drop_after(*events: str) -> Play:
    """Begin a stream and cut the connection in the middle, without an end."""

    async def play(connection: Connection) -> None:
        if events:
            await connection.start_stream()
        for event in events:
            await connection.send_event(event)
        connection.writer.close()

    return play


class Silence:
    """A play that never answers, and knows when the client has gone."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.client_left = asyncio.Event()

    async def __call__(self, connection: Connection) -> None:
        self.asked.set()
        await connection.reader.read()
        self.client_left.set()
        connection.writer.close()
