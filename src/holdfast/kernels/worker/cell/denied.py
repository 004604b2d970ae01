"""Denied gates: which part of the capability refused what a cell tried, in words.

The operating system only says that an operation is not permitted. The model is told which gate of
its capability that was, so that it does not try again in another way.
"""

from __future__ import annotations

import errno
import os
import posix

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

NETWORK = "network is not allowed in a cell: capability gate network_hosts, by recorded calls only"
PROGRAMS = "other processes are not allowed in a cell: capability gate shell_commands"
WRITING = "writing files is not allowed in a cell: capability gate write_roots"
READING = "reading this is not allowed: capability gate read_roots"

_DENIED = (errno.EPERM, errno.EACCES)
# What the last lines of a traceback name, by which an operation without a path is told.
_NETWORK_WORDS = ("socket", "connect", "urlopen", "getaddrinfo", "gethostby", "http", "bind(")
_PROGRAM_WORDS = ("fork", "exec", "spawn", "popen", "subprocess", "os.system", "kill(", "pty.")
_NETWORK_MODULES = ("socket", "ssl", "http.client", "urllib.request", "asyncio.")
_PROGRAM_MODULES = ("subprocess", "pty", "multiprocessing.")
_CHAIN = 10


def denied_gate(error: BaseException, lines: dict[str, list[str]]) -> str | None:
    """Return which gate a confined cell ran into; None where its error is another one."""
    found: BaseException | None = error
    for _ in range(_CHAIN):
        if isinstance(found, OSError):
            said = _gate_of(found, lines)
            if said is not None:
                return said
        reason = getattr(found, "reason", None)  # what urllib puts around the real error
        inner = getattr(found, "__cause__", None) or getattr(found, "__context__", None)
        found = reason if isinstance(reason, BaseException) else inner
        if found is None:
            return None
    return None


def _gate_of(error: OSError, lines: dict[str, list[str]]) -> str | None:
    if type(error).__name__ == "gaierror":
        return NETWORK
    if error.errno not in _DENIED:
        return None
    modules, text = _raised_in(error, lines)
    gates = (
        (PROGRAMS, _PROGRAM_MODULES, _PROGRAM_WORDS),
        (NETWORK, _NETWORK_MODULES, _NETWORK_WORDS),
    )
    for gate, names, _ in gates:
        if any(module.startswith(names) for module in modules):
            return gate
    if isinstance(error.filename, (str, bytes)):
        return WRITING if _readable(os.fsdecode(error.filename)) else READING
    return next((gate for gate, _, words in gates if any(w in text for w in words)), None)


def _raised_in(error: OSError, lines: dict[str, list[str]]) -> tuple[list[str], str]:
    """Return the modules that an error passed through, and the cell's line that it came from."""
    modules, text = [], ""
    trace = error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        name = frame.f_globals.get("__name__")
        modules.append(name if isinstance(name, str) else "")
        cell: Any = lines.get(frame.f_code.co_filename)
        if cell is not None and 0 < trace.tb_lineno <= len(cell):
            text = cell[trace.tb_lineno - 1].lower()
        trace = trace.tb_next
    return modules, text


def _readable(path: str) -> bool:
    """Tell whether a path, or the folder in which it was to be made, can be read."""
    for place in (path, os.path.dirname(path) or "."):
        try:
            posix.close(posix.open(place, posix.O_RDONLY | posix.O_NONBLOCK | posix.O_CLOEXEC))
        except FileNotFoundError:
            continue
        except (OSError, ValueError):
            return False
        return True
    return False
