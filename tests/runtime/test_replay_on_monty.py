"""Every scripted session of the runtime's tests, run on monty, replays without divergence.

The tests that make these sessions expect CPython, so some fail on monty. What is looked at is what
they leave behind: the sessions of a module of `REPLAYED` are replayed after each of its tests, and
a divergence there is an error of the test, not a failure.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from .conftest import REPLAYED

HERE = Path(__file__).parent


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("module", sorted(REPLAYED))
def test_sessions_that_ran_on_monty_replay(module: str, tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider"]
    options = ["--lab-kernel", "monty", "--timeout", "120", f"--junitxml={report}"]
    ran = subprocess.run(
        [*command, *options, str(HERE / f"{module}.py")],
        cwd=HERE.parent.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert report.exists(), ran.stdout + ran.stderr
    (suite,) = ElementTree.parse(report).getroot().iter("testsuite")
    assert int(suite.attrib["tests"]) > int(suite.attrib["failures"])
    assert suite.attrib["errors"] == "0", ran.stdout
