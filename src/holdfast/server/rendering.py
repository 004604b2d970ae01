"""Rendering: templates that escape everything, with invisible characters spelled out.

Text of models, users and files is never markup here. Controls, bidirectional marks and lone
surrogates become their code points, so that nothing on a page is hidden or turned around.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import keyword
import re
import tokenize
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from holdfast.server.icons import ICONS, LOGO, STATUS
from holdfast.views.values import value_form

FOLDER = Path(__file__).parent
LONGEST = 20_000
"""Characters of one value on a page; the whole is a link away."""

_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)
_CLASSES = {tokenize.STRING: "s", tokenize.NUMBER: "m", tokenize.COMMENT: "c"}


def spelled(value: Any) -> Any:
    """Return text whose invisible characters are spelled out; anything else as it is."""
    if not isinstance(value, str):
        return value
    found = _HIDDEN.sub(lambda match: f"⟨U+{ord(match.group()):04X}⟩", value.replace("\r\n", "\n"))
    return Markup(found) if isinstance(value, Markup) else found


def text_form(value: Any) -> str:
    """Return a value as text: text as it is, anything else as JSON; what is long is cut."""
    form = value_form(value)
    text = form if isinstance(form, str) else json.dumps(form, indent=1, ensure_ascii=False)
    if len(text) <= LONGEST:
        return text
    return f"{text[:LONGEST]}\n… {len(text) - LONGEST:,} more characters"


def highlighted(code: Any) -> list[Markup]:
    """Return the lines of a cell with the parts of Python marked; plain where it does not parse."""
    text = spelled(text_form(code))
    marks: dict[int, list[tuple[int, int, str]]] = {}
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            name = _CLASSES.get(token.type)
            if token.type == tokenize.NAME and keyword.iskeyword(token.string):
                name = "k"
            if name and token.start[0] == token.end[0]:
                row = marks.setdefault(token.start[0], [])
                row.append((token.start[1], token.end[1], name))
    except (tokenize.TokenError, SyntaxError):
        pass
    return [_line(line, marks.get(n, [])) for n, line in enumerate(text.split("\n"), 1)]


def _line(line: str, marks: list[tuple[int, int, str]]) -> Markup:
    parts, at = Markup(), 0
    for begin, end, name in marks:
        parts += escape(line[at:begin])
        parts += Markup('<span class="{}">{}</span>').format(name, line[begin:end])
        at = end
    return parts + escape(line[at:])


def chip_of(status: str) -> tuple[str, str, str]:
    """Return tone, icon and word of a status; one that is not known says its name."""
    return STATUS.get(status, ("quiet", "none", status.replace("_", " ")))


def duration(milliseconds: int | None) -> str:
    """Return a duration for people."""
    if milliseconds is None:
        return ""
    if milliseconds < 1000:
        return f"{milliseconds} ms"
    seconds = milliseconds / 1000
    return f"{seconds:.1f} s" if seconds < 60 else f"{int(seconds // 60)} m {int(seconds % 60)} s"


@cache
def environment() -> Environment:
    """Return the templates."""
    made = Environment(
        loader=FileSystemLoader(FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=spelled,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    sprite = "".join(
        f'<symbol id="i-{name}" viewBox="0 0 16 16">{body}</symbol>' for name, body in ICONS.items()
    )
    made.globals |= {
        "SPRITE": Markup(sprite),
        "LOGO": Markup(LOGO),
        "chip_of": chip_of,
        "text_form": text_form,
        "highlighted": highlighted,
        "duration": duration,
    }
    return made


def rendered(template: str, **values: Any) -> str:
    """Return a page."""
    return environment().get_template(template).render(**values)


@cache
def inline_style() -> tuple[str, str]:
    """Return the style sheet for a page that stands alone, and the hash that its policy names."""
    text = (FOLDER / "static" / "style.css").read_text()
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return text, f"sha256-{digest}"
