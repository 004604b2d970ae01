"""What every store decides alike about rows: listings, cursors, refusals, imports and erasure.

Stores differ in how they keep bytes. What a page is, who matches a filter, which error says what,
and how an erased value looks is the same everywhere and stands here once.
"""

from __future__ import annotations

import base64
import binascii
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
from msgspec import structs

from holdfast.core import status
from holdfast.core.errors import (
    Corruption,
    HoldfastError,
    ImportConflict,
    InboxConflict,
    InboxConsumed,
    InboxItemNotFound,
    InvalidInput,
    InvalidRef,
    LeaseHeld,
    LeaseLost,
    NothingWritten,
    PayloadNotFound,
    ReadOnlySession,
    SettingsConflict,
)
from holdfast.core.events import Event
from holdfast.core.fold import fold
from holdfast.core.ids import friendly_name
from holdfast.core.payloads import (
    Erased,
    Reachable,
    Slot,
    check_bytes,
    digest_form,
    from_record,
    is_slot,
    to_record,
    walk,
)
from holdfast.core.records import canonical
from holdfast.core.replay import Copy
from holdfast.core.state import State, empty
from holdfast.stores import waits
from holdfast.stores.checks import (
    LARGEST,
    check_moment,
    check_page,
    check_pending_filter,
    check_texts,
)
from holdfast.stores.port import (
    AuditRow,
    DueSession,
    InboxDraft,
    InboxItem,
    Lease,
    LeaseInfo,
    PendingFilter,
    PendingPage,
    PendingWait,
    SessionFilter,
    SessionInfo,
)

logger = logging.getLogger("holdfast.stores")


def write_cursor(order: int) -> str:
    """Return the cursor that continues a listing below an order number."""
    return base64.urlsafe_b64encode(f"o{order}".encode()).decode().rstrip("=")


def read_cursor(cursor: str | None, start: int = LARGEST) -> int:
    """Return the order number where a listing continues, its start where there is none yet."""
    if cursor is None:
        return start
    check_texts("cursor", cursor)
    try:
        text = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode()
        order = int(text[1:])
        if text[:1] != "o" or not 0 <= order <= LARGEST:
            raise ValueError(text)
        return order
    except (ValueError, binascii.Error):
        raise _cursor_error(cursor) from None


def shown_status(state: State, live: bool) -> str:
    """Return the status as readers see it: running only while a live lease stands behind it."""
    if state.status == status.RUNNING and not live:
        return status.INTERRUPTED
    return state.status


def info_of(state: State, live: bool, imported: bool, waiting: int) -> SessionInfo:
    """Return a session's row of a listing."""
    return SessionInfo(
        id=state.session,
        name=friendly_name(state.session),
        tenant=state.tenant,
        kind=state.kind,
        agent=state.agent,
        status=shown_status(state, live),
        seq=state.seq,
        started_at=state.started_at,
        updated_at=state.updated_at,
        turns=state.counters.get("turn", 0),
        head=state.head,
        usd=state.spend.usd,
        tokens=state.spend.tokens,
        unknown_usd=state.spend.unknown_usd,
        last_turn=state.last_turn,
        parent=None if state.parent is None else state.parent.get("session"),
        origin=None if state.origin is None else str(state.origin["session"]),
        labels=state.labels,
        imported=imported,
        inbox=waiting,
        digest=state.digest,
    )


def matches(info: SessionInfo, where: SessionFilter | None) -> bool:
    """Tell whether a session belongs into a listing."""
    if where is None:
        return True
    named = ("tenant", "name", "status", "kind", "agent", "parent")
    wanted = all(getattr(where, n) in (None, getattr(info, n)) for n in named)
    wanted = wanted and where.waiting in (None, info.inbox > 0)
    return wanted and (where.label is None or info.labels.get(where.label[0]) == where.label[1])


def check_pending(where: PendingFilter | None, due_before: str | None, limit: int) -> None:
    """Refuse a listing of waits that there cannot be."""
    check_pending_filter(where)
    check_page(0, None, limit)
    if due_before is not None:
        check_moment(due_before)


def page_of_waits(
    found: Iterable[PendingWait],
    where: PendingFilter | None,
    due_before: str | None,
    limit: int,
    cursor: str | None,
) -> PendingPage:
    """Return one page of waits that were derived from all sessions, oldest first."""
    after = _read_place(cursor)
    wanted = {_place(w): w for w in found if waits.matches(w, where, due_before)}
    rest = [(place, wanted[place]) for place in sorted(wanted) if place > after]
    more = _write_place(rest[limit - 1][0]) if len(rest) > limit else None
    return PendingPage(tuple(wait for _, wait in rest[:limit]), more)


_Place = tuple[str, str, int, str]


def _place(wait: PendingWait) -> _Place:
    return wait.since, wait.session, wait.seq, wait.call_id


def _write_place(place: _Place) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(place)).decode().rstrip("=")


