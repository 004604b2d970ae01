"""Audit rows: which model calls a session made, beside its log and outside its digests."""

from __future__ import annotations

from holdfast.core.events import now
from holdfast.stores import rows
from holdfast.stores.port import AuditRow
from holdfast.stores.relational import sessions
from holdfast.stores.relational.plan import Change, Plan, Query, first
from holdfast.stores.tenancy import Address


def put(address: Address, data: bytes) -> Plan[AuditRow]:
    """Add a row; numbers follow the largest that is there."""
    row = yield from sessions.find(address, lock=True)
    (last,) = yield from first("last_audit", row.key)
    number, at = int(last or 0) + 1, now()
    yield Change("insert_audit", (row.key, number, at, data))
    return rows.audit_row(address.id, number, at, data)


def page(address: Address, after: int, limit: int) -> Plan[list[AuditRow]]:
    """Return rows above a number, in order."""
    row = yield from sessions.find(address)
    found = yield Query("list_audit", (row.key, after, limit))
    return [rows.audit_row(address.id, *item) for item in found]


def collect(tenant: str | None, before: str, keep: int | None) -> Plan[int]:
    """Remove old rows and those beyond the number to keep, of a tenant or of all."""
    gone: int = yield Change("delete_old_audit", {"before": before, "of": tenant}, counted=True)
    if keep is not None:
        gone += yield Change("delete_surplus_audit", {"keep": keep, "of": tenant}, counted=True)
    return gone
