"""What is particular about the monty engine: two barriers, a heap, a subset of Python."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from program_corpus import ANSWERS, SETTINGS, read_programs

from holdfast.core import values
from holdfast.kernels import monty_heap
from holdfast.kernels.cpython import CpythonKernel
from holdfast.kernels.monty import CARD, MontyKernel
from holdfast.kernels.port import HostFunction, KernelLimits, KernelSettings
from holdfast.testing.kernel_driver import KernelDriver


@pytest_asyncio.fixture
async def monty() -> AsyncIterator[MontyKernel]:
    kernel = MontyKernel()
    yield kernel
    await kernel.close()


def _process_status(pid: int) -> dict[str, str]:
    text = Path(f"/proc/{pid}/status").read_text()
    return dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)


async def test_the_worker_is_confined_by_the_system(monty: MontyKernel) -> None:
    assert monty.flags.confinement == "os"
    session = await monty.checkout()
    await session.feed_run("1 + 1")
    status = _process_status(session.worker_pid)
    await session.__aexit__(None, None, None)
    assert status["Seccomp"] == "2"
    assert status["NoNewPrivs"] == "1"
    assert int(status["CapEff"], 16) == 0
    assert "0" not in status["Uid"].split()


async def test_without_the_system_it_says_that_only_the_language_confines() -> None:
    kernel = MontyKernel(confined=False)
    assert kernel.flags.confinement == "language"
    driver = await KernelDriver.open(kernel)
    assert await driver.value("20 + 22") == 42
    await kernel.close()


async def test_plain_data_needs_no_heap_and_an_unchanged_text_is_not_stored_again(
    monty: MontyKernel,
) -> None:
    driver = await KernelDriver.open(monty)
    await driver.run("import json\ntext = 'word ' * 200000\ncount = 1")
    assert driver.stored_bytes >= 1_000_000
    await driver.run("count = 2")
    assert driver.stored_bytes < 10_000
    assert driver.manifest is not None
    assert driver.manifest["heap"] is None
    await driver.reopen()
    assert await driver.value("[count, len(text), json.dumps(count)]") == [2, 1_000_000, "2"]


async def test_a_folder_whose_name_is_not_utf_8_is_left_out_and_the_rest_is_there(
    monty: MontyKernel, tmp_path: Path
) -> None:
    """Where a store lies in the work area, its neighbours are mounted one by one."""
    root = tmp_path
    for name in (b"caf\xe9", b"notes", b"store"):
        (root / os.fsdecode(name)).mkdir()
    (root / "notes" / "a.txt").write_text("here")
    settings = KernelSettings(read_roots=(str(root),), hidden=(str(root / "store"),))
    driver = await KernelDriver.open(monty, settings)
    assert await driver.value(f"open({str(root / 'notes' / 'a.txt')!r}).read()") == "here"


async def test_a_work_area_whose_name_is_not_utf_8_leaves_code_that_reads_no_files(
    monty: MontyKernel, tmp_path: Path
) -> None:
    root = tmp_path / os.fsdecode(b"caf\xe9")
    root.mkdir()
    driver = await KernelDriver.open(monty, KernelSettings(read_roots=(str(root),)))
    assert await driver.value("20 + 22") == 42


async def test_sharing_cycles_functions_instances_and_randomness_come_back(
    monty: MontyKernel,
) -> None:
    driver = await KernelDriver.open(monty)
    await driver.run(
        "import random\n"
        "a = [1]\nb = {'x': a}\nloop = []\nloop.append(loop)\n"
        "def make():\n    n = 5\n    def read():\n        return n\n    return read\n"
        "read = make()\n"
        "class P:\n    def __init__(self, v):\n        self.v = v\n"
        "p = P(a)\nrandom.random()"
    )
    manifest = driver.manifest
    ahead = await driver.value("random.random()")
    driver.manifest = manifest
    await driver.reopen()
    code = "a.append(2)\n[b['x'], p.v, read(), loop[0] is loop, random.random()]"
    assert await driver.value(code) == [[1, 2], [1, 2], 5, True, ahead]


async def test_the_plain_data_of_a_cpython_session_is_taken_over(
    monty: MontyKernel, cpython: CpythonKernel
) -> None:
    driver = await KernelDriver.open(cpython)
    await driver.run(
        "rows = [{'id': 1, 'tags': ('a', 'b')}]\nseen = {1, 2}\ndef f():\n    return 1"
    )
    await driver.reopen(monty)
    result = await driver.run("[rows, seen]")
    assert result.value is not None
    assert result.value.encoded is not None
    decoded = values.decode(result.value.encoded.encoding, result.value.encoded.data)
    assert decoded == [[{"id": 1, "tags": ("a", "b")}], {1, 2}]
    assert [lost.name for lost in result.unrestorable] == ["f"]


async def test_the_cpython_engine_takes_over_the_plain_data_of_a_monty_session(
    monty: MontyKernel, cpython: CpythonKernel
) -> None:
    driver = await KernelDriver.open(monty)
    await driver.run("rows = [1, 'two', (3.0,)]\ntext = 'x' * 5000\ndef f():\n    return 1")
    await driver.reopen(cpython)
    result = await driver.run("n = len(text)\nrows.append(n)")
    assert [lost.name for lost in result.unrestorable] == ["f"]
    assert await driver.value("rows") == [1, "two", (3.0,), 5000]
    await driver.reopen()
    assert await driver.value("rows") == [1, "two", (3.0,), 5000]


async def test_what_is_plain_can_be_read_from_a_monty_checkpoint_by_anybody(
    monty: MontyKernel,
) -> None:
    driver = await KernelDriver.open(monty)
    await driver.run("rows = [1, 'two', 3.0]\ndef f():\n    return 1")
    assert driver.manifest is not None
    plain, others = await monty_heap.plain_variables(driver.manifest, driver.fetch)
    decoded = {name: values.decode(e.encoding, e.data) for name, e in plain.items()}
    assert decoded == {"rows": [1, "two", 3.0]}
    assert list(others) == ["f"]


async def test_a_heap_of_another_version_leaves_the_plain_data_and_names_the_rest(
    monty: MontyKernel,
) -> None:
    driver = await KernelDriver.open(monty)
    await driver.run("rows = [1]\ndef f():\n    return 1")
    assert driver.manifest is not None
    driver.manifest = {**driver.manifest, "version": "0.9.0"}
    await driver.reopen()
    result = await driver.run("rows")
    assert result.status == "ok"
    assert [lost.name for lost in result.unrestorable] == ["f"]


async def test_thousands_of_host_calls_in_one_cell_are_answered(monty: MontyKernel) -> None:
    settings = KernelSettings(functions=(HostFunction("double"),))
    driver = await KernelDriver.open(monty, settings, double=lambda n: 2 * n)
    assert await driver.value("sum([double(i) for i in range(1500)])") == 1499 * 1500


async def test_a_module_of_the_host_is_imported_and_called(monty: MontyKernel) -> None:
    settings = KernelSettings(functions=(HostFunction("search", module="github"),))
    driver = await KernelDriver.open(monty, settings, **{"github.search": lambda q: [q, q]})
    assert await driver.value("import github\ngithub.search('x')") == ["x", "x"]
    await driver.reopen()
    assert await driver.value("github.search('y')") == ["y", "y"]


async def test_a_file_of_the_area_is_read_and_pinned(monty: MontyKernel, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("content")
    driver = await KernelDriver.open(monty, KernelSettings(read_roots=(str(tmp_path),)))
    result = await driver.run(f"open({str(tmp_path / 'a.txt')!r}).read()")
    assert [Path(read.path).name for read in result.files] == ["a.txt"]
    (tmp_path / "a.txt").write_text("changed")
    again = await driver.run(
        f"open({str(tmp_path / 'a.txt')!r}).read()", recorded_files=result.files
    )
    assert again.status == "diverged"


async def test_the_clock_is_pinned_and_moves_with_answers_and_sleep(monty: MontyKernel) -> None:
    settings = KernelSettings(functions=(HostFunction("ask"),))
    driver = await KernelDriver.open(monty, settings, ask=lambda: None)
    code = "import time\nstart = time.time()\nask()\nlater = time.time()\ntime.sleep(0.01)\n"
    assert await driver.value(code + "[start, later, round(time.time() - later, 2)]") == [
        1_700_000_000.0,
        1_700_000_001.0,
        0.01,
    ]


@pytest.mark.parametrize(
    ("code", "limit"),
    [
        ("kept = 2\nwhile True:\n    pass", "cpu"),
        ("kept = 2\nx = 'a' * (1 << 32)", "memory"),
        ("kept = 2\nwhile True:\n    print('x' * 1000)", "output"),
        ("kept = 2\nimport time\ntime.sleep(1000)", "wall"),
        ("kept = 2\nimport time\nfor _ in range(30):\n    time.sleep(0.1)", "wall"),
    ],
)
async def test_after_a_limit_the_namespace_is_as_at_the_start_of_the_cell(
    monty: MontyKernel, code: str, limit: str
) -> None:
    limits = KernelLimits(
        memory_bytes=64 << 20, cpu_seconds=0.3, wall_seconds=0.6, output_bytes=10_000
    )
    driver = await KernelDriver.open(monty, KernelSettings(limits=limits))
    await driver.run("kept = 1")
    result = await driver.run(code)
    assert (result.status, result.limit) == ("limit", limit)
    assert not result.namespace_kept
    assert await driver.value("kept") == 1


async def test_final_holds_although_the_code_swallows_its_signal(monty: MontyKernel) -> None:
    driver = await KernelDriver.open(monty)
    result = await driver.run("try:\n    FINAL(7)\nexcept BaseException:\n    pass\nFINAL(8)")
    assert result.status == "final"
    assert result.final is not None
    assert values.decode(result.final.encoding, result.final.data) == 7


# Each line of the card that says "no" is true of this engine, and what it advises works.
REFUSED = {
    "generators": "def g():\n    yield 1",
    "next of a generator": "next(x for x in [1, 2] if x > 1)",
    "del": "x = 1\ndel x",
    "star import": "from math import *",
    "async with": "async def f():\n    async with x:\n        pass",
    "except*": "try:\n    pass\nexcept* ValueError:\n    pass",
    "inheritance": "class E(ValueError):\n    pass",
    "property": "class C:\n    @property\n    def p(self):\n        return 1",
    "staticmethod": "class C:\n    @staticmethod\n    def p():\n        return 1",
    "len of an instance": "class C:\n    def __len__(self):\n        return 1\nlen(C())",
    "threads": "import threading",
    "host call in a sort key": "sorted(['b', 'a'], key=lambda v: lm(v))",
    "globals": "globals()",
    "dir": "dir([])",
    "vars": "vars()",
    "callable": "callable(1)",
    "issubclass": "issubclass(int, int)",
    "compile": "compile('1', 'x', 'eval')",
    "bytearray": "bytearray(1)",
    "translate": "'a'.translate({97: 'b'})",
    "bound method": "d = {'a': 2, 'b': 1}\nsorted(d, key=d.get)",
    "OrderedDict": "from collections import OrderedDict",
    "wraps": "import functools\nfunctools.wraps",
    "asdict": "from dataclasses import asdict",
    "VERBOSE": "import re\nre.VERBOSE",
    "re.sub with a function": "import re\nre.sub('a', lambda m: 'b', 'a')",
    "json.dumps default": "import json\njson.dumps(1, default=str)",
    **{name: f"import {name}" for name in ("statistics", "heapq", "string", "textwrap", "io")},
    **{name: f"import {name}" for name in ("enum", "operator", "uuid")},
}
ADVISED: dict[str, tuple[str, Any]] = {
    "next of a list": ("next(iter([x for x in [1, 2] if x > 1]))", 2),
    "key by lambda": ("d = {'a': 2, 'b': 1}\nsorted(d, key=lambda k: d[k])", ["b", "a"]),
    "comprehension of calls": ("[lm(x) for x in ['a', 'b']]", ["<a>", "<b>"]),
    "many at once": ("map_lm(['a', 'b'])", ["<a>", "<b>"]),
    "map is a list": ("map(len, ['a'])", [1]),
}


@pytest.mark.parametrize("claim", REFUSED)
async def test_what_the_card_denies_is_an_error_and_not_a_wrong_answer(
    monty: MontyKernel, claim: str
) -> None:
    driver = await KernelDriver.open(monty, SETTINGS, **ANSWERS)
    assert (await driver.run(REFUSED[claim])).status == "error"


@pytest.mark.parametrize("claim", ADVISED)
async def test_what_the_card_advises_works(monty: MontyKernel, claim: str) -> None:
    code, expected = ADVISED[claim]
    driver = await KernelDriver.open(monty, SETTINGS, **ANSWERS)
    assert await driver.value(code) == expected


async def test_every_module_that_the_card_lists_can_be_imported(monty: MontyKernel) -> None:
    listed = CARD.partition("- Modules: ")[2].partition(".\n")[0].split()
    assert len(listed) > 20
    driver = await KernelDriver.open(monty)
    result = await driver.run("\n".join(f"import {name}" for name in listed))
    assert result.status == "ok", result.error


async def test_the_share_of_programs_that_run_unchanged_is_known(monty: MontyKernel) -> None:
    ran, wrong = 0, set()
    programs = read_programs()
    for program in programs:
        driver = await KernelDriver.open(monty, SETTINGS, **ANSWERS)
        result = await driver.run(program.code)
        if result.status == "ok" and result.value is not None and result.value.encoded is not None:
            encoded = result.value.encoded
            same = values.decode(encoded.encoding, encoded.data) == program.expected
            ran += same
            wrong |= set() if same else {program.name}
        else:
            assert result.error is not None, (program.name, result)
        await driver.session.close()
    # 69 of 148 when this was written. What the card names as silent is all that is silent.
    assert ran / len(programs) > 0.4
    assert wrong <= {"classes: slots", "classes: descriptors"}
