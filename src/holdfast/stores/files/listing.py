"""Listings: which sessions there are, newest first.

When a session came into the store is in the header of its log and never changes; this handle
remembers what it has read of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TypeVar

from holdfast.core.errors import Corruption, NotFound, SessionDeleted, StoreNewer
from holdfast.stores import checks, rows
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
from holdfast.stores.tenancy import Address, address_of

T = TypeVar("T")

OpenSession = Callable[[Address], SessionFiles]
_Order = tuple[int, Address]


class Listing:
    """The order of a store's sessions, as far as this handle has read it."""

    def __init__(self, place: Place, open_session: OpenSession) -> None:
        self._place = place
        self._open = open_session
        self._orders: dict[Address, int] = {}

    def page(
        self, tenant: str | None, where: SessionFilter | None, limit: int, cursor: str | None
    ) -> SessionPage:
        """Return one page of the sessions of a tenant, or of all, newest first."""
        below = None if cursor is None else _read_cursor(cursor)
        found: list[tuple[_Order, SessionInfo]] = []
        for order in sorted(self._present(tenant), reverse=True):
            if below is not None and order >= below:
                continue
            info = self._read(order, SessionFiles.info)
            if info is not None and rows.matches(info, where):
                found.append((order, info))
                if len(found) > limit:
                    break
        page = found[:limit]
        more = _write_cursor(page[-1][0]) if len(found) > limit else None
        return SessionPage(tuple(info for _, info in page), more)

    def waits(self, tenant: str | None) -> list[PendingWait]:
        """Return the waiting calls of all sessions; the tip of each is read."""
        found: list[PendingWait] = []
        for order in self._present(tenant):
            with suppress(Corruption):
                found += self._read(order, SessionFiles.waits) or []
        return found

    def due(self, tenant: str | None, clock: int, limit: int, cursor: str | None) -> DuePage:
        """Return one page of the sessions with work, oldest first; the tip of each is read."""
        after = None if cursor is None else _read_cursor(cursor)
        found: list[tuple[_Order, DueSession]] = []
        for order in sorted(self._present(tenant)):
            if after is not None and order <= after:
                continue
            session = self._read(order, lambda files: files.due(clock))
            if session is not None:
                found.append((order, session))
                if len(found) > limit:
                    break
        page = found[:limit]
        more = _write_cursor(page[-1][0]) if len(found) > limit else None
        return DuePage(tuple(session for _, session in page), more)

    def _read(self, order: _Order, read: Callable[[SessionFiles], T]) -> T | None:
        """Return what is read of a session, None where it went away meanwhile."""
        files = self._open(order[1])
        try:
            files.check_present()
            return read(files)
        except (NotFound, SessionDeleted, FileNotFoundError):
            return None

    def _present(self, tenant: str | None) -> Iterator[_Order]:
        """Yield the order of the sessions that are there."""
        for address in self._place.layout.addresses(self._place.disk, tenant):
            order = self._orders.get(address)
            if order is None:
                order = self._order_of(address)
                if order is None:
                    continue
                self._orders[address] = order
            yield order, address

    def _order_of(self, address: Address) -> int | None:
        """Return a session's order by its own log; 0 where that cannot be read, None if absent."""
        path = self._place.layout.log(address)
        if self._place.disk.stat(path) is None:
            return None
        try:
            return LogFile(self._place.disk, path, address.id).header().order
        except (Corruption, StoreNewer):
            return 0


def _write_cursor(order: _Order) -> str:
    # Two processes may have made sessions in the same microsecond: the address tells them apart.
    return f"{rows.write_cursor(order[0])}.{order[1].key}"


def _read_cursor(cursor: str) -> _Order:
    checks.check_texts("cursor", cursor)
    place, _, key = cursor.partition(".")
    return rows.read_cursor(place), address_of(key)
