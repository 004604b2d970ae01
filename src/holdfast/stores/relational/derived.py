"""What is derived from a session's log: compared with it, and made anew where it differs.

Reads show what the log says and report once that something else stood beside it; whoever takes the
lease makes it anew. Only what listings show of many sessions comes from the rows as they are.
"""

from __future__ import annotations

import logging

from holdfast.core import status
from holdfast.core.errors import Corruption
from holdfast.core.state import State
from holdfast.stores import rows
from holdfast.stores.port import SessionInfo
from holdfast.stores.relational import leases, pending, sessions
from holdfast.stores.relational.events import States
from holdfast.stores.relational.plan import Plan, Query, first
from holdfast.stores.relational.sessions import SessionRow
from holdfast.stores.tenancy import Address

logger = logging.getLogger("holdfast.stores")


def restore(states: States, row: SessionRow) -> Plan[int]:
    """Make row and waiting calls of a session say what its log says; return its position."""
    try:
        state = yield from states.load(row)
    except Corruption:
        return row.seq  # a damaged log can be looked at under a lease; appends are refused
    if (yield from _differs(states, row, state)):
        yield from sessions.heal(row, state)
    yield from pending.rebuild(row, state)
    return state.seq


def _differs(states: States, row: SessionRow, state: State) -> Plan[bool]:
    """Tell whether what is listed of a session differs from its log, and report it once."""
    shown = yield from sessions.listed(row, leases.Liveness())
    wanted = [rows.info_of(state, live, shown.imported, shown.inbox) for live in (True, False)]
    tenant_key = yield from first("tenant_key", state.tenant)
    same = row.digest == bytes.fromhex(state.digest) and tenant_key == (row.tenant_key,)
    if shown in wanted and same:
        return False
    states.report(row, "the row")
    return True


def info(states: States, address: Address) -> Plan[SessionInfo]:
    """Return what a listing shows of one session, as its log has it where that can be read."""
    row = yield from sessions.find(address)
    liveness = leases.Liveness()
    shown = yield from sessions.listed(row, liveness)
    try:
        state = yield from states.load(row)
    except Corruption:
        return shown
    live = state.status == status.RUNNING and (yield from liveness(row.owner))
    wanted = rows.info_of(state, live, shown.imported, shown.inbox)
    if wanted != shown:
        states.report(row, "the row")
    return wanted


def has_lost_pending() -> Plan[bool]:
    """Tell whether a suspended session has no rows of waiting calls."""
    return bool((yield Query("sessions_without_pending")))


def repair_pending(states: States) -> Plan[None]:
    """Make the rows of waiting calls anew for suspended sessions that have none."""
    for address in map(Address._make, (yield Query("sessions_without_pending"))):
        try:
            row = yield from sessions.find(address, lock=True)
            yield from pending.rebuild(row, (yield from states.load(row)))
        except Corruption as error:
            logger.warning("the waiting calls of session %s are unknown: %s", address.key, error)
