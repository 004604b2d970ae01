"""Listings: which sessions there are, newest first.

When a session came into the store stands in the header of its log and never changes. The derived
file `sessions.jsonl` repeats it, so that a listing need not open every log; what is missing or
damaged there is read from the logs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

from holdfast.core.errors import Corruption, InvalidId, NotFound, SessionDeleted, StoreNewer
from holdfast.stores import checks, rows
from holdfast.stores.files.lines import seal, unseal
from holdfast.stores.files.log_file import LogFile
from holdfast.stores.files.session_files import Place, SessionFiles
from holdfast.stores.port import (
    DuePage,
    DueSession,
    PendingWait,
    SessionFilter,
    SessionInfo,
    SessionPage,
)


def note_order(place: Place, session_id: str, order: int) -> None:
    """Add a new session to the derived index."""
    with suppress(OSError):
        place.disk.append(place.layout.index, seal({"id": session_id, "order": order}))


class Listing:
    """The order of a store's sessions, as far as this handle has learned it."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._orders: dict[str, int] = {}
        self._read_to = 0
        self._guard = threading.Lock()

    def page(
        self,
        where: SessionFilter | None,
        limit: int,
        cursor: str | None,
        open_session: Callable[[str], SessionFiles],
    ) -> SessionPage:
        """Return one page of sessions, newest first."""
        below = _read_cursor(cursor)
        found: list[tuple[int, SessionInfo]] = []
        ordered = sorted(((order, name) for name, order in self._present().items()), reverse=True)
        for order, name in ordered:
            if (order, name) >= below:
                continue
            files = open_session(name)
            if where is not None and where.waiting and files.inbox.size() == 0:
                continue  # its log need not be read
            try:
                files.check_present()
                info = files.info()
            except (NotFound, SessionDeleted, FileNotFoundError):
                continue
            if rows.matches(info, where):
                found.append((order, info))
                if len(found) > limit:
                    break
        page = found[:limit]
        more = _write_cursor(page[-1][0], page[-1][1].id) if len(found) > limit else None
        return SessionPage(tuple(info for _, info in page), more)

    def waits(self, open_session: Callable[[str], SessionFiles]) -> list[PendingWait]:
        """Return the waiting calls of all sessions; the tip of each is read."""
        found: list[PendingWait] = []
        for name in self._present():
            with suppress(NotFound, SessionDeleted, FileNotFoundError, Corruption):
                files = open_session(name)
                files.check_present()
                found += files.waits()
        return found

    def due(
        self,
        clock: int,
        limit: int,
        cursor: str | None,
        open_session: Callable[[str], SessionFiles],
    ) -> DuePage:
        """Return one page of the sessions with work, oldest first; the tip of each is read."""
        after = (0, "") if cursor is None else _read_cursor(cursor)
        found: list[tuple[int, DueSession]] = []
        for order, name in sorted((order, name) for name, order in self._present().items()):
            if (order, name) <= after:
                continue
            with suppress(NotFound, SessionDeleted, FileNotFoundError):
                files = open_session(name)
                files.check_present()
                session = files.due(clock)
                found += [] if session is None else [(order, session)]
            if len(found) > limit:
                break
        page = found[:limit]
        more = _write_cursor(page[-1][0], page[-1][1].session) if len(found) > limit else None
        return DuePage(tuple(session for _, session in page), more)

    def _present(self) -> dict[str, int]:
        """Return the sessions that are there, with their order."""
        place = self._place
        names = place.disk.names(place.layout.runs)
        if any(name not in self._orders for name in names):
            with self._guard:
                self._read_index()
        out = {}
        for name in names:
            order = self._orders.get(name)
            if order is None:
                order = self._order_of(name)
                if order is None:
                    continue
                self._orders[name] = order
            out[name] = order
        return out

    def _read_index(self) -> None:
        place = self._place
        try:
            data = place.disk.read(place.layout.index, self._read_to)
        except FileNotFoundError:
            return
        *lines, rest = data.split(b"\n")
        self._read_to += len(data) - len(rest)
        for line in lines:
            with suppress(Corruption):
                record = unseal(line)
                self._orders[str(record["id"])] = int(record["order"])

    def _order_of(self, name: str) -> int | None:
        """Return a session's order by its own log; 0 where that cannot be read, None if absent."""
        layout = self._place.layout
        try:
            path = layout.log(name)
            if self._place.disk.stat(path) is None:
                return None
            return LogFile(self._place.disk, path, name).header().order
        except InvalidId:
            return None
        except (Corruption, StoreNewer):
            return 0


def _write_cursor(order: int, session_id: str) -> str:
    # Two processes may have made sessions in the same microsecond: the id tells them apart.
    return f"{rows.write_cursor(order)}.{session_id}"


def _read_cursor(cursor: str | None) -> tuple[int, str]:
    if cursor is None:
        return rows.read_cursor(None), ""
    checks.check_texts("cursor", cursor)
    place, _, name = cursor.partition(".")
    return rows.read_cursor(place), name
