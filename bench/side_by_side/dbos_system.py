"""DBOS's side of the work, as it is shipped: workflows of steps, on SQLite or PostgreSQL."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dbos import DBOS, SetWorkflowID

from bench.side_by_side.work import (
    ASSISTANT_BYTES,
    USER_BYTES,
    Case,
    Figures,
    Size,
    check,
    die,
    late_ms,
    stored,
    text,
    timed,
)

RECOVERY_SECONDS = 120


@DBOS.step()
def reply(number: int) -> str:
    """Answer as a model would."""
    return text(2 * number + 1, ASSISTANT_BYTES)


@DBOS.workflow()
def turn(said: str, number: int) -> list[str]:
    """Work one message: its text is the workflow's input, the reply a step."""
    return [said, reply(number)]


@DBOS.step()
def small(number: int) -> str:
    """Do one of many steps."""
    return text(number, 150)


@DBOS.workflow()
def steps(count: int) -> int:
    """Do many steps."""
    return sum(1 for number in range(count) if small(number))


@DBOS.workflow()
def child(number: int) -> int:
    """Do a child's one step."""
    small(number)
    return 1


@DBOS.workflow()
def fan_out(width: int) -> int:
    """Start children and wait for them."""
    handles = [DBOS.start_workflow(child, number) for number in range(width)]
    return sum(handle.get_result() for handle in handles)


@DBOS.workflow()
def waits() -> str:
    """Wait for a message."""
    return str(DBOS.recv("answer", timeout_seconds=3600))


@DBOS.step()
def keep(blob: str) -> str:
    """Return what a tool found."""
    return blob


@DBOS.workflow()
def blobs(count: int, size: int) -> int:
    """Refer to one result in many steps."""
    blob = text(1, size)
    return sum(len(keep(blob)) for _ in range(count))


@DBOS.workflow()
def hangs(marker: str) -> str:
    """Be in a step when the process dies; go through it afterwards."""
    return hang(marker)


@DBOS.step()
def hang(marker: str) -> str:
    """Wait for ever while the marker is there."""
    while Path(marker).exists():
        time.sleep(0.05)
    return "done"


@DBOS.workflow()
def streams(count: int) -> None:
    """Write a stream."""
    for number in range(count):
        DBOS.write_stream("items", {"n": number})


@contextmanager
def _launched(place: Path, url: str) -> Iterator[None]:
    database = url or f"sqlite:///{place}/dbos.sqlite"
    DBOS(
        config={
            "name": "bench",
            "system_database_url": database,
            "run_admin_server": False,
            "log_level": "ERROR",
            "application_version": "bench",
        }
    )
    DBOS.launch()
    try:
        yield
    finally:
        DBOS.destroy()


