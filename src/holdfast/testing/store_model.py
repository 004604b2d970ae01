"""A plain model of a session store: dictionaries and lists, no durability, no concurrency.

The state machine asks a store and this model the same and compares. Only what nobody can foretell
(time stamps) is taken over from the store; refusals are foretold by their class.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from msgspec import structs

from holdfast.core.errors import (
    HoldfastError,
    ImportConflict,
    InboxConflict,
    InboxConsumed,
    InboxItemNotFound,
    InvalidRef,
    LeaseHeld,
    LeaseLost,
    PayloadNotFound,
    PositionConflict,
    ReadOnlySession,
    SessionDeleted,
    SessionNotFound,
    SettingsConflict,
)
from holdfast.core.events import Event
from holdfast.core.facts import SessionStarted
from holdfast.core.fold import fold
from holdfast.core.log import Batch, extend
from holdfast.core.payloads import Slot, from_record, is_slot, manifest_slots, walk
from holdfast.core.state import State, empty
from holdfast.stores.port import InboxDraft, InboxItem, Lease
from holdfast.stores.tenancy import address_of
from holdfast.testing.histories import Move

Refusal = type[HoldfastError]


@dataclass(slots=True)
class ModelSession:
    """One session as the model knows it."""

    tenant: str
    started: SessionStarted | None
    events: list[Event]
    state: State
    put: set[str] = field(default_factory=set)
    back: set[str] = field(default_factory=set)
    """Erased once, and handed over again since."""
    erased: dict[str, dict[str, str]] = field(default_factory=dict)
    inbox: dict[str, InboxItem] = field(default_factory=dict)
    lease: Lease | None = None
    imported: bool = False

    @property
    def waiting(self) -> int:
        """Return how many inbox items nobody has consumed."""
        return sum(item.consumed_seq is None for item in self.inbox.values())


class ModelStore:
    """What a store must show."""

    def __init__(self) -> None:
        self.sessions: dict[str, ModelSession] = {}
        self.deleted: set[str] = set()
        self.bytes: dict[str, bytes] = {}
        """Every payload that was ever handed over, by id."""

    def missing(self, session_id: str) -> Refusal | None:
        """Return how a session that cannot be used is refused."""
        if session_id in self.deleted:
            return SessionDeleted
        return None if session_id in self.sessions else SessionNotFound

    def creating(self, session_id: str, started: SessionStarted) -> Refusal | None:
        """Return how creating a session is refused."""
        if session_id in self.deleted:
            return SessionDeleted
        known = self.sessions.get(session_id)
        if known is None or known.started == started:
            return None
        return SettingsConflict

    def create(self, session_id: str, started: SessionStarted, at: str) -> State:
        """Create a session, or return the one there is."""
        if session_id not in self.sessions:
            batch = extend(empty(address_of(session_id).id), [started], at=at)
            self.sessions[session_id] = ModelSession(
                started.tenant, started, list(batch.events), batch.state
            )
            self._take(batch)
        return self.sessions[session_id].state

    def acquiring(self, session_id: str, takeover: bool) -> Refusal | None:
        """Return how taking a lease is refused."""
        known = self.sessions[session_id]
        if known.lease is not None:
            return LeaseHeld
        return ReadOnlySession if known.imported and not takeover else None

    def appending(
        self, session_id: str, lease: Lease, after_seq: int, move: Move, consumes: Sequence[str]
    ) -> tuple[Refusal, ...]:
        """Return how an append may be refused; empty where it must be stored."""
        known = self.sessions[session_id]
        if known.lease != lease:
            return (LeaseLost,)
        if known.state.seq != after_seq:
            return (PositionConflict,)
        for key in consumes:
            if key not in known.inbox:
                return (InboxItemNotFound,)
            if known.inbox[key].consumed_seq is not None:
                return (InboxConsumed,)
        return ()

    def append(self, session_id: str, move: Move, consumes: Sequence[str], at: str) -> Batch:
        """Append a batch and return what it must be."""
        known = self.sessions[session_id]
        batch = extend(
            known.state,
            move.facts,
            at=at,
            head=move.head,
            edges=move.edges,
            payloads=move.payloads,
        )
        known.events += batch.events
        known.state = batch.state
        for key in consumes:
            known.inbox[key] = replace(known.inbox[key], consumed_seq=batch.state.seq)
        self._take(batch)
        known.back |= batch.payloads.keys() & known.erased.keys()
        return batch

    def referring(self, session_id: str, payload_id: str) -> tuple[Refusal, ...]:
        """Return how a bare ref may be refused; empty if it must not be."""
        known = self.sessions[session_id]
        if payload_id in self.used(known) | known.put:
            return ()
        return (PayloadNotFound, InvalidRef) if payload_id in known.erased else (InvalidRef,)

    def put_inbox(self, session_id: str, draft: InboxDraft) -> InboxItem | Refusal:
        """Return the item stored already, InboxConflict, or the draft as a new item."""
        known = self.sessions[session_id]
        stored = known.inbox.get(draft.key)
        if stored is not None:
            wanted = (draft.kind, draft.call_id, draft.content, draft.wait or stored.wait)
            same = (stored.kind, stored.call_id, stored.content, stored.wait) == wanted
            return stored if same else InboxConflict
        wait = draft.wait
        if draft.call_id is not None and draft.kind != "message":
            call = known.state.calls.get(draft.call_id)
            present = call.wait if call is not None and call.stage == "suspended" else None
            wait = present if wait is None else wait
            for item in known.inbox.values():
                about = (item.call_id, item.wait) == (draft.call_id, wait)
                if about and item.kind in ("answer", "expiry"):
                    same = (item.kind, item.content) == (draft.kind, draft.content)
                    return item if same else InboxConflict
            late = call is not None and call.deadline is not None and present == wait
            if draft.kind == "expiry" and not late:
                return InboxConflict
        return InboxItem(
            known.state.session,
            draft.key,
            draft.kind,
            "",
            draft.call_id,
            draft.content,
            None,
            wait,
        )

    def waits(self, session_id: str) -> list[tuple[str, int, str | None, str | None]]:
        """Return what is listed of the calls that wait, in the order in which they began to."""
        known = self.sessions[session_id]
        began = [e.data["call_id"] for e in known.events if e.type == "call.suspended"]
        order = {call_id: place for place, call_id in enumerate(began)}
        calls = [call for call in known.state.calls.values() if call.stage == "suspended"]
        return [
            (call.call_id, call.wait, call.deadline, call.assignee)
            for call in sorted(calls, key=lambda call: order[call.call_id])
        ]

    def erase(self, session_id: str, payload_id: str, at: str, rule: str) -> int:
        """Erase a value and return how many places held it."""
        known = self.sessions[session_id]
        held = payload_id in self.used(known)
        places = sum(
            item.id == payload_id and item.erased is None
            for event in known.events
            for item in walk(event.data)
        )
        if not places and not held:
            return 0
        mark = {"at": at, "rule": rule}
        known.events = [
            structs.replace(event, data=_without(event.data, payload_id, mark))
            for event in known.events
        ]
        known.erased[payload_id] = mark
        known.put.discard(payload_id)
        known.back.discard(payload_id)
        return max(places, 1)

    def collect(self) -> set[tuple[str, str]]:
        """Forget orphans and return the payloads that remain."""
        used = {
            (known.tenant, item) for known in self.sessions.values() for item in self.used(known)
        }
        for known in self.sessions.values():
            known.put &= self.used(known)
        return used

    def importing(self, session_id: str, copy: ModelSession) -> Refusal | str:
        """Return how an import is refused, or its outcome."""
        if session_id in self.deleted:
            return SessionDeleted
        known = self.sessions.get(session_id)
        if known is None:
            return "created"
        common = min(len(known.events), len(copy.events))
        if known.events[common - 1].digest != copy.events[common - 1].digest:
            return ImportConflict
        if len(copy.events) <= len(known.events):
            return "unchanged"
        return LeaseHeld if known.lease is not None else "forwarded"

    def import_copy(self, session_id: str, copy: ModelSession) -> None:
        """Take over a copy, or what it has more."""
        known = self.sessions.get(session_id)
        if known is None:
            state = empty(address_of(session_id).id)
            known = ModelSession(copy.tenant, copy.started, [], state)
            self.sessions[session_id] = known
        new = copy.events[len(known.events) :]
        for payload_id, mark in self._gone(known).items():
            new = [
                structs.replace(event, data=_without(event.data, payload_id, mark)) for event in new
            ]
        known.events = [*known.events, *new]
        known.state = fold(known.state, new)
        gone = copy.erased.keys() - self.used(copy)
        for item in self._inner(new):
            if item.id in gone:
                known.erased.setdefault(item.id, copy.erased[item.id])
        known.imported = known.state.turn is not None or bool(known.state.calls)

    def _gone(self, known: ModelSession) -> dict[str, dict[str, str]]:
        """Return what was erased from a session and has not been said or put again since."""
        live = {item.id for event in known.events for item in walk(event.data) if not item.erased}
        here = self.used(known) | known.put | live
        return {key: mark for key, mark in known.erased.items() if key not in here}

    def used(self, known: ModelSession) -> set[str]:
        """Return the ids of the payloads that a session's events and inbox refer to."""
        found = {item.id for item in self._inner(known.events) if item.erased is None}
        contents = [item.content for item in known.inbox.values()]
        held = {item.id for item in contents if item is not None and not item.inline}
        live = {item.id for event in known.events for item in walk(event.data) if not item.erased}
        gone = known.erased.keys() - known.back - live
        return (found | held) - gone

    def _inner(self, events: Iterable[Event]) -> list[Slot]:
        queue = [item for event in events for item in walk(event.data)]
        found = []
        while queue:
            item = queue.pop()
            if item.inline:
                if item.erased is not None:
                    found.append(item)
                continue
            found.append(item)
            if item.erased is None:
                queue.extend(manifest_slots(item, self.bytes[item.id]))
        return found

    def _take(self, batch: Batch) -> None:
        self.bytes |= {key: item.data or b"" for key, item in batch.payloads.items()}


def _without(part: Any, payload_id: str, mark: dict[str, str]) -> Any:
    if isinstance(part, dict):
        if is_slot(part):
            item = from_record(part)
            gone = item.id == payload_id and item.erased is None
            return item.ref() | {"$erased": mark} if gone else part
        return {key: _without(value, payload_id, mark) for key, value in part.items()}
    if isinstance(part, list):
        return [_without(value, payload_id, mark) for value in part]
    return part
