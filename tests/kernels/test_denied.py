"""What a confined cell is told when a gate of its capability refuses what it tried."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.kernels.cpython import CpythonKernel
from holdfast.kernels.monty import MontyKernel
from holdfast.kernels.observation import observe_cell
from holdfast.kernels.port import KernelSettings
from holdfast.testing.kernel_driver import KernelDriver

NETWORK = "network is not allowed in a cell: capability gate network_hosts"
PROGRAMS = "other processes are not allowed in a cell: capability gate shell_commands"
WRITING = "writing files is not allowed in a cell: capability gate write_roots"
READING = "reading this is not allowed: capability gate read_roots"


@pytest.mark.parametrize(
    ("code", "gate"),
    [
        ("import socket\nsocket.socket()", NETWORK),
        ("import socket\nsocket.create_connection(('127.0.0.1', 80))", NETWORK),
        ("import urllib.request\nurllib.request.urlopen('http://example.org')", NETWORK),
        ("import asyncio\nawait asyncio.open_connection('127.0.0.1', 80)", NETWORK),
        ("import os\nos.fork()", PROGRAMS),
        ("import subprocess\nsubprocess.run(['ls'])", PROGRAMS),
        ("open('{area}/new.txt', 'w')", WRITING),
        ("open('{area}/there.txt', 'a')", WRITING),
        ("from pathlib import Path\nPath('{area}/new').mkdir()", WRITING),
        ("open('/etc/passwd').read()", READING),
        ("import os\nos.listdir('/root')", READING),
    ],
)
async def test_a_denied_gate_is_named(
    cpython: CpythonKernel, tmp_path: Path, code: str, gate: str
) -> None:
    (tmp_path / "there.txt").write_text("there")
    settings = KernelSettings(read_roots=(str(tmp_path),))
    driver = await KernelDriver.open(cpython, settings)
    result = await driver.run(code.format(area=tmp_path))
    assert result.error is not None
    assert gate in result.error.traceback
    assert gate in observe_cell(result)


@pytest.mark.parametrize(
    ("code", "gate"),
    [
        ("import socket", NETWORK),
        ("import subprocess", PROGRAMS),
        ("from pathlib import Path\nPath('{area}/new.txt').write_text('x')", WRITING),
        ("from pathlib import Path\nPath('/etc/passwd').read_text()", READING),
        ("open('/etc/passwd').read()", READING),
        ("import nowhere", None),
        ("raise PermissionError('my own')", None),
    ],
)
async def test_a_denied_gate_is_named_in_the_sandbox_of_monty(
    tmp_path: Path, code: str, gate: str | None
) -> None:
    monty = MontyKernel()
    try:
        driver = await KernelDriver.open(monty, KernelSettings(read_roots=(str(tmp_path),)))
        result = await driver.run(code.format(area=tmp_path))
    finally:
        await monty.close()
    assert result.error is not None
    if gate is None:
        assert "capability gate" not in observe_cell(result)
    else:
        assert gate in observe_cell(result)


@pytest.mark.parametrize(
    "code",
    [
        "open('{area}/none.txt')",
        "raise PermissionError('my own')",
        "1 / 0",
        "raise OSError(1, 'x')",
    ],
)
async def test_another_error_names_no_gate(
    cpython: CpythonKernel, tmp_path: Path, code: str
) -> None:
    driver = await KernelDriver.open(cpython, KernelSettings(read_roots=(str(tmp_path),)))
    result = await driver.run(code.format(area=tmp_path))
    assert result.error is not None
    assert "capability gate" not in result.error.traceback
