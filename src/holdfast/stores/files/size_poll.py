"""Noticing that other processes moved a session, by the size of its files."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from holdfast.core.errors import HoldfastError
from holdfast.stores.files.session_files import Place, SessionFiles
from holdfast.stores.tenancy import Address, address_of

_Sizes = tuple[int, int]
_UNSEEN: _Sizes = (-1, -1)
_GONE: _Sizes = (-2, -2)


class SizePoll:
    """What the files of followed sessions looked like last time."""

    def __init__(self, place: Place, open_session: Callable[[Address], SessionFiles]) -> None:
        self._place = place
        self._open = open_session
        self._seen: dict[str, _Sizes] = {}
        self._since = time.time()

    def restart(self) -> None:
        """Begin to watch: older changes of sessions not looked at yet are no news."""
        self._since = time.time()

    def follow(self, address: Address) -> None:
        """Begin to watch a session, so that its removal is news too."""
        self._seen.setdefault(address.key, _UNSEEN)

    def saw(self, files: SessionFiles) -> int:
        """Take note of a change that this handle made itself; return how far the session is."""
        try:
            self._seen[files.address.key] = self._sizes(files)
            return files.tip().state.seq
        except (OSError, HoldfastError):
            self._seen.pop(files.address.key, None)
            return 0

    def poll(self, watched: frozenset[str] | None) -> Iterator[tuple[str, int]]:
        """Yield the sessions that moved or were deleted, with how far; None watches all."""
        names = watched
        if names is None:
            known = [name for name, sizes in list(self._seen.items()) if sizes != _GONE]
            there = self._place.layout.addresses(self._place.disk, None)
            names = frozenset([*(address.key for address in there), *known])
        for name in names:
            try:
                files = self._open(address_of(name))
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

    def _sizes(self, files: SessionFiles) -> _Sizes:
        return files.log.size(), files.inbox.size()

    def _is_old(self, files: SessionFiles, name: str) -> bool:
        if name in self._seen:
            return False
        found = (self._place.disk.stat(path) for path in (files.log.path, files.inbox.path))
        return all(stat is None or stat.modified < self._since - 0.1 for stat in found)
