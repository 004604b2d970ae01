"""The how-to on models: its examples run, and its table of errors is the real one."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.models.errors import KINDS

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "models.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_an_example_runs_as_it_stands(number, tmp_path):
    run = subprocess.run(
        [sys.executable, "-c", EXAMPLES[number]], cwd=tmp_path, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    if number == 0:
        assert run.stdout == "Looking into it.\nIt was the butler.\n"


def test_the_table_of_errors_is_complete_and_true():
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \| (yes|no) \|$", PAGE, re.MULTILINE)
    assert {(name, kind, again == "yes") for name, kind, again in rows} == {
        (error.__name__, kind, error.retryable) for kind, error in KINDS.items()
    }
