"""Session rows: where a session's log stands, and what listings show of it.

All functions run inside a transaction that the caller holds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import apsw
import msgspec
from msgspec import structs

from holdfast.core import status
from holdfast.core.errors import SessionDeleted, SessionNotFound
from holdfast.core.events import now
from holdfast.core.ids import friendly_name
from holdfast.core.state import State
from holdfast.stores.port import SessionFilter, SessionInfo
from holdfast.stores.rows import matches
from holdfast.stores.sqlite.database import SQL

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


def find(cursor: apsw.Cursor, session_id: str) -> SessionRow:
    """Return a session's row; SessionNotFound or SessionDeleted where there is none."""
    row = look_up(cursor, session_id)
    if row is None:
        raise SessionNotFound(f"there is no session {session_id!r} in this store")
    return row


def look_up(cursor: apsw.Cursor, session_id: str) -> SessionRow | None:
    """Return a session's row, None where there never was one; SessionDeleted where it is gone."""
    row: Any = cursor.execute(SQL["session_row"], (session_id,)).fetchone()
    if row is not None:
        return SessionRow(*row)
    if cursor.execute(SQL["is_deleted"], (session_id,)).fetchone():
        raise SessionDeleted(
            f"session {session_id!r} was deleted; its id is never used again, choose another"
        )
    return None


def insert(cursor: apsw.Cursor, state: State) -> SessionRow:
    """Add the row of a new session."""
    fixed = _fixed(cursor, state)
    told = (state.session, *fixed, *_tip(state), *_summary(state))
    key = cursor.execute(SQL["insert_session"], told).get
    digest = bytes.fromhex(state.digest)
    return SessionRow(
        key, state.session, state.tenant, fixed[1], state.seq, digest, None, 0, imported=0
    )


def heal(cursor: apsw.Cursor, row: SessionRow, state: State) -> SessionRow:
    """Make a session's row say what its log says."""
    fixed = _fixed(cursor, state)
    cursor.execute(SQL["heal_session"], (*fixed, row.key))
    move(cursor, row.key, state)
    digest = bytes.fromhex(state.digest)
    return structs.replace(row, tenant=state.tenant, tenant_key=fixed[1], digest=digest)


def _fixed(cursor: apsw.Cursor, state: State) -> tuple[Any, ...]:
    cursor.execute(SQL["insert_tenant"], (state.tenant,))
    return (
        state.tenant,
        cursor.execute(SQL["tenant_key"], (state.tenant,)).get,
        state.kind,
        state.agent,
        None if state.parent is None else state.parent.get("session"),
        None if state.origin is None else state.origin.get("session"),
        msgspec.json.encode(state.labels).decode(),
        state.started_at,
    )


def move(cursor: apsw.Cursor, key: int, state: State) -> None:
    """Say where a session stands after an append."""
    cursor.execute(SQL["move_session"], (*_tip(state), *_summary(state), key))


def _tip(state: State) -> tuple[Any, ...]:
    return state.seq, bytes.fromhex(state.digest), state.updated_at


def _summary(state: State) -> tuple[Any, ...]:
    """Return what a listing shows of a state."""
    spend = state.spend
    return (
        state.status,
        state.counters.get("turn", 0),
        state.last_turn,
        state.head,
        spend.usd,
        spend.tokens,
        spend.unknown_usd,
    )


def delete(cursor: apsw.Cursor, row: SessionRow) -> None:
    """Remove everything of a session but its tombstone; its payloads are gc's."""
    cursor.execute(SQL["insert_tombstone"], (row.id, now()))
    for name in (
        "delete_events",
        "delete_snapshot",
        "delete_refs_of_session",
        "delete_erasures",
        "delete_inbox",
        "delete_session",
    ):
        cursor.execute(SQL[name], (row.key,))


def info(
    cursor: apsw.Cursor, session_id: str, is_live: Callable[[str | None], bool]
) -> SessionInfo | None:
    """Return what a listing shows of one session."""
    row: Any = cursor.execute(SQL["session_info"], (session_id,)).fetchone()
    return None if row is None else _info(row, is_live)


def page(
    cursor: apsw.Cursor,
    where: SessionFilter,
    below: int,
    limit: int,
    is_live: Callable[[str | None], bool],
) -> list[tuple[int, SessionInfo]]:
    """Return up to `limit` sessions that match, with their keys, newest first."""
    found: list[tuple[int, SessionInfo]] = []
    wanted = {
        "tenant": where.tenant,
        "kind": where.kind,
        "agent": where.agent,
        "parent": where.parent,
        "waiting": where.waiting,
        "limit": max(limit, PAGE_ROWS) if where.status or where.label else limit,
    }
    while len(found) < limit:
        rows: list[Any] = cursor.execute(SQL["list_sessions"], wanted | {"below": below}).fetchall()
        if not rows:
            break
        below = rows[-1][0]
        for row in rows:
            shown = _info(row, is_live)
            if matches(shown, where):
                found.append((row[0], shown))
    return found[:limit]


def _readable(value: Any) -> Any:
    # One damaged row hides no other session; verify says that it differs.
    return value.decode(errors="replace") if type(value) is bytes else value


def _labels(text: str) -> dict[str, str]:
    try:
        return msgspec.json.decode(text, type=dict[str, str])
    except msgspec.MsgspecError:
        return {}


def _info(row: Any, is_live: Callable[[str | None], bool]) -> SessionInfo:
    (
        _, session_id, tenant, kind, agent, parent, origin, labels, started_at, imported,
        owner, seq, stored, updated_at, turns, last_turn, head, usd, tokens, unknown_usd, waiting,
    ) = map(_readable, row)  # fmt: skip
    interrupted = stored == status.RUNNING and not is_live(owner)
    return SessionInfo(
        id=session_id,
        name=friendly_name(session_id),
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
    )
