"""Reading schemas: from words, mappings of fields, JSON Schema and Python types.

JSON Schema is read as far as forms need it. What goes beyond (patterns, remote refs, conditions) is
refused by name, so that nothing is promised that nobody checks.
"""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from holdfast.workflows.schemas import (
    ANY,
    BOOLEAN,
    INTEGER,
    NULL,
    NUMBER,
    OBJECT,
    STRING,
    WORDS,
    Choice,
    Field,
    ListOf,
    ObjectOf,
    OneOf,
    Scalar,
    Schema,
    may_be_null,
    one_of,
    optional,
)

Path = tuple[str | int, ...]

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_MARKS = {"properties", "items", "enum", "const", "anyOf", "oneOf", "$schema", "$ref", "allOf"}
_BOUNDS = {"minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems"}
_IGNORED = {"title", "description", "default", "examples", "format", "$schema", "$defs", "$id"}
_KNOWN = (
    {"type", "properties", "required", "additionalProperties", "items", "enum", "const"}
    | {"anyOf", "oneOf", "$ref"}
    | _BOUNDS
    | _IGNORED
)


class SchemaProblem(Exception):
    """A schema that cannot be read: where in it, why, and what to write instead."""

    def __init__(self, path: Path, message: str, remedy: str) -> None:
        super().__init__(message)
        self.path = path
        self.message = message
        self.remedy = remedy


class SchemaBook:
    """The named schemas of a workflow, each read when it is first needed."""

    def __init__(self, sources: Mapping[str, Any] | None = None) -> None:
        self._sources = dict(sources or {})
        self._read: dict[str, Schema] = {}
        self._reading: list[str] = []

    def named(self, name: str, path: Path = ()) -> Schema:
        """Return the schema that has a name."""
        if name in self._read:
            return self._read[name]
        if name in self._reading:
            circle = " → ".join([*self._reading[self._reading.index(name) :], name])
            raise SchemaProblem(
                path, f"schema {name!r} contains itself: {circle}", "write 'any' at one of them"
            )
        if name not in self._sources:
            close = get_close_matches(name, [*self._sources, *WORDS], n=1)
            remedy = f"did you mean {close[0]!r}?" if close else "declare it under 'schemas'"
            raise SchemaProblem(path, f"there is no schema {name!r}", remedy)
        self._reading.append(name)
        try:
            self._read[name] = self.read(self._sources[name], path)
        finally:
            self._reading.pop()
        return self._read[name]

    def give_up(self, name: str) -> None:
        """Take a schema that cannot be read for any value, so that it is named once."""
        self._read[name] = ANY

    def read(self, source: Any, path: Path = ()) -> Schema:
        """Return the schema that a source describes."""
        if isinstance(source, Schema):
            return source
        if isinstance(source, str):
            return self._words(source.strip(), path)
        if isinstance(source, Mapping):
            if _is_json_schema(source):
                return _JsonSchema(source).read(source, path)
            return self._fields(source, path)
        if isinstance(source, type) or typing.get_origin(source) is not None:
            return from_python(source, path)
        raise SchemaProblem(
            path,
            f"{source!r} is not a valid schema",
            "write a word such as 'string', 'list of T', 'a | b', or a mapping of fields",
        )

    def _fields(self, source: Mapping[Any, Any], path: Path) -> ObjectOf:
        fields: dict[str, Field] = {}
        for name, part in source.items():
            if not isinstance(name, str):
                raise SchemaProblem(path, f"{name!r} is not a valid field name", "quote it")
            schema = self.read(part, (*path, name))
            fields[name] = Field(schema, required=not may_be_null(schema))
        return ObjectOf(fields)

    def _words(self, text: str, path: Path) -> Schema:
        if text.startswith("list of "):
            return ListOf(self._words(text.removeprefix("list of ").strip(), path))
        if text.startswith("optional "):
            return optional(self._words(text.removeprefix("optional ").strip(), path))
        if "|" in text:
            return self._choice([part.strip() for part in text.split("|")], path)
        if text.endswith("[]"):
            raise SchemaProblem(
                path, f"{text!r} is not a valid schema", f"write 'list of {text[:-2]}'"
            )
        if text in WORDS:
            return WORDS[text]
        if not _WORD.fullmatch(text):
            raise SchemaProblem(
                path,
                f"{text!r} is not a valid schema",
                "write a word such as 'string', 'list of T', 'optional T' or 'a | b'",
            )
        return self.named(text, path)

    def _choice(self, parts: list[str], path: Path) -> Schema:
        types_ = [part for part in parts if self._is_type(part)]
        if types_ and len(types_) < len(parts):
            odd = next(part for part in parts if part not in types_)
            raise SchemaProblem(
                path,
                f"{' | '.join(parts)!r} mixes types and words: {odd!r} is not a type",
                "declare it under 'schemas', or use words alone",
            )
        if types_:
            return one_of(*(self._words(part, path) for part in parts))
        if not all(map(_WORD.fullmatch, parts)) or len(set(parts)) < len(parts):
            raise SchemaProblem(
                path,
                f"{' | '.join(parts)!r} is not a valid choice",
                "separate different words by ' | '; for other values write {enum: […]}",
            )
        return Choice(tuple(parts))

    def _is_type(self, part: str) -> bool:
        return part in WORDS or part in self._sources or part.startswith(("list of ", "optional "))


def _is_json_schema(source: Mapping[Any, Any]) -> bool:
    if _MARKS & source.keys() or source.get("type") in ("object", "array"):
        return True
    return source.get("type") in WORDS and source.keys() <= _BOUNDS | {"type", "description"}


