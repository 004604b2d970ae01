"""Live delivery: subscribers pull events from the log by cursor; writers only wake them.

A writer never waits for a subscriber and no durable event is queued for one: a subscription reads
pages from the store after its own position, so backlog and live join without gap or repeat, a slow
reader merely lags, and one that throws harms itself. Only transients are queued, in a bounded
deque that drops the oldest and leaves one gap marker. Changes made by other processes are found by
a polling thread that runs only while someone subscribes.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from types import TracebackType
from typing import Protocol

from holdfast.core.events import Event
from holdfast.stores.checks import check_page, check_transient
from holdfast.stores.port import Gap, Hint, Transient
from holdfast.stores.rows import closed_error
from holdfast.stores.tenancy import Address, address_of

logger = logging.getLogger("holdfast.stores")

PAGE_EVENTS = 256
TRANSIENT_ITEMS = 1024
HINT_ITEMS = 4096
POLL_SECONDS = 0.05

Poll = Callable[[frozenset[str] | None], Iterable[tuple[str, int]]]
"""Given the keys of watched sessions (None is all), return those that others moved, with seqs."""


class ReadPage(Protocol):
    """The part of a store that a subscription reads from."""

    def __call__(self, session_id: str, *, after: int, limit: int) -> Awaitable[list[Event]]: ...


class Feed:
    """The subscriptions of one store handle."""

    def __init__(self, poll: Poll | None = None, where: str = "memory:") -> None:
        self._poll = poll
        self._where = where
        self._closed = False
        self._lock = threading.Lock()
        self._following: dict[str, set[SessionSubscription]] = {}
        self._hinted: set[HintSubscription] = set()
        self._poller: threading.Thread | None = None
        self._stop = threading.Event()

    def subscribe(self, address: Address, after: int, read: ReadPage) -> SessionSubscription:
        """Follow one session, whose events `read` gives in pages."""
        check_page(after, None, 1)
        item = SessionSubscription(self, read, address, after)
        with self._lock:
            self._check_open()
            self._following.setdefault(address.key, set()).add(item)
            self._start_polling()
        return item

    def subscribe_all(self, tenant: str | None) -> HintSubscription:
        """Follow every session of a tenant by hints, or of all tenants where it is None."""
        item = HintSubscription(self, tenant)
        with self._lock:
            self._check_open()
            self._hinted.add(item)
            self._start_polling()
        return item

    @property
    def is_quiet(self) -> bool:
        """Tell whether nobody follows anything."""
        return not self._following and not self._hinted

    @property
    def is_hinting(self) -> bool:
        """Tell whether anybody follows every session."""
        return bool(self._hinted)

    def wake(self, key: str, seq: int) -> None:
        """Say that a session has moved; callable from any thread, never blocks."""
        if self.is_quiet:
            return
        with self._lock:
            following = list(self._following.get(key, ()))
            hinted = list(self._hinted)
        for follower in following:
            follower.wake()
        for watcher in hinted:
            watcher.offer(key, seq)

    def notify(self, tenant: str, item: Transient) -> None:
        """Hand a transient to the session's subscribers."""
        check_transient(item)
        if not self._following:
            return
        with self._lock:
            following = list(self._following.get(Address(tenant, item.session).key, ()))
        for follower in following:
            follower.offer(item)

    def close(self) -> None:
        """End every subscription and the polling thread, and let nobody subscribe any more."""
        with self._lock:
            self._closed = True
            everyone = [s for group in self._following.values() for s in group]
            everyone_hinted = list(self._hinted)
        for item in everyone:
            item.end()
        for watcher in everyone_hinted:
            watcher.end()

    def forget(self, item: _Waiting) -> None:
        """Drop an ended subscription."""
        with self._lock:
            if isinstance(item, HintSubscription):
                self._hinted.discard(item)
            elif isinstance(item, SessionSubscription):
                group = self._following.get(item.key, set())
                group.discard(item)
                if not group:
                    self._following.pop(item.key, None)
            if self.is_quiet:
                self._stop.set()

    def _check_open(self) -> None:
        if self._closed:
            raise closed_error(self._where)

    def _start_polling(self) -> None:
        if self._poll is None:
            return
        if self._poller is not None and self._poller.is_alive() and not self._stop.is_set():
            return
        self._stop = threading.Event()
        self._poller = threading.Thread(
            target=self._run_poll, args=(self._poll, self._stop), name="holdfast-feed", daemon=True
        )
        self._poller.start()

    def _run_poll(self, poll: Poll, stop: threading.Event) -> None:
        while not stop.wait(POLL_SECONDS):
            with self._lock:
                watched = None if self._hinted else frozenset(self._following)
            try:
                for key, seq in poll(watched):
                    self.wake(key, seq)
            except Exception:
                # A busy or briefly unreadable store must not end live delivery for good.
                logger.warning("looking for other processes' events failed", exc_info=True)


