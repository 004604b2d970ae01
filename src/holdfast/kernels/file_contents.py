"""The contents of the files that a cell has read: fetched from its worker, served to its re-run.

The worker keeps what it read, within bounds, until the cell ends; the host asks for it only when a
call is to be recorded that the cell may have to be re-run for. A re-run finds the contents in a
directory of their own, which its worker may read and to which it redirects the paths.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path

from holdfast.core.errors import KernelProtocolError
from holdfast.kernels import frames
from holdfast.kernels.recorded_files import RecordedFiles
from holdfast.kernels.worker.cell.host_calls import CONTENTS
from holdfast.kernels.workers import Worker

FETCH_SECONDS = 30.0


class FileContents:
    """Asks one worker for the contents of what its cell has read."""

    def __init__(self, worker: Worker, files: RecordedFiles) -> None:
        self._worker = worker
        self._files = files
        self._lock = asyncio.Lock()
        self._wanted: set[str] = set()
        self._answer: asyncio.Future[list[str]] | None = None
        self._closed = False

    @property
    def fetching(self) -> bool:
        """Return whether the worker is being asked."""
        return self._answer is not None

    async def fetch(self) -> dict[str, bytes]:
        """Return the content of every read so far, by digest; raise FileNotKept for one too large.

        Every call of the cell waits for the host meanwhile or computes; one that waits reads the
        pipe, so the worker can answer.
        """
        async with self._lock:
            missing = self._files.missing()
            if missing:
                await self._ask(missing)
        return dict(self._files.contents)

    async def _ask(self, digests: list[str]) -> None:
        if self._closed:
            raise self._files.not_kept(digests[0])
        self._wanted = set(digests)
        self._answer = asyncio.get_running_loop().create_future()
        self._worker.send({"id": CONTENTS, "digests": digests})
        try:
            async with asyncio.timeout(FETCH_SECONDS):
                missing = await self._answer
        except TimeoutError:
            error = KernelProtocolError("the worker did not send the files that its cell has read")
            self._worker.kill(error)
            raise error from None
        finally:
            self._answer, self._wanted = None, set()
        if missing:
            raise self._files.not_kept(missing[0])

    def receive(self, frame: frames.ChunkFrame) -> bool:
        """Take the content of a file that was asked for; return whether it was."""
        if frame.id not in self._wanted:
            return False
        if self._files.keep(frame.id, frame.data):
            self._wanted.discard(frame.id)
        return True

    def finish(self, frame: frames.ContentsFrame) -> None:
        """Note that the worker has sent what it has."""
        if self._answer is None:
            raise KernelProtocolError("the worker sent files that nobody asked for")
        if not self._answer.done():
            self._answer.set_result(list(self._wanted))

    def close(self) -> None:
        """Ask no more: the worker's cell is over, or the worker is gone."""
        self._closed = True
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(list(self._wanted))


class ServedFiles:
    """The directory with the contents that one re-run is served."""

    def __init__(self, files: RecordedFiles) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="holdfast-files-")
        self.path = os.path.realpath(self._directory.name)
        copies: dict[str, str] = {}
        for number, (digest, content) in enumerate(files.contents.items()):
            # Not by its digest, which an imported record may have made up.
            copies[digest] = f"{self.path}/{number}"
            Path(copies[digest]).write_bytes(content)
        self.command = {
            "total": files.total,
            "versions": {
                path: [[index, digest, copies[digest]] for index, digest in versions]
                for path, versions in files.served().items()
            },
        }

    def close(self) -> None:
        """Remove it."""
        self._directory.cleanup()