class _JsonSchema:
    """A JSON Schema document, with the definitions that its refs lead to."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._definitions = root.get("$defs", {})
        self._reading: list[str] = []

    def read(self, source: Any, path: Path) -> Schema:
        if source is True or source == {}:
            return ANY
        if not isinstance(source, Mapping):
            raise SchemaProblem(path, f"{source!r} is not a valid JSON Schema", "write a mapping")
        unknown = sorted(map(str, source.keys() - _KNOWN))
        if unknown:
            raise SchemaProblem(
                (*path, unknown[0]),
                f"{unknown[0]!r} is beyond the part of JSON Schema that is checked here",
                "leave it out, and check it in a compute or tool node",
            )
        if "$ref" in source:
            return self._ref(source["$ref"], path)
        if "enum" in source or "const" in source:
            values = source["enum"] if "enum" in source else [source["const"]]
            if not isinstance(values, list) or not values:
                raise SchemaProblem((*path, "enum"), "an enum needs values", "list them")
            return Choice(tuple(values))
        for word in ("anyOf", "oneOf"):
            if word in source:
                return one_of(
                    *(
                        self.read(part, (*path, word, number))
                        for number, part in enumerate(source[word])
                    )
                )
        kind = source.get("type", "object" if "properties" in source else None)
        if isinstance(kind, list):
            return one_of(*(self._typed(one, source, path) for one in kind))
        return self._typed(kind, source, path)

    def _ref(self, ref: str, path: Path) -> Schema:
        name = ref.removeprefix("#/$defs/")
        if name == ref or name not in self._definitions or name in self._reading:
            raise SchemaProblem(
                (*path, "$ref"),
                f"the ref {ref!r} leads nowhere that can be followed here",
                "refs may lead to '#/$defs/NAME', and not in circles",
            )
        self._reading.append(name)
        try:
            return self.read(self._definitions[name], (*path, "$ref"))
        finally:
            self._reading.pop()

    def _typed(self, kind: Any, source: Mapping[str, Any], path: Path) -> Schema:
        match kind:
            case None:
                return ANY
            case "array":
                item = self.read(source.get("items", True), (*path, "items"))
                return ListOf(item, source.get("minItems"), source.get("maxItems"))
            case "object":
                return self._object(source, path)
            case "string":
                return Scalar("string", source.get("minLength"), source.get("maxLength"))
            case "integer" | "number":
                return Scalar(kind, source.get("minimum"), source.get("maximum"))
            case "boolean" | "null":
                return Scalar(kind)
        raise SchemaProblem(
            (*path, "type"),
            f"{kind!r} is not a valid type",
            "write object, array, string, integer, number, boolean or null",
        )

    def _object(self, source: Mapping[str, Any], path: Path) -> ObjectOf:
        required = source.get("required", [])
        fields = {
            str(name): Field(self.read(part, (*path, "properties", name)), name in required)
            for name, part in source.get("properties", {}).items()
        }
        missing = [name for name in required if name not in fields]
        if missing:
            raise SchemaProblem(
                (*path, "required"),
                f"{missing[0]!r} is required but is not among the properties",
                "add it to 'properties'",
            )
        # Without properties it is any object; with them, only what is said.
        others = source.get("additionalProperties", not fields)
        closed = others is False or others is None
        return ObjectOf(
            fields, None if closed else self.read(others, (*path, "additionalProperties"))
        )


_PYTHON: dict[Any, Schema] = {
    str: STRING,
    int: INTEGER,
    float: NUMBER,
    bool: BOOLEAN,
    type(None): NULL,
    None: NULL,
    Any: ANY,
    object: ANY,
    dict: OBJECT,
    list: ListOf(ANY),
}


def from_python(source: Any, path: Path = ()) -> Schema:
    """Return the schema of a Python type: dataclass, TypedDict, pydantic model or plain type."""
    if source in _PYTHON:
        return _PYTHON[source]
    origin, arguments = typing.get_origin(source), typing.get_args(source)
    if origin is typing.Annotated:
        return from_python(arguments[0], path)
    if origin is typing.Literal:
        return Choice(arguments)
    if origin in (typing.Union, types.UnionType):
        return one_of(*(from_python(option, path) for option in arguments))
    if origin in (list, tuple, set, frozenset) or (
        origin is not None and origin.__name__ in _LISTS
    ):
        return ListOf(from_python(arguments[0], path))
    if origin is not None and issubclass(origin, Mapping):
        return ObjectOf({}, from_python(arguments[1], path))
    if hasattr(source, "model_json_schema"):
        document = source.model_json_schema()
        return _JsonSchema(document).read(document, path)
    if dataclasses.is_dataclass(source):
        hints = typing.get_type_hints(source, include_extras=True)
        return ObjectOf(
            {
                one.name: Field(
                    from_python(hints[one.name], (*path, one.name)),
                    one.default is dataclasses.MISSING
                    and one.default_factory is dataclasses.MISSING,
                )
                for one in dataclasses.fields(source)
            }
        )
    if typing.is_typeddict(source):
        hints = typing.get_type_hints(source)
        return ObjectOf(
            {
                name: Field(from_python(hint, (*path, name)), name in source.__required_keys__)
                for name, hint in hints.items()
            }
        )
    raise SchemaProblem(
        path,
        f"{source!r} is not a type that schemas can say",
        "use a dataclass, a TypedDict, a pydantic model, or plain types",
    )


_LISTS = ("Sequence", "Iterable", "Collection")


def read_document(document: Mapping[str, Any]) -> Schema:
    """Return the schema that JSON Schema describes, as canonical models hold it."""
    return _JsonSchema(document).read(document, ())


__all__ = ["OneOf", "Path", "SchemaBook", "SchemaProblem", "from_python", "read_document"]
