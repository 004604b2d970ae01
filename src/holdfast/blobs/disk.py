"""The disk as seen by everything that keeps its data in plain files.

One small seam: each method is one step that can fail, be lost or be the last one before a kill.
Tests put a disk of their own here that fails the n-th step or forgets what was not synced, and so
exercise the same code that runs in production. All methods block; callers run them in threads.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class FileStat:
    """Size in bytes and time of the last write (seconds since the epoch)."""

    size: int
    modified: float


class Disk:
    """The real disk. Nothing is durable until it was synced, names included."""

    def create(self, path: Path, data: bytes) -> None:
        """Write a new file; FileExistsError if the name is taken."""
        self._write(path, data, os.O_WRONLY | os.O_CREAT | os.O_EXCL)

    def append(self, path: Path, data: bytes) -> None:
        """Write at the end of a file, which is created where it is missing."""
        self._write(path, data, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def truncate(self, path: Path, size: int) -> None:
        """Cut a file to a size."""
        os.truncate(path, size)

    def sync(self, path: Path) -> None:
        """Make a file's content durable."""
        self._sync(path, os.O_RDONLY)

    def sync_directory(self, path: Path) -> None:
        """Make the names in a directory durable: what was created, renamed and removed there."""
        self._sync(path, os.O_RDONLY | os.O_DIRECTORY)

    def rename(self, source: Path, target: Path) -> None:
        """Give a file another name in one step, replacing what has that name."""
        os.replace(source, target)

    def touch(self, path: Path) -> None:
        """Make a file as young as one just written."""
        os.utime(path)

    def unlink(self, path: Path) -> None:
        """Remove a file; one that is not there is fine."""
        path.unlink(missing_ok=True)

    def remove_directory(self, path: Path) -> None:
        """Remove an empty directory."""
        path.rmdir()

    def make_directory(self, path: Path) -> None:
        """Create one directory whose parent exists; one that is there already is fine."""
        path.mkdir(mode=0o700, exist_ok=True)

    def read(self, path: Path, offset: int = 0, length: int | None = None) -> bytes:
        """Return bytes of a file; FileNotFoundError where it is missing."""
        with path.open("rb") as file:
            if offset:
                file.seek(offset)
            return file.read(-1 if length is None else length)

    def stat(self, path: Path) -> FileStat | None:
        """Return size and age of a file or directory, None where there is none."""
        try:
            found = path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return FileStat(found.st_size, found.st_mtime)

    def names(self, path: Path) -> list[str]:
        """Return the sorted names in a directory, none where it is missing or a file."""
        try:
            return sorted(os.listdir(path))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def make_directories(self, path: Path) -> None:
        """Create a directory and its missing parents, each one durable."""
        missing = []
        while self.stat(path) is None:
            missing.append(path)
            path = path.parent
        for directory in reversed(missing):
            self.make_directory(directory)
            self.sync_directory(directory.parent)

    def replace(self, path: Path, data: bytes) -> None:
        """Put whole new content under a name, durably: readers see the old or the new file."""
        temporary = path.with_name(f"{path.name}.{os.getpid()}-{os.urandom(4).hex()}{TEMPORARY}")
        try:
            self.create(temporary, data)
            self.sync(temporary)
            self.rename(temporary, path)
        except OSError:
            self.unlink(temporary)
            raise
        self.sync_directory(path.parent)

    def _write(self, path: Path, data: bytes, flags: int) -> None:
        descriptor = os.open(path, flags | os.O_CLOEXEC, 0o600)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]
        finally:
            os.close(descriptor)

    def _sync(self, path: Path, flags: int) -> None:
        descriptor = os.open(path, flags | os.O_CLOEXEC)
        try:
            _fsync(descriptor)
        finally:
            os.close(descriptor)


TEMPORARY = ".tmp"
"""How the names of half-written files end; gc sweeps old ones."""


if sys.platform == "darwin":
    import fcntl

    def _fsync(descriptor: int) -> None:
        # fsync alone leaves the data in the drive's cache on this platform.
        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
else:

    def _fsync(descriptor: int) -> None:
        os.fsync(descriptor)
