"""The calls of one eval: recorded ones are answered from the record, others reach the host.

A call is known by (function, argument digest, n-th such call), never by position. When a cell runs
again, after a crash or because its worker was parked, answers are released in the order in which
they were first given, but for pure ones that nobody asks for again; and a call that is not in the
record waits until every recorded one that has effects was claimed: so the cell cannot do something
new before it has done again what it did. A cell that ends or stalls with claims open has diverged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from holdfast.kernels.port import CallKey, FileRead, HostAnswer, HostCall, OnCall, RecordedCall

Deliver = Callable[[HostAnswer], None]


class Diverged(Exception):
    """The cell does not do again what it did before."""


@dataclass(slots=True, eq=False)
class _Entry:
    key: CallKey
    pure: bool
    answer: HostAnswer | None = None
    task: asyncio.Task[None] | None = None
    claimed: bool = False
    skipped: bool = False
    deliver: Deliver | None = None


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
        self._files: dict[str, str] = {}
        for call in recorded:
            entry = _Entry(call.key, call.pure, call.answer)
            self._entries[call.key] = entry
            if call.answer is not None:
                self._answered.append(entry)
            self.check_files(call.files)
        self.check_files(files)
        # In the order in which they were made; a cell may pass more to its calls than fits here.
        self.calls: dict[CallKey, None] = {}
        self.on_failure: Callable[[BaseException], None] = lambda error: None
        self.begin()

    def begin(self) -> None:
        """Start a run of the cell: nothing is claimed yet."""
        for entry in self._entries.values():
            entry.claimed, entry.skipped, entry.deliver = False, False, None
        self.unclaimed = sum(not entry.pure for entry in self._entries.values())
        self._counts: dict[tuple[str, str], int] = {}
        self._blocked: list[tuple[HostCall, Deliver]] = []
        self._next = 0
        self.open = 0
        # How many threads the cell has: as many calls can be open at once.
        self.threads = 1

    def check_files(self, files: Iterable[FileRead]) -> None:
        """Raise Diverged if a file is no longer what the cell read before."""
        for file in files:
            before = self._files.setdefault(file.path, file.digest)
            if before != file.digest:
                raise Diverged(f"the file {file.path!r} has changed since the cell first read it")

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
        elif not entry.pure:
            self.unclaimed -= 1
        entry.claimed, entry.deliver = True, deliver
        if entry.answer is None and entry.task is None:
            entry.task = asyncio.get_running_loop().create_task(self._answer(entry, call))
        if entry.skipped:
            self._hand_over(entry)
        if self._blocked or self._next < len(self._answered):
            self._release()

    async def _answer(self, entry: _Entry, call: HostCall) -> None:
        try:
            answer = await self._on_call(call)
        except BaseException as error:
            # Not when this record is closed: then nobody waits any more.
            if not self._closed:
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
        return sum(
            entry.deliver is not None and entry.answer is None for entry in self._entries.values()
        )

    @property
    def stuck(self) -> bool:
        """Return whether every open call waits for another one that the cell does not make."""
        return self.open > 0 and not self.asking

    async def wait_for_answers(self) -> None:
        """Wait until the host has answered everything it was asked."""
        tasks = [e.task for e in self._entries.values() if e.task is not None and not e.task.done()]
        if tasks:
            await asyncio.wait(tasks)

    async def close(self) -> None:
        """Cancel what is still being asked."""
        self._closed = True
        tasks = [e.task for e in self._entries.values() if e.task is not None and not e.task.done()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
