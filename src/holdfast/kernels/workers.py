"""The host's end of a worker process: messages over two pipes, CPU and memory, interrupt, kill.

Pipes wake the process that waits and no other; a socket would wake its sender, too. The host
trusts neither what a worker sends nor that it reads: interrupting is a request, killing is certain.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import signal
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from holdfast.core.errors import KernelDied, KernelError, KernelProtocolError
from holdfast.kernels import frames
from holdfast.kernels.frame_reader import FrameReader, LargeChunk
from holdfast.kernels.frames import Frame
from holdfast.kernels.off_loop import off_loop
from holdfast.kernels.worker.cell.host_calls import PROBE

# Frames that may wait to be taken before the worker is no longer listened to.
MOST_WAITING = 8
READ_BYTES = 1 << 16
# What a new worker does not share with the process that it was forked from.
FORKED_BYTES = 4 << 20
_PAGE_BYTES = os.sysconf("SC_PAGESIZE")
_UNASKED = "the worker sent something that nobody asked for; the worker was stopped"


class WorkerLost(Exception):
    """The worker is gone; `error` says why if nobody asked for it."""

    def __init__(self, error: KernelError) -> None:
        super().__init__(str(error))
        self.error = error


class Worker:
    """The host's end of one worker process."""

    def __init__(
        self,
        pid: int,
        parent: int,
        reap: Callable[[int], None],
        incoming: io.FileIO,
        outgoing: io.FileIO,
        shared_bytes: int = 0,
    ) -> None:
        self.pid = pid
        self.parent = parent
        self.lost: KernelError | None = None
        # Takes a frame right where it is read, and says whether it did.
        self.handler: Callable[[Frame], bool] | None = None
        # Whether it was asked for something. Between cells it has nothing to say.
        self._asked = False
        # Whether it has said anything about the last command.
        self.heard = False
        self._reap = reap
        self._shared_bytes = shared_bytes
        self._reader = FrameReader()
        # What has arrived and is not handled yet: a large chunk holds up what came after it.
        self._arrived: deque[Frame | LargeChunk] = deque()
        self._finishing: asyncio.Task[None] | None = None
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
            self.heard = self.heard or bool(data)
            self._arrived.extend(self._reader.feed(data))
            self._handle()
        except KernelProtocolError as error:
            self.kill(error)
        if len(self._frames) > MOST_WAITING and self.lost is None:
            self._pause()
        self._wake()

    def _handle(self) -> None:
        while self._arrived and self._finishing is None:
            frame = self._arrived.popleft()
            if isinstance(frame, LargeChunk):
                self._pause()
                self._finishing = self._loop.create_task(self._finish(frame))
            elif self.handler is None or not self.handler(frame):
                self._frames.append(frame)

    async def _finish(self, chunk: LargeChunk) -> None:
        """Check a large chunk off the event loop, then go on with what came after it."""
        try:
            frame = await off_loop(chunk.read)
        except (KernelProtocolError, OSError) as error:
            told = error if isinstance(error, KernelProtocolError) else None
            self.kill(told or KernelError(f"a chunk of the worker could not be read: {error}"))
            return
        self._finishing = None
        self._arrived.appendleft(frame)
        try:
            self._handle()
        except KernelProtocolError as error:
            self.kill(error)
        if self._finishing is None:
            self._resume()
        self._wake()

    def _pause(self) -> None:
        """Read no more for now."""
        if not self._paused:
            self._paused = True
            self._loop.remove_reader(self._incoming)

    def _resume(self) -> None:
        if self._paused and self.lost is None:
            self._paused = False
            self._loop.add_reader(self._incoming, self._readable)

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
        """Return the next frame; raise WorkerLost once the worker is gone."""
        while not self._frames:
            if self.lost is not None:
                raise WorkerLost(self.lost)
            self._waiter = self._loop.create_future()
            await self._waiter
        if self._finishing is None:
            self._resume()
        return self._frames.popleft()

    def limit(self, chunk_bytes: int) -> None:
        """Bound what the worker may send as chunks before they are taken away."""
        self._reader.limit(chunk_bytes)

    def ask(self, command: dict[str, Any]) -> None:
        """Send a command, and listen to what is said about it."""
        self._asked, self.heard = True, False
        self.send(command)

    def end_command(self) -> None:
        """Accept no more frames: the command is done, and whatever else was sent is unasked."""
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

    def private_bytes(self) -> int:
        """Return about how much memory the process holds for itself alone."""
        return max(anonymous_bytes(self.pid) - self._shared_bytes, 0) + FORKED_BYTES

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
        self._reap(self.pid)
        self._loop.remove_reader(self._incoming)
        self._loop.remove_writer(self._outgoing)
        self._incoming.close()
        self._outgoing.close()
        self._unsent.clear()
        self._reader.close()
        self._arrived.clear()
        if self._finishing is not None and self._finishing is not asyncio.current_task(self._loop):
            self._finishing.cancel()
        self._wake()


def anonymous_bytes(pid: int) -> int:
    """Return the memory of a process that is not a part of any file; 0 if it is gone."""
    try:
        descriptor = os.open(f"/proc/{pid}/statm", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        fields = os.read(descriptor, 200).split()
    except OSError:
        return 0
    finally:
        os.close(descriptor)
    return (int(fields[1]) - int(fields[2])) * _PAGE_BYTES
