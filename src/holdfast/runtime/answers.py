"""Answers: what people and programs outside say to calls that wait for them.

An answer is checked against what the log says of the wait (its form, its assignee, the arguments
that were shown) and put into the inbox: durable, without the lease and without agent code. The
first answer to a wait wins, the same again is fine, another is stale. Deadlines are applied by
whoever looks next: a driver, a runtime's own timer, `tick`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from holdfast.core.errors import (
    AnswerRefused,
    AnswerStale,
    CallNotFound,
    Conflict,
    InboxConflict,
    InvalidInput,
    SessionNotFound,
)
from holdfast.core.events import now
from holdfast.core.facts import CallRequested, CallSuspended, InputKind
from holdfast.core.payloads import slot
from holdfast.core.records import record_id
from holdfast.core.state import PendingCall, State
from holdfast.runtime import schemas
from holdfast.runtime.inbox import goes_on_with_answer
from holdfast.runtime.scope import Scope
from holdfast.stores.port import (
    InboxDraft,
    InboxItem,
    PendingFilter,
    PendingPage,
    PendingWait,
    SessionStore,
)
from holdfast.views.values import hydrate

MAX_ANSWER_BYTES = 16 << 20
TICK_PAGE = 200
MAX_WAITS = 1000
REDACTED = {"value": "answer", "arguments": "arguments", "reason": "answer", "error": "error"}
"""The parts of an answer that people say, with their kinds."""
INTERNAL = frozenset({"child", "budget"})
"""Kinds of waits that end by what another session does: nobody outside answers them."""


@dataclass(frozen=True, slots=True)
class Approve:
    """Let a call go ahead, with its recorded arguments or with edited ones.

    `digest` is that of the arguments that were shown (`arguments_digest`): an approval of others
    is stale.
    """

    arguments: Mapping[str, Any] | None = None
    digest: str | None = None
    scope: str | None = None


@dataclass(frozen=True, slots=True)
class Deny:
    """Refuse a call."""

    reason: str = "denied"


@dataclass(frozen=True, slots=True)
class Fail:
    """Say that a call which someone outside carries out has failed."""

    error: str


def _as_it_is(kind: str, value: Any) -> Any:
    return value


async def answer(
    store: SessionStore,
    session_id: str,
    call_id: str,
    said: Any,
    *,
    wait: int | None = None,
    by: str | None = None,
    scope: Scope | None = None,
    redact: Callable[[str, Any], Any] = _as_it_is,
) -> InboxItem:
    """Put an answer into a session's inbox; it is checked first, and durable on return."""
    state = await store.load_state(session_id)
    call = _waiting(state, call_id, wait)
    _refuse_internal(call)
    suspended = await _fact(store, session_id, call.wait_seq, CallSuspended)
    if call.assignee is not None and by != call.assignee:
        raise AnswerRefused(
            f"call {call_id!r} of session {session_id!r} waits for {call.assignee!r}, not for "
            f"{by!r}; answer as the assignee"
        )
    if isinstance(said, Approve) and scope is not None:
        if scope.reference is None:
            raise InvalidInput(
                "an approved call runs later, maybe in another process: give the scope of its "
                "approver a reference, as in Scope(value, reference=…)"
            )
        said = replace(said, scope=scope.reference)
    content = await _content(store, session_id, call, suspended, said)
    for name, kind in REDACTED.items():
        if content.get(name) is not None:
            content[name] = redact(kind, content[name])
    return await _put(store, state, call, "answer", content, by)


async def waiting(
    store: SessionStore,
    where: PendingFilter | None = None,
    *,
    limit: int = 100,
    cursor: str | None = None,
) -> PendingPage:
    """Return one page of the calls that wait for someone outside, oldest first.

    A page may be shorter than `limit`, and is empty only at the end. Calls that wait for another
    session are listed where `where` asks for their kind.
    """
    while True:
        page = await store.pending(where, limit=limit, cursor=cursor)
        if where is not None and where.kind is not None:
            return page
        found = tuple(wait for wait in page.waits if wait.kind not in INTERNAL)
        if found or page.cursor is None:
            return PendingPage(found, page.cursor)
        cursor = page.cursor


async def waiting_below(store: SessionStore, session_id: str) -> list[PendingWait]:
    """Return what a session waits for: its own calls, and those of the children it waits for."""
    page = await store.pending(PendingFilter(session=session_id), limit=MAX_WAITS)
    found: list[PendingWait] = []
    calls = (await store.load_state(session_id)).calls
    for wait in page.waits:
        call = calls.get(wait.call_id)
        if wait.kind not in INTERNAL:
            found.append(wait)
        elif call is not None and call.child is not None:
            with suppress(SessionNotFound):  # it is not made yet
                found += await waiting_below(store, call.child)
    return found


async def extend(
    store: SessionStore, session_id: str, call_id: str, deadline: datetime, by: str | None = None
) -> InboxItem:
    """Move the deadline of a wait."""
    if deadline.tzinfo is None:
        raise InvalidInput(f"deadline {deadline.isoformat()} has no time zone; give it one")
    state = await store.load_state(session_id)
    call = _waiting(state, call_id, None)
    _refuse_internal(call)
    text = deadline.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return await _put(store, state, call, "extend", text, by, unique=text)


async def cancel(
    store: SessionStore, session_id: str, call_id: str, by: str | None = None
) -> InboxItem:
    """Call a wait off: the call is cancelled."""
    state = await store.load_state(session_id)
    return await _put(store, state, _waiting(state, call_id, None), "cancel", None, by)


