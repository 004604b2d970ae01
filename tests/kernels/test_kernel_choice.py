"""Which engine a session gets: the strongest there is, never a weaker one than was asked for."""

from __future__ import annotations

import importlib.util
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio

from holdfast.core.capability import profile
from holdfast.core.errors import ConfinementMissing, InvalidSettings
from holdfast.kernels import confinement
from holdfast.kernels.choose import Kernels
from holdfast.kernels.confinement import Report
from holdfast.testing.kernel_driver import KernelDriver

LANGUAGE = profile("locked_down")
OS = replace(LANGUAGE, confinement="os")


@pytest.fixture
def confined(monkeypatch: pytest.MonkeyPatch) -> None:
    """Be on a machine that confines workers."""
    monkeypatch.setattr(confinement, "available", lambda: Report(3, True))


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Be on a machine that confines nothing."""
    monkeypatch.setattr(confinement, "available", lambda: Report(0, True, ("Landlock is off",)))


@pytest.fixture
def without_monty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Be where the monty engine is not installed."""
    find: Any = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "pydantic_monty" else find(name)
    )


@pytest_asyncio.fixture
async def careful() -> AsyncIterator[Kernels]:
    """Return the engines of a runtime that did not ask for unconfined code."""
    kernels = Kernels()
    yield kernels
    await kernels.close()


@pytest_asyncio.fixture
async def reckless() -> AsyncIterator[Kernels]:
    """Return the engines of a runtime that allows unconfined code."""
    kernels = Kernels(allow_unconfined=True)
    yield kernels
    await kernels.close()


@pytest.mark.usefixtures("confined")
async def test_auto_takes_cpython_where_the_system_confines_it(
    careful: Kernels, reckless: Kernels
) -> None:
    for kernels in (careful, reckless):
        choice = await kernels.choose("auto", OS)
        assert (choice.name, choice.confinement) == ("cpython", "os")
        assert await kernels.choose("cpython", LANGUAGE) is choice


@pytest.mark.usefixtures("bare")
async def test_auto_takes_monty_where_the_system_confines_nothing(
    careful: Kernels, reckless: Kernels
) -> None:
    for kernels in (careful, reckless):
        choice = await kernels.choose("auto", LANGUAGE)
        assert (choice.name, choice.confinement) == ("monty", "language")


@pytest.mark.usefixtures("bare")
async def test_confinement_by_the_system_is_required_or_refused_with_what_is_missing(
    careful: Kernels, reckless: Kernels
) -> None:
    for kernels in (careful, reckless):
        for name in ("auto", "monty", "cpython"):
            with pytest.raises(ConfinementMissing, match="Landlock is off"):
                await kernels.choose(name, OS)
    with pytest.raises(ConfinementMissing, match="Landlock is off"):
        await careful.choose("cpython", LANGUAGE)


@pytest.mark.usefixtures("bare", "without_monty")
async def test_nothing_that_confines_is_an_error_that_says_what_to_install(
    careful: Kernels,
) -> None:
    with pytest.raises(ConfinementMissing, match=r"Landlock is off.*holdfast\[monty\]"):
        await careful.choose("auto", LANGUAGE)


@pytest.mark.usefixtures("bare")
async def test_the_switch_runs_cpython_unconfined_when_it_is_asked_for_by_name(
    reckless: Kernels, caplog: pytest.LogCaptureFixture
) -> None:
    choice = await reckless.choose("cpython", LANGUAGE)
    assert (choice.name, choice.confinement) == ("cpython", "none")
    assert "unconfined" in caplog.text
    driver = await KernelDriver.open(choice.kernel)
    assert await driver.value("6 * 7") == 42


@pytest.mark.usefixtures("bare", "without_monty")
async def test_the_switch_lets_auto_run_cpython_unconfined_where_there_is_nothing_else(
    reckless: Kernels,
) -> None:
    choice = await reckless.choose("auto", LANGUAGE)
    assert (choice.name, choice.confinement) == ("cpython", "none")


@pytest.mark.parametrize("name", ["", "pypy", "CPython"])
async def test_an_unknown_kernel_is_refused_by_name(careful: Kernels, name: str) -> None:
    with pytest.raises(InvalidSettings, match=repr(name)):
        await careful.choose(name)
