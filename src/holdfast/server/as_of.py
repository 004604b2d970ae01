"""A store as it stood at an event: every read of it ends there, so that views show the past.

Views read a session through a store. Over this one they show it as of an event without knowing of
it: the transcript ends there, variables are those of the last checkpoint before, and the state is
the fold of the log up to there. States are remembered, so that a scrubber moves quickly.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

from holdfast.core.errors import NotFound
from holdfast.core.events import Event
from holdfast.core.fold import apply
from holdfast.core.state import State, empty
from holdfast.stores.port import SessionInfo, SessionStore

PAGE_EVENTS = 500
EVERY = 20_000
MOST_STATES = 256


class AsOf:
    """The reads of a store, for one session up to one event."""

    def __init__(self, store: SessionStore, state: State) -> None:
        self._store = store
        self._state = state

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def load_state(self, session_id: str) -> State:
        """Return the state at the event."""
        if session_id != self._state.session:
            return await self._store.load_state(session_id)
        return self._state

    async def session_info(self, session_id: str) -> SessionInfo:
        """Return the row of a listing, as it would have been."""
        info = await self._store.session_info(session_id)
        state = self._state
        if session_id != state.session:
            return info
        return replace(
            info,
            status=state.status,
            seq=state.seq,
            turns=state.counters.get("turn", 0),
            head=state.head,
            updated_at=state.updated_at,
            last_turn=state.last_turn,
            digest=state.digest,
        )

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
        """Return events, none after the last one that there was."""
        if session_id == self._state.session:
            end = self._state.seq + 1
            before = end if before is None else min(before, end)
        return await self._store.read_events(
            session_id, after=after, before=before, limit=limit, reverse=reverse, types=types
        )


class States:
    """States of sessions at events, some of them remembered."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, str, int], State] = OrderedDict()

    async def at(self, store: SessionStore, session_id: str, seq: int) -> State:
        """Return the state of a session at an event; NotFound where there is no such event."""
        if seq < 1:
            raise NotFound(f"session {session_id!r} has no event {seq}; the first one is 1")
        state = self._nearest(store.tenant, session_id, seq)
        while state.seq < seq:
            page = await store.read_events(
                session_id, after=state.seq, before=seq + 1, limit=PAGE_EVENTS
            )
            if not page:
                raise NotFound(f"session {session_id!r} has no event {seq}; it has {state.seq}")
            for event in page:
                state = apply(state, event)
                if event.seq % EVERY == 0:
                    self._keep(store.tenant, state)
        self._keep(store.tenant, state)
        return state

    async def store_at(self, store: SessionStore, session_id: str, seq: int) -> SessionStore:
        """Return the store as it stood at an event of a session."""
        return cast(SessionStore, AsOf(store, await self.at(store, session_id, seq)))

    def _nearest(self, tenant: str, session_id: str, seq: int) -> State:
        found = empty(session_id)
        for (owner, session, place), state in self._known.items():
            if (owner, session) == (tenant, session_id) and found.seq < place <= seq:
                found = state
        return found

    def _keep(self, tenant: str, state: State) -> None:
        key = tenant, state.session, state.seq
        self._known[key] = state
        self._known.move_to_end(key)
        if len(self._known) > MOST_STATES:
            self._known.popitem(last=False)
