"""Loading of a checkpoint that holds something this worker cannot make.

A module that is not installed here, bytecode of another interpreter, a class whose own code
raises: each becomes a marker where it stands, and everything else is loaded as it was.
"""

from __future__ import annotations

import io
import pickle

from holdfast.kernels.worker.makers import Marker

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, ClassVar

_Unpickler: Any = pickle._Unpickler


class _Tolerant(_Unpickler):  # type: ignore[misc]
    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = dict(_Unpickler.dispatch)

    def __init__(self, stream: Any, slots: list[Any]) -> None:
        super().__init__(stream)
        self._slots = slots
        self.reasons: list[str] = []

    def persistent_load(self, index: Any) -> Any:
        return self._slots[index]

    def find_class(self, module: str, name: str) -> Any:
        try:
            return super().find_class(module, name)
        except Exception as error:
            return self._lost(f"{module}.{name}", error)

    def _lost(self, kind: str, error: Exception) -> Marker:
        reason = f"{type(error).__name__}: {error}".partition("\n")[0][:200]
        self.reasons.append(f"{kind}: {reason}")
        return Marker(kind, reason)


def _guarded(load: Callable[[Any], None], pops: int) -> Callable[[Any], None]:
    """Return an opcode's handler that leaves a marker where making the object fails."""

    def handle(self: Any) -> None:
        taken = self.stack[-pops:]
        maker = taken[0]
        depth = len(self.stack)
        if isinstance(maker, Marker):
            del self.stack[depth - pops :]
            self.stack.append(maker)
            return
        try:
            load(self)
        except Exception as error:
            del self.stack[depth - pops :]
            self.stack.append(self._lost(getattr(maker, "__name__", type(maker).__name__), error))

    return handle


for _code, _load, _pops in (
    (pickle.REDUCE, _Unpickler.load_reduce, 2),
    (pickle.NEWOBJ, _Unpickler.load_newobj, 2),
    (pickle.NEWOBJ_EX, _Unpickler.load_newobj_ex, 3),
    (pickle.BUILD, _Unpickler.load_build, 2),
):
    _Tolerant.dispatch[_code[0]] = _guarded(_load, _pops)


def load_with_markers(
    prologue: bytes, streams: list[bytes], slots: list[Any]
) -> tuple[list[Any], list[tuple[int, str]]]:
    """Return the values, and (index, reason) for each in which a marker stands."""
    unpickler = _Tolerant(io.BytesIO(prologue), slots)
    unpickler.load()
    memo = unpickler.memo
    values: list[Any] = []
    lost: list[tuple[int, str]] = []
    for index, stream in enumerate(streams):
        unpickler = _Tolerant(io.BytesIO(stream), slots)
        unpickler.memo = memo
        values.append(unpickler.load())
        lost.extend((index, reason) for reason in unpickler.reasons[:1])
    return values, lost
