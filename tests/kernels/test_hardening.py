"""Hostile workers and exhausted machines: what they cost the host, and how they end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import threading
import time
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from holdfast.core.errors import (
    KernelDied,
    KernelProtocolError,
    NotRestorable,
    WorkerRefused,
)
from holdfast.kernels import fork_server
from holdfast.kernels.cpython import CpythonKernel
from holdfast.kernels.monty import MontyKernel
from holdfast.kernels.port import HostFunction, KernelLimits, KernelSettings
from holdfast.testing.kernel_driver import KernelDriver

SETTINGS = KernelSettings(functions=(HostFunction("lm"),))
FIND = (
    "import gc, os\nobjects = gc.unfreeze() or gc.get_objects()\n"
    "def find(name): return next(o for o in objects if type(o).__name__ == name)\n"
)
# Under load a loop is late without anybody's fault; what is tested here took ten times as long.
LATE_SECONDS = 3.0
# The aim is 100 ms of work; a core that others use, too, takes longer for the same.
BLOCKED_SECONDS = 0.15


@pytest_asyncio.fixture
async def monty() -> AsyncIterator[MontyKernel]:
    """Return a monty kernel that is closed afterwards."""
    kernel = MontyKernel()
    yield kernel
    await kernel.close()


@asynccontextmanager
async def _punctual_loop() -> AsyncIterator[None]:
    """Fail if something held up the event loop meanwhile, by its own work or by the lock of all."""
    loop = asyncio.get_running_loop()
    latest = longest = 0.0

    async def watch() -> None:
        nonlocal latest, longest
        while True:
            before, worked = loop.time(), time.thread_time()
            await asyncio.sleep(0.01)
            latest = max(latest, loop.time() - before)
            longest = max(longest, time.thread_time() - worked)

    watching = asyncio.ensure_future(watch())
    try:
        yield
    finally:
        watching.cancel()
    assert latest < LATE_SECONDS
    assert longest < BLOCKED_SECONDS


@pytest.mark.parametrize("members", [1_300, 2_000])
async def test_members_made_to_collide_do_not_stall_the_host(
    cpython: CpythonKernel, members: int
) -> None:
    driver = await KernelDriver.open(cpython, SETTINGS, lm=lambda x: None)
    code = FIND + (
        "fd = find('Channel').outgoing\nstart = ','.join(['999'] * 700)\n"
        'members = \',\'.join(\'{"$tuple":[%s,{"$int":"%s"}]}\' % (start, hex(k * (2**61 - 1)))\n'
        f"    for k in range(1, {members + 1}))\n"
        'arguments = \'{"args":[{"$set":[%s]}],"kwargs":{}}\' % members\n'
        'body = (\'{"kind":"call","id":1,"function":"lm","files":[],"threads":1,"arguments":%s}\'\n'
        "    % arguments).encode()\n"
        "data = b'\\0' + len(body).to_bytes(4, 'big') + body\n"
        "while data: data = data[os.write(fd, data):]\nimport time\ntime.sleep(2)"
    )
    async with _punctual_loop():
        # Too many parts are answered with an error, like those of an honest cell.
        with contextlib.suppress(KernelProtocolError):
            await driver.run(code)


COLLIDING = "{(999,) * 700 + (k * (2**61 - 1),) for k in range(1, 701)}"
LEFT_BEHIND = {
    "a set": f"held = {COLLIDING}\nNone",
    "the keys of a dict in a list": f"held = [dict.fromkeys({COLLIDING})]\nNone",
    "a set in a member": f"held = {{frozenset({COLLIDING})}}\nNone",
    "whole numbers": "held = {k * (2**61 - 1) for k in range(40_000)}\nNone",
    "a type of the cell": (
        f"held = {COLLIDING}\nclass Kind:\n    __name__ = 'int'\n"
        "_holdfast_type = type = lambda value: Kind()\nNone"
    ),
    "a listing of the cell": f"held = {COLLIDING}\nlocals = lambda: {{'held': held}}\nNone",
    "a kind of the cell": (
        f"held = {COLLIDING}\nclass Kind:\n    __name__ = held\n"
        "_holdfast_type = lambda value: Kind()\nNone"
    ),
}


@pytest.mark.parametrize("code", LEFT_BEHIND.values(), ids=LEFT_BEHIND)
async def test_members_made_to_collide_stay_in_the_sandbox_of_monty(
    monty: MontyKernel, code: str
) -> None:
    driver = await KernelDriver.open(monty, SETTINGS)
    async with _punctual_loop():
        result = await driver.run(code)
    assert (result.status, result.namespace_kept) == ("ok", True)
    await driver.reopen()
    # What the host does not read is in the heap, so the next cell still has it.
    assert await driver.value("len([held][0]) > 0") is True


# Numbers share a hash in the host alone, so the sandbox makes this at once.
HELD = "held = {k * (2**61 - 1) for k in range(30_000)}\n"
BOMB = "bomb = [1]\nfor _ in range(40):\n    bomb = [bomb, bomb]\n"
HOLDER = HELD + "class Holder:\n    pass\nholder = Holder()\nholder.held = held\n"
HANDED_OUT = {
    "the last expression": (HELD + "held", "ok"),
    "an instance as the last expression": (HOLDER + "holder", "ok"),
    "FINAL": (HELD + "FINAL(held)", "ValueError"),
    "FINAL of an instance": (HOLDER + "FINAL([holder])", "TypeError"),
    "an argument": (HELD + "lm(held)", "ValueError"),
    "a named argument": (HELD + "lm('q', given={'x': [held]})", "ValueError"),
    "an argument of a module's function": (HELD + "import tools\ntools.find(held)", "ValueError"),
    "a function by another name": (HELD + "ask = lm\nask(held)", "ValueError"),
    "a function in code that is made": (HELD + "exec('lm(held)')", "ValueError"),
    "a name that the host does not know": (HELD + "nothing(held)", "NameError"),
    "a name of the engine": (HELD + "_holdfast_final(held)", "NameError"),
    "inspect": (HELD + "inspect(held)", "ok"),
    "the default of a variable": (HELD + "import os\nos.getenv('HOME', held)", "RuntimeError"),
    "a set in a member": (HELD + "lm({frozenset(held)})", "ValueError"),
    "long members": (f"lm({COLLIDING})", "ValueError"),
    "an argument that doubles itself": (BOMB + "lm(bomb)", "ValueError"),
    "a display of the cell": (HELD + "_holdfast_show = lambda value: [0, value]\nheld", "ok"),
}


@pytest.mark.parametrize(("code", "ending"), HANDED_OUT.values(), ids=HANDED_OUT)
async def test_values_that_a_cell_of_monty_hands_out_do_not_stall_the_host(
    monty: MontyKernel, code: str, ending: str
) -> None:
    functions = (HostFunction("lm"), HostFunction("find", "tools"))
    settings = KernelSettings(functions=functions)
    driver = await KernelDriver.open(
        monty, settings, lm=lambda *_, **__: None, **{"tools.find": lambda *_: None}
    )
    async with _punctual_loop():
        result = await driver.run(code)
    assert (result.error.type if result.error else result.status) == ending
    assert result.namespace_kept
    assert await driver.value("40 + 2") == 42


async def test_many_ordinary_keys_leave_the_sandbox_of_monty(monty: MontyKernel) -> None:
    driver = await KernelDriver.open(monty, SETTINGS)
    result = await driver.run("grid = {(x, y): x * y for x in range(90) for y in range(90)}\nNone")
    assert result.checkpoint is not None
    assert result.checkpoint.manifest["heap"] is None
    await driver.reopen()
    assert await driver.value("(len(grid), grid[(8, 9)])") == (8_100, 72)


@pytest.mark.parametrize("mebibytes", [200, pytest.param(1_000, marks=pytest.mark.soak)])
async def test_a_large_chunk_under_a_false_id_costs_neither_memory_nor_time(
    cpython: CpythonKernel, mebibytes: int
) -> None:
    driver = await KernelDriver.open(cpython, SETTINGS)
    await driver.run("before = 1")
    code = FIND + (
        f"fd = find('Channel').outgoing\nsize = {mebibytes} << 20\n"
        "os.write(fd, b'\\1' + (size + 71).to_bytes(4, 'big') + b'sha256:' + b'0' * 64)\n"
        "part = bytes(1 << 16)\nfor _ in range(size >> 16):\n    os.write(fd, part)\n"
        "import time\ntime.sleep(20)"
    )
    tracemalloc.start()
    try:
        async with _punctual_loop():
            with pytest.raises(KernelProtocolError, match="false id"):
                await driver.run(code)
        assert tracemalloc.get_traced_memory()[1] < 50 << 20
    finally:
        tracemalloc.stop()
    assert await driver.value("before") == 1


async def test_chunks_count_against_the_memory_of_the_session(cpython: CpythonKernel) -> None:
    settings = replace(SETTINGS, limits=KernelLimits(memory_bytes=200 << 20))
    driver = await KernelDriver.open(cpython, settings)
    code = FIND + (
        "fd = find('Channel').outgoing\n"
        "os.write(fd, b'\\1' + (201 << 20).to_bytes(4, 'big'))\nimport time\ntime.sleep(20)"
    )
    with pytest.raises(KernelProtocolError, match="more than the protocol allows"):
        await driver.run(code)


async def test_a_large_message_does_not_hold_up_the_host(cpython: CpythonKernel) -> None:
    driver = await KernelDriver.open(cpython, SETTINGS, lm=lambda x: None)
    code = FIND + (
        "fd = find('Channel').outgoing\n"
        'arguments = \'{"args":[%s],"kwargs":{}}\' % (\'{"a":1},\' * 2_800_000 + "1")\n'
        'body = (\'{"kind":"call","id":1,"function":"lm","files":[],"threads":1,"arguments":%s}\'\n'
        "    % arguments).encode()\n"
        "data = memoryview(b'\\0' + len(body).to_bytes(4, 'big') + body)\n"
        "while data: data = data[os.write(fd, data):]\nimport time\ntime.sleep(1)"
    )
    async with _punctual_loop():
        with contextlib.suppress(KernelProtocolError):
            await driver.run(code)


async def test_a_large_variable_arrives_whole(cpython: CpythonKernel) -> None:
    driver = await KernelDriver.open(cpython, SETTINGS)
    async with _punctual_loop():
        await driver.run("text = 'sixteen bytes...' * (2 << 20)\nmore = b'x' * (9 << 20)")
    await driver.reopen()
    assert await driver.value("(len(text), text[-3:], len(more))") == (32 << 20, "...", 9 << 20)


FORGED_VALUES = {
    "nested 201 deep": b"[" * 201 + b"]" * 201,
    "nested 900 deep": b"[" * 900 + b"]" * 900,
    "not a number": b"[NaN]",
    "infinite": b"[1e999]",
    "a key twice": b'{"a":1,"a":2}',
    "white space": b"[1, 2]",
    "a lone surrogate": b'["\\ud800"]',
    "not JSON": b"[1,",
}


@pytest.mark.parametrize("data", FORGED_VALUES.values(), ids=FORGED_VALUES.keys())
async def test_a_forged_answer_is_refused_before_it_is_stored(
    cpython: CpythonKernel, data: bytes
) -> None:
    driver = await KernelDriver.open(cpython, SETTINGS)
    forge = f"find('Worker')._encoded = lambda value: {{'encoding': 'json', 'data': {data!r}}}\n"
    with pytest.raises(KernelProtocolError, match="invalid value"):
        await driver.run(FIND + forge + "FINAL(1)")
    assert await driver.value("1 + 1") == 2


FORGED_CHECKPOINTS = {
    "no bytes": "[dict(first, name=f'v{i}', pieces=[]) for i in range(100_000)]",
    "empty bytes": "[dict(first, pieces=[['', 0, b'']])]",
    "twice": "[first, dict(first, size=7)]",
}


@pytest.mark.parametrize("forged", FORGED_CHECKPOINTS.values(), ids=FORGED_CHECKPOINTS.keys())
async def test_a_forged_checkpoint_is_refused_at_its_cell(
    cpython: CpythonKernel, forged: str
) -> None:
    driver = await KernelDriver.open(cpython, SETTINGS)
    await driver.run("kept = 5")
    code = FIND + (
        "space = find('Namespace')\ndump = space.dump\ndef forge():\n    out = dump()\n"
        f"    first = out['variables'][0]\n    out['variables'] = {forged}\n    return out\n"
        "space.dump = forge\nx = 1"
    )
    with pytest.raises(KernelProtocolError, match="the worker described"):
        await driver.run(code)
    assert await driver.value("kept") == 5


async def test_a_namespace_that_cannot_be_loaded_is_refused_by_name(
    cpython: CpythonKernel,
) -> None:
    driver = await KernelDriver.open(cpython, SETTINGS)
    await driver.run("data = bytearray(400 << 20)")
    driver.settings = replace(SETTINGS, limits=KernelLimits(memory_bytes=200 << 20))
    await driver.reopen()
    with pytest.raises(NotRestorable, match=r"cannot be loaded: .*MemoryError"):
        await driver.run("len(data)")


async def test_a_fork_server_that_does_not_answer_is_replaced(
    cpython: CpythonKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fork_server, "START_SECONDS", 1.0)
    first = await KernelDriver.open(cpython, SETTINGS)
    await first.run("x = 1")
    os.kill(cpython.pool.fork_server.start(), signal.SIGSTOP)
    second = await KernelDriver.open(cpython, SETTINGS)
    with pytest.raises(KernelDied, match="no worker was started within 1 seconds"):
        await second.run("y = 2")
    monkeypatch.undo()
    assert await second.value("3") == 3
    assert await first.value("x") == 1  # its worker has lived on


@contextmanager
def _few_descriptors(more: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(map(int, os.listdir("/proc/self/fd")))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1 + more, before[1]))
    taken = []
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.dup(0))
        for descriptor in taken[len(taken) - more :]:
            os.close(descriptor)
        del taken[len(taken) - more :]
        yield
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


async def test_too_few_descriptors_are_a_clear_refusal(cpython: CpythonKernel) -> None:
    driver = await KernelDriver.open(cpython, SETTINGS)
    with _few_descriptors(0), pytest.raises(WorkerRefused, match="open files"):
        await driver.run("1")
    assert await driver.value("2") == 2


async def test_too_few_descriptors_at_the_start_are_a_clear_refusal() -> None:
    kernel = CpythonKernel()
    with _few_descriptors(0), pytest.raises(WorkerRefused, match="open files"):
        await kernel.open(SETTINGS)
    await kernel.close()


async def test_an_idle_worker_gives_way_where_descriptors_are_few(cpython: CpythonKernel) -> None:
    idle = await KernelDriver.open(cpython, SETTINGS)
    await idle.run("x = 1")
    other = await KernelDriver.open(cpython, SETTINGS)
    with _few_descriptors(2):
        assert await other.value("2") == 2
    assert await idle.value("x") == 1


async def test_a_refused_thread_does_not_lose_a_call(
    cpython: CpythonKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    driver = await KernelDriver.open(cpython, SETTINGS, lm=len)
    await driver.run("x = 1")
    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert await driver.value("lm('x' * 200_000)") == 200_000
    await driver.run("text = 'y' * (9 << 20)")
    monkeypatch.undo()
    assert await driver.value("len(text)") == 9 << 20


async def test_a_pipe_in_the_work_area_holds_up_its_cell_alone(
    cpython: CpythonKernel, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "pipe")
    limits = KernelLimits(wall_seconds=1.0)
    settings = replace(SETTINGS, read_roots=(str(tmp_path),), limits=limits)
    driver = await KernelDriver.open(cpython, settings)
    await driver.run("kept = 1")
    async with _punctual_loop():
        result = await driver.run(f"open({str(tmp_path / 'pipe')!r}).read()")
    assert (result.status, result.limit) == ("limit", "wall")
    opened = await driver.value(
        f"import os\nos.open({str(tmp_path / 'pipe')!r}, os.O_RDONLY | os.O_NONBLOCK) > 0"
    )
    assert opened
    assert await driver.value("kept") == 1


@pytest.mark.parametrize(
    "reading", ["open({}).read()", "from pathlib import Path\nPath({}).read_bytes()"]
)
async def test_a_pipe_in_the_work_area_is_not_opened_for_monty(
    monty: MontyKernel, tmp_path: Path, reading: str
) -> None:
    os.mkfifo(tmp_path / "pipe")
    driver = await KernelDriver.open(monty, replace(SETTINGS, read_roots=(str(tmp_path),)))
    await driver.run("kept = 1")
    async with _punctual_loop():
        result = await driver.run(reading.format(repr(str(tmp_path / "pipe"))))
    assert result.error is not None
    assert result.error.type == "PermissionError"
    assert await driver.value("kept") == 1


async def test_arguments_of_an_unknown_name_are_not_made(monty: MontyKernel) -> None:
    driver = await KernelDriver.open(monty, SETTINGS)
    async with _punctual_loop():
        result = await driver.run(f"nobody({COLLIDING})")
    assert result.error is not None
    assert result.error.type == "NameError"