def _read_place(cursor: str | None) -> _Place:
    if cursor is None:
        return "", "", 0, ""
    check_texts("cursor", cursor)
    try:
        text = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
        place: _Place = msgspec.json.decode(text, type=_Place)
        return place
    except (ValueError, binascii.Error):
        raise _cursor_error(cursor) from None


def _cursor_error(cursor: str) -> InvalidInput:
    return InvalidInput(f"{cursor!r} is not a valid cursor; pass one that a listing returned")


def due_of(state: State, inbox: bool, deadline: bool) -> DueSession | None:
    """Return the work of a session that nobody drives, None where it has none."""
    if state.status in (status.STOPPED, status.FAILED):
        return None
    unfinished = state.status in (status.RUNNING, status.STOP_REQUESTED)
    causes = {"inbox": inbox, "deadline": deadline, "open": unfinished}
    reasons = tuple(name for name, there in causes.items() if there)
    return DueSession(state.session, state.tenant, state.agent, reasons) if reasons else None


def log_dropped_post(sender: str, target: str, draft: InboxDraft, error: HoldfastError) -> None:
    """Log that an item for another session was not put."""
    logger.warning(
        "session %s posted item %r (%s) to session %s, which did not take it: %s",
        sender,
        draft.key,
        draft.kind,
        target,
        error,
    )


def check_same_start(stored: Event, wanted: Event) -> None:
    """Raise SettingsConflict where a session exists with another beginning."""
    if digest_form(stored.data) != digest_form(wanted.data):
        raise SettingsConflict(
            f"session {stored.session!r} exists with other settings; use them or another id",
            session=stored.session,
        )


def same_item(stored: InboxItem, draft: InboxDraft) -> InboxItem:
    """Return the stored item where the draft asks the same again; raise InboxConflict otherwise."""
    content = None if stored.content is None else stored.content.id
    wanted = None if draft.content is None else draft.content.id
    wait = stored.wait if draft.wait is None else draft.wait
    if (stored.key, stored.kind, stored.call_id, stored.wait, content) == (
        draft.key,
        draft.kind,
        draft.call_id,
        wait,
        wanted,
    ):
        return stored
    raise InboxConflict(
        f"the inbox of {stored.session!r} has another item for key {stored.key!r}, a "
        f"{stored.kind!r} of {stored.at}; the first one counts",
        stored=stored,
    )


def check_consumable(session_id: str, key: str, item: InboxItem | None) -> None:
    """Refuse to consume what is not there or was consumed already."""
    if item is None:
        raise InboxItemNotFound(f"the inbox of {session_id!r} has no item {key!r}")
    if item.consumed_seq is not None:
        raise InboxConsumed(
            f"inbox item {key!r} of {session_id!r} was consumed by event {item.consumed_seq}"
        )


def held_error(info: LeaseInfo) -> LeaseHeld:
    """Return the error that says who drives a session."""
    return LeaseHeld(
        f"session {info.session!r} is driven by {info.holder} (owner {info.owner!r}, epoch "
        f"{info.epoch}); wait for it, stop it, or let a message wait in its inbox "
        "(when_busy='queue', --queue)",
        holder=info.holder,
        owner=info.owner,
        epoch=info.epoch,
    )


def log_stolen(lease: Lease, dead: LeaseInfo) -> None:
    """Log that a lease was taken from an owner that is dead."""
    logger.warning(
        "session %s: epoch %d takes the lease from %s (owner %s, epoch %d), which is dead",
        lease.session,
        lease.epoch,
        dead.holder,
        dead.owner,
        dead.epoch,
    )


def lost_error(lease: Lease, info: LeaseInfo | None) -> LeaseLost:
    """Return the error that says who took a lease over."""
    by = "nobody holds it now" if info is None else f"{info.holder} holds epoch {info.epoch}"
    return LeaseLost(
        f"the lease of epoch {lease.epoch} on session {lease.session!r} is lost: {by}; nothing "
        "was written, acquire it again",
        holder=None if info is None else info.holder,
        owner=None if info is None else info.owner,
    )


def closed_error(where: str) -> NothingWritten:
    """Return the error for whatever is asked of a handle after its end."""
    return NothingWritten(f"this handle on {where!r} is closed; open the store again")


def imported_error(session_id: str) -> ReadOnlySession:
    """Return the error that says a copy has open work."""
    return ReadOnlySession(
        f"session {session_id!r} is an imported copy with open work; take it over only if its "
        "original will not go on, or fork it"
    )


def foreign_error(session_id: str, payload_id: str) -> InvalidRef:
    """Return the error for a ref that this session has no right to."""
    return InvalidRef(
        f"session {session_id!r} has no payload {payload_id!r}: refer only to what this session "
        "stored, or pass the bytes along",
        payload=payload_id,
    )


def erased_error(payload_id: str, at: str, rule: str) -> PayloadNotFound:
    """Return the error that tells erased from missing."""
    return PayloadNotFound(
        f"payload {payload_id!r} was erased at {at} by rule {rule!r}",
        payload=payload_id,
        erased_at=at,
        rule=rule,
    )


