"""The C library, called directly: what `ctypes` is made of, without what `ctypes` takes to load.

A worker makes a few dozen calls before it may run anything, and the package alone would be a tenth
of its start. Whole numbers are passed as the machine's long, bytes as the address of their first;
a call that fails returns -1 and leaves its number in `errno`. Only the standard library is used,
so that a worker can load this file by its path.
"""

from __future__ import annotations

import _ctypes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

errno = _ctypes.get_errno
address = _ctypes.addressof


class _Int(_ctypes._SimpleCData):  # type: ignore[type-arg]
    _type_ = "i"


class _Long(_ctypes._SimpleCData):  # type: ignore[type-arg]
    _type_ = "l"


class _Byte(_ctypes._SimpleCData):  # type: ignore[type-arg]
    _type_ = "c"


class _Text(_ctypes._SimpleCData):  # type: ignore[type-arg]
    _type_ = "z"


class _Function(_ctypes.CFuncPtr):
    _flags_ = _ctypes.FUNCFLAG_CDECL | _ctypes.FUNCFLAG_USE_ERRNO
    _restype_ = _Int


class _System(_ctypes.CFuncPtr):
    _flags_ = _ctypes.FUNCFLAG_CDECL | _ctypes.FUNCFLAG_USE_ERRNO
    _restype_ = _Long


_library = _ctypes.dlopen(None, 0)  # type: ignore[arg-type]


def has(name: str) -> bool:
    """Tell whether this C library has a function."""
    try:
        return bool(_ctypes.dlsym(_library, name))
    except OSError:
        return False


def call(name: str, *arguments: Any) -> int:
    """Call a function of the C library whose result is an int."""
    return _call(_Function, name, arguments)


def system_call(*arguments: Any) -> int:
    """Make a system call by its number."""
    return _call(_System, "syscall", arguments)


# Looked up when they are first called: other systems lack some of them.
_functions: dict[str, Any] = {}


def _call(kind: Any, name: str, arguments: tuple[Any, ...]) -> int:
    found = _functions.get(name)
    if found is None:
        found = _functions[name] = kind(_ctypes.dlsym(_library, name))
    result: int = found(*[_Long(a) if type(a) is int else a for a in arguments])
    return result


def buffer(data: bytes) -> Any:
    """Return memory with these bytes and a zero behind them, which stays where it is."""
    return (_Byte * (len(data) + 1)).from_buffer_copy(data + b"\0")


def texts(words: list[bytes]) -> Any:
    """Return an array of texts that ends with a null pointer, as programs are started with."""
    return (_Text * (len(words) + 1))(*words, None)