async def expire_due(store: SessionStore, session: str | None = None) -> list[str]:
    """Put an expiry for every wait whose deadline has passed; return the sessions it concerns.

    With `session`, only those of that one.
    """
    found: list[str] = []
    cursor = None
    moment = now()
    while True:
        page = await store.pending(
            PendingFilter(session=session), due_before=moment, limit=TICK_PAGE, cursor=cursor
        )
        for wait in page.waits:
            draft = InboxDraft(
                key=_key("expiry", wait.call_id, wait.wait),
                kind="expiry",
                call_id=wait.call_id,
                wait=wait.wait,
            )
            try:
                await store.put_inbox(wait.session, draft)
            except Conflict:
                continue  # answered, or extended, in the meantime
            if wait.session not in found:
                found.append(wait.session)
        cursor = page.cursor
        if cursor is None:
            return found


async def arguments_digest(store: SessionStore, session_id: str, call_id: str) -> str:
    """Return the digest of a call's recorded arguments, which an approval may name."""
    state = await store.load_state(session_id)
    call = _waiting(state, call_id, None)
    request = await _fact(store, session_id, call.seq, CallRequested)
    return str(request.arguments.id)


def _waiting(state: State, call_id: str, wait: int | None) -> PendingCall:
    call = state.calls.get(call_id)
    if call is None:
        raise CallNotFound(
            f"session {state.session!r} has no open call {call_id!r}; `holdfast pending` lists "
            "those that wait"
        )
    if call.stage != "suspended" or (wait is not None and wait != call.wait):
        raise AnswerStale(
            f"call {call_id!r} of session {state.session!r} does not wait for this answer: it is "
            f"{call.stage}, its last wait is {call.wait}"
        )
    return call


def _refuse_internal(call: PendingCall) -> None:
    if call.waits_for in INTERNAL:
        below = f"its child {call.child!r}" if call.child else "another session"
        raise AnswerRefused(
            f"call {call.call_id!r} waits for {below}, not for an answer; `holdfast pending` lists "
            "what that one asks, and `cancel` calls it off"
        )


async def _content(
    store: SessionStore,
    session_id: str,
    call: PendingCall,
    suspended: CallSuspended,
    said: Any,
) -> dict[str, Any]:
    """Return an answer as the inbox holds it; refuse one that does not fit the wait."""
    if call.waits_for == "approval":
        return await _decision(store, session_id, call, said)
    if isinstance(said, Deny) and goes_on_with_answer(call):
        return {"declined": said.reason}
    if isinstance(said, Approve | Deny):
        raise AnswerRefused(
            f"call {call.call_id!r} waits for a value, not for an approval; answer with a value"
        )
    if isinstance(said, Fail):
        return {"error": said.error}
    if suspended.schema is not None:
        schema = (await hydrate(store, session_id, suspended.schema)).value()
        assert isinstance(schema, dict)
        schemas.check(schema, said, "the answer")
    elif call.waits_for == "question" and call.kind == "question" and not isinstance(said, str):
        raise AnswerRefused(f"call {call.call_id!r} takes text as its answer, not {said!r:.80}")
    return {"value": said}


async def _decision(
    store: SessionStore, session_id: str, call: PendingCall, said: Any
) -> dict[str, Any]:
    match said:
        case Approve():
            request = await _fact(store, session_id, call.seq, CallRequested)
            if said.digest is not None and said.digest != request.arguments.id:
                raise AnswerStale(
                    f"the approval names other arguments than call {call.call_id!r} has; look at "
                    "it again"
                )
            edited = None if said.arguments is None else dict(said.arguments)
            return {"approve": True, "arguments": edited, "scope": said.scope}
        case Deny():
            return {"approve": False, "reason": said.reason}
    raise AnswerRefused(
        f"call {call.call_id!r} waits for an approval; answer with Approve() or Deny(reason)"
    )


async def _put(
    store: SessionStore,
    state: State,
    call: PendingCall,
    kind: InputKind,
    content: Any,
    by: str | None,
    unique: str = "",
) -> InboxItem:
    item = None if content is None else slot(content, "answer")
    if item is not None and item.size > MAX_ANSWER_BYTES:
        raise AnswerRefused(
            f"the answer has {item.size} bytes; at most {MAX_ANSWER_BYTES} are taken"
        )
    draft = InboxDraft(
        key=_key(kind, call.call_id, call.wait, unique),
        kind=kind,
        call_id=call.call_id,
        wait=call.wait,
        content=item,
        by=by,
    )
    try:
        return await store.put_inbox(state.session, draft)
    except InboxConflict as error:
        raise AnswerStale(
            f"call {call.call_id!r} of session {state.session!r} has another answer already: "
            f"{error}"
        ) from error


def _key(kind: str, call_id: str, wait: int, unique: str = "") -> str:
    """Return a key that follows from what is said, so that saying it again is the same item."""
    about = {"kind": kind, "call": call_id, "wait": wait, "unique": unique}
    return f"holdfast:{kind}:{record_id(about)[-32:]}"


async def _fact(store: SessionStore, session_id: str, seq: int, kind: type[Any]) -> Any:
    page = await store.read_events(session_id, after=seq - 1, before=seq + 1)
    fact = page[0].fact()
    assert isinstance(fact, kind)
    return fact
