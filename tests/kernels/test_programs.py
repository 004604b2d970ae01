"""Programs as models write them run on the cpython engine, and survive the loss of their worker."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from program_corpus import ANSWERS, SETTINGS, Program, read_programs

from holdfast.kernels.cpython import CpythonKernel
from holdfast.testing.kernel_driver import KernelDriver

PROGRAMS = read_programs()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def kernel() -> AsyncIterator[CpythonKernel]:
    kernel = CpythonKernel(max_idle=1)
    yield kernel
    await kernel.close()


def test_the_corpus_is_large_enough() -> None:
    assert len(PROGRAMS) >= 140
    assert len({program.name for program in PROGRAMS}) == len(PROGRAMS)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
async def test_a_program_gives_its_value_again_after_its_worker_is_gone(
    kernel: CpythonKernel, program: Program
) -> None:
    driver = await KernelDriver.open(kernel, SETTINGS, **ANSWERS)
    assert await driver.value(program.code) == program.expected
    if program.repeatable:
        await driver.reopen()
        assert await driver.value(program.last_expression) == program.expected
    await driver.session.close()
