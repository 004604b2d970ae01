"""Which content of a file a re-run sees: the one rule for both engines.

A path has a version for each content that the cell saw, each with the index of the recorded call
that followed the read. A re-run that has made so many of the recorded calls again sees what the
cell saw before the next one; past the record it sees what is there.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any


def is_past(claimed: int, total: int) -> bool:
    """Tell whether a run that has made so many recorded calls again is past its record.

    Without recorded calls the files are all that is known, so they hold throughout.
    """
    return 0 < total <= claimed


class FileVersions:
    """The recorded versions of the paths that one run of a cell is served."""

    def __init__(self, versions: dict[str, Any] | None = None, total: int = 0) -> None:
        """Begin a run; each version is a tuple whose first part is the index of its call."""
        self._versions: dict[str, Any] = versions or {}
        self._total = total
        # Of each path how many calls were claimed when it was last opened, and how often since.
        self._opened: dict[str, tuple[int, int]] = {}

    def __contains__(self, path: str) -> bool:
        return path in self._versions

    def open(self, path: str, claimed: int) -> Any:
        """Return the version that a cell sees which opens a path now; None for what is there."""
        versions: Sequence[Any] | None = self._versions.get(path)
        if versions is None:
            return None
        opened = self._opened.get(path)
        if opened is not None and is_past(claimed, self._total):
            return None
        before = [version[0] for version in versions if version[0] <= claimed]
        # A thread may open a file earlier than it did: then it sees the first version.
        index = before[-1] if before else versions[0][0]
        same = [version for version in versions if version[0] == index]
        # A file that changed between two calls: each open sees the next content.
        times = opened[1] + 1 if opened is not None and opened[0] == claimed else 0
        self._opened[path] = (claimed, times)
        return same[min(times, len(same) - 1)]
