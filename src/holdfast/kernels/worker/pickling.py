"""The pickler and the unpickler of namespaces.

They stand alone because importing them is a tenth of a worker's start, and a session without
variables does not need them.
"""

from __future__ import annotations

import _pickle
import gc
import io
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

RESERVED = 256
DEEP = 30_000


class Pickler(_pickle.Pickler):
    """A pickler with attributes."""


class Unpickler(_pickle.Unpickler):
    def __init__(self, stream: Any, slots: list[Any]) -> None:
        super().__init__(stream)
        self._slots = slots

    def persistent_load(self, index: Any) -> Any:
        return self._slots[index]


def _prologue() -> bytes:
    """Return the pickle that puts every slot into the memo, in order."""
    loads = b"".join(b"K" + bytes((index,)) + b"Q\x940" for index in range(RESERVED))
    return b"\x80\x05" + loads + b"N."


def load_streams(streams: list[bytes], slots: list[Any]) -> tuple[list[Any], list[tuple[int, str]]]:
    """Return the values of pickled streams that share one memo, and (index, reason) of losses."""
    enabled = gc.isenabled()
    limit = sys.getrecursionlimit()
    gc.disable()
    sys.setrecursionlimit(max(limit, DEEP))
    try:
        unpickler = Unpickler(io.BytesIO(b"".join((_prologue(), *streams))), slots)
        unpickler.load()
        return [unpickler.load() for _ in streams], []
    except BaseException:
        # Something in there cannot be made here: read again, slowly, with markers in its place.
        from holdfast.kernels.worker.tolerant import load_with_markers

        return load_with_markers(_prologue(), streams, slots)
    finally:
        sys.setrecursionlimit(limit)
        if enabled:
            gc.enable()
