"""The session store port: where logs, payloads, leases and inboxes live.

One contract for every store; `holdfast.testing.store_contract` proves it and ships to users. All
methods are async and never block the event loop. Every method checks the ids it is given and
raises InvalidId; a session that is not there is SessionNotFound, a deleted one SessionDeleted.
Reads take no lease, hold no transaction between pages, work beside a live driver and from any
process, and never repair anything.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Protocol, runtime_checkable

import msgspec

from holdfast.core.events import Event
from holdfast.core.facts import Fact, HeadPublished, InputKind, SessionStarted
from holdfast.core.heads import EdgeDraft, HeadDraft
from holdfast.core.payloads import Slot
from holdfast.core.replay import Copy
from holdfast.core.state import State

LEASE_SECONDS = 15.0
HEARTBEAT_SECONDS = 5.0
GC_GRACE_SECONDS = 3600.0
ROW_PAYLOAD_BYTES = 64 * 1024
"""Payloads up to this size are committed with their event; larger ones go to a blob store first."""


@dataclass(frozen=True, slots=True)
class StoreFlags:
    """What a store is and which optional powers it has."""

    name: str
    durable: bool
    multi_process: bool
    url: str
    posts: bool = True
    """Whether `append(posts=…)` is one transaction; without it, post afterwards by `put_inbox`."""


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to drive one session; `epoch` fences off every earlier holder.

    What a driver asks first is answered with it: where the log stood when the lease was taken, and
    how many inbox items waited.
    """

    session: str
    owner: str
    epoch: int
    seq: int = field(default=0, compare=False)
    inbox: int = field(default=0, compare=False)

    def is_of(self, owner: str | None, epoch: int) -> bool:
        """Tell whether an owner holds the session by this very lease."""
        # What merely equals a number would be written as something else.
        return type(self.epoch) is int and (self.owner, self.epoch) == (owner, epoch)


@dataclass(frozen=True, slots=True)
class LeaseInfo:
    """Who holds a session, as others see it."""

    session: str
    owner: str
    epoch: int
    live: bool
    holder: str  # for people: process id and host
    expires_in: float | None = None


@dataclass(frozen=True, slots=True)
class InboxDraft:
    """What an outsider asks of a session; `key` makes asking again harmless.

    What concerns a call names it. `wait` is the number of its wait, as `call.suspended` has it;
    left out, the present one is meant. `by` is the principal who asks.
    """

    key: str
    kind: InputKind
    call_id: str | None = None
    content: Slot | None = None
    wait: int | None = None
    by: str | None = None


@dataclass(frozen=True, slots=True)
class InboxItem:
    """An inbox item as stored, stamped by the store."""

    session: str
    key: str
    kind: InputKind
    at: str
    call_id: str | None = None
    content: Slot | None = None
    consumed_seq: int | None = None
    wait: int | None = None
    by: str | None = None


class Appended(msgspec.Struct, frozen=True, gc=False):
    """What an append made durable.

    `inbox` is the number of items that waited when the batch gave the lease back; it is None where
    the lease is still held.
    """

    events: tuple[Event, ...]
    state: State
    head: HeadPublished | None = None
    inbox: int | None = None


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """One row of a listing; `status` is `interrupted` where no live lease backs a running turn."""

    id: str
    name: str
    tenant: str
    kind: str
    agent: str
    status: str
    seq: int
    started_at: str
    updated_at: str
    turns: int
    head: str | None
    usd: str
    tokens: int
    unknown_usd: int
    last_turn: str | None = None
    parent: str | None = None
    origin: str | None = None
    labels: dict[str, str] = field(default_factory=dict)
    imported: bool = False
    inbox: int = 0  # items not consumed yet
    digest: str = ""  # of the last event


@dataclass(frozen=True, slots=True)
class SessionFilter:
    """Which sessions to list; None means any, of `tenant` that of the handle.

    A handle that is not a view may name another tenant, or `*` for all of them.
    """

    tenant: str | None = None
    name: str | None = None
    status: str | None = None
    kind: str | None = None
    agent: str | None = None
    parent: str | None = None
    label: tuple[str, str] | None = None
    waiting: bool | None = None
    """Whether its inbox holds items that nobody has consumed."""


@dataclass(frozen=True, slots=True)
class SessionPage:
    """One page of a listing, newest first; `cursor` leads to the next one, None is the end."""

    sessions: tuple[SessionInfo, ...]
    cursor: str | None = None


