"""Ctrl-C and SIGTERM while a session is driven: the first breaks off cleanly, a second at once.

A clean break is a cancellation: the runtime records the interruption and gives the lease back. It
is a courtesy to whoever reads the log; a kill loses nothing either. A signal that was ignored when
the command started, as nohup and a shell's background jobs have it, stays ignored.
"""

from __future__ import annotations

import asyncio
import signal
from types import TracebackType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interruption:
    """Turns the signals that end a process into the cancellation of the present task."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._signal: signal.Signals | None = None
        self._heeded = [n for n in SIGNALS if signal.getsignal(n) is not signal.SIG_IGN]

    def __enter__(self) -> Interruption:
        for number in self._heeded:
            self._loop.add_signal_handler(number, self._break_off, number)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._let_go()

    @property
    def exit_code(self) -> int:
        """Return the code with which a process leaves that a signal ended."""
        return 128 + (self._signal or signal.SIGINT)

    def taken(self) -> None:
        """Say that the cancellation was handled; one that was no signal goes on."""
        if self._signal is None or self._task is None:
            raise asyncio.CancelledError
        self._task.uncancel()

    def _break_off(self, number: signal.Signals) -> None:
        self._signal = number
        self._let_go()
        if self._task is not None:
            self._task.cancel()

    def _let_go(self) -> None:
        for number in self._heeded:
            self._loop.remove_signal_handler(number)
