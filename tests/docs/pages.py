"""The pages of the documentation, and the code blocks that they are made of.

A block's info string is its language and, where the reader is to save it, a file name:
```` ```python agent.py ````. `console` blocks hold commands (`$ …`) and what they print.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = tuple(
    sorted(
        [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")],
        key=lambda page: str(page),
    )
)

FENCE = "```"


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block of a page."""

    language: str
    name: str
    text: str
    line: int


def blocks(page: Path) -> list[Block]:
    """Return the fenced blocks of a page in order."""
    found: list[Block] = []
    info: list[str] | None = None
    lines, start = list[str](), 0
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1):
        if info is None:
            if line.startswith(FENCE):
                info, lines, start = line.removeprefix(FENCE).split(), [], number
        elif line.rstrip() == FENCE:
            language, *names = info or [""]
            found.append(Block(language, names[0] if names else "", "\n".join(lines), start))
            info = None
        else:
            lines.append(line)
    assert info is None, f"{page.name}: the block of line {start} is never closed"
    return found


def prose(page: Path) -> str:
    """Return a page without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)


def page_id(page: Path) -> str:
    """Return a page's path for the name of a test."""
    return str(page.relative_to(ROOT))


@dataclass(frozen=True, slots=True)
class Command:
    """A command of a console block, and the lines that it must print, in order."""

    text: str
    expected: tuple[str, ...]


def commands(block: Block) -> Iterator[Command]:
    """Yield the commands of a console block."""
    text, expected = "", list[str]()
    for line in block.text.splitlines():
        if line.startswith("$ "):
            if text:
                yield Command(text, tuple(expected))
            text, expected = line[2:], []
        elif text.endswith("\\"):
            text += "\n" + line
        elif line.strip():
            expected.append(line)
    if text:
        yield Command(text, tuple(expected))
