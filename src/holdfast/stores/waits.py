"""Waits: which calls of a session wait for someone, and what its inbox admits for them.

A wait begins with `call.suspended` and ends when the call moves on. What stores list of it is
derived from the state and that event. Of the answers and expiries for one wait the first counts,
and an expiry only once the deadline has passed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

from holdfast.core.errors import InboxConflict
from holdfast.core.events import Event
from holdfast.core.payloads import from_record
from holdfast.core.state import PendingCall, State
from holdfast.stores.port import InboxDraft, InboxItem, PendingFilter, PendingWait

SUSPENDED = "call.suspended"
DECIDING = ("answer", "expiry")
"""Kinds of items of which the first for a wait counts."""
ABOUT_WAITS = (*DECIDING, "extend", "cancel")


def is_waiting(call: PendingCall | None) -> bool:
    """Tell whether a call waits for someone outside."""
    return call is not None and call.stage == "suspended"


def waiting(state: State) -> list[PendingCall]:
    """Return the calls of a session that wait."""
    return [call for call in state.calls.values() if is_waiting(call)]


def ended(before: State, after: State) -> list[str]:
    """Return the calls that waited before a batch and do not any more."""
    if before.calls == after.calls:
        return []
    gone = (key for key, call in before.calls.items() if is_waiting(call))
    return [key for key in gone if not is_waiting(after.calls.get(key))]


def begun(before: State, after: State) -> list[PendingCall]:
    """Return the calls that wait after a batch and did not, or otherwise, before it."""
    if before.calls == after.calls:
        return []
    return [call for call in waiting(after) if before.calls.get(call.call_id) != call]


def beginnings(events: Iterable[Event]) -> dict[str, Event]:
    """Return the last event of each call, among those given in order, that began a wait."""
    return {event.data["call_id"]: event for event in events if event.type == SUSPENDED}


def wait_of(state: State, call: PendingCall, event: Event) -> PendingWait:
    """Return a wait as stores list it; `event` began it."""
    prompt = event.data.get("prompt")
    return PendingWait(
        session=state.session,
        tenant=state.tenant,
        agent=state.agent,
        call_id=call.call_id,
        name=call.name,
        wait=call.wait,
        kind=call.waits_for or "question",
        since=event.at,
        seq=event.seq,
        deadline=call.deadline,
        assignee=call.assignee,
        prompt=None if prompt is None else from_record(prompt),
    )


def waits_of(state: State, newest_first: Iterable[Event]) -> Iterator[PendingWait]:
    """Yield the waits of a session; events of type `call.suspended` are read as far as needed."""
    due = {call.call_id: call for call in waiting(state)}
    for event in newest_first if due else ():
        call = due.pop(event.data["call_id"], None)
        if call is not None:
            yield wait_of(state, call, event)
        if not due:
            return


def matches(wait: PendingWait, where: PendingFilter | None, due_before: str | None) -> bool:
    """Tell whether a wait belongs into a listing."""
    named = ("tenant", "session", "kind", "assignee", "agent")
    wanted = where is None or all(getattr(where, n) in (None, getattr(wait, n)) for n in named)
    return wanted and (due_before is None or is_past(wait.deadline, milliseconds(due_before)))


def milliseconds(moment: str | None) -> int | None:
    """Return a moment in milliseconds since the epoch, None where the text is not one."""
    try:
        found = datetime.fromisoformat(moment or "")
    except ValueError:
        return None
    found = found if found.tzinfo is not None else found.replace(tzinfo=UTC)
    return int(found.timestamp() * 1000)


def is_past(deadline: str | None, clock: int | None) -> bool:
    """Tell whether a deadline has passed by a clock in milliseconds."""
    due = milliseconds(deadline)
    return due is not None and clock is not None and due <= clock


def number_of(draft: InboxDraft, call: PendingCall | PendingWait | None) -> int | None:
    """Return the number of the wait that an item is about; `call` is the call if it waits."""
    if draft.wait is not None or call is None:
        return draft.wait
    return call.wait


def decides(item: InboxItem, draft: InboxDraft, wait: int | None) -> bool:
    """Tell whether a stored item is what counts for the wait that a draft is about."""
    return item.kind in DECIDING and (item.call_id, item.wait) == (draft.call_id, wait)


def admit(
    session_id: str,
    draft: InboxDraft,
    decided: InboxItem | None,
    wait: int | None,
    due_at: int | None,
    clock: int,
) -> InboxItem | None:
    """Return the item that says the same already, None where the draft is admitted; else refuse.

    `decided` is what came first for the wait, `due_at` the deadline of the call if it is in that
    wait, in milliseconds.
    """
    what = f"call {draft.call_id!r}" + ("" if wait is None else f" (wait {wait})")
    if decided is not None:
        content = None if decided.content is None else decided.content.id
        wanted = None if draft.content is None else draft.content.id
        if (draft.kind, wanted) == (decided.kind, content):
            return decided
        raise InboxConflict(
            f"the inbox of {session_id!r} has another item for {what}, a {decided.kind!r} of "
            f"{decided.at}; the first one counts",
            stored=decided,
        )
    if draft.kind == "expiry" and (due_at is None or clock < due_at):
        raise InboxConflict(
            f"{what} of session {session_id!r} cannot expire: it does not wait, or its deadline "
            "has not passed by the store's clock",
        )
    return None
