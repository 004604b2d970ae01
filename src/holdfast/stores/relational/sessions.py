"""Session rows: the position of a session's log, and what listings show of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import structs

from holdfast.core import status
from holdfast.core.errors import SessionDeleted, SessionNotFound
from holdfast.core.events import now
from holdfast.core.ids import friendly_name
from holdfast.core.state import State
from holdfast.stores.port import SessionFilter, SessionInfo
from holdfast.stores.relational.plan import Change, Plan, Query, first
from holdfast.stores.rows import matches
from holdfast.stores.tenancy import Address

PAGE_ROWS = 500


class SessionRow(msgspec.Struct, frozen=True, gc=False):
    """What writing to a session needs to know of it."""

    key: int
    id: str
    tenant: str
    tenant_key: int
    seq: int
    digest: bytes
    owner: str | None
    epoch: int
    imported: int

    @property
    def address(self) -> Address:
        """Return the address of the session."""
        return Address(self.tenant, self.id)


def find(address: Address, *, lock: bool = False) -> Plan[SessionRow]:
    """Return a session's row; SessionNotFound or SessionDeleted where there is none."""
    row = yield from look_up(address, lock=lock)
    if row is None:
        raise SessionNotFound(f"there is no session {address.id!r} in this store")
    return row


def look_up(address: Address, *, lock: bool = False) -> Plan[SessionRow | None]:
    """Return a session's row, None where there never was one; SessionDeleted where it is gone.

    `lock` keeps other writers of the session out until the end of the transaction.
    """
    row = yield from first("lock_session" if lock else "session_row", *address)
    if row is not None:
        return SessionRow(*row)
    if (yield from first("is_deleted", address.id, address.tenant)):
        raise SessionDeleted(
            f"session {address.id!r} was deleted; its id is never used again, choose another"
        )
    return None


def insert(state: State) -> Plan[SessionRow]:
    """Add the row of a new session."""
    fixed = yield from _fixed(state)
    (key,) = yield from first("insert_session", state.session, *fixed, *_tip(state))
    digest = bytes.fromhex(state.digest)
    return SessionRow(
        key, state.session, state.tenant, fixed[2], state.seq, digest, None, 0, imported=0
    )


def heal(row: SessionRow, state: State) -> Plan[SessionRow]:
    """Make a session's row say what its log says."""
    fixed = yield from _fixed(state)
    yield Change("heal_session", (*fixed, row.key))
    yield from move(row.key, state)
    digest = bytes.fromhex(state.digest)
    return structs.replace(row, tenant=state.tenant, tenant_key=fixed[2], digest=digest)


def _fixed(state: State) -> Plan[tuple[Any, ...]]:
    yield Change("insert_tenant", (state.tenant,))
    (tenant_key,) = yield from first("tenant_key", state.tenant)
    return (
        friendly_name(state.session),
        state.tenant,
        tenant_key,
        state.kind,
        state.agent,
        None if state.parent is None else state.parent.get("session"),
        None if state.origin is None else state.origin.get("session"),
        msgspec.json.encode(state.labels).decode(),
        state.started_at,
    )


def move(key: int, state: State) -> Plan[None]:
    """Store the position of a session after an append, and what listings show of it."""
    yield Change("move_session", (*_tip(state), key))


def _tip(state: State) -> tuple[Any, ...]:
    spend = state.spend
    return (
        state.seq,
        bytes.fromhex(state.digest),
        state.updated_at,
        state.status,
        state.counters.get("turn", 0),
        state.last_turn,
        state.head,
        spend.usd,
        spend.tokens,
        spend.unknown_usd,
    )


def delete(row: SessionRow) -> Plan[None]:
    """Remove everything of a session but its tombstone; its payloads are gc's."""
    yield Change("insert_tombstone", (row.tenant, row.id, now()))
    for name in (
        "delete_events",
        "delete_snapshot",
        "delete_refs_of_session",
        "delete_erasures",
        "delete_inbox",
        "delete_pending_of_session",
        "delete_audit",
        "delete_session",
    ):
        yield Change(name, (row.key,))


IsLive = Callable[[str | None], Plan[bool]]
"""Tells whether an owner is alive."""


def listed(row: SessionRow, is_live: IsLive) -> Plan[SessionInfo]:
    """Return what a listing shows of one session, as its row has it."""
    found = yield from first("session_info", row.key)
    return (yield from _info(found, is_live))


def page(
    where: SessionFilter, below: int, limit: int, is_live: IsLive
) -> Plan[list[tuple[int, SessionInfo]]]:
    """Return up to `limit` sessions that match, with their keys, newest first."""
    found: list[tuple[int, SessionInfo]] = []
    name, wanted = _selection(where)
    plain = (where.name, where.status, where.parent, where.label, where.waiting) == (None,) * 5
    wanted["limit"] = limit if plain else max(limit, PAGE_ROWS)  # some of a page may not match
    while len(found) < limit:
        rows = yield Query(name, wanted | {"below": below})
        if not rows:
            break
        below = rows[-1][0]
        for row in rows:
            shown = yield from _info(row, is_live)
            if matches(shown, where):
                found.append((row[0], shown))
    return found[:limit]


def _selection(where: SessionFilter) -> tuple[str, dict[str, Any]]:
    """Return the query with the index that fits a filter best, and its values."""
    wanted = {"tenant": where.tenant, "kind": where.kind, "agent": where.agent}
    if where.name is not None:
        return "list_sessions_by_name", wanted | {"name": where.name}
    if where.parent is not None:
        return "list_sessions_by_parent", wanted | {"parent": where.parent}
    if where.waiting:
        return "list_sessions_by_inbox", wanted
    if where.status is not None:
        # Whether a running session is interrupted follows from its lease.
        running = where.status == status.INTERRUPTED
        return "list_sessions_by_status", wanted | {
            "status": status.RUNNING if running else where.status
        }
    return "list_sessions" if where.tenant is None else "list_sessions_by_tenant", wanted


def _readable(value: Any) -> Any:
    # One damaged row hides no other session; verify says that it differs.
    return value.decode(errors="replace") if type(value) is bytes else value


def _labels(text: str) -> dict[str, str]:
    try:
        return msgspec.json.decode(text, type=dict[str, str])
    except msgspec.MsgspecError:
        return {}


def _info(row: Any, is_live: IsLive) -> Plan[SessionInfo]:
    (
        _, session_id, name, tenant, kind, agent, parent, origin, labels, started_at, imported,
        owner, seq, stored, updated_at, turns, last_turn, head, usd, tokens, unknown_usd, waiting,
        digest,
    ) = map(_readable, row)  # fmt: skip
    interrupted = stored == status.RUNNING and not (yield from is_live(owner))
    return SessionInfo(
        id=session_id,
        name=name,
        tenant=tenant,
        kind=kind,
        agent=agent,
        status=status.INTERRUPTED if interrupted else stored,
        seq=seq,
        started_at=started_at,
        updated_at=updated_at,
        turns=turns,
        head=head,
        usd=usd,
        tokens=tokens,
        unknown_usd=unknown_usd,
        last_turn=last_turn,
        parent=parent,
        origin=origin,
        labels=_labels(labels),
        imported=bool(imported),
        inbox=waiting,
        digest=digest,
    )
