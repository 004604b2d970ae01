"""A cell that was interrupted runs again: the same calls, the same clock, or it has diverged."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from holdfast.kernels.cpython import CpythonKernel
from holdfast.kernels.port import HostFunction, KernelLimits, KernelSettings, RecordedCall
from holdfast.testing.kernel_driver import START_NS, KernelDriver

SETTINGS = KernelSettings(functions=(HostFunction("lm"), HostFunction("look", pure=True)), seed=3)

DETERMINISTIC = {
    "in order": "out = [lm(x) for x in 'abcdef']",
    "clock": "import time, datetime\nout = []\nfor x in 'abc':\n"
    "    out.append(lm([x, time.time(), str(datetime.datetime.now())]))",
    "random_stream": "import random, uuid, secrets\nout = []\nfor x in 'abc':\n"
    "    drawn = [random.random(), str(uuid.uuid4()), str(uuid.uuid1()), secrets.token_hex(4)]\n"
    "    out.append(lm(drawn))",
    "process": "import logging, os\nmade = logging.LogRecord('n', 10, 'f', 1, 'm', (), None)\n"
    "out = [lm([x, os.getpid(), made.process]) for x in 'abc']",
    "hash order": "words = {f'w{i}' for i in range(50)}\nout = [lm(w) for w in list(words)[:6]]",
    "asyncio": "import asyncio\nasync def one(x):\n    await asyncio.sleep(0)\n    return lm(x)\n"
    "async def main():\n    return await asyncio.gather(*(one(x) for x in 'abcdef'))\n"
    "out = asyncio.run(main())",
    "errors": "out = []\nfor x in ('a', 'fail', 'b'):\n    try:\n        out.append(lm(x))\n"
    "    except ValueError as e:\n        out.append(lm(str(e)))",
}


# Each waits 50 milliseconds, in a way of its own, for something that does not happen.
WAITS = {
    "sleep": "time.sleep(0.05)",
    "asyncio sleep": "await asyncio.sleep(0.05)",
    "asyncio timeout": "try:\n    async with asyncio.timeout(0.05): await asyncio.Event().wait()\n"
    "except TimeoutError: pass",
    "asyncio wait_for": "try: await asyncio.wait_for(asyncio.Event().wait(), 0.05)\n"
    "except TimeoutError: pass",
    "asyncio gather": "await asyncio.gather(*(asyncio.sleep(0.05) for _ in range(9)))",
    "event": "threading.Event().wait(0.05)",
    "condition": "c = threading.Condition()\nwith c: c.wait_for(lambda: False, 0.05)",
    "semaphore": "threading.Semaphore(0).acquire(timeout=0.05)",
    "queue": "try: queue.Queue().get(timeout=0.05)\nexcept queue.Empty: pass",
    "future": "concurrent.futures.wait([concurrent.futures.Future()], timeout=0.05)",
    "join": "idle.join(0.05)",
    "select": "select.select([], [], [], 0.05)",
}


class Stop(Exception):
    """The process of the host is gone."""


def _answer(value: Any) -> str:
    if value == "fail":
        raise ValueError("failed")
    return f"<{value}>"


async def _interrupted_after(
    kernel: CpythonKernel, code: str, answers: int
) -> tuple[list[RecordedCall], KernelDriver]:
    """Run a cell until it has so many answers, and lose its host there."""
    driver = await KernelDriver.open(kernel, SETTINGS, lm=_answer, look=_answer)
    ask = driver.answer

    async def until(call: Any) -> Any:
        if len(driver.recorded) >= answers:
            raise Stop
        return await ask(call)

    driver.answer = until  # type: ignore[method-assign]
    with pytest.raises(Stop):
        await driver.run(code)
    return list(driver.recorded), driver


@pytest.mark.parametrize("name", DETERMINISTIC)
async def test_a_rerun_goes_on_where_the_first_run_stood(cpython: CpythonKernel, name: str) -> None:
    code = DETERMINISTIC[name] + "\nout"
    whole = await KernelDriver.open(cpython, SETTINGS, lm=_answer)
    expected = await whole.value(code)
    total = len(whole.recorded)
    for stop in (0, 1, total - 1):
        recorded, driver = await _interrupted_after(cpython, code, stop)
        assert len(recorded) == stop
        fresh = await KernelDriver.open(cpython, SETTINGS, lm=_answer)
        result = await fresh.run(code, recorded=recorded)
        assert result.status == "ok", result.detail
        assert result.value is not None
        assert result.value.text.head == repr(expected)
        assert len(fresh.recorded) == total
        await driver.session.close()


async def test_a_threaded_cell_makes_the_same_multiset_of_calls(cpython: CpythonKernel) -> None:
    code = (
        "from concurrent.futures import ThreadPoolExecutor\n"
        "def job(x):\n    return lm(x) + lm('same')\n"
        "with ThreadPoolExecutor(4) as pool:\n    out = sorted(pool.map(job, 'abcdefgh'))\nout"
    )
    whole = await KernelDriver.open(cpython, SETTINGS, lm=_answer)
    expected = await whole.value(code)
    calls = Counter(call.key for call in whole.recorded)
    for stop in (3, 9):
        recorded, _ = await _interrupted_after(cpython, code, stop)
        fresh = await KernelDriver.open(cpython, SETTINGS, lm=_answer)
        result = await fresh.run(code, recorded=recorded)
        assert result.value is not None
        assert result.value.text.head == repr(expected)
        assert Counter(result.calls) == calls


async def test_answers_are_released_in_the_order_in_which_they_were_given(
    cpython: CpythonKernel,
) -> None:
    code = (
        "import threading\norder = []\n"
        "def job(x):\n    lm(x)\n    order.append(x)\n"
        "threads = [threading.Thread(target=job, args=(x,)) for x in 'abc']\n"
        "for t in threads: t.start()\nfor t in threads: t.join()\norder"
    )
    # Each answer waits for the one before it in this order.
    gates = {x: asyncio.Event() for x in "cab"}
    after = {"c": "a", "a": "b"}
    gates["c"].set()

    async def answer(x: str) -> str:
        await gates[x].wait()
        if x in after:
            gates[after[x]].set()
        return x

    driver = await KernelDriver.open(cpython, SETTINGS, lm=answer)
    first = await driver.run(code)
    assert first.value is not None
    assert [
        call.answer.value.data for call in driver.recorded if call.answer and call.answer.value
    ] == [
        b"c",
        b"a",
        b"b",
    ]
    fresh = await KernelDriver.open(cpython, SETTINGS, lm=_answer)
    again = await fresh.run(code, recorded=driver.recorded)
    assert again.value is not None
    assert again.status == "ok"


async def test_a_call_without_an_answer_reaches_the_host_again(cpython: CpythonKernel) -> None:
    driver = await KernelDriver.open(cpython, SETTINGS, lm=_answer)
    await driver.run("a = lm('x')\nb = lm('y')")
    first, second = driver.recorded
    open_call = RecordedCall(second.function, second.digest, second.ordinal, False, None)
    fresh = await KernelDriver.open(cpython, SETTINGS, lm=_answer)
    await fresh.run("a = lm('x')\nb = lm('y')", recorded=[first, open_call])
    assert [call.key for call in fresh.recorded] == [first.key, second.key]


async def test_a_new_call_waits_for_every_recorded_one_with_effects(cpython: CpythonKernel) -> None:
    driver = await KernelDriver.open(cpython, SETTINGS, lm=_answer)
    await driver.run("lm('old')")
    asked: list[str] = []
    fresh = await KernelDriver.open(
        cpython, SETTINGS, lm=lambda x: asked.append(x) or _answer(x), look=_answer
    )
    result = await fresh.run("look('fine')\nlm('new')\nlm('old')", recorded=driver.recorded)
    assert result.status == "diverged"
    assert asked == []
    assert "does not make" in result.detail or "not now" in result.detail


async def test_unclaimed_pure_calls_do_not_diverge(cpython: CpythonKernel) -> None:
    driver = await KernelDriver.open(cpython, SETTINGS, look=_answer)
    await driver.run("look('a')")
    for code in ("x = 1", "look('b')", "lm('new')", "lm('new')\nlook('a')"):
        fresh = await KernelDriver.open(cpython, SETTINGS, lm=_answer, look=_answer)
        async with asyncio.timeout(20):
            assert (await fresh.run(code, recorded=driver.recorded)).status == "ok"


async def test_an_idle_thread_does_not_make_a_missing_pure_call_hang(
    cpython: CpythonKernel,
) -> None:
    driver = await KernelDriver.open(cpython, SETTINGS, look=_answer)
    await driver.run("look('a')")
    fresh = await KernelDriver.open(cpython, SETTINGS, lm=_answer)
    code = (
        "import threading\n"
        "threading.Thread(target=threading.Event().wait, daemon=True).start()\nlm('new')"
    )
    async with asyncio.timeout(20):
        assert (await fresh.run(code, recorded=driver.recorded)).status == "ok"


@pytest.mark.parametrize(
    "wait",
    [
        "time.sleep(3)",
        "threading.Event().wait(3)",
        "asyncio.run(asyncio.sleep(3))",
        "for _ in range(300): time.sleep(0.01)",
    ],
)
async def test_a_rerun_does_not_stall_while_a_thread_sleeps(
    cpython: CpythonKernel, wait: str
) -> None:
    code = (
        "import asyncio, threading, time\n"
        "def late():\n    {wait}\n    lm('late')\n"
        "threads = [threading.Thread(target=lm, args=('early',)), threading.Thread(target=late)]\n"
        "for t in threads: t.start()\nfor t in threads: t.join()\nlm('last')"
    )
    answered = asyncio.Event()

    async def answer(x: str) -> str:
        # The one that is asked for first is answered second.
        if x == "early":
            await answered.wait()
        answered.set()
        return x

    driver = await KernelDriver.open(cpython, SETTINGS, lm=answer)
    await driver.run(code.format(wait="pass"))
    fresh = await KernelDriver.open(cpython, SETTINGS, lm=_answer)
    again = await fresh.run(code.format(wait=wait), recorded=driver.recorded[:2])
    assert again.status == "ok", again.detail
    assert len(fresh.recorded) == 3


async def test_a_thread_that_sleeps_for_ever_does_not_keep_a_rerun_from_its_end(
    cpython: CpythonKernel,
) -> None:
    driver = await KernelDriver.open(cpython, SETTINGS, lm=_answer)
    await driver.run("lm('old')")
    fresh = await KernelDriver.open(cpython, SETTINGS, lm=_answer)
    code = (
        "import threading, time\ndef loop():\n    while True: time.sleep(0.1)\n"
        "threading.Thread(target=loop, daemon=True).start()\nlm('new')"
    )
    async with asyncio.timeout(20):
        limits = KernelLimits(wall_seconds=1)
        result = await fresh.run(code, recorded=driver.recorded, limits=limits)
    assert result.status == "diverged"


async def test_a_diverged_cell_leaves_the_namespace_and_lists_its_calls(
    cpython: CpythonKernel,
) -> None:
    driver = await KernelDriver.open(cpython, SETTINGS, lm=_answer)
    await driver.run("keep = 'before'")
    await driver.run("keep = 'after'\nlm('a')\nlm('b')")
    recorded = driver.recorded
    fresh = await KernelDriver.open(cpython, SETTINGS, lm=_answer)
    await fresh.run("keep = 'before'")
    result = await fresh.run("keep = 'other'\nlm('a')", recorded=recorded)
    assert result.status == "diverged"
    assert list(result.calls) == [call.key for call in recorded]
    assert not result.namespace_kept
    assert await fresh.value("keep") == "before"


async def test_files_read_are_pinned_by_digest(cpython: CpythonKernel, tmp_path: Path) -> None:
    data = tmp_path / "data.txt"
    data.write_text("one")
    settings = KernelSettings(functions=SETTINGS.functions, read_roots=(str(tmp_path),))
    code = (
        f"path = {str(data)!r}\ntext = open(path).read()\nimport os\n"
        "fd = os.open(path, os.O_RDONLY)\nlm(text)"
    )
    driver = await KernelDriver.open(cpython, settings, lm=_answer)
    result = await driver.run(code)
    assert result.status == "ok", result.error
    assert [file.path for file in result.files] == [str(data)]
    recorded = driver.recorded
    assert recorded[0].files == result.files
    same = await KernelDriver.open(cpython, settings, lm=_answer)
    assert (await same.run(code, recorded=recorded, recorded_files=result.files)).status == "ok"
    data.write_text("two")
    changed = await KernelDriver.open(cpython, settings, lm=_answer)
    again = await changed.run(code, recorded=recorded, recorded_files=result.files)
    assert again.status == "diverged"
    assert "data.txt" in again.detail


async def test_the_clock_stands_at_the_recorded_start_and_moves_with_answers(
    cpython: CpythonKernel,
) -> None:
    driver = await KernelDriver.open(cpython, SETTINGS, lm=_answer)
    code = (
        "import time, datetime\na = time.time()\ntime.sleep(2e-3)\nb = time.time()\nlm('x')\n"
        "c = time.time_ns()\nd = datetime.datetime.now(datetime.timezone.utc).timestamp()\n"
        "e = datetime.date.today().isoformat(), time.strftime('%Y'), time.gmtime().tm_year\n"
        "(a, b, c, d, e)"
    )
    a, b, c, d, e = await driver.value(code)
    start = START_NS / 1e9
    assert start < a < start + 0.001
    assert start + 0.002 < b < start + 0.003
    assert START_NS + 10**9 < c < START_NS + 10**9 + 10**6
    assert abs(d - start - 1) < 0.01
    assert e == ("2023-11-14", "2023", 2023)


@pytest.mark.parametrize("name", WAITS)
async def test_a_wait_that_runs_out_moves_the_clock_by_what_was_asked_for(
    cpython: CpythonKernel, name: str
) -> None:
    driver = await KernelDriver.open(cpython, SETTINGS)
    body = WAITS[name].replace("\n", "\n    ")
    code = (
        "import asyncio, concurrent.futures, queue, select, threading, time\n"
        "idle = threading.Thread(target=threading.Event().wait, daemon=True)\nidle.start()\n"
        f"rounds, start = 0, time.time_ns()\nwhile time.time_ns() - start < 200_000_000:\n"
        f"    rounds += 1\n    {body}\n(rounds, time.time_ns() - start)"
    )
    # The clock is read six times, and each reading moves it by a microsecond.
    assert await driver.value(code) == (4, 4 * 50_000_000 + 6000)


async def test_a_timeout_that_is_entered_late_still_moves_the_clock_by_what_was_asked_for(
    cpython: CpythonKernel,
) -> None:
    driver = await KernelDriver.open(cpython, SETTINGS)
    code = (
        "import asyncio, time\nstart = time.time_ns()\nlimit = asyncio.timeout(0.05)\n"
        "begun = time.monotonic()\nwhile time.monotonic() - begun < 0.02: pass\n"
        "try:\n    async with limit: await asyncio.sleep(9)\nexcept TimeoutError: pass\n"
        "time.time_ns() - start"
    )
    assert await driver.value(code) == 50_000_000 + 1000


async def test_a_wait_that_is_woken_leaves_the_clock_alone(cpython: CpythonKernel) -> None:
    driver = await KernelDriver.open(cpython, SETTINGS)
    code = (
        "import asyncio, threading, time\nstart = time.time_ns()\nevent = threading.Event()\n"
        "threading.Timer(0, event.set).start()\nwoken = event.wait(3600)\n"
        "await asyncio.wait_for(asyncio.sleep(0), 3600)\n(woken, time.time_ns() - start)"
    )
    assert await driver.value(code) == (True, 1000)


async def test_a_cached_function_makes_the_same_calls_in_a_warm_worker_and_a_restored_one(
    cpython: CpythonKernel,
) -> None:
    define = (
        "from functools import cache, lru_cache\n@lru_cache\ndef ask(q):\n    return lm(q)\n"
        "class Client:\n    @staticmethod\n    @cache\n    def ask(q):\n        return lm(q)\n"
        "ask('a'), Client.ask('a')"
    )
    code = "[ask('a'), Client.ask('a'), ask('b'), ask('b')]"
    driver = await KernelDriver.open(cpython, SETTINGS, lm=_answer)
    await driver.run(define)
    assert await driver.value(code) == ["<a>", "<a>", "<b>", "<b>"]
    recorded = driver.recorded
    assert len(recorded) == 3
    fresh = await KernelDriver.open(cpython, SETTINGS, lm=_answer)
    await fresh.run(define)
    await fresh.reopen()
    again = await fresh.run(code, recorded=recorded[:2])
    assert again.status == "ok", again.detail
    assert [call.key for call in fresh.recorded] == [call.key for call in recorded]


@pytest.mark.parametrize(
    "made",
    [
        "{'apple', 'pear', 'kiwi', 'fig', 'date', 'plum'}",
        "set('the quick brown fox jumps over the lazy dog again and again until done'.split())",
        "{'a', 'b', 'c'} | {str(n) for n in range(40)}",
        "{(str(n), n) for n in range(50)} - {('3', 3)}",
        "{str(n) for n in range(2000)}",
        "{-2, -1, 8, 16}",
    ],
)
async def test_a_set_of_an_earlier_cell_is_gone_through_in_the_same_order(
    cpython: CpythonKernel, made: str
) -> None:
    driver = await KernelDriver.open(cpython)
    await driver.run(f"words = {made}\nheld = [words, dict(inner=set(words))]")
    seen = "(list(words), list(held[1]['inner']))"
    live = await driver.value(seen)
    assert await driver.value(seen) == live
    for _ in range(2):
        assert await (await driver.reopen()).value(seen) == live
    first = driver.manifest
    await driver.run("None")
    assert driver.manifest is not None
    assert first is not None
    assert driver.manifest["variables"] == first["variables"]


async def test_a_cell_parked_while_it_goes_through_a_set_does_not_diverge(
    cpython: CpythonKernel,
) -> None:
    asked = asyncio.Event()

    async def slow(text: str) -> str:
        if not asked.is_set():
            asked.set()
            await asyncio.sleep(0.2)
        return text.upper()

    settings = KernelSettings(functions=(HostFunction("lm"),))
    driver = await KernelDriver.open(cpython, settings, lm=slow)
    await driver.run("words = {'apple', 'pear', 'kiwi', 'fig', 'date', 'plum'}")
    running = asyncio.ensure_future(driver.run("out = [lm(w) for w in words]\nlen(out)"))
    await asked.wait()
    await driver.session.park()
    assert (await running).status == "ok"
