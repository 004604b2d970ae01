"""What kernels cost: starting, a round trip, a host call, checkpoints, restores, many sessions.

Every figure is checked before it is timed. Absolute targets mean an idle machine, so the best of
many runs counts there and in ratios of two times, and of round trips the quickest hundredth. A bare
echo over the same kind of pipe stands beside them: it is what this machine charges for waking two
processes.
"""

from __future__ import annotations

import asyncio
import gc
import hashlib
import importlib.util
import io
import os
import pickle
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

from bench.table import Figure, as_result
from holdfast.core import records, values
from holdfast.kernels.cpython import CpythonKernel
from holdfast.kernels.port import (
    Encoded,
    HostAnswer,
    HostCall,
    HostFunction,
    Kernel,
    KernelSettings,
)
from holdfast.testing.kernel_driver import START_NS, KernelDriver

SETTINGS = KernelSettings(functions=(HostFunction("lm"), HostFunction("child")))
ROWS = "rows = [{'id': i, 'name': f'row {i}', 'score': i * 1.5} for i in range(100_000)]"
CELLS, CALLS = 40, 200
_CALLING = f"for i in range({CALLS}):\n    got = lm(i)\ngot"
_ANSWER = HostAnswer.ok(Encoded(*values.encode("answer")), START_NS)


def run() -> dict[str, object]:
    """Return the figures."""
    return as_result("Kernels", asyncio.run(_figures()))


async def _figures() -> list[Figure]:
    figures = await _starting()
    kernel = CpythonKernel()
    figures += await _round_trips("cpython", kernel, 300, 200)
    figures += await _others()
    figures += await _echo()
    figures += await _checkpoints(kernel)
    figures += await _restores(kernel)
    await kernel.close()
    figures += await _many()
    return figures


async def _times(count: int, action: Callable[[], Awaitable[Any]]) -> list[float]:
    took = []
    for _ in range(count):
        began = time.perf_counter()
        await action()
        took.append(time.perf_counter() - began)
    return took


async def _starting() -> list[Figure]:
    bare, cold, first, warm = [], [], [], []
    for _ in range(20):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-I", "-S", "-c", "pass"], check=True)  # noqa: ASYNC221
        bare.append(time.perf_counter() - began)
        kernel = CpythonKernel()
        began = time.perf_counter()
        driver = await KernelDriver.open(kernel)
        await driver.session.checkpoint()  # the first thing that needs a worker, and asks least
        cold.append(time.perf_counter() - began)
        assert await driver.value("1 + 1") == 2
        await kernel.close()
        kernel = CpythonKernel()
        began = time.perf_counter()
        driver = await KernelDriver.open(kernel)
        assert await driver.value("1 + 1") == 2
        first.append(time.perf_counter() - began)
        await kernel.close()
    kernel = CpythonKernel()
    kernel.pool.fork_server.start()
    await asyncio.sleep(1.0)
    for _ in range(12):
        await asyncio.sleep(0.1)
        began = time.perf_counter()
        driver = await KernelDriver.open(kernel)
        assert await driver.value("1 + 1") == 2
        warm.append(time.perf_counter() - began)
        await driver.session.close()
    await kernel.close()
    return [
        Figure("python -I -S -c pass", min(bare) * 1e3, "ms"),
        Figure(
            "cold start of a confined worker",
            min(cold) / min(bare),
            "× bare",
            at_most=6,
            note=f"best {min(cold) * 1e3:.1f} ms",
        ),
        Figure(
            "first cell, nothing started",
            min(first) / min(bare),
            "× bare",
            note=f"best {min(first) * 1e3:.1f} ms",
        ),
        Figure("first cell of a new session, warm", min(warm) * 1e3, "ms", at_most=10),
    ]


async def _always(call: HostCall) -> HostAnswer:
    return _ANSWER


async def _round_trips(
    name: str, kernel: Kernel, cell: float | None = None, call: float | None = None
) -> list[Figure]:
    driver = await KernelDriver.open(kernel, SETTINGS)
    assert await driver.value("1 + 1") == 2
    session = driver.session

    async def one(code: str) -> None:
        await session.evaluate(code, started_at_ns=START_NS, on_call=_always)

    took = await _times(1500, lambda: one("1 + 1"))
    driver.answers["lm"] = lambda number: number
    assert await driver.value(_CALLING) == CALLS - 1
    asked: list[float] = []
    trips: list[float] = []

    async def on_call(call: HostCall) -> HostAnswer:
        asked.append(time.perf_counter())
        return _ANSWER

    for _ in range(CELLS):
        asked.clear()
        await session.evaluate(_CALLING, started_at_ns=START_NS, on_call=on_call)
        trips += [after - before for before, after in pairwise(asked)]
    assert len(trips) == CELLS * (CALLS - 1)
    await session.close()
    return [
        Figure(
            f"{name}: 1 + 1",
            _quickest(took) * 1e6,
            "µs",
            at_most=cell,
            note=f"median {statistics.median(took) * 1e6:.0f}",
        ),
        Figure(
            f"{name}: host call",
            _quickest(trips) * 1e6,
            "µs",
            at_most=call,
            note=f"from one call to the next; median {statistics.median(trips) * 1e6:.0f}",
        ),
    ]


def _quickest(times: list[float]) -> float:
    """Return what the quickest hundredth stayed below."""
    return statistics.quantiles(times, n=100)[0]


