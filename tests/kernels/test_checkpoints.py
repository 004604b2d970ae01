"""A namespace comes back as it was, or with a marker that says why not; a checkpoint costs what
changed."""

from __future__ import annotations

import json
import sys

import pytest

from holdfast.core import payloads, records
from holdfast.core.errors import NotRestorable
from holdfast.kernels import plain_data as plain_reader
from holdfast.kernels.cpython import CpythonKernel
from holdfast.kernels.port import KernelSettings
from holdfast.testing.kernel_driver import KernelDriver


async def _restored(kernel: CpythonKernel, *cells: str) -> KernelDriver:
    driver = await KernelDriver.open(kernel)
    for cell in cells:
        await driver.value(cell)
    return await driver.reopen()


async def test_sharing_between_variables_is_kept(cpython: CpythonKernel) -> None:
    driver = await _restored(cpython, "a = [1]", "b = {'x': a}", "c = (a, b)")
    assert await driver.value("a.append(2)\n(b['x'], c[0] is a, c[1] is b)") == ([1, 2], True, True)


async def test_cycles_within_and_between_variables_are_kept(cpython: CpythonKernel) -> None:
    driver = await _restored(
        cpython,
        "class Node: pass\na, b = Node(), Node()\na.other, b.other = b, a",
        "loop = []\nloop.append(loop)\nd = {}\nd['self'] = d",
    )
    assert (
        await driver.value(
            "(a.other is b, b.other is a, type(a) is Node, loop[0] is loop, d['self'] is d)"
        )
        == (True,) * 5
    )


async def test_closures_share_their_cells_after_a_restore(cpython: CpythonKernel) -> None:
    driver = await _restored(
        cpython,
        "def make():\n    n = 0\n    def up():\n        nonlocal n\n        n += 1\n"
        "        return n\n    def read():\n        return n\n    return up, read\n"
        "up, read = make()\nup()",
    )
    assert await driver.value("up()\nread()") == 2


async def test_functions_see_the_namespace_not_a_copy(cpython: CpythonKernel) -> None:
    driver = await _restored(
        cpython, "def f():\n    return g() + base", "def g():\n    return 1\nbase = 10"
    )
    assert await driver.value("def g():\n    return 5\nbase = 20\nf()") == 25


async def test_a_redefined_function_and_its_old_self_are_both_kept(cpython: CpythonKernel) -> None:
    driver = await _restored(
        cpython, "def f():\n    return 'old'\nold = f", "def f():\n    return 'new'"
    )
    assert await driver.value("(old(), f(), old is f)") == ("old", "new", False)


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="annotations of a module are its code")
async def test_annotations_of_variables_are_kept(cpython: CpythonKernel) -> None:
    driver = await _restored(cpython, "class P: pass\nx: int = 3\np: P\nq: list[P] = []")
    annotations = "(list(__annotations__), __annotations__['p'] is P, __annotations__['x'] is int)"
    assert await driver.value(annotations) == (["x", "p", "q"], True, True)
    await driver.run("y: str = ''")
    await driver.reopen()
    assert await driver.value("(list(__annotations__), x)") == (["x", "p", "q", "y"], 3)


async def test_settings_of_the_interpreter_are_kept(cpython: CpythonKernel) -> None:
    driver = await _restored(
        cpython,
        "import decimal, sys\nsys.setrecursionlimit(20_000)\ncontext = decimal.getcontext()\n"
        "context.prec, context.rounding = 50, decimal.ROUND_DOWN\n"
        "context.traps[decimal.Inexact] = True\ndel context",
    )
    code = (
        "import decimal, sys\nc = decimal.getcontext()\n"
        "(sys.getrecursionlimit(), c.prec, c.rounding, c.traps[decimal.Inexact], c.Emax)"
    )
    expected = (20_000, 50, "ROUND_DOWN", True, 999999)
    assert await driver.value(code) == expected
    # Once more, in a worker that has them from a checkpoint itself.
    await driver.reopen()
    assert await driver.value(code) == expected
    await driver.value("decimal.setcontext(decimal.Context())\nsys.setrecursionlimit(1000)")
    assert "decimal" not in (driver.manifest or {})
    await driver.reopen()
    assert (await driver.value(code))[:2] == (1000, 28)


