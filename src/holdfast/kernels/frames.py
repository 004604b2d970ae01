"""The frames between host and worker, as the host sees them: what each one may hold.

The worker is wholly untrusted: whatever arrives is bounded in size, decoded by a strict schema and
never unpickled. A frame that does not fit ends the worker. What the host sends is marshalled,
which only the worker reads. How the bytes of a pipe become frames is in `frame_reader`.
"""

from __future__ import annotations

import marshal
from typing import Annotated, Any, Literal

import msgspec

from holdfast.core.errors import KernelProtocolError

_Count = Annotated[int, msgspec.Meta(ge=0, le=2**53 - 1)]
_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=400)]
_Text = Annotated[str, msgspec.Meta(max_length=1 << 20)]
_Excerpt = tuple[_Text, _Text, _Count]
# A chunk by id and size, or its bytes with an empty id. (A union of bytes with a bound and a tuple
# would say it better; msgspec 0.22 crashes on one.)
Piece = tuple[str, _Count, bytes]
# Every list has a bound: a few bytes of a message can become a hundred in memory.
_MANY = msgspec.Meta(max_length=100_000)
_Reads = Annotated[list[tuple[_Text, _Text]], _MANY]
MAX_PIECES = 1 << 18


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
    pieces: Annotated[list[Piece], msgspec.Meta(max_length=MAX_PIECES)]
    marked: Annotated[list[tuple[_Text, _Text]], msgspec.Meta(max_length=5)]
    whole: bool


class CheckpointPart(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    slots: Annotated[
        list[tuple[Annotated[int, msgspec.Meta(ge=0, le=239)], bool, Piece]],
        msgspec.Meta(max_length=240),
    ]
    # Each a VariablePart, decoded by `variable`: most are as they were.
    variables: Annotated[list[msgspec.Raw], _MANY]
    cells: _Count
    drawn: _Count
    random: bytes
    # Settings of the interpreter; 0 and nothing where they are as in every new worker.
    recursion_limit: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)] = 0
    decimal: Annotated[str, msgspec.Meta(max_length=400)] = ""
    surroundings: Annotated[str, msgspec.Meta(max_length=8000)] = ""


class CallFrame(_Frame, tag="call", frozen=True):
    """The cell calls a host function."""

    id: _Count
    function: _Name
    files: _Reads
    threads: _Count
    # As they were sent, not decoded: they may be many.
    arguments: msgspec.Raw


class SleepingFrame(_Frame, tag="sleeping", frozen=True):
    """So many threads of the cell are in a wait that ends by itself; said when asked for."""

    threads: _Count


class ContentsFrame(_Frame, tag="contents", frozen=True):
    """The contents of files that were asked for came before; of these there is none."""

    missing: Annotated[list[_Text], _MANY]


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
    files: _Reads
    repaired: Annotated[list[_Name], msgspec.Meta(max_length=10_000)]
    checkpoint: CheckpointPart | None
    # Threads that the cell left running: they may change what the checkpoint holds.
    threads: _Count = 0
    # The worker holds something that the checkpoint does not: a restore would go on differently.
    stale: bool = False


class OpenedFrame(_Frame, tag="opened", frozen=True):
    """The worker is confined and offers the session's names."""

    confinement: Annotated[dict[str, msgspec.Raw], msgspec.Meta(max_length=32)] | None

    @property
    def level(self) -> str:
        """Return how the worker says that it is confined."""
        level = (self.confinement or {}).get("level")
        return "none" if level is None else _decode(_level_decoder, bytes(level))


class LoadedFrame(_Frame, tag="loaded", frozen=True):
    """The namespace is filled; `lost` names what could not be made again."""

    lost: Annotated[list[tuple[_Name, _Text]], _MANY]


class BoundFrame(_Frame, tag="bound", frozen=True):
    """An input is bound."""


class CheckpointFrame(_Frame, tag="checkpoint", frozen=True):
    """A checkpoint outside of a cell."""

    checkpoint: CheckpointPart


class FailedFrame(_Frame, tag="failed", frozen=True):
    """A command failed inside the worker."""

    message: _Text


class ChunkFrame(msgspec.Struct, frozen=True):
    """The bytes of a chunk, under the id that was found to be theirs."""

    id: str
    data: bytes


Message = (
    CallFrame
    | SleepingFrame
    | ContentsFrame
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

_decoder = msgspec.json.Decoder(Message)
_level_decoder = msgspec.json.Decoder(Literal["os", "none"])
_variable_decoder = msgspec.json.Decoder(VariablePart)


def variable(raw: bytes) -> VariablePart:
    """Return a variable of a checkpoint; the caller bounds how many pieces there are in all."""
    part: VariablePart = _decode(_variable_decoder, raw)
    return part


def message(body: bytes | bytearray | memoryview) -> Message:
    """Return the message of a frame; raise KernelProtocolError if it is outside the protocol."""
    decoded: Message = _decode(_decoder, body)
    return decoded


def _decode(decoder: msgspec.json.Decoder[Any], body: bytes | bytearray | memoryview) -> Any:
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError) as error:
        raise KernelProtocolError(
            f"the worker sent a message outside the protocol ({error}); the worker was stopped"
        ) from error


def command_frame(command: dict[str, Any]) -> bytes:
    """Return the frame of a command or an answer."""
    body = marshal.dumps(command, 4)
    return b"\x00" + len(body).to_bytes(4, "big") + body


def chunk_frame(data: bytes) -> bytes:
    """Return the frame of a raw chunk."""
    return b"\x01" + len(data).to_bytes(4, "big") + data
