"""The C library, called through `ctypes`: what confinement needs and the standard library lacks.

Whole numbers are passed as the machine's long, bytes as the address of their first byte; a call
that fails returns -1 and leaves its number in `errno`. Only the standard library is used, so that
a worker can load this file by its path.
"""

from __future__ import annotations

import ctypes
from ctypes import addressof as address
from ctypes import get_errno as errno

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["address", "buffer", "call", "errno", "has", "system_call", "texts"]

_library = ctypes.CDLL(None, use_errno=True)


def has(name: str) -> bool:
    """Tell whether this C library has a function."""
    return hasattr(_library, name)


def call(name: str, *arguments: Any) -> int:
    """Call a function of the C library whose result is an int."""
    # Looked up here: other systems lack some of these functions.
    result: int = getattr(_library, name)(*map(_argument, arguments))
    return result


def system_call(*arguments: Any) -> int:
    """Make a system call by its number."""
    function = _library.syscall
    function.restype = ctypes.c_long
    result: int = function(*map(_argument, arguments))
    return result


def _argument(value: Any) -> Any:
    # The functions take variable arguments: an int would be passed as 32 bits of a register.
    return ctypes.c_long(value) if type(value) is int else value


def buffer(data: bytes) -> Any:
    """Return memory with these bytes and a zero behind them, which stays where it is."""
    return ctypes.create_string_buffer(data)


def texts(words: list[bytes]) -> Any:
    """Return an array of texts that ends with a null pointer, as programs are started with."""
    return (ctypes.c_char_p * (len(words) + 1))(*words, None)
