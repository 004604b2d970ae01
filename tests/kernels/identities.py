"""Who a test's child process can be: whoever runs the tests, and for root also nobody.

The interpreter may lie below a directory that is closed to others. As nobody, the child then lives
in a mount namespace in which just the needed directories are reachable.

As a script: `identities.py PATHS... -- COMMAND...` becomes nobody and runs the command.
"""

from __future__ import annotations

import ctypes
import os
import stat
import sys
from functools import cache
from pathlib import Path

NOBODY = 65534
_CLONE_NEWNS, _MS_BIND, _MS_REC, _MS_PRIVATE = 0x20000, 0x1000, 0x4000, 0x40000


@cache
def identities() -> list[str]:
    """Return the identities that a child of this process can take."""
    if os.geteuid() != 0:
        return ["self"]
    child = os.fork()
    if child == 0:
        try:
            _become_nobody(_needed())
            reachable = os.access(sys.executable, os.X_OK)
        except OSError:
            reachable = False
        os._exit(0 if reachable else 1)
    _, status = os.waitpid(child, 0)
    return ["self", "nobody"] if status == 0 else ["self"]


def command_as(identity: str, command: list[str]) -> list[str]:
    """Return the command that runs a command as somebody."""
    if identity == "self":
        return command
    return [sys.executable, __file__, *_needed(), "--", *command]


def _needed() -> list[str]:
    repository = str(Path(__file__).parents[2])
    return sorted({repository, sys.prefix, sys.base_prefix})


def _become_nobody(paths: list[str]) -> None:
    closed: dict[str, list[str]] = {}
    for path in paths:
        barrier = _closed_ancestor(path)
        if barrier is not None:
            closed.setdefault(barrier, []).append(path)
    if closed:
        _checked(_libc.unshare(_CLONE_NEWNS))
        _mount("none", "/", None, _MS_REC | _MS_PRIVATE, None)
    for barrier, below in closed.items():
        held = {path: os.open(path, os.O_PATH) for path in below}
        _mount("none", barrier, "tmpfs", 0, "mode=755")
        for path, fd in held.items():
            os.makedirs(path, mode=0o755, exist_ok=True)
            _mount(f"/proc/self/fd/{fd}", path, None, _MS_BIND | _MS_REC, None)
            os.close(fd)
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)


def _closed_ancestor(path: str) -> str | None:
    for ancestor in reversed(Path(path).parents):
        if not ancestor.stat().st_mode & stat.S_IXOTH:
            return str(ancestor)
    return None


_libc = ctypes.CDLL(None, use_errno=True)


def _mount(source: str, target: str, kind: str | None, flags: int, data: str | None) -> None:
    encoded = [None if text is None else text.encode() for text in (source, target, kind, data)]
    _checked(_libc.mount(*encoded[:3], ctypes.c_ulong(flags), encoded[3]))


def _checked(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


if __name__ == "__main__":
    end = sys.argv.index("--")
    _become_nobody(sys.argv[1:end])
    os.execv(sys.argv[end + 1], sys.argv[end + 1 :])
