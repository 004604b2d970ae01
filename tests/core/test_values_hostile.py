"""Forged bytes cost no more than they say, and only one form of a value is accepted."""

from __future__ import annotations

import time
from collections.abc import Iterable
from decimal import Decimal

import pytest
from hypothesis import given
from test_values import values

from holdfast.core.errors import Corruption, UnsupportedValue
from holdfast.core.values import MAX_DEPTH, check_canonical, decode, encode

PERIOD = 2**61 - 1  # the hash of an integer is its remainder by this
FEW_SECONDS = 3.0


def cpu_seconds(work, *arguments):
    """Return the processor time that a call takes, and what it raised."""
    started = time.thread_time()
    try:
        work(*arguments)
        raised = None
    except (Corruption, UnsupportedValue) as error:
        raised = error
    return time.thread_time() - started, raised


def number(k: int) -> str:
    return f'{{"$int":"{hex(k * PERIOD)}"}}'


def equal_tuples(count: int, length: int) -> list[str]:
    """Return the encodings of distinct long tuples that all have the same hash."""
    start = ",".join(["999"] * length)
    return [f'{{"$tuple":[{start},{number(k)}]}}' for k in range(1, count + 1)]


def slow_keys(slots: int) -> list[int]:
    """Return integers of distinct hashes that a dict of so many slots finds a place for slowly."""
    places, place = [], 1
    for _ in range(int(slots * 0.4)):
        places.append(place)
        place = (5 * place + 1) % slots
    return places + [1 + turn * slots for turn in range(1, slots * 2 // 3 - len(places))]


def tagged(tag: str, parts: Iterable[str]) -> str:
    return f'{{"{tag}":[{",".join(parts)}]}}'


def pairs(keys: Iterable[object]) -> list[str]:
    return [f"[{key},1]" for key in keys]


TUPLES = equal_tuples(2_000, 700)
NUMBERS = [number(k) for k in range(1, 40_000)]
FORGED = {
    "set of tuples": tagged("$set", TUPLES),
    "frozenset of tuples": tagged("$frozenset", TUPLES),
    "keys": tagged("$dict", pairs(TUPLES)),
    "numbers": tagged("$set", NUMBERS),
    "decimals": tagged("$set", (f'{{"$decimal":"{k * PERIOD}"}}' for k in range(1, 30_000))),
    "many small sets": f"[{','.join([tagged('$set', NUMBERS[:1_500])] * 60)}]",
    "sets of sets": tagged(
        "$set", (tagged("$frozenset", [*NUMBERS[:300], NUMBERS[1_000 + k]]) for k in range(300))
    ),
    "keys that want one place": tagged("$dict", pairs(slow_keys(2**18))),
}


@pytest.mark.parametrize("data", FORGED.values(), ids=FORGED.keys())
def test_members_made_to_collide_are_refused_instead_of_compared(data):
    seconds, raised = cpu_seconds(decode, "json", data.encode())
    assert seconds < FEW_SECONDS
    assert raised is None or "same hash" in str(raised)


def test_the_forged_set_that_stopped_every_thread_is_refused():
    with pytest.raises(Corruption, match="same hash"):
        decode("json", FORGED["set of tuples"].encode())


def test_a_value_that_readers_would_refuse_is_refused_where_it_enters():
    members = {(*[999] * 70, k * PERIOD) for k in range(1, 1_000)}
    for value in (members, frozenset(members), dict.fromkeys(members), [{1: members}]):
        with pytest.raises(UnsupportedValue, match="store them as a list"):
            encode(value)


@pytest.mark.parametrize(
    "value",
    [
        set(range(200_000)),
        {(x, y): None for x in range(300) for y in range(300)},
        {f"key {n}": n for n in range(100_000)} | {1: 2},
        {
            (a, b, c, d)
            for a in (-1, -2, 0)
            for b in (-1, -2, 1)
            for c in (-1, -2)
            for d in (-1, -2)
        },
        {n << 40 for n in range(20_000)},
        {Decimal(n) / 8 for n in range(5_000)},
    ],
    ids=["numbers", "pairs", "texts", "minus one and two", "multiples", "decimals"],
)
def test_large_tables_as_people_make_them_are_stored(value):
    assert decode(*encode(value)) == value


@given(values)
def test_what_was_encoded_is_canonical(value):
    encoding, data = encode(value)
    again = check_canonical(encoding, data)
    assert encode(again) == (encoding, data)


@pytest.mark.parametrize(
    ("encoding", "data"),
    [
        ("json", b"NaN"),
        ("json", b'{"a":[Infinity]}'),
        ("json", b"[-Infinity]"),
        ("json", b'{"a":1,"a":2}'),
        ("json", b'{"a": 1}'),
        ("json", b" 1"),
        ("json", b"[1]\n"),
        ("json", b"1e2"),
        ("json", b"1.50"),
        ("json", b"9007199254740993"),
        ("json", b'["\\u0041"]'),
        ("json", b'["\\ud800"]'),
        ("json", b'"text"'),
        ("json", b'{"$bytes":"AA=="}'),
        ("json", b'{"$set":[2,1]}'),
        ("json", b'{"$set":[1,1]}'),
        ("json", b'{"$dict":[["a",1]]}'),
        ("json", b'{"$a":1,"b":2}'),
        ("json", b'{"$int":"0x1"}'),
        ("json", b'{"$decimal":" 1"}'),
        ("json", b'{"$date":"20260102"}'),
        ("json", b"{"),
        ("text", b"\xff"),
        ("manifest", b"{}"),
        ("pickle", b""),
    ],
)
def test_a_second_way_to_write_a_value_is_refused(encoding, data):
    with pytest.raises(UnsupportedValue, match="the bytes are not"):
        check_canonical(encoding, data)


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 500, 950, 100_000])
@pytest.mark.parametrize(("opened", "closed"), [("[", "]"), ('{"a":', "}"), ('["]",', "]")])
def test_bytes_nested_too_deeply_are_refused_by_readers_and_where_they_enter(depth, opened, closed):
    data = (opened * depth + "1" + closed * depth).encode()
    with pytest.raises(Corruption, match="nested more than 200 deep"):
        decode("json", data)
    with pytest.raises(UnsupportedValue, match="nested more than 200 deep"):
        check_canonical("json", data)


@pytest.mark.parametrize("text", ["[" * 900, '\\"[' * 500, "\\\\[" * 500, '"[{' * 300, "\\[" * 300])
def test_brackets_inside_texts_are_not_depth(text):
    value = [text, {text: [text, {"k": text}]}, "]" * 5]
    assert decode(*encode(value)) == value
