"""Rows of calls that wait for someone: kept with the log, listed over all sessions.

They repeat what states and `call.suspended` events say, and are made anew from those where they
were lost. What is asked stands in the event alone, so that erasing it there is enough.
"""

from __future__ import annotations

import logging
from typing import Any

import msgspec

from holdfast.core.errors import InvalidInput
from holdfast.core.events import Event
from holdfast.core.payloads import Slot, from_record
from holdfast.core.state import State
from holdfast.stores import waits
from holdfast.stores.port import DueSession, PendingFilter, PendingWait
from holdfast.stores.relational import events
from holdfast.stores.relational.leases import live_owners
from holdfast.stores.relational.plan import Change, Plan, Query
from holdfast.stores.relational.sessions import SessionRow

logger = logging.getLogger("holdfast.stores")

PAGE_EVENTS = 100


def follow(row: SessionRow, before: State, after: State, new: tuple[Event, ...]) -> Plan[None]:
    """Bring the rows of a session from the state before a batch to the one after it."""
    for call_id in waits.ended(before, after):
        yield Change("delete_pending", (row.key, call_id))
    begun = waits.begun(before, after)
    starts = waits.beginnings(new) if begun else {}
    for call in begun:
        if call.call_id in starts:
            yield Change("delete_pending", (row.key, call.call_id))
            yield from _put(row, waits.wait_of(after, call, starts[call.call_id]))
        else:
            due_at = waits.milliseconds(call.deadline)
            moved = (call.deadline, due_at, call.assignee, row.key, call.call_id)
            yield Change("move_pending", moved)


def rebuild(row: SessionRow, state: State) -> Plan[None]:
    """Make the rows of a session say what its log says; warn where they did not."""
    wanted = []
    for wait in (yield from _derived(row, state)):
        wanted.append(_columns(wait))
    if wanted == (yield Query("pending_of_session", (row.key,))):
        return
    logger.warning(
        "the rows of waiting calls of session %s did not follow from its log; they were made anew",
        row.id,
    )
    yield Change("delete_pending_of_session", (row.key,))
    for columns in wanted:
        yield Change("put_pending", (row.key, *columns))


def _derived(row: SessionRow, state: State) -> Plan[list[PendingWait]]:
    """Return the waits of a session as its log has them, oldest first."""
    if not waits.waiting(state):
        return []
    found: list[Event] = []
    due = {call.call_id for call in waits.waiting(state)}
    before = None
    while due:
        page = yield from events.page(
            row, before=before, limit=PAGE_EVENTS, reverse=True, types=[waits.SUSPENDED]
        )
        if not page:
            break
        found += page
        due -= waits.beginnings(page).keys()
        before = page[-1].seq
    return sorted(waits.waits_of(state, found), key=lambda wait: wait.seq)


def _put(row: SessionRow, wait: PendingWait) -> Plan[None]:
    yield Change("put_pending", (row.key, *_columns(wait)))


def _columns(wait: PendingWait) -> tuple[Any, ...]:
    return (
        wait.call_id,
        wait.name,
        wait.wait,
        wait.kind,
        wait.seq,
        wait.since,
        wait.deadline,
        waits.milliseconds(wait.deadline),
        wait.assignee,
    )


def page(
    where: PendingFilter, due: int | None, after: int, limit: int
) -> Plan[list[tuple[int, PendingWait]]]:
    """Return up to `limit` waits that match, with their keys, oldest first."""
    name = "list_pending"
    if where.session is not None:
        name = "list_pending_by_session"
    elif due is not None:
        name = "list_pending_by_due"
    elif where.assignee is not None:
        name = "list_pending_by_assignee"
    wanted = {
        "tenant": where.tenant,
        "session": where.session,
        "kind": where.kind,
        "assignee": where.assignee,
        "agent": where.agent,
        "due": due,
        "after": after,
        "limit": limit,
    }
    found = yield Query(name, wanted)
    return [(key, _wait(*columns)) for key, *columns in found]


def _wait(
    session: str,
    tenant: str,
    agent: str,
    call_id: str,
    name: str,
    wait: int,
    kind: str,
    since: str,
    seq: int,
    deadline: str | None,
    assignee: str | None,
    data: bytes | str | None,
) -> PendingWait:
    return PendingWait(
        session=session,
        tenant=tenant,
        agent=agent,
        call_id=call_id,
        name=name,
        wait=wait,
        kind=kind,
        since=since,
        seq=seq,
        deadline=deadline,
        assignee=assignee,
        prompt=_prompt(data),
    )


def _prompt(data: bytes | str | None) -> Slot | None:
    try:
        prompt = msgspec.json.decode(data or b"{}", type=dict[str, Any]).get("prompt")
        return None if prompt is None else from_record(prompt)
    except (msgspec.MsgspecError, InvalidInput):
        return None  # a damaged event: verify names it, and the wait is shown all the same


def work_due(
    now: int, tenant: str | None, after: int, limit: int
) -> Plan[list[tuple[int, DueSession]]]:
    """Return up to `limit` sessions that nobody drives and that have work, with their keys."""
    live = yield from live_owners()
    wanted = {"now": now, "tenant": tenant, "after": after, "limit": limit}
    found = yield Query("list_work_due", wanted | {"live": msgspec.json.encode(live).decode()})
    return [(key, _due(*columns)) for key, *columns in found]


def _due(
    session: str, tenant: str, agent: str, inbox: int, deadline: int, unfinished: int
) -> DueSession:
    causes = {"inbox": inbox, "deadline": deadline, "open": unfinished}
    return DueSession(session, tenant, agent, tuple(name for name in causes if causes[name]))
