"""The monty engine keeps the kernel contract."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from holdfast.kernels.monty import MontyKernel
from holdfast.kernels.port import Kernel
from holdfast.testing.kernel_contract import KernelContract


class TestMontyKernel(KernelContract):
    @pytest_asyncio.fixture
    async def kernel(self) -> AsyncIterator[Kernel]:
        kernel = MontyKernel()
        yield kernel
        await kernel.close()
