"""What may reach a terminal, and what may stand in a document.

Models, users and file names write text that can hold escape sequences: they could move the cursor,
set titles, fill the clipboard or hide what is really there. Every text is cleaned before it is
printed; documents are JSON in which such characters are escaped, so that they lose nothing.
"""

from __future__ import annotations

import json
import re
from typing import Any

_SEQUENCES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor, modes
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)"  # OSC, DCS, …
    r"|\x1b[ -/]*[0-~]"
)
# Controls but newline and tab; bidirectional and invisible marks; lone surrogates; tag characters.
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)


def clean(text: str) -> str:
    """Return text without terminal control sequences and invisible characters."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    text = _SEQUENCES.sub("", text)
    return _HIDDEN.sub(lambda m: "\ufffd" if "\ud800" <= m.group() <= "\udfff" else "", text)


def one_line(text: str, width: int = 80) -> str:
    """Return cleaned text as one line of at most `width` characters."""
    text = " ".join(clean(text[: width * 20]).split())
    return text if len(text) <= width else text[: width - 1] + "…"


def dumps(document: Any, *, indent: int | None = None) -> str:
    """Return a document as JSON on which no terminal acts and from which nothing is lost."""
    text = json.dumps(document, ensure_ascii=False, allow_nan=False, indent=indent)
    return _HIDDEN.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    code = ord(match.group())
    if code <= 0xFFFF:
        return f"\\u{code:04x}"
    code -= 0x10000
    return f"\\u{0xD800 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"
