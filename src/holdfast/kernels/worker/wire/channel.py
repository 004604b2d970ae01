"""The worker's end of the frame pipes.

A frame is a kind byte, a four-byte length and a body. What the host sends is marshalled, which the
interpreter reads at once; what the worker sends is JSON, which it writes at once as well and which
the host can check strictly.
Interrupts arrive as signals at any moment, and one that was raised in the middle of a frame would
leave the rest of it in the pipe: it is blocked until the frame is whole. The host sends an empty
frame after the signal, so a worker that waits for an answer notices.
"""

from __future__ import annotations

import _thread
import json
import marshal
import os
from binascii import b2a_base64

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MESSAGE, CHUNK = 0, 1
READ_BYTES = 1 << 14


class InterruptMask:
    """Says when an interrupt may be raised in the main thread: only while the model's code runs.

    A blocked one stays pending until it is unblocked or, if the cell has ended, is dropped. It is
    delivered once per cell: a cell that catches it and goes on is ended by the host.
    """

    def __init__(self, interruption: type[BaseException]) -> None:
        self._depth = 1
        self._pending = False
        self._interruption = interruption
        self._main = _thread.get_ident()

    def unblock(self) -> None:
        """Deliver interrupts: the model's code begins."""
        self._pending = False
        self._depth = 0

    def block(self) -> None:
        """Hold interrupts back: the model's code has ended."""
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
        """Raise in the main thread now, or once unblocked (a signal handler)."""
        if self._depth:
            self._pending = True
        else:
            self._pending = False
            self._depth = 1
            raise self._interruption


class Channel:
    """Frames over two pipes, written by any thread, read by one at a time."""

    def __init__(self, mask: InterruptMask) -> None:
        self.incoming = self.outgoing = -1
        self.mask = mask
        self._writing = _thread.allocate_lock()
        self._buffer = b""
        self._names: dict[str, bytes] = {}
        # Kept here, because model code may replace the attributes of the modules.
        self._read, self._write, self._loads = os.read, os.write, marshal.loads
        self._readv = os.readv

    def receive(self) -> Any:
        """Return the next message of the host."""
        with self.mask:
            return self._loads(self._frame())

    def receive_bytes(self) -> bytes | bytearray:
        """Return the next raw chunk of the host."""
        with self.mask:
            return self._frame()

    def _frame(self) -> bytes | bytearray:
        buffer = self._buffer
        while len(buffer) < 5:
            buffer += self._some(READ_BYTES)
        size = 5 + int.from_bytes(buffer[1:5], "big")
        if size <= len(buffer):
            self._buffer = buffer[size:]
            return buffer[5:size]
        self._buffer = b""
        # Read to where it stays: a large chunk leaves no room for copies of it.
        body = bytearray(size - 5)
        filled = len(buffer) - 5
        body[:filled] = buffer[5:]
        view = memoryview(body)
        while filled < len(body):
            read = self._readv(self.incoming, [view[filled:]])
            if not read:
                os._exit(0)
            filled += read
        return body

    def _some(self, size: int) -> bytes:
        data = self._read(self.incoming, size)
        if not data:
            os._exit(0)
        return data

    def send(self, message: dict[str, Any]) -> None:
        """Send one message."""
        self._send(MESSAGE, dumps(message))

    def send_call(self, number: int, function: str, arguments: bytes, files: list[Any]) -> None:
        """Send a call, whose arguments are JSON already, and how many threads the cell has."""
        named = self._names.get(function)
        if named is None:
            named = self._names[function] = dumps(function)
        read = dumps(files) if files else b"[]"
        with self.mask, self._writing:
            # Counted now: what was counted before the wait for the others may be too few.
            parts = (number, named, read, _thread._count() + 1, arguments)
            self._put_frame(MESSAGE, (_CALL % parts,))

    def send_chunk(self, identifier: str, parts: list[bytes]) -> None:
        """Send the bytes of a chunk under its content id."""
        self._send(CHUNK, identifier.encode(), *parts)

    def _send(self, kind: int, *parts: bytes) -> None:
        with self.mask, self._writing:
            self._put_frame(kind, parts)

    def _put_frame(self, kind: int, parts: tuple[bytes, ...]) -> None:
        size = sum(map(len, parts))
        header = bytes((kind,)) + size.to_bytes(4, "big")
        if size < 65536:
            self._put(header + b"".join(parts))
        else:
            self._put(header)
            for part in parts:
                self._put(part)

    def _put(self, data: bytes) -> None:
        sent = self._write(self.outgoing, data)
        if sent < len(data):
            view = memoryview(data)
            while sent < len(data):
                sent += self._write(self.outgoing, view[sent:])


_CALL = b'{"kind":"call","id":%d,"function":%b,"files":%b,"threads":%d,"arguments":%b}'


class _Encoder(json.JSONEncoder):
    # Methods of its own, because model code may replace those of the class in the library.
    encode, iterencode = json.JSONEncoder.encode, json.JSONEncoder.iterencode

    def default(self, value: Any) -> str:
        if type(value) is not bytes:
            raise TypeError(f"a {type(value).__name__} does not fit into a message")
        return b2a_base64(value, newline=False).decode("ascii")


_encoder = _Encoder(
    ensure_ascii=False, check_circular=False, allow_nan=False, separators=(",", ":")
)


def dumps(value: Any) -> bytes:
    """Return the JSON of plain data, in which bytes stand as base64."""
    return _encoder.encode(value).encode("utf-8", "replace")
