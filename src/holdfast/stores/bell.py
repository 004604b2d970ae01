"""A bell: how a thread hands things to an event loop.

It does what `call_soon_threadsafe` does, by an eventfd where the platform has one: waking a loop
takes half as long, and half of an append's way back is waking the loop. What hears may be the code
of whoever waited, which takes its time and may raise.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

T = TypeVar("T")


class Bell(Generic[T]):
    """Things on their way to one loop, which takes each with `hear` in the order they came."""

    def __init__(self, loop: asyncio.AbstractEventLoop, hear: Callable[[T], None]) -> None:
        self.loop = loop
        self._hear = hear
        self._items: deque[T] = deque()
        self._guard = threading.Lock()  # a descriptor that is closed may be another's already
        self._eventfd: int | None = None
        if hasattr(os, "eventfd"):
            eventfd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            try:
                loop.add_reader(eventfd, self._answer)
                self._eventfd = eventfd
            except NotImplementedError:
                os.close(eventfd)

    def ring(self, item: T) -> None:
        """Hand something over, from any thread; a loop that is closed never hears of it."""
        self._items.append(item)
        with self._guard:
            if self._eventfd is not None:
                os.eventfd_write(self._eventfd, 1)
                return
        with suppress(RuntimeError):  # the loop is closed
            self.loop.call_soon_threadsafe(self._take)

    def close(self) -> None:
        """Hand over what is left and let go of the loop; callable from any thread, once."""
        try:
            self.loop.call_soon_threadsafe(self._leave)
        except RuntimeError:  # the loop is closed, and with it all that it watched
            self._let_go()

    def _answer(self) -> None:
        assert self._eventfd is not None
        try:  # noqa: SIM105 - every append comes by here, and `suppress` costs more than the read
            os.eventfd_read(self._eventfd)
        except BlockingIOError:
            pass  # a pass that was broken off may come here twice
        self._take()

    def _take(self) -> None:
        try:
            # What comes meanwhile rings again: whatever else the loop has to do gets its turn.
            for _ in range(len(self._items)):
                self._hear(self._items.popleft())
        except BaseException:
            self.loop.call_soon(self._take)
            raise

    def _leave(self) -> None:
        try:
            self._take()
        finally:
            if self._eventfd is not None:
                self.loop.remove_reader(self._eventfd)
            self._let_go()

    def _let_go(self) -> None:
        with self._guard:
            eventfd, self._eventfd = self._eventfd, None
        if eventfd is not None:
            os.close(eventfd)
