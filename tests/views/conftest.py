"""What tests of views share: a store, and sessions whose logs are written by hand."""

from __future__ import annotations

import pytest

from holdfast.stores.memory.store import MemorySessionStore


@pytest.fixture
async def store():
    opened = MemorySessionStore()
    yield opened
    await opened.close()
