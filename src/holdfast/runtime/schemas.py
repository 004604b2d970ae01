"""Schemas: the shape that a value must have, as JSON schema and as a Python type.

A type that a program declares becomes the JSON schema that the log keeps and a model is told. A
value is checked against the logged schema wherever it arrives: a final value, an answer, arguments.
Checking reads nothing from elsewhere: a schema that refers to another document is refused.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import msgspec

from holdfast.core.errors import InvalidInput, InvalidSettings

Schema = dict[str, Any]

SHOWN_CHARACTERS = 300


def of(kind: Any) -> Schema:
    """Return the JSON schema of a Python type; one that is a schema already is checked."""
    if isinstance(kind, Mapping):
        schema = dict(kind)
        _validator(_text(schema))
        return schema
    pydantic = _pydantic(kind)
    if pydantic is not None:
        found: Schema = pydantic.json_schema()
        return found
    try:
        return msgspec.json.schema(kind)
    except TypeError as error:
        raise InvalidSettings(f"{kind!r} has no JSON schema: {error}") from error


def check(schema: Mapping[str, Any], value: Any, what: str = "the value") -> Any:
    """Return a value that fits a schema; InvalidInput names the place that does not."""
    found = _validator(_text(schema))
    plain = plain_of(value, what)
    try:
        error = next(iter(found.iter_errors(plain)), None)
    except (ValueError, RecursionError) as problem:
        # Nested beyond what is checked, or text that is not Unicode.
        raise InvalidInput(f"{what} cannot be checked against its schema: {problem}") from problem
    if error is not None:
        raise InvalidInput(
            f"{what} does not fit its schema{_place(error.instance_path)}: {_short(error.message)}"
        )
    return value


def convert(kind: Any, value: Any, what: str = "the value") -> Any:
    """Return a value as an instance of a Python type; InvalidInput names what does not fit."""
    if isinstance(kind, Mapping):
        return check(kind, value, what)
    pydantic = _pydantic(kind)
    try:
        if pydantic is not None:
            return pydantic.validate_python(value)
        return msgspec.convert(value, kind, from_attributes=False)
    except ValueError as error:  # both libraries derive theirs from it
        raise InvalidInput(f"{what} does not fit: {_short(str(error))}") from error


def plain_of(value: Any, what: str = "the value") -> Any:
    """Return a value as JSON has it: dates and the like as text, tuples and sets as lists."""
    try:
        return msgspec.to_builtins(value, str_keys=True)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(f"{what} cannot be written as JSON: {_short(str(error))}") from error


def read_json(text: str) -> Any:
    """Return the value that a model wrote as JSON, alone or in a code block."""
    bare = text.strip()
    if bare.startswith("```") and bare.endswith("```"):
        bare = bare.partition("\n")[2].rstrip("`")
    try:
        return msgspec.json.decode(bare)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidInput(f"the answer is not JSON: {_short(str(error))}") from error


def _text(schema: Mapping[str, Any]) -> str:
    try:
        return json.dumps(schema, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidSettings(f"a schema is a JSON object: {_short(str(error))}") from error


@lru_cache(maxsize=256)
def _validator(text: str) -> Any:
    # Imported when first needed: most sessions check nothing.
    import jsonschema_rs

    try:
        return jsonschema_rs.validator_for(text, offline=True)
    except (ValueError, jsonschema_rs.ReferencingError) as error:
        where = _place(getattr(error, "instance_path", []))
        message = str(getattr(error, "message", error))
        raise InvalidSettings(f"not a valid JSON schema{where}: {_short(message)}") from error


def _pydantic(kind: Any) -> Any:
    """Return pydantic's adapter of a type that only pydantic can read; None for any other."""
    pydantic = sys.modules.get("pydantic")
    if pydantic is None:
        return None  # then nothing of it can be part of a type
    if isinstance(kind, pydantic.TypeAdapter):
        return kind
    try:
        msgspec.json.schema(kind)
    except TypeError:
        try:
            return pydantic.TypeAdapter(kind)
        except pydantic.PydanticSchemaGenerationError:
            return None
    return None


def _place(path: Any) -> str:
    """Return where in a value something is, as Python would reach it."""
    steps = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return f" at {steps.lstrip('.')}" if steps else ""


def _short(text: str) -> str:
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"
