"""The code of a reply is found as models write it, and its results are shown within bounds."""

from __future__ import annotations

import pytest

from holdfast.kernels.cells import extract
from holdfast.kernels.cpython import CpythonKernel
from holdfast.kernels.observation import nudge, observe, observe_cell, observe_death
from holdfast.kernels.port import (
    CellError,
    CellResult,
    Excerpt,
    HostFunction,
    KernelLimits,
    KernelSettings,
    Unrestorable,
    ValueView,
)
from holdfast.testing.kernel_driver import KernelDriver

EMPTY = Excerpt("", "", 0)


@pytest.mark.parametrize(
    ("reply", "cells"),
    [
        ("```python\nx = 1\n```", ["x = 1"]),
        ("```py\na\n```\ntext\n```repl\nb\n```", ["a", "b"]),
        ("```\nbare\n```", ["bare"]),
        ("```Python3 title='x'\nupper\n```", ["upper"]),
        ("```python {.numbered}\nattr\n```", ["attr"]),
        ("~~~python\ntilde\n~~~", ["tilde"]),
        ("```bash\nls\n```\n```json\n{}\n```", []),
        ("```python\nnever closed\nmore", ["never closed\nmore"]),
        ("no code at all", []),
        ("", []),
        ("```python\n```", []),
        ("```python\n\n   \n```", []),
        ("````python\ns = '''\n```\ninner\n```\n'''\n````", ["s = '''\n```\ninner\n```\n'''"]),
        ("  ```python\n  indented\n    deeper\n  ```", ["indented\n  deeper"]),
        ("inline ``` is no fence\n```python\nyes\n```", ["yes"]),
        ("```python\nif x:\n    y\n\n    z\n```", ["if x:\n    y\n\n    z"]),
        ("```pycon\n>>> a = 1\n>>> for i in a:\n...     i\n2\n```", ["a = 1\nfor i in a:\n    i"]),
        ("```python\r\na = 1\r\nb = 2\r\n```\r\n", ["a = 1\nb = 2"]),
        ("``` `code` ```\n```python\nx\n```", ["x"]),
        (
            "```python\nx = 'a\u2028b\x0cc\x85d\x1ce'\r\ny = 'kept \r'\r\n```",
            ["x = 'a\u2028b\x0cc\x85d\x1ce'\ny = 'kept \r'"],
        ),
        ("1. First\n\n    ```python\n    if x:\n        y\n    ```\n2. Next", ["if x:\n    y"]),
        ("- ```python\n  a = 1\n\n  b = 2\n  ```\n- then", ["a = 1\n\nb = 2"]),
        ("10. ```py\n    a\n    ```\n11. ```py\n    b\n    ```", ["a", "b"]),
        ("* - ```python\n    a\n    ```", ["a"]),
        ("- ```python\nif x:\n  y\n```", ["if x:\n  y"]),
        ("- ```python\n  s = '''\nleft\n  '''\n  ```", ["s = '''\nleft\n'''"]),
        ("\t```python\n\tif x:\n\t\ty\n\t```", ["if x:\n\ty"]),
        (
            "```python\ndef f():\n    '''\n    ```\n    x\n    ```\n    '''\n```",
            ["def f():\n    '''\n    ```\n    x\n    ```\n    '''"],
        ),
        ("```python\n# - ```\n- ```\n```", ["# - ```\n- ```"]),
        ("```python3.11\na\n```\n```tool_code\nb\n```\n```IPython\nc\n```", ["a", "b", "c"]),
        ("```{python}\na\n```\n```{.python .numbered}\nb\n```", ["a", "b"]),
        ("```{python echo=FALSE}\na\n```\n```python:main.py\nb\n```", ["a", "b"]),
        ("```{bash}\nls\n```\n```{r}\nx\n```\n```python_output\n1\n```", []),
        ("```python\na = 1\n```python\nb = 2\n```", ["a = 1", "b = 2"]),
        ("```\na = 1\n\n```py\nb = 2", ["a = 1\n", "b = 2"]),
        ("````python\ns = '''\n```python\n'''\n````", ["s = '''\n```python\n'''"]),
        ("```markdown\n# How\n```python\nx()\n```\n```", []),
    ],
)
def test_code_blocks_are_extracted_in_order(reply: str, cells: list[str]) -> None:
    assert extract(reply) == cells


