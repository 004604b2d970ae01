"""Long sessions and big inputs cost per turn what the turn itself needs, not what came before.

Asserted on structure: events, store verbs and bytes per turn, and the memory of this process.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.models.port import ModelRequest
from holdfast.models.scripted import ScriptedModel
from holdfast.stores.memory.store import MemorySessionStore
from holdfast.stores.port import Appended, SessionStore

from .children import workload
from .conftest import cell

MEGABYTE = 1 << 20


def resident_bytes() -> int:
    fields = Path("/proc/self/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGESIZE")


class CountingStore:
    """Counts what is asked of a store, and the bytes that appends bring."""

    def __init__(self, inner: SessionStore) -> None:
        self.inner = inner
        self.reset()

    def reset(self) -> None:
        self.verbs: Counter[str] = Counter()
        self.events_read = 0
        self.events_written = 0
        self.bytes_written = 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        if not name.startswith("subscribe"):
            self.verbs[name] += 1
        return found

    async def read_events(self, *arguments: Any, **options: Any) -> Any:
        self.verbs["read_events"] += 1
        events = await self.inner.read_events(*arguments, **options)
        self.events_read += len(events)
        return events

    async def append(self, lease: Any, after: int, facts: Any, **options: Any) -> Appended:
        self.verbs["append"] += 1
        self.bytes_written += sum(len(slot.data or b"") for slot in options["payloads"])
        done = await self.inner.append(lease, after, facts, **options)
        self.events_written += len(done.events)
        return done


def respond(request: ModelRequest) -> str:
    if request.purpose == "leaf":
        return "noted"
    if request.ordinal % 2 == 0:
        return cell("turns = globals().get('turns', 0) + 1\nnote = lm('a note')\nprint(note)")
    return cell("FINAL(turns)")


async def test_a_hundred_turns_each_cost_what_the_first_ones_cost(tmp_path: Path) -> None:
    store: Any = CountingStore(await workload.open_place(f"sqlite:{tmp_path / 'store'}"))
    costs: list[dict[str, Any]] = []
    async with await holdfast.open(store, model=ScriptedModel(respond)) as runtime:
        session = await runtime.start()
        for number in range(1, 101):
            store.reset()
            result = await session.send(f"turn {number}")
            assert isinstance(result, holdfast.Final)
            assert result.value == number
            costs.append(
                {
                    "verbs": dict(store.verbs),
                    "read": store.events_read,
                    "written": store.events_written,
                    "bytes": store.bytes_written,
                    "resident": resident_bytes(),
                }
            )
    # The first turn also builds what is kept warm; a late hint may cost another look at the inbox.
    early, late = costs[1:11], costs[-10:]
    for name in ("read", "written", "bytes"):
        assert max(c[name] for c in late) <= 1.05 * max(c[name] for c in early), name
    verbs_early = max(sum(c["verbs"].values()) for c in early)
    verbs_late = max(sum(c["verbs"].values()) for c in late)
    assert verbs_late <= verbs_early + 3
    assert late[-1]["resident"] - early[-1]["resident"] < 30 * MEGABYTE
    await store.close()


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("files", marks=pytest.mark.soak)])
async def test_a_big_input_is_stored_once_and_costs_later_turns_nothing(
    tmp_path: Path, kind: str
) -> None:
    store: Any = CountingStore(await workload.open_place(f"{kind}:{tmp_path / 'store'}"))
    line = "a line of the haystack, which is long\n"
    text = line * (50 * MEGABYTE // len(line)) + "needle"
    size = len(text)

    def answer(request: ModelRequest) -> str:
        if request.ordinal == 0:
            return cell("FINAL([text.count('needle'), len(text)])")
        return cell("seen = globals().get('seen', 0) + 1\nFINAL([seen, text[-6:]])")

    before = resident_bytes()
    async with await holdfast.open(store, model=ScriptedModel(answer)) as runtime:
        session = await runtime.start()
        first = await session.send("how many needles?", inputs={"text": text})
        assert isinstance(first, holdfast.Final)
        assert first.value == [1, size]
        del text
        (message, *_) = await runtime.messages(session.id, limit=1)
        assert len(message.message.text) < 1000  # the model is shown a card, not the text
        settled = resident_bytes()
        for number in range(1, 9):
            store.reset()
            result = await session.send("and on")
            assert isinstance(result, holdfast.Final)
            assert result.value == [number, "needle"]
            assert store.bytes_written < 16 * 1024
            assert store.verbs["get_payload"] == 0
        assert resident_bytes() - settled < 20 * MEGABYTE
    async with await holdfast.open(store, model=ScriptedModel(answer)) as runtime:
        result = await runtime.send(session.id, "and on, elsewhere")
        assert isinstance(result, holdfast.Final)
        assert result.value == [9, "needle"]
    assert resident_bytes() - before < 6 * size
    await store.close()


async def test_sessions_that_wait_for_their_models_keep_their_workers() -> None:
    """A worker started anew for every cell would cost more than the cell."""
    together, size = asyncio.Barrier(12), 12

    async def answer(request: ModelRequest) -> str:
        await together.wait()  # everyone is between two cells now
        return cell("import os\nseen = os.getpid()") if request.ordinal == 0 else cell(last)

    last = "FINAL(seen == os.getpid())"
    model = ScriptedModel(answer)
    async with await holdfast.open(MemorySessionStore(), model=model, kernel="cpython") as runtime:
        sessions = [await runtime.start() for _ in range(size)]
        results = await asyncio.gather(*(session.send("x") for session in sessions))
    assert [getattr(result, "value", result) for result in results] == [True] * size
