"""What a store on an SQL database shows.

Reads run beside the writers, take no lease and repair nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from holdfast.core.errors import Corruption
from holdfast.core.events import Event
from holdfast.core.ids import check_content_id, check_id
from holdfast.core.state import State
from holdfast.stores import checks, rows, waits
from holdfast.stores.feed import Feed, HintSubscription, SessionSubscription
from holdfast.stores.owner import Owner
from holdfast.stores.port import (
    DuePage,
    InboxItem,
    Lease,
    LeaseInfo,
    PendingFilter,
    PendingPage,
    SessionFilter,
    SessionInfo,
    SessionPage,
    Transient,
)
from holdfast.stores.relational import derived, events, inbox, leases, payloads, pending, sessions
from holdfast.stores.relational.engine import Engine
from holdfast.stores.relational.plan import Job, Plan
from holdfast.stores.tenancy import Address, TenantHandle


class RelationalReading(TenantHandle):
    """The verbs that read; `RelationalSessionStore` adds those that write."""

    def __init__(self, engine: Engine, owner: Owner) -> None:
        self._engine = engine
        self._owner = owner
        self._states = events.States()
        self._feed = Feed(engine.moved, engine.where)
        engine.start(self._wake)

    async def get_payload(self, session_id: str, payload_id: str) -> bytes:
        """Return a payload that this session refers to."""
        address = self._at(session_id)
        check_content_id(payload_id)

        def plan() -> Plan[bytes]:
            row = yield from sessions.find(address)
            return (yield from payloads.read(row, payload_id))

        try:
            return await self._engine.read(plan, session_id)
        except Corruption:
            # An erasure may have come between row and blob; a second look tells.
            return await self._engine.read(plan, session_id)

    async def load_state(self, session_id: str) -> State:
        """Return the state at the tip."""
        address = self._at(session_id)

        def plan() -> Plan[State]:
            return (yield from self._states.load((yield from sessions.find(address))))

        return await self._engine.read(plan, session_id)

    async def read_events(
        self,
        session_id: str,
        *,
        after: int = 0,
        before: int | None = None,
        limit: int = 1000,
        reverse: bool = False,
        types: Sequence[str] | None = None,
    ) -> list[Event]:
        """Return a page of events."""
        address = self._at(session_id)
        checks.check_page(after, before, limit, types)

        def plan() -> Plan[list[Event]]:
            row = yield from sessions.find(address)
            page = events.page(
                row, after=after, before=before, limit=limit, reverse=reverse, types=types
            )
            return (yield from page)

        return await self._engine.read(plan, session_id)

    async def session_info(self, session_id: str) -> SessionInfo:
        """Return one session's row of a listing."""
        address = self._at(session_id)
        return await self._engine.read(lambda: derived.info(self._states, address), session_id)

    async def list_sessions(
        self,
        where: SessionFilter | None = None,
        *,
        limit: int = 100,
        cursor: str | None = None,
    ) -> SessionPage:
        """Return one page of sessions, newest created first."""
        self._owner.check_process()
        checks.check_page(0, None, limit)
        checks.check_filter(where)
        below = rows.read_cursor(cursor)
        wanted = where or SessionFilter()
        wanted = replace(wanted, tenant=self.scope(wanted.tenant))
        found = await self._engine.read(
            lambda: sessions.page(wanted, below, limit + 1, leases.Liveness())
        )
        page = found[:limit]
        more = rows.write_cursor(page[-1][0]) if len(found) > limit else None
        return SessionPage(tuple(info for _, info in page), more)

    async def pending(
        self,
        where: PendingFilter | None = None,
        *,
        due_before: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> PendingPage:
        """Return one page of the calls that wait for someone."""
        self._owner.check_process()
        rows.check_pending(where, due_before, limit)
        wanted, due = where or PendingFilter(), waits.milliseconds(due_before)
        wanted = replace(wanted, tenant=self.scope(wanted.tenant))
        after = rows.read_cursor(cursor, 0)
        found = await self._engine.read(lambda: pending.page(wanted, due, after, limit + 1))
        page = found[:limit]
        more = rows.write_cursor(page[-1][0]) if len(found) > limit else None
        return PendingPage(tuple(wait for _, wait in page), more)

    async def work_due(
        self, now: str, *, tenant: str | None = None, limit: int = 100, cursor: str | None = None
    ) -> DuePage:
        """Return one page of the sessions that nobody drives and that have work."""
        self._owner.check_process()
        clock = checks.check_moment(now)
        checks.check_page(0, None, limit)
        checks.check_scope(tenant)
        after, scope = rows.read_cursor(cursor, 0), self.scope(tenant)
        found = await self._engine.read(lambda: pending.work_due(clock, scope, after, limit + 1))
        page = found[:limit]
        more = rows.write_cursor(page[-1][0]) if len(found) > limit else None
        return DuePage(tuple(session for _, session in page), more)

    async def list_inbox(self, session_id: str, *, pending: bool = True) -> list[InboxItem]:
        """Return inbox items in order of arrival."""
        address = self._at(session_id)

        def plan() -> Plan[list[InboxItem]]:
            return (yield from inbox.items((yield from sessions.find(address))))

        items = await self._engine.read(plan, session_id)
        return [item for item in items if not pending or item.consumed_seq is None]

    async def lease_of(self, session_id: str) -> LeaseInfo | None:
        """Return who holds the session."""
        address = self._at(session_id)

        def plan() -> Plan[LeaseInfo | None]:
            return (yield from leases.holder((yield from sessions.find(address))))

        return await self._engine.read(plan, session_id)

    def subscribe(self, session_id: str, *, after: int = 0) -> SessionSubscription:
        """Follow one session from a position."""
        address = self._at(session_id)
        return self._feed.subscribe(address, after, self._page)

    def subscribe_all(self, *, tenant: str | None = None) -> HintSubscription:
        """Follow all sessions by hints."""
        self._owner.check_process()
        checks.check_scope(tenant)
        return self._feed.subscribe_all(self.scope(tenant))

    def notify(self, item: Transient) -> None:
        """Hand a live-only item to this handle's subscribers."""
        self._owner.check_process()
        self._feed.notify(self.tenant, item)

    async def erased(self, session_id: str) -> dict[str, tuple[str, str]]:
        """Return the erased payload ids of a session."""
        address = self._at(session_id)

        def plan() -> Plan[dict[str, tuple[str, str]]]:
            return (yield from payloads.erasures((yield from sessions.find(address))))

        return await self._engine.read(plan, session_id)

    def _wake(self, jobs: Sequence[Job[Any]]) -> None:
        """Wake the subscribers of the sessions that a group moved."""
        if self._feed.is_quiet:
            return
        for job in jobs:
            if job.moved is not None and job.error is None:
                for position in job.moved(job.result):
                    self._feed.wake(*position)

    def _at(self, session_id: str) -> Address:
        """Return the address of a session, checked."""
        self._owner.check_process()
        return Address(self.tenant, check_id(session_id))

    def _at_lease(self, lease: Lease) -> Address:
        self._owner.check_process()
        return Address(self.tenant, checks.check_lease(lease))

    async def _page(self, session_id: str, *, after: int, limit: int) -> list[Event]:
        return await self.read_events(session_id, after=after, limit=limit)
