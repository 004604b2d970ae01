"""Frames between host and worker, as the host sees them.

The worker is wholly untrusted: whatever arrives is bounded in size, decoded by a strict schema and
never unpickled. A frame that does not fit ends the worker. What the host sends is marshalled,
which only the worker reads.
"""

from __future__ import annotations

import marshal
from typing import Annotated, Any, Literal

import msgspec

from holdfast.core.errors import KernelProtocolError

MESSAGE, CHUNK = 0, 1
HEADER_BYTES = 5
ID_BYTES = 71
MAX_MESSAGE_BYTES = 64 << 20
MAX_CHUNK_BYTES = 1 << 30

_Count = Annotated[int, msgspec.Meta(ge=0, le=2**53 - 1)]
_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=400)]
_Text = Annotated[str, msgspec.Meta(max_length=1 << 20)]
_Excerpt = tuple[_Text, _Text, _Count]
# A chunk by id and size, or its bytes with an empty id. (A union of bytes with a bound and a tuple
# would say it better; msgspec 0.22 crashes on one.)
Piece = tuple[str, _Count, bytes]


class _Frame(msgspec.Struct, tag_field="kind", forbid_unknown_fields=True, frozen=True):
    pass


class EncodedPart(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    encoding: Literal["text", "json", "bytes"]
    data: bytes


class ValuePart(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    kind: _Text
    text: _Excerpt
    encoded: EncodedPart | None


class ErrorPart(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    type: _Text
    message: _Text
    traceback: _Text
    line: int | None


class VariablePart(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    name: _Name
    type: _Text
    size: _Count
    preview: _Text
    pieces: list[Piece]
    marked: list[tuple[_Text, _Text]]
    whole: bool


class CheckpointPart(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    slots: list[tuple[Annotated[int, msgspec.Meta(ge=0, le=239)], bool, Piece]]
    variables: list[VariablePart]
    cells: _Count
    drawn: _Count
    random: bytes


class CallFrame(_Frame, tag="call", frozen=True):
    """The cell calls a host function."""

    id: _Count
    function: _Name
    arguments: bytes
    files: list[tuple[_Text, _Text]]
    threads: _Count


class FinalFrame(_Frame, tag="final", frozen=True):
    """The cell called FINAL; its value is fixed."""

    value: EncodedPart


class EndedFrame(_Frame, tag="ended", frozen=True):
    """The cell's own code is over; its checkpoint follows."""


class DoneFrame(_Frame, tag="done", frozen=True):
    """The cell has ended."""

    status: Literal["ok", "error", "final", "interrupted", "output", "memory"]
    value: ValuePart | None
    error: ErrorPart | None
    stdout: _Excerpt
    stderr: _Excerpt
    files: list[tuple[_Text, _Text]]
    repaired: list[_Name]
    checkpoint: CheckpointPart | None


class OpenedFrame(_Frame, tag="opened", frozen=True):
    """The worker is confined and offers the session's names."""

    confinement: dict[str, Any] | None


class LoadedFrame(_Frame, tag="loaded", frozen=True):
    """The namespace is filled; `lost` names what could not be made again."""

    lost: list[tuple[_Name, _Text]]


class BoundFrame(_Frame, tag="bound", frozen=True):
    """An input is bound."""


class CheckpointFrame(_Frame, tag="checkpoint", frozen=True):
    """A checkpoint outside of a cell."""

    checkpoint: CheckpointPart


class FailedFrame(_Frame, tag="failed", frozen=True):
    """A command failed inside the worker."""

    message: _Text


class ChunkFrame(msgspec.Struct, frozen=True):
    """The bytes of a chunk, under the id that the worker claims for them."""

    id: str
    data: bytes


Message = (
    CallFrame
    | FinalFrame
    | EndedFrame
    | DoneFrame
    | OpenedFrame
    | LoadedFrame
    | BoundFrame
    | CheckpointFrame
    | FailedFrame
)
Frame = Message | ChunkFrame

_decoder = msgspec.msgpack.Decoder(Message)


class FrameReader:
    """Cuts the bytes of a worker into frames, within bounds."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._left = {MESSAGE: MAX_MESSAGE_BYTES, CHUNK: MAX_CHUNK_BYTES}

    def limit(self, chunk_bytes: int) -> None:
        """Begin to count chunks anew: so many bytes of them may come, in all."""
        self._left[CHUNK] = min(chunk_bytes, MAX_CHUNK_BYTES)

    def feed(self, data: bytes) -> list[Frame]:
        """Return the frames that these bytes complete; raise KernelProtocolError on nonsense."""
        buffer = self._buffer
        buffer += data
        frames: list[Frame] = []
        while len(buffer) >= HEADER_BYTES:
            kind, size = buffer[0], int.from_bytes(buffer[1:HEADER_BYTES], "big")
            if size > self._left.get(kind, -1):
                raise KernelProtocolError(
                    f"the worker announced a frame of kind {kind} with {size} bytes, which is "
                    "more than the protocol allows it; the worker was stopped"
                )
            if len(buffer) < HEADER_BYTES + size:
                break
            with memoryview(buffer) as view:
                body = bytes(view[HEADER_BYTES : HEADER_BYTES + size])
            del buffer[: HEADER_BYTES + size]
            if kind == CHUNK:
                self._left[CHUNK] -= size
            frames.append(_chunk(body) if kind == CHUNK else _message(body))
        return frames


def _message(body: bytes) -> Message:
    try:
        message: Message = _decoder.decode(body)
        return message
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError) as error:
        raise KernelProtocolError(
            f"the worker sent a message outside the protocol ({error}); the worker was stopped"
        ) from error


def _chunk(body: bytes) -> ChunkFrame:
    try:
        return ChunkFrame(body[:ID_BYTES].decode("ascii"), body[ID_BYTES:])
    except UnicodeDecodeError as error:
        raise KernelProtocolError("the worker sent a chunk without an id") from error


def command_frame(command: dict[str, Any]) -> bytes:
    """Return the frame of a command or an answer."""
    body = marshal.dumps(command, 4)
    return b"\x00" + len(body).to_bytes(4, "big") + body


def chunk_frame(data: bytes) -> bytes:
    """Return the frame of a raw chunk."""
    return b"\x01" + len(data).to_bytes(4, "big") + data
