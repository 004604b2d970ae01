"""The OpenAI Agents SDK's side: its `SQLiteSession`, which keeps messages and no run."""

from __future__ import annotations

import asyncio
from pathlib import Path

from agents import SQLiteSession

from bench.side_by_side.work import (
    ASSISTANT_BYTES,
    USER_BYTES,
    Case,
    Figures,
    Size,
    check,
    late_ms,
    stored,
    text,
    timed,
)


async def _turns(place: Path, size: Size) -> Figures:
    session = SQLiteSession("t", place / "session.db")
    took: list[float] = []
    for number in range(size.turns):
        with timed(took):  # as its runner does: read the history, then add what was said
            await session.get_items()
            user = {"role": "user", "content": text(2 * number, USER_BYTES)}
            reply = {"role": "assistant", "content": text(2 * number + 1, ASSISTANT_BYTES)}
            await session.add_items([user])  # type: ignore[list-item]
            await session.add_items([reply])  # type: ignore[list-item]
    found = [str(item["content"]) for item in await session.get_items()]  # type: ignore[typeddict-item]
    check(found, size.turns)
    session.close()
    return {"seconds": sum(took), "ms at the end": late_ms(took), "bytes": stored(place)}


async def _blob(place: Path, size: Size) -> Figures:
    session = SQLiteSession("t", place / "session.db")
    blob = text(1, size.blob)
    for _ in range(size.blob_turns):
        await session.add_items([{"role": "user", "content": blob}])
    assert len(await session.get_items()) == size.blob_turns
    session.close()
    return {"times its size": stored(place) / size.blob}


def cases() -> dict[str, Case]:
    """Return the cases by name."""
    return {
        "B1": lambda place, size: asyncio.run(_turns(place, size)),
        "B9": lambda place, size: asyncio.run(_blob(place, size)),
    }
