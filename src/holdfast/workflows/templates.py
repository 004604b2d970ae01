"""Templates: text with `{{ expressions }}` in it, and data whose texts are templates.

A text that is one pair of braces and nothing else keeps the type of its value; any other is text.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from holdfast.workflows.evaluation import Data, evaluate, text_of
from holdfast.workflows.expressions import Expression, ExpressionFailed, parse


@dataclass(frozen=True, slots=True)
class Hole:
    """An expression inside a text, and the position where it begins."""

    expression: Expression
    start: int


@dataclass(frozen=True, slots=True)
class Template:
    """A text with expressions in it."""

    parts: tuple[str | Hole, ...]

    @property
    def alone(self) -> Hole | None:
        """Return the expression that the text consists of, if it has nothing else."""
        holes = [part for part in self.parts if isinstance(part, Hole)]
        plain = "".join(part for part in self.parts if isinstance(part, str))
        return holes[0] if len(holes) == 1 and not plain.strip() else None

    @property
    def holes(self) -> tuple[Hole, ...]:
        """Return the expressions."""
        return tuple(part for part in self.parts if isinstance(part, Hole))


@lru_cache(maxsize=4096)
def read(text: str) -> Template:
    """Return the template that a text is; raise ExpressionFailed with the place in the text."""
    parts: list[str | Hole] = []
    position = 0
    while (start := text.find("{{", position)) >= 0:
        end = _end(text, start + 2)
        if end is None:
            raise ExpressionFailed(
                "'{{' is never closed", start=start, length=2, remedy="add '}}' where it ends"
            )
        if start > position:
            parts.append(text[position:start])
        inside = text[start + 2 : end]
        before = start + 2 + len(inside) - len(inside.lstrip())
        if not inside.strip():
            raise ExpressionFailed(
                "there is nothing between '{{' and '}}'",
                start=start,
                length=end + 2 - start,
                remedy="write an expression, such as {{ vars.topic }}",
            )
        try:
            parts.append(Hole(parse(inside.strip()), before))
        except ExpressionFailed as error:
            raise ExpressionFailed(
                str(error), start=before + error.start, length=error.length, remedy=error.remedy
            ) from error
        position = end + 2
    if position < len(text):
        parts.append(text[position:])
    return Template(tuple(parts))


def _end(text: str, position: int) -> int | None:
    """Return where the braces of an expression close; objects and texts in it have braces too."""
    depth, quote = 0, ""
    while position < len(text):
        letter = text[position]
        if quote:
            if letter == "\\":
                position += 1
            elif letter == quote:
                quote = ""
        elif letter in "'\"":
            quote = letter
        elif depth == 0 and text.startswith("}}", position):
            return position
        else:
            depth += {"{": 1, "}": -1}.get(letter, 0)
        position += 1
    return None


def render(text: str, data: Data) -> Any:
    """Return the value of a template: of its one expression, or text."""
    template = read(text)
    if template.alone is not None:
        return evaluate(template.alone.expression, data)
    return "".join(
        part if isinstance(part, str) else text_of(evaluate(part.expression, data))
        for part in template.parts
    )


def render_text(text: str, data: Data) -> str:
    """Return the text of a template, whatever its one expression would be."""
    return text_of(render(text, data))


def fill(value: Any, data: Data) -> Any:
    """Return data with every text in it rendered."""
    if isinstance(value, str):
        return render(value, data)
    if isinstance(value, dict):
        return {key: fill(part, data) for key, part in value.items()}
    if isinstance(value, list):
        return [fill(part, data) for part in value]
    return value


def texts(
    value: Any, path: tuple[str | int, ...] = ()
) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Yield every text of some data with its path in it."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict):
        for key, part in value.items():
            yield from texts(part, (*path, key))
    elif isinstance(value, list):
        for number, part in enumerate(value):
            yield from texts(part, (*path, number))
