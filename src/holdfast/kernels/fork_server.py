"""The fork server: one process that has loaded the interpreter, from which workers are forked.

It is started with nothing: no environment but a constant hash seed, no site packages, no
descriptors but its end of a socket pair. It runs no code of a model.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import socket
import subprocess
import sys
from collections import deque
from pathlib import Path

from holdfast.core.errors import KernelDied
from holdfast.kernels.workers import Worker, anonymous_bytes

_START = Path(__file__).parent / "worker" / "start.py"
_FLAGS = ("-s", "-S", "-P", "-X", "utf8")
# A constant seed: sets and dicts of text iterate alike in every worker, so re-runs do, too.
_ENVIRONMENT = {"PYTHONHASHSEED": "0"}


class ForkServer:
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
            their_input, outgoing = _pipe()
            with their_input:
                try:
                    request = [b"F" if own_paths else b"A"]
                    socket.send_fds(control, request, [their_input.fileno(), theirs.fileno()])
                    self._answers.append(answer)
                    pid = await answer
                    # As much as that process has now, a fork of it shares with it at first.
                    shared = anonymous_bytes(parent)
                    return Worker(pid, parent, self.reap, incoming, outgoing, shared)
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


def _pipe() -> tuple[io.FileIO, io.FileIO]:
    reads, writes = os.pipe()
    return io.FileIO(reads, "r"), io.FileIO(writes, "w")


def interpreter() -> str:
    """Return the interpreter that runs workers: the one that a virtual environment links to."""
    return os.path.realpath(sys.executable)
