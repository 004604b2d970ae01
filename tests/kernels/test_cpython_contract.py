"""The cpython engine keeps the kernel contract."""

from __future__ import annotations

import pytest

from holdfast.kernels.cpython import CpythonKernel
from holdfast.kernels.port import Kernel
from holdfast.testing.kernel_contract import KernelContract


class TestCpythonKernel(KernelContract):
    @pytest.fixture
    def kernel(self, cpython: CpythonKernel) -> Kernel:
        return cpython
