"""Faults: a store, a disk and an SQLite VFS that kill, fail or remember, step by step.

Each step of storage passes a watcher first and last. A watcher may kill the process, raise what an
operating system raises, or write the step down. `StepJournal` writes all of them down and can say
what a disk might hold after a power cut at any point: what was synced, and of the rest any part.
`DyingStore` is the quick form for a whole runtime: its process ends at the n-th append.
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import apsw

from holdfast.blobs.disk import Disk, FileStat
from holdfast.core.facts import Fact
from holdfast.stores.memory.database import MemoryDatabase
from holdfast.stores.memory.store import MemorySessionStore
from holdfast.stores.port import Appended, Lease

WRITES = frozenset(
    {"create", "append", "write", "truncate", "sync", "sync_directory", "rename", "unlink"}
    | {"touch", "make_directory", "remove_directory"}
)
READS = frozenset({"read", "stat", "names"})


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that storage is asked to do."""

    kind: str
    path: str
    data: bytes = b""
    offset: int = 0
    target: str = ""


class Watcher:
    """Sees every step; does nothing by itself but count."""

    def __init__(self, kinds: frozenset[str] = WRITES) -> None:
        self.kinds = kinds
        self.count = 0

    def before(self, step: Step) -> None:
        """Called before a step is taken."""
        if step.kind in self.kinds:
            self.count += 1
            self.reached(step)

    def reached(self, step: Step) -> None:
        """Called for each step that counts."""

    def after(self, step: Step) -> None:
        """Called after a step was taken."""


class KillAt(Watcher):
    """Kills this process at the n-th step, before or after it is taken."""

    def __init__(self, number: int, *, after: bool = False) -> None:
        super().__init__()
        self.number = number
        self._after = after

    def reached(self, step: Step) -> None:
        """Die before the step."""
        if self.count == self.number and not self._after:
            os.kill(os.getpid(), signal.SIGKILL)

    def after(self, step: Step) -> None:
        """Die after the step."""
        if self.count == self.number and self._after:
            os.kill(os.getpid(), signal.SIGKILL)


class FailAt(Watcher):
    """Lets the n-th step fail, and as many after it as asked; writes may stop half-way."""

    def __init__(
        self,
        number: int,
        code: int = errno.EIO,
        *,
        times: int = 1,
        kinds: frozenset[str] = WRITES,
    ) -> None:
        super().__init__(kinds)
        self.number = number
        self.code = code
        self.times = times
        self.failed: list[Step] = []

    def reached(self, step: Step) -> None:
        """Fail the step."""
        if self.number <= self.count < self.number + self.times:
            self.failed.append(step)
            raise OSError(self.code, os.strerror(self.code), step.path)


class WatchedDisk(Disk):
    """The real disk, every step of it seen by a watcher."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher

    def _step(self, step: Step, action: Callable[[], Any]) -> Any:
        try:
            self._watcher.before(step)
        except OSError:
            if step.kind == "append":
                Disk.append(self, Path(step.path), step.data[: len(step.data) // 2])
            raise
        result = action()
        self._watcher.after(step)
        return result

    def create(self, path: Path, data: bytes) -> None:
        """Write a new file."""
        self._step(Step("create", str(path), data), lambda: Disk.create(self, path, data))

    def append(self, path: Path, data: bytes) -> None:
        """Write at the end of a file."""
        self._step(Step("append", str(path), data), lambda: Disk.append(self, path, data))

    def truncate(self, path: Path, size: int) -> None:
        """Cut a file."""
        step = Step("truncate", str(path), offset=size)
        self._step(step, lambda: Disk.truncate(self, path, size))

    def sync(self, path: Path) -> None:
        """Make a file's content durable."""
        self._step(Step("sync", str(path)), lambda: Disk.sync(self, path))

    def sync_directory(self, path: Path) -> None:
        """Make the names in a directory durable."""
        self._step(Step("sync_directory", str(path)), lambda: Disk.sync_directory(self, path))

    def rename(self, source: Path, target: Path) -> None:
        """Give a file another name."""
        step = Step("rename", str(source), target=str(target))
        self._step(step, lambda: Disk.rename(self, source, target))

    def touch(self, path: Path) -> None:
        """Make a file young."""
        self._step(Step("touch", str(path)), lambda: Disk.touch(self, path))

    def unlink(self, path: Path) -> None:
        """Remove a file."""
        self._step(Step("unlink", str(path)), lambda: Disk.unlink(self, path))

    def remove_directory(self, path: Path) -> None:
        """Remove an empty directory."""
        step = Step("remove_directory", str(path))
        self._step(step, lambda: Disk.remove_directory(self, path))

    def make_directory(self, path: Path) -> None:
        """Create a directory."""
        self._step(Step("make_directory", str(path)), lambda: Disk.make_directory(self, path))

    def read(self, path: Path, offset: int = 0, length: int | None = None) -> bytes:
        """Return bytes of a file."""
        found = self._step(Step("read", str(path)), lambda: Disk.read(self, path, offset, length))
        return bytes(found)

    def stat(self, path: Path) -> FileStat | None:
        """Return size and age."""
        found: FileStat | None = self._step(Step("stat", str(path)), lambda: Disk.stat(self, path))
        return found

    def names(self, path: Path) -> list[str]:
        """Return the names in a directory."""
        return list(self._step(Step("names", str(path)), lambda: Disk.names(self, path)))


