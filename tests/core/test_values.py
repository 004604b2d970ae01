"""Any accepted value comes back equal, of equal type and order; nothing can forge a tag."""

import math
from collections import OrderedDict
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal, localcontext
from enum import IntEnum
from importlib import resources
from io import BytesIO
from pathlib import Path
from uuid import UUID
from zoneinfo import TZPATH, ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.errors import Corruption, UnsupportedValue
from holdfast.core.values import MAX_DEPTH, decode, encode, encode_json

zones = st.one_of(
    st.none(),
    st.just(UTC),
    st.integers(-1439, 1439).map(lambda m: timezone(timedelta(minutes=m))),
    st.sampled_from(["home", "\ud800"]).map(lambda name: timezone(timedelta(hours=1), name)),
    st.sampled_from([ZoneInfo("UTC")]),
)
any_text = st.text(st.characters(), max_size=20)  # lone surrogates included
hashable_atoms = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([2**53, -(2**53)]),
    st.floats(),
    st.complex_numbers(),
    any_text,
    st.sampled_from(["$ref", "$v", "$dict", "$int", "$", ""]),
    st.binary(max_size=20),
    st.decimals(allow_nan=False),
    st.uuids(),
    st.dates(),
    st.times(timezones=zones),
    st.datetimes(timezones=zones),
    st.timedeltas(),
    st.builds(range, st.integers(), st.integers(), st.integers(1)),
)
hashables = st.recursive(
    hashable_atoms,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(tuple), st.frozensets(inner, max_size=3)
    ),
    max_leaves=6,
)
values = st.recursive(
    st.one_of(hashables, st.binary(max_size=9).map(bytearray), st.sets(hashables, max_size=3)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(hashables, inner, max_size=4),
        st.dictionaries(st.sampled_from(["$ref", "$v", "$dict", "a", "$$"]), inner, max_size=2),
    ),
    max_leaves=12,
)


