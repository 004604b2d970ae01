"""The journal: a driver's handle on one session's log.

It holds the lease and the state that the log has reached, numbers new facts from that state, and
appends one batch at a time. After a write whose outcome is unknown it reads the log again before
anything else: the batch is there and counts, or it is not and is written again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from holdfast.core.errors import (
    Conflict,
    NotFound,
    NotRestorable,
    OutcomeUnknown,
    PayloadNotFound,
)
from holdfast.core.events import Event
from holdfast.core.facts import CallApproved, CallResolved, Fact
from holdfast.core.forms import forms
from holdfast.core.heads import EdgeDraft, HeadDraft
from holdfast.core.payloads import Slot, digest_form, manifest_slots
from holdfast.core.state import State
from holdfast.runtime.shielding import shielded
from holdfast.stores.port import Appended, InboxDraft, Lease, SessionStore
from holdfast.views.values import hydrate

logger = logging.getLogger("holdfast.runtime")

Build = Callable[[State], Sequence[Fact]]


class Journal:
    """The one writer of a session, for as long as its lease holds."""

    def __init__(self, store: SessionStore, lease: Lease, state: State) -> None:
        self.store = store
        self.lease = lease
        self.state = state
        self.waiting: int | None = None
        """Inbox items that waited when a batch gave the lease back; None while it is held."""
        self.admitting = asyncio.Lock()
        """Held by whoever turns inbox items into facts: each is consumed once."""
        self._unknown = False  # whether `state` may be behind the log
        self._lock = asyncio.Lock()
        self._moved = asyncio.Event()
        self._outcomes: dict[str, asyncio.Future[Event]] = {}

    @property
    def session(self) -> str:
        """Return the id of the session."""
        return self.lease.session

    async def append(
        self,
        build: Build,
        *,
        head: HeadDraft | None = None,
        edges: Sequence[EdgeDraft] = (),
        consumes: Sequence[str] = (),
        payloads: Sequence[Slot] = (),
        posts: Sequence[tuple[str, InboxDraft]] = (),
        adopt_from: str | None = None,
        release: bool = False,
    ) -> Appended:
        """Append the facts that `build` makes of the present state, as one batch.

        A cancelled caller leaves only once the batch is settled and folded, so that the state
        here always equals what a reopen would show. What `build` raises is raised here, and nothing
        is written. `posts` are inbox items for other sessions, in the same transaction where the
        store can. `release` gives the lease back with the batch.
        """

        async def work() -> Appended:
            async with self._lock:
                if self._unknown:
                    self.state = await self.store.load_state(self.session)
                    self._unknown = False
                facts = build(self.state)

                async def write() -> Appended:
                    return await self.store.append(
                        self.lease,
                        self.state.seq,
                        facts,
                        head=head,
                        edges=edges,
                        consumes=consumes,
                        payloads=payloads,
                        posts=posts if self.store.flags.posts else (),
                        adopt_from=adopt_from,
                        release=release,
                    )

                try:
                    done = await write()
                except OutcomeUnknown:
                    self._unknown = True
                    done = await self._find(facts) or await write()
                    self._unknown = False
                except BaseException:
                    self._unknown = True
                    raise
                self._take(done)
                return done

        done = await shielded(work())
        if posts and not self.store.flags.posts:
            await shielded(self._post(posts))
        return done

    async def _post(self, posts: Sequence[tuple[str, InboxDraft]]) -> None:
        """Post what follows from the log, where the store could not do it with the batch.

        Lost with the process, it is found by whoever looks at both sides.
        """
        for session, draft in posts:
            try:
                await self.store.put_inbox(session, draft)
            except (NotFound, Conflict):
                logger.info("session %s took no %s from %s", session, draft.kind, self.session)

    def _take(self, done: Appended) -> None:
        self.state, self.waiting = done.state, done.inbox
        for event in done.events:
            if event.type in (CallResolved.TYPE, CallApproved.TYPE):
                waiter = self._outcomes.pop(event.data["call_id"], None)
                if waiter is not None and not waiter.done():
                    waiter.set_result(event)
        self._moved.set()
        self._moved = asyncio.Event()

    @property
    def moved(self) -> asyncio.Event:
        """Return an event that is set once another batch is in the log."""
        return self._moved

    def outcome(self, call_id: str) -> asyncio.Future[Event]:
        """Return a future of the event that next moves a call on, whoever appends it here.

        That is its outcome, or that someone let it go ahead.
        """
        known = self._outcomes.get(call_id)
        if known is None or known.cancelled():  # with the cell that waited for it before
            known = self._outcomes[call_id] = asyncio.get_running_loop().create_future()
        return known

    async def _find(self, facts: Sequence[Fact]) -> Appended | None:
        """Return the batch whose fate was unknown if the log has it."""
        events = await self.store.read_events(self.session, after=self.state.seq)
        if not events:
            return None
        if not _begins_with(events, facts):
            raise OutcomeUnknown(f"session {self.session!r} holds another batch than was written")
        return Appended(tuple(events), await self.store.load_state(self.session))

    async def value(self, item: Slot) -> object:
        """Return the value of a slot, read from the store where it is not inline."""
        return (await self.hydrate(item)).value()

    async def hydrate(self, item: Slot) -> Slot:
        """Return a slot with its bytes."""
        return await hydrate(self.store, self.session, item)


async def namespace(store: SessionStore, session_id: str, item: Slot) -> Slot:
    """Return a checkpoint of a namespace with its bytes; NotRestorable where a part was erased."""
    erased = await store.erased(session_id)
    if item.id in erased:
        await _check_there(store, session_id, item)
    whole = await hydrate(store, session_id, item)
    for part in manifest_slots(whole, whole.data or b"") if erased else []:
        if part.id in erased and not part.inline:
            await _check_there(store, session_id, part)
    return whole


async def _check_there(store: SessionStore, session_id: str, part: Slot) -> None:
    """Refuse to go on from what is erased; it may have been said again since."""
    try:
        await store.get_payload(session_id, part.id)
    except PayloadNotFound as error:
        raise NotRestorable(
            f"the variables of session {session_id!r} cannot be restored: {error}; fork it at an "
            "earlier head, or start another"
        ) from error


def _begins_with(events: Sequence[Event], facts: Sequence[Fact]) -> bool:
    return len(events) >= len(facts) and all(
        event.type == fact.TYPE and digest_form(event.data) == forms(fact)[0]
        for event, fact in zip(events, facts, strict=False)
    )
