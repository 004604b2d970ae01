"""The fork server: one process that has loaded the interpreter, from which workers are forked.

It is started with nothing: no environment but a constant hash seed, no site packages, no
descriptors but its end of a socket pair. It runs no code of a model.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import io
import os
import socket
import subprocess
import sys
from collections import deque
from pathlib import Path

from holdfast.core.errors import KernelDied, WorkerRefused
from holdfast.kernels.workers import Worker, anonymous_bytes

_START = Path(__file__).parent / "worker" / "start.py"
_FLAGS = ("-s", "-S", "-P", "-X", "utf8")
# A constant seed: sets and dicts of text iterate alike in every worker, so re-runs do, too.
_ENVIRONMENT = {"PYTHONHASHSEED": "0"}
START_SECONDS = 30.0
_REAP_SECONDS = 0.1
_REQUESTS = 32
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM, errno.ENOBUFS})


class ForkServer:
    """The host's end of the process that workers are forked from."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._answers: deque[asyncio.Future[int]] = deque()
        # The pipe to it holds some hundred requests, and descriptors that are under way count.
        self._requests = asyncio.Semaphore(_REQUESTS)
        self._to_reap: deque[int] = deque()
        # Those that no longer answer, while workers of theirs may still run.
        self._silent: list[tuple[subprocess.Popen[bytes], socket.socket]] = []

    def start(self) -> int:
        """Start the process unless it runs, and return its number; raise WorkerRefused."""
        if self._process is not None and self._process.poll() is not None:
            self._stop()  # the event loop has not noticed yet
        if self._process is None:
            try:
                self._process, self._control = _started()
            except OSError as error:
                raise _refused(error) from error
            asyncio.get_running_loop().add_reader(self._control, self._read)
        return self._process.pid

    def _read(self) -> None:
        assert self._control is not None
        answer = self._control.recv(8)
        if not answer:
            self._stop()
            return
        self._send_reaps()
        pid, number = int.from_bytes(answer[:4], "big"), int.from_bytes(answer[4:], "big")
        waiting = self._answers.popleft()
        if waiting.done():
            if pid:
                self.reap(pid)  # nobody waits for this worker any more
        elif number:
            waiting.set_exception(OSError(number, os.strerror(number)))
        else:
            waiting.set_result(pid)

    async def spawn(self, *, own_paths: bool) -> Worker:
        """Fork a worker, with rules of its own if its session may read paths.

        It is not confined before it is opened. Raise WorkerRefused if the machine has nothing left
        for it, KernelDied if the process does not answer.
        """
        async with self._requests:
            return await self._spawn(own_paths)

    async def _spawn(self, own_paths: bool) -> Worker:
        parent = self.start()
        control = self._control
        assert control is not None
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        with contextlib.ExitStack() as ours:
            try:
                with contextlib.ExitStack() as theirs:
                    incoming, its_output = _pipe()
                    ours.enter_context(incoming)
                    theirs.enter_context(its_output)
                    its_input, outgoing = _pipe()
                    theirs.enter_context(its_input)
                    ours.enter_context(outgoing)
                    request = [b"F" if own_paths else b"A"]
                    ends = [its_input.fileno(), its_output.fileno()]
                    socket.send_fds(control, request, ends, socket.MSG_DONTWAIT)
                    self._answers.append(answer)
                async with asyncio.timeout(START_SECONDS):
                    pid = await answer
            except TimeoutError:
                self._give_up(control)
                raise KernelDied(
                    f"no worker was started within {START_SECONDS:g} seconds; try again"
                ) from None
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    raise _refused(error) from error
                if self._control is control:  # another may be in its place already
                    self._stop()
                raise KernelDied(f"a worker could not be started: {error}; try again") from error
            ours.pop_all()
        # As much as that process has now, a fork of it shares with it at first.
        return Worker(pid, parent, self.reap, incoming, outgoing, anonymous_bytes(parent))

    def reap(self, number: int) -> None:
        """End a process and let go of its number."""
        self._to_reap.append(number)
        self._send_reaps()

    def _send_reaps(self) -> None:
        while self._to_reap and self._control is not None:
            try:
                request = b"R" + self._to_reap[0].to_bytes(4, "big")
                self._control.send(request, socket.MSG_DONTWAIT)
            except BlockingIOError:
                asyncio.get_running_loop().call_later(_REAP_SECONDS, self._send_reaps)
                return
            except OSError:
                pass  # it has ended, and its workers with it
            self._to_reap.popleft()

    def _give_up(self, control: socket.socket) -> None:
        """Ask a process no more that does not answer. Its workers live as long as it does."""
        if self._control is control and self._process is not None:
            asyncio.get_running_loop().remove_reader(control)
            self._silent.append((self._process, control))
            self._process = self._control = None
            self._fail_answers()

    def close(self) -> None:
        """Stop the process, and with it every worker."""
        self._stop()
        for process, control in self._silent:
            _end(process, control)
        self._silent.clear()

    def _stop(self) -> None:
        if self._process is not None and self._control is not None:
            asyncio.get_running_loop().remove_reader(self._control)
            _end(self._process, self._control)
            self._process = self._control = None
            self._fail_answers()

    def _fail_answers(self) -> None:
        while self._answers:
            answer = self._answers.popleft()
            if not answer.done():
                answer.set_exception(OSError("the process that workers come from has ended"))


def _started() -> tuple[subprocess.Popen[bytes], socket.socket]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        try:
            process = subprocess.Popen(
                [interpreter(), *_FLAGS, str(_START), str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=_ENVIRONMENT,
                pass_fds=(theirs.fileno(),),
                cwd="/",
                # A Ctrl-C at the terminal is for the host alone: the cell that it breaks off is run
                # again on resume and must not end in KeyboardInterrupt first.
                process_group=0,
            )
        except BaseException:
            ours.close()
            raise
    return process, ours


def _end(process: subprocess.Popen[bytes], control: socket.socket) -> None:
    control.close()
    process.kill()
    process.wait()


def _refused(error: OSError) -> WorkerRefused:
    return WorkerRefused(
        f"no worker can be started: {error}; raise the limits of this process (open files, "
        "processes, memory), or run fewer sessions at once"
    )


def _pipe() -> tuple[io.FileIO, io.FileIO]:
    reads, writes = os.pipe()
    return io.FileIO(reads, "r"), io.FileIO(writes, "w")


def interpreter() -> str:
    """Return the interpreter that runs workers: the one that a virtual environment links to."""
    return os.path.realpath(sys.executable)
