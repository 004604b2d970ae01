"""Schemas: read from words, fields, JSON Schema and Python types, and held against values."""

import dataclasses
from typing import Any, Literal, NotRequired, TypedDict

import pytest

from holdfast.workflows.schema_reading import SchemaBook, SchemaProblem, from_python, read_document
from holdfast.workflows.schemas import (
    ANY,
    INTEGER,
    NUMBER,
    STRING,
    Choice,
    Field,
    ListOf,
    ObjectOf,
    fits,
    one_of,
    optional,
    schema_of,
)

BOOK = SchemaBook(
    {"Finding": {"line": "integer", "severity": "low | high"}, "Review": {"of": "list of Finding"}}
)

READ = {
    "string": STRING,
    "list of integer": ListOf(INTEGER),
    "optional string": optional(STRING),
    "list of optional number": ListOf(optional(NUMBER)),
    "low | high": Choice(("low", "high")),
    "string | integer": one_of(STRING, INTEGER),
    "any": ANY,
    "Finding": ObjectOf({"line": Field(INTEGER), "severity": Field(Choice(("low", "high")))}),
}


@pytest.mark.parametrize("text", READ)
def test_words_say_what_a_value_is(text):
    assert BOOK.read(text) == READ[text]


@pytest.mark.parametrize("schema", READ.values(), ids=str)
def test_a_schema_comes_back_from_its_json_schema(schema):
    assert read_document(schema.document()) == schema


@dataclasses.dataclass
class Draft:
    title: str
    score: int
    tags: list[str] = dataclasses.field(default_factory=list)


class Verdict(TypedDict):
    answer: Literal["yes", "no"]
    notes: NotRequired[str | None]


def test_python_types_say_the_same():
    assert from_python(Draft) == ObjectOf(
        {
            "title": Field(STRING),
            "score": Field(INTEGER),
            "tags": Field(ListOf(STRING), required=False),
        }
    )
    assert from_python(Verdict) == ObjectOf(
        {
            "answer": Field(Choice(("yes", "no"))),
            "notes": Field(optional(STRING), required=False),
        }
    )
    assert from_python(dict[str, Any]) == ObjectOf({}, ANY)
    with pytest.raises(SchemaProblem, match="not a type that schemas can say"):
        from_python(type("Odd", (), {}))


def test_a_pydantic_model_says_the_same():
    pydantic = pytest.importorskip("pydantic")
    inner = pydantic.create_model("Inner", line=(int, ...))
    model = pydantic.create_model("Model", findings=(list[inner], ...), title=(str, "x"))
    schema = from_python(model)
    assert schema.accepts({"findings": [{"line": 1}]})
    assert not schema.accepts({"findings": [{"line": "1"}]})


UNREADABLE = [
    "Nothing",
    "string[]",
    "list of",
    "a b",
    "Finding | x",
    "a | a",
    {"a": 3},
    3,
    {"$ref": "http://x"},
    {"type": "object", "properties": {"a": {"pattern": "x"}}},
    {"type": "tuple", "items": {}},
    {"enum": []},
    {"type": "object", "required": ["b"], "properties": {}},
]


@pytest.mark.parametrize("source", UNREADABLE, ids=str)
def test_what_cannot_be_read_is_refused_with_a_remedy(source):
    with pytest.raises(SchemaProblem) as caught:
        BOOK.read(source)
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("schema", "value", "problem"),
    [
        ("integer", True, "must be an integer, not true"),
        ("integer", 1.0, "must be an integer"),
        ("number", 1, None),
        ("string", None, "must be a string, not null"),
        ("optional string", None, None),
        ("low | high", "mid", "must be one of low | high"),
        ("list of integer", [1, "x"], "[1] must be an integer"),
        ("Review", {"of": [{"line": 1, "severity": "low"}]}, None),
        ("Review", {"of": [{"line": 1}]}, "of[0] lacks the field 'severity'"),
        ("Review", {"of": [], "more": 1}, "has the unknown field 'more'"),
        ("Review", [], "must be an object, not a list of 0"),
        ({"type": "integer", "minimum": 3}, 2, "must be at least 3"),
        ({"type": "array", "items": {}, "maxItems": 1}, [1, 2], "at most 1 items"),
        ({"type": "string", "minLength": 2}, "x", "at least 2"),
    ],
)
def test_a_value_is_held_against_its_schema(schema, value, problem):
    found = next(BOOK.read(schema).problems(value), None)
    assert (found is None) if problem is None else (problem in found)


def test_a_schema_stands_where_a_wider_one_is_wanted():
    assert fits(INTEGER, NUMBER)
    assert not fits(NUMBER, INTEGER)
    assert fits(Choice(("a",)), STRING)
    assert not fits(STRING, Choice(("a",)))
    assert fits(ANY, INTEGER)
    assert fits(ListOf(INTEGER), ListOf(NUMBER))
    assert fits(INTEGER, optional(INTEGER))
    assert not fits(optional(INTEGER), INTEGER)
    narrow = ObjectOf({"a": Field(INTEGER)})
    assert fits(narrow, ObjectOf({"a": Field(NUMBER), "b": Field(STRING, required=False)}))
    assert not fits(narrow, ObjectOf({"b": Field(STRING)}))
    assert schema_of({"a": [1, 2.5]}) == ObjectOf({"a": Field(ListOf(NUMBER))})
