"""Every example of the documentation is run as it stands, and prints what the page says it does.

The blocks of a page share one empty directory and are run in order. `…` in an expected line stands
for anything.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from pages import PAGES, Block, blocks, commands, page_id

RUNNABLE = ("python", "console", "sh")
EXAMPLES = [page for page in PAGES if any(b.language in RUNNABLE for b in blocks(page))]
SECONDS = 60


@pytest.fixture
def environment(tmp_path, monkeypatch):
    for name in list(os.environ):
        if name.startswith("HOLDFAST_") or name.endswith("_API_KEY"):
            monkeypatch.delenv(name)
    binaries = Path(sys.executable).parent
    return {**os.environ, "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "200"}


@pytest.mark.parametrize("page", EXAMPLES, ids=page_id)
def test_the_examples_of_a_page_run_and_print_what_it_says(page, tmp_path, environment):
    for block in blocks(page):
        if block.name:
            path = tmp_path / block.name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text + "\n", encoding="utf-8")
        elif block.language == "python":
            _run([sys.executable, "-"], block.text, page, block, tmp_path, environment)
        elif block.language == "sh":
            _run(["bash", "-e", "-s"], block.text, page, block, tmp_path, environment)
        elif block.language == "console":
            _console(page, block, tmp_path, environment)


def _run(command, text, page, block: Block, place, environment):
    done = subprocess.run(
        command,
        input=text,
        cwd=place,
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, f"{page.name}:{block.line}\n{done.stdout}\n{done.stderr}"


def _console(page, block: Block, place, environment):
    for command in commands(block):
        done = subprocess.run(
            ["bash", "-c", command.text],
            cwd=place,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SECONDS,
        )
        where = f"{page.name}:{block.line}: $ {command.text}\n{done.stdout}"
        assert "Traceback" not in done.stdout, where
        printed = iter(done.stdout.splitlines())
        for line in command.expected:
            pattern = ".*".join(re.escape(part) for part in line.strip().split("…"))
            found = any(re.fullmatch(pattern, candidate.strip()) for candidate in printed)
            assert found, f"{where}\nis missing the line: {line}"
        if not command.expected:
            assert done.returncode == 0, where
