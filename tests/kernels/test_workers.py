"""A worker that dies, lies or floods harms its own cell only."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import struct

import msgspec
import pytest

from holdfast.core.errors import KernelDied, KernelError, KernelProtocolError
from holdfast.kernels import frames
from holdfast.kernels.cpython import CpythonKernel, CpythonSession
from holdfast.kernels.port import HostFunction, KernelLimits, KernelSettings
from holdfast.testing.kernel_driver import KernelDriver

SETTINGS = KernelSettings(
    functions=(HostFunction("lm"),), limits=KernelLimits(wall_seconds=3, cpu_seconds=3)
)
# The worker's own descriptor, found as model code would find it.
CHANNEL = (
    "import gc, os\nfd = next(o.descriptor for o in gc.get_objects()"
    " if type(o).__name__ == 'Channel')\n"
)


def _pid(driver: KernelDriver) -> int:
    session = driver.session
    assert isinstance(session, CpythonSession)
    assert session.worker is not None
    return session.worker.pid


async def test_a_worker_killed_at_any_moment_loses_only_its_cell(cpython: CpythonKernel) -> None:
    pick = random.Random(7)
    driver = await KernelDriver.open(cpython, SETTINGS, lm=lambda x: x)
    await driver.run("count = 0\nbig = ['x' * 1000] * 100")
    count = 0
    died = 0
    for _ in range(12):
        code = "count += 1\nfor i in range(40):\n    lm(i)\nblob = 'y' * 300000"
        running = asyncio.ensure_future(driver.run(code))
        await asyncio.sleep(pick.random() * 0.03)
        session = driver.session
        assert isinstance(session, CpythonSession)
        if session.worker is not None:
            os.kill(session.worker.pid, signal.SIGKILL)
        try:
            result = await running
            assert result.status == "ok"
            count += 1
        except KernelDied:
            died += 1
        assert await driver.value("count") == count
    assert died > 0


@pytest.mark.parametrize(
    "code",
    [
        "import os\nos._exit(3)",
        "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)",
        "import ctypes\nctypes.string_at(0)",
        CHANNEL + "os.close(fd)",
    ],
)
async def test_a_worker_that_ends_itself_is_a_typed_error(
    cpython: CpythonKernel, code: str
) -> None:
    driver = await KernelDriver.open(cpython, SETTINGS)
    await driver.run("x = 1")
    with pytest.raises(KernelDied):
        await driver.run(code)
    assert await driver.value("x") == 1


FORGED = {
    "a huge message": CHANNEL + "os.write(fd, b'\\x00' + (2**32 - 1).to_bytes(4, 'big'))",
    "an unknown kind": CHANNEL + "os.write(fd, b'\\x07\\x00\\x00\\x00\\x00')",
    "no message": CHANNEL + "os.write(fd, b'\\x00\\x00\\x00\\x00\\x02ab')",
    "a pickle": CHANNEL + "import pickle\nd = pickle.dumps([1])\n"
    "os.write(fd, b'\\x00' + len(d).to_bytes(4, 'big') + d)",
    "a chunk under a false id": CHANNEL + "d = b'sha256:' + b'0' * 64 + b'evil'\n"
    "os.write(fd, b'\\x01' + len(d).to_bytes(4, 'big') + d)",
    "a function that is not offered": "c = type(lm)\nc(lm._bridge, 'shell', '', '')('rm')",
    "garbage": CHANNEL + "os.write(fd, os.urandom(4000))",
}


@pytest.mark.parametrize("name", FORGED)
async def test_a_forged_frame_ends_the_worker_and_nothing_else(
    cpython: CpythonKernel, name: str
) -> None:
    driver = await KernelDriver.open(cpython, SETTINGS, lm=lambda x: x)
    other = await KernelDriver.open(cpython, SETTINGS)
    await driver.run("x = 1")
    await other.run("y = 2")
    with pytest.raises(KernelProtocolError):
        await driver.run(FORGED[name] + "\nimport time\ntime.sleep(2)")
    assert await driver.value("x") == 1
    assert await other.value("y") == 2


async def test_a_worker_cannot_name_chunks_of_other_sessions(cpython: CpythonKernel) -> None:
    secret = await KernelDriver.open(cpython, SETTINGS)
    await secret.run("secret = 's' * 100_000")
    stolen = next(iter(secret.chunks))
    thief = await KernelDriver.open(cpython, SETTINGS)
    code = (
        "import gc\n"
        "space = next(o for o in gc.get_objects() if type(o).__name__ == 'Namespace')\n"
        "dump = space.dump\n"
        "def forged():\n"
        "    out = dump()\n"
        f"    out['slots'] = [[0, True, [{stolen!r}, 100000, b'']]]\n"
        "    return out\n"
        "space.dump = forged"
    )
    with pytest.raises(KernelProtocolError, match="does not have"):
        await thief.run(code)


async def test_a_flood_of_chunks_is_cut(cpython: CpythonKernel) -> None:
    limits = KernelLimits(memory_bytes=200 << 20, wall_seconds=30, cpu_seconds=30)
    driver = await KernelDriver.open(cpython, KernelSettings(limits=limits))
    code = CHANNEL + (
        "import hashlib\nfor n in range(40):\n    d = bytes([n]) * (20 << 20)\n"
        "    d = ('sha256:' + hashlib.sha256(d).hexdigest()).encode() + d\n"
        "    f = memoryview(b'\\x01' + len(d).to_bytes(4, 'big') + d)\n    sent = 0\n"
        "    while sent < len(f):\n        sent += os.write(fd, f[sent:])"
    )
    with pytest.raises(KernelProtocolError, match="more than the protocol allows"):
        await driver.run(code)
    assert await driver.value("1 + 1") == 2


async def test_a_flood_of_calls_is_cut(cpython: CpythonKernel) -> None:
    async def never(text: str) -> str:
        await asyncio.Event().wait()
        return ""

    driver = await KernelDriver.open(cpython, SETTINGS, lm=never)
    code = (
        "bridge = lm._bridge\nfor n in range(1000):\n    bridge.channel.send({'kind': 'call',"
        " 'id': n, 'function': 'lm', 'arguments': b'{\"args\":[1],\"kwargs\":{}}',"
        " 'files': [], 'threads': 1})\nimport time\ntime.sleep(5)"
    )
    with pytest.raises(KernelProtocolError, match="more calls open than threads"):
        await driver.run(code)
    assert await driver.value("1 + 1") == 2


async def test_closing_ends_a_cell_that_waits(cpython: CpythonKernel) -> None:
    asked = asyncio.Event()

    async def never(text: str) -> str:
        asked.set()
        await asyncio.Event().wait()
        return ""

    driver = await KernelDriver.open(cpython, SETTINGS, lm=never)
    running = asyncio.ensure_future(driver.run("lm('x')"))
    await asked.wait()
    await driver.session.close()
    with pytest.raises(KernelError, match="was closed"):
        await running
    with pytest.raises(KernelError, match="was closed"):
        await driver.run("1")


def test_frames_are_decoded_strictly() -> None:
    reader = frames.FrameReader()
    body = msgspec.msgpack.encode({"kind": "bound"})
    frame = b"\x00" + len(body).to_bytes(4, "big") + body
    assert reader.feed(frame[:3]) == []
    assert reader.feed(frame[3:] + frame) == [frames.BoundFrame(), frames.BoundFrame()]
    for bad in (
        {"kind": "nonsense"},
        {"kind": "bound", "extra": 1},
        {"kind": "call", "id": -1, "function": "f", "arguments": b"", "files": [], "threads": 1},
        {"kind": "call", "id": 1, "function": "", "arguments": b"", "files": [], "threads": 1},
        {"kind": "final", "value": {"encoding": "pickle", "data": b""}},
        [1, 2],
    ):
        body = msgspec.msgpack.encode(bad)
        with pytest.raises(KernelProtocolError):
            frames.FrameReader().feed(b"\x00" + struct.pack(">I", len(body)) + body)


async def test_every_process_is_gone_after_close() -> None:
    kernel = CpythonKernel()
    drivers = [await KernelDriver.open(kernel) for _ in range(3)]
    pids = []
    for driver in drivers:
        await driver.run("x = 1")
        pids.append(_pid(driver))
    parent = kernel.pool.nursery.start()
    await kernel.close()
    for pid in [*pids, parent]:
        for _ in range(200):
            try:
                os.kill(pid, 0)
            except ProcessLookupError:
                break
            await asyncio.sleep(0.01)
        else:
            pytest.fail(f"process {pid} is still there")


async def test_sessions_go_on_after_the_process_that_workers_come_from_was_killed(
    cpython: CpythonKernel,
) -> None:
    driver = await KernelDriver.open(cpython)
    await driver.run("x = 5")
    os.kill(cpython.pool.nursery.start(), signal.SIGKILL)
    for _ in range(3):
        try:
            assert await driver.value("x") == 5
            break
        except KernelDied:
            continue
    else:
        pytest.fail("the session did not come back")
