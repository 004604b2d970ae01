"""A host for the escape corpus: runs one chapter in sessions of a kernel and watches from outside.

It is run as a process of its own, so that it can be anybody, and so that there is something to
steal: the secret is in its arguments, its environment, its memory and in a file. It prints one
JSON document: for every attempt the outcome, all text that came back, and what was harmed.

`escape_driver.py ENGINE CHAPTER SECRET`
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from escape_corpus import Attempt, read_chapter

from holdfast.core.errors import KernelError
from holdfast.kernels.cpython import CpythonKernel
from holdfast.kernels.monty import MontyKernel
from holdfast.kernels.port import (
    CellResult,
    HostAnswer,
    HostCall,
    Kernel,
    KernelLimits,
    KernelSession,
    KernelSettings,
)

LIMITS = KernelLimits(memory_bytes=256 << 20, output_bytes=64 << 10)
# Chapters whose attempts end at a limit; the others get time enough on a busy machine.
SHORT = KernelLimits(
    memory_bytes=256 << 20, cpu_seconds=0.5, wall_seconds=1.5, output_bytes=64 << 10
)
SHORT_CHAPTERS = ("exhaustion", "exits", "protocol")
AT_ONCE = 3
KERNELS: dict[str, Callable[[], Kernel]] = {
    "cpython": CpythonKernel,
    "monty": MontyKernel,
    "unconfined": lambda: CpythonKernel(confined=False),
}
_STARTED_AT = 1_700_000_000_000_000_000


class Trap:
    """What an escape would touch: files, ports and sockets that nobody may reach."""

    def __init__(self, base: Path, secret: str) -> None:
        self.base = base
        area = base / "area"
        area.mkdir()
        (area / "notes.txt").write_text("notes of the area\n")
        (base / "secret.txt").write_text(secret)
        (base / "secretmodule.py").write_text(f"VALUE = {secret!r}\n")
        (area / "link").symlink_to(base / "secret.txt")
        (area / "up").symlink_to(base)
        abstract = f"holdfast-{os.getpid()}"
        self._listeners = [
            self._listen(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0)),
            self._listen(socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0)),
            self._listen(socket.AF_UNIX, socket.SOCK_STREAM, str(base / "stream")),
            self._listen(socket.AF_UNIX, socket.SOCK_DGRAM, str(base / "datagram")),
            self._listen(socket.AF_UNIX, socket.SOCK_STREAM, "\0" + abstract),
        ]
        self.places = {
            "AREA": str(area),
            "OUTSIDE": str(base),
            "SECRET": str(base / "secret.txt"),
            "HOST_PID": str(os.getpid()),
            "TCP": str(self._listeners[0].getsockname()[1]),
            "UDP": str(self._listeners[1].getsockname()[1]),
            "UNIX": str(base / "stream"),
            "UNIX_DATAGRAM": str(base / "datagram"),
            "ABSTRACT": abstract,
        }
        self._before = self._files()

    def _listen(self, family: int, kind: int, address: Any) -> socket.socket:
        listener = socket.socket(family, kind)
        listener.bind(address)
        if kind == socket.SOCK_STREAM:
            listener.listen()
        listener.setblocking(False)
        return listener

    def _files(self) -> dict[str, Any]:
        found = {}
        for path in [self.base, *sorted(self.base.rglob("*"))]:
            status = path.lstat()
            content = path.read_bytes().hex() if stat.S_ISREG(status.st_mode) else ""
            extended = os.listxattr(path, follow_symlinks=False)
            owner, changed = status.st_uid, status.st_mtime_ns
            found[str(path)] = (status.st_mode, owner, changed, content, extended)
        return found

    def sprung(self) -> list[str]:
        """Return what was touched since the last time."""
        harm = []
        before, self._before = self._before, self._files()
        if self._before != before:
            harm.append("files were changed")
        for listener in self._listeners:
            try:
                listener.recv(1) if listener.type == socket.SOCK_DGRAM else listener.accept()
            except BlockingIOError:
                continue
            harm.append(f"somebody reached {listener.getsockname()!r}")
        if Path("/dev/shm/holdfast-escape").exists():
            harm.append("a shared memory segment was made")
        return harm


class Chunks:
    """The stored chunks of one session's checkpoints."""

    def __init__(self) -> None:
        self._stored: dict[str, bytes] = {}

    def store(self, result: CellResult) -> None:
        """Keep what a cell's checkpoint brought."""
        if result.checkpoint is not None:
            self._stored.update(result.checkpoint.chunks)

    async def fetch(self, chunk: str) -> bytes:
        """Return a chunk by its id."""
        return self._stored[chunk]


