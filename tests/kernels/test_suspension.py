"""Cells that wait for someone outside, and what their re-runs are served: cpython's own ways."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.core.errors import KernelDied
from holdfast.kernels.cpython import CpythonKernel
from holdfast.kernels.port import HostFunction, KernelSettings
from holdfast.testing.kernel_driver import SUSPEND, KernelDriver

SETTINGS = KernelSettings(functions=(HostFunction("ask"), HostFunction("lm")))


def _suspend(question: str) -> object:
    return SUSPEND


async def test_a_given_up_cell_holds_no_worker(cpython: CpythonKernel) -> None:
    driver = await KernelDriver.open(cpython, SETTINGS, ask=_suspend)
    assert (await driver.run("ask('?')")).status == "waiting"
    assert cpython.pool.size == 0


async def test_a_cell_whose_other_thread_computes_is_not_given_up(cpython: CpythonKernel) -> None:
    driver = await KernelDriver.open(cpython, SETTINGS, ask=_suspend, lm=lambda text: text)
    code = (
        "import threading, time\nasking = threading.Thread(target=ask, args=('?',))\n"
        "asking.start()\nbegun = time.thread_time()\n"
        "while time.thread_time() - begun < 1.5: pass\nlm('computed')\nasking.join()"
    )
    result = await driver.run(code)
    assert result.status == "waiting"
    assert [call.function for call in driver.recorded] == ["lm"]


async def test_a_cell_whose_other_thread_sleeps_is_not_given_up(cpython: CpythonKernel) -> None:
    driver = await KernelDriver.open(cpython, SETTINGS, ask=_suspend, lm=lambda text: text)
    code = (
        "import threading, time\nasking = threading.Thread(target=ask, args=('?',))\n"
        "asking.start()\ntime.sleep(2)\nlm('slept')\nasking.join()"
    )
    result = await driver.run(code)
    assert result.status == "waiting"
    assert [call.function for call in driver.recorded] == ["lm"]


async def test_a_waiting_cell_that_was_parked_goes_on_when_it_is_answered(
    cpython: CpythonKernel,
) -> None:
    driver = await KernelDriver.open(cpython, SETTINGS, ask=_suspend)
    running = asyncio.ensure_future(driver.run("x = ask('?')\nx", give_up_seconds=None))
    await driver.asked.wait()
    await driver.session.park()
    await cpython.pool.wait_until_empty()
    driver.resolve(next(iter(driver.suspended)), "late")
    assert (await running).status == "ok"
    assert await driver.value("x") == "late"


async def test_a_waiting_cell_that_was_parked_can_be_given_up(cpython: CpythonKernel) -> None:
    driver = await KernelDriver.open(cpython, SETTINGS, ask=_suspend)
    running = asyncio.ensure_future(driver.run("x = ask('?')", give_up_seconds=None))
    await driver.asked.wait()
    await driver.session.park()
    await cpython.pool.wait_until_empty()
    assert await driver.session.give_up()
    result = await running
    assert result.status == "waiting"
    assert len(result.waiting) == 1


async def test_the_error_of_a_worker_that_died_names_the_calls_made(
    cpython: CpythonKernel,
) -> None:
    def end(text: str) -> str:
        worker = driver.session.worker  # type: ignore[attr-defined]
        os.kill(worker.pid, signal.SIGKILL)
        return text

    driver = await KernelDriver.open(cpython, SETTINGS, lm=end)
    with pytest.raises(KernelDied) as caught:
        await driver.run("lm('a')\nimport time\ntime.sleep(30)")
    assert list(caught.value.details["calls"]) == [driver.recorded[0].key]


READS = {
    "open": "open(path).read()",
    "open bytes": "open(path, 'rb').read().decode()",
    "pathlib": "__import__('pathlib').Path(path).read_text()",
    "io.open": "__import__('io').open(path).read()",
    "os.open": "os.read(os.open(path, os.O_RDONLY), 100).decode()",
    "linecache": "__import__('linecache').getline(path, 1).rstrip()",
    "fileinput": "''.join(__import__('fileinput').input(path))",
    "mmap": "bytes(__import__('mmap').mmap(os.open(path, os.O_RDONLY), 0, prot=1)).decode()",
    "name": "(lambda f: f.read() if f.name == path else '')(open(path))",
}


@pytest.mark.parametrize("way", READS)
async def test_a_rerun_reads_what_the_cell_had_read_in_whichever_way(
    cpython: CpythonKernel, tmp_path: Path, way: str
) -> None:
    path = tmp_path / "data.txt"
    path.write_text("as it was")
    settings = replace(SETTINGS, read_roots=(str(tmp_path),))
    driver = await KernelDriver.open(cpython, settings, ask=_suspend)
    driver.keeps_files = True
    code = f"import os\npath = {str(path)!r}\ntext = {READS[way]}\nask(text)\ntext"
    result = await driver.run(code)
    assert result.status == "waiting", result.error
    path.write_text("as it is now, and longer")
    driver.resolve(result.waiting[0], None)
    result = await driver.run(code, recorded=driver.record)
    assert result.status == "ok", (result.detail, result.error)
    assert await driver.value("text") == "as it was"
    assert await driver.value("open(path).read()") == "as it is now, and longer"


async def test_a_file_that_was_removed_since_is_still_served(
    cpython: CpythonKernel, tmp_path: Path
) -> None:
    path = tmp_path / "data.txt"
    path.write_text("as it was")
    settings = replace(SETTINGS, read_roots=(str(tmp_path),))
    driver = await KernelDriver.open(cpython, settings, ask=_suspend)
    driver.keeps_files = True
    code = f"text = open({str(path)!r}).read()\nask(text)"
    result = await driver.run(code)
    path.unlink()
    driver.resolve(result.waiting[0], None)
    assert (await driver.run(code, recorded=driver.record)).status == "ok"
    assert await driver.value("text") == "as it was"


async def test_a_file_whose_content_was_not_kept_must_be_as_it_was(
    cpython: CpythonKernel, tmp_path: Path
) -> None:
    path = tmp_path / "data.txt"
    path.write_text("as it was")
    settings = replace(SETTINGS, read_roots=(str(tmp_path),))
    driver = await KernelDriver.open(cpython, settings, ask=_suspend)
    code = f"text = open({str(path)!r}).read()\nask('?')"
    result = await driver.run(code)
    path.write_text("as it is now")
    driver.resolve(result.waiting[0], None)
    result = await driver.run(code, recorded=driver.record)
    assert result.status == "diverged"
    assert "data.txt" in result.detail
    assert len(result.calls) == 1


async def test_a_parked_cell_sees_the_files_that_it_saw(
    cpython: CpythonKernel, tmp_path: Path
) -> None:
    path = tmp_path / "data.txt"
    path.write_text("as it was")
    settings = replace(SETTINGS, read_roots=(str(tmp_path),))
    driver = await KernelDriver.open(cpython, settings, ask=_suspend)
    driver.keeps_files = True
    code = f"text = open({str(path)!r}).read()\nask('?')\ntext"
    running = asyncio.ensure_future(driver.run(code, give_up_seconds=None))
    await driver.asked.wait()
    await driver.session.park()
    await cpython.pool.wait_until_empty()
    path.write_text("as it is now")
    driver.resolve(next(iter(driver.suspended)), None)
    assert (await running).status == "ok"
    assert await driver.value("text") == "as it was"
