"""A short but complete session, its provider that counts, and a store that kills.

Shared by the child programs, which are killed, and by the tests, which go on where they ended. The
provider notes every question in a file before it answers, so that what was paid is known whatever
became of the process that paid it.
"""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import holdfast
from holdfast.blobs.disk import Disk
from holdfast.models.port import ModelRequest
from holdfast.models.scripted import ScriptedModel
from holdfast.stores.choose import store_url
from holdfast.stores.files.store import FilesSessionStore
from holdfast.stores.port import Appended, SessionStore
from holdfast.stores.postgres.store import PostgresSessionStore
from holdfast.stores.sqlite.store import SqliteSessionStore

SESSION = "the-session"
TEXT = "".join(f"line {number}: {number * number}\n" for number in range(6000))
MESSAGES = ("Sum up the text.", "And once more.")
STEPS = (
    "```python\n"
    "parts = [text[at : at + 900] for at in range(0, 3600, 900)]\n"
    "notes = map_lm([f'note on {part}' for part in parts])\n"
    "count = 1\n"
    "```\nand then\n"
    "```python\ncount += 1\nlonger = text + notes[0]\nprint(count, len(longer))\n```",
    "```python\ncount += 1\nno_such_name\n```",
    "I think about it, without code.",
    "```python\nextra = lm(f'more than {count}')\n"
    "FINAL({'count': count, 'notes': notes, 'extra': extra, 'size': len(longer)})\n```",
    "```python\ncount += 10\nFINAL([count, len(notes)])\n```",
)


def leaf_reply(prompt: str) -> str:
    """Return what a leaf is told: long enough not to be stored inline."""
    return f"[{prompt[:20]}]" * 40


FINALS: tuple[Any, ...] = (
    {
        "count": 3,
        "notes": [leaf_reply(f"note on {TEXT[at : at + 900]}") for at in range(0, 3600, 900)],
        "extra": leaf_reply("more than 3"),
        "size": len(TEXT) + len(leaf_reply(f"note on {TEXT[:900]}")),
    },
    [13, 4],
)


def die() -> None:
    """End this process as a power cut would."""
    os.kill(os.getpid(), signal.SIGKILL)


class Ledger:
    """A file with one line per question that reached the provider."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def note(self, request: ModelRequest) -> None:
        with self.path.open("ab", buffering=0) as file:
            file.write(json.dumps([request.purpose, request.ordinal, request.prompt]).encode())
            file.write(b"\n")

    def asked(self) -> Counter[str]:
        """Return how often each question was asked: steps by ordinal, leaves by prompt."""
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        told = (json.loads(line) for line in lines)
        return Counter(
            f"step {ordinal}" if purpose == "step" else f"leaf {prompt}"
            for purpose, ordinal, prompt in told
        )


def model(ledger: Ledger, before_answer: Callable[[ModelRequest], Any] | None = None) -> Any:
    """Return the provider of the workload."""

    async def respond(request: ModelRequest) -> str:
        ledger.note(request)
        if before_answer is not None:
            await before_answer(request)
        return leaf_reply(request.prompt) if request.purpose == "leaf" else STEPS[request.ordinal]

    return ScriptedModel(respond, name="counting")


async def open_place(url: str, disk: Disk | None = None) -> SessionStore:
    """Open a durable store by its URL, on a disk of the test's own if it has one."""
    kind, _, place = store_url(url)[0].partition(":")
    if kind == "postgresql":
        return await PostgresSessionStore.open(url)
    opened = FilesSessionStore if kind == "files" else SqliteSessionStore
    return await opened.open(Path(place), disk=disk)


class StoreAround:
    """A store with something done around each durable write of the log."""

    def __init__(self, inner: SessionStore) -> None:
        self.inner = inner
        self.writes = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def create_session(self, *arguments: Any, **options: Any) -> Any:
        return await self.around("create", self.inner.create_session, arguments, options)

    async def append(self, *arguments: Any, **options: Any) -> Appended:
        return await self.around("append", self.inner.append, arguments, options)

    async def around(self, verb: str, write: Any, arguments: Any, options: Any) -> Any:
        raise AssertionError("what is done around a write is said by each kind")


class KillingStore(StoreAround):
    """Dies right before or right after the n-th write; tells of each write that was acknowledged.

    The telling goes to a file, one `seq digest` a line, and outlives the process.
    """

    def __init__(self, inner: SessionStore, at: int, when: str, acknowledged: Path) -> None:
        super().__init__(inner)
        self.at = at
        self.when = when
        self.acknowledged = acknowledged

    async def around(self, verb: str, write: Any, arguments: Any, options: Any) -> Any:
        self.writes += 1
        last = self.writes == self.at
        if last and self.when == "before":
            die()
        done = await write(*arguments, **options)
        if last and self.when == "after":
            die()
        if isinstance(done, Appended):
            with self.acknowledged.open("ab", buffering=0) as file:
                file.write(b"".join(b"%d %s\n" % (e.seq, e.digest.encode()) for e in done.events))
        return done


async def work(runtime: holdfast.Runtime, area: Path) -> list[holdfast.TurnResult]:
    """Do what is left of the session, whatever was done before; return the results of this call."""
    session = await runtime.start(session_id=SESSION, work_area=str(area))
    results: list[holdfast.TurnResult] = []
    result = await session.resume()
    if result is not None:
        results.append(result)
    state = await runtime.state(SESSION)
    while state.turn is None and state.counters.get("turn", 0) < len(MESSAGES):
        number = state.counters.get("turn", 0)
        inputs = {"text": TEXT} if number == 0 else {}
        results.append(await session.send(MESSAGES[number], inputs=inputs))
        state = await runtime.state(SESSION)
    return results