async def refuse(call: HostCall) -> HostAnswer:
    """Answer a call that no session here was offered."""
    return HostAnswer.failed("PermissionError", f"{call.function} was not offered", _STARTED_AT)


async def evaluate(session: KernelSession, code: str, chunks: Chunks) -> CellResult:
    """Run one cell and store its checkpoint."""
    result = await session.evaluate(code, started_at_ns=_STARTED_AT, on_call=refuse)
    chunks.store(result)
    return result


async def answers(session: KernelSession, chunks: Chunks) -> str:
    """Return what is wrong with a session that should answer; empty if it does."""
    try:
        result = await evaluate(session, "40 + 2", chunks)
    except KernelError as error:
        return f"{type(error).__name__}: {error}"
    if result.status != "ok" or result.value is None or result.value.text.head != "42":
        return f"{result.status} {result.value} {result.error}"
    return ""


async def run_attempt(
    kernel: Kernel, attempt: Attempt, trap: Trap, limits: KernelLimits
) -> dict[str, Any]:
    """Run one attempt in a session of its own; then ask the session, restored, to go on."""
    chunks = Chunks()
    settings = KernelSettings(read_roots=(trap.places["AREA"],), limits=limits)
    session = await kernel.open(settings, fetch=chunks.fetch)
    try:
        result = await evaluate(session, attempt.code_for(trap.places), chunks)
        outcome, text, printed = _outcome(result), repr(result), _printed(result)
    except KernelError as error:
        outcome, text, printed = "died", f"{type(error).__name__}: {error}", ""
    await session.park()
    silent = await answers(session, chunks)
    await session.close()
    harm = trap.sprung()
    if silent:
        harm.append(f"the session does not go on: {silent}")
    if "ESCAPED" in printed:
        harm.append("the attempt says that it got through")
    return {"name": attempt.name, "outcome": outcome, "text": text, "harm": harm}


def _outcome(result: CellResult) -> str:
    if result.status == "error" and result.error is not None:
        return result.error.type.rpartition(".")[2]
    return "ok" if result.status == "final" else result.status


def _printed(result: CellResult) -> str:
    shown = [result.stdout, result.stderr, *([result.value.text] if result.value else [])]
    return "".join(excerpt.head + excerpt.tail for excerpt in shown)


@contextmanager
def public_directory() -> Iterator[Path]:
    """Make a directory that every user of the machine can reach."""
    with tempfile.TemporaryDirectory() as name:
        base = Path(name).resolve()
        base.chmod(0o755)
        yield base


async def main(engine: str, chapter: str, secret: str) -> None:
    """Run one chapter and print what happened."""
    attempts = read_chapter(engine, chapter)
    limits = SHORT if chapter in SHORT_CHAPTERS else LIMITS
    kernel = KERNELS[engine]()
    with public_directory() as base:
        trap = Trap(base, secret)
        os.chdir(base)
        neighbour_chunks = Chunks()
        neighbour = await kernel.open(KernelSettings(), fetch=neighbour_chunks.fetch)
        # One after the other where every attempt must be told from the next.
        at_once = asyncio.Semaphore(1 if engine == "unconfined" else AT_ONCE)

        async def one(attempt: Attempt) -> dict[str, Any]:
            async with at_once:
                return await run_attempt(kernel, attempt, trap, limits)

        outcomes = await asyncio.gather(*(one(attempt) for attempt in attempts))
        silent = await answers(neighbour, neighbour_chunks)
        document = {
            "confinement": kernel.flags.confinement,
            "outcomes": outcomes,
            "neighbour": silent,
        }
        await kernel.close()
    print(json.dumps(document))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
