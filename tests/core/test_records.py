"""Records have one byte form, the one RFC 8785 gives them, and hold nothing that has two."""

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.errors import Corruption, InvalidRecord
from holdfast.core.records import canonical, digest_id, parse, record_id

text = st.text(st.characters(exclude_categories=("Cs",)))
keys = st.text(st.characters(max_codepoint=127), max_size=8)
integers = st.integers(-(2**53) + 1, 2**53 - 1)
records = st.recursive(
    st.one_of(st.none(), st.booleans(), integers, text),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(keys, inner, max_size=4)),
    max_leaves=20,
)


@given(records)
def test_a_record_has_the_bytes_that_rfc_8785_gives_it(record):
    assert canonical(record) == rfc8785.dumps(record)


@given(records)
def test_a_record_reads_back_as_itself(record):
    assert parse(canonical(record)) == record


@given(st.dictionaries(keys, records, max_size=6), st.randoms())
def test_the_order_in_which_keys_were_written_changes_nothing(record, random):
    items = list(record.items())
    random.shuffle(items)
    assert record_id(dict(items)) == record_id(record)


@pytest.mark.parametrize(
    "alien",
    [1.0, float("nan"), 2**53, -(2**53), b"x", (1,), {1}, {1: 2}, {"é": 1}, "\ud800", object],
    ids=repr,
)
def test_what_has_no_one_form_is_refused_wherever_it_stands(alien):
    for record in (alien, [alien], {"a": {"b": [None, alien]}}):
        with pytest.raises(InvalidRecord):
            canonical(record)


def test_the_refusal_names_the_place():
    with pytest.raises(InvalidRecord, match=r"record\.a\[1\]\.b is a float"):
        canonical({"a": [0, {"b": 0.5}]})


def nested(depth, around):
    record = 1
    for _ in range(depth):
        record = around(record)
    return record


@pytest.mark.parametrize("around", [lambda part: {"a": part}, lambda part: [part]])
def test_a_record_nests_only_so_deep(around):
    deepest = nested(128, around)
    assert parse(canonical(deepest)) == deepest
    for deeper in (129, 500, 100_000):
        with pytest.raises(InvalidRecord, match="128 deep"):
            canonical(nested(deeper, around))


def test_a_subclass_cannot_smuggle_in_another_form():
    class Loud(str):
        pass

    with pytest.raises(InvalidRecord):
        canonical([Loud("a")])


@pytest.mark.parametrize("garbage", [b"", b"{", b"{'a':1}", b"\xff", b"[" * 100_000])
def test_stored_bytes_that_are_no_record_are_corruption(garbage):
    with pytest.raises(Corruption):
        parse(garbage)


def test_a_content_id_names_its_algorithm():
    assert digest_id(b"") == (
        "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    )
