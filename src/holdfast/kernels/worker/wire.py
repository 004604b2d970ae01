"""The worker's end of the frame pipe.

A frame is a kind byte, a four-byte length and a body. What the host sends is marshalled, which the
interpreter reads at once; what the worker sends is MessagePack, which the host can check strictly.
Interrupts arrive as signals at any moment: waiting for a frame may be interrupted, moving one may
not, or the pipe would lose its place.
"""

from __future__ import annotations

import _thread
import marshal
import os
import select
from collections.abc import Iterator
from typing import Any

MESSAGE, CHUNK = 0, 1


class Shield:
    """Says when an interrupt may cut into the main thread: only while the model's code runs.

    Otherwise it is kept until the shield is lifted again or, if the cell has ended, forgotten. It is
    delivered once per cell: a cell that catches it and goes on is ended by the host.
    """

    def __init__(self, interruption: type[BaseException]) -> None:
        self._depth = 1
        self._pending = False
        self._interruption = interruption
        self._main = _thread.get_ident()

    def lift(self) -> None:
        """Let interrupts in: the model's code begins."""
        self._pending = False
        self._depth = 0

    def lower(self) -> None:
        """Keep interrupts out: the model's code has ended."""
        self._depth = 1

    def __enter__(self) -> None:
        if _thread.get_ident() == self._main:
            self._depth += 1

    def __exit__(self, *exc: object) -> None:
        if _thread.get_ident() == self._main:
            self._depth -= 1
            if self._pending:
                self.interrupt()

    def interrupt(self, *signal: object) -> None:
        """Raise in the main thread now, or when the shield is lifted (a signal handler)."""
        if self._depth:
            self._pending = True
        else:
            self._pending = False
            self._depth = 1
            raise self._interruption


class Channel:
    """Frames over one descriptor, written by any thread, read by one at a time."""

    def __init__(self, descriptor: int, shield: Shield) -> None:
        self.descriptor = descriptor
        self.shield = shield
        self._writing = _thread.allocate_lock()
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLIN)
        # Kept here, because model code may replace the attributes of the modules.
        self._read, self._write, self._loads = os.read, os.write, marshal.loads

    def wait(self) -> None:
        """Wait until a frame begins to arrive; the only place where an interrupt may cut in."""
        self._poll.poll()

    def receive(self) -> Any:
        """Return the next message of the host."""
        with self.shield:
            header = self._exactly(5)
            return self._loads(self._exactly(int.from_bytes(header[1:], "big")))

    def receive_bytes(self) -> bytes:
        """Return the next raw chunk of the host."""
        with self.shield:
            header = self._exactly(5)
            return self._exactly(int.from_bytes(header[1:], "big"))

    def send(self, message: dict[str, Any]) -> None:
        """Send one message."""
        self._send(MESSAGE, pack(message))

    def send_chunk(self, identifier: str, parts: list[bytes]) -> None:
        """Send the bytes of a chunk under its content id."""
        self._send(CHUNK, identifier.encode(), *parts)

    def _send(self, kind: int, *parts: bytes) -> None:
        size = sum(map(len, parts))
        with self.shield, self._writing:
            header = bytes((kind,)) + size.to_bytes(4, "big")
            if size < 65536:
                self._put(header + b"".join(parts))
            else:
                self._put(header)
                for part in parts:
                    self._put(part)

    def _put(self, data: bytes) -> None:
        sent = self._write(self.descriptor, data)
        if sent < len(data):
            view = memoryview(data)
            while sent < len(data):
                sent += self._write(self.descriptor, view[sent:])

    def _exactly(self, size: int) -> bytes:
        data = self._read(self.descriptor, size)
        if len(data) == size:
            return data
        parts = [data]
        missing = size - len(data)
        while missing:
            data = self._read(self.descriptor, missing)
            if not data:
                os._exit(0)
            parts.append(data)
            missing -= len(data)
        return b"".join(parts)


def pack(value: Any) -> bytes:
    """Return the MessagePack form of plain data."""
    return b"".join(_pack(value))


def _pack(value: Any) -> Iterator[bytes]:
    if value is None:
        yield b"\xc0"
    elif value is True:
        yield b"\xc3"
    elif value is False:
        yield b"\xc2"
    elif type(value) is int:
        yield b"\xd3" + value.to_bytes(8, "big", signed=True) if value > 127 or value < 0 else bytes((value,))
    elif type(value) is str:
        data = value.encode("utf-8", "replace")
        yield b"\xdb" + len(data).to_bytes(4, "big") if len(data) > 31 else bytes((0xA0 | len(data),))
        yield data
    elif type(value) is bytes:
        yield b"\xc6" + len(value).to_bytes(4, "big")
        yield value
    elif type(value) is dict:
        yield b"\xdf" + len(value).to_bytes(4, "big")
        for key, item in value.items():
            yield from _pack(key)
            yield from _pack(item)
    else:
        yield b"\xdd" + len(value).to_bytes(4, "big")
        for item in value:
            yield from _pack(item)
