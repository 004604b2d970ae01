"""A worker process: how it is started, spoken to, watched and stopped.

It is started with nothing: no environment but a constant hash seed, no site packages, no
descriptors but its end of a socket pair. The host trusts neither what it says nor that it listens:
interrupting is a request, killing is what counts.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any

from holdfast.core.errors import KernelDied, KernelError, KernelProtocolError
from holdfast.kernels import frames
from holdfast.kernels.frames import Frame

_START = Path(__file__).parent / "worker" / "start.py"
_FLAGS = ("-s", "-S", "-P", "-X", "utf8")
# A constant seed: sets and dicts of text iterate alike in every worker, so re-runs do, too.
_ENVIRONMENT = {"PYTHONHASHSEED": "0"}


class Lost(Exception):
    """The worker is gone; `error` says why if nobody asked for it."""

    def __init__(self, error: KernelError) -> None:
        super().__init__(str(error))
        self.error = error


class Worker(asyncio.Protocol):
    """The host's end of one worker process."""

    def __init__(self, process: subprocess.Popen[bytes], descriptor: int) -> None:
        self.process = process
        self.descriptor = descriptor
        self.pid = process.pid
        self.lost: KernelError | None = None
        self._reader = frames.FrameReader()
        self._frames: deque[Frame] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._transport: asyncio.Transport | None = None
        self.unread_bytes = 0
        self.unread_limit = frames.MAX_CHUNK_BYTES

    @classmethod
    async def start(cls) -> Worker:
        """Start a worker; it is not confined before it is opened."""
        ours, theirs = socket.socketpair()
        with theirs:
            worker = cls(_spawn(theirs.fileno()), theirs.fileno())
        await asyncio.get_running_loop().create_connection(lambda: worker, sock=ours)
        return worker

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.set_write_buffer_limits(1 << 26)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            for frame in self._reader.feed(data):
                if isinstance(frame, frames.ChunkFrame):
                    self.unread_bytes += len(frame.data)
                    if self.unread_bytes > self.unread_limit:
                        raise KernelProtocolError(
                            f"the worker sent more than {self.unread_limit} bytes of chunks at "
                            "once; the worker was stopped"
                        )
                self._frames.append(frame)
        except KernelProtocolError as error:
            self.kill(error)
        self._wake()

    def connection_lost(self, error: Exception | None) -> None:
        if self.lost is None:
            self.kill(None)
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def push(self, frame: Any) -> None:
        """Put something of the host's own into the stream of frames."""
        self._frames.append(frame)
        self._wake()

    async def next_frame(self) -> Any:
        """Return the next frame; raise Lost once the worker is gone."""
        while not self._frames:
            if self.lost is not None:
                raise Lost(self.lost)
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self._frames.popleft()

    def send(self, command: dict[str, Any]) -> None:
        """Send a command or an answer; nothing happens if the worker is gone."""
        self.send_raw(frames.command_frame(command))

    def send_raw(self, frame: bytes) -> None:
        """Send a frame as it is."""
        if self.lost is None and self._transport is not None:
            self._transport.write(frame)

    def cpu_ns(self) -> int:
        """Return the CPU time that the process has used so far, all threads together."""
        try:
            return time.clock_gettime_ns((~self.pid << 3) | 2)
        except OSError:
            return 0

    def resident_bytes(self) -> int:
        """Return the memory that the process holds."""
        try:
            fields = Path(f"/proc/{self.pid}/statm").read_text().split()
        except OSError:
            return 0
        return (int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGESIZE")

    def interrupt(self) -> None:
        """Ask the running cell to stop."""
        if self.lost is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                self.process.send_signal(signal.SIGINT)
            # A worker that waits for an answer only notices the signal when a frame arrives.
            self.send({"id": -1})

    def kill(self, error: KernelError | None) -> None:
        """End the process for good, for this reason or because it ended by itself."""
        if self.lost is not None:
            return
        code = self.process.poll()
        self.lost = error or KernelDied(
            f"the worker process {self.pid} ended{_how(code)} while it was in use; the namespace "
            "is as at its last checkpoint: evaluate again"
        )
        with contextlib.suppress(ProcessLookupError, PermissionError):
            self.process.kill()
        if self._transport is not None:
            self._transport.abort()
        if code is None:
            # The kernel takes a while to give back a large process's memory.
            asyncio.get_running_loop().run_in_executor(None, self.process.wait)


def _spawn(descriptor: int) -> subprocess.Popen[bytes]:
    # On the loop's own thread: a worker dies with the thread that started it.
    return subprocess.Popen(
        [interpreter(), *_FLAGS, str(_START), str(descriptor)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=_ENVIRONMENT,
        pass_fds=(descriptor,),
        cwd="/",
    )


def _how(code: int | None) -> str:
    if code is None:
        return ""
    return f" by signal {-code}" if code < 0 else f" with exit code {code}"


def interpreter() -> str:
    """Return the interpreter that runs workers: the one below a virtual environment."""
    return getattr(sys, "_base_executable", None) or sys.executable
