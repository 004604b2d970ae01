"""What runtime tests share: a scripted model as a plain function of the request, and a runtime."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

import holdfast
from holdfast.models.port import ModelRequest
from holdfast.models.scripted import ScriptedModel
from holdfast.runtime.replay import replay_tree
from holdfast.stores.memory.store import MemorySessionStore
from holdfast.stores.port import SessionStore

REPLAYED = frozenset(
    f"test_{name}"
    for name in (
        *("turns", "leaves", "children", "children_budget", "tools_harness", "suspension"),
        *("compaction", "tool_calls", "outputs", "forks", "forks_in_turns", "budget"),
        *("upgrades", "sessions", "agent_tools", "child_values", "child_waits"),
    )
)
"""The modules whose sessions are executed again from their logs after each test."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let the sessions of every test run on a kernel that the test did not ask for."""
    parser.addoption("--lab-kernel", default="", help="the kernel of sessions that name none")


def cell(code: str) -> str:
    """Return a reply with one code block."""
    return f"```python\n{code}\n```"


def replies(*steps: str, leaf: Callable[[str], str] = lambda prompt: f"<{prompt}>") -> Any:
    """Return a responder that serves steps by ordinal and leaves by a function of the prompt."""

    def respond(request: ModelRequest) -> str:
        return leaf(request.prompt) if request.purpose == "leaf" else steps[request.ordinal]

    return respond


class Lab:
    """Opens runtimes on one store, so that a test can close one and open the next."""

    def __init__(self, stack: AsyncExitStack, store: SessionStore, kernel: str = "") -> None:
        self._stack = stack
        self._options = {"kernel": kernel} if kernel else {}
        self.store = store
        self.requests: list[ModelRequest] = []

    async def open(self, responder: Any, **options: Any) -> holdfast.Runtime:
        def heard(request: ModelRequest) -> Any:
            self.requests.append(request)
            return responder(request)

        model = ScriptedModel(heard, name="scripted")
        runtime = await holdfast.open(self.store, model=model, **(self._options | options))
        return await self._stack.enter_async_context(runtime)

    async def types(self, session_id: str) -> list[str]:
        return [event.type for event in await self.store.read_events(session_id)]

    async def facts(self, session_id: str, kind: str) -> list[Any]:
        events = await self.store.read_events(session_id, types=[kind])
        return [event.fact() for event in events]


@pytest.fixture
async def lab(request: pytest.FixtureRequest) -> AsyncIterator[Lab]:
    async with AsyncExitStack() as stack:
        made = Lab(
            stack, MemorySessionStore(), request.config.getoption("--lab-kernel", default="")
        )
        yield made
    if request.module.__name__.rpartition(".")[2] in REPLAYED:
        await replay_all(made.store)


async def replay_all(store: SessionStore) -> None:
    """Replay every session that a test left in its store, its children and failures included."""
    for info in (await store.list_sessions()).sessions:
        if info.kind == "child" or info.turns == 0 or await store.erased(info.id):
            continue  # replayed with its parent, or not whole any more
        for report in await replay_tree(store, info.id):
            assert report.difference is None, report
