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
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

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


def json_form(document: Any) -> str:
    """Return a JSON document for people; what is long is cut."""
    text = json.dumps(document, indent=1, ensure_ascii=False)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}\n…"


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


_FENCE = re.compile(r"```.*?(```|$)", re.DOTALL)
KEYS = (
    ("/", "search"),
    ("g s", "sessions"),
    ("g r", "runs"),
    ("g i", "inbox"),
    ("g c", "chat"),
    ("j k", "next, previous row or entry"),
    ("Enter", "open"),
    ("Esc", "close the panel, back"),
    ("[ ]", "event or step back, on"),
    ("{ }", "turn back, on"),
    (".", "back to the tip"),
    ("1 – 6", "tabs of a session"),
    ("s", "what the model saw"),
    ("f", "fork from here"),
    ("x", "mark a session"),
    ("c", "compare the marked"),
    ("n p", "next, previous difference or error"),
    ("y Y", "copy the link, the command"),
    ("a d e", "inbox: approve, deny, edit"),
    ("Ctrl Enter", "send the form"),
)


def prose_of(step: Any) -> str:
    """Return what a reply says beside the code that was run."""
    reply = step.reply or ""
    return (_FENCE.sub("", reply) if step.cells else reply).strip()


def dollars(amount: Any) -> str:
    """Return money without the zeros that say nothing, with two decimals at least."""
    text = f"{Decimal(str(amount)):f}"
    whole, _, part = text.partition(".")
    return f"{whole}.{part.rstrip('0').ljust(2, '0')}"


def share(part: Any, whole: Any) -> float:
    """Return a part of a whole, between 0 and 1."""
    return min(1.0, float(Decimal(str(part)) / Decimal(str(whole)))) if Decimal(str(whole)) else 0.0


def query_of(**parts: Any) -> str:
    """Return the query of an address: what is None or empty is left out."""
    given = {name: value for name, value in parts.items() if value not in (None, "")}
    return f"?{urlencode(given)}" if given else ""


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
    hatches = "".join(
        f'<pattern id="hatch-{tone}" width="5" height="5" patternUnits="userSpaceOnUse" '
        f'patternTransform="rotate(45)"><rect class="f-surface" width="5" height="5"/>'
        f'<rect class="f-{tone}" width="2" height="5"/></pattern>'
        for tone in ("wait", "cut", "lost")
    )
    sprite = f"<defs>{hatches}</defs>" + "".join(
        f'<symbol id="i-{name}" viewBox="0 0 16 16">{body}</symbol>' for name, body in ICONS.items()
    )
    made.globals |= {
        "SPRITE": Markup(sprite),
        "LOGO": Markup(LOGO),
        "chip_of": chip_of,
        "text_form": text_form,
        "json_form": json_form,
        "highlighted": highlighted,
        "duration": duration,
        "prose_of": prose_of,
        "dollars": dollars,
        "share": share,
        "query_of": query_of,
        "KEYS": KEYS,
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