def same(a: object, b: object) -> bool:
    """Tell whether two values are equal with equal types, order, signs of zero and NaNs."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        assert isinstance(b, float)
        return (math.isnan(a) and math.isnan(b)) or (
            a == b and math.copysign(1, a) == math.copysign(1, b)
        )
    if isinstance(a, complex):
        assert isinstance(b, complex)
        return same(a.real, b.real) and same(a.imag, b.imag)
    if isinstance(a, list | tuple):
        assert isinstance(b, list | tuple)
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        assert isinstance(b, dict)
        return same(list(a.items()), list(b.items()))
    if isinstance(a, set | frozenset):
        assert isinstance(b, set | frozenset)
        return sorted(map(encode_json, a)) == sorted(map(encode_json, b))
    if isinstance(a, Decimal):
        return str(a) == str(b)
    if isinstance(a, datetime | time):
        assert isinstance(b, datetime | time)
        return (a.isoformat(), a.fold, a.tzname()) == (b.isoformat(), b.fold, b.tzname())
    return a == b


@given(values)
def test_any_value_comes_back_as_it_was(value):
    encoding, data = encode(value)
    assert same(decode(encoding, data), value)
    assert encode(decode(encoding, data)) == (encoding, data)


@given(st.sets(hashables, max_size=6))
def test_a_set_has_one_encoding_whatever_its_order_in_memory(members):
    assert encode(members) == encode(set(sorted(members, key=encode_json, reverse=True)))


@pytest.mark.parametrize(
    ("value", "encoding", "data"),
    [
        ("héllo", "text", "héllo".encode()),
        (b"\x00\xff", "bytes", b"\x00\xff"),
        (1, "json", b"1"),
        (1.0, "json", b"1.0"),
        (-0.0, "json", b"-0.0"),
        (2**53, "json", b'{"$int":"0x20000000000000"}'),
        (float("nan"), "json", b'{"$float":"nan"}'),
        ({"b": 1, "a": [True, None]}, "json", b'{"b":1,"a":[true,null]}'),
        ({"$ref": "x"}, "json", b'{"$dict":[["$ref","x"]]}'),
        ({1: "a"}, "json", b'{"$dict":[[1,"a"]]}'),
        ((1, "x"), "json", b'{"$tuple":[1,"x"]}'),
        ({3, 1, 2}, "json", b'{"$set":[1,2,3]}'),
        ("\ud800", "json", b'{"$str":"7aCA"}'),
        (Decimal("1.10"), "json", b'{"$decimal":"1.10"}'),
        (Decimal("sNaN"), "json", b'{"$decimal":"sNaN"}'),
        (date(2026, 1, 2), "json", b'{"$date":"2026-01-02"}'),
        (
            datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
            "json",
            b'{"$datetime":["2026-01-02T03:04:05",0,["offset",0,null]]}',
        ),
        (timedelta(days=-1, seconds=3), "json", b'{"$timedelta":[-1,3,0]}'),
        (UUID(int=7), "json", b'{"$uuid":"00000000-0000-0000-0000-000000000007"}'),
    ],
)
def test_the_published_vectors_hold(value, encoding, data):
    assert encode(value) == (encoding, data)
    assert same(decode(encoding, data), value)


class Colour(IntEnum):
    RED = 1


@pytest.mark.parametrize(
    "value", [object(), OrderedDict(a=1), Colour.RED, [{"k": Colour.RED}], {1: {2: open}}]
)
def test_what_cannot_be_kept_faithfully_is_refused_with_its_place(value):
    with pytest.raises(UnsupportedValue, match="cannot be stored"):
        encode(value)


def test_a_value_that_contains_itself_is_refused():
    loop: list[object] = []
    loop.append(loop)
    with pytest.raises(UnsupportedValue, match="refers to itself"):
        encode(loop)


@pytest.mark.parametrize(
    ("encoding", "data"),
    [
        ("json", b'{"$unknown":1}'),
        ("json", b'{"$int":"zz"}'),
        ("json", b'{"$datetime":["x"]}'),
        ("json", b"{"),
        ("text", b"\xff"),
        ("pickle", b""),
        ("json", b'{"$set":[[]]}'),
        ("json", b'{"$set":{"$range":[0,1000000000,1]}}'),
        ("json", b'{"$tuple":{"$range":[0,1000000000,1]}}'),
        ("json", b'{"$bytearray":1000000000}'),
        ("json", b'{"$dict":{"$range":[0,9,1]}}'),
        ("json", b'{"$uuid":5}'),
        ("json", b'{"$complex":{}}'),
        ("json", b'{"$tuple":"abc"}'),
        ("json", b'{"$datetime":["2026-01-02T03:04:05",0,["zone","../../etc/passwd"]]}'),
    ],
)
def test_bytes_that_are_no_value_are_named_as_corrupt(encoding, data):
    with pytest.raises(Corruption):
        decode(encoding, data)


def test_an_integer_of_more_digits_than_python_prints_comes_back():
    number = 16**4000 + 7
    assert decode(*encode([number])) == [number]


def test_a_decimal_has_the_same_bytes_whatever_the_context_of_its_caller():
    number = [Decimal("1E+10")]
    usual = encode(number)
    assert usual == ("json", b'[{"$decimal":"1E+10"}]')
    with localcontext() as context:
        context.capitals = 0
        context.prec = 1
        assert encode([Decimal("1E+10")]) == usual
        assert decode(*encode([Decimal("123456789.5")])) == [Decimal("123456789.5")]


@pytest.mark.parametrize("name", ["My/Zone", "Asia/Tokyo"])
def test_a_time_zone_made_of_a_file_is_refused(name):
    """By its name another one, or none, would come back."""
    zone = ZoneInfo.from_file(BytesIO(_zone_bytes()), key=name)
    with pytest.raises(UnsupportedValue, match="made of a file"):
        encode(datetime(2030, 1, 1, tzinfo=zone))
    same = datetime(2030, 1, 1, tzinfo=ZoneInfo.no_cache("Europe/Berlin"))
    assert decode(*encode(same)) == same


def _zone_bytes() -> bytes:
    for folder in TZPATH:
        if (found := Path(folder) / "Europe" / "Berlin").exists():
            return found.read_bytes()
    return resources.files("tzdata").joinpath("zoneinfo/Europe/Berlin").read_bytes()


@pytest.mark.parametrize(
    ("wrap", "levels"),
    [
        (lambda v: [v], MAX_DEPTH),
        (lambda v: {"k": v}, MAX_DEPTH),
        (lambda v: {1: v}, MAX_DEPTH // 3),
        (lambda v: (v,), MAX_DEPTH // 2),
    ],
    ids=["list", "object", "dict", "tuple"],
)
def test_what_is_written_is_readable_from_deep_inside_a_program(wrap, levels):
    def at_depth(frames, work):
        return work() if frames == 0 else at_depth(frames - 1, work)

    value = 1
    for _ in range(levels):
        value = wrap(value)
    written = encode(value)
    assert at_depth(500, lambda: decode(*written)) == value
    for _ in range(3):
        value = wrap(value)
    with pytest.raises(UnsupportedValue, match="nested too deeply"):
        encode(value)


def test_many_shallow_parts_are_not_deep():
    value = [[n, {"k": [n]}] for n in range(1000)]
    assert decode(*encode(value)) == value