class _Waiting:
    """What both kinds of subscription share: a wake-up from any thread, and an end."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._wakeup = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._ended = False

    def signal(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._wakeup.set)
        except RuntimeError:  # the subscriber's loop is closed: nobody is left to wake
            self._feed.forget(self)

    def end(self) -> None:
        self._ended = True
        self._feed.forget(self)
        self.signal()

    async def close(self) -> None:
        """End the iteration."""
        self.end()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()


class SessionSubscription(_Waiting):
    """One session from a position on."""

    def __init__(self, feed: Feed, read: ReadPage, address: Address, after: int) -> None:
        super().__init__(feed)
        self.session_id, self.key = address.id, address.key
        self._read = read
        self._seq = after
        self._page: deque[Event] = deque()
        self._transients: deque[Transient] = deque(maxlen=TRANSIENT_ITEMS)
        self._dropped = False
        self._stale = True

    def wake(self) -> None:
        self._stale = True
        self.signal()

    def offer(self, item: Transient) -> None:
        if len(self._transients) == TRANSIENT_ITEMS:
            self._dropped = True
        self._transients.append(item)
        self.signal()

    def __aiter__(self) -> AsyncIterator[Event | Transient | Gap | Hint]:
        return self

    async def __aenter__(self) -> SessionSubscription:
        return self

    async def __anext__(self) -> Event | Transient | Gap | Hint:
        while not self._ended:
            self._wakeup.clear()
            if not self._page and self._stale:
                self._stale = False
                try:
                    page = await self._read(self.session_id, after=self._seq, limit=PAGE_EVENTS)
                except BaseException:
                    # Cancelled or failed: what woke this subscription has not been read yet.
                    self._stale = True
                    raise
                self._stale = self._stale or len(page) == PAGE_EVENTS
                self._page.extend(page)
            if self._page:
                event = self._page.popleft()
                self._seq = event.seq
                return event
            if self._stale:
                continue
            if self._dropped:
                self._dropped = False
                return Gap(self.session_id, self._seq)
            if self._transients:
                return self._transients.popleft()
            await self._wakeup.wait()
        raise StopAsyncIteration


class HintSubscription(_Waiting):
    """All sessions, by the newest position each is known to have."""

    def __init__(self, feed: Feed, tenant: str | None) -> None:
        super().__init__(feed)
        self._tenant = tenant
        self._hints: OrderedDict[str, Hint] = OrderedDict()
        self._guard = threading.Lock()
        self._dropped = False

    def offer(self, key: str, seq: int) -> None:
        address = address_of(key)
        if self._tenant not in (None, address.tenant):
            return
        with self._guard:
            first = not self._hints
            self._hints[key] = Hint(address.id, seq, address.tenant)
            if len(self._hints) > HINT_ITEMS:
                self._hints.popitem(last=False)
                self._dropped = True
        if first:  # else it has been signalled, and the subscriber takes all there is
            self.signal()

    def __aiter__(self) -> AsyncIterator[Event | Transient | Gap | Hint]:
        return self

    async def __aenter__(self) -> HintSubscription:
        return self

    async def __anext__(self) -> Event | Transient | Gap | Hint:
        while not self._ended:
            self._wakeup.clear()
            with self._guard:
                if self._dropped:
                    self._dropped = False
                    return Gap("", 0)
                if self._hints:
                    return self._hints.popitem(last=False)[1]
            await self._wakeup.wait()
        raise StopAsyncIteration
