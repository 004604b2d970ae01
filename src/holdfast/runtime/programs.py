"""Programs that the host starts for a session or a run, when a gate names them.

One has no shell and no input, an environment that is given to it, a process group of its own that
is killed with whoever waits for it, and bounded output. It has the rights of the host otherwise.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from holdfast.runtime.shielding import shielded


@dataclass(frozen=True, slots=True)
class Output:
    """What a program printed: the beginning of it, and how much there was."""

    kept: bytes
    size: int

    @property
    def text(self) -> str:
        """Return what was kept as text."""
        return self.kept.decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class Ended:
    """A program that has ended."""

    code: int
    stdout: Output
    stderr: Output


async def run_program(
    words: Sequence[str], *, folder: str | Path | None, environment: Mapping[str, str], keep: int
) -> Ended:
    """Run a program to its end, and keep so many bytes of each stream."""
    started: list[asyncio.subprocess.Process] = []

    async def start() -> None:
        process = await asyncio.create_subprocess_exec(
            *words,
            cwd=folder,
            env=dict(environment),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        started.append(process)

    try:
        # Broken off on the way, a start would leave behind what the program started in turn.
        await shielded(start())
        process = started[0]
        assert process.stdout is not None
        assert process.stderr is not None
        out, err = await asyncio.gather(
            _bounded(process.stdout, keep), _bounded(process.stderr, keep)
        )
        return Ended(await process.wait(), out, err)
    finally:
        # Broken off or timed out: what it started must not outlive the call.
        for begun in started:
            if begun.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(begun.pid, signal.SIGKILL)
                await begun.wait()


async def _bounded(stream: asyncio.StreamReader, keep: int) -> Output:
    """Read a stream to its end and keep its beginning."""
    kept, size = bytearray(), 0
    while part := await stream.read(1 << 16):
        size += len(part)
        kept += part[: keep - len(kept)]
    return Output(bytes(kept), size)
