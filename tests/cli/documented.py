"""The documents that `docs/reference/json.md` describes, to check real ones against."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "json.md"
PLAIN = {
    "string": lambda value: type(value) is str,
    "integer": lambda value: type(value) is int,
    "boolean": lambda value: type(value) is bool,
    "object": lambda value: type(value) is dict,
    "null": lambda value: value is None,
    "any": lambda value: True,
}


def _read() -> dict[str, dict[str, str]]:
    parts = re.split(r"^### (\w+)$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {
        name: dict(re.findall(r"^\| `(\w+)` \| ([^|]+?) \|", body, re.MULTILINE))
        for name, body in zip(parts[1::2], parts[2::2], strict=True)
    }


DOCUMENTS = _read()


def check(value: object, kind: str, where: str = "") -> None:
    """Fail unless a value is exactly what the page says of this kind."""
    where = where or kind
    if " or " in kind:
        options = kind.split(" or ")
        assert len(options) == 2
        assert options[1] == "null", kind
        if value is not None:
            check(value, options[0], where)
    elif kind.startswith("list of "):
        assert type(value) is list, f"{where} is no list: {value!r}"
        for index, item in enumerate(value):
            check(item, kind.removeprefix("list of "), f"{where}[{index}]")
    elif kind in PLAIN:
        assert PLAIN[kind](value), f"{where} is no {kind}: {value!r}"
    else:
        assert type(value) is dict, f"{where} is no {kind}: {value!r}"
        assert value.keys() == DOCUMENTS[kind].keys(), f"{where}: {sorted(value)}"
        for name, inner in DOCUMENTS[kind].items():
            check(value[name], inner, f"{where}.{name}")
