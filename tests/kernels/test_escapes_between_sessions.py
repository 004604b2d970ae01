"""Sessions of one kernel share processes' origins, never each other's rights or names."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.kernels.cpython import CpythonKernel
from holdfast.kernels.port import KernelSettings
from holdfast.testing.kernel_driver import KernelDriver


@pytest.fixture
def areas() -> Iterator[list[Path]]:
    with tempfile.TemporaryDirectory() as name:
        made = [Path(name).resolve() / str(number) for number in range(3)]
        for area in made:
            area.mkdir()
            (area / "file").write_text(area.name)
        yield made


async def test_no_session_reads_what_was_granted_to_another(
    cpython: CpythonKernel, areas: list[Path]
) -> None:
    # Workers are forked from one process: a rule that one adds must not reach the next.
    drivers = [
        await KernelDriver.open(cpython, KernelSettings(read_roots=(str(area),))) for area in areas
    ]
    for driver, own in zip(drivers, areas, strict=True):
        assert await driver.value(f"open({str(own / 'file')!r}).read()") == own.name
    for driver, own in zip(drivers, areas, strict=True):
        for other in areas:
            if other != own:
                result = await driver.run(f"open({str(other / 'file')!r}).read()")
                assert result.error is not None
                assert result.error.type == "PermissionError"


async def test_no_session_signals_or_sees_into_another(cpython: CpythonKernel) -> None:
    victim = await KernelDriver.open(cpython)
    pid = await victim.value("secret = 'of the victim'\nimport posix\nposix.getpid()")
    attacker = await KernelDriver.open(cpython)
    code = f"import os\nos.kill({pid}, 9)"
    for attempt in (code, f"open('/proc/{pid}/mem', 'rb')", f"open('/proc/{pid}/environ')"):
        result = await attacker.run(attempt)
        assert result.error is not None
        assert result.error.type == "PermissionError"
    assert await victim.value("secret") == "of the victim"


async def test_a_cell_cannot_reach_the_process_that_workers_come_from(
    cpython: CpythonKernel,
) -> None:
    driver = await KernelDriver.open(cpython)
    result = await driver.run("import os\nos.kill(os.getppid(), 9)")
    assert result.error is not None
    assert result.error.type == "PermissionError"
    another = await KernelDriver.open(cpython)
    assert await another.value("1 + 1") == 2
