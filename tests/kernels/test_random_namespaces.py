"""Random namespaces come back equal, sharing included, or with a marker in place of a value.

A namespace is built by a random program in one session, described there (values, and which parts
are the same object), restored from its checkpoint in a fresh worker, and described again.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.kernels.cpython import CpythonKernel
from holdfast.testing.kernel_driver import KernelDriver

NAMES = ("a", "b", "c", "d", "e")

# Describes every reachable part once, in a fixed order, and refers to it by number after that.
DESCRIBE = """
def _describe():
    seen, lines = {}, []
    def part(value):
        kind = type(value).__name__
        if kind == "str" and len(value) > 100:
            return f"{value[:8]} {len(value)}"
        if kind in ("int", "str", "NoneType", "float", "bool", "bytes"):
            return repr(value)
        if id(value) in seen:
            return f"#{seen[id(value)]}"
        number = seen[id(value)] = len(seen)
        keep.append(value)
        if kind in ("list", "tuple"):
            inner = [part(v) for v in value]
        elif kind == "dict":
            inner = [f"{part(k)}: {part(v)}" for k, v in value.items()]
        elif kind == "set":
            inner = sorted(part(v) for v in value)
        elif kind == "function":
            cells = [c.cell_contents for c in value.__closure__ or ()]
            inner = [value.__name__, value.__code__.co_code.hex(), *map(part, cells)]
            inner += [part(d) for d in value.__defaults__ or ()]
        elif isinstance(value, type):
            inner = [value.__name__] + [f"{k}={part(v)}" for k, v in sorted(vars(value).items())
                                        if not k.startswith("__")]
        elif kind == "Marker" or kind in ("generator", "lock"):
            inner = ["not kept"]
            kind = "marker"
        else:
            inner = [part(type(value)), part(vars(value))]
        return f"#{number} {kind}[{', '.join(inner)}]"
    keep = []
    space = globals()
    return [f"{name} = {part(space[name])}" for name in "abcde" if name in space]
_described = _describe()
del _describe
_described
"""

names = st.sampled_from(NAMES)
atoms = st.one_of(
    st.integers(-10, 2**70),
    st.text(max_size=4),
    st.none(),
    st.booleans(),
    st.binary(max_size=3),
    st.floats(allow_nan=False),
).map(repr)


@st.composite
def statements(draw: st.DrawFn) -> str:
    """Draw one line of a random program."""
    target, source, other = draw(names), draw(names), draw(names)
    atom, number = draw(atoms), draw(st.integers(0, 3))
    return draw(
        st.sampled_from(
            [
                f"{target} = [{atom}, {source}]",
                f"{target} = {{'k': {source}, {atom}: {other}}}",
                f"{target} = ({source}, {other})",
                f"{target} = {{{atom}, 'm'}}",
                f"{target} = {source}",
                f"hasattr({target}, 'append') and {target}.append({source})",
                f"isinstance({target}, dict) and {target}.update(x={source})",
                f"def {target}(n={atom}):\n    return {source} if n else {other}",
                f"def _make(v):\n    def {target}():\n        return v, {target}\n"
                f"    return {target}\n{target} = _make({source})\ndel _make",
                f"{target} = [lambda x, i=i: ({source}, x) for i in range({number})]",
                f"class {target}:\n    held = {source}\n    def method(self):\n"
                f"        return {other}",
                f"{target} = {source}() if isinstance({source}, type) else {atom}",
                f"isinstance({target}, object) and hasattr({target}, '__dict__')"
                f" and not callable({target}) and {target}.__dict__.update(p={source})",
                f"{target} = (i for i in range({number}))",
                f"import threading\n{target} = [threading.Lock(), {source}]\ndel threading",
                f"{target} = 'long' * {20000 * (number + 1)}",
            ]
        )
    )


@pytest.fixture(scope="module")
def loop() -> Any:
    """Return a loop that lives as long as the module, since hypothesis repeats one test."""
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


@pytest.fixture(scope="module")
def shared_kernel(loop: asyncio.AbstractEventLoop) -> Any:
    """Return one kernel for all examples."""

    async def make() -> CpythonKernel:
        return CpythonKernel(max_idle=1)

    kernel = loop.run_until_complete(make())
    yield kernel
    loop.run_until_complete(kernel.close())


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(cells=st.lists(st.lists(statements(), min_size=1, max_size=5), min_size=1, max_size=3))
def test_a_random_namespace_comes_back_as_it_was(
    loop: asyncio.AbstractEventLoop, shared_kernel: CpythonKernel, cells: list[list[str]]
) -> None:
    async def check() -> None:
        driver = await KernelDriver.open(shared_kernel)
        await driver.run("a, b, c, d, e = [1], {'z': 2}, 'text', (3,), None")
        for cell in cells:
            result = await driver.run("\n".join(cell))
            assert result.status in ("ok", "error")
            assert result.checkpoint is not None
        before = await driver.value(DESCRIBE)
        await driver.reopen()
        after = await driver.value(DESCRIBE)
        assert after == before
        await driver.session.close()

    loop.run_until_complete(check())
