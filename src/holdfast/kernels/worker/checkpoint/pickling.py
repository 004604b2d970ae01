"""The pickler and the unpickler of namespaces."""

from __future__ import annotations

import gc
import pickle
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

RESERVED = 256
DEEP = 30_000


class Pickler(pickle.Pickler):
    """A pickler with attributes."""


class Unpickler(pickle.Unpickler):
    def __init__(self, stream: Any, slots: list[Any]) -> None:
        super().__init__(stream)
        self._slots = slots

    def persistent_load(self, index: Any) -> Any:
        return self._slots[index]


class Parts:
    """A file of byte strings that are read one after the other and never copied into one."""

    def __init__(self, parts: list[bytes | bytearray]) -> None:
        self._rest = iter(parts)
        self._now = memoryview(b"")

    def readinto(self, buffer: Any) -> int:
        view, filled = memoryview(buffer), 0
        while filled < len(view):
            if not self._now:
                part = next(self._rest, None)
                if part is None:
                    break
                self._now = memoryview(part)
            size = min(len(view) - filled, len(self._now))
            view[filled : filled + size] = self._now[:size]
            filled, self._now = filled + size, self._now[size:]
        return filled

    def read(self, size: int) -> bytes:
        if size <= len(self._now):
            taken, self._now = self._now[:size], self._now[size:]
            return bytes(taken)
        buffer = bytearray(size)
        return bytes(memoryview(buffer)[: self.readinto(buffer)])

    def readline(self) -> bytes:
        raise pickle.UnpicklingError("no stream of ours has lines")


def _prologue() -> bytes:
    """Return the pickle that puts every slot into the memo, in order."""
    loads = b"".join(b"K" + bytes((index,)) + b"Q\x940" for index in range(RESERVED)) + b"N."
    # In a frame, which is read at once.
    return b"\x80\x05\x95" + len(loads).to_bytes(8, "little") + loads


def load_streams(
    streams: list[list[bytes | bytearray]], slots: list[Any], *, careful: bool = False
) -> tuple[list[Any], list[tuple[int, str]]]:
    """Return the values of pickled streams that share one memo, and (index, reason) of losses.

    Each comes in parts: joined, they would take as much memory again as what is made of them.
    """
    enabled = gc.isenabled()
    limit = sys.getrecursionlimit()
    gc.disable()
    sys.setrecursionlimit(max(limit, DEEP))
    try:
        if careful:
            raise pickle.UnpicklingError("not by the interpreter")
        parts = [part for stream in streams for part in stream]
        unpickler = Unpickler(Parts([_prologue(), *parts]), slots)
        unpickler.load()
        return [unpickler.load() for _ in streams], []
    except BaseException:
        # Something in there cannot be made here: read again, slowly, with markers in its place.
        from holdfast.kernels.worker.checkpoint.tolerant import load_with_markers

        joined = [b"".join(parts) for parts in streams]
        return load_with_markers(_prologue(), joined, slots, careful=careful)
    finally:
        sys.setrecursionlimit(limit)
        if enabled:
            gc.enable()
