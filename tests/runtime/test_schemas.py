"""A type becomes a JSON schema, and a value that does not fit one is refused by its place."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from typing import Any, Literal

import msgspec
import pydantic
import pytest

from holdfast.core.errors import InvalidInput, InvalidSettings
from holdfast.runtime import schemas


@dataclass
class Person:
    name: str
    born: date
    tags: tuple[str, ...] = ()


class Rating(pydantic.BaseModel):
    stars: int = pydantic.Field(ge=1, le=5)


PERSON = {"name": "Ada", "born": "1815-12-10", "tags": ["maths"]}


def test_a_dataclass_becomes_a_schema_that_its_values_fit():
    schema = schemas.of(Person)
    assert schemas.check(schema, PERSON) is PERSON
    assert schemas.convert(Person, PERSON) == Person("Ada", date(1815, 12, 10), ("maths",))


def test_values_that_json_cannot_write_are_checked_as_what_they_become():
    schema = schemas.of(Person)
    schemas.check(schema, {"name": "Ada", "born": date(1815, 12, 10), "tags": {"maths"}})


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ({"name": "Ada"}, "born"),
        (PERSON | {"name": 3}, "at name"),
        (PERSON | {"tags": ["a", 2]}, r"at tags\[1\]"),
        (None, "null"),
    ],
)
def test_the_place_that_does_not_fit_is_named(value, told):
    with pytest.raises(InvalidInput, match=told):
        schemas.check(schemas.of(Person), value, "the answer")
    with pytest.raises(InvalidInput, match="the answer does not fit"):
        schemas.convert(Person, value, "the answer")


def test_a_pydantic_model_works_alone_and_inside_another_type():
    for kind, good, bad in (
        (Rating, {"stars": 5}, {"stars": 6}),
        (list[Rating], [{"stars": 5}], [{"stars": 6}]),
    ):
        schema = schemas.of(kind)
        schemas.check(schema, good)
        with pytest.raises(InvalidInput, match="stars"):
            schemas.check(schema, bad)
        with pytest.raises(InvalidInput, match="stars"):
            schemas.convert(kind, bad)
    assert schemas.convert(Rating, {"stars": 5}) == Rating(stars=5)


@pytest.mark.parametrize(
    "kind", [int, list[str], dict[str, int], Literal["a", "b"], Any, str | None]
)
def test_plain_types_have_a_schema(kind):
    assert isinstance(schemas.of(kind), dict)


def test_a_struct_keeps_its_type():
    class Point(msgspec.Struct):
        x: int
        y: int

    assert schemas.convert(Point, {"x": 1, "y": 2}) == Point(1, 2)


def test_a_schema_is_taken_as_it_is_and_checked_first():
    assert schemas.of({"type": "integer"}) == {"type": "integer"}
    with pytest.raises(InvalidSettings, match="not a valid JSON schema at type"):
        schemas.of({"type": "intger"})


@pytest.mark.parametrize("place", ["http://127.0.0.1:9/schema", "file:///etc/passwd"])
def test_a_schema_that_refers_to_another_document_is_refused(place):
    with pytest.raises(InvalidSettings, match="Retrieval is disabled"):
        schemas.of({"$ref": place})


def test_a_type_without_a_schema_is_refused_by_name():
    class Opaque:
        def __init__(self, callback) -> None: ...

    with pytest.raises(InvalidSettings, match="Opaque"):
        schemas.of(Opaque)


def test_a_value_that_cannot_be_written_is_refused():
    with pytest.raises(InvalidInput, match="cannot be written as JSON"):
        schemas.check({}, object())
