"""The process that workers are forked from: an interpreter that has loaded what they need.

It runs no model code, so everything it holds may be shared: a fork takes a millisecond where a new
interpreter takes thirty, and confines itself before it runs anything. It goes when its host goes,
and its workers go with it.
"""

from __future__ import annotations

import errno
import gc
import os
import select
import socket
import sys

from holdfast.kernels.worker.serving import Worker

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

_SIGKILL = 9
FORK_ALIKE, FORK, REAP = b"A"[0], b"F"[0], b"R"[0]
PRELOADED = (
    *("resource", "holdfast.kernels.confinement", "ctypes", "hashlib"),
    *("json", "datetime", "holdfast.core.values", "traceback", "threading", "re"),
    *("collections", "typing"),
    *("holdfast.kernels.worker.checkpoint.pickling", "holdfast.kernels.worker.checkpoint.tolerant"),
    *("dataclasses", "enum", "inspect", "asyncio", "concurrent.futures.thread"),
)


class ForkServer:
    """Forks workers on request."""

    def __init__(self, descriptor: int) -> None:
        self._control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, fileno=descriptor)
        self._worker = Worker()

    def serve(self) -> NoReturn:
        """Fork and reap until the host goes away.

        The first worker does not wait until everything is loaded. The others do: each of them
        would take longer to load what it needs by itself.
        """
        self._prepare()
        forked = False
        for name in PRELOADED:
            if not forked and self._is_asked():
                self._do()
                forked = True
            __import__(name)
        gc.collect()
        gc.freeze()  # so that no collection of a worker writes to the pages that it shares
        self._prepare(renew=True)  # what was loaded since may have brought other libraries
        while True:
            self._do()

    def _is_asked(self) -> bool:
        return bool(select.select([self._control], [], [], 0)[0])

    def _do(self) -> None:
        request, ancillary, _, _ = self._control.recvmsg(16, socket.CMSG_SPACE(8))
        if not request:
            os._exit(0)
        if request[0] in (FORK, FORK_ALIKE):
            sent = ancillary[0][2]
            pipes = (sent[:4], sent[4:8])
            self._fork(*(int.from_bytes(pipe, sys.byteorder) for pipe in pipes))
            if request[0] == FORK:
                # That worker adds paths of its session to rules that are one kernel object.
                self._prepare(renew=True)
        elif request[0] == REAP:
            self._reap(int.from_bytes(request[1:], "big"))

    def _fork(self, incoming: int, outgoing: int) -> None:
        process = number = 0
        try:
            process = os.fork()
        except OSError as error:
            number = error.errno or errno.EAGAIN
        if process == 0 and not number:
            self._control.close()
            self._worker.serve(incoming, outgoing)
        os.close(incoming)
        os.close(outgoing)
        self._control.send(process.to_bytes(4, "big") + number.to_bytes(4, "big"))

    def _reap(self, process: int) -> None:
        # Until here its number could not be given to another process.
        try:
            os.kill(process, _SIGKILL)
            os.waitpid(process, 0)
        except (ProcessLookupError, ChildProcessError):
            return

    def _prepare(self, *, renew: bool = False) -> None:
        from holdfast.kernels import confinement

        packages = (sys.modules["holdfast.core"], sys.modules["holdfast.kernels"])
        confinement.prepare(tuple(package.__path__[0] for package in packages), renew=renew)
