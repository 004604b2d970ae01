"""A driver for tests: holds a session's lease, appends at its tip and keeps the state that results.

It does what a runtime does between two model calls and nothing else, so that a test of a store can
say what happened in one line.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from holdfast.core.events import Event
from holdfast.core.facts import (
    CallRequested,
    CallSuspended,
    Fact,
    MessageAppended,
    SessionStarted,
)
from holdfast.core.payloads import Slot, slot
from holdfast.core.state import State
from holdfast.stores.port import Appended, InboxItem, Lease, SessionStore
from holdfast.testing.histories import Move, finish_turn, start_turn


@dataclass(slots=True)
class Driver:
    """One session as its driver sees it."""

    store: SessionStore
    lease: Lease
    state: State

    async def append(self, *facts: Fact, **options: Any) -> Appended:
        """Append facts at the tip."""
        done = await self.store.append(self.lease, self.state.seq, facts, **options)
        self.state = done.state
        return done

    async def play(self, move: Move) -> Appended:
        """Append one move of a history."""
        return await self.append(
            *move.facts, head=move.head, edges=move.edges, payloads=move.payloads
        )

    def message(self, text: str | Slot) -> MessageAppended:
        """Return the fact that a message with this text is."""
        content = text if isinstance(text, Slot) else slot(text, "message")
        return MessageAppended(message=self.state.next("message"), role="user", content=content)

    async def say(self, text: str | Slot) -> Event:
        """Append one message and return its event."""
        return (await self.append(self.message(text))).events[0]

    async def ask(self, call_id: str, prompt: str = "May I?", **wait: Any) -> Appended:
        """Append a call that waits for a person; `wait` says more of `call.suspended`."""
        asked = CallRequested(
            call_id=call_id,
            name="ask",
            executor="human",
            effect="once",
            arguments=slot(prompt, "arguments"),
            kind="question",
        )
        known = call_id in self.state.calls
        waits = CallSuspended(call_id=call_id, prompt=slot(prompt, "message"), **wait)
        return await self.append(*([] if known else [asked]), waits)

    async def turn(self, text: str) -> str:
        """Play a whole turn and return the head that it published."""
        await self.play(start_turn(self.state, text))
        done = await self.play(finish_turn(self.state, text))
        assert done.head is not None
        return done.head.id


async def drive(
    store: SessionStore,
    session_id: str = "s-1",
    started: SessionStarted | None = None,
    payloads: Iterable[Slot] = (),
) -> Driver:
    """Create a session where it is missing, and take its lease, by a handle of its tenant."""
    started = started or SessionStarted()
    if started.tenant != store.tenant:
        store = store.of(started.tenant)
    state = await store.create_session(session_id, started, payloads=payloads)
    return Driver(store, await store.acquire(session_id), state)


async def all_events(store: SessionStore, session_id: str) -> list[Event]:
    """Return a whole log, read in small pages."""
    events: list[Event] = []
    while page := await store.read_events(
        session_id, after=events[-1].seq if events else 0, limit=7
    ):
        events.extend(page)
    return events


@dataclass(frozen=True, slots=True)
class View:
    """Everything a reader can see of a session, whoever drives it."""

    state: State
    events: list[Event]
    inbox: list[InboxItem]
    erased: dict[str, tuple[str, str]]


async def view(store: SessionStore, session_id: str) -> View:
    """Return what a reader sees of a session."""
    return View(
        await store.load_state(session_id),
        await all_events(store, session_id),
        await store.list_inbox(session_id, pending=False),
        await store.erased(session_id),
    )
