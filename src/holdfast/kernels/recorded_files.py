"""The files that a cell reads, as its record has them: which content it sees when it runs again.

A file may change while the cell runs, most of all by a call of the cell itself, so a path has
versions. Each belongs to the call that followed the read: a re-run that has made `n` of the
recorded calls again sees the last version that was read before the n-th. Past the record it sees
what is there. A version whose content is known is served; of another only the digest is compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from holdfast.core.errors import FileNotKept
from holdfast.kernels.port import MAX_KEPT_BYTES, MAX_KEPT_FILE_BYTES, FileRead
from holdfast.kernels.worker.determinism.file_versions import is_past


class Diverged(Exception):
    """The cell does not do again what it did before."""


class RecordedFiles:
    """The reads of one eval, over as many runs of its cell as it takes."""

    def __init__(self) -> None:
        # Of each path the (index of the call after the read, digest), in order of the reads.
        self._versions: dict[str, list[tuple[int, str]]] = {}
        self.contents: dict[str, bytes] = {}
        # What is served and compared in this run, and how far the record reaches.
        self._before: dict[str, list[tuple[int, str]]] = {}
        self._total = 0
        self.claimed = 0
        # Since the last call that is not pure: to be recorded with the next one.
        self.recent: list[FileRead] = []

    def begin(self, total: int) -> None:
        """Start a run of the cell, whose record has so many calls."""
        self._before = {path: list(versions) for path, versions in self._versions.items()}
        self._total = total
        self.claimed = 0
        self.recent = []

    def add(self, files: Iterable[FileRead], index: int) -> None:
        """Add reads of the record, made before its call of this index."""
        for file in files:
            self._add(file, index)
            if file.content is not None:
                self.contents[file.digest] = file.content

    def add_unless_known(self, files: Iterable[FileRead]) -> None:
        """Add reads that may be among those of recorded calls already."""
        known = {(path, digest) for path, found in self._versions.items() for _, digest in found}
        self.add([file for file in files if (file.path, file.digest) not in known], 0)

    def _add(self, file: FileRead, index: int) -> None:
        versions = self._versions.setdefault(file.path, [])
        if not versions or versions[-1][1] != file.digest:
            versions.append((index, file.digest))

    def read(self, files: Sequence[FileRead], index: int) -> None:
        """Note reads that the running cell has made before the call of this index.

        Raise Diverged if one is of a file that the record has otherwise, unless all recorded calls
        were made again: then the cell is past its record.
        """
        for file in files:
            before = self._before.get(file.path, ())
            if any(digest == file.digest for _, digest in before):
                continue
            if before and not is_past(self.claimed, self._total):
                raise Diverged(f"the file {file.path!r} has changed since the cell first read it")
            self._add(file, index)
        self.recent.extend(files)

    def take_recent(self, *, pure: bool) -> tuple[FileRead, ...]:
        """Return what is recorded with the next call: a pure one may not be recorded itself."""
        files = tuple(self.recent)
        if not pure:
            self.recent = []
        return files

    def served(self) -> dict[str, list[tuple[int, str]]]:
        """Return the versions to serve in this run: those paths of which all contents are known."""
        return {
            path: versions
            for path, versions in self._before.items()
            if all(digest in self.contents for _, digest in versions)
        }

    @property
    def total(self) -> int:
        """Return how many calls the record of this run has."""
        return self._total

    def missing(self) -> list[str]:
        """Return the digests of which the content is not known yet."""
        found = (digest for versions in self._versions.values() for _, digest in versions)
        return [digest for digest in found if digest not in self.contents]

    def keep(self, digest: str, content: bytes) -> bool:
        """Keep the content of a read, unless that is too much; tell whether it is kept."""
        held = sum(map(len, self.contents.values())) + len(content)
        if len(content) > MAX_KEPT_FILE_BYTES or held > MAX_KEPT_BYTES:
            return False
        self.contents[digest] = content
        return True

    def not_kept(self, digest: str) -> FileNotKept:
        """Return the error about a read whose content is not kept."""
        path = next(
            path
            for path, versions in self._versions.items()
            if any(digest == known for _, known in versions)
        )
        return FileNotKept(
            f"this cell has read {path!r}, which is too large to be kept for a re-run (at most "
            f"{MAX_KEPT_FILE_BYTES >> 20} MiB a file and {MAX_KEPT_BYTES >> 20} MiB in all), so it "
            "cannot make this call; read the file in one cell and make the call in another",
            path=path,
        )
