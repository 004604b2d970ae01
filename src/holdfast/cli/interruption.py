"""Ctrl-C and SIGTERM while a session is driven: the first cancels cleanly, a second ends at once.

Cancelled cleanly, the runtime records the interruption and gives the lease back. That serves
whoever reads the log; a kill loses nothing either. A signal that was ignored when
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
        self._handled = [n for n in SIGNALS if signal.getsignal(n) is not signal.SIG_IGN]

    def __enter__(self) -> Interruption:
        for number in self._handled:
            self._loop.add_signal_handler(number, self._cancel, number)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._remove_handlers()

    @property
    def exit_code(self) -> int:
        """Return the code with which a process leaves that a signal ended."""
        return 128 + (self._signal or signal.SIGINT)

    def handled(self) -> None:
        """Mark the cancellation as handled; one that no signal caused is raised again."""
        if self._signal is None or self._task is None:
            raise asyncio.CancelledError
        self._task.uncancel()

    def _cancel(self, number: signal.Signals) -> None:
        self._signal = number
        self._remove_handlers()
        if self._task is not None:
            self._task.cancel()

    def _remove_handlers(self) -> None:
        for number in self._handled:
            self._loop.remove_signal_handler(number)
