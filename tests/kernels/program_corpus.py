"""The corpus of programs as models write them: what it is made of and how it is read.

Each chapter is a text file. A program begins with `=== name`, and `---` begins the value that its
last expression must have. Programs marked `(once)` hold something that no checkpoint keeps, so only
their first run is checked.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.kernels.port import HostFunction, KernelSettings

FOLDER = Path(__file__).parent / "programs"
SETTINGS = KernelSettings(
    functions=(
        HostFunction("lm"),
        HostFunction("map_lm"),
        HostFunction("search", module="tools", pure=True),
    )
)


@dataclass(frozen=True, slots=True)
class Program:
    """One program and its value."""

    name: str
    code: str
    expected: Any

    @property
    def repeatable(self) -> bool:
        """Return whether its last expression has the same value once more, after a restore."""
        return "(once)" not in self.name

    @property
    def last_expression(self) -> str:
        """Return the source of its last expression."""
        last = ast.parse(self.code).body[-1]
        source = ast.get_source_segment(self.code, last)
        assert source is not None
        return source


def read_programs() -> list[Program]:
    """Return every program of the corpus."""
    programs = []
    for path in sorted(FOLDER.glob("*.txt")):
        for section in path.read_text().split("=== ")[1:]:
            name, _, rest = section.partition("\n")
            code, _, expected = rest.partition("\n--- ")
            programs.append(Program(f"{path.stem}: {name}", code, ast.literal_eval(expected)))
    return programs


def lm(prompt: Any, **options: Any) -> str:
    """Stand for a model: echo, or fail if asked to."""
    if prompt == "FAIL":
        raise ValueError("asked to fail")
    told = "".join(f" {key}={value}" for key, value in options.items())
    return f"<{prompt}{told}>" if prompt else ""


ANSWERS = {
    "lm": lm,
    "map_lm": lambda prompts: [lm(prompt) for prompt in prompts],
    "tools.search": lambda query, limit=1: [query] * limit,
}
