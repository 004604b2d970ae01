"""How the bytes of a worker's pipe become frames, within bounds of size and time.

A chunk arrives in small pieces and is hashed on the way: nothing waits for the whole of it, and one
under a false id is dropped without ever being put together. A large one is kept in a file in memory
meanwhile and read and hashed by a thread: moving it at once would block the event loop.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from dataclasses import dataclass
from typing import BinaryIO

from holdfast.core.errors import KernelProtocolError
from holdfast.kernels import frames

MESSAGE, CHUNK = 0, 1
HEADER_BYTES = 5
ID_BYTES = 71
# A message is decoded in one go: a larger one would block the event loop for more than 100 ms. It
# holds the largest value that a call or an answer may carry, in base64.
MAX_MESSAGE_BYTES = 22 << 20
MAX_CHUNK_BYTES = 1 << 30
LARGE_CHUNK_BYTES = 4 << 20
_PART = 1 << 20


@dataclass(frozen=True, slots=True)
class LargeChunk:
    """A chunk that has arrived and is not checked yet: `read` takes long, so a thread does it."""

    id: str
    size: int
    file: BinaryIO

    def read(self) -> frames.ChunkFrame:
        """Return it with its bytes; raise KernelProtocolError if its id is false."""
        with self.file:
            digest = hashlib.sha256()
            self.file.seek(0)
            while part := self.file.read(_PART):
                digest.update(part)
            _check(self.id, digest.hexdigest())
            # One system call, during which other threads run.
            return frames.ChunkFrame(self.id, os.pread(self.file.fileno(), self.size, 0))


class _Arriving:
    """A chunk of which some bytes are there."""

    def __init__(self, identifier: str, size: int) -> None:
        self._id = identifier
        self._size = self.left = size
        self._parts: list[bytes] = []
        self._digest = hashlib.sha256()
        self._file: BinaryIO | None = None
        if size > LARGE_CHUNK_BYTES:
            self._file = _file_in_memory()

    def add(self, part: bytes) -> None:
        """Take the next bytes."""
        self.left -= len(part)
        if self._file is not None:
            self._file.write(part)
        else:
            self._parts.append(part)
            self._digest.update(part)

    def finish(self) -> frames.ChunkFrame | LargeChunk:
        """Return it, now that all of its bytes are there."""
        if self._file is not None:
            return LargeChunk(self._id, self._size, self._file)
        _check(self._id, self._digest.hexdigest())
        return frames.ChunkFrame(self._id, b"".join(self._parts))

    def close(self) -> None:
        """Drop what is there."""
        if self._file is not None:
            self._file.close()


class FrameReader:
    """Cuts the bytes of a worker into frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._arriving: _Arriving | None = None
        self._chunk_bytes_left = MAX_CHUNK_BYTES

    def limit(self, chunk_bytes: int) -> None:
        """Begin to count chunks anew: so many bytes of them may come, in all."""
        self._chunk_bytes_left = min(chunk_bytes, MAX_CHUNK_BYTES)

    def close(self) -> None:
        """Drop what has arrived in part."""
        if self._arriving is not None:
            self._arriving.close()
        self._arriving = None
        self._buffer.clear()

    def feed(self, data: bytes) -> list[frames.Frame | LargeChunk]:
        """Return the frames that these bytes complete; raise KernelProtocolError on nonsense."""
        if self._arriving is None and not self._buffer and data[:1] == b"\0":
            size = int.from_bytes(data[1:HEADER_BYTES], "big")
            if len(data) == HEADER_BYTES + size:
                return [frames.message(data[HEADER_BYTES:])]  # one and no more: nearly always
        found: list[frames.Frame | LargeChunk] = []
        rest = memoryview(data)
        while rest or self._is_whole():
            if self._arriving is not None:
                part = bytes(rest[: self._arriving.left])
                rest = rest[len(part) :]
                self._arriving.add(part)
                if not self._arriving.left:
                    found.append(self._arriving.finish())
                    self._arriving = None
                elif not rest:
                    break
            else:
                rest = self._fill(rest)
                if not self._is_whole():
                    break
                self._take(found)
        return found

    def _fill(self, rest: memoryview) -> memoryview:
        """Move as many bytes into the buffer as the frame at its start still lacks."""
        if len(self._buffer) < HEADER_BYTES:
            lacks = HEADER_BYTES - len(self._buffer)
            self._buffer += rest[:lacks]
            rest = rest[lacks:]
        if len(self._buffer) >= HEADER_BYTES:
            lacks = self._needed() - len(self._buffer)
            self._buffer += rest[:lacks]
            rest = rest[lacks:]
        return rest

    def _is_whole(self) -> bool:
        return len(self._buffer) >= HEADER_BYTES and len(self._buffer) >= self._needed()

    def _needed(self) -> int:
        """Return how many bytes the buffer must hold: a message, or the start of a chunk."""
        kind, size = self._buffer[0], int.from_bytes(self._buffer[1:HEADER_BYTES], "big")
        most = {MESSAGE: MAX_MESSAGE_BYTES, CHUNK: self._chunk_bytes_left}.get(kind, -1)
        if size > most:
            raise KernelProtocolError(
                f"the worker announced a frame of kind {kind} with {size} bytes, which is "
                "more than the protocol allows it; the worker was stopped"
            )
        if kind == CHUNK and size < ID_BYTES:
            raise KernelProtocolError("the worker sent a chunk without an id")
        return HEADER_BYTES + (ID_BYTES if kind == CHUNK else size)

    def _take(self, found: list[frames.Frame | LargeChunk]) -> None:
        buffer, self._buffer = self._buffer, bytearray()
        if buffer[0] == MESSAGE:
            with memoryview(buffer) as view:
                found.append(frames.message(view[HEADER_BYTES:]))
            return
        size = int.from_bytes(buffer[1:HEADER_BYTES], "big")
        self._chunk_bytes_left -= size
        identifier = buffer[HEADER_BYTES:].decode("ascii", "replace")
        self._arriving = _Arriving(identifier, size - ID_BYTES)
        if size == ID_BYTES:
            found.append(self._arriving.finish())
            self._arriving = None


def _check(identifier: str, digest: str) -> None:
    if identifier != f"sha256:{digest}":
        raise KernelProtocolError("the worker sent a chunk under a false id")


def _file_in_memory() -> BinaryIO:
    if hasattr(os, "memfd_create"):
        return open(os.memfd_create("holdfast-chunk"), "w+b", buffering=0)
    return tempfile.TemporaryFile(buffering=0)
