"""A cell that goes over a limit is stopped, the session lives, and what was kept is said."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.core import values
from holdfast.kernels.cpython import CpythonKernel
from holdfast.kernels.observation import observe_cell
from holdfast.kernels.port import HostFunction, KernelLimits, KernelSettings
from holdfast.testing.kernel_driver import KernelDriver

SMALL = KernelSettings(
    functions=(HostFunction("lm"),),
    limits=KernelLimits(memory_bytes=300 << 20, cpu_seconds=30, wall_seconds=30),
)
# Generous in what is not under test, so that a busy machine does not decide which limit is met.
TIGHT = {
    "cpu": KernelLimits(cpu_seconds=0.3, wall_seconds=30),
    "wall": KernelLimits(cpu_seconds=30, wall_seconds=0.5),
    "memory": KernelLimits(cpu_seconds=30, wall_seconds=30),
    "output": KernelLimits(output_bytes=100_000),
}
STUBBORN = """
def forever():
    try:
        while True:
            x = [1]
    except BaseException:
        forever()
forever()"""
DEAF = """
import signal
signal.signal(signal.SIGINT, signal.SIG_IGN)
while True: pass"""


@pytest.mark.parametrize(
    ("code", "limit", "kept"),
    [
        ("while True: pass", "cpu", True),
        ("import time\ntime.sleep(60)", "wall", True),
        ("import threading\nthreading.Event().wait()", "wall", True),
        ("import asyncio\nasyncio.run(asyncio.sleep(60))", "wall", True),
        ("sum(range(10**12))", "cpu", False),
        (STUBBORN, "cpu", False),
        (DEAF, "cpu", False),
        ("y = 'a' * 10**9", "memory", True),
        ("l = []\nwhile True: l.append('a' * 10**7)", "memory", False),
        ("while True: print('spam' * 1000)", "output", True),
    ],
)
async def test_a_runaway_cell_is_stopped(
    cpython: CpythonKernel, code: str, limit: str, kept: bool
) -> None:
    driver = await KernelDriver.open(cpython, SMALL)
    await driver.run("x = 1")
    result = await driver.run(f"x = 2\n{code}", limits=TIGHT[limit])
    assert (result.status, result.limit, result.namespace_kept) == ("limit", limit, kept)
    assert await driver.value("x") == (2 if kept else 1)
    shown = observe_cell(result)
    assert ("is kept" if kept else "as they were before") in shown


async def test_time_spent_waiting_for_the_host_counts_for_nothing(cpython: CpythonKernel) -> None:
    async def slow(text: str) -> str:
        await asyncio.sleep(TIGHT["wall"].wall_seconds * 2)
        return text

    driver = await KernelDriver.open(cpython, SMALL, lm=slow)
    result = await driver.run("lm('a')", limits=TIGHT["wall"])
    assert result.status == "ok"


async def test_many_open_files_are_refused(cpython: CpythonKernel) -> None:
    limits = KernelLimits(open_files=32)
    driver = await KernelDriver.open(cpython, KernelSettings(limits=limits))
    code = (
        "import os\ntry:\n    fds = [os.pipe() for _ in range(100)]\n"
        "except OSError as e:\n    n = e.errno\nn"
    )
    assert await driver.value(code) == 24


MANY_THREADS = """
import threading
release, started, why = threading.Event(), [], ""
try:
    for _ in range(50):
        thread = threading.Thread(target=release.wait)
        thread.start()
        started.append(thread)
except RuntimeError as error:
    why = str(error)
release.set()
for thread in started:
    thread.join()
