"""Fixtures of the kernel tests."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from holdfast.kernels.cpython import CpythonKernel


@pytest_asyncio.fixture
async def cpython() -> AsyncIterator[CpythonKernel]:
    """Return a cpython kernel that is closed afterwards."""
    kernel = CpythonKernel()
    yield kernel
    await kernel.close()