@pytest.mark.parametrize(("set_to", "kept"), [(30, 200), (2**31 - 1, 2**31 - 1)])
async def test_a_recursion_limit_leaves_the_worker_room(
    cpython: CpythonKernel, set_to: int, kept: int
) -> None:
    driver = await KernelDriver.open(cpython)
    await driver.run(f"import sys\nsys.setrecursionlimit({set_to})")
    assert await driver.value("sys.getrecursionlimit()") == kept
    await driver.reopen()
    assert await driver.value("sys.getrecursionlimit()") == kept


async def test_what_stands_in_place_of_the_decimal_module_costs_no_checkpoint(
    cpython: CpythonKernel,
) -> None:
    driver = await KernelDriver.open(cpython)
    await driver.value("import sys\nsys.modules['decimal'] = 'none'\nkept = 1")
    await driver.reopen()
    assert await driver.value("kept") == 1
    await driver.value(
        "import decimal\nmade = []\nclass Context:\n    def __reduce__(self):\n"
        "        made.append(1)\n        return 0, (len(made), [], [])\n"
        "decimal.getcontext = decimal.Context = Context"
    )
    assert "decimal" in (driver.manifest or {})
    await driver.reopen()
    assert await driver.value("kept") == 1


@pytest.mark.parametrize(
    ("module", "names"),
    [
        (
            "time",
            "time time_ns sleep gmtime localtime ctime asctime strftime clock_gettime "
            "clock_gettime_ns",
        ),
        ("os", "urandom getrandom getpid kill"),
        ("select", "select"),
    ],
)
async def test_names_of_pinned_functions_are_the_pinned_ones_after_a_restore(
    cpython: CpythonKernel, module: str, names: str
) -> None:
    listed = ", ".join(names.split())
    driver = await KernelDriver.open(cpython)
    result = await driver.run(f"from {module} import {listed}")
    assert result.unrestorable == ()
    await driver.reopen()
    code = f"import {module} as m\n[f.__name__ for f in ({listed},) if f is getattr(m, f.__name__)]"
    assert await driver.value(code) == names.split()


async def test_recursive_and_nested_functions_are_kept(cpython: CpythonKernel) -> None:
    driver = await _restored(
        cpython,
        "def outer(k):\n    def inner(n):\n        return 1 if n == 0 else n * inner(n - 1) + k\n"
        "    return inner\nfact = outer(0)\nhooks = [lambda x, i=i: x + i for i in range(3)]",
    )
    assert await driver.value("(fact(5), [h(10) for h in hooks])") == (120, [10, 11, 12])


async def test_tracebacks_of_restored_functions_show_their_lines(cpython: CpythonKernel) -> None:
    driver = await _restored(cpython, "x = 1\n\ndef broken(n):\n    return n / 0  # this line")
    result = await driver.run("broken(3)")
    assert result.error is not None
    assert "this line" in result.error.traceback
    assert "line 4, in broken" in result.error.traceback


async def test_instances_of_a_redefined_class_keep_their_old_class(cpython: CpythonKernel) -> None:
    driver = await _restored(
        cpython,
        "class P:\n    def who(self):\n        return 'first'\np = P()",
        "class P:\n    def who(self):\n        return 'second'\nq = P()",
    )
    assert await driver.value("(p.who(), q.who(), type(q) is P, type(p) is P)") == (
        "first",
        "second",
        True,
        False,
    )


async def test_imports_are_kept(cpython: CpythonKernel) -> None:
    driver = await _restored(
        cpython, "import math, json as j\nfrom collections import Counter as C"
    )
    assert await driver.value("(math.floor(2.5), j.loads('[1]'), C('aab')['a'])") == (2, [1], 2)


