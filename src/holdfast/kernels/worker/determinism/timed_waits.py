"""Waits with a timeout: each moves the pinned clock by what was asked for, and is counted.

The wall clock of a cell stands still, so a loop that waits until it says so would never end if
waiting did not move it. A wait that runs out moves it to its own end, whatever it really took, and
one that is woken does not: so it reads the same when the cell runs again. Threads that are in such
a wait are known, because they will go on by themselves and so are not stuck.
"""

from __future__ import annotations

from _thread import get_ident

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from holdfast.kernels.worker.determinism.pins import Clock

_LONGEST = 1e9
_MILLISECOND_NS = 1_000_000


class TimedWaits:
    """The timed waits of a session's threads."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        # The threads that are in one.
        self.under_way: set[int] = set()
        # What timeouts of event loops asked for, by the moment of the real clock they became.
        self._asked: dict[float, float] = {}

    def patches(self) -> dict[str, Callable[[Any], None]]:
        """Return what to do to each module that offers timed waits."""
        return {
            "threading": self._patch_threading,
            "select": self._patch_select,
            "selectors": self._patch_selectors,
            "asyncio.base_events": self._patch_loop,
            "asyncio.timeouts": self._patch_timeouts,
        }

    def count(self, wait: Callable[..., Any], *args: Any) -> Any:
        """Do a timed wait, known as one meanwhile."""
        thread = get_ident()
        self.under_way.add(thread)
        try:
            return wait(*args)
        finally:
            self.under_way.discard(thread)

    def sleep(self, sleep: Callable[[float], None], seconds: float) -> None:
        """Wait for so long."""
        start_ns = self.clock.now_ns
        self.count(sleep, seconds)
        self.clock.advance_to(start_ns + _exactly(seconds))

    def _patch_threading(self, module: Any) -> None:
        clock = self.clock
        wait, join = module.Condition.wait, module.Thread.join

        def timed_wait(condition: Any, timeout: float | None = None) -> Any:
            if timeout is None or timeout <= 0:
                return wait(condition, timeout)
            start_ns = clock.now_ns
            woken = self.count(wait, condition, timeout)
            if not woken:
                clock.advance_to(start_ns + _about(timeout))
            return woken

        def timed_join(thread: Any, timeout: float | None = None) -> None:
            if timeout is None or timeout <= 0:
                return join(thread, timeout)  # type: ignore[no-any-return]
            start_ns = clock.now_ns
            self.count(join, thread, timeout)
            if thread.is_alive():
                clock.advance_to(start_ns + _about(timeout))

        module.Condition.wait, module.Thread.join = timed_wait, timed_join

    def _patch_select(self, module: Any) -> None:
        select = module.select

        def timed_select(
            readable: Any, writable: Any, failed: Any, timeout: float | None = None, /
        ) -> Any:
            if timeout is None or timeout <= 0:
                return select(readable, writable, failed, timeout)
            start_ns = self.clock.now_ns
            ready = self.count(select, readable, writable, failed, timeout)
            if not any(ready):
                self.clock.advance_to(start_ns + _about(timeout))
            return ready

        replace_function(module, "select", timed_select)

    def _patch_selectors(self, module: Any) -> None:
        kind = module.DefaultSelector
        select = kind.select

        def timed_select(selector: Any, timeout: float | None = None) -> Any:
            # An event loop waits here; its timers know better what was asked for.
            if timeout is None or timeout <= 0:
                return select(selector, timeout)
            return self.count(select, selector, timeout)

        kind.select = timed_select

    def _patch_loop(self, module: Any) -> None:
        loop, clock = module.BaseEventLoop, self.clock
        call_later, call_at = loop.call_later, loop.call_at

        def later(loop: Any, delay: Any, callback: Any, *args: Any, context: Any = None) -> Any:
            if delay is not None:
                callback = _Due(clock, clock.now_ns + _exactly(delay), callback)
            return call_later(loop, delay, callback, *args, context=context)

        def at(loop: Any, when: Any, callback: Any, *args: Any, context: Any = None) -> Any:
            if when is not None and type(callback) is not _Due:
                asked = self._asked.pop(when, None)
                length = _about(when - loop.time()) if asked is None else _exactly(asked)
                callback = _Due(clock, clock.now_ns + length, callback)
            return call_at(loop, when, callback, *args, context=context)

        loop.call_later, loop.call_at = later, at

    def _patch_timeouts(self, module: Any) -> None:
        timeout = module.timeout

        def remembered(delay: float | None) -> Any:
            made = timeout(delay)
            if delay is not None:
                # Until it is entered the real clock moves on: what is left then is a little less.
                self._asked[made.when()] = delay
            return made

        replace_function(module, "timeout", remembered)


class _Due:
    """What a timer of an event loop calls, once the clock shows its time."""

    def __init__(self, clock: Clock, at_ns: int, callback: Any) -> None:
        self._clock = clock
        self._at_ns = at_ns
        self._callback = callback

    def __call__(self, *args: Any) -> None:
        self._clock.advance_to(self._at_ns)
        self._callback(*args)

    def __repr__(self) -> str:
        return repr(self._callback)


def replace_function(module: Any, name: str, function: Any) -> None:
    """Put a function in a module's place of that name: a checkpoint refers to it by the name."""
    function.__module__ = module.__name__
    function.__name__ = function.__qualname__ = name
    setattr(module, name, function)


def _exactly(seconds: float) -> int:
    return int(min(_LONGEST, seconds) * 1e9)


def _about(seconds: float) -> int:
    """Return a timeout in whole milliseconds, rounded up.

    It is often what is left until a moment of a real clock: a little less than asked for.
    """
    return -(-(_exactly(seconds) - 1000) // _MILLISECOND_NS) * _MILLISECOND_NS
