"""Owner rows and leases: who drives a session, and whether that process is alive."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import astuple
from typing import Any

from holdfast.core.errors import Corruption
from holdfast.stores import rows
from holdfast.stores.owner import Heartbeat, read_heartbeat
from holdfast.stores.port import Lease, LeaseInfo
from holdfast.stores.relational.plan import Change, Plan, Query, first
from holdfast.stores.relational.sessions import SessionRow
from holdfast.stores.tenancy import Address


def beat(sign: Heartbeat) -> Plan[None]:
    """Store a sign of life."""
    yield Change("put_owner", astuple(sign))


def beat_if_driving(sign: Heartbeat) -> Plan[bool]:
    """Store a sign of life of an owner that holds a lease; tell whether it does.

    Where it holds none nothing is written, and nothing has to be synced.
    """
    if (yield from first("holds_lease", sign.owner)) is None:
        return False
    yield from beat(sign)
    return True


def heartbeat(owner: str) -> Plan[Heartbeat | None]:
    """Return an owner's last sign of life; Corruption where its row is damaged."""
    found = yield from first("get_owner", owner)
    return None if found is None else read_heartbeat(found)


def live_owners() -> Plan[list[str]]:
    """Return the owners that are alive."""
    alive = []
    for found in (yield Query("all_owners")):
        with suppress(Corruption):  # who wants the lease of such an owner is told
            sign = read_heartbeat(found)
            alive += [sign.owner] if sign.is_alive() else []
    return alive


def leave(owner: str) -> Plan[None]:
    """Give back all leases of an owner, and forget it."""
    yield Change("release_owner", (owner,))
    yield Change("delete_owner", (owner,))


def forget_dead_owners() -> Plan[None]:
    """Remove the rows of owners that are dead and hold nothing."""
    for found in (yield Query("list_owners")):
        try:
            alive = read_heartbeat(found).is_alive()
        except Corruption:
            alive = False
        if not alive:
            yield Change("delete_owner", (found[0],))


def holder(row: SessionRow) -> Plan[LeaseInfo | None]:
    """Return who holds a session, as others see it."""
    if row.owner is None:
        return None
    sign = yield from heartbeat(row.owner)
    if sign is None:
        return LeaseInfo(row.id, row.owner, row.epoch, live=False, holder="a process that is gone")
    return LeaseInfo(
        row.id, row.owner, row.epoch, sign.is_alive(), sign.holder, max(sign.expires_in(), 0.0)
    )


def check(row: SessionRow, lease: Lease) -> Plan[None]:
    """Raise LeaseLost where a lease is no longer the session's."""
    if not lease.is_of(row.owner, row.epoch):
        raise rows.lost_error(lease, (yield from holder(row)))


def check_free(row: SessionRow) -> Plan[LeaseInfo | None]:
    """Raise LeaseHeld where someone alive drives a session; return a dead owner's lease."""
    found = yield from holder(row)
    if found is not None and found.live:
        raise rows.held_error(found)
    return found


def take(row: SessionRow, owner: str) -> Plan[int]:
    """Make an owner the holder of a session; return the epoch of its lease."""
    if type(row.epoch) is not int:
        raise Corruption(
            f"the row of session {row.id!r} is damaged: its lease has the epoch {row.epoch!r}; its "
            "log can still be read: export it, and import it into another store",
            session=row.id,
        )
    yield Change("take_lease", (owner, row.epoch + 1, row.key))
    return row.epoch + 1


def release(address: Address, lease: Lease) -> Plan[None]:
    """Give a lease back; harmless if it was lost."""
    yield Change("release_lease", (*address, lease.owner, lease.epoch))


class Liveness:
    """Who is alive, looked up once per owner and plan."""

    def __init__(self) -> None:
        self._known: dict[str, bool] = {}

    def __call__(self, owner: Any) -> Plan[bool]:
        """Tell whether an owner is alive."""
        if owner is None:
            return False
        if owner not in self._known:
            try:
                sign = yield from heartbeat(owner)
                self._known[owner] = sign is not None and sign.is_alive()
            except Corruption:
                self._known[owner] = False  # one damaged row hides no session
        return self._known[owner]
