"""Stop requests: which of the sessions driven here someone asked to end.

One subscription serves every drive of a runtime, so that what a session appends does not wake the
watchers of all others. A hint only says that a session moved, mostly by its own driver: its inbox
is looked at once in a while, less often where many are driven.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from holdfast.core.errors import HoldfastError
from holdfast.stores.port import Gap, Hint, InboxItem, SessionStore, Subscription

logger = logging.getLogger("holdfast.runtime")

LOOK_SECONDS = 0.1
LOOK_SECONDS_EACH = 0.02
"""The pause between two looks at one inbox grows by this with every session driven."""
LINGER_SECONDS = 5.0


@dataclass(slots=True)
class Watch:
    """One driven session: `asked` is done once its inbox holds a stop request."""

    session: str
    looked_at: float
    asked: asyncio.Future[None]
    next_look: asyncio.TimerHandle | None = None
    look: asyncio.Task[None] | None = None

    def end(self) -> None:
        """Look no more."""
        if self.next_look is not None:
            self.next_look.cancel()
        if self.look is not None:
            self.look.cancel()


async def stop_item(store: SessionStore, session_id: str) -> InboxItem | None:
    """Return the stop request in a session's inbox."""
    items = await store.list_inbox(session_id)
    return next((item for item in items if item.kind == "stop"), None)


class Stops:
    """The stop requests of the sessions that one runtime drives."""

    def __init__(self, store: SessionStore) -> None:
        self._store = store
        self._watched: dict[str, Watch] = {}
        self._listening: asyncio.Task[None] | None = None
        self._leaving: asyncio.TimerHandle | None = None

    @contextmanager
    def watching(self, session_id: str) -> Iterator[Watch]:
        """Watch one session; whoever drives it looks into its inbox after this and at first."""
        loop = asyncio.get_running_loop()
        if self._leaving is not None:
            self._leaving.cancel()
            self._leaving = None
        if self._listening is None or self._listening.done():
            # Subscribed here and now: whoever asks from now on is heard.
            self._listening = asyncio.ensure_future(self._listen(self._store.subscribe_all()))
        watch = self._watched[session_id] = Watch(session_id, loop.time(), loop.create_future())
        try:
            yield watch
        finally:
            del self._watched[session_id]
            watch.end()
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
                    for watch in self._watched.values():
                        self._plan(watch)
                elif isinstance(item, Hint) and item.session in self._watched:
                    self._plan(self._watched[item.session])

    def _plan(self, watch: Watch) -> None:
        """Look at an inbox as soon as the last look is long enough ago."""
        if watch.next_look is not None:
            return
        loop = asyncio.get_running_loop()
        pause = max(LOOK_SECONDS, LOOK_SECONDS_EACH * len(self._watched))
        due = max(loop.time(), watch.looked_at + pause)
        watch.next_look = loop.call_at(due, self._begin_look, watch)

    def _begin_look(self, watch: Watch) -> None:
        watch.looked_at = asyncio.get_running_loop().time()
        watch.next_look = None
        watch.look = asyncio.ensure_future(self._look(watch))

    async def _look(self, watch: Watch) -> None:
        try:
            if await stop_item(self._store, watch.session) is not None and not watch.asked.done():
                watch.asked.set_result(None)
        except HoldfastError:
            # The turn goes on; the next hint brings another look.
            logger.warning("the inbox of session %s was not read", watch.session, exc_info=True)
