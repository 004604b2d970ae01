"""Tables that fit the terminal: whole where there is room, shortened or without a column else.

In a pipe or a file nothing is shortened. Ids are cut to a
beginning that is unique in the table, which every command takes in place of the whole id.
"""

from __future__ import annotations

import shutil
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from holdfast.cli.terminal import one_line

GAP = "  "
LONGEST_CELL = 1000


@dataclass(frozen=True, slots=True)
class Column:
    """A column: how narrow it may become, and how soon it is left out.

    Columns with a higher `spare` go first; those with 0 stay whatever happens.
    """

    title: str
    least: int | None = None
    spare: int = 0
    is_id: bool = False
    right: bool = False


def screen_width() -> int | None:
    """Return how many columns the terminal has; None where output goes elsewhere."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def table(
    columns: Sequence[Column], rows: Iterable[Sequence[str]], width: int | None = None
) -> str:
    """Return aligned columns in at most `width` characters; every cell is cleaned and one line."""
    cells = [[one_line(cell, LONGEST_CELL) for cell in row] for row in rows]
    widths = [
        max([display_width(column.title), *(display_width(row[place]) for row in cells)])
        for place, column in enumerate(columns)
    ]
    places = list(range(len(columns)))
    if width is not None:
        least = [_least(column, [row[p] for row in cells]) for p, column in enumerate(columns)]
        least = [min(pair) for pair in zip(least, widths, strict=True)]
        _leave_out(columns, places, least, width)
        _shrink(columns, places, widths, least, width)
    lines = [[columns[place].title for place in places]]
    lines += [[_cut(columns[p], row[p], widths[p]) for p in places] for row in cells]
    return "\n".join(
        GAP.join(
            _padded(cell, widths[place], right=columns[place].right)
            for cell, place in zip(line, places, strict=True)
        ).rstrip()
        for line in lines
    )


def _least(column: Column, cells: list[str]) -> int:
    """Return how narrow a column may become; one of ids, as far as they can be told apart."""
    if column.least is None:
        return sys.maxsize
    unique = unique_length(cells) if column.is_id else 0
    return max(column.least, display_width(column.title), unique)


def unique_length(ids: Iterable[str]) -> int:
    """Return how many characters it takes to tell ids apart."""
    shared = (_shared(one, other) for one, other in pairwise(sorted(set(ids))))
    return max(shared, default=0) + 1


def _shared(one: str, other: str) -> int:
    """Return how many characters two texts have in common at their beginning."""
    pairs = zip(one, other, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def _leave_out(columns: Sequence[Column], places: list[int], least: list[int], width: int) -> None:
    """Leave out columns until the rest fits in its narrowest form, or none can be spared."""
    while sum(least[p] for p in places) + len(GAP) * (len(places) - 1) > width:
        spare = max(places, key=lambda place: (columns[place].spare, place))
        if not columns[spare].spare:
            return
        places.remove(spare)


def _shrink(
    columns: Sequence[Column],
    places: list[int],
    widths: list[int],
    least: list[int],
    width: int,
) -> None:
    """Shorten columns until the table fits: ids only where texts would lose too much."""
    excess = sum(widths[p] for p in places) + len(GAP) * (len(places) - 1) - width
    texts = [p for p in places if not columns[p].is_id]
    if excess * 2 > sum(widths[p] - least[p] for p in texts):
        for place in (p for p in places if columns[p].is_id and excess > 0):
            excess -= widths[place] - least[place]
            widths[place] = least[place]
    while excess > 0 and (able := [p for p in texts if widths[p] > least[p]]):
        widths[max(able, key=lambda p: widths[p] - least[p])] -= 1
        excess -= 1


def _cut(column: Column, cell: str, width: int) -> str:
    if display_width(cell) <= width:
        return cell
    if column.is_id:
        return cell[:width].rstrip("-")
    return shortened(cell, width)


def shortened(text: str, width: int) -> str:
    """Return a line that takes at most so many columns of a terminal."""
    if display_width(text) <= width:
        return text
    kept, used = "", 0
    for character in text:
        used += _character_width(character)
        if used > width - 1:
            break
        kept += character
    return kept + "…"


def display_width(text: str) -> int:
    """Return how many columns a line takes on a terminal: two for wide characters."""
    return len(text) if text.isascii() else sum(map(_character_width, text))


def _character_width(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def _padded(cell: str, width: int, *, right: bool) -> str:
    space = " " * max(0, width - display_width(cell))
    return space + cell if right else cell + space
