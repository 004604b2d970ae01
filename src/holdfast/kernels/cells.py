"""The code cells of a model's reply.

A cell is a fenced block tagged python, py or repl, or not tagged at all; blocks of other languages
are prose. A fence that is never closed reaches to the end: models stop in the middle. A fence is
closed by one at least as long, so code may hold shorter ones, as in CommonMark.
"""

from __future__ import annotations

import re

CODE_TAGS = frozenset({"", "python", "py", "python3", "repl", "ipython", "pycon"})

_FENCE = re.compile(r"^(?P<indent> {0,3})(?P<fence>`{3,}|~{3,})(?P<info>[^\n]*)$")


def extract(reply: str) -> list[str]:
    """Return the code of a reply's cells, in order; none if it has no code block."""
    cells: list[str] = []
    opened: re.Match[str] | None = None
    lines: list[str] = []
    # Not splitlines(): a form feed or U+2028 inside a string literal is no end of a line.
    for line in reply.removesuffix("\n").split("\n"):
        line = line.removesuffix("\r")
        match = _FENCE.match(line)
        if opened is None:
            if match is not None and not (match["fence"][0] == "`" and "`" in match["info"]):
                opened, lines = match, []
        elif match is not None and _closes(match, opened):
            _add(cells, opened, lines)
            opened = None
        else:
            lines.append(line)
    if opened is not None:
        _add(cells, opened, lines)
    return cells


def _closes(match: re.Match[str], opened: re.Match[str]) -> bool:
    fence = match["fence"]
    same = fence[0] == opened["fence"][0] and len(fence) >= len(opened["fence"])
    return same and not match["info"].strip()


def _add(cells: list[str], opened: re.Match[str], lines: list[str]) -> None:
    words = opened["info"].strip().lower().split()
    tag = re.split(r"[{,:]", words[0])[0] if words else ""
    if tag not in CODE_TAGS:
        return
    indent = len(opened["indent"])
    code = "\n".join(line[indent:] if line[:indent].isspace() else line for line in lines)
    if tag == "pycon":
        code = _without_prompts(code)
    if code.strip():
        cells.append(code)


def _without_prompts(code: str) -> str:
    kept = [line[4:] for line in code.split("\n") if line[:4] in (">>> ", "... ")]
    return "\n".join(kept) if kept else code
