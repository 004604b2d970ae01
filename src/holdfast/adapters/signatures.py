"""Names and stubs of foreign tools: from a JSON schema to what code in a cell can call."""

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping
from typing import Any


def python_name(name: str) -> str:
    """Return the Python name that comes nearest to a tool's own."""
    made = re.sub(r"\W", "_", name, flags=re.ASCII).strip("_")
    if not made or made[0].isdigit() or keyword.iskeyword(made):
        made = f"tool_{made}"
    return made


def signature(schema: Mapping[str, Any]) -> str:
    """Return the stub under which code calls a tool; optional arguments are left out as None."""
    properties: Mapping[str, Any] = schema.get("properties") or {}
    required = set(schema.get("required", ()))
    if not all(name.isidentifier() and not keyword.iskeyword(name) for name in properties):
        return "(**arguments)"
    parts = [f"{name}: {_hint(properties[name])}" for name in properties if name in required]
    parts += [
        f"{name}: {_hint(properties[name])} = {_default(properties[name])}"
        for name in properties
        if name not in required
    ]
    return f"({', '.join(parts)})"


def _hint(schema: Any) -> str:
    kind = schema.get("type") if isinstance(schema, dict) else None
    names = {"string": "str", "integer": "int", "number": "float", "boolean": "bool"}
    return {**names, "array": "list", "object": "dict"}.get(str(kind), "object")


def _default(schema: Any) -> str:
    value = schema.get("default") if isinstance(schema, dict) else None
    return repr(value) if isinstance(value, str | int | float | bool) else "None"