[len(started), why]"""


async def test_many_threads_are_refused_and_other_processes_at_all(cpython: CpythonKernel) -> None:
    limits = KernelLimits(processes=8)
    driver = await KernelDriver.open(cpython, KernelSettings(limits=limits))
    # The main thread is one of the eight; as many can be started again once they have ended.
    for _ in range(2):
        assert await driver.value(MANY_THREADS) == [7, "can't start new thread"]
    result = await driver.run("import os\nos.fork()")
    assert result.error is not None
    assert result.error.type == "PermissionError"


async def test_final_swallowed_by_the_cell_still_ends_it(cpython: CpythonKernel) -> None:
    driver = await KernelDriver.open(cpython, SMALL)
    await driver.run("x = 1")
    code = (
        "x = 2\ntry:\n    FINAL('answer')\nexcept BaseException:\n    import time\n"
        "    time.sleep(60)"
    )
    result = await driver.run(code)
    assert result.status == "final"
    assert result.final is not None
    assert values.decode(result.final.encoding, result.final.data) == "answer"
    swallowed = "x = 3\ntry:\n    FINAL('again')\nexcept BaseException: pass\nwhile"
    result = await driver.run(DEAF.replace("while", swallowed))
    assert result.status == "final"
    assert not result.namespace_kept
    assert await driver.value("x") == 2


async def test_final_from_a_thread_ends_the_cell(cpython: CpythonKernel) -> None:
    driver = await KernelDriver.open(cpython, SMALL)
    code = (
        "import threading, time\nt = threading.Thread(target=lambda: FINAL(5))\nt.start()\n"
        "t.join()\ntime.sleep(30)"
    )
    result = await driver.run(code)
    assert result.status == "final"
    assert result.final is not None
    assert result.final.data == b"5"


async def test_an_interrupt_is_a_keyboard_interrupt_in_the_cell(cpython: CpythonKernel) -> None:
    asked = asyncio.Event()

    async def never(text: str) -> str:
        asked.set()
        return await asyncio.Event().wait() and ""  # type: ignore[return-value]

    driver = await KernelDriver.open(cpython, KernelSettings(functions=SMALL.functions), lm=never)
    running = asyncio.ensure_future(driver.run("done = []\ndone.append(1)\nlm('x')"))
    await asked.wait()
    await driver.session.interrupt()
    result = await running
    assert result.status == "error"
    assert result.error is not None
    assert result.error.type == "Interrupted"
    assert await driver.value("done") == [1]


async def test_an_interrupt_between_cells_does_nothing(cpython: CpythonKernel) -> None:
    driver = await KernelDriver.open(cpython)
    await driver.run("x = 1")
    await driver.session.interrupt()
    assert await driver.value("sum(range(1000))") == 499500


async def test_of_threads_that_call_final_at_once_the_first_one_counts(
    cpython: CpythonKernel,
) -> None:
    for _ in range(5):
        driver = await KernelDriver.open(cpython)
        result = await driver.run(
            "import threading\nstart = threading.Barrier(8)\n"
            "def answer(n):\n    start.wait()\n    FINAL('x' * 50_000 + str(n))\n"
            "threads = [threading.Thread(target=answer, args=(n,)) for n in range(8)]\n"
            "[t.start() for t in threads]\n[t.join() for t in threads]"
        )
        assert result.status == "final"
        assert result.final is not None


async def test_what_a_cell_could_make_within_its_memory_can_be_restored_within_it(
    cpython: CpythonKernel,
) -> None:
    settings = KernelSettings(limits=KernelLimits(memory_bytes=300 << 20))
    driver = await KernelDriver.open(cpython, settings)
    await driver.run("kept = 1\nx = bytearray(110 << 20)")
    assert await (await driver.reopen()).value("(kept, len(x))") == (1, 110 << 20)


async def test_a_variable_that_a_cell_lets_go_makes_room_in_that_cell(
    cpython: CpythonKernel,
) -> None:
    settings = KernelSettings(limits=KernelLimits(memory_bytes=300 << 20))
    driver = await KernelDriver.open(cpython, settings)
    await driver.run("x = bytearray(110 << 20)")
    assert await driver.value("x = None\nx = bytearray(180 << 20)\nlen(x)") == 180 << 20


async def test_descriptors_that_a_cell_lost_are_not_missing_in_the_next(
    cpython: CpythonKernel,
) -> None:
    driver = await KernelDriver.open(cpython, KernelSettings(limits=KernelLimits(open_files=40)))
    result = await driver.run("import os\nkept = [1]\nwhile True:\n    os.dup(1)")
    assert result.error is not None
    assert result.error.type == "OSError"
    assert await driver.value("import decimal\nkept") == [1]


async def test_a_cell_that_ends_well_without_a_descriptor_left_is_kept(
    cpython: CpythonKernel,
) -> None:
    driver = await KernelDriver.open(cpython, KernelSettings(limits=KernelLimits(open_files=40)))
    for _ in range(3):
        result = await driver.run(
            "import os\nkept = ['x' * 70_000, {1, 2}]\ntry:\n    while True:\n        os.dup(1)\n"
            "except OSError:\n    pass"
        )
        assert result.status == "ok"
        assert result.namespace_kept
        assert await driver.value("import decimal\nlen(kept)") == 2


@pytest.mark.parametrize(
    "code",
    [
        "import threading\ndef talk():\n    while True:\n        print('y' * 500)\n"
        "t = threading.Thread(target=talk)\nt.start()\nt.join()\nkept = 2",
        "kept = 2\nprint('\\U0001f600' * 40_000)",
        "kept = 2\ntry:\n    print('x' * 200_000)\nexcept BaseException:\n    pass",
    ],
)
async def test_the_output_limit_counts_bytes_and_holds_in_every_thread(
    cpython: CpythonKernel, code: str
) -> None:
    limits = KernelLimits(output_bytes=100_000)
    driver = await KernelDriver.open(cpython, KernelSettings(limits=limits))
    result = await driver.run(code)
    assert (result.status, result.limit) == ("limit", "output")
    assert "printed more than its output limit" in observe_cell(result)
    assert await driver.value("kept") == 2
