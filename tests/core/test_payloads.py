"""A value has one content id, inline or not, and nothing a user stores passes for a ref."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from holdfast.core import facts
from holdfast.core.errors import Corruption, InvalidInput, InvalidRef
from holdfast.core.forms import data_of
from holdfast.core.payloads import (
    INLINE_BYTES,
    Erased,
    Proof,
    Slot,
    check_bytes,
    digest_form,
    from_record,
    manifest,
    manifest_slots,
    slot,
    slot_of_bytes,
    to_record,
    walk,
)
from holdfast.core.records import canonical, digest_id, parse

REF = {"$ref": "sha256:" + "a" * 64, "encoding": "text", "kind": "message", "size": 9000}
values = st.one_of(
    st.text(max_size=700),
    st.binary(max_size=700),
    st.recursive(
        st.one_of(st.none(), st.integers(), st.floats(allow_nan=False), st.text(max_size=9)),
        lambda inner: st.one_of(
            st.lists(inner, max_size=3),
            st.dictionaries(st.sampled_from(["$ref", "$v", "$erased", "size", "a"]), inner),
        ),
        max_leaves=8,
    ),
)


@given(values)
def test_a_slot_stores_and_reads_back_as_itself(value):
    before = slot(value, "message")
    after = from_record(parse(canonical(to_record(before))))
    assert after == before
    assert after.inline == (before.size <= INLINE_BYTES)
    if after.inline:
        assert after.data == before.data
        assert repr(after.value()) == repr(value)
    else:
        assert after.data is None


@given(values)
def test_the_digest_form_is_the_same_inline_by_ref_and_erased(value):
    item = slot(value, "message")
    erased = Slot(item.id, item.encoding, item.kind, item.size, None, Erased("now", "rule"))
    assert digest_form(to_record(item)) == digest_form(to_record(erased)) == item.ref()


@pytest.mark.parametrize(
    "value",
    [REF, {"$v": "x"}, {"a": REF}, [REF], {"$erased": {"at": "", "rule": ""}}, str(REF)],
    ids=str,
)
def test_user_data_shaped_like_a_ref_is_never_taken_for_one(value):
    item = slot(value, "message")
    record = data_of(facts.MessageAppended(message=1, role="user", content=item))
    assert [found.id for found in walk(record)] == [item.id]
    assert from_record(record["content"]).value() == value


def test_the_inline_limit_is_512_bytes():
    assert "$v" in to_record(slot("x" * 512, "message"))
    assert "$ref" in to_record(slot("x" * 513, "message"))
    assert "$ref" in to_record(slot("é" * 257, "message"))


def test_a_manifest_is_never_inline_and_what_it_refers_to_is_found():
    small, large = slot("small", "chunk"), slot("l" * 600, "chunk")
    apart = structs.replace(slot("alone", "chunk"), by_ref=True)
    record = {"parts": [to_record(part) for part in (small, large)], "z": {"y": to_record(apart)}}
    item = manifest(record, "vars")
    assert not item.inline
    assert manifest_slots(item, item.data or b"") == [large, apart]


@pytest.mark.parametrize(
    "part",
    [
        {"$v": "no base 64!", "encoding": "bytes", "kind": "chunk"},
        {"$v": 5, "encoding": "text", "kind": "chunk"},
        {"$v": "x", "encoding": "text", "kind": "chunk", "more": 1},
        {"$v": "x", "encoding": "text", "kind": "unheard of"},
        {"$v": "x", "encoding": ["text"], "kind": "chunk"},
    ],
)
def test_a_manifest_with_a_bad_inline_value_is_refused(part):
    item = manifest({"parts": [part]}, "vars")
    with pytest.raises(InvalidRef):
        manifest_slots(item, item.data or b"")


def test_a_value_that_looks_like_a_manifest_has_no_slots():
    item = slot({"parts": [REF]}, "vars")
    assert manifest_slots(item, item.data or b"") == []


@pytest.mark.parametrize(
    "broken",
    [
        None,
        [],
        "sha256:" + "a" * 64,
        REF | {"$ref": "sha256:../../etc/passwd"},
        REF | {"$ref": "sha256:" + "A" * 64},
        REF | {"$ref": None},
        REF | {"size": -1},
        REF | {"size": "9"},
        REF | {"size": True},
        REF | {"encoding": "pickle"},
        REF | {"kind": "secret"},
        REF | {"kind": ["message"]},
        REF | {"$erased": "yes"},
        {"$v": 1, "encoding": "text", "kind": "message"},
        {"$v": "not base64!", "encoding": "bytes", "kind": "message"},
    ],
    ids=lambda item: str(item)[:60],
)
def test_a_malformed_ref_is_refused_with_a_typed_error(broken):
    with pytest.raises(InvalidInput):
        from_record(broken)


def test_unknown_kinds_are_refused_where_a_slot_is_made():
    with pytest.raises(InvalidRef, match="unknown payload kind"):
        slot("x", "pickle")


def test_text_that_is_no_text_is_refused_with_a_typed_error():
    with pytest.raises(InvalidRef):
        to_record(slot_of_bytes("text", b"\xff", "message"))


def test_bytes_are_proven_before_they_are_returned():
    item = slot("x" * 600, "message")
    assert check_bytes(item, item.data or b"") == b"x" * 600
    for wrong in (b"", b"y" * 600, b"x" * 599):
        with pytest.raises(Corruption, match=item.id):
            check_bytes(item, wrong)


def test_a_proof_counts_for_the_bytes_and_the_id_it_was_made_of_only():
    item, other = slot("x" * 600, "message"), slot("y" * 600, "message")
    assert check_bytes(item, item.data) is item.data
    forged = (
        structs.replace(item, data=other.data),
        structs.replace(item, id=other.id),
        structs.replace(item, proof=other.proof, data=other.data),
        structs.replace(item, proof=(item.id, other.data), data=other.data),
    )
    for wrong in forged:
        with pytest.raises(Corruption, match="does not match its id"):
            check_bytes(wrong, wrong.data)
    assert check_bytes(structs.replace(item, proof=None), bytes(bytearray(item.data))) == item.data
    with pytest.raises(Corruption):
        check_bytes(structs.replace(item, size=599), item.data)


def test_nothing_of_an_erased_value_is_left_in_its_slot():
    item = structs.replace(slot("secret", "message"), by_ref=True)
    left = item.without(Erased("2026-01-01T00:00:00.000000Z", "gdpr"))
    assert left == item
    assert (left.data, left.proof, left.by_ref, left.erased.rule) == (None, None, True, "gdpr")
    assert item.bare().proof is None
    assert structs.replace(item, data=None).bare().proof is None


def test_a_slot_keeps_its_own_bytes_where_those_given_can_change():
    data = bytearray(b"x" * 600)
    item = slot_of_bytes("bytes", data, "message")
    data[0] = 0
    assert check_bytes(item, item.data) == b"x" * 600
    with pytest.raises(Corruption):
        check_bytes(item, data)


def test_a_slot_without_bytes_says_where_to_get_them():
    bare = slot("x", "message").bare()
    with pytest.raises(InvalidRef, match="read"):
        bare.value()
    with pytest.raises(InvalidRef, match="read"):
        to_record(bare)


def test_equal_values_have_equal_ids_whatever_they_are_for():
    assert slot("same", "message").id == slot("same", "final").id == digest_id(b"same")


@pytest.mark.parametrize(
    "change",
    [
        {"id": digest_id(b"another")},
        {"data": b"another"},
        {"size": 7},
        {"id": digest_id(b"another"), "proof": None},
        {"data": b"another", "proof": "of another type"},
        {"data": b"another", "proof": Proof(digest_id(b"another"), b"another", 7)},
    ],
    ids=str,
)
def test_a_proof_proves_no_other_slot(change):
    item = structs.replace(slot("a long text " * 100, "message"), **change)
    with pytest.raises(Corruption):
        check_bytes(item, item.data)
