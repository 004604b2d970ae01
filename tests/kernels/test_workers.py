"""A worker that dies, lies or floods harms its own cell only."""

from __future__ import annotations

import _thread
import asyncio
import json
import os
import random
import signal
import struct
import threading
import time
import tracemalloc

import msgspec
import pytest

from holdfast.core import values
from holdfast.core.errors import KernelDied, KernelError, KernelProtocolError
from holdfast.kernels import cpython as kernel_module
from holdfast.kernels import frames
from holdfast.kernels.cpython import CpythonKernel, CpythonSession
from holdfast.kernels.fork_server import ForkServer
from holdfast.kernels.frame_reader import FrameReader
from holdfast.kernels.port import Encoded, HostFunction, KernelLimits, KernelSettings
from holdfast.kernels.worker.wire.channel import Channel, InterruptMask
from holdfast.testing.kernel_driver import KernelDriver

SETTINGS = KernelSettings(
    functions=(HostFunction("lm"),), limits=KernelLimits(wall_seconds=3, cpu_seconds=3)
)
# The worker's own pipe, found as model code would find it.
CHANNEL = (
    "import gc, os\nfd = next(o.outgoing for o in (gc.unfreeze() or gc.get_objects())"
    " if type(o).__name__ == 'Channel')\n"
)
SEND = "send = lm._host_calls.channel.send\n"
# Says that the cell has ended with a value of its own making.
VALUE = (
    "import gc\nobjects = gc.unfreeze() or gc.get_objects()\n"
    "worker = next(o for o in objects if type(o).__name__ == 'Worker')\n"
    "def view(value, fit):\n    return {{'kind': 'int', 'text': ['1', '', 1],"
    " 'encoded': {{'encoding': {encoding!r}, 'data': data}}}}\n"
    "worker._view = view\ndata = {data!r}"
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


async def test_a_worker_killed_between_two_cells_is_replaced_in_silence(
    cpython: CpythonKernel,
) -> None:
    driver = await KernelDriver.open(cpython, SETTINGS)
    await driver.run("count = 0")
    for number in range(1, 11):
        assert isinstance(driver.session, CpythonSession)
        assert driver.session.worker is not None
        os.kill(driver.session.worker.pid, signal.SIGKILL)
        assert await driver.value("count += 1\ncount") == number


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
    "a function that is not offered": "c = type(lm)\nc(lm._host_calls, 'shell', '', '')('rm')",
    "garbage": CHANNEL + "os.write(fd, os.urandom(4000))",
    "a second end": SEND + "send({'kind': 'ended'})\nsend({'kind': 'ended'})",
    "a second answer": SEND
    + "v = {'encoding': 'json', 'data': b'1'}\nfor _ in 'ab': send({'kind': 'final', 'value': v})",
    "an answer that does not decode": SEND
    + "send({'kind': 'final', 'value': {'encoding': 'json', 'data': b'{nonsense'}})",
    "an answer under a false tag": SEND
    + "send({'kind': 'final', 'value': {'encoding': 'json', 'data': b'{\"$set\":1}'}})",
    "an answer nested too deeply": SEND
    + "v = {'encoding': 'json', 'data': b'[' * 500 + b']' * 500}\n"
    + "send({'kind': 'final', 'value': v})",
    "an answer with a key twice": SEND
    + "send({'kind': 'final', 'value': {'encoding': 'json', 'data': b'{\"a\":1,\"a\":2}'}})",
    "a value that is not a number": VALUE.format(encoding="json", data=b"[NaN]"),
    "a value with white space": VALUE.format(encoding="json", data=b"[1, 2]"),
    "a value nested too deeply": VALUE.format(encoding="json", data=b"[" * 201 + b"]" * 201),
    "a value that does not decode": VALUE.format(encoding="json", data=b"{nonsense"),
    "a value under a false tag": VALUE.format(encoding="json", data=b'{"$set":1}'),
    "a value that is no text": VALUE.format(encoding="text", data=b"\xff"),
    "a large value that does not decode": VALUE.format(encoding="json", data=b"[") + " * 100_000",
    "a value beyond its bounds": VALUE.format(encoding="json", data=b"[]") + "\n"
    "data = b'[' + b'[],' * 2_500_000 + b'1]'",
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
        "objects = gc.unfreeze() or gc.get_objects()\n"
        "space = next(o for o in objects if type(o).__name__ == 'Namespace')\n"
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
        "channel = lm._host_calls.channel\nfor n in range(1000):\n    channel.send({'kind': 'call',"
        " 'id': n, 'function': 'lm', 'arguments': {'args': [1], 'kwargs': {}},"
        " 'files': [], 'threads': 1})\nimport time\ntime.sleep(5)"
    )
    with pytest.raises(KernelProtocolError, match="more calls open than threads"):
        await driver.run(code)
    assert await driver.value("1 + 1") == 2


