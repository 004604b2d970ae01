"""Packages that an embedder allows: imported in the worker, read-only, and kept by checkpoints."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.core.capability import Capability, profile
from holdfast.core.errors import CapabilityDenied, InvalidSettings
from holdfast.kernels.choose import Kernels
from holdfast.kernels.cpython import CpythonKernel
from holdfast.kernels.port import KernelSettings
from holdfast.testing.kernel_driver import KernelDriver

DATA = KernelSettings(packages=("numpy", "pandas"))


async def test_nothing_can_be_imported_that_was_not_allowed(cpython: CpythonKernel) -> None:
    driver = await KernelDriver.open(cpython, KernelSettings(packages=("numpy",)))
    assert await driver.value("import numpy\nint(numpy.arange(5).sum())") == 10
    for name in ("pandas", "msgspec", "pytest"):
        result = await driver.run(f"import {name}")
        assert result.error is not None
        assert result.error.type == "ModuleNotFoundError"
    other = await KernelDriver.open(cpython)
    result = await other.run("import numpy")
    assert result.error is not None


async def test_packages_can_be_read_and_not_written(cpython: CpythonKernel) -> None:
    driver = await KernelDriver.open(cpython, DATA)
    result = await driver.run(
        "import numpy, os\nopen(os.path.join(os.path.dirname(numpy.__file__), 'new.py'), 'w')"
    )
    assert result.error is not None
    assert result.error.type == "PermissionError"


MADE = """
import numpy as np, pandas as pd
plain = np.arange(50_000, dtype="float64").reshape(100, 500)
small = np.array([1 + 2j, 3])
structured = np.zeros(3, dtype=[("a", "i4"), ("b", "U5")])
objects = np.array([{"a": 1}, None, "x"], dtype=object)
masked = np.ma.masked_array([1, 2, 3], mask=[0, 1, 0])
generator = np.random.default_rng(5)
moment = np.datetime64("2024-05-06")
frame = pd.DataFrame({
    "n": range(3000), "t": [f"row {i}" for i in range(3000)],
    "c": pd.Categorical(["a", "b", "a"] * 1000),
    "d": pd.date_range("2024-01-01", periods=3000, freq="h", tz="UTC"),
}).set_index("n")
series = frame["t"]
grouped = frame.groupby("c", observed=True).size()
"""
SEEN = """
[float(plain.sum()), plain.shape, str(small), str(structured), str(objects), str(masked),
 int(generator.integers(1000)), str(moment), int(pd.util.hash_pandas_object(frame).sum()),
 series.iloc[-1], str(grouped.to_dict()), str(frame.dtypes.to_dict())]
"""


async def test_arrays_and_data_frames_survive_a_checkpoint(cpython: CpythonKernel) -> None:
    driver = await KernelDriver.open(cpython, DATA)
    result = await driver.run(MADE)
    assert (result.status, result.unrestorable) == ("ok", ())
    other = await KernelDriver.open(cpython, DATA)
    await other.run(MADE)
    seen = await other.value(SEEN)
    await driver.reopen()
    assert await driver.value(SEEN) == seen


async def test_what_a_package_draws_at_random_is_seeded_and_goes_on(
    cpython: CpythonKernel,
) -> None:
    draw = "import numpy as np\n[int(np.random.randint(10**9)), np.random.default_rng().random()]"
    drawn = []
    for reopened in (False, True):
        driver = await KernelDriver.open(cpython, DATA)
        first = await driver.value(draw)
        if reopened:
            await driver.reopen()
        drawn.append([first, await driver.value(draw)])
    assert drawn[0] == drawn[1]
    assert drawn[0][0] != drawn[0][1]


async def test_a_package_that_is_not_installed_is_refused_by_name(cpython: CpythonKernel) -> None:
    with pytest.raises(InvalidSettings, match="package 'no-such-thing' is not installed"):
        await cpython.open(KernelSettings(packages=("no-such-thing",)))


async def test_the_model_is_told_which_packages_there_are() -> None:
    kernels = Kernels()
    capability = replace(profile("default"), packages=("numpy",))
    choice = await kernels.choose("cpython", capability)
    assert "numpy" in choice.card
    assert "numpy" not in (await kernels.choose("cpython", profile("default"))).card
    with pytest.raises(CapabilityDenied, match="kernel 'monty' has no packages"):
        await kernels.choose("monty", capability)
    await kernels.close()


def test_a_child_gets_no_package_that_its_parent_lacks() -> None:
    parent, wish = Capability(packages=("numpy", "pandas")), Capability(packages=("numpy", "scipy"))
    assert parent.clamp(wish).packages == ("numpy",)
    assert Capability.from_record(parent.to_record()) == parent
    assert "packages" not in Capability().to_record()
