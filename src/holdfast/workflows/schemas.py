"""Schemas: what a value may be, as types that can be checked before a run and while it runs.

Written as words (`string`, `list of Finding`, `optional integer`, `low | high`), as a mapping of
fields, as a subset of JSON Schema, or as Python types; one small set of classes is behind all of
them. A schema is written back as JSON Schema, which is its canonical form.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Schema:
    """What a value may be."""

    def document(self) -> Document:
        """Return it as JSON Schema."""
        return {}

    def problems(self, value: Any, at: str = "") -> Iterator[str]:
        """Yield what is wrong with a value, each with its place in it."""
        return iter(())

    def accepts(self, value: Any) -> bool:
        """Tell whether a value fits."""
        return next(self.problems(value), None) is None

    def __str__(self) -> str:
        return "any"


@dataclass(frozen=True, slots=True)
class Anything(Schema):
    """Any value at all."""


ANY = Anything()


@dataclass(frozen=True, slots=True)
class Scalar(Schema):
    """One of the plain kinds: string, integer, number, boolean, null; with the bounds it keeps."""

    kind: str
    least: float | int | None = None
    most: float | int | None = None

    def document(self) -> Document:
        """Return it as JSON Schema."""
        names = ("minLength", "maxLength") if self.kind == "string" else ("minimum", "maximum")
        bounds = zip(names, (self.least, self.most), strict=True)
        return {"type": self.kind} | {name: bound for name, bound in bounds if bound is not None}

    def problems(self, value: Any, at: str = "") -> Iterator[str]:
        """Yield what is wrong with a value."""
        if not _is_kind(value, self.kind):
            yield f"{_where(at)} must be {_article(self.kind)}, not {describe(value)}"
            return
        size = len(value) if self.kind == "string" else value
        what = "length of " if self.kind == "string" else ""
        if self.least is not None and size < self.least:
            yield f"{what}{_where(at)} must be at least {self.least}, not {size}"
        if self.most is not None and size > self.most:
            yield f"{what}{_where(at)} must be at most {self.most}, not {size}"

    def __str__(self) -> str:
        return self.kind


STRING, INTEGER, NUMBER = Scalar("string"), Scalar("integer"), Scalar("number")
BOOLEAN, NULL = Scalar("boolean"), Scalar("null")
WORDS: dict[str, Schema] = {
    "string": STRING,
    "integer": INTEGER,
    "number": NUMBER,
    "boolean": BOOLEAN,
    "null": NULL,
    "any": ANY,
}


@dataclass(frozen=True, slots=True)
class Choice(Schema):
    """One of a few values."""

    values: tuple[Any, ...]

    def document(self) -> Document:
        """Return it as JSON Schema."""
        return {"enum": list(self.values)}

    def problems(self, value: Any, at: str = "") -> Iterator[str]:
        """Yield what is wrong with a value."""
        if not any(type(value) is type(one) and value == one for one in self.values):
            yield f"{_where(at)} must be one of {self}, not {describe(value)}"

    def __str__(self) -> str:
        return " | ".join(map(str, self.values))


@dataclass(frozen=True, slots=True)
class ListOf(Schema):
    """A list of values that each fit a schema."""

    item: Schema
    least: int | None = None
    most: int | None = None

    def document(self) -> Document:
        """Return it as JSON Schema."""
        bounds = {"minItems": self.least, "maxItems": self.most}
        kept = {name: bound for name, bound in bounds.items() if bound is not None}
        return {"type": "array", "items": self.item.document(), **kept}

    def problems(self, value: Any, at: str = "") -> Iterator[str]:
        """Yield what is wrong with a value."""
        if not isinstance(value, list):
            yield f"{_where(at)} must be a list, not {describe(value)}"
            return
        if self.least is not None and len(value) < self.least:
            yield f"{_where(at)} must have at least {self.least} items, not {len(value)}"
        if self.most is not None and len(value) > self.most:
            yield f"{_where(at)} must have at most {self.most} items, not {len(value)}"
        for number, item in enumerate(value):
            yield from self.item.problems(item, f"{at}[{number}]")

    def __str__(self) -> str:
        return f"list of {self.item}"


@dataclass(frozen=True, slots=True)
class Field:
    """One field of an object."""

    schema: Schema
    required: bool = True


@dataclass(frozen=True, slots=True)
class ObjectOf(Schema):
    """An object with named fields; an open one may have others, of one schema."""

    fields: Mapping[str, Field]
    others: Schema | None = None

    def document(self) -> Document:
        """Return it as JSON Schema."""
        return {
            "type": "object",
            "properties": {name: one.schema.document() for name, one in self.fields.items()},
            "required": [name for name, one in self.fields.items() if one.required],
            "additionalProperties": False if self.others is None else self.others.document(),
        }

    def problems(self, value: Any, at: str = "") -> Iterator[str]:
        """Yield what is wrong with a value."""
        if not isinstance(value, dict):
            yield f"{_where(at)} must be an object, not {describe(value)}"
            return
        for name, one in self.fields.items():
            place = f"{at}.{name}" if at else name
            if name in value:
                yield from one.schema.problems(value[name], place)
            elif one.required:
                yield f"{_where(at)} lacks the field {name!r}"
        for name in value:
            if name in self.fields:
                continue
            if self.others is None:
                yield f"{_where(at)} has the unknown field {name!r}"
            else:
                yield from self.others.problems(value[name], f"{at}.{name}" if at else str(name))

    def __str__(self) -> str:
        if not self.fields and self.others is not None:
            return "object"
        return "{" + ", ".join(f"{name}: {one.schema}" for name, one in self.fields.items()) + "}"

    def __hash__(self) -> int:
        return hash(tuple(self.fields))


OBJECT = ObjectOf({}, ANY)


@dataclass(frozen=True, slots=True)
class OneOf(Schema):
    """A value that fits one of several schemas; `optional T` is T or null."""

    options: tuple[Schema, ...]

    def document(self) -> Document:
        """Return it as JSON Schema."""
        return {"anyOf": [option.document() for option in self.options]}

    def problems(self, value: Any, at: str = "") -> Iterator[str]:
        """Yield what is wrong with a value."""
        if any(option.accepts(value) for option in self.options):
            return
        rest = [option for option in self.options if option != NULL]
        if len(rest) == 1:
            yield from rest[0].problems(value, at)
        else:
            yield f"{_where(at)} must be {self}, not {describe(value)}"

    def __str__(self) -> str:
        rest = [option for option in self.options if option != NULL]
        text = " or ".join(map(str, rest))
        return f"optional {text}" if len(rest) < len(self.options) else text


def one_of(*options: Schema) -> Schema:
    """Return the schema of values that fit any of some schemas, as plainly as it can be said."""
    found: list[Schema] = []
    for option in options:
        for part in option.options if isinstance(option, OneOf) else (option,):
            if part == ANY:
                return ANY
            if part not in found:
                found.append(part)
    if NUMBER in found and INTEGER in found:
        found.remove(INTEGER)
    if len(found) > 1 and STRING in found:
        found = [one for one in found if not _is_text_choice(one)]
    return found[0] if len(found) == 1 else OneOf(tuple(found))


def optional(schema: Schema) -> Schema:
    """Return a schema that also takes null."""
    return one_of(schema, NULL)


def without_null(schema: Schema) -> Schema:
    """Return a schema less null."""
    if not isinstance(schema, OneOf) or NULL not in schema.options:
        return schema
    return one_of(*(option for option in schema.options if option != NULL))


def may_be_null(schema: Schema) -> bool:
    """Tell whether null is among the values of a schema."""
    return schema == NULL or (isinstance(schema, OneOf) and NULL in schema.options)


def fits(given: Schema, wanted: Schema) -> bool:
    """Tell whether every value of one schema may stand where another is wanted; any may."""
    if wanted == ANY or given in (ANY, wanted):
        return True
    if isinstance(given, OneOf):
        return all(fits(option, wanted) for option in given.options)
    if isinstance(wanted, OneOf):
        return any(fits(given, option) for option in wanted.options)
    if isinstance(given, Choice):
        return all(wanted.accepts(value) for value in given.values)
    if isinstance(given, Scalar) and isinstance(wanted, Scalar):
        # Bounds are checked when the value is there.
        return given.kind == wanted.kind or (given.kind, wanted.kind) == ("integer", "number")
    if isinstance(given, ListOf) and isinstance(wanted, ListOf):
        return fits(given.item, wanted.item)
    if isinstance(given, ObjectOf) and isinstance(wanted, ObjectOf):
        return _object_fits(given, wanted)
    return False


def _object_fits(given: ObjectOf, wanted: ObjectOf) -> bool:
    for name, one in wanted.fields.items():
        there = given.fields.get(name)
        if there is None:
            if one.required and given.others is None:
                return False
        elif not fits(there.schema, one.schema) or (one.required and not there.required):
            return False
    return wanted.others is not None or all(name in wanted.fields for name in given.fields)


def schema_of(value: Any) -> Schema:
    """Return the narrowest schema of a plain value."""
    match value:
        case None:
            return NULL
        case bool():
            return BOOLEAN
        case int():
            return INTEGER
        case float():
            return NUMBER
        case str():
            return STRING
        case list():
            return ListOf(one_of(*map(schema_of, value)) if value else ANY)
        case dict():
            return ObjectOf({str(name): Field(schema_of(part)) for name, part in value.items()})
    return ANY


def describe(value: Any) -> str:
    """Return what a value is, short enough for a message."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int() | float():
            return f"{value!r}"[:40]
        case str():
            return f"the text {value!r}" if len(value) <= 40 else f"a text of {len(value)} letters"
        case list():
            return f"a list of {len(value)}"
        case dict():
            return "an object"
    return f"a {type(value).__name__}"


def _is_kind(value: Any, kind: str) -> bool:
    match kind:
        case "string":
            return isinstance(value, str)
        case "integer":
            return isinstance(value, int) and not isinstance(value, bool)
        case "number":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case "boolean":
            return isinstance(value, bool)
    return value is None


def _is_text_choice(schema: Schema) -> bool:
    return isinstance(schema, Choice) and all(isinstance(value, str) for value in schema.values)


def _where(at: str) -> str:
    return at or "the value"


def _article(kind: str) -> str:
    return kind if kind == "null" else f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"
