"""A worker process: how it is started, spoken to, watched and stopped.

Workers are forked from one process that has loaded the interpreter for all of them. That process
is started with nothing: no environment but a constant hash seed, no site packages, no descriptors
but its end of a socket pair. A worker is spoken to over a pair of pipes, which wake the process
that waits and no other; a socket would wake its sender, too. The host trusts neither what a worker
says nor that it listens: interrupting is a request, killing is what counts.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.core.errors import KernelDied, KernelError, KernelProtocolError
from holdfast.kernels import frames
from holdfast.kernels.frames import Frame
from holdfast.kernels.worker.bridge import PROBE

_START = Path(__file__).parent / "worker" / "start.py"
_FLAGS = ("-s", "-S", "-P", "-X", "utf8")
# A constant seed: sets and dicts of text iterate alike in every worker, so re-runs do, too.
_ENVIRONMENT = {"PYTHONHASHSEED": "0"}
# Frames that may wait to be taken before the worker is no longer listened to.
MOST_WAITING = 8
READ_BYTES = 1 << 16
_UNASKED = "the worker sent something that nobody asked for; the worker was stopped"


class Lost(Exception):
    """The worker is gone; `error` says why if nobody asked for it."""

    def __init__(self, error: KernelError) -> None:
        super().__init__(str(error))
        self.error = error


class Nursery:
    """The host's end of the process that workers are forked from."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._answers: deque[asyncio.Future[int]] = deque()

    def start(self) -> int:
        """Start the process unless it runs, and return its number."""
        if self._process is not None and self._process.poll() is not None:
            self.close()  # the event loop has not heard yet
        if self._process is None:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                self._process = subprocess.Popen(
                    [interpreter(), *_FLAGS, str(_START), str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env=_ENVIRONMENT,
                    pass_fds=(theirs.fileno(),),
                    cwd="/",
                    # A Ctrl-C at the terminal is for the host alone: the cell that it breaks off
                    # is run again on resume and must not end in KeyboardInterrupt first.
                    process_group=0,
                )
            self._control = ours
            asyncio.get_running_loop().add_reader(ours, self._read)
        return self._process.pid

    def _read(self) -> None:
        assert self._control is not None
        number = self._control.recv(4)
        if not number:
            self.close()
            return
        answer = self._answers.popleft()
        if answer.done():
            # Nobody waits for this worker any more.
            self.reap(int.from_bytes(number, "big"))
        else:
            answer.set_result(int.from_bytes(number, "big"))

    async def spawn(self, *, own_paths: bool) -> Worker:
        """Fork a worker, with rules of its own if its session may read paths.

        It is not confined before it is opened.
        """
        parent = self.start()
        control = self._control
        assert control is not None
        loop = asyncio.get_running_loop()
        answer = loop.create_future()
        incoming, theirs = _pipe()
        with theirs:
            hears, outgoing = _pipe()
            with hears:
                try:
                    request = [b"F" if own_paths else b"A"]
                    socket.send_fds(control, request, [hears.fileno(), theirs.fileno()])
                    self._answers.append(answer)
                    return Worker(await answer, parent, self, incoming, outgoing)
                except BaseException as error:
                    incoming.close()
                    outgoing.close()
                    if not isinstance(error, OSError):
                        raise
                    if self._control is control:  # another may stand in its place already
                        self.close()
                    raise KernelDied(
                        f"a worker could not be started: {error}; try again"
                    ) from error

    def reap(self, number: int) -> None:
        """End a process and let go of its number."""
        if self._control is not None:
            with contextlib.suppress(OSError):
                self._control.send(b"R" + number.to_bytes(4, "big"))

    def close(self) -> None:
        """Stop the process, and with it every worker."""
        if self._process is None or self._control is None:
            return
        process, control = self._process, self._control
        self._process = self._control = None
        asyncio.get_running_loop().remove_reader(control)
        control.close()
        process.kill()
        process.wait()
        while self._answers:
            answer = self._answers.popleft()
            if not answer.done():
                answer.set_exception(OSError("the process that workers come from has ended"))


class Worker:
    """The host's end of one worker process."""

    def __init__(
        self, pid: int, parent: int, nursery: Nursery, incoming: io.FileIO, outgoing: io.FileIO
    ) -> None:
        self.pid = pid
        self.parent = parent
        self.lost: KernelError | None = None
        # Takes a frame right where it is read, and says whether it did.
        self.handler: Callable[[Frame], bool] | None = None
        # Whether it was asked for something. Between cells it has nothing to say.
        self._asked = False
        self._nursery = nursery
        self._reader = frames.FrameReader()
        self._frames: deque[Frame] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._incoming, self._outgoing = incoming, outgoing
        self._unsent: deque[memoryview] = deque()
        self._paused = False
        for stream in (incoming, outgoing):
            os.set_blocking(stream.fileno(), False)
        self._loop.add_reader(incoming, self._readable)

    def is_alive(self) -> bool:
        """Tell whether an idle worker is still there; the event loop may not have heard yet."""
        if self.lost is None:
            self._readable()
        return self.lost is None

    def _readable(self) -> None:
        try:
            data = self._incoming.read(READ_BYTES)
        except OSError:
            data = b""
        if data is None:
            return
        try:
            if not data:
                self.kill(None)
            elif not self._asked:
                raise KernelProtocolError(_UNASKED)
            for frame in self._reader.feed(data):
                if self.handler is None or not self.handler(frame):
                    self._frames.append(frame)
        except KernelProtocolError as error:
            self.kill(error)
        if len(self._frames) > MOST_WAITING and self.lost is None:
            self._loop.remove_reader(self._incoming)
            self._paused = True
        self._wake()

    def _writable(self) -> None:
        if self._flush() and self.lost is None:
            self._loop.remove_writer(self._outgoing)

    def _flush(self) -> bool:
        """Write what the pipe takes; return whether nothing is left."""
        try:
            while self._unsent:
                sent = self._outgoing.write(self._unsent[0]) or 0
                if sent < len(self._unsent[0]):
                    self._unsent[0] = self._unsent[0][sent:]
                    return False
                self._unsent.popleft()
        except OSError:
            self.kill(None)
        return True

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
            self._waiter = self._loop.create_future()
            await self._waiter
        if self._paused and self.lost is None:
            self._paused = False
            self._loop.add_reader(self._incoming, self._readable)
        return self._frames.popleft()

    def limit(self, chunk_bytes: int) -> None:
        """Bound what the worker may send as chunks before they are taken away."""
        self._reader.limit(chunk_bytes)

    def ask(self, command: dict[str, Any]) -> None:
        """Send a command, and listen to what is said about it."""
        self._asked = True
        self.send(command)

    def settle(self) -> None:
        """Listen no more: the command is done, and whatever else was said was not asked for."""
        self._asked = False
        if any(isinstance(frame, Frame) for frame in self._frames):
            self.kill(KernelProtocolError(_UNASKED))
        self._frames.clear()

    def send(self, command: dict[str, Any]) -> None:
        """Send a command or an answer; nothing happens if the worker is gone."""
        self.send_raw(frames.command_frame(command))

    def send_raw(self, frame: bytes) -> None:
        """Send a frame as it is."""
        if self.lost is not None:
            return
        self._unsent.append(memoryview(frame))
        if len(self._unsent) == 1 and not self._flush():
            self._loop.add_writer(self._outgoing, self._writable)

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
                os.kill(self.pid, signal.SIGINT)
            # A worker that waits for an answer only notices the signal when a frame arrives.
            self.send({"id": -1})

    def probe(self) -> None:
        """Ask how many threads of the cell sleep; answered if one of them waits for a call."""
        self.send({"id": PROBE})

    def kill(self, error: KernelError | None) -> None:
        """End the process for good, for this reason or because it ended by itself."""
        if self.lost is not None:
            return
        self.lost = error or KernelDied(
            f"the worker process {self.pid} ended while it was in use; the namespace is as at its "
            "last checkpoint: evaluate again"
        )
        # It may have closed its end and gone on.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(self.pid, signal.SIGKILL)
        self._nursery.reap(self.pid)
        self._loop.remove_reader(self._incoming)
        self._loop.remove_writer(self._outgoing)
        self._incoming.close()
        self._outgoing.close()
        self._unsent.clear()
        self._wake()


def _pipe() -> tuple[io.FileIO, io.FileIO]:
    reads, writes = os.pipe()
    return io.FileIO(reads, "r"), io.FileIO(writes, "w")


def interpreter() -> str:
    """Return the interpreter that runs workers: the one that a virtual environment links to."""
    return os.path.realpath(sys.executable)