async def test_a_number_that_random_holds_back_is_part_of_the_checkpoint(
    cpython: CpythonKernel,
) -> None:
    drawn = []
    for parks in (False, True):
        driver = await KernelDriver.open(cpython)
        await driver.run("import random")
        # Numbers of `gauss` are made in pairs: every other one moves no word of the generator.
        for _ in range(4):
            drawn.append(await driver.value("random.gauss(0, 1)"))
            if parks:
                await driver.session.park()
    assert drawn[:4] == drawn[4:]
    assert len(set(drawn)) == 4


async def test_the_random_state_is_part_of_the_checkpoint(cpython: CpythonKernel) -> None:
    driver = await KernelDriver.open(cpython)
    await driver.run("import random, uuid, os\nrandom.random()\nuuid.uuid4()")
    manifest = driver.manifest
    code = "[random.random(), str(uuid.uuid4()), os.urandom(4).hex(), random.Random().random()]"
    first = await driver.value(code)
    assert manifest is not None
    await driver.session.restore(manifest)
    assert await driver.value(code) == first


async def test_sessions_with_other_seeds_draw_other_numbers(cpython: CpythonKernel) -> None:
    drawn = []
    for seed in (1, 1, 2):
        driver = await KernelDriver.open(cpython, KernelSettings(seed=seed))
        drawn.append(
            await driver.value("import random, secrets\n[random.random(), secrets.token_hex(4)]")
        )
    assert drawn[0] == drawn[1] != drawn[2]


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("x = (i for i in range(3))", "generator"),
        ("import threading\nx = threading.Lock()", "lock"),
        ("import socket\nx = socket.socketpair()[0]", "socket"),
        ("import io\nx = open('/dev/null') if False else memoryview(b'a')", "memoryview"),
        ("async def f(): pass\nx = f()", "coroutine"),
        ("import sys\nx = sys._getframe()", "frame"),
    ],
)
async def test_what_cannot_be_kept_becomes_a_marker_that_says_why(
    cpython: CpythonKernel, code: str, kind: str
) -> None:
    driver = await KernelDriver.open(cpython)
    result = await driver.run(f"{code}\ny = [1]\nNone")
    told = {item.name: item.reason for item in result.unrestorable}
    assert kind in told["x"]
    listed = {variable.name: variable.restorable for variable in await driver.session.variables()}
    assert listed["x"] is False
    assert listed["y"] is True
    for again in (False, True):
        if again:
            await driver.reopen()
        used = await driver.run("x()")
        assert used.error is not None
        assert "was not kept" in used.error.message
    assert await driver.value("y") == [1]


async def test_a_marker_inside_a_value_leaves_the_rest_of_it(cpython: CpythonKernel) -> None:
    driver = await KernelDriver.open(cpython)
    result = await driver.run(
        "import threading\nclass Job:\n    def __init__(self):\n"
        "        self.lock = threading.Lock()\n        self.name = 'n'\njob = Job()"
    )
    assert [item.name for item in result.unrestorable] == ["job"]
    await driver.reopen()
    assert await driver.value("job.name") == "n"
    assert (await driver.run("job.lock.acquire()")).status == "error"
    again = await driver.run("other = 1")
    assert again.unrestorable == ()


async def test_an_object_whose_pickling_fails_does_not_take_others_along(
    cpython: CpythonKernel,
) -> None:
    driver = await _restored(
        cpython,
        "class Bad:\n    def __reduce__(self):\n        raise RuntimeError('no')\n"
        "class Worse:\n    def __reduce__(self):\n        return (1, 2, 3)\n"
        "a, bad, worse, z = [1], Bad(), Worse(), {'k': 2}",
    )
    assert await driver.value("(a, z)") == ([1], {"k": 2})
    assert "not kept" in await driver.value("repr(bad) + repr(worse)")


async def test_an_error_without_text_is_told_by_its_type(cpython: CpythonKernel) -> None:
    driver = await KernelDriver.open(cpython)
    result = await driver.run(
        "class D:\n    def __reduce__(self):\n        raise MemoryError\nd = D()"
    )
    assert [item.reason for item in result.unrestorable] == ["__main__.D: MemoryError"]