class WatchedVfs(apsw.VFS):
    """SQLite's own VFS, every write of it seen by a watcher."""

    def __init__(self, name: str, watcher: Watcher) -> None:
        self.watcher = watcher
        super().__init__(name, "")

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:
        """Open a file of the database."""
        return _WatchedFile(self.watcher, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:
        """Remove a file of the database."""
        _sqlite_step(self.watcher, Step("unlink", filename))
        super().xDelete(filename, syncdir)
        self.watcher.after(Step("unlink", filename))
        if syncdir:
            self.watcher.after(Step("sync_directory", str(Path(filename).parent)))


class _WatchedFile(apsw.VFSFile):
    def __init__(
        self, watcher: Watcher, name: str | apsw.URIFilename | None, flags: list[int]
    ) -> None:
        self._watcher = watcher
        self._path = name.filename() if isinstance(name, apsw.URIFilename) else (name or "")
        existed = os.path.exists(self._path)
        super().__init__("", name, flags)
        self._unnamed = not existed and self._path.endswith(("-wal", "-journal"))
        if not existed:
            self._watcher.after(Step("create", self._path))

    def _step(self, step: Step) -> None:
        _sqlite_step(self._watcher, step)

    def xWrite(self, data: bytes, offset: int) -> None:
        step = Step("write", self._path, bytes(data), offset)
        self._step(step)
        super().xWrite(data, offset)
        self._watcher.after(step)

    def xTruncate(self, newsize: int) -> None:
        step = Step("truncate", self._path, offset=newsize)
        self._step(step)
        super().xTruncate(newsize)
        self._watcher.after(step)

    def xSync(self, flags: int) -> None:
        step = Step("sync", self._path)
        self._step(step)
        super().xSync(flags)
        self._watcher.after(step)
        if self._unnamed:
            # SQLite syncs the directory with the first sync of a new log or journal.
            self._unnamed = False
            self._watcher.after(Step("sync_directory", str(Path(self._path).parent)))

    def xRead(self, amount: int, offset: int) -> bytes:
        self._step(Step("read", self._path))
        return super().xRead(amount, offset)


def _sqlite_step(watcher: Watcher, step: Step) -> None:
    try:
        watcher.before(step)
    except OSError as error:
        if error.errno == errno.ENOSPC and step.kind == "write":
            raise apsw.FullError(str(error)) from error
        raise apsw.IOError(str(error)) from error


@dataclass(slots=True)
class _File:
    """A file as it is, as it was last synced, and what was done to it since."""

    now: bytearray = field(default_factory=bytearray)
    synced: bytearray = field(default_factory=bytearray)
    since: list[Step] = field(default_factory=list)


class StepJournal(Watcher):
    """Writes every step down, and acknowledgements between them."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[Step] = []

    def after(self, step: Step) -> None:
        """Write a step down once it was taken."""
        if step.kind in WRITES:
            self.steps.append(step)

    def acknowledge(self, text: str) -> None:
        """Write down that the caller was told something is durable."""
        self.steps.append(Step("acknowledge", text))


def after_power_cut(steps: list[Step], root: Path, image: Path, random: Random) -> list[str]:
    """Write what a disk may hold after a cut behind these steps; return what was acknowledged.

    Synced content and names are there. Of everything later any part may be: each write whole, cut
    short, as zeros or not at all, in any order; each name or not.
    """
    disk = _Disk(str(root))
    for step in steps:
        disk.take(step)
    disk.cut(image, random)
    return [step.path for step in steps if step.kind == "acknowledge"]


class _Disk:
    """Names and files, durable and not."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.names: dict[str, _File | None] = {root: None}  # None is a directory
        self.durable: dict[str, _File | None] = {root: None}
        self.unsynced: list[tuple[Step, _File | None]] = []

    def take(self, step: Step) -> None:
        """Do what one step does."""
        path = step.path
        if step.kind in ("create", "append", "write") and path not in self.names:
            self.names[path] = _File()
            self.unsynced.append((step, self.names[path]))
        entry = self.names.get(path)
        if step.kind in ("create", "append", "write", "truncate") and entry is not None:
            offset = len(entry.now) if step.kind == "append" else step.offset
            done = Step(step.kind, path, step.data, offset)
            _apply(entry.now, done)
            entry.since.append(done)
        elif step.kind == "sync" and entry is not None:
            entry.synced, entry.since = bytearray(entry.now), []
        elif step.kind in ("make_directory", "unlink", "remove_directory", "rename"):
            self._name(self.names, step, entry)
            self.unsynced.append((step, entry))
        elif step.kind == "sync_directory":
            self._settle(path)

    def _settle(self, folder: str) -> None:
        for step, entry in self.unsynced:
            if _folder(step) == folder:
                self._name(self.durable, step, entry)
        self.unsynced = [item for item in self.unsynced if _folder(item[0]) != folder]

    @staticmethod
    def _name(names: dict[str, _File | None], step: Step, entry: _File | None) -> None:
        if step.kind == "make_directory":
            names.setdefault(step.path, None)
            return
        if step.kind in ("unlink", "remove_directory", "rename"):
            names.pop(step.path, None)
        if step.kind not in ("unlink", "remove_directory"):
            names[step.target or step.path] = entry

    def cut(self, image: Path, random: Random) -> None:
        """Lay out what is left."""
        names = dict(self.durable)
        for step, entry in self.unsynced:
            if random.random() < 0.5:
                self._name(names, step, entry)
        image.mkdir(parents=True)
        for path, entry in sorted(names.items()):
            target = image / os.path.relpath(path, self.root)
            above = [str(parent) for parent in Path(path).parents]
            if not all(parent in names for parent in above if len(parent) > len(self.root)):
                continue  # with the directory that held it
            if entry is None:
                target.mkdir(exist_ok=True)
            else:
                target.write_bytes(_left(entry, random))


def _folder(step: Step) -> str:
    return os.path.dirname(step.target or step.path)


def _apply(content: bytearray, step: Step) -> None:
    if step.kind == "truncate":
        del content[step.offset :]
        content.extend(bytes(step.offset - len(content)))
        return
    end = step.offset + len(step.data)
    content.extend(bytes(max(0, end - len(content))))
    content[step.offset : end] = step.data


def _left(entry: _File, random: Random) -> bytes:
    """Return what may be left of a file: its synced content and any part of what came after."""
    content = bytearray(entry.synced)
    since = list(entry.since)
    if random.random() < 0.5:
        random.shuffle(since)
    for step in since:
        fate = random.choice(["kept", "kept", "lost", "short", "zeros"])
        if fate == "kept" or (step.kind == "truncate" and fate != "lost"):
            _apply(content, step)
        elif fate == "short":
            part = step.data[: random.randrange(len(step.data) + 1)]
            _apply(content, Step(step.kind, step.path, part, step.offset))
        elif fate == "zeros":
            _apply(content, Step(step.kind, step.path, bytes(len(step.data)), step.offset))
    return bytes(content)


class ProcessKilled(BaseException):
    """Stands for the end of a process: nothing after it runs."""


class DyingStore(MemorySessionStore):
    """A handle on a memory database in a process that dies before one of its appends.

    `dies` is how many appends are made before that, or is asked with their number and the facts
    of the next one. Nothing is stored from then on; `bury` lets others see that the owner is dead.
    """

    def __init__(
        self, database: MemoryDatabase, dies: int | Callable[[int, Sequence[Fact]], bool]
    ) -> None:
        super().__init__(database)
        self.appends = 0
        self._dies = dies
        self._dead = False

    async def append(
        self, lease: Lease, after_seq: int, facts: Sequence[Fact], **options: Any
    ) -> Appended:
        """Append as long as the process lives."""
        if isinstance(self._dies, int):
            self._dead = self._dead or self.appends >= self._dies
        else:
            self._dead = self._dead or self._dies(self.appends, facts)
        if self._dead:
            raise ProcessKilled
        self.appends += 1
        return await super().append(lease, after_seq, facts, **options)

    def bury(self) -> None:
        """Stop the owner's sign of life, so that its leases may be taken."""
        self.database.owners.pop(self.owner, None)