class Dbos:
    """The cases, on one database."""

    def __init__(self, url: str) -> None:
        self.url = url

    def b1(self, place: Path, size: Size) -> Figures:
        took: list[float] = []
        found: list[str] = []
        with _launched(place, self.url):
            for number in range(size.turns):
                with timed(took), SetWorkflowID(f"t-{number}"):
                    turn(text(2 * number, USER_BYTES), number)
            for number in range(size.turns):
                found += DBOS.retrieve_workflow(f"t-{number}").get_result()
            check(found, size.turns)
        return {"seconds": sum(took), "ms at the end": late_ms(took), "bytes": stored(place)}

    def b2(self, place: Path, size: Size) -> Figures:
        with _launched(place, self.url):
            with SetWorkflowID("long"):
                assert steps(size.cold) == size.cold
            started = time.perf_counter()
            handle = DBOS.fork_workflow("long", size.cold)  # runs over all recorded steps
            assert handle.get_result() == size.cold
            seconds = time.perf_counter() - started
        return {"ms": 1000 * seconds}

    def b3(self, place: Path, size: Size) -> Figures:
        with _launched(place, self.url):
            with SetWorkflowID("long"):
                steps(size.turns)
            started = time.perf_counter()
            found = DBOS.list_workflow_steps("long")[-100:]
            ms = 1000 * (time.perf_counter() - started)
            assert len(found) == min(100, size.turns)
        return {"ms for 100": ms}

    def b4(self, place: Path, size: Size) -> Figures:
        figures: Figures = {}
        with _launched(place, self.url):
            for width in size.children:
                took: list[float] = []
                with timed(took):
                    assert fan_out(width) == width
                figures[f"ms each of {width}"] = 1000 * took[0] / width
        return figures

    def b5(self, place: Path, size: Size) -> Figures:
        with _launched(place, self.url):
            with SetWorkflowID("long"):
                steps(size.turns)
            before = stored(place)
            started = time.perf_counter()
            handles = [DBOS.fork_workflow("long", size.turns // 2) for _ in range(size.forks)]
            ms = 1000 * (time.perf_counter() - started) / size.forks
            grown = (stored(place) - before) / size.forks
            for handle in handles:
                handle.get_result()
        return {"ms each": ms, "bytes each": grown}

    def b7(self, place: Path, size: Size) -> Figures:
        program = (
            "from bench.side_by_side import dbos_system as system\n"
            f"system.begin_waits({str(place)!r}, {self.url!r}, {size.waits})\n"
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        assert done.returncode == -9, done.stderr
        started = time.perf_counter()
        with _launched(place, self.url):
            for number in range(size.waits):
                DBOS.send(f"w-{number}", "a", "answer")
            for number in range(size.waits):
                assert DBOS.retrieve_workflow(f"w-{number}").get_result() == "a"
            seconds = time.perf_counter() - started
        return {"seconds": seconds, "bytes each": stored(place) / size.waits}

    def b8(self, place: Path, size: Size) -> Figures:
        with _launched(place, self.url):
            with SetWorkflowID("stream"):
                streams(size.events)
            started = time.perf_counter()
            seen = [item["n"] for item in DBOS.read_stream("stream", "items")]
            seconds = time.perf_counter() - started
        repeats = len(seen) - len(set(seen))
        gaps = size.events - len(set(seen))
        return {"events/s": len(seen) / seconds, "gaps": gaps, "repeats": repeats}

    def b9(self, place: Path, size: Size) -> Figures:
        with _launched(place, self.url):
            assert blobs(size.blob_turns, size.blob) == size.blob_turns * size.blob
        return {"times its size": stored(place) / size.blob}

    def b10(self, place: Path, size: Size) -> Figures:
        marker = place / "hangs"
        marker.touch()
        program = (
            "from bench.side_by_side import dbos_system as system\n"
            f"system.cut_short({str(place)!r}, {self.url!r}, {size.unfinished}, {str(marker)!r})\n"
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        assert done.returncode == -9, done.stderr
        marker.unlink()
        started = time.perf_counter()
        with _launched(place, self.url):  # which recovers what was pending
            for number in range(size.unfinished):
                assert DBOS.retrieve_workflow(f"h-{number}").get_result() == "done"
            seconds = time.perf_counter() - started
        return {"seconds": seconds}


def begin_waits(place: str, url: str, count: int) -> None:
    """Begin workflows that wait, then die."""
    with _launched(Path(place), url):
        _begin("w", count, waits)
        die()


def cut_short(place: str, url: str, count: int, marker: str) -> None:
    """Begin workflows whose step does not end, then die."""
    with _launched(Path(place), url):
        _begin("h", count, hangs, marker)
        die()


def _begin(prefix: str, count: int, work: Any, *arguments: Any) -> None:
    for number in range(count):
        with SetWorkflowID(f"{prefix}-{number}"):
            DBOS.start_workflow(work, *arguments)


def cases(url: str = "") -> dict[str, Case]:
    """Return the cases by name."""
    system = Dbos(url)
    return {
        "B1": system.b1,
        "B2": system.b2,
        "B3": system.b3,
        "B4": system.b4,
        "B5": system.b5,
        "B7": system.b7,
        "B8": system.b8,
        "B9": system.b9,
        "B10": system.b10,
    }
