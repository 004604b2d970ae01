"""The code cells of a model's reply.

A cell is a fenced block tagged as Python in one of the ways that models know, or not tagged at all;
blocks of other languages are prose. A fence may stand in an item of a list, as deep as that is. A
fence that is never closed reaches to the end, or to the next that begins Python: models stop in the
middle. A fence is closed by one at least as long, so code may hold shorter ones, as in CommonMark.
"""

from __future__ import annotations

import re

_FENCE = re.compile(
    r"^(?P<indent>[ \t]*(?P<item>(?:(?:[-*+]|\d{1,9}[.)])[ \t]+)*))"
    r"(?P<fence>`{3,}|~{3,})(?P<info>[^\n]*)$"
)
_TAG = re.compile(r"\{?\s*\.?(?P<tag>[^\s{},:]*)")
_CODE = re.compile(r"|repl|pycon|tool_code|(?:i?python|py)[\d.]*")
# A fence that is indented more than this, compared to the one that it would close, is content.
_DEEPEST = 3


def extract(reply: str) -> list[str]:
    """Return the code of a reply's cells, in order; none if it has no code block."""
    cells: list[str] = []
    opened: re.Match[str] | None = None
    lines: list[str] = []
    # Not splitlines(): a form feed or U+2028 inside a string literal does not end a line.
    for line in reply.removesuffix("\n").split("\n"):
        line = line.removesuffix("\r")
        match = _FENCE.match(line) if "```" in line or "~~~" in line else None
        if opened is None:
            if match is not None and not (match["fence"][0] == "`" and "`" in match["info"]):
                opened, lines = match, []
        elif match is not None and _ends(match, opened):
            _add(cells, opened, lines)
            opened, lines = (match if match["info"].strip() else None), []
        else:
            lines.append(line)
    if opened is not None:
        _add(cells, opened, lines)
    return cells


def _ends(match: re.Match[str], opened: re.Match[str]) -> bool:
    """Tell whether a fence closes the open block, or begins another cell because nothing did."""
    fence = match["fence"]
    same = fence[0] == opened["fence"][0] and len(fence) >= len(opened["fence"])
    if not same or match["item"] or _width(match) > _width(opened) + _DEEPEST:
        return False
    return not match["info"].strip() or bool(_tag(match) and _is_code(match) and _is_code(opened))


def _width(match: re.Match[str]) -> int:
    return len(match["indent"].expandtabs(4))


def _tag(match: re.Match[str]) -> str:
    found = _TAG.match(match["info"].strip().lower())
    return found["tag"] if found is not None else ""


def _is_code(match: re.Match[str]) -> bool:
    return _CODE.fullmatch(_tag(match)) is not None


def _add(cells: list[str], opened: re.Match[str], lines: list[str]) -> None:
    if not _is_code(opened):
        return
    # Code in an item of a list is indented with it, or was left where it would stand alone.
    first = next((line for line in lines if line.strip()), "")
    indent = min(len(opened["indent"]), _indent(first))
    code = "\n".join(line[min(indent, _indent(line)) :] for line in lines)
    if _tag(opened) == "pycon":
        code = _without_prompts(code)
    if code.strip():
        cells.append(code)


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" \t"))


def _without_prompts(code: str) -> str:
    kept = [line[4:] for line in code.split("\n") if line[:4] in (">>> ", "... ")]
    return "\n".join(kept) if kept else code
