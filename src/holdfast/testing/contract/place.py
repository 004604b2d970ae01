"""The place under test: where a contract suite opens, reopens and abandons stores."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from holdfast.stores.port import SessionStore

Opener = Callable[[Path], Awaitable[SessionStore]]

_DIE_HOLDING = """
import asyncio, os, sys
from holdfast.stores.choose import open_store
async def main():
    store = await open_store(sys.argv[1])
    await store.acquire(sys.argv[2])
    os._exit(0)
asyncio.run(main())
"""


class Place:
    """Storage that stores are opened on again and again."""

    def __init__(self, opener: Opener, path: Path) -> None:
        self._opener = opener
        self.path = path
        self._open: list[SessionStore] = []

    async def open(self) -> SessionStore:
        """Open one more handle, as another process would."""
        store = await self._opener(self.path)
        self._open.append(store)
        return store

    async def reopen(self, store: SessionStore) -> SessionStore:
        """Close a handle and open a new one on what it left."""
        await store.close()
        return await self.open()

    def sibling(self, name: str) -> Place:
        """Return another, empty place."""
        return Place(self._opener, self.path.parent / f"{self.path.name}-{name}")

    async def close(self) -> None:
        """Close what is still open."""
        for store in self._open:
            await store.close()


class ContractPlace:
    """What a user's suite provides; every chapter of the contract builds on it."""

    pytestmark = pytest.mark.asyncio

    async def open_store(self, path: Path) -> SessionStore:
        """Open a store whose data lives at a path: the same path, the same data."""
        raise TypeError("override open_store(path) to say which store the contract is to prove")

    async def die_holding(self, store: SessionStore, session_id: str) -> None:
        """Take a session's lease as a process that then dies without giving it back."""
        command = [sys.executable, "-c", _DIE_HOLDING, store.flags.url, session_id]
        await asyncio.to_thread(subprocess.run, command, check=True, timeout=60)

    @pytest_asyncio.fixture
    async def place(self, tmp_path: Path) -> AsyncIterator[Place]:
        """Give a test an empty place of its own."""
        place = Place(self.open_store, tmp_path / "store")
        yield place
        await place.close()

    @pytest_asyncio.fixture
    async def store(self, place: Place) -> SessionStore:
        """Give a test one open store."""
        return await place.open()
