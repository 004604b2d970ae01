"""Workers are scarce, sessions are not: idle ones hold none, waiting cells give theirs back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest_asyncio

from holdfast.kernels.cpython import CpythonKernel, CpythonSession
from holdfast.kernels.port import HostFunction, KernelSettings
from holdfast.testing.kernel_driver import KernelDriver

SETTINGS = KernelSettings(functions=(HostFunction("ask"), HostFunction("child")))


@pytest_asyncio.fixture
async def narrow() -> AsyncIterator[CpythonKernel]:
    """Return a kernel with room for two workers."""
    kernel = CpythonKernel(max_workers=2, max_idle=1, idle_seconds=0.2)
    yield kernel
    await kernel.close()


def _holds_worker(driver: KernelDriver) -> bool:
    session = driver.session
    assert isinstance(session, CpythonSession)
    return session.worker is not None


async def test_idle_sessions_hold_no_worker(narrow: CpythonKernel) -> None:
    drivers = []
    for number in range(30):
        driver = await KernelDriver.open(narrow)
        await driver.run(f"n = {number}")
        drivers.append(driver)
    assert sum(map(_holds_worker, drivers)) <= 1
    async with asyncio.timeout(10):
        await narrow.pool.wait_until_empty()
    assert not any(map(_holds_worker, drivers))
    assert await drivers[17].value("n") == 17
    assert narrow.pool.peak <= 2


async def test_a_waiting_cell_is_parked_and_goes_on_with_its_answer(cpython: CpythonKernel) -> None:
    asked, answer = asyncio.Event(), asyncio.get_running_loop().create_future()

    async def ask(text: str) -> Any:
        if text == "first":
            return 1
        asked.set()
        return await answer

    driver = await KernelDriver.open(cpython, SETTINGS, ask=ask)
    running = asyncio.ensure_future(
        driver.value("trail = []\nfor q in ('first', 'second'):\n    trail.append(ask(q))\ntrail")
    )
    await asked.wait()
    await driver.session.park()
    await asyncio.sleep(0.05)
    assert not _holds_worker(driver)
    answer.set_result(2)
    assert await running == [1, 2]
    assert [call.function for call in driver.recorded] == ["ask", "ask"]


async def test_a_cell_that_waits_for_long_gives_its_worker_back() -> None:
    kernel = CpythonKernel(park_seconds=0.1)
    asked, answer = asyncio.Event(), asyncio.get_running_loop().create_future()

    async def ask(text: str) -> Any:
        asked.set()
        return await answer

    driver = await KernelDriver.open(kernel, SETTINGS, ask=ask)
    running = asyncio.ensure_future(driver.value("before = 1\n[before, ask('person')]"))
    await asked.wait()
    async with asyncio.timeout(10):
        await kernel.pool.wait_until_empty()
    answer.set_result("yes")
    assert await running == [1, "yes"]
    await kernel.close()


async def test_a_running_cell_is_not_parked(cpython: CpythonKernel) -> None:
    driver = await KernelDriver.open(cpython)
    running = asyncio.ensure_future(driver.value("import time\ntime.sleep(0.3)\n'done'"))
    await asyncio.sleep(0.1)
    await driver.session.park()
    assert await running == "done"


async def test_a_cell_on_its_way_to_its_worker_is_not_parked(cpython: CpythonKernel) -> None:
    driver = await KernelDriver.open(cpython)
    await driver.run(
        "class C:\n    def __setstate__(self, state):\n        self.b = 2\nc = C()\nc.a = 1"
    )
    for _ in range(4):
        await driver.session.park()
        running = asyncio.ensure_future(driver.value("c.b"))
        for _ in range(50):  # moments of its way: before it has a worker, and while that starts
            await asyncio.sleep(0.001)
            if driver.session._run is None:
                await driver.session.park()
        assert await running == 2


class Family:
    """Sessions that call sessions, as a runtime nests them."""

    def __init__(self, kernel: CpythonKernel) -> None:
        self.kernel = kernel
        self.opened = 0

    async def run(self, code: str, depth: int) -> Any:
        self.opened += 1
        driver = await KernelDriver.open(
            self.kernel,
            replace(SETTINGS, depth=depth),
            child=lambda code: self.run(code, depth + 1),
        )
        try:
            return await driver.value(code)
        finally:
            await driver.session.close()


async def test_nesting_twenty_deep_finishes_with_two_workers(narrow: CpythonKernel) -> None:
    family = Family(narrow)
    code = "'leaf'"
    for level in range(20):
        code = f"before = {level}\nfound = child({code!r})\n[before, found]"
    found = await family.run(code, 0)
    for level in reversed(range(20)):
        assert found[0] == level
        found = found[1]
    assert found == "leaf"
    assert narrow.pool.peak <= 2


async def test_a_wide_fan_out_finishes_with_two_workers(narrow: CpythonKernel) -> None:
    family = Family(narrow)
    code = (
        "from concurrent.futures import ThreadPoolExecutor\n"
        "with ThreadPoolExecutor(20) as pool:\n"
        "    out = sum(pool.map(child, [f'{n} * 2' for n in range(40)]))\nout"
    )
    assert await family.run(code, 0) == 1560
    assert family.opened == 41
    assert narrow.pool.peak <= 2


MEMORY_BYTES, CELL_BYTES = 64 << 20, 24 << 20


@pytest_asyncio.fixture
async def small() -> AsyncIterator[CpythonKernel]:
    """Return a kernel with little memory for many workers."""
    kernel = CpythonKernel(max_workers=30, max_idle=30, memory_bytes=MEMORY_BYTES)
    yield kernel
    await kernel.close()


def _held_bytes(drivers: list[KernelDriver]) -> int:
    sessions = [driver.session for driver in drivers]
    workers = [s.worker for s in sessions if isinstance(s, CpythonSession) and s.worker]
    return sum(worker.private_bytes() for worker in workers)


async def test_idle_sessions_give_their_workers_back_at_the_memory_cap(
    small: CpythonKernel,
) -> None:
    drivers: list[KernelDriver] = []
    for number in range(8):
        driver = await KernelDriver.open(small)
        drivers.append(driver)
        await driver.run(f"data = bytes([{number}]) * {CELL_BYTES}")
        assert _holds_worker(driver)
        # Room is made when a worker is asked for: the last one may grow beyond the cap.
        assert _held_bytes(drivers[:-1]) <= MEMORY_BYTES
    assert sum(map(_holds_worker, drivers)) >= 2
    assert [await driver.value("data[0]") for driver in drivers] == list(range(8))


async def test_nested_sessions_stay_within_the_memory_cap(small: CpythonKernel) -> None:
    drivers: list[KernelDriver] = []
    held: list[int] = []

    async def level(depth: int) -> int:
        held.append(_held_bytes(drivers))
        driver = await KernelDriver.open(
            small, replace(SETTINGS, depth=depth), child=lambda: level(depth + 1)
        )
        drivers.append(driver)
        below = "0" if depth == 8 else "child()"
        code = f"data = b'x' * {CELL_BYTES}\nbelow = {below}\nlen(data) // {CELL_BYTES} + below"
        return int(await driver.value(code))

    assert await level(0) == 9
    assert CELL_BYTES < max(held) <= MEMORY_BYTES + 2 * CELL_BYTES


async def test_the_cheapest_waiting_cell_gives_way(narrow: CpythonKernel) -> None:
    release = asyncio.Event()
    waiting = asyncio.Semaphore(0)

    async def ask(text: str) -> str:
        waiting.release()
        await release.wait()
        return text

    cheap = await KernelDriver.open(narrow, SETTINGS, ask=ask)
    dear = await KernelDriver.open(narrow, SETTINGS, ask=ask)
    tasks = [
        asyncio.ensure_future(dear.value("sum(range(3_000_000))\nask('dear')")),
        asyncio.ensure_future(cheap.value("ask('cheap')")),
    ]
    for _ in tasks:
        await waiting.acquire()
    third = await KernelDriver.open(narrow)
    assert await third.value("1 + 1") == 2
    assert _holds_worker(dear)
    assert not _holds_worker(cheap)
    release.set()
    assert await asyncio.gather(*tasks) == ["dear", "cheap"]


async def test_deeper_sessions_are_served_first() -> None:
    kernel = CpythonKernel(max_workers=1)
    order: list[int] = []
    first = await KernelDriver.open(kernel)
    await first.run("import time")
    busy = asyncio.ensure_future(first.run("time.sleep(0.4)"))
    await asyncio.sleep(0.1)

    async def run(depth: int) -> None:
        driver = await KernelDriver.open(kernel, KernelSettings(depth=depth))
        await driver.run("1")
        order.append(depth)
        await driver.session.close()

    await asyncio.gather(busy, *(run(depth) for depth in (1, 5, 3)))
    assert order == [5, 3, 1]
    await kernel.close()