def test_a_small_value_is_shown_whole_and_a_big_one_by_its_ends() -> None:
    small = CellResult("ok", EMPTY, EMPTY, value=ValueView("int", Excerpt("42", "", 2), None))
    assert observe_cell(small) == "=> 42"
    text = Excerpt("h" * 3000, "t" * 1000, 1_000_000)
    big = CellResult("ok", EMPTY, EMPTY, value=ValueView("str of 999998 characters", text, None))
    shown = observe_cell(big)
    assert "«str of 999998 characters»" in shown
    assert "of 1000000 characters left out" in shown
    assert shown.count("h") > 300
    assert shown.endswith("t" * 100)
    assert len(shown) < 1000


def test_long_output_keeps_both_ends_and_counts_the_rest() -> None:
    output = Excerpt("a" * 6000, "z" * 6000, 50_000)
    shown = observe_cell(CellResult("ok", output, EMPTY))
    assert shown.startswith("aaa")
    assert shown.endswith("zzz")
    assert "of 50000 characters left out" in shown


@pytest.mark.parametrize(
    "printed", [Excerpt("a" * 6000, "z" * 6000, 50_000), Excerpt("a" * 4000 + "zzz", "", 4003)]
)
def test_the_error_output_is_bounded_closer_and_counts_the_rest(printed: Excerpt) -> None:
    shown = observe_cell(CellResult("ok", EMPTY, printed))
    assert shown.startswith("stderr: aaa")
    assert shown.endswith("zzz")
    assert f"[…{printed.size - 2000} of {printed.size} characters left out…]" in shown
    assert len(shown) < 2_100


def test_a_cell_that_shows_nothing_says_so() -> None:
    assert observe_cell(CellResult("ok", EMPTY, EMPTY)) == "(no output and no value)"


def test_errors_limits_and_losses_are_told() -> None:
    error = CellError("E", "m", "Traceback\n  E: m\n", 3)
    assert "Traceback" in observe_cell(CellResult("error", EMPTY, EMPTY, error=error))
    limit = CellResult("limit", EMPTY, EMPTY, limit="memory", namespace_kept=False)
    assert "memory limit" in observe_cell(limit)
    assert "as they were before" in observe_cell(limit)
    lost = CellResult("ok", EMPTY, EMPTY, unrestorable=(Unrestorable("g", "generator: no"),))
    assert "`g` is not kept" in observe_cell(lost)
    repaired = CellResult("ok", EMPTY, EMPTY, repaired=("lm",))
    assert "`lm` belongs to the engine" in observe_cell(repaired)
    diverged = CellResult("diverged", EMPTY, EMPTY, detail="it changed", namespace_kept=False)
    assert "it changed" in observe_cell(diverged)
    assert "as they were before" in observe_death("killed")


def test_several_blocks_are_numbered_and_the_skipped_ones_counted() -> None:
    result = CellResult("ok", EMPTY, EMPTY, value=ValueView("int", Excerpt("1", "", 1), None))
    text = observe([observe_cell(result, 0, 3)], final=False, skipped=2)
    assert text.startswith("Block 1:\n=> 1")
    assert "2 later blocks did not run" in text
    assert "FINAL was not called" in text
    assert "still open" not in observe(["done"], final=True, skipped=0)
    assert "```python" in nudge()


