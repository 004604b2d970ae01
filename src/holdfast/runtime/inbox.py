"""The inbox: what outsiders ask of a session, turned into facts by whoever holds its lease.

Every kind of item is admitted here and nowhere else, once, in the batch that consumes it. Answers,
expiries, extensions, cancellations and the end of children need no agent and no model: they move a
call. Messages and stop requests are left to the driver, which opens turns and settles them. The
watcher tells every drive of this process that something has arrived in its inbox.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from holdfast.core.errors import HoldfastError
from holdfast.core.facts import (
    CallApproved,
    CallDenied,
    CallExtended,
    CallResolved,
    CallSuspended,
    Fact,
    InputAdmitted,
)
from holdfast.core.payloads import Slot, slot
from holdfast.core.state import PendingCall, State
from holdfast.runtime import children, shortage
from holdfast.runtime.journal import Journal
from holdfast.stores.port import Gap, Hint, InboxItem, SessionStore, Subscription

logger = logging.getLogger("holdfast.runtime")

DRIVER_KINDS = frozenset({"message", "stop"})
LOOK_SECONDS = 0.1
LOOK_SECONDS_EACH = 0.02
"""The pause between two looks at one inbox grows by this with every session driven."""
LINGER_SECONDS = 5.0


def admitted(item: InboxItem) -> InputAdmitted:
    """Return the fact that an item was taken out of the inbox."""
    return InputAdmitted(
        key=item.key,
        kind=item.kind,
        call_id=item.call_id,
        wait=item.wait,
        by=item.by,
        content=item.content,
        sent_at=item.at,
    )


@dataclass(slots=True)
class InboxRest:
    """What is left in an inbox for the driver once calls are served."""

    stop: InboxItem | None = None
    messages: list[InboxItem] = field(default_factory=list)


async def admit(journal: Journal) -> InboxRest:
    """Turn every item that moves a call into facts; return what is left for the driver."""
    left = InboxRest()
    async with journal.admitting:
        for item in await journal.store.list_inbox(journal.session):
            if item.kind == "message":
                left.messages.append(item)
            elif item.kind == "stop":
                left.stop = left.stop or item
            elif item.kind == "child_ended":
                await _child_ended(journal, item)
            elif item.kind == "budget":
                await shortage.answer(journal, item, admitted(item))
            else:
                await _admit(journal, item)
    return left


async def call_off_waits(journal: Journal) -> None:
    """Cancel every open call of the turn that waits for someone: a message interrupts it."""

    def build(state: State) -> list[Fact]:
        return [
            CallResolved(call_id=call.call_id, outcome="cancelled", wait=call.wait)
            for call in state.calls.values()
            if call.stage == "suspended" and call.kind not in ("child", "budget")
        ]

    if build(journal.state):
        await journal.append(build)


async def _child_ended(journal: Journal, item: InboxItem) -> None:
    """Close the grant of a child that has ended, and answer its call if someone waits for it."""
    done = await children.ended(journal.store, journal.state, item.call_id or "")

    def build(state: State) -> list[Fact]:
        # The call may have been settled since: the sums of the child count all the same.
        told = [
            f for f in done.facts if not isinstance(f, CallResolved) or f.call_id in state.calls
        ]
        return [admitted(item), *told]

    await journal.append(build, edges=done.edges, consumes=[item.key])


async def _admit(journal: Journal, item: InboxItem) -> None:
    call = journal.state.calls.get(item.call_id or "")
    content: Any = None
    if item.content is not None:
        content = await journal.value(item.content)
    suspended = None
    if call is not None and call.stage == "suspended":
        suspended = await _suspension(journal, call)
    raised: list[Fact] = []
    payloads: list[Slot] = []
    if call is not None and call.kind == "budget" and item.kind == "answer" and "value" in content:
        raised, payloads = await shortage.raised(journal, content["value"])

    def build(state: State) -> list[Fact]:
        moves = _moves(state, item, content, suspended)
        return [admitted(item), *moves, *(raised if moves else [])]

    await journal.append(build, consumes=[item.key], payloads=payloads)


async def _suspension(journal: Journal, call: PendingCall) -> CallSuspended | None:
    """Return the fact with which a call's present wait began."""
    page = await journal.store.read_events(
        journal.session, after=call.wait_seq - 1, before=call.wait_seq + 1
    )
    fact = page[0].fact() if page else None
    return fact if isinstance(fact, CallSuspended) else None


def _moves(
    state: State, item: InboxItem, content: Any, suspended: CallSuspended | None
) -> list[Fact]:
    """Return what an item means for its call; nothing where that call waits no more: it is late."""
    call = state.calls.get(item.call_id or "")
    if call is None or call.stage != "suspended" or suspended is None:
        return []
    if item.wait is not None and item.wait != call.wait:
        return []  # to a wait that is over
    match item.kind:
        case "answer":
            return _answered(call, item, content)
        case "expiry":
            return _expired(call, suspended)
        case "extend":
            return [
                CallExtended(
                    call_id=call.call_id, wait=call.wait, deadline=str(content), by=item.by
                )
            ]
        case "cancel":
            return [
                CallResolved(call_id=call.call_id, outcome="cancelled", wait=call.wait, by=item.by)
            ]
    return []