async def test_saying_that_the_cell_is_over_does_not_lift_its_limits(
    cpython: CpythonKernel,
) -> None:
    limits = KernelLimits(cpu_seconds=0.5, wall_seconds=30)
    driver = await KernelDriver.open(cpython, KernelSettings(SETTINGS.functions))
    began = time.monotonic()
    result = await driver.run(SEND + "send({'kind': 'ended'})\nwhile True: pass", limits=limits)
    assert (result.status, result.limit) == ("limit", "cpu")
    assert time.monotonic() - began < 25
    assert await driver.value("1 + 1") == 2


@pytest.mark.parametrize(
    "over",
    ["{'kind': 'final', 'value': {'encoding': 'json', 'data': b'1'}}", "{'kind': 'ended'}"],
)
async def test_no_call_reaches_the_host_once_the_cell_is_over(
    cpython: CpythonKernel, over: str
) -> None:
    asked: list[str] = []
    driver = await KernelDriver.open(cpython, SETTINGS, lm=lambda x: asked.append(x) or x)
    call = (
        "{'kind': 'call', 'id': 99, 'function': 'lm', 'arguments':"
        " {'args': ['late'], 'kwargs': {}}, 'files': [], 'threads': 1}"
    )
    result = await driver.run(f"{SEND}send({over})\nsend({call})")
    assert result.status in ("final", "ok")
    assert asked == []
    with pytest.raises(KernelProtocolError, match="after its cell was over"):
        await driver.run(f"{SEND}send({over})\nfor _ in range(1000): send({call})")
    assert asked == []


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
    reader = FrameReader()
    body = msgspec.json.encode({"kind": "bound"})
    frame = b"\x00" + len(body).to_bytes(4, "big") + body
    assert reader.feed(frame[:3]) == []
    assert reader.feed(frame[3:] + frame) == [frames.BoundFrame(), frames.BoundFrame()]
    for bad in (
        {"kind": "nonsense"},
        {"kind": "bound", "extra": 1},
        {"kind": "call", "id": -1, "function": "f", "arguments": {}, "files": [], "threads": 1},
        {"kind": "call", "id": 1, "function": "", "arguments": {}, "files": [], "threads": 1},
        {"kind": "final", "value": {"encoding": "pickle", "data": b""}},
        [1, 2],
    ):
        body = msgspec.json.encode(bad)
        with pytest.raises(KernelProtocolError):
            FrameReader().feed(b"\x00" + struct.pack(">I", len(body)) + body)


async def test_every_process_is_gone_after_close() -> None:
    kernel = CpythonKernel()
    drivers = [await KernelDriver.open(kernel) for _ in range(3)]
    pids = []
    for driver in drivers:
        await driver.run("x = 1")
        pids.append(_pid(driver))
    parent = kernel.pool.fork_server.start()
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
    os.kill(cpython.pool.fork_server.start(), signal.SIGKILL)
    for _ in range(3):
        try:
            assert await driver.value("x") == 5
            break
        except KernelDied:
            continue
    else:
        pytest.fail("the session did not come back")