@pytest.mark.parametrize(
    ("code", "parts"),
    [
        ("list(range(100000))", ["«list of 100000 items»", "[0, 1, 2", "99999]", "left out"]),
        ("'ab' * 500000", ["«str of 1000000 characters»", "abab", "left out"]),
        ("{i: i for i in range(10000)}", ["«dict of 10000 items»", "{0: 0", "9999: 9999}"]),
        ("[[1, 2], 'x']", ["=> [[1, 2], 'x']"]),
        ("a = []\na.append(a)\na", ["=> [[...]]"]),
        ("class B:\n    def __repr__(self): 1/0\nB()", ["whose repr raised ZeroDivisionError"]),
        ("set(), frozenset(), (1,), {}", ["(set(), frozenset(), (1,), {})"]),
    ],
)
async def test_values_of_cells_are_shown_fit_or_stub(
    cpython: CpythonKernel, code: str, parts: list[str]
) -> None:
    driver = await KernelDriver.open(cpython)
    shown = observe_cell(await driver.run(code))
    for part in parts:
        assert part in shown
    assert len(shown) < 1500


async def test_inspect_pages_and_is_the_standard_module_too(cpython: CpythonKernel) -> None:
    driver = await KernelDriver.open(cpython)
    result = await driver.run("text = 'abc' * 5000\ninspect(text, 3000)")
    assert result.stdout.head.startswith("str of 15000 characters, showing 3000 to 6000")
    assert "9000 more: inspect(value, 6000)" in result.stdout.head
    result = await driver.run("inspect({'k': list(range(1000)), 'l': 1}, count=1)")
    assert "dict of 2 items, showing 0 to 1" in result.stdout.head
    assert "'k': [0, 1, 2" in result.stdout.head
    result = await driver.run("class P:\n    def __init__(self): self.a = 1\ninspect(P())")
    assert "'a': 1" in result.stdout.head
    await driver.run("import inspect")
    assert await driver.value("inspect.isfunction(len)") is False


async def test_output_keeps_head_and_tail(cpython: CpythonKernel) -> None:
    driver = await KernelDriver.open(cpython)
    code = "for i in range(20000):\n    print(f'line {i}')"
    result = await driver.run(code, limits=KernelLimits())
    assert result.stdout.head.startswith("line 0\nline 1\n")
    assert result.stdout.tail.endswith("line 19999\n")
    assert result.stdout.size == sum(len(f"line {i}\n") for i in range(20000))


def test_notes_and_tracebacks_are_bounded_and_say_what_they_leave_out() -> None:
    result = CellResult(
        "error",
        EMPTY,
        EMPTY,
        error=CellError("E", "m", "first\n" + "t" * 500_000 + "\nlast", None),
        unrestorable=tuple(Unrestorable(f"g{i}" * 100, "r" * 5000) for i in range(5000)),
        repaired=tuple(f"n{i}" for i in range(5000)),
    )
    shown = observe_cell(result)
    assert len(shown) < 25_000
    assert "first" in shown
    assert "last" in shown
    assert "4980 more names are not kept" in shown
    assert "4980 more names belong to the engine" in shown
    assert len(observe_death("x" * 500_000)) < 5_000
    diverged = CellResult("diverged", EMPTY, EMPTY, detail="d" * 500_000)
    assert len(observe_cell(diverged)) < 5_000


@pytest.mark.parametrize("code", ["list(range(100_000))", "{'a': {'b': ['x' * 300] * 500}}"])
async def test_no_size_is_told_of_a_large_value_but_its_own(
    cpython: CpythonKernel, code: str
) -> None:
    driver = await KernelDriver.open(cpython)
    shown = observe_cell(await driver.run(code))
    assert "of it left out" in shown
    assert " of 3" not in shown.split("»")[1]


async def test_of_a_value_that_is_kept_in_part_no_more_is_said_to_be_lost(
    cpython: CpythonKernel,
) -> None:
    driver = await KernelDriver.open(cpython)
    result = await driver.run("import threading\nx = {'n': 1, 'lock': threading.Lock()}")
    assert "Note: a part of `x` is not kept for later cells (holds a " in observe_cell(result)
    assert await driver.value("x['n']") == 1
    lost = await driver.run("y = threading.Lock()")
    assert "Note: `y` is not kept for later cells (_thread.lock: " in observe_cell(lost)


