"""The files that a cell reads: pinned by digest, kept for a while, served anew to a re-run.

Every content that the cell could see is a read of its own, so a file that changes between two
opens is there twice. Contents are kept, within bounds, until the next cell: the host asks for them
when it records a call that the cell may have to be re-run for. In a re-run the paths of the record
are redirected to copies of what the cell saw.
"""

from __future__ import annotations

import _thread
import builtins
import hashlib
import io
import os
import stat
import sys

from holdfast.kernels.worker.determinism.file_versions import FileVersions

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_FILE_BYTES = 8 << 20  # as the host has it
MAX_BYTES = 32 << 20
_PART = 1 << 20
_real_open = os.open


class _Unseen:
    """While this is entered, what the thread opens is not the cell's."""

    def __init__(self, threads: set[int]) -> None:
        self._threads = threads

    def __enter__(self) -> None:
        self._threads.add(_thread.get_ident())

    def __exit__(self, *exc: object) -> None:
        self._threads.discard(_thread.get_ident())


_OWN = os.path.join(os.path.realpath(os.path.join(os.path.dirname(__file__), "../../..")), "")
"""Our own modules, which a worker may load while a cell runs: an environment often lies in the
folder that a session works in."""


class FileReads:
    """The files read by the running cell."""

    def __init__(self) -> None:
        self._roots: tuple[str, ...] = ()
        self._inside: set[int] = set()
        # How many calls of the record were made again, as the host says.
        self.claimed = 0
        self.reset()

    def watch(self, roots: tuple[str, ...]) -> None:
        """Pin what is opened below these roots from now on."""
        # A hook is called for far more than that: without roots there is none.
        if roots:
            self._roots = roots
            sys.addaudithook(self.audit)

    def reset(self) -> None:
        """Forget the reads of the cell before."""
        # Path and digest of what was read since the last call.
        self.reads: list[tuple[str, str]] = []
        self._identities: dict[str, tuple[int, ...]] = {}
        self._digests: dict[str, str] = {}
        self._contents: dict[str, bytes] = {}
        self._kept = 0
        self._versions = FileVersions()
        self.claimed = 0

    def content(self, digest: str) -> bytes | None:
        """Return the content of a read if it was kept."""
        return self._contents.get(digest)

    # Reading

    def audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Pin a file when it is opened (an audit hook: it also sees `os.open`)."""
        if event != "open":
            return
        if _thread.get_ident() in self._inside:
            return
        path = arguments[0]
        if not isinstance(path, (str, bytes)):
            return
        with self._unseen():
            self._pin(os.path.realpath(os.fsdecode(path)))

    def _pin(self, path: str) -> None:
        if not path.startswith(self._roots) or path.startswith(_OWN):
            return
        try:
            found = os.stat(path)
            identity = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
            if not stat.S_ISREG(found.st_mode) or self._identities.get(path) == identity:
                return
            digest, content = _read(path)
        except OSError:
            return
        self._identities[path] = identity
        if content is not None and self._kept + len(content) <= MAX_BYTES:
            self._kept += 0 if digest in self._contents else len(content)
            self._contents[digest] = content
        self._note(path, digest)

    def _note(self, path: str, digest: str) -> None:
        if self._digests.get(path) != digest:
            self._digests[path] = digest
            self.reads.append((path, digest))

    # Serving

    def serve(self, versions: FileVersions, modules: Any) -> None:
        """Redirect the opening of recorded paths: each version has its digest and its copy."""
        self._versions = versions
        real = io.open

        def open_file(
            file: Any,
            mode: str = "r",
            buffering: int = -1,
            encoding: Any = None,
            errors: Any = None,
            newline: Any = None,
            closefd: bool = True,
            opener: Any = None,
        ) -> Any:
            copy = None if opener is not None or isinstance(file, int) else self._copy(file)
            if copy is None:
                return real(file, mode, buffering, encoding, errors, newline, closefd, opener)
            # By an opener, so that the name of the file object is the one that was asked for.
            with self._unseen():
                return real(
                    *(file, mode, buffering, encoding, errors, newline, closefd),
                    opener=lambda _, flags: _real_open(copy, flags),
                )

        def open_descriptor(path: Any, flags: int, mode: int = 0o777, *, dir_fd: Any = None) -> int:
            copy = self._copy(path) if dir_fd is None else None
            if copy is None:
                return _real_open(path, flags, mode, dir_fd=dir_fd)
            with self._unseen():
                return _real_open(copy, flags)

        open_file.__module__, open_file.__qualname__, open_file.__name__ = "io", "open", "open"
        open_descriptor.__module__ = "os"
        open_descriptor.__qualname__ = open_descriptor.__name__ = "open"
        for module in (io, builtins, *modules):
            module.open = open_file
        # Loaded before the worker was made, it has kept the real one under a name of its own.
        tokenize: Any = sys.modules.get("tokenize")
        if tokenize is not None:
            tokenize._builtin_open = open_file
        os.open = open_descriptor

    def _unseen(self) -> _Unseen:
        return _Unseen(self._inside)

    def _copy(self, path: Any) -> str | None:
        """Return the copy of what the cell saw at a path, None for what is there now."""
        try:
            real = os.path.realpath(os.fsdecode(path))
        except (TypeError, ValueError):
            return None
        version = self._versions.open(real, self.claimed)
        if version is None:
            return None
        _, digest, copy = version
        self._note(real, digest)
        return str(copy)


def _read(path: str) -> tuple[str, bytes | None]:
    """Return the digest of a file, and its content if it is small enough to be kept."""
    digest = hashlib.sha256()
    parts: list[bytes] | None = []
    size = 0
    # Without waiting, should it have become a pipe since.
    with open(_real_open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb", 0) as stream:
        while data := stream.read(_PART):
            digest.update(data)
            size += len(data)
            if size > MAX_FILE_BYTES:
                parts = None
            elif parts is not None:
                parts.append(data)
    return "sha256:" + digest.hexdigest(), None if parts is None else b"".join(parts)