@dataclass(frozen=True, slots=True)
class PendingWait:
    """An open call that waits for someone, with what they have to know; derived from the log.

    `prompt` is as the log has it: inline with its bytes, else a ref to be read by `get_payload`.
    """

    session: str
    tenant: str
    agent: str
    call_id: str
    name: str
    wait: int
    kind: str
    since: str
    seq: int  # of the event that began the wait
    deadline: str | None = None
    assignee: str | None = None
    prompt: Slot | None = None


@dataclass(frozen=True, slots=True)
class PendingFilter:
    """Which waits to list; None means any, of `tenant` that of the handle, as in SessionFilter."""

    tenant: str | None = None
    session: str | None = None
    kind: str | None = None
    assignee: str | None = None
    agent: str | None = None


@dataclass(frozen=True, slots=True)
class PendingPage:
    """One page of waits, oldest first; `cursor` leads to the next one, None is the end."""

    waits: tuple[PendingWait, ...]
    cursor: str | None = None


@dataclass(frozen=True, slots=True)
class DueSession:
    """A session that nobody drives and that has work, with the reasons.

    Those are `inbox` (items that nobody consumed), `deadline` (of a call that waits) and `open` (a
    turn, or a stop, whose driver is gone).
    """

    session: str
    tenant: str
    agent: str
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DuePage:
    """One page of sessions with work, oldest created first; `cursor` leads to the next one."""

    sessions: tuple[DueSession, ...]
    cursor: str | None = None


@dataclass(frozen=True, slots=True)
class Transient:
    """A live-only item (a token delta, progress): never stored, dropped first under load."""

    session: str
    kind: str
    data: Any


@dataclass(frozen=True, slots=True)
class Gap:
    """Transient items were dropped; every event up to `last_seq` was delivered."""

    session: str
    last_seq: int


@dataclass(frozen=True, slots=True)
class Hint:
    """A session has moved at least to `seq`, or something of its changed."""

    session: str
    seq: int
    tenant: str = "default"


class Subscription(Protocol):
    """A live view: an async iterator that is also an async context manager.

    Durable events come in order, without gap or repeat, from the log itself, so a slow reader
    lags and harms nobody. Transients wait in a bounded queue and are dropped first. Who follows
    one session when it is deleted gets SessionDeleted; closing just ends the iteration.
    """

    def __aiter__(self) -> AsyncIterator[Event | Transient | Gap | Hint]: ...

    async def __anext__(self) -> Event | Transient | Gap | Hint: ...

    async def __aenter__(self) -> Subscription: ...

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    async def close(self) -> None:
        """End the iteration; may be called more than once."""
        ...


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that verify found wrong; `seq` is the event that it concerns."""

    session: str
    kind: str
    """digest, gap, line, meaning, head, edge, dangling, payload, erased, state, inbox, children"""
    message: str
    seq: int | None = None
    payload: str | None = None


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What verify found. Erased and expired values are said apart from missing ones."""

    session: str
    events: int
    payloads: int
    erased: int
    problems: tuple[Problem, ...]
    head: str | None = None
    digest: str | None = None
    expired: int = 0

    @property
    def ok(self) -> bool:
        """Tell whether everything checked out."""
        return not self.problems


@dataclass(frozen=True, slots=True)
class GcReport:
    """What gc removed, or would remove."""

    payloads: int
    bytes: int
    kept: int
    dry_run: bool
    ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AuditRow:
    """One model call as the audit has it, beside the log: numbered from 1 within its session."""

    session: str
    number: int
    at: str
    record: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ImportOutcome:
    """What importing one session did: created, forwarded or unchanged."""

    session: str
    outcome: str
    events: int


