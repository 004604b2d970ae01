"""What it costs to wait for people: suspend and resume, many of them after a restart, tool calls.

A round trip is from `send` to `Suspended`, the answer, and the drive that ends the turn, all
durable on SQLite. LangGraph's `interrupt` with SqliteSaver stands beside it where it is installed.
The figures are reported and have no target.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import holdfast
from bench.peers import suspensions
from bench.table import Figure, as_result
from holdfast import Agent, ScriptedModel, tool
from holdfast.core.messages import ToolCall, assistant
from holdfast.runtime import answers
from holdfast.stores.sqlite.store import SqliteSessionStore

ROUNDS, SUSPENSIONS, CALLS = 20, 1000, 200


@tool(executor="human")
def which() -> str:
    """Which one?"""
    return ""


@tool(effect="pure")
async def look() -> str:
    """Look."""
    return "seen"


def _asks(request: Any) -> Any:
    wish = ToolCall(f"x{request.ordinal}", "which", "{}")
    return "done" if request.ordinal % 2 else assistant(wish)


def _looks(request: Any) -> Any:
    wish = ToolCall(f"x{request.ordinal}", "look", "{}")
    return "done" if request.ordinal == CALLS else assistant(wish)


TOOLS = Agent("tools", harness="tools", model=ScriptedModel(_asks, name="asks"), tools=[which])
LOOKS = Agent("looks", harness="tools", model=ScriptedModel(_looks, name="looks"), tools=[look])
CODE = Agent(
    "code",
    model=ScriptedModel(
        lambda request: "```python\nkept = 'x' * 1_000_000\nFINAL(ask('Which?'))\n```", name="code"
    ),
)


def run() -> dict[str, object]:
    """Return the figures of waiting for people."""
    figures: list[Figure] = []
    for part in (_round_trips, _many, _calls):
        with tempfile.TemporaryDirectory() as folder:
            figures += asyncio.run(part(Path(folder)))
    return as_result("people", figures)


async def _round_trips(folder: Path) -> list[Figure]:
    figures = []
    for agent in (TOOLS, CODE):
        async with holdfast.open(folder / agent.name, agents=[agent]) as runtime:
            session = await runtime.start(agent=agent)
            spent = []
            for _ in range(ROUNDS):
                began = time.perf_counter()
                (call_id,) = (await session.send("go")).calls  # type: ignore[union-attr]
                await answers.answer(runtime.store, session.id, call_id, "a")
                await session.resume()
                spent.append((time.perf_counter() - began) * 1000)
            figures.append(
                Figure(f"suspend and resume, {agent.name}", statistics.median(spent), "ms")
            )
    return figures


async def _many(folder: Path) -> list[Figure]:
    store = await SqliteSessionStore.open(folder / "store")
    async with holdfast.open(store, agents=[TOOLS]) as runtime:
        for index in range(SUSPENSIONS):
            session = await runtime.start(session_id=f"s-{index}", agent=TOOLS)
            await session.send("go")
    await store.close()
    store = await SqliteSessionStore.open(folder / "store")
    began = time.perf_counter()
    async with holdfast.open(store, agents=[TOOLS]) as runtime:
        cursor = None
        while True:
            page = await runtime.pending(limit=100, cursor=cursor)
            for wait in page.waits:
                await runtime.answer(wait.session, wait.call_id, "a")
            await runtime.settled()
            cursor = page.cursor
            if cursor is None:
                break
    seconds = time.perf_counter() - began
    await store.close()
    figures = [Figure(f"{SUSPENSIONS} suspensions answered after a restart", seconds, "s")]
    return [*figures, *suspensions(SUSPENSIONS, folder / "langgraph.db", seconds)]


async def _calls(folder: Path) -> list[Figure]:
    async with holdfast.open(folder / "store", agents=[LOOKS], max_steps=CALLS + 5) as runtime:
        session = await runtime.start(agent=LOOKS)
        began = time.perf_counter()
        await session.send("go")
        each = (time.perf_counter() - began) / CALLS * 1000
    return [Figure("a step with one tool call", each, "ms")]
