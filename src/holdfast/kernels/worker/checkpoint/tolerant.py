"""Loading of a checkpoint that holds something this worker cannot make.

A module that is not installed here, bytecode of another interpreter, a class whose own code
raises: each becomes a marker where it stands, and everything else is loaded as it was.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from types import BuiltinFunctionType, FunctionType

from holdfast.kernels.worker.checkpoint.makers import MAIN, Marker, set_instance

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, ClassVar

_Unpickler: Any = pickle._Unpickler


class _Tolerant(_Unpickler):  # type: ignore[misc]
    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = dict(_Unpickler.dispatch)

    def __init__(self, stream: Any, slots: list[Any], *, careful: bool = False) -> None:
        super().__init__(stream)
        self._slots = slots
        # Whether to run nothing of the model's own: it may be what ended the worker before.
        self.careful = careful
        self.reasons: list[str] = []
        # What could not be put into a container yet, by the identity of the container.
        self._late: dict[int, tuple[Any, list[tuple[Callable[..., None], list[Any]]]]] = {}

    def persistent_load(self, index: Any) -> Any:
        return self._slots[index]

    def find_class(self, module: str, name: str) -> Any:
        try:
            return super().find_class(module, name)
        except Exception as error:
            return self._lost(f"{module}.{name}", error)

    def fill(self, put: Callable[..., None], items: list[Any]) -> None:
        """Put items into the container on the stack, later if their hash is not known yet."""
        target = self.stack[-1]
        if type(target) is Marker:
            return
        waiting = self._late.get(id(target))
        if waiting is not None:
            waiting[1].append((put, items))
            return
        try:
            put(target, items)
        except Exception:
            # A member of a cycle is hashed by attributes that it gets only after this.
            self._late[id(target)] = (target, [(put, items)])

    def fill_late(self) -> None:
        """Put in what had to wait, now that every object has its state."""
        while self._late:
            late, self._late = self._late, {}
            for target, waiting in late.values():
                try:
                    for put, items in waiting:
                        put(target, items)
                except Exception as error:
                    self._late[id(target)] = (target, waiting)
                    failure = error
            if len(self._late) == len(late):
                for target, _ in self._late.values():
                    self._lost(type(target).__name__, failure)
                return

    def take_state(self, instance: Any, state: Any) -> bool:
        """Give an instance its state without its `__setstate__`, and tell if it has one."""
        cls = type(instance)
        if not any(vars(base).get("__setstate__") for base in cls.__mro__ if base is not object):
            return False
        if cls.__module__ == MAIN:
            held = state[0] if type(state) is tuple and state else state
            if type(held) is dict and hasattr(instance, "__dict__"):
                object.__getattribute__(instance, "__dict__").update(held)
            self.reasons.append(f"{cls.__name__}: its __setstate__ was not run")
            return True
        return False

    def _lost(self, kind: str, error: BaseException) -> Marker:
        reason = f"{type(error).__name__}: {error}".partition("\n")[0][:200]
        self.reasons.append(f"{kind}: {reason}")
        return Marker(kind, reason)


def _guarded(load: Callable[[Any], None], pops: int) -> Callable[[Any], None]:
    """Return an opcode's handler that leaves a marker where making the object fails."""

    def handle(self: Any) -> None:
        taken = self.stack[-pops:]
        maker = taken[0]
        depth = len(self.stack)
        if type(maker) is Marker:
            del self.stack[depth - pops :]
            self.stack.append(maker)
            return
        if self.careful and _passed_over(self, taken, called=load is _Unpickler.load_reduce):
            return
        try:
            load(self)
        except Exception as error:
            del self.stack[depth - pops :]
            # Nothing is asked of an instance: its own code is what failed.
            named = (type, FunctionType, BuiltinFunctionType)
            kind = maker if isinstance(maker, named) else type(maker)
            self.stack.append(self._lost(kind.__name__, error))

    return handle


def _passed_over(self: Any, taken: list[Any], *, called: bool) -> bool:
    """Do what an opcode asks for without code of the model, if it is such code that it asks for."""
    maker, argument = taken[0], taken[-1]
    if maker is set_instance and self.take_state(argument[0], argument[1][0]):
        self.stack[-2:] = [None]
        return True
    if not isinstance(maker, (type, FunctionType)):
        if len(taken) == 2 and self.take_state(maker, argument):
            del self.stack[-1]
            return True
        return False
    made_by_class = isinstance(maker, type) and not called and "__new__" not in vars(maker)
    if maker.__module__ != MAIN or made_by_class:
        return False
    self.stack[-len(taken) :] = [self._lost(maker.__name__, RuntimeError("it was not run"))]
    return True


for _code, _load, _pops in (
    (pickle.REDUCE, _Unpickler.load_reduce, 2),
    (pickle.NEWOBJ, _Unpickler.load_newobj, 2),
    (pickle.NEWOBJ_EX, _Unpickler.load_newobj_ex, 3),
    (pickle.BUILD, _Unpickler.load_build, 2),
):
    _Tolerant.dispatch[_code[0]] = _guarded(_load, _pops)


def _extend(target: Any, items: list[Any]) -> None:
    if isinstance(target, list):
        list.extend(target, items)
        return
    for item in items:
        target.append(item)


def _update(target: Any, items: list[Any]) -> None:
    for index in range(0, len(items), 2):
        target[items[index]] = items[index + 1]


def _add(target: Any, items: list[Any]) -> None:
    for item in items:
        target.add(item)


def _pop(self: Any, count: int) -> list[Any]:
    items = self.stack[-count:]
    del self.stack[-count:]
    return list(items)


def _frozenset(self: Any) -> None:
    items = self.pop_mark()
    try:
        self.append(frozenset(items))
    except Exception as error:
        self.append(self._lost("frozenset", error))


_Tolerant.dispatch[pickle.APPEND[0]] = lambda self: self.fill(_extend, _pop(self, 1))
_Tolerant.dispatch[pickle.APPENDS[0]] = lambda self: self.fill(_extend, self.pop_mark())
_Tolerant.dispatch[pickle.SETITEM[0]] = lambda self: self.fill(_update, _pop(self, 2))
_Tolerant.dispatch[pickle.SETITEMS[0]] = lambda self: self.fill(_update, self.pop_mark())
_Tolerant.dispatch[pickle.ADDITEMS[0]] = lambda self: self.fill(_add, self.pop_mark())
_Tolerant.dispatch[pickle.FROZENSET[0]] = _frozenset


def load_with_markers(
    prologue: bytes, streams: list[bytes], slots: list[Any], *, careful: bool = False
) -> tuple[list[Any], list[tuple[int, str]]]:
    """Return the values, and (index, reason) for each in which a marker stands."""
    unpickler = _Tolerant(io.BytesIO(prologue), slots)
    unpickler.load()
    memo = unpickler.memo
    values: list[Any] = []
    lost: list[tuple[int, str]] = []
    for index, stream in enumerate(streams):
        unpickler = _Tolerant(io.BytesIO(stream), slots, careful=careful)
        unpickler.memo = memo
        known = len(memo)
        try:
            values.append(unpickler.load())
            unpickler.fill_late()
        except BaseException as error:
            # One variable that cannot be read must not take the others with it: those after it
            # find what they share by number, so its numbers stay used.
            values.append(unpickler._lost("variable", error))
            made = sum(code.name == "MEMOIZE" for code, _, _ in pickletools.genops(stream))
            for number in range(len(memo), known + made):
                memo[number] = values[-1]
        lost.extend((index, reason) for reason in unpickler.reasons[:1])
    return values, lost
