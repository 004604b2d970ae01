"""The work that every system does: the same bytes for all, checked in the same way."""

from __future__ import annotations

import hashlib
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import psycopg

DATABASE = "database"
"""The file of a case on a server: where its database is, and its size when it was empty."""
USER_BYTES, ASSISTANT_BYTES = 200, 1000


@dataclass(frozen=True, slots=True)
class Size:
    """How much of everything; `quick` is for trying a case out."""

    turns: int = 1000
    cold: int = 10_000
    children: tuple[int, ...] = (100, 1000)
    forks: int = 100
    sessions: int = 50
    session_turns: int = 20
    waits: int = 1000
    events: int = 100_000
    blob: int = 5_000_000
    blob_turns: int = 50
    unfinished: int = 1000


FULL = Size()
QUICK = Size(
    turns=40,
    cold=200,
    children=(10,),
    forks=5,
    sessions=5,
    session_turns=4,
    waits=10,
    events=2_000,
    blob=500_000,
    blob_turns=5,
    unfinished=10,
)

Figures: TypeAlias = dict[str, float]
Case: TypeAlias = Callable[[Path, Size], Figures]


def text(number: int, size: int) -> str:
    """Return text number N: printable, of one size, and like no other."""
    block = hashlib.sha256(str(number).encode()).hexdigest()
    return (f"{number:08d} " + block * (size // len(block) + 1))[:size]


def said(turns: int) -> list[str]:
    """Return what `turns` turns say, in order: user and assistant in turn."""
    return [
        text(number, USER_BYTES if number % 2 == 0 else ASSISTANT_BYTES)
        for number in range(2 * turns)
    ]


def check(found: list[str], turns: int) -> None:
    """Fail where what a system kept is not what was said: its time does not count."""
    expected = said(turns)
    if found != expected:
        raise AssertionError(f"kept {len(found)} texts, {len(expected)} were said, or they differ")


def stored(place: Path) -> int:
    """Return the bytes of a case: of its database on a server, or of its folder on the disk."""
    if (place / DATABASE).exists():
        url, empty = (place / DATABASE).read_text(encoding="utf-8").split()
        with psycopg.connect(url) as link:
            row = link.execute("select pg_database_size(current_database())").fetchone()
            return int(row[0]) - int(empty) if row else 0
    files = (path for path in place.rglob("*") if path.is_file())
    return sum(path.stat().st_blocks * 512 for path in files)


def peak_mb() -> float:
    """Return the most memory that this process had, in MB."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


@contextmanager
def timed(took: list[float]) -> Iterator[None]:
    """Add the seconds of a block to a list."""
    started = time.perf_counter()
    yield
    took.append(time.perf_counter() - started)


def late_ms(took: list[float]) -> float:
    """Return the median of the last tenth, in ms."""
    last = sorted(took[-max(1, len(took) // 10) :])
    return 1000 * last[len(last) // 2]


def die() -> None:
    """End this process as a crash does."""
    os.kill(os.getpid(), 9)