async def test_an_object_that_cannot_be_made_again_does_not_take_others_along(
    cpython: CpythonKernel,
) -> None:
    driver = await _restored(
        cpython,
        "class Once:\n    def __setstate__(self, state):\n        raise RuntimeError('no')\n"
        "once = Once()\nonce.x = 1\nshared = [1]\nbefore, after = {'s': shared}, {'s': shared}",
    )
    assert await driver.value("before['s'].append(2)\nafter['s']") == [1, 2]


DEPTH = 300 if sys.version_info[:2] == (3, 12) else 3000
"""Python 3.12 has a bound of its own that nothing moves."""


async def test_deeply_nested_and_long_linked_data_is_kept(cpython: CpythonKernel) -> None:
    driver = await _restored(
        cpython,
        f"deep = []\nfor _ in range({DEPTH}):\n    deep = [deep]",
        "class Link:\n    def __init__(self, next):\n        self.next = next\nchain = None\n"
        f"for _ in range({DEPTH}):\n    chain = Link(chain)",
    )
    code = "n, at = 0, chain\nwhile at:\n    n, at = n + 1, at.next\nm, inner = 0, deep\n"
    code += "while inner:\n    m, inner = m + 1, inner[0]\n(n, m)"
    assert await driver.value(code) == (DEPTH, DEPTH)


async def test_a_small_change_beside_large_text_costs_kilobytes(cpython: CpythonKernel) -> None:
    driver = await KernelDriver.open(cpython)
    await driver.run("text = 'x' * 10_000_000\nparts = [text, 'y' * 200_000]\nn = 0")
    assert driver.stored_bytes > 10_000_000
    for code in ("n = 1", "more = {'a': text}", "n += 1\nparts.append(n)", "other = text[:100]"):
        await driver.run(code)
        assert driver.stored_bytes + len(records.canonical(driver.manifest)) < 20_000, code
    await driver.reopen()
    assert await driver.value("(len(text), parts[0] is text, more['a'] is text, n)") == (
        10_000_000,
        True,
        True,
        2,
    )
    await driver.run("n = 5")
    assert driver.stored_bytes < 20_000


async def test_a_small_change_beside_many_objects_costs_little(cpython: CpythonKernel) -> None:
    driver = await KernelDriver.open(cpython)
    await driver.run("early = []\nn = 0")
    await driver.run("rows = [{'id': i, 'name': f'row {i}'} for i in range(20000)]\nlast = []")
    assert driver.stored_bytes > 300_000
    # A variable that changes in place before the bulk moves behind it, once.
    await driver.run("n = 1\nlast.append([1])\nearly.append([1])")
    for code in ("n = 2", "last.append([2])", "early.append([2])", "fresh = 'new'", "n = 3"):
        await driver.run(code)
        assert driver.stored_bytes < 20_000, code
    await driver.run("rows.append({'id': -1})")
    assert driver.stored_bytes < 1_200_000


async def test_a_checkpoint_is_a_record_with_payload_refs(cpython: CpythonKernel) -> None:
    driver = await KernelDriver.open(cpython)
    await driver.run("text = 'z' * 100_000\nrow = {'a': 1}")
    assert driver.manifest is not None
    data = records.canonical(driver.manifest)
    assert json.loads(data) == driver.manifest
    refs = [slot for slot in payloads.walk(driver.manifest) if not slot.inline]
    assert {slot.id for slot in refs} <= set(driver.chunks)
    for slot in refs:
        payloads.check_bytes(slot, driver.chunks[slot.id])


async def test_a_missing_chunk_is_a_typed_refusal(cpython: CpythonKernel) -> None:
    driver = await KernelDriver.open(cpython)
    await driver.run("text = 'z' * 100_000")
    bare = await cpython.open(KernelSettings(), manifest=driver.manifest)
    with pytest.raises(NotRestorable, match="cannot be read"):
        await bare.checkpoint()
    with pytest.raises(NotRestorable, match="engine"):
        await bare.restore({"engine": "other", "format": 9})


