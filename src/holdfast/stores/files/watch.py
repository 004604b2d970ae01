"""Watch: noticing that other processes moved a session, by the size of its files."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from holdfast.core.errors import HoldfastError, InvalidId
from holdfast.stores.files.session_files import Place, SessionFiles

_Sizes = tuple[int, int]
_UNSEEN: _Sizes = (-1, -1)
_GONE: _Sizes = (-2, -2)


class Watch:
    """What the files of followed sessions looked like last time."""

    def __init__(self, place: Place, open_session: Callable[[str], SessionFiles]) -> None:
        self._place = place
        self._open = open_session
        self._seen: dict[str, _Sizes] = {}
        self._since = time.time()

    def restart(self) -> None:
        """Begin to watch: older changes of sessions not looked at yet are no news."""
        self._since = time.time()

    def follow(self, session_id: str) -> None:
        """Begin to watch a session, so that its removal is news too."""
        self._seen.setdefault(session_id, _UNSEEN)

    def saw(self, files: SessionFiles) -> int:
        """Take note of a change that this handle made itself; return how far the session is."""
        try:
            self._seen[files.id] = self._sizes(files)
            return files.tip().state.seq
        except (OSError, HoldfastError):
            self._seen.pop(files.id, None)
            return 0

    def poll(self, watched: frozenset[str] | None) -> Iterator[tuple[str, int]]:
        """Yield the sessions that moved or were deleted, with how far; None watches all."""
        names = watched
        if names is None:
            known = [name for name, sizes in list(self._seen.items()) if sizes != _GONE]
            names = frozenset([*self._place.disk.names(self._place.layout.runs), *known])
        for name in names:
            try:
                files = self._open(name)
                sizes = self._sizes(files)
                if self._seen.get(name) == sizes or (watched is None and self._is_old(files, name)):
                    continue
                seq = files.shown_tip().state.seq
                self._seen[name] = sizes
                yield name, seq
            except FileNotFoundError:
                if self._seen.get(name) != _GONE:
                    self._seen[name] = _GONE
                    yield name, 0
            except InvalidId:
                continue

    def _sizes(self, files: SessionFiles) -> _Sizes:
        return files.log.size(), files.inbox.size()

    def _is_old(self, files: SessionFiles, name: str) -> bool:
        if name in self._seen:
            return False
        found = (self._place.disk.stat(path) for path in (files.log.path, files.inbox.path))
        return all(stat is None or stat.modified < self._since - 0.1 for stat in found)