async def test_one_who_waited_for_a_process_that_died_does_not_end_its_successor() -> None:
    fork_server = ForkServer()
    process = fork_server.start()
    os.kill(process, signal.SIGSTOP)
    waiting = asyncio.ensure_future(fork_server.spawn(own_paths=False))
    await asyncio.sleep(0)
    os.kill(process, signal.SIGKILL)
    # The event loop hears of nothing meanwhile.
    os.waitid(os.P_PID, process, os.WEXITED | os.WNOWAIT)  # noqa: ASYNC222
    worker = await fork_server.spawn(own_paths=False)
    with pytest.raises(KernelDied):
        await waiting
    assert fork_server.start() == worker.parent != process
    fork_server.close()


# It hides its thread and keeps no lock: a worker is ended for one of these left behind alone.
FLOOD = (
    "import _thread, threading\n_thread._count = lambda: 0\n"
    "def flood():\n    send = lm._host_calls.channel.send\n    threading.Event().wait(0.3)\n"
    "    call = {'kind': 'call', 'id': 9, 'function': 'lm', 'files': [], 'threads': 1,\n"
    "        'arguments': {'args': ['a' * 100_000], 'kwargs': {}}}\n"
    "    while True: send(call)\n"
    "threading.Thread(target=flood, daemon=True).start()"
)


async def test_a_worker_that_talks_between_cells_is_ended(cpython: CpythonKernel) -> None:
    asked: list[str] = []
    driver = await KernelDriver.open(cpython, SETTINGS, lm=lambda x: asked.append(x) or x)
    await driver.run("x = 1")
    await driver.run(FLOOD)
    session = driver.session
    assert isinstance(session, CpythonSession)
    worker = session.worker
    assert worker is not None
    for _ in range(500):
        if worker.lost is not None:
            break
        await asyncio.sleep(0.01)
    assert isinstance(worker.lost, KernelProtocolError)
    assert await driver.value("x") == 1
    assert asked == []


async def test_what_is_said_after_the_end_of_a_cell_does_not_reach_the_next(
    cpython: CpythonKernel,
) -> None:
    driver = await KernelDriver.open(cpython, SETTINGS, lm=lambda x: x)
    # In one write, so that the host reads both at once.
    code = (
        'channel = lm._host_calls.channel\nput = channel._put\nlast = b\'{"kind":"done"\'\n'
        'extra = b\'\\x00\\x00\\x00\\x00\\x10{"kind":"bound"}\'\n'
        "channel._put = lambda data: put(data + extra if last in data[:40] else data)"
    )
    assert (await driver.run(code)).status == "ok"
    assert await driver.value("1 + 1") == 2


DEAF_BETWEEN_CELLS = "import threading\nlm._host_calls.command = threading.Event().wait"


async def test_a_warm_worker_that_does_not_answer_is_given_up(
    cpython: CpythonKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_module, "_SETUP_SECONDS", 2.0)
    driver = await KernelDriver.open(cpython, SETTINGS)
    await driver.run("x = 1")
    async with asyncio.timeout(30):
        await driver.run(DEAF_BETWEEN_CELLS)
        await driver.session.set_variable("y", Encoded("json", b"2"))
        assert await driver.value("x + y") == 3
        await driver.run(DEAF_BETWEEN_CELLS)
        with pytest.raises(KernelDied, match="did not answer within 2 seconds"):
            await driver.session.checkpoint()
        assert await driver.value("x + y") == 3


def test_small_messages_do_not_become_big_in_memory() -> None:
    def feed(message: bytes) -> None:
        FrameReader().feed(b"\x00" + struct.pack(">I", len(message)) + message)

    many = b'[["a",""]' + b',["a",""]' * 3_000_000 + b"]"
    call = b'{"kind":"call","id":1,"function":"f","files":%b,"threads":1,"arguments":{}}'
    bombs = (
        b'{"kind":"loaded","lost":%b}' % many,
        b'{"kind":"loaded","lost":' + b"[" * 1_000_000,
        call % many,
        call.replace(b"{}", b"%b") % (b"[]", b"[" * 1_000_000),
    )
    for bomb in bombs:
        with pytest.raises(KernelProtocolError):
            feed(bomb)
    tracemalloc.start()
    feed(b'{"kind":"opened","confinement":{"a":%b}}' % many)
    feed(call.replace(b"{}", b"%b") % (b"[]", many))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 * len(many)


