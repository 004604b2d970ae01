"""Inbox rows: what outsiders ask of a session, without its lease."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.core.errors import (
    Corruption,
    InboxConflict,
    InvalidInput,
    SessionDeleted,
    SessionNotFound,
)
from holdfast.core.events import now
from holdfast.core.ids import check_key
from holdfast.core.payloads import Slot, from_record, to_record
from holdfast.stores import rows, waits
from holdfast.stores.port import InboxDraft, InboxItem
from holdfast.stores.relational import payloads, sessions
from holdfast.stores.relational.plan import Change, Clock, Plan, Query, first
from holdfast.stores.relational.sessions import SessionRow
from holdfast.stores.tenancy import Address


def put(row: SessionRow, draft: InboxDraft) -> Plan[tuple[InboxItem, bool]]:
    """Return the stored item, and whether it is new."""
    found = yield from first("find_inbox", row.key, draft.key)
    if found is not None:
        return rows.shown_item(rows.same_item(_item(row.id, found), draft)), False
    wait = draft.wait
    if draft.call_id is not None and draft.kind in waits.ABOUT_WAITS:
        pending = yield from first("find_pending", row.key, draft.call_id)
        present, due_at = pending or (None, None)
        wait = present if wait is None else wait
        first_one = yield from first("find_inbox_decision", row.key, draft.call_id, wait)
        decided = None if first_one is None else _item(row.id, first_one)
        due_at = due_at if present == wait else None
        same = waits.admit(row.id, draft, decided, wait, due_at, (yield Clock()))
        if same is not None:
            return rows.shown_item(same), False
    content = draft.content
    if content is not None and not content.inline:
        content = content.bare()
    item = InboxItem(
        row.id, draft.key, draft.kind, now(), draft.call_id, content, None, wait, draft.by
    )
    values = (row.key, item.key, item.kind, item.at, item.call_id, _content_text(content))
    yield Change("insert_inbox", (*values, wait, draft.by))
    return item, True


def post(sender: SessionRow, target_id: str, draft: InboxDraft) -> Plan[tuple[str, int] | None]:
    """Put an item into another session's inbox; return that session's position.

    Its content becomes the target's own. An item that the target does not take is dropped.
    """
    content = draft.content
    theirs = None
    if content is not None and not content.inline and content.data is None:
        theirs = yield from payloads.find(sender, content.id)
        if theirs is None or theirs.used is None:
            raise rows.foreign_error(sender.id, content.id)
    try:
        target = yield from sessions.find(Address(sender.tenant, target_id))
        _, new = yield from put(target, draft)
    except (SessionNotFound, SessionDeleted, InboxConflict) as error:
        rows.log_dropped_post(sender.id, target_id, draft, error)
        return None
    if new and content is not None and not content.inline:
        if theirs is None:
            yield from payloads.keep(target, [content], used=True)
        else:
            yield from payloads.adopt(target, content, theirs)
    return target.address.key, target.seq


def consume(row: SessionRow, key: str, seq: int) -> Plan[None]:
    """Mark an item as consumed by an event; refuse one that is missing or was consumed before."""
    found = yield from first("find_inbox", row.key, check_key(key, "inbox key"))
    item = None if found is None else rows.shown_item(_item(row.id, found))
    rows.check_consumable(row.id, key, item)
    yield Change("consume_inbox", (seq, row.key, key))


def rewrite(row: SessionRow, item: InboxItem) -> Plan[None]:
    """Store what became of an item's content."""
    yield Change("rewrite_inbox", (_content_text(item.content), row.key, item.key))


def items(row: SessionRow) -> Plan[list[InboxItem]]:
    """Return a session's inbox in order of arrival."""
    found = yield Query("list_inbox", (row.key,))
    return [rows.shown_item(_item(row.id, item)) for item in found]


def contents(row: SessionRow) -> Plan[list[Slot]]:
    """Return the values in a session's inbox."""
    found = yield from items(row)
    return [item.content for item in found if item.content is not None]


def count_waiting(row: SessionRow) -> Plan[int]:
    """Return how many items nobody has consumed."""
    (count,) = yield from first("count_inbox", row.key)
    waiting: int = count
    return waiting


def _content_text(content: Slot | None) -> str | None:
    return None if content is None else msgspec.json.encode(to_record(content)).decode()


def _item(session_id: str, found: Any) -> InboxItem:
    key, kind, at, call_id, content, consumed, wait, by = found
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
    return InboxItem(session_id, key, kind, at, call_id, held, consumed, wait, by)
