"""Locks between processes: flock, held only around check, write and sync.

The kernel drops a lock when its holder dies, so nothing has to be cleaned up. Waiting is bounded:
a process that was stopped while it held a lock must not stop everyone else for good.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.core.errors import NothingWritten

WAIT_SECONDS = 60.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.0005, 0.01


@contextmanager
def locked(path: Path, *, shared: bool = False, wait: float = WAIT_SECONDS) -> Iterator[None]:
    """Hold a lock file, alone or together with other sharers."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        _take(descriptor, fcntl.LOCK_SH if shared else fcntl.LOCK_EX, path, wait)
        yield
    finally:
        os.close(descriptor)


def _take(descriptor: int, kind: int, path: Path, wait: float) -> None:
    deadline, pause = time.monotonic() + wait, _FIRST_PAUSE
    while True:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise NothingWritten(
                    f"{str(path)!r} has been locked by another process for {wait:g} seconds; see "
                    "what it is doing (`lslocks` names it), then try again"
                ) from None
            time.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)
