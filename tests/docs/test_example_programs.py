"""The programs of `examples/` are short and typed, and run; wrong ones are caught by a checker."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from pages import PAGES, ROOT, blocks, page_id

PROGRAMS = {
    "sqlite_tool.py": "Largest(name='Bonn', thousands=336)",
    "kill_and_resume.py": "42",
    "many_sessions.py": "2470 20",
    "approve_refund.py": "suspended\nA-17: 40 euros paid back",
    "long_document.py": "{'parts': 10, 'found': ['heron']}",
    "research_tree.py": "{'Brest': 5, 'Cork': 4, 'Faro': 4}\n4 sessions",
    "what_if.py": "8\n9\nderivation of bid",
    "golden_replay.py": "squares 2 steps 2 cells replayed",
    "langgraph_chat.py": "heard 1 messages\nheard 3 messages\nTrue",
    "openai_agents_chat.py": "saw 1\nsaw 3",
}

RIGHT = """
import holdfast
agent = holdfast.Agent("a", output_type=int)
async def f(runtime: holdfast.Runtime) -> int:
    return await runtime.session("s", agent=agent, create=True).ask("x")
"""
MISTAKES = [
    "holdfast.open(max_step=3)",
    'holdfast.open(max_steps="3")',
    'holdfast.Agent("a", output="int")',
    'holdfast.Agent("a", harness="tool")',
    "holdfast.Limits(max_euro=1)",
    'holdfast.Limits(max_steps="1")',
    'holdfast.tool(effect="never")',
    "holdfast.Toolset(1, tools=[])",
    'holdfast.open(when_busy="queue")',
]


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_is_under_forty_lines_and_prints_its_result(name, tmp_path):
    path = ROOT / "examples" / name
    assert len(path.read_text(encoding="utf-8").splitlines()) < 40
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(path), str(tmp_path / "store")],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=tmp_path,
    )
    assert done.stdout.strip() == PROGRAMS[name], done.stderr


def _checked(*paths):
    return subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", *map(str, paths)],
        capture_output=True,
        text=True,
        timeout=280,
        cwd=ROOT,
    )


def test_the_programs_and_samples_are_typed_and_ten_mistakes_are_found(tmp_path):
    right, wrong = tmp_path / "right.py", tmp_path / "wrong.py"
    samples = list(_samples(tmp_path))
    assert len(samples) > 20
    right.write_text(RIGHT, encoding="utf-8")
    ask = 'async def f(s: "holdfast.Session[int]") -> str:\n    return await s.ask("x")\n'
    wrong.write_text("import holdfast\n" + "\n".join(MISTAKES) + "\n" + ask, encoding="utf-8")
    done = _checked(right, wrong, *samples, *(ROOT / "examples" / name for name in PROGRAMS))
    found = {line.split(":")[1] for line in done.stdout.splitlines() if "wrong.py" in line}
    assert found == {str(number) for number in [*range(2, 2 + len(MISTAKES)), len(MISTAKES) + 3]}
    assert [line for line in done.stdout.splitlines() if "right.py" in line] == []
    for place in ("sample_", "examples"):
        assert [line for line in done.stdout.splitlines() if place in line] == []


def _samples(folder):
    """Yield the code of every page as files of their own, named by page and line."""
    for page in PAGES:
        for block in blocks(page):
            if block.language == "python":
                name = re.sub(r"\W", "_", f"sample_{page_id(page)}_{block.line}")
                path = folder / f"{name}.py"
                path.write_text(block.text + "\n", encoding="utf-8")
                yield path
