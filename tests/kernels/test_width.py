"""Many sessions in one process: each keeps its worker as long as memory allows, without a cliff."""

from __future__ import annotations

import asyncio
import resource

import pytest

from holdfast.kernels.cpython import CpythonKernel, CpythonSession
from holdfast.kernels.pool import default_max_workers
from holdfast.testing.kernel_driver import KernelDriver


def _worker(driver: KernelDriver) -> int | None:
    session = driver.session
    assert isinstance(session, CpythonSession)
    return None if session.worker is None else session.worker.pid


async def _sessions(kernel: CpythonKernel, count: int) -> list[KernelDriver]:
    drivers = [await KernelDriver.open(kernel) for _ in range(count)]
    await asyncio.gather(*(driver.run("n = 0") for driver in drivers))
    return drivers


async def test_eighty_sessions_that_take_turns_all_keep_their_worker(
    cpython: CpythonKernel,
) -> None:
    drivers = await _sessions(cpython, 80)
    before = list(map(_worker, drivers))
    for _ in range(2):
        await asyncio.gather(*(driver.run("n += 1") for driver in drivers))
    assert list(map(_worker, drivers)) == before
    assert cpython.pool.size == 80
    assert [await driver.value("n") for driver in drivers] == [2] * 80


async def test_a_few_sessions_too_many_cost_a_few_of_them_their_worker() -> None:
    kernel = CpythonKernel(max_workers=10)
    drivers = await _sessions(kernel, 12)
    kept = rounds = 0
    for _ in range(10):
        for driver in drivers:
            before = _worker(driver)
            await driver.run("n += 1")
            kept += before is not None and _worker(driver) == before
            rounds += 1
    # The oldest one first, each would have been without one whenever it was its turn.
    assert kept > rounds / 2
    await kernel.close()


async def test_what_workers_hold_is_summed_up_and_given_back(cpython: CpythonKernel) -> None:
    drivers = await _sessions(cpython, 3)
    alone = cpython.pool.held_bytes
    large = await KernelDriver.open(cpython)
    await large.run("data = b'x' * (100 << 20)")
    assert cpython.pool.held_bytes > alone + (90 << 20)
    for driver in (*drivers, large):
        await driver.session.close()
    assert (cpython.pool.size, cpython.pool.held_bytes) == (0, 0)


async def test_a_session_that_gives_up_waiting_for_a_worker_leaves_its_place() -> None:
    kernel = CpythonKernel(max_workers=1)
    busy, other, third = [await KernelDriver.open(kernel) for _ in range(3)]
    running = asyncio.ensure_future(busy.run("import time\ntime.sleep(0.5)"))
    await asyncio.sleep(0.1)
    waiting = asyncio.ensure_future(other.run("1"))
    await asyncio.sleep(0.1)
    waiting.cancel()
    assert (await third.run("2")).status == "ok"
    assert (await running).status == "ok"
    await kernel.close()


def test_the_descriptors_of_the_process_bound_the_workers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (1024, 4096))
    assert default_max_workers() == 256
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (64, 4096))
    assert default_max_workers() == 4