def missing_error(session_id: str, payload_id: str) -> Corruption:
    """Return the error for a payload that should be there and is not."""
    return Corruption(
        f"payload {payload_id!r} of session {session_id!r} is missing: restore it from an export",
        payload=payload_id,
        session=session_id,
    )


def slots_with_inner(
    events: Iterable[Event],
    payloads: Mapping[str, bytes],
    erased: Mapping[str, tuple[str, str]],
) -> list[Slot]:
    """Return what imported events need beside themselves: erased slots first, then payloads.

    Manifests are followed. `erased` counts only for their parts: what an event refers to says by
    itself that it was erased. A payload that is not given, or not what its slot says, makes the
    import unusable.
    """
    gone: dict[str, Slot] = {}
    live: list[Slot] = []
    slots = [item for event in events for item in walk(event.data)]
    said = {item.id for item in slots if item.erased is None}
    reachable = Reachable(slots)
    for item in reachable:
        if item.erased is not None:
            gone[item.id] = item
        elif item.id in erased and item.id not in said:
            gone[item.id] = item.without(Erased(*erased[item.id]))
        elif item.id not in payloads:
            raise Corruption(f"the import lacks payload {item.id!r}", payload=item.id)
        else:
            live.append(item)
            reachable.follow(item, check_bytes(item, payloads[item.id]))
    return [*gone.values(), *live]


def tenant_of(copy: Copy) -> str:
    """Return whose session a copy is of."""
    return fold(empty(copy.session), copy.events[:1]).tenant


def has_open_work(state: State) -> bool:
    """Tell whether someone may be driving the original of a copy."""
    return state.turn is not None or bool(state.calls)


def forward(session_id: str, stored: Sequence[Event], copy: Sequence[Event]) -> list[Event]:
    """Return the events that a copy adds to the stored log; raise ImportConflict if it differs."""
    common = min(len(stored), len(copy))
    if common and stored[common - 1].digest != copy[common - 1].digest:
        first = next(a.seq for a, b in zip(stored, copy, strict=False) if a.digest != b.digest)
        raise ImportConflict(
            f"session {session_id!r} differs from the stored one from event {first} on; import it "
            "into another store, or fork the one you want to keep",
            session=session_id,
            seq=first,
        )
    return list(copy[len(stored) :])


def count_places(events: Iterable[Event], payload_id: str) -> int:
    """Return in how many places of a log a value stands that was not erased there."""
    return sum(
        item.id == payload_id and item.erased is None
        for event in events
        for item in walk(event.data)
    )


def erase_in(event: Event, payload_id: str, at: str, rule: str) -> Event:
    """Return an event with one value replaced by its tombstone; its digest still holds."""
    data = _erase(event.data, payload_id, Erased(at, rule))
    return event if data is event.data else structs.replace(event, data=data)


def erase_item(item: InboxItem, payload_id: str, at: str, rule: str) -> InboxItem:
    """Return an inbox item with a value replaced by its tombstone, as it is stored.

    The value's id stays, so that asking the same again is known.
    """
    if not holds(item, payload_id):
        return item
    assert item.content is not None
    return replace(item, content=item.content.without(Erased(at, rule)))


def holds(item: InboxItem, payload_id: str) -> bool:
    """Tell whether a stored inbox item has a value that was not erased."""
    content = item.content
    return content is not None and content.id == payload_id and content.erased is None


def shown_item(item: InboxItem) -> InboxItem:
    """Return a stored inbox item as readers see it: without an erased value."""
    if item.content is None or item.content.erased is None:
        return item
    return replace(item, content=None)


def erase_again(events: Iterable[Event], marks: dict[str, tuple[str, str]]) -> list[Event]:
    """Return events that arrive from elsewhere without the values that are erased here."""
    out = []
    for event in events:
        for payload_id in {item.id for item in walk(event.data) if item.erased is None}:
            if payload_id in marks:
                event = erase_in(event, payload_id, *marks[payload_id])
        out.append(event)
    return out


def _erase(part: Any, payload_id: str, mark: Erased) -> Any:
    if isinstance(part, dict):
        if is_slot(part):
            item = from_record(part)
            if item.id != payload_id or item.erased is not None:
                return part
            return to_record(item.without(mark))
        new = {key: _erase(value, payload_id, mark) for key, value in part.items()}
        return part if all(new[key] is part[key] for key in part) else new
    if isinstance(part, list):
        items = [_erase(value, payload_id, mark) for value in part]
        return part if all(a is b for a, b in zip(items, part, strict=True)) else items
    return part


def snapshot_check(seq: int, version: int, digest: str, body: bytes) -> bytes:
    """Return what a state snapshot's own checksum covers."""
    return canonical({"digest": digest, "fold": version, "seq": seq}) + body


def audit_row(session_id: str, number: int, at: str, data: bytes) -> AuditRow:
    """Return an audit row as callers get it; one that is damaged says so and hides no other."""
    try:
        record: Any = msgspec.json.decode(data)
    except (msgspec.MsgspecError, TypeError) as error:
        record = {"damaged": str(error)}
    return AuditRow(session_id, number, at, record if isinstance(record, dict) else {})
