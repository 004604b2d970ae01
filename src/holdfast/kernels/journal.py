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
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from holdfast.kernels.port import FileRead, HostAnswer, HostCall, OnCall, RecordedCall

Key = tuple[str, str, int]


class Diverged(Exception):
    """The cell does not do again what it did before."""


@dataclass(slots=True)
class _Entry:
    key: Key
    pure: bool
    answer: HostAnswer | None = None
    task: asyncio.Task[HostAnswer] | None = None
    claimed: bool = False
    released: bool = False


class Journal:
    """The record of one eval, over as many runs of its cell as it takes."""

    def __init__(
        self,
        on_call: OnCall,
        recorded: Sequence[RecordedCall] = (),
        files: Iterable[FileRead] = (),
    ) -> None:
        self._on_call = on_call
        self._entries: dict[Key, _Entry] = {}
        self._answered: list[_Entry] = []
        self._files: dict[str, str] = {}
        for call in recorded:
            entry = _Entry(call.key, call.pure, call.answer)
            self._entries[call.key] = entry
            if call.answer is not None:
                self._answered.append(entry)
            self._pin(call.files)
        self._pin(files)
        self._change = asyncio.Event()
        self.calls: dict[Key, HostCall] = {}
        self.begin()

    def begin(self) -> None:
        """Start a run of the cell: nothing is claimed yet."""
        for entry in self._entries.values():
            entry.claimed = entry.released = False
        self._counts: Counter[tuple[str, str]] = Counter()
        self._next = 0
        self.open = 0
        self.held = 0
        self._notify()

    def _pin(self, files: Iterable[FileRead]) -> None:
        for file in files:
            self._files.setdefault(file.path, file.digest)

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

    async def ask(self, call: HostCall) -> HostAnswer:
        """Return the answer to a call, when it is its turn."""
        self.calls.setdefault(call.key, call)
        self.open += 1
        try:
            entry = self._entries.get(call.key)
            if entry is None:
                if not call.pure:
                    await self._hold(lambda: not self._unclaimed())
                entry = _Entry(call.key, call.pure)
                self._entries[call.key] = entry
            entry.claimed = True
            self._notify()
            if entry.answer is None:
                await self._answer(entry, call)
            position = self._answered.index(entry, self._next)
            if position != self._next:
                await self._hold(lambda: self._answered[self._next] is entry)
            self._next += 1
            entry.released = True
            self._notify()
            assert entry.answer is not None
            return entry.answer
        finally:
            self.open -= 1

    async def _answer(self, entry: _Entry, call: HostCall) -> None:
        if entry.task is None:
            asked = cast(Coroutine[Any, Any, HostAnswer], self._on_call(call))
            entry.task = asyncio.ensure_future(asked)
            entry.task.add_done_callback(lambda task: self._settle(entry, task))
        await asyncio.shield(entry.task)

    def _settle(self, entry: _Entry, task: asyncio.Task[HostAnswer]) -> None:
        # Kept even if no worker waits for it at the moment: the next run finds it.
        if not task.cancelled() and task.exception() is None:
            entry.answer = task.result()
            self._answered.append(entry)
        self._notify()

    def _unclaimed(self) -> bool:
        return any(not e.claimed and not e.pure for e in self._entries.values())

    async def _hold(self, ready: Any) -> None:
        self.held += 1
        self._notify()
        try:
            while not ready():
                await self._changed()
        finally:
            self.held -= 1

    async def _changed(self) -> None:
        change = self._change
        await change.wait()

    def _notify(self) -> None:
        self._change.set()
        self._change = asyncio.Event()

    @property
    def stuck(self) -> bool:
        """Return whether every open call waits for another one of the cell's own."""
        return self.held > 0 and self.held == self.open

    @property
    def asking(self) -> int:
        """Return how many calls wait for the host."""
        return self.open - self.held

    async def wait_for_answers(self) -> None:
        """Wait until the host has answered everything it was asked."""
        tasks = [e.task for e in self._entries.values() if e.task is not None and not e.task.done()]
        if tasks:
            await asyncio.wait(tasks)

    async def close(self) -> None:
        """Cancel what is still being asked."""
        tasks = [e.task for e in self._entries.values() if e.task is not None and not e.task.done()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
