"""Programs that models write and that once lost a cell, a name or a whole session."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest

from holdfast.core.errors import KernelDied
from holdfast.kernels.cpython import CpythonKernel, CpythonSession
from holdfast.kernels.monty import MontyKernel
from holdfast.kernels.port import HostFunction, KernelSettings
from holdfast.testing.kernel_driver import KernelDriver

LM = KernelSettings(functions=(HostFunction("lm"),))

CAREFUL = {
    "lru cache": (
        "from collections import OrderedDict\nclass LRU(OrderedDict):\n"
        "    def __init__(self, cap):\n        super().__init__()\n        self.cap = cap\n"
        "    def __setitem__(self, k, v):\n        super().__setitem__(k, v)\n"
        "        if len(self) > self.cap:\n            self.popitem(last=False)\n"
        "x = LRU(2)\nx['a'] = 1\nx['b'] = 2",
        "(list(x.items()), x.cap)",
        ([("a", 1), ("b", 2)], 2),
    ),
    "delegation": (
        "class Dot:\n    def __init__(self, d):\n        self._d = d\n"
        "    def __getattr__(self, name):\n        return self._d[name]\nx = Dot({'a': 1})",
        "x.a",
        1,
    ),
    "hashed graph": (
        "class Node:\n    def __init__(self, n):\n        self.n, self.near = n, set()\n"
        "    def __hash__(self):\n        return hash(self.n)\n"
        "    def __eq__(self, other):\n        return self.n == other.n\n"
        "x, y = Node(1), Node(2)\nx.near.add(y)\ny.near.add(x)",
        "([m.n for m in x.near], x in y.near)",
        ([2], True),
    ),
    "validated dict": (
        "class V(dict):\n    def __init__(self, allowed):\n        self.allowed = allowed\n"
        "    def __setitem__(self, k, v):\n        assert k in self.allowed\n"
        "        super().__setitem__(k, v)\nx = V(['p'])\nx['p'] = 1",
        "(dict(x), x.allowed)",
        ({"p": 1}, ["p"]),
    ),
    "tuple with __new__": (
        "class P(tuple):\n    def __new__(cls, a, b):\n"
        "        return super().__new__(cls, (a, b))\n"
        "x = P(1, 2)",
        "(tuple(x), type(x) is P)",
        ((1, 2), True),
    ),
    "optional": (
        "from typing import Optional\ndef x(a: Optional[int] = None) -> int | None:\n    return a",
        "(x(3), x.__annotations__['return'] == (int | None))",
        (3, True),
    ),
    "new type": ("from typing import NewType\nx = NewType('x', int)", "x(3)", 3),
    "enum with _missing_": (
        "from enum import Enum\nclass x(Enum):\n    A = 'a'\n    @classmethod\n"
        "    def _missing_(cls, value):\n        return cls.A",
        "x('?').name",
        "A",
    ),
    "an inverted flag": (
        "from enum import Flag, auto\nclass x(Flag):\n    R = auto()\n    W = auto()\n"
        "    RW = R | W\ny = ~x.R",
        "(y is x.W, (x.R | x.W) is x.RW, ~x.W is x.R)",
        (True, True, True),
    ),
    "enum members that hold each other": (
        "from enum import Enum\nclass x(Enum):\n    A = 1\n    B = 2\n"
        "x.A.other, x.B.other = x.B, x.A\ny = [x.A]",
        "(y[0].other is x.B, x.B.other is x.A)",
        (True, True),
    ),
    "a hint that names its own class": (
        "from typing import List, Optional, TypeVar\nclass Node:\n"
        "    def __init__(self, next: Optional['Node'] = None):\n        self.next = next\n"
        "T = TypeVar('T', bound='Node')\ndef x(n: 'Node') -> List['Node']:\n    return [n]",
        "import typing\n(typing.get_type_hints(Node.__init__)['next'] == Optional[Node],"
        " typing.get_type_hints(x)['return'] == List[Node], T.__bound__.__forward_arg__)",
        (True, True, "Node"),
    ),
    "exceptions": (
        "try:\n    open('/nope')\nexcept OSError as e:\n    x = e\n"
        "try:\n    compile('1+', 'f', 'exec')\nexcept SyntaxError as e:\n    y = e",
        "(str(x), x.filename, y.lineno)",
        ("[Errno 2] No such file or directory: '/nope'", "/nope", 1),
    ),
    "what an exception came from": (
        "def caught(raise_):\n    try:\n        try:\n            int('x')\n"
        "        except ValueError as first:\n            raise_(first)\n"
        "    except KeyError as error:\n        return error\n"
        "def plainly(first): raise KeyError('plainly')\n"
        "def because(first): raise KeyError('because') from first\n"
        "def alone(first): raise KeyError('alone') from None\n"
        "x = [caught(raise_) for raise_ in (plainly, because, alone)]",
        "[(str(e.__cause__), str(e.__context__)[:11], e.__suppress_context__) for e in x]"
        " + [x[1].__cause__ is x[1].__context__]",
        [
            ("None", "invalid lit", False),
            ("invalid literal for int() with base 10: 'x'", "invalid lit", True),
            ("None", "invalid lit", True),
            True,
        ],
    ),
    "classes registered with an abstract one": (
        "from abc import ABC, abstractmethod\nclass Base(ABC):\n    @abstractmethod\n"
        "    def go(self): ...\nclass Own:\n    base = Base\nBase.register(list)\n"
        "Base.register(Own)\nx = Own()",
        "(issubclass(list, Base), isinstance(x, Base), isinstance({}, Base), Own.base is Base)",
        (True, True, False, True),
    ),
    "an abstract class that looks at what it is asked about": (
        "from abc import ABC\nclass Base(ABC):\n    @classmethod\n"
        "    def __subclasshook__(cls, other):\n"
        "        return other.late is None or NotImplemented\n"
        "class Own:\n    base, late = Base, 1\nBase.register(Own)\nx = Own()",
        "isinstance(x, Base)",
        True,
    ),
    "singledispatch": (
        "from functools import singledispatch\n@singledispatch\ndef x(a):\n    return 'any'\n"
        "@x.register\ndef _(a: int):\n    return 'int'\nx(1)",
        "x.register(str, lambda a: 'text')\n(x(1), x('a'), x(None))",
        ("int", "text", "any"),
    ),
    "parts of packages": (
        "import urllib.parse, xml.etree.ElementTree, concurrent.futures, collections.abc\n"
        "import email.utils as x\nimport json",
        "import sys\n(urllib.parse.quote('a b'), xml.etree.ElementTree.fromstring('<a/>').tag,"
        " concurrent.futures.Future.__name__, issubclass(list, collections.abc.Sequence),"
        " x.parseaddr('A <a@b>')[1], json.dumps(1))",
        ("a%20b", "a", "Future", True, "a@b", "1"),
    ),
    "a default that is an ellipsis": (
        "from typing import Callable\ndef x(d, k, default=...):\n    if k in d: return d[k]\n"
        "    if default is ...: return 'none given'\n    return default\n"
        "def apply(f: Callable[..., int], t: tuple[int, ...]) -> int:\n    return f(*t)\n"
        "class Money:\n    reply = NotImplemented\ny = [..., NotImplemented]",
        "(x({}, 1), apply.__annotations__['t'] == tuple[int, ...],"
        " Money.reply is NotImplemented, y[0] is ...)",
        ("none given", True, True, True),
    ),
    "a counter with a constructor of its own": (
        "from collections import Counter\nclass Inventory(Counter):\n"
        "    def __init__(self, name, items=()):\n        self.name = name\n"
        "        super().__init__(items)\nx = Inventory('main', ['apple'] * 3)\n"
        "class Named(Counter):\n    pass\ny = Named('aab')\ny.who = 'ann'",
        "(x.name, dict(x), x['none'], y.who, y.most_common(1))",
        ("main", {"apple": 3}, 0, "ann", [("a", 2)]),
    ),
    "a dict that is its own attributes": (
        "class AttrDict(dict):\n    def __init__(self, *args, **named):\n"
        "        super().__init__(*args, **named)\n        self.__dict__ = self\n"
        "x = AttrDict(a=1)\nx.b = AttrDict(c=2)\nclass Plain(dict):\n    pass\n"
        "y = Plain(z=1)\ny.__dict__ = y",
        "x.w = 5\ny.v = 6\n(x['w'], x.a, x.b.c, dict(y), type(x.b) is AttrDict)",
        (5, 1, 2, {"z": 1, "v": 6}, True),
    ),
    "instances that share their attributes": (
        "class Borg:\n    _state = {}\n    def __init__(self):\n"
        "        self.__dict__ = self._state\nx, y = Borg(), Borg()\nx.seen = 1\n"
        "class Own:\n    pass\nz = Own()\nz.a = 1\nheld = vars(z)",
        "y.more = 2\nheld['b'] = 3\n(y.seen, x.more, Borg._state is vars(x), z.b)",
        (1, 2, True, 3),
    ),
    "an enumeration that names its own values": (
        "from enum import Enum, auto\nclass Named(str, Enum):\n"
        "    def _generate_next_value_(name, start, count, last):\n        return name.lower()\n"
        "class Level(Named):\n    HIGH = auto()\n",
        "class Side(Named):\n    UP = auto()\n(Side.UP.value, Level.HIGH.value)",
        ("up", "high"),
    ),
    "enumerations with a type of their own": (
        "from dataclasses import dataclass\nfrom enum import Enum, IntEnum\n"
        "class Coordinate(bytes, Enum):\n    def __new__(cls, value, label):\n"
        "        made = bytes.__new__(cls, [value])\n        made._value_ = value\n"
        "        made.label = label\n        return made\n"
        "    PX = (0, 'P.X')\n    PY = (1, 'P.Y')\n"
        "class Lang(str, Enum):\n    def __new__(cls, code, name):\n"
        "        made = str.__new__(cls, code)\n        made._value_ = name\n        return made\n"
        "    EN = ('en', 'English')\n@dataclass\nclass Data:\n    size: str\n    legs: int = 4\n"
        "    def __hash__(self):\n        return 1\n"
        "class Creature(Data, Enum):\n    BEETLE = 'small', 6\n    DOG = 'medium'\n"
        "class Level(IntEnum):\n    LOW = 1\nclass Tone(str, Enum):\n    WARM = 'warm'",
        "(Coordinate(1).label, bytes(Coordinate.PY), Lang.EN == 'en', Lang.EN.value,\n"
        "    Creature.BEETLE.legs, Creature.DOG.size, Creature.DOG.value.legs, Level(1) + 1,\n"
        "    Tone('warm') is Tone.WARM, [c.name for c in Creature])",
        ("P.Y", b"\x01", True, "English", 6, "medium", 4, 2, True, ["BEETLE", "DOG"]),
    ),
    "flags that take what they do not know": (
        "from enum import CONFORM, EJECT, Flag\nclass C(Flag, boundary=CONFORM):\n    A = 1\n"
        "class E(Flag, boundary=EJECT):\n    A = 1\nclass S(Flag):\n    A = 1\n    B = 2",
        "(C(7) is C.A, E(7), S(3) == S.A | S.B)",
        (True, 7, True),
    ),
    "two statements that share a line": (
        "x = lambda: 1; y = [\n    1, 2]; z = lambda: (\n    3)",
        "(x(), y, z())",
        (1, [1, 2], 3),
    ),
    "type variables": (
        "from typing import Generic, TypeVar, TypeVarTuple\nA = TypeVar('A', covariant=True)\n"
        "B = TypeVar('B', contravariant=True)\nC = TypeVar('C', int, str)\n"
        "Ts = TypeVarTuple('Ts')\nclass x(Generic[A]):\n    pass",
        "(repr(A), repr(B), repr(C), C.__constraints__ == (int, str), Ts.__name__,"
        " x.__parameters__ == (A,))",
        ("+A", "-B", "~C", True, "Ts", True),
    ),
    "attributes of a cached function": (
        "import functools\n@functools.lru_cache(maxsize=3)\ndef x(n):\n    'Say.'\n"
        "    return n\nx.calls = [1]",
        "(x.calls, x(2), x.__doc__, x.cache_parameters()['maxsize'])",
        ([1], 2, "Say.", 3),
    ),
    "a layout of bytes": (
        "import struct\nx = struct.Struct('<HB')\npack = x.pack",
        "(x.size, x.format, pack(1, 2))",
        (3, "<HB", b"\x01\x00\x02"),
    ),
    "bound methods of C": (
        "import re\nx = [1]\nadd = x.append\nfind = re.compile('a+').findall\n"
        "keys = dict.fromkeys\nup = 'ab'.upper\nfrom math import sqrt\n"
        "class Own(list):\n    pass\no = Own()\nput = o.append",
        "add(2)\nput(3)\n(x[-1], find('caat'), keys('a'), up(), sqrt(4), o[-1], type(o) is Own)",
        (2, ["aa"], {"a": None}, "AB", 2.0, 3, True),
    ),
    "what is logged where": (
        "import logging, sys\nlogging.basicConfig(\n"
        "    level=logging.INFO, format='{message}', style='{', stream=sys.stdout)\n"
        "log = logging.getLogger('app.db')\nlog.setLevel(logging.DEBUG)\nlog.propagate = False\n"
        "log.addHandler(logging.StreamHandler())\nlogging.disable(5)",
        "root, own = logging.root.handlers[0], log.handlers[0]\n"
        "told = (logging.root.level, root.stream is sys.stdout, root.formatter._fmt,\n"
        "    log.level, log.propagate, own.stream is sys.stderr, own.formatter,\n"
        "    logging.root.manager.disable)\n"
        "del root, own\ntold",
        (20, True, "{message}", 10, False, True, None, 5),
    ),
    "which warnings are shown": (
        "import warnings\nwarnings.filterwarnings('ignore', 'old .*', DeprecationWarning)\n"
        "warnings.simplefilter('error', UserWarning)",
        "try:\n    warnings.warn('now')\nexcept UserWarning:\n    told = 'raised'\n"
        "warnings.warn('old thing', DeprecationWarning)\n"
        "(told, warnings.filters[1][:1], warnings.filters[1][1].pattern)",
        ("raised", ("ignore",), "old .*"),
    ),
    "surroundings": (
        "import os, sys\nos.environ['MODE'] = 'test'\nos.environ.pop('PYTHONHASHSEED', None)\n"
        "os.chdir('/usr')\nsys.path.append('/more')\nsys.set_int_max_str_digits(5000)",
        "(os.environ.get('MODE'), os.getenv('PYTHONHASHSEED'), os.getcwd(), sys.path[-1],\n"
        "    sys.get_int_max_str_digits())",
        ("test", None, "/usr", "/more", 5000),
    ),
}


@pytest.mark.parametrize("name", CAREFUL)
async def test_it_comes_back_and_nothing_is_said_of_a_loss(
    cpython: CpythonKernel, name: str
) -> None:
    code, expression, expected = CAREFUL[name]
    driver = await KernelDriver.open(cpython)
    assert (await driver.run(code)).unrestorable == ()
    restored = await driver.reopen()
    result = await restored.run(expression)
    assert result.error is None
    assert result.unrestorable == ()
    assert await (await driver.reopen()).value(expression) == expected


async def test_a_value_that_was_there_before_may_come_back(cpython: CpythonKernel) -> None:
    driver = await KernelDriver.open(cpython)
    for cell in ("x = 'a' * 100_000", "x = ''", "x = 'a' * 100_000"):
        await driver.value(cell)
    assert await (await driver.reopen()).value("len(x)") == 100_000


@pytest.mark.parametrize(
    "body",
    [
        "(list):\n    def __len__(self):\n        raise ValueError",
        ":\n    def __repr__(self):\n        raise SystemExit",
        ":\n    @property\n    def __class__(self):\n        return str",
        ":\n    @property\n    def __class__(self):\n        raise ValueError",
        "(metaclass=Unhashable):\n    pass",
        "(metaclass=Hashing):\n    pass",
        "(metaclass=Hiding):\n    pass",
    ],
)
async def test_odd_classes_do_not_cost_the_cell(cpython: CpythonKernel, body: str) -> None:
    driver = await KernelDriver.open(cpython)
    await driver.value(
        "class Unhashable(type):\n    def __eq__(self, other):\n        return True\n"
        "class Hashing(type):\n    def __hash__(self):\n        raise ValueError\n"
        "class Hiding(type):\n    def __getattribute__(self, name):\n        raise ValueError"
    )
    result = await driver.run(f"class A{body}\nlm = a = A()\nb = [A()]\nkept = 1")
    assert result.status == "ok"
    assert await driver.value("kept") == 1
    assert await (await driver.reopen()).value("kept") == 1


async def test_a_pool_that_is_lost_is_told_once_and_costs_no_later_cell(
    cpython: CpythonKernel,
) -> None:
    driver = await KernelDriver.open(cpython)
    first = await driver.run(
        "from concurrent.futures import ThreadPoolExecutor\nimport queue\n"
        "with ThreadPoolExecutor(2) as pool:\n    got = list(pool.map(abs, [-1]))\n"
        "q = queue.Queue()"
    )
    assert {item.name for item in first.unrestorable} == {"pool", "q"}
    assert (await driver.run("got")).unrestorable == ()
    assert (await (await driver.reopen()).run("got")).unrestorable == ()


async def test_a_thread_that_ends_while_the_namespace_is_kept_leaves_no_other_one(
    cpython: CpythonKernel,
) -> None:
    driver = await KernelDriver.open(cpython)
    await driver.value(
        "import _thread, threading, time\nseen, go = [], []\nclass Late:\n"
        "    def __getstate__(self):\n        go.append(1)\n"
        "        while _thread._count():\n            time.sleep(0.001)\n        return {'a': 1}\n"
        "def work():\n    while not go:\n        time.sleep(0.001)\n    seen.append('done')\n"
        "threading.Thread(target=work, daemon=True).start()\nlate = Late()"
    )
    kept = driver.manifest
    live = await driver.value("seen")
    driver.manifest = kept
    assert live == await (await driver.reopen()).value("seen")


async def test_host_functions_may_be_wrapped_and_final_renamed(cpython: CpythonKernel) -> None:
    driver = await KernelDriver.open(cpython, LM, lm=str.upper)
    result = await driver.run(
        "import functools\n@functools.wraps(lm)\ndef safe(q):\n    return lm(q)\ndone = FINAL"
    )
    assert result.unrestorable == ()
    result = await (await driver.reopen()).run("done(safe('a'))")
    assert result.status == "final"


async def test_a_kept_stdout_is_the_stdout_of_every_worker(cpython: CpythonKernel) -> None:
    driver = await KernelDriver.open(cpython)
    await driver.value("import io, sys\nold = sys.stdout")
    result = await (await driver.reopen()).run(
        "sys.stdout = io.StringIO()\nsys.stdout = old\nprint('shown')"
    )
    assert result.stdout.head == "shown\n"


async def test_a_cleared_namespace_still_has_the_engines_names(cpython: CpythonKernel) -> None:
    driver = await KernelDriver.open(cpython)
    await driver.value("globals().clear()")
    assert (await driver.run("FINAL(1)")).status == "final"


async def test_a_thread_left_behind_changes_nothing_after_its_cell(cpython: CpythonKernel) -> None:
    driver = await KernelDriver.open(cpython)
    await driver.value(
        "import threading, time\nx = 1\ndef later():\n    global x\n    time.sleep(0.2)\n"
        "    x = 2\nthreading.Thread(target=later, daemon=True).start()"
    )
    await asyncio.sleep(0.5)
    assert await driver.value("x") == 1


async def test_files_read_by_threads_are_pinned(cpython: CpythonKernel, tmp_path: Path) -> None:
    for number in range(6):
        (tmp_path / f"{number}.bin").write_bytes(bytes(2_000_000))
    settings = KernelSettings(read_roots=(str(tmp_path),))
    driver = await KernelDriver.open(cpython, settings)
    result = await driver.run(
        "from concurrent.futures import ThreadPoolExecutor\n"
        f"paths = [f'{tmp_path}/{{n}}.bin' for n in range(6)]\n"
        "with ThreadPoolExecutor(6) as pool:\n"
        "    n = list(pool.map(lambda p: len(open(p, 'rb').read()), paths))"
    )
    assert len(result.files) == 6


@pytest.mark.parametrize("call", ["inspect([1], 0, -1)", "inspect('x' * 5_000_000, 0, 5_000_000)"])
async def test_what_inspect_refuses_in_monty_is_the_cells_error(call: str) -> None:
    kernel = MontyKernel()
    driver = await KernelDriver.open(kernel)
    try:
        assert (await driver.run(call)).status in ("error", "limit")
    finally:
        await kernel.close()


@pytest.mark.parametrize("use", ["with x: pass", "x['a'] = 1", "async with x: pass", "del x.a"])
async def test_what_was_not_kept_says_so_however_it_is_used(
    cpython: CpythonKernel, use: str
) -> None:
    driver = await KernelDriver.open(cpython)
    await driver.run("import threading\nx = threading.Lock()")
    result = await driver.run(use)
    assert result.error is not None
    assert "was not kept" in result.error.message


async def test_a_program_finds_no_arguments(cpython: CpythonKernel) -> None:
    driver = await KernelDriver.open(cpython)
    code = (
        "import argparse\nparser = argparse.ArgumentParser()\n"
        "parser.add_argument('--n', type=int, default=3)\nparser.parse_args().n"
    )
    assert await driver.value(code) == 3


@pytest.mark.parametrize(
    "made",
    [
        "class Box:\n    def __init__(self):\n        self.lock = threading.Lock()\nx = Box()",
        "lock = threading.Lock()\nx = SimpleNamespace(lock=lock)",
        "x = SimpleNamespace(lock=threading.Lock())\nlock = x.lock",
    ],
)
async def test_what_is_lost_inside_of_something_is_lost_for_every_later_cell(
    cpython: CpythonKernel, made: str
) -> None:
    driver = await KernelDriver.open(cpython)
    await driver.run(f"import threading\nfrom types import SimpleNamespace\n{made}")
    use = "with x.lock:\n    pass"
    live = await driver.run(use)
    restored = await (await driver.reopen()).run(use)
    assert live.error is not None
    assert restored.error is not None
    assert live.error.message == restored.error.message


async def test_a_worker_stays_if_all_that_it_lost_is_replaced(cpython: CpythonKernel) -> None:
    driver = await KernelDriver.open(cpython)
    await driver.run("import re, threading\nm = re.match('a', 'a')\nlock = threading.Lock()")
    assert isinstance(driver.session, CpythonSession)
    worker = driver.session.worker
    assert worker is not None
    await driver.run("x = {'held': m}")
    assert driver.session.worker is worker


@pytest.mark.parametrize("body", ["while True:\n            pass", "import os; os._exit(1)"])
async def test_a_class_that_ends_every_worker_which_restores_it_does_not_end_its_session(
    cpython: CpythonKernel, monkeypatch: pytest.MonkeyPatch, body: str
) -> None:
    monkeypatch.setattr("holdfast.kernels.cpython._SETUP_SECONDS", 1.0)
    driver = await KernelDriver.open(cpython)
    await driver.run(
        "kept = [1]\nclass Sour:\n    def __init__(self):\n        self.n = 2\n"
        f"    def __setstate__(self, state):\n        {body}\nx = Sour()\ny = {{'in': Sour()}}"
    )
    await driver.reopen()
    for _ in range(3):  # a worker that dies before its cell says a word is replaced once in silence
        with suppress(KernelDied):
            result = await driver.run("(kept, x.n, y['in'].n)")
            break
    assert result.status == "ok"
    assert {item.name for item in result.unrestorable} == {"x", "y"}
    assert "__setstate__ was not run" in result.unrestorable[0].reason
    assert await driver.value("(kept, x.n, y['in'].n)") == ([1], 2, 2)
    await driver.session.park()
    assert await driver.value("kept") == [1]


async def test_what_is_logged_and_warned_of_is_so_in_the_next_worker_too(
    cpython: CpythonKernel,
) -> None:
    driver = await KernelDriver.open(cpython)
    await driver.run(
        "import logging, sys, warnings\n"
        "logging.basicConfig(level=logging.INFO, stream=sys.stdout)\n"
        "warnings.filterwarnings('ignore')"
    )
    cell = "logging.info('hello')\nwarnings.warn('seen')"
    live = await driver.run(cell)
    restored = await (await driver.reopen()).run(cell)
    assert restored.stdout.head == live.stdout.head == "INFO:root:hello\n"
    assert restored.stderr.head == live.stderr.head == ""


@pytest.mark.parametrize(
    "code",
    [
        "import os\nos.environ = None",
        "import sys, json\nsys.modules[5] = json",
        "import warnings\nwarnings.filters = [1]",
        "import logging\nlogging.root = None",
        "import os\nos.environ['BIG'] = 'x' * 100_000",
        "import warnings\nclass Own(Warning):\n    pass\nwarnings.simplefilter('error', Own)",
    ],
)
async def test_surroundings_that_cannot_be_kept_cost_no_cell(
    cpython: CpythonKernel, code: str
) -> None:
    driver = await KernelDriver.open(cpython)
    result = await driver.run(f"kept = 1\n{code}")
    assert (result.status, result.unrestorable) == ("ok", ())
    assert await driver.value("kept") == 1
    assert await (await driver.reopen()).value("kept") == 1
