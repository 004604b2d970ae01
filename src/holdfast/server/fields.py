"""Form fields from a JSON schema, and answers from what a form sends.

A small subset becomes fields: text, numbers, yes or no, choices, and objects of those. Everything
else is one field for JSON. References and patterns are not followed; the runtime checks the answer
against the whole schema.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.core.errors import InvalidInput

LONG_TEXT = 120


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a form."""

    name: str  # empty where the answer is this one value
    kind: str  # text, long, integer, number, boolean, choice, json
    title: str
    rule: str
    required: bool
    choices: tuple[Any, ...] = ()


def fields_of(schema: Any) -> list[Field]:
    """Return the fields of a form for an answer; without a schema it is text."""
    if not isinstance(schema, dict):
        return [Field("", "long", "Answer", "text", True)]
    properties = schema.get("properties")
    if schema.get("type") == "object" and isinstance(properties, dict) and properties:
        needed = schema.get("required", [])
        return [_field(name, part, name in needed) for name, part in properties.items()]
    return [_field("", schema, True)]


def _field(name: str, schema: Any, required: bool) -> Field:
    part = schema if isinstance(schema, dict) else {}
    title = str(part.get("title") or name or "Answer")
    choices = part.get("enum")
    if isinstance(choices, list) and choices:
        return Field(name, "choice", title, f"one of {len(choices)}", required, tuple(choices))
    kind = part.get("type")
    if kind in ("integer", "number", "boolean"):
        return Field(name, str(kind), title, str(kind), required)
    if kind == "string":
        long = part.get("maxLength", LONG_TEXT + 1)
        shape = "long" if not isinstance(long, int) or long > LONG_TEXT else "text"
        return Field(name, shape, title, "text", required)
    return Field(name, "json", title, "JSON", required)


def value_of(schema: Any, form: Mapping[str, str]) -> Any:
    """Return the answer that a form says."""
    found = fields_of(schema)
    if len(found) == 1 and not found[0].name:
        return _value(found[0], form.get("f-", ""))
    answer = {}
    for field in found:
        text = form.get(f"f-{field.name}", "")
        if text or field.required or field.kind == "boolean":
            answer[field.name] = _value(field, text)
    return answer


def _value(field: Field, text: str) -> Any:
    try:
        match field.kind:
            case "integer":
                return int(text)
            case "number":
                return float(text)
            case "boolean":
                return text == "true"
            case "choice":
                return field.choices[int(text)]
            case "json":
                return json.loads(text)
    except (ValueError, IndexError) as error:
        raise InvalidInput(f"{field.title}: {text[:60]!r} is not a valid {field.rule}") from error
    return text
