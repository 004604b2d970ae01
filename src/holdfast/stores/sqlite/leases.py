"""Owner rows, leases and the inbox.

All functions run inside a transaction that the caller holds.
"""

from __future__ import annotations

from typing import Any

import apsw
import msgspec

from holdfast.core.errors import Corruption, InvalidInput
from holdfast.core.events import now
from holdfast.core.payloads import Slot, from_record, to_record
from holdfast.stores import rows
from holdfast.stores.owner import Heartbeat
from holdfast.stores.port import InboxDraft, InboxItem, Lease, LeaseInfo
from holdfast.stores.sqlite.database import SQL
from holdfast.stores.sqlite.sessions import SessionRow


def beat(cursor: apsw.Cursor, sign: Heartbeat) -> None:
    """Store a sign of life."""
    cursor.execute(
        SQL["put_owner"],
        (
            sign.owner,
            sign.host,
            sign.boot,
            sign.namespace,
            sign.pid,
            sign.started,
            sign.ticks,
            sign.wall,
            sign.seconds,
        ),
    )


def heartbeat(cursor: apsw.Cursor, owner: str) -> Heartbeat | None:
    """Return an owner's last sign of life."""
    found: Any = cursor.execute(SQL["get_owner"], (owner,)).fetchone()
    return None if found is None else Heartbeat(*found)


def forget_dead_owners(cursor: apsw.Cursor) -> None:
    """Remove the rows of owners that are dead and hold nothing."""
    for found in cursor.execute(SQL["list_owners"]).fetchall():
        sign = Heartbeat(*found)  # type: ignore[arg-type]
        if not sign.is_alive():
            cursor.execute(SQL["delete_owner"], (sign.owner,))


def holder(cursor: apsw.Cursor, row: SessionRow) -> LeaseInfo | None:
    """Return who holds a session, as others see it."""
    if row.owner is None:
        return None
    sign = heartbeat(cursor, row.owner)
    if sign is None:
        return LeaseInfo(row.id, row.owner, row.epoch, live=False, holder="a process that is gone")
    return LeaseInfo(
        row.id, row.owner, row.epoch, sign.is_alive(), sign.holder, max(sign.expires_in(), 0.0)
    )


def check(cursor: apsw.Cursor, row: SessionRow, lease: Lease) -> None:
    """Raise LeaseLost where a lease is no longer the session's."""
    if not lease.is_of(row.owner, row.epoch):
        raise rows.lost_error(lease, holder(cursor, row))


def check_free(cursor: apsw.Cursor, row: SessionRow) -> None:
    """Raise LeaseHeld where someone alive drives a session."""
    found = holder(cursor, row)
    if found is not None and found.live:
        raise rows.held_error(found)


def next_epoch(row: SessionRow) -> int:
    """Return what the next lease of a session is fenced by."""
    if type(row.epoch) is not int:
        raise Corruption(
            f"the row of session {row.id!r} is damaged: its lease has the epoch {row.epoch!r}; its "
            "log can still be read: export it, and import it into another store",
            session=row.id,
        )
    return row.epoch + 1


def put_item(cursor: apsw.Cursor, row: SessionRow, draft: InboxDraft) -> tuple[InboxItem, bool]:
    """Return the stored item, and whether it is new."""
    found = cursor.execute(SQL["find_inbox"], (row.key, draft.key)).fetchone()
    if found is None and draft.call_id is not None:
        found = cursor.execute(SQL["find_inbox_call"], (row.key, draft.call_id)).fetchone()
    if found is not None:
        return rows.shown_item(rows.same_item(_item(row.id, found), draft)), False
    content = draft.content
    if content is not None and not content.inline:
        content = content.bare()
    item = InboxItem(row.id, draft.key, draft.kind, now(), draft.call_id, content)
    values = (row.key, item.key, item.kind, item.at, item.call_id, _content_text(content))
    cursor.execute(SQL["insert_inbox"], values)
    return item, True


def rewrite(cursor: apsw.Cursor, row: SessionRow, item: InboxItem) -> None:
    """Store what became of an item's content."""
    cursor.execute(SQL["rewrite_inbox"], (_content_text(item.content), row.key, item.key))


def _content_text(content: Slot | None) -> str | None:
    return None if content is None else msgspec.json.encode(to_record(content)).decode()


def find_item(cursor: apsw.Cursor, row: SessionRow, key: str) -> InboxItem | None:
    """Return an inbox item by its key."""
    found = cursor.execute(SQL["find_inbox"], (row.key, key)).fetchone()
    return None if found is None else rows.shown_item(_item(row.id, found))


def items(cursor: apsw.Cursor, row: SessionRow) -> list[InboxItem]:
    """Return a session's inbox in order of arrival."""
    return [
        rows.shown_item(_item(row.id, found))
        for found in cursor.execute(SQL["list_inbox"], (row.key,))
    ]


def waiting(cursor: apsw.Cursor, row: SessionRow) -> int:
    """Return how many items nobody has consumed."""
    count: int = cursor.execute(SQL["count_inbox"], (row.key,)).get
    return count


def _item(session_id: str, found: Any) -> InboxItem:
    key, kind, at, call_id, content, consumed = found
    try:
        held: Slot | None = None if content is None else from_record(msgspec.json.decode(content))
        if consumed is not None and type(consumed) is not int:
            raise TypeError(f"it was consumed by {consumed!r}")
    except (msgspec.MsgspecError, InvalidInput, TypeError) as error:
        raise Corruption(
            f"inbox item {key!r} of session {session_id!r} is damaged: {error}; run `holdfast "
            "verify`",
            session=session_id,
            key=key,
        ) from error
    return InboxItem(session_id, key, kind, at, call_id, held, consumed)
