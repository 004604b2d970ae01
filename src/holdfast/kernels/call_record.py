"""The calls of one eval: recorded ones are answered from the record, others reach the host.

A call is known by (function, argument digest, n-th such call), never by position. When a cell runs
again, after a crash or because its worker was parked, answers are released in the order in which
they were first given, but for pure ones that nobody asks for again; and a call that is not in the
record waits until every recorded one that has effects was claimed: so the cell cannot do something
new before it has done again what it did. A cell that ends or stalls with claims open has diverged.

Files that the cell reads belong to the record as well: see `recorded_files`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.kernels.port import CallKey, FileRead, HostAnswer, HostCall, OnCall, RecordedCall
from holdfast.kernels.recorded_files import Diverged, RecordedFiles

__all__ = ["CallRecord", "Deliver", "Diverged", "first_of"]

Deliver = Callable[[HostAnswer], None]


@dataclass(slots=True, eq=False)
class _Entry:
    key: CallKey
    pure: bool
    answer: HostAnswer | None = None
    task: asyncio.Task[None] | None = None
    claimed: bool = False
    skipped: bool = False
    # Waits for someone outside: said by `on_call`, which is still pending.
    suspended: bool = False
    deliver: Deliver | None = None

    @property
    def asked(self) -> bool:
        """Return whether the cell waits for the host to answer this call."""
        return self.deliver is not None and self.answer is None


class CallRecord:
    """The record of one eval, over as many runs of its cell as it takes."""

    def __init__(
        self,
        on_call: OnCall,
        recorded: Sequence[RecordedCall] = (),
        files: Iterable[FileRead] = (),
    ) -> None:
        self._on_call = on_call
        self._closed = False
        self._entries: dict[CallKey, _Entry] = {}
        self._answered: list[_Entry] = []
        self.files = RecordedFiles()
        for index, call in enumerate(recorded):
            entry = _Entry(call.key, call.pure, call.answer)
            self._entries[call.key] = entry
            if call.answer is not None:
                self._answered.append(entry)
            self.files.add(call.files, index)
        self.files.add_unless_known(files)
        # In the order in which they were made; a cell may pass more to its calls than fits here.
        self.calls: dict[CallKey, None] = {}
        self.on_failure: Callable[[BaseException], None] = lambda error: None
        self._failure: BaseException | None = None
        # Called when the last open call that was not suspended has become so.
        self.on_suspend: Callable[[], None] = lambda: None
        self._suspensions = asyncio.Event()
        self.begin()

    def begin(self) -> None:
        """Start a run of the cell: nothing is claimed yet."""
        for entry in self._entries.values():
            entry.claimed, entry.skipped, entry.deliver = False, False, None
        self.unclaimed = sum(not entry.pure for entry in self._entries.values())
        self.files.begin(len(self._entries))
        self._counts: dict[tuple[str, str], int] = {}
        self._blocked: list[tuple[HostCall, Deliver]] = []
        self._next = 0
        self.open = 0
        # How many threads the cell has: as many calls can be open at once.
        self.threads = 1

    def read(self, files: Sequence[FileRead]) -> None:
        """Note what the cell has read before its next call; raise Diverged if it has changed."""
        self.files.read(files, len(self._entries))

    def ordinal(self, function: str, digest: str) -> int:
        """Return which one of its like this call is, and count it."""
        number = self._counts.get((function, digest), 0)
        self._counts[function, digest] = number + 1
        return number

    def check_end(self) -> None:
        """Raise Diverged if the cell ended without a recorded call that has effects."""
        missing = [e for e in self._entries.values() if not e.claimed and not e.pure]
        if missing:
            names = ", ".join(sorted({entry.key[0] for entry in missing}))
            raise Diverged(
                f"the cell ended without {len(missing)} recorded call(s) of {names} that it made "
                "when it first ran"
            )

    def ask(self, call: HostCall, deliver: Deliver) -> None:
        """Have a call answered: `deliver` gets the answer when it is its turn."""
        key = call.key
        self.calls.setdefault(key)
        self.open += 1
        entry = self._entries.get(key)
        if entry is None and not call.pure and self.unclaimed:
            self._blocked.append((call, deliver))
            return
        if entry is None:
            entry = self._entries[key] = _Entry(key, call.pure)
        else:
            self.unclaimed -= not entry.pure
            self.files.claimed += 1
        entry.claimed, entry.deliver = True, deliver
        if entry.answer is None and entry.task is None:
            entry.task = asyncio.get_running_loop().create_task(self._answer(entry, call))
        if entry.skipped:
            self._hand_over(entry)
        if self._blocked or self._next < len(self._answered):
            self._release()

    def suspend(self, key: CallKey) -> None:
        """Note that a call waits for someone outside."""
        self._entries[key].suspended = True
        self._suspensions.set()
        if self.suspended:
            self.on_suspend()

    async def _answer(self, entry: _Entry, call: HostCall) -> None:
        try:
            answer = await self._on_call(call)
        except BaseException as error:
            # Not when this record is closed: then nobody waits any more.
            if not self._closed:
                self._failure = error
                self.on_failure(error)
            return
        # Kept even if no worker waits for it at the moment: the next run finds it.
        entry.answer = answer
        self._answered.append(entry)
        self._release()

    def _release(self) -> None:
        if self._blocked and not self.unclaimed:
            blocked, self._blocked = self._blocked, []
            for call, deliver in blocked:
                self.open -= 1
                self.ask(call, deliver)
        while self._next < len(self._answered):
            entry = self._answered[self._next]
            if entry.deliver is not None:
                self._next += 1
                self._hand_over(entry)
            elif entry.pure and self.open >= self.threads:
                # Nobody is left who could ask for it before what is asked for now is answered.
                self._pass_over(entry)
            else:
                return

    def _hand_over(self, entry: _Entry) -> None:
        deliver, entry.deliver = entry.deliver, None
        self.open -= 1
        assert deliver is not None
        assert entry.answer is not None
        deliver(entry.answer)

    def _pass_over(self, entry: _Entry) -> None:
        entry.skipped = True
        self._next += 1

    def skip(self) -> bool:
        """Pass over a pure answer that nobody asks for; return whether there was one."""
        if self._next == len(self._answered):
            return False
        entry = self._answered[self._next]
        if entry.claimed or not entry.pure:
            return False
        self._pass_over(entry)
        self._release()
        return True

    @property
    def expecting(self) -> bool:
        """Return whether the cell has not yet done again all that it did before."""
        return any(not entry.claimed for entry in self._entries.values())

    @property
    def asking(self) -> int:
        """Return how many open calls wait for the host."""
        return sum(entry.asked for entry in self._entries.values())

    @property
    def stuck(self) -> bool:
        """Return whether every open call waits for another one that the cell does not make."""
        return self.open > 0 and not self.asking

    @property
    def suspended(self) -> bool:
        """Return whether there are open calls and each one waits for someone outside.

        With a call that is blocked or whose answer waits for its turn the cell can still go on.
        """
        waiting = sum(entry.asked and entry.suspended for entry in self._entries.values())
        return 0 < self.open == waiting

    @property
    def waiting(self) -> tuple[CallKey, ...]:
        """Return the calls that the host has not answered, in the order in which they were made."""
        return tuple(key for key in self.calls if self._is_unanswered(key))

    def _is_unanswered(self, key: CallKey) -> bool:
        entry = self._entries.get(key)
        return entry is not None and entry.answer is None

    @property
    def made(self) -> tuple[CallKey, ...]:
        """Return the calls of the record and those that this process saw, each once."""
        return tuple(dict.fromkeys((*self._entries, *self.calls)))

    async def wait_for_answers(self) -> bool:
        """Wait for the host, but not for anyone outside; return whether all is answered.

        Raise what `on_call` raised meanwhile.
        """
        while True:
            if self._failure is not None:
                raise self._failure
            pending = [entry for entry in self._entries.values() if _is_pending(entry)]
            busy = [entry.task for entry in pending if entry.task and not entry.suspended]
            if not busy:
                return not pending
            self._suspensions.clear()
            await first_of(*busy, self._suspensions.wait())

    async def wait_for_all(self) -> None:
        """Wait until the host has answered everything it was asked."""
        tasks = [entry.task for entry in self._entries.values() if _is_pending(entry)]
        if tasks:
            await asyncio.wait([task for task in tasks if task is not None])

    async def close(self) -> None:
        """Cancel what is still being asked."""
        self._closed = True
        tasks = [e.task for e in self._entries.values() if e.task is not None and not e.task.done()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


async def first_of(*waits: Awaitable[Any], seconds: float | None = None) -> None:
    """Wait until one of these is done, or for so long; those that are coroutines are cancelled."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task, wait in zip(tasks, waits, strict=True):
            if task is not wait:
                task.cancel()


def _is_pending(entry: _Entry) -> bool:
    return entry.task is not None and not entry.task.done()