@pytest.mark.parametrize("code", ["exit()", "quit()", "leave = exit\nleave()"])
async def test_exit_and_quit_end_the_cell_and_not_the_session(
    cpython: CpythonKernel, code: str
) -> None:
    driver = await KernelDriver.open(cpython)
    result = await driver.run(f"kept = 1\n{code}\nkept = 2")
    assert result.error is not None
    assert result.error.type == "SystemExit"
    assert "holdfast" not in result.error.traceback
    told = (await driver.run("exit('done')")).error
    assert told is not None
    assert (told.message, told.line) == ("done", 1)
    await driver.reopen()
    assert await driver.value("(kept, globals().get('leave', exit) is exit)") == (1, True)


async def test_help_prints_without_a_pager_and_asks_nothing(cpython: CpythonKernel) -> None:
    function = HostFunction("look", signature="(place)", doc="Look at a place.")
    driver = await KernelDriver.open(cpython, KernelSettings(functions=(function,)))
    result = await driver.run("def area(w, h):\n    'The area of a box.'\nhelp(area)\nhelp(len)")
    assert "area(w, h)\n    The area of a box." in result.stdout.head
    assert "len(obj, /)" in result.stdout.head
    assert "look(place)" in (await driver.run("help(look)")).stdout.head
    assert "Look at a place." in (await driver.run("help(look)")).stdout.head
    assert 'The "while" statement' in (await driver.run("help('while')")).stdout.head
    assert (await driver.run("help()")).status == "ok"
    assert "\b" not in (await driver.run("class P:\n    'p'\nhelp(P)")).stdout.head


async def test_bytes_can_be_written_to_the_output(cpython: CpythonKernel) -> None:
    driver = await KernelDriver.open(cpython)
    result = await driver.run(
        "import sys\nout = sys.stdout.buffer\ndata = 'größe\\n'.encode()\n"
        "print('first')\n"
        "written = [out.write(data[:3]), out.write(memoryview(data)[3:]), out.write(b'\\xff\\xc3')]"
    )
    assert result.stdout.head == "first\ngröße\n\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}"
    await driver.reopen()
    assert (await driver.run("out.write(b'again')\nwritten")).stdout.head == "again"
    assert await driver.value("(out is sys.stdout.buffer, written)") == (True, [3, 5, 2])
    limited = await driver.run("out.write(b'x' * 5000)", limits=KernelLimits(output_bytes=4000))
    assert limited.limit == "output"


async def test_an_error_in_a_thread_shows_the_lines_of_the_model_alone(
    cpython: CpythonKernel,
) -> None:
    driver = await KernelDriver.open(cpython)
    result = await driver.run(
        "import threading\ndef work():\n    return [1][int('1')]\n"
        "thread = threading.Thread(target=work, name='mine')\nthread.start()\ndel thread"
    )
    assert result.status == "ok"
    assert result.stderr.head.startswith(
        "Exception in thread mine:\nTraceback (most recent call last):\n"
        "  File \"<cell 1>\", line 3, in work\n    return [1][int('1')]\n"
    )
    assert result.stderr.head.endswith("IndexError: list index out of range\n")
    assert result.stderr.head.count("File ") == 1
    # What ends the cell, or its thread on purpose, is no error.
    ended = await driver.run(
        "import sys\nfor target in (sys.exit, FINAL):\n    threading.Thread(target=target).start()"
    )
    assert (ended.status, ended.stderr.size) == ("final", 0)


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("f()\n1", "<cell 1>:2: RuntimeWarning: coroutine 'f' was never awaited\n  f()\n"),
        ("kept = f()", "RuntimeWarning: coroutine 'f' was never awaited\n"),
        ("import warnings\nwarnings.warn('old', stacklevel=3)", "UserWarning: old\n"),
    ],
)
async def test_a_warning_names_its_place_only_if_it_is_in_a_cell(
    cpython: CpythonKernel, code: str, told: str
) -> None:
    driver = await KernelDriver.open(cpython)
    assert (await driver.run(f"async def f(): return 1\n{code}")).stderr.head == told
