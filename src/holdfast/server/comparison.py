"""Two sessions side by side: what each went through from their first difference on, in pairs."""

from __future__ import annotations

import difflib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.stores.port import SessionStore
from holdfast.views.divergence import Divergence, Moment, beyond, divergence, moment_values
from holdfast.views.values import value_form

MOST_MOMENTS = 60
MOST_LINES = 400


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a difference; the sign says where it is."""

    sign: str  # " ", "-", "+", "@"
    left: int | None
    right: int | None
    text: str


@dataclass(frozen=True, slots=True)
class Pair:
    """What two sessions have at the same place; one side may have nothing."""

    kind: str
    one: Moment | None
    other: Moment | None
    left: Sequence[Line]
    right: Sequence[Line]
    same: bool


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two sessions, where they part and what follows."""

    found: Divergence
    pairs: Sequence[Pair]
    more: bool


async def compare(store: SessionStore, one: str, other: str) -> Comparison:
    """Return two sessions side by side from their first difference."""
    found = await divergence(store, one, other)
    left, right = await beyond(store, one, other, limit=MOST_MOMENTS)
    matcher = difflib.SequenceMatcher(None, [_key(m) for m in left], [_key(m) for m in right])
    pairs: list[Pair] = []
    for tag, a, b, c, d in matcher.get_opcodes():
        mine, theirs = left[a:b], right[c:d]
        if tag == "equal":
            pairs += [Pair(m.kind, m, n, (), (), True) for m, n in zip(mine, theirs, strict=True)]
            continue
        pairs += await _differing(store, mine, theirs)
    full = len(left) >= MOST_MOMENTS or len(right) >= MOST_MOMENTS
    return Comparison(found, pairs, full)


def _key(moment: Moment) -> str:
    return f"{moment.kind}:{moment.content!r}"


async def _differing(
    store: SessionStore, mine: Sequence[Moment], theirs: Sequence[Moment]
) -> list[Pair]:
    """Pair moments that differ: the same kinds with each other, in order."""
    pairs: list[Pair] = []
    kinds = difflib.SequenceMatcher(None, [m.kind for m in mine], [m.kind for m in theirs])
    for tag, a, b, c, d in kinds.get_opcodes():
        if tag == "equal":
            for one, other in zip(mine[a:b], theirs[c:d], strict=True):
                pairs.append(await _pair(store, one, other))
            continue
        pairs += [await _pair(store, moment, None) for moment in mine[a:b]]
        pairs += [await _pair(store, None, moment) for moment in theirs[c:d]]
    return pairs


async def _pair(store: SessionStore, one: Moment | None, other: Moment | None) -> Pair:
    left = "" if one is None else await _text(store, one)
    right = "" if other is None else await _text(store, other)
    kind = one.kind if one is not None else other.kind if other is not None else ""
    lines = difference(left, right)
    return Pair(
        kind,
        one,
        other,
        [line for line in lines if line.sign != "+"] if one is not None else (),
        [line for line in lines if line.sign != "-"] if other is not None else (),
        False,
    )


async def _text(store: SessionStore, moment: Moment) -> str:
    values = await moment_values(store, moment)
    parts = []
    for name, value in values.items():
        form = value_form(value)
        text = form if isinstance(form, str) else json.dumps(form, indent=1, ensure_ascii=False)
        parts.append(text if len(values) == 1 else f"{name}: {text}")
    return "\n".join(parts)


def difference(old: Any, new: Any, *, around: int = 3) -> list[Line]:
    """Return how two texts differ, line by line, with a few lines around."""
    before, after = str(old).split("\n"), str(new).split("\n")
    if not old:
        before = []
    if not new:
        after = []
    lines: list[Line] = []
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=len(before) > 2000)
    for group in matcher.get_grouped_opcodes(around):
        if group[0][1] > 0:
            lines.append(Line("@", None, None, f"lines {group[0][1] + 1} and {group[0][3] + 1}"))
        for tag, a, b, c, d in group:
            if tag == "equal":
                lines += [Line(" ", a + n + 1, c + n + 1, before[a + n]) for n in range(b - a)]
                continue
            lines += [Line("-", n + 1, None, before[n]) for n in range(a, b)]
            lines += [Line("+", None, n + 1, after[n]) for n in range(c, d)]
    if len(lines) > MOST_LINES:
        lines = [
            *lines[:MOST_LINES],
            Line("@", None, None, f"{len(lines) - MOST_LINES} more lines"),
        ]
    return lines