def _answered(call: PendingCall, item: InboxItem, content: Any) -> list[Fact]:
    """Return what an answer means: to a question a value, to a gate a yes or a no."""
    about: dict[str, Any] = {"call_id": call.call_id, "wait": call.wait, "by": item.by}
    decision: dict[str, Any] = content if isinstance(content, dict) else {}
    if call.waits_for != "approval":
        if "error" in decision:
            return [CallResolved(outcome="error", error=slot(decision["error"], "error"), **about)]
        if goes_on_with_answer(call):
            return [CallApproved(**about)]
        return [CallResolved(outcome="ok", result=slot(decision.get("value"), "answer"), **about)]
    if decision.get("approve"):
        edited = decision.get("arguments")
        return [
            CallApproved(
                arguments=None if edited is None else slot(edited, "arguments"),
                scope=decision.get("scope"),
                **about,
            )
        ]
    reason = slot(str(decision.get("reason") or "denied"), "error")
    denied = CallDenied(reason=reason, **about)
    return [denied, CallResolved(outcome="denied", error=reason, **about)]


def goes_on_with_answer(call: PendingCall) -> bool:
    """Tell whether the answer is for a tool that runs here and asked for it, not its outcome."""
    return call.waits_for == "question" and call.executor == "server" and call.kind == "tool"


def _expired(call: PendingCall, suspended: CallSuspended) -> list[Fact]:
    """Return what a deadline brings about: the default of the wait, or an expired outcome."""
    about: dict[str, Any] = {"call_id": call.call_id, "wait": call.wait}
    if suspended.default is not None and call.waits_for != "approval":
        return [CallResolved(outcome="ok", result=suspended.default, **about)]
    return [CallResolved(outcome="expired", **about)]


@dataclass(slots=True)
class Watched:
    """One driven session: `arrived` is set while its inbox may hold something new."""

    session: str
    looked_at: float
    arrived: asyncio.Event
    stop: asyncio.Future[None]
    next_look: asyncio.TimerHandle | None = None
    look: asyncio.Task[None] | None = None

    def end(self) -> None:
        """Look no more."""
        if self.next_look is not None:
            self.next_look.cancel()
        if self.look is not None:
            self.look.cancel()


class InboxWatcher:
    """The inboxes of the sessions that one runtime drives.

    One subscription serves every drive, so that what a session appends does not wake the watchers
    of all others. A hint only says that a session moved, mostly by its own driver: its inbox is
    looked at once in a while, less often where many are driven.
    """

    def __init__(self, store: SessionStore) -> None:
        self._store = store
        self._watched: dict[str, Watched] = {}
        self._listening: asyncio.Task[None] | None = None
        self._leaving: asyncio.TimerHandle | None = None

    def hint(self, session_id: str) -> bool:
        """Say that something may have arrived for a session; False if nobody drives it here."""
        watched = self._watched.get(session_id)
        if watched is not None:
            watched.arrived.set()
        return watched is not None

    @contextmanager
    def watching(self, session_id: str) -> Iterator[Watched]:
        """Watch one session; whoever drives it looks into its inbox after this and at first."""
        loop = asyncio.get_running_loop()
        if self._leaving is not None:
            self._leaving.cancel()
            self._leaving = None
        if self._listening is None or self._listening.done():
            # Subscribed here and now: whoever asks from now on is heard.
            self._listening = asyncio.ensure_future(self._listen(self._store.subscribe_all()))
        watched = self._watched[session_id] = Watched(
            session_id, loop.time(), asyncio.Event(), loop.create_future()
        )
        try:
            yield watched
        finally:
            del self._watched[session_id]
            watched.end()
            if not self._watched:
                self._leaving = loop.call_later(LINGER_SECONDS, self._listening.cancel)

    async def close(self) -> None:
        """End the subscription."""
        if self._leaving is not None:
            self._leaving.cancel()
        if self._listening is not None:
            self._listening.cancel()
            with suppress(asyncio.CancelledError):
                await self._listening

    async def _listen(self, hints: Subscription) -> None:
        async with hints:
            async for item in hints:
                if isinstance(item, Gap):
                    for watched in self._watched.values():
                        self._plan(watched)
                elif isinstance(item, Hint) and item.session in self._watched:
                    self._plan(self._watched[item.session])

    def _plan(self, watched: Watched) -> None:
        """Look at an inbox as soon as the last look is long enough ago."""
        if watched.next_look is not None:
            return
        loop = asyncio.get_running_loop()
        pause = max(LOOK_SECONDS, LOOK_SECONDS_EACH * len(self._watched))
        due = max(loop.time(), watched.looked_at + pause)
        watched.next_look = loop.call_at(due, self._begin_look, watched)

    def _begin_look(self, watched: Watched) -> None:
        watched.looked_at = asyncio.get_running_loop().time()
        watched.next_look = None
        watched.look = asyncio.ensure_future(self._look(watched))

    async def _look(self, watched: Watched) -> None:
        try:
            items = await self._store.list_inbox(watched.session)
        except HoldfastError:
            # The turn goes on; the next hint brings another look.
            logger.warning("the inbox of session %s was not read", watched.session, exc_info=True)
            return
        if items:
            watched.arrived.set()
        if any(item.kind == "stop" for item in items) and not watched.stop.done():
            watched.stop.set_result(None)