async def test_plain_data_is_read_without_a_worker(cpython: CpythonKernel) -> None:
    driver = await KernelDriver.open(cpython)
    values = {
        "numbers": [1, -5, 2**70, 2.5, float("inf"), True, None],
        "text": "é" * 70_000,
        "mixed": {"t": (1, (2,)), "s": {1, 2}, "f": frozenset({"a"}), "b": b"\x00\xff", 3: "key"},
    }
    for name, value in values.items():
        await driver.run(
            f"{name} = {value!r}"
            if "inf" not in repr(value)
            else f"inf = float('inf')\n{name} = {value!r}"
        )
    await driver.run(
        "from datetime import date, datetime, timezone\nfrom decimal import Decimal\nimport uuid\n"
        "when = [date(2024, 1, 2), datetime(2024, 1, 2, 3, tzinfo=timezone.utc), Decimal('1.10')]\n"
        "ident = uuid.UUID(int=5)\nshared = [text, text]\n"
        "def f(): pass\nclass C: pass\nc = C()\nholder = [c]\n"
        "del date, datetime, timezone, Decimal, uuid"
    )
    assert driver.manifest is not None
    plain, others = await plain_reader.plain_variables(driver.manifest, driver.fetch)
    assert set(others) == {"f", "C", "c", "holder"}
    check = await KernelDriver.open(cpython)
    for name, encoded in plain.items():
        await check.session.set_variable(name, encoded)
    for name, value in values.items():
        assert (
            await check.value(
                f"{name} == {value!r}"
                if "inf" not in repr(value)
                else f"numbers[4] == float('inf') and numbers[:4] == {value[:4]!r}"
            )
            is True
        )  # type: ignore[index]
    assert await check.value("[str(w) for w in when] + [ident.int]") == [
        "2024-01-02",
        "2024-01-02 03:00:00+00:00",
        "1.10",
        5,
    ]


async def test_patched_builtins_hurt_only_their_own_session_and_vanish(
    cpython: CpythonKernel,
) -> None:
    driver = await KernelDriver.open(cpython)
    await driver.run(
        "import builtins, json\nbuiltins.len = lambda x: 99\njson.dumps = None\nkept = 1"
    )
    other = await KernelDriver.open(cpython)
    assert await other.value("import json\n(len([1]), json.dumps([]))") == (1, "[]")
    await driver.reopen()
    assert await driver.value("(len([1]), kept)") == (1, 1)


async def test_module_level_state_of_the_namespace_itself_can_be_held(
    cpython: CpythonKernel,
) -> None:
    driver = await _restored(cpython, "g = globals()\nx = 5\nimport __main__ as me")
    assert await driver.value("(g is globals(), g['x'], me.x)") == (True, 5, 5)


async def test_host_functions_and_errors_held_in_variables_come_back(
    cpython: CpythonKernel,
) -> None:
    from program_corpus import ANSWERS, SETTINGS

    def refuse(text: str) -> str:
        raise PermissionError(text)

    driver = await KernelDriver.open(cpython, SETTINGS, **{**ANSWERS, "lm": refuse})
    await driver.run(
        "ask = lm\ntry:\n    ask('x')\nexcept Exception as e:\n    error = e\nimport tools"
    )
    await driver.reopen()
    driver.answers["lm"] = lambda text: text * 2
    assert await driver.value("(ask('ab'), tools.search('q'), str(error))") == ("abab", ["q"], "x")


async def test_what_a_restore_could_not_make_is_told_with_the_next_cell(
    cpython: CpythonKernel,
) -> None:
    driver = await _restored(
        cpython,
        "class Once:\n    def __setstate__(self, state):\n        raise RuntimeError('no')\n"
        "once = Once()\nonce.x = 1",
    )
    first = await driver.run("1")
    assert [item.name for item in first.unrestorable] == ["once"]
    assert (await driver.run("2")).unrestorable == ()
