"""What server tests share: an application over a store in memory, and callers with tokens."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import httpx2
import pytest

import holdfast
from holdfast.models.port import ModelRequest
from holdfast.models.scripted import ScriptedModel
from holdfast.server.access import Access
from holdfast.server.app import create_app
from holdfast.stores.memory.store import MemorySessionStore

BASE = "http://127.0.0.1:8765"
HOSTS = ("127.0.0.1:8765",)


def cell(code: str) -> str:
    return f"```python\n{code}\n```"


ASK = cell("port = ask('Which port?')\nFINAL('to ' + port)")


class House:
    """A server in this process, with the runtime behind it."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack
        self.store = MemorySessionStore()
        self.access = Access()
        self.runtime: Any = None
        self.app: Any = None

    async def open(self, *steps: str, agents: Any = (), **options: Any) -> None:
        def respond(request: ModelRequest) -> str:
            return steps[min(request.ordinal, len(steps) - 1)]

        model = ScriptedModel(respond, name="scripted")
        opened = await holdfast.open(self.store, model=model, kernel="monty", agents=agents)
        self.runtime = await self._stack.enter_async_context(opened)
        self.app = create_app(self.runtime, access=self.access, hosts=HOSTS, **options)
        self._stack.push_async_callback(self.app.state.serving.hub.close)

    def client(self, *rights: str, tenant: str = "default", name: str = "ann") -> Any:
        headers = {}
        if rights:
            _, token = self.access.create(name, rights, tenant)
            headers["authorization"] = f"Bearer {token}"
        transport = httpx2.ASGITransport(self.app)
        return httpx2.AsyncClient(transport=transport, base_url=BASE, headers=headers)


@pytest.fixture
async def house() -> AsyncIterator[House]:
    async with AsyncExitStack() as stack:
        yield House(stack)