async def _others() -> list[Figure]:
    figures = []
    if importlib.util.find_spec("pydantic_monty") is not None:
        from holdfast.kernels.monty import MontyKernel

        monty = MontyKernel()
        figures += await _round_trips("monty", monty)
        await monty.close()
    if importlib.util.find_spec("RestrictedPython") is not None:
        from RestrictedPython import compile_restricted

        def restricted() -> None:
            assert eval(compile_restricted("1 + 1", "<cell>", "eval"), {}) == 2

        figures.append(Figure("RestrictedPython: 1 + 1", _best(restricted), "µs", note="no worker"))
    if importlib.util.find_spec("smolagents") is not None:
        from smolagents.local_python_executor import LocalPythonExecutor

        executor = LocalPythonExecutor([])
        executor.send_tools({})

        def interpreted() -> None:
            assert executor("1 + 1").output == 2

        figures.append(Figure("smolagents: 1 + 1", _best(interpreted), "µs", note="no worker"))
    return figures


def _best(action: Callable[[], None]) -> float:
    took = []
    for _ in range(200):
        began = time.perf_counter()
        action()
        took.append(time.perf_counter() - began)
    return min(took) * 1e6


async def _echo() -> list[Figure]:
    """Measure a message there and back between this loop and a bare interpreter."""
    (heard, says), (hears, told) = os.pipe(), os.pipe()
    code = (
        "import os, sys\nread, write = map(int, sys.argv[1:])\n"
        "while data := os.read(read, 4096):\n    os.write(write, data)"
    )
    process = subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, "-I", "-S", "-c", code, str(hears), str(says)], pass_fds=(hears, says)
    )
    os.close(hears)
    os.close(says)
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), io.FileIO(heard)
    )

    async def there_and_back() -> None:
        os.write(told, b"x" * 200)
        assert len(await reader.readexactly(200)) == 200

    took = await _times(400, there_and_back)
    os.close(told)
    process.wait()
    transport.close()
    return [Figure("bare echo", min(took) * 1e6, "µs", note="no kernel: the machine's own price")]


async def _checkpoints(kernel: CpythonKernel) -> list[Figure]:
    driver = await KernelDriver.open(kernel)
    await driver.run("text = 'sixteen bytes...' * 655_360\nn = 0")
    assert driver.stored_bytes >= 10 << 20
    beside = await _times(20, lambda: driver.run("n += 1"))
    stored = driver.stored_bytes + len(records.canonical(driver.manifest))
    assert await driver.value("(len(text), n)") == (10 << 20, 20)
    figures = [
        Figure("cell beside 10 MiB of stored text", min(beside) * 1e3, "ms", at_most=5),
        Figure("stored for it", stored / 1e3, "kB", at_most=20),
    ]
    scope: dict[str, Any] = {}
    exec(ROWS, scope)
    many = await KernelDriver.open(kernel)
    await many.run(ROWS)
    whole: list[float] = []
    ours: list[float] = []
    for _ in range(5):
        gc.collect()
        began = time.perf_counter()
        hashlib.sha256(pickle.dumps(scope["rows"], 5)).hexdigest()
        whole.append(time.perf_counter() - began)
        ours += await _times(1, lambda: many.run("rows[7]['id'] += 1"))
        assert many.stored_bytes > 0
    figures.append(
        Figure(
            "cell that changes one of 100,000 dicts",
            min(ours) / min(whole),
            "× dump + sha256",
            at_most=1.5,
            note=f"{min(ours) * 1e3:.0f} ms against {min(whole) * 1e3:.0f} ms",
        )
    )
    return figures


async def _restores(kernel: CpythonKernel) -> list[Figure]:
    driver = await KernelDriver.open(kernel)
    await driver.run(ROWS.replace("100_000", "200_000"))
    scope: dict[str, Any] = {}
    exec(ROWS.replace("100_000", "200_000"), scope)
    data = pickle.dumps(scope["rows"], 5)
    took, loads = [], []
    for _ in range(4):
        began = time.perf_counter()
        loaded = pickle.loads(data)
        loads.append(time.perf_counter() - began)
        await driver.session.park()
        began = time.perf_counter()
        assert await driver.value("len(rows)") == len(loaded)
        took.append(time.perf_counter() - began)
    note = f"{len(data) / 1e6:.0f} MB in {min(took) * 1e3:.0f} ms, with its next checkpoint"
    return [Figure("restore", min(took) / min(loads), "× pickle.loads", at_most=10, note=note)]


async def _many() -> list[Figure]:
    kernel = CpythonKernel(max_workers=4, max_idle=1, idle_seconds=0.2)
    drivers = []
    for number in range(200):
        driver = await KernelDriver.open(kernel)
        await driver.run(f"n = {number}")
        drivers.append(driver)
    await kernel.pool.wait_until_empty()
    held = kernel.pool.size
    assert await drivers[123].value("n") == 123
    for driver in drivers:
        await driver.session.close()

    async def nested(code: str, depth: int) -> Any:
        settings = replace(SETTINGS, depth=depth)
        driver = await KernelDriver.open(kernel, settings, child=lambda c: nested(c, depth + 1))
        try:
            return await driver.value(code)
        finally:
            await driver.session.close()

    code = "'leaf'"
    for _ in range(20):
        code = f"child({code!r})"
    began = time.perf_counter()
    assert await nested(code, 0) == "leaf"
    deep = time.perf_counter() - began
    began = time.perf_counter()
    wide = await asyncio.gather(*(nested(f"child('{n} + 1')", 0) for n in range(200)))
    spread = time.perf_counter() - began
    assert wide == [n + 1 for n in range(200)]
    peak = kernel.pool.peak
    await kernel.close()
    return [
        Figure("workers held by 200 idle sessions", held, "", at_most=0),
        Figure("20 sessions deep", deep, "s", note=f"at most {peak} workers"),
        Figure("200 sessions wide, a child each", spread, "s", note=f"at most {peak} workers"),
    ]