async def test_a_namespace_of_too_many_pieces_is_refused(cpython: CpythonKernel) -> None:
    driver = await KernelDriver.open(cpython, SETTINGS)
    code = (
        "import gc\n"
        "objects = gc.unfreeze() or gc.get_objects()\n"
        "space = next(o for o in objects if type(o).__name__ == 'Namespace')\n"
        "dump = space.dump\ndef forged():\n    out = dump()\n"
        "    out['variables'] = [dict(out['variables'][0], name=f'v{i}',\n"
        "        pieces=[['', 1, b'x']] * 1000) for i in range(300)]\n    return out\n"
        "space.dump = forged"
    )
    with pytest.raises(KernelProtocolError, match="pieces"):
        await driver.run("x = 1\n" + code)


COLLIDING = "{(2**61 - 1) * i: 1 for i in range(1, 15_001)}"


@pytest.mark.parametrize(
    "argument",
    [
        "'a' * (17 << 20)",
        f"[{COLLIDING}]",
        pytest.param("[[]] * 2_500_000", marks=pytest.mark.soak),
        "[1] * 1_000_001",
    ],
)
async def test_a_call_that_carries_too_much_is_an_error_in_the_cell(
    cpython: CpythonKernel, argument: str
) -> None:
    asked: list[object] = []
    settings = KernelSettings(SETTINGS.functions)
    driver = await KernelDriver.open(cpython, settings, lm=lambda x: asked.append(x))
    code = f"x = {argument}\n" + (
        "try:\n    lm(x)\nexcept (TypeError, ValueError) as error:\n    caught = str(error)\n"
        "del x\ncaught"
    )
    assert "lm: " in await driver.value(code)
    # The host does not rely on the worker's own check.
    evade = "import sys\nsys.modules[type(lm._host_calls).__module__].excess = lambda *data: ''\n"
    assert "lm: " in await driver.value(evade + code) or argument.startswith("'a'")
    final = await driver.run(f"FINAL({argument})")
    assert final.error is not None
    assert final.error.type == "TypeError"
    assert asked == []


async def test_big_arguments_are_decoded_beside_the_event_loop(cpython: CpythonKernel) -> None:
    loops: list[bool] = []
    decode = values.decode

    def watched(encoding: str, data: bytes) -> object:
        if len(data) > 100_000:
            loops.append(threading.current_thread() is threading.main_thread())
        return decode(encoding, data)

    driver = await KernelDriver.open(cpython, SETTINGS, lm=len)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(values, "decode", watched)
        code = "out = [lm('a' * 200_000), lm([1] * 90_000)]\nFINAL('b' * 300_000)"
        assert (await driver.run(code)).status == "final"
    assert loops == [False, False, False]
    assert await driver.value("out") == [200_000, 90_000]


def test_a_call_says_how_many_threads_there_are_when_it_is_sent() -> None:
    reader, writer = os.pipe()
    channel = Channel(InterruptMask(KeyboardInterrupt))
    channel.outgoing = writer
    leave, here = threading.Event(), threading.Barrier(4)

    def stay() -> None:
        here.wait(30)
        leave.wait(30)

    with channel._writing:  # the call has to wait for another that is being sent
        threads = [threading.Thread(target=channel.send_call, args=(1, "lm", b"{}", []))]
        threads += [threading.Thread(target=stay) for _ in range(3)]
        for thread in threads:
            thread.start()
        here.wait(30)
        there = _thread._count() + 1  # type: ignore[attr-defined]
    frame = json.loads(os.read(reader, 4096)[5:])
    leave.set()
    for thread in threads:
        thread.join()
    os.close(reader)
    os.close(writer)
    assert frame["threads"] == there