class SessionStore(Protocol):
    """The verbs of a store. `holdfast.stores.choose.open_store` picks and opens one.

    A handle that is closed refuses every verb but `notify` and `close` with NothingWritten, those
    that read or subscribe too.

    Every verb addresses sessions of the handle's tenant alone. A session of another tenant looks
    like one that does not exist, and may have the same id. Listings can name another tenant, or
    all, where the handle is not a view.
    """

    @property
    def tenant(self) -> str:
        """Return whose sessions this handle addresses."""
        ...

    def of(self, tenant: str) -> SessionStore:
        """Return a view of this store for one tenant; closing it does nothing to the store.

        A view has no views of other tenants: InvalidInput.
        """
        ...

    @property
    def flags(self) -> StoreFlags:
        """Return what this store is."""
        ...

    @property
    def owner(self) -> str:
        """Return the owner id under which this handle takes leases."""
        ...

    async def create_session(
        self,
        session_id: str,
        started: SessionStarted,
        *,
        payloads: Iterable[Slot] = (),
        adopt_from: str | None = None,
    ) -> State:
        """Create a session by its first event, or return the existing one's state.

        Idempotent: the same content under the same id changes nothing. Other content is
        SettingsConflict, a deleted id SessionDeleted, another tenant than the handle's
        InvalidInput. `adopt_from` names a session of the same
        tenant whose payloads the new one may refer to (a fork's source); they become its own.
        """
        ...

    async def append(
        self,
        lease: Lease,
        after_seq: int,
        facts: Sequence[Fact],
        *,
        head: HeadDraft | None = None,
        edges: Sequence[EdgeDraft] = (),
        consumes: Sequence[str] = (),
        payloads: Iterable[Slot] = (),
        adopt_from: str | None = None,
        release: bool = False,
        posts: Sequence[tuple[str, InboxDraft]] = (),
    ) -> Appended:
        """Append one atomic batch: the only write path of the log.

        Checks lease epoch (LeaseLost), position (PositionConflict), legality, head basis, that
        every payload referred to exists and belongs to this session (InvalidRef), and that each
        consumed inbox key is there and unconsumed (InboxItemNotFound, InboxConsumed), all in the
        transaction that writes. Durable on return. Once submitted it is not cancelled: a
        cancelled caller gets CancelledError after the batch is committed or refused. Storage
        failures are NothingWritten (try again) or OutcomeUnknown (read again first).

        `payloads` come beside the facts: what a manifest among their values leads to, and what
        later appends will refer to, as `put_payload` stores it.

        `release` gives the lease back with the batch, and `Appended.inbox` says so. A batch that is
        refused keeps it, and releasing it afterwards is harmless in any case.

        `posts` are inbox items for other sessions, put in the same transaction where `flags.posts`
        says so, else InvalidInput. Their content may be a payload of this session, which becomes
        the target's own too. One that cannot be put (its session is missing or deleted, or another
        item came first) is logged and dropped: the batch stands all the same.
        """
        ...

    async def put_payload(self, session_id: str, item: Slot) -> Slot:
        """Make a payload durable for later appends of this session; return it without bytes."""
        ...

    async def get_payload(self, session_id: str, payload_id: str) -> bytes:
        """Return a payload that this session refers to, its digest checked.

        InvalidRef if the session does not refer to it, PayloadNotFound if it was erased (the
        error's details say when and by which rule), Corruption if it is missing or damaged.
        """
        ...

    async def load_state(self, session_id: str) -> State:
        """Return the state at the tip; cost does not grow with history."""
        ...

    async def read_events(
        self,
        session_id: str,
        *,
        after: int = 0,
        before: int | None = None,
        limit: int = 1000,
        reverse: bool = False,
        types: Sequence[str] | None = None,
    ) -> list[Event]:
        """Return events with after < seq < before, at most `limit`, newest first if reversed."""
        ...

    async def session_info(self, session_id: str) -> SessionInfo:
        """Return one session's row of a listing."""
        ...

    async def list_sessions(
        self,
        where: SessionFilter | None = None,
        *,
        limit: int = 100,
        cursor: str | None = None,
    ) -> SessionPage:
        """Return one page of sessions, newest created first."""
        ...

    async def pending(
        self,
        where: PendingFilter | None = None,
        *,
        due_before: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> PendingPage:
        """Return one page of the calls of all sessions that wait for someone, oldest wait first.

        `due_before` keeps those whose deadline is not after that moment.
        """
        ...

    async def work_due(
        self, now: str, *, tenant: str | None = None, limit: int = 100, cursor: str | None = None
    ) -> DuePage:
        """Return one page of the sessions that nobody drives and that have work at a moment.

        That is an inbox item nobody consumed, a deadline that has passed, or an open turn whose
        driver is gone. Copies with open work that nobody took over are left out. `tenant` is as in
        SessionFilter.
        """
        ...

    async def put_inbox(self, session_id: str, draft: InboxDraft) -> InboxItem:
        """Ask something of a session, without its lease; durable on return.

        The same key with the same content returns the stored item; with other content it is
        InboxConflict. Of the answers and expiries for one wait of a call the first wins: the same
        content again returns it, another is InboxConflict, and so is what comes to `extend` or
        `cancel` that wait afterwards. An expiry is refused, as InboxConflict, before the store's
        clock is past the deadline of the wait.
        """
        ...

    async def list_inbox(self, session_id: str, *, pending: bool = True) -> list[InboxItem]:
        """Return inbox items in order of arrival, by default only those not consumed."""
        ...

    async def acquire(self, session_id: str, *, takeover: bool = False) -> Lease:
        """Take the right to drive a session; LeaseHeld names a live holder.

        A dead or expired holder's lease is stolen with the next epoch. Acquiring what this owner
        holds already is LeaseHeld as well: one driver per session. An imported copy with open
        work is ReadOnlySession unless `takeover`.
        """
        ...

    async def renew(self, lease: Lease) -> None:
        """Prove that the lease still holds (LeaseLost otherwise), expired but unstolen included."""
        ...

    async def release(self, lease: Lease) -> None:
        """Give the lease back; harmless if it was lost."""
        ...

    async def lease_of(self, session_id: str) -> LeaseInfo | None:
        """Return who holds the session, or None."""
        ...

    def subscribe(self, session_id: str, *, after: int = 0) -> Subscription:
        """Follow one session from a position: stored events, then live ones."""
        ...

    def subscribe_all(self, *, tenant: str | None = None) -> Subscription:
        """Follow all sessions by hints; coalesced, never blocking a writer.

        `tenant` is as in SessionFilter; a hint names it.
        """
        ...

    def notify(self, item: Transient) -> None:
        """Hand a live-only item to this process's subscribers of its session."""
        ...

    async def delete(self, session_id: str) -> None:
        """Delete a session that nobody drives; a tombstone keeps its id from being reused."""
        ...

    async def erase(self, session_id: str, payload_id: str, rule: str) -> int:
        """Erase one value from a session, inline or not; return how many places held it.

        The tombstone (time and rule) stays where the value stood and digests still verify. The
        bytes go when no other session refers to them. Erasing again returns 0. What goes because
        its time is up is erased by the rule `expired`, or one that begins with `expired:`.
        """
        ...

    async def erased(self, session_id: str) -> dict[str, tuple[str, str]]:
        """Return the erased payload ids of a session with time and rule."""
        ...

    async def gc(
        self, *, dry_run: bool = False, grace_seconds: float = GC_GRACE_SECONDS
    ) -> GcReport:
        """Remove payloads that no session refers to and that are older than the grace.

        A view collects those of its tenant, the opened handle those of all. A session's right to a
        payload that was put for it and never used ends in the same way, whether or not others use
        the payload.
        """
        ...

    async def put_audit(self, session_id: str, record: Mapping[str, Any]) -> AuditRow:
        """Add a row to a session's audit of model calls, without its lease.

        The audit stands beside the log: no digest covers it, no export or fork carries it, and
        deleting the session removes it. A record is a JSON object.
        """
        ...

    async def list_audit(
        self, session_id: str, *, after: int = 0, limit: int = 100
    ) -> list[AuditRow]:
        """Return audit rows of a session with numbers above `after`, in order."""
        ...

    async def gc_audit(self, *, before: str | None = None, keep: int | None = None) -> int:
        """Remove audit rows older than a moment, and all but the last `keep` of each session.

        Return how many went. A view removes those of its tenant, the opened handle those of all.
        """
        ...

    async def import_log(self, copy: Copy) -> ImportOutcome:
        """Store a copy of a session's whole log, as `core.replay.prove` makes it.

        Identical is `unchanged`, a log of which the stored one is a prefix `forwarded`, a new id
        `created`; anything else is ImportConflict, a held lease LeaseHeld and a copy without
        events, or of another tenant than the handle's, InvalidInput. A copy with open work is
        marked: it is read-only until `acquire(takeover=True)` or forked. Files of such copies:
        `holdfast.stores.portable`.
        """
        ...

    async def close(self) -> None:
        """Finish what was submitted, release leases, let go of files; may be called again."""
        ...


class WorkQueue(Protocol):
    """Hands out work among the workers of a store; what it tells is a hint, the lease decides."""

    async def serve(
        self,
        wake: Callable[[str], Awaitable[None]],
        sweep: Callable[[], Awaitable[None]],
        *,
        concurrency: int,
        sweep_seconds: float,
        stop: asyncio.Event,
        drain_seconds: float,
    ) -> None:
        """Call `wake` for sessions that may have work, and `sweep` from time to time, anywhere.

        Once asked to stop, wait for what is under way.
        """
        ...


@runtime_checkable
class Distributing(Protocol):
    """The power of a store to hand out work; others are swept by each worker."""

    def work_queue(self) -> WorkQueue | None:
        """Return the queue, None where the store cannot be listened to."""
        ...

    async def wake(self, sessions: Sequence[str]) -> None:
        """Leave a job for each of some sessions of this handle's tenant."""
        ...


@runtime_checkable
class Inspectable(Protocol):
    """The power of a store to report on the database behind it."""

    async def inspect(self) -> tuple[dict[str, Any], list[str]]:
        """Return a report, and what of it is a problem."""
        ...
