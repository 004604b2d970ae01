"""The calls of one eval: recorded ones are answered from the record, others reach the host.

A call is known by (function, argument digest, n-th such call), never by position. When a cell runs
again, after a crash or because its worker was parked, answers are released in the order in which
they were first given, and a call that is not in the record waits until every recorded one that has
effects was claimed: so the cell cannot do something new before it has done again what it did. A
cell that ends or stalls with claims open has diverged.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from holdfast.kernels.port import FileRead, HostAnswer, HostCall, OnCall, RecordedCall

Key = tuple[str, str, int]
Deliver = Callable[[HostAnswer], None]


class Diverged(Exception):
    """The cell does not do again what it did before."""


@dataclass(slots=True, eq=False)
class _Entry:
    key: Key
    pure: bool
    answer: HostAnswer | None = None
    task: asyncio.Task[None] | None = None
    claimed: bool = False
    deliver: Deliver | None = None


class Journal:
    """The record of one eval, over as many runs of its cell as it takes."""

    def __init__(
        self,
        on_call: OnCall,
        recorded: Sequence[RecordedCall] = (),
        files: Iterable[FileRead] = (),
    ) -> None:
        self._on_call = on_call
        self._closed = False
        self._entries: dict[Key, _Entry] = {}
        self._answered: list[_Entry] = []
        self._files: dict[str, str] = {}
        for call in recorded:
            entry = _Entry(call.key, call.pure, call.answer)
            self._entries[call.key] = entry
            if call.answer is not None:
                self._answered.append(entry)
            self.check_files(call.files)
        self.check_files(files)
        self.calls: dict[Key, HostCall] = {}
        self.on_failure: Callable[[BaseException], None] = lambda error: None
        self.begin()

    def begin(self) -> None:
        """Start a run of the cell: nothing is claimed yet."""
        for entry in self._entries.values():
            entry.claimed, entry.deliver = False, None
        self.unclaimed = sum(not entry.pure for entry in self._entries.values())
        self._counts: Counter[tuple[str, str]] = Counter()
        self._blocked: list[tuple[HostCall, Deliver]] = []
        self._next = 0
        self.open = 0

    def check_files(self, files: Iterable[FileRead]) -> None:
        """Raise Diverged if a file is no longer what the cell read before."""
        for file in files:
            before = self._files.setdefault(file.path, file.digest)
            if before != file.digest:
                raise Diverged(f"the file {file.path!r} has changed since the cell first read it")

    def ordinal(self, function: str, digest: str) -> int:
        """Return which one of its like this call is, and count it."""
        number = self._counts[function, digest]
        self._counts[function, digest] += 1
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
        self.calls.setdefault(call.key, call)
        self.open += 1
        entry = self._entries.get(call.key)
        if entry is None and not call.pure and self.unclaimed:
            self._blocked.append((call, deliver))
            return
        if entry is None:
            entry = self._entries[call.key] = _Entry(call.key, call.pure)
        elif not entry.pure:
            self.unclaimed -= 1
        entry.claimed, entry.deliver = True, deliver
        if entry.answer is None and entry.task is None:
            entry.task = asyncio.ensure_future(self._answer(entry, call))
        self._release()

    async def _answer(self, entry: _Entry, call: HostCall) -> None:
        try:
            answer = await self._on_call(call)
        except BaseException as error:
            # Not when this journal is closed: then nobody waits any more.
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
            if entry.deliver is None:
                return
            deliver, entry.deliver = entry.deliver, None
            self._next += 1
            self.open -= 1
            assert entry.answer is not None
            deliver(entry.answer)

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
