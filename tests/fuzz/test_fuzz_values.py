"""Whatever bytes it is given, the decoder of values answers in time: a value or a typed refusal."""

from __future__ import annotations

import time

import pytest
from fuzzing import corpus, mutated, until_time_is_up
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.errors import Corruption, UnsupportedValue
from holdfast.core.values import check_canonical, decode, encode, encode_json

INPUTS = corpus("values")
TOKENS = [
    *(b"{", b"}", b"[", b"]", b",", b":", b'"', b"\\", b" ", b"\n", b"\xff", b"\x00"),
    *(b"null", b"true", b"NaN", b"Infinity", b"-0.0", b"1e999", b"9007199254740993", b'"$'),
    *(b'{"$int":"0x%x"}' % (2**61 - 1), b'"\\ud800"', b'{"$set":[', b'{"$dict":[[', b'{"$tuple":['),
    *(b'{"$frozenset":[', b'{"$range":[0,', b'{"$decimal":"1E+999999"}', b'{"$float":"nan"}'),
    *(b'["zone","Europe/Berlin"]', b'["offset",99999999999999,null]', b'{"$datetime":["'),
]


def check(data: bytes) -> None:
    """Decode bytes in every encoding, and hold the answers against each other."""
    for encoding in ("json", "text", "bytes", "manifest"):
        started = time.thread_time()
        try:
            value = decode(encoding, data)
        except Corruption:
            value = None
        assert time.thread_time() - started < 3 + len(data) * 2e-6
        try:
            again = check_canonical(encoding, data)
        except UnsupportedValue:
            continue
        assert encode(again) == (encoding, data)
        assert repr(again) == repr(value)


@pytest.mark.parametrize("name", INPUTS)
def test_every_input_of_the_corpus_is_answered_in_time(name):
    check(INPUTS[name])


plain = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=9)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(st.one_of(st.text(max_size=4), st.integers()), inner, max_size=4),
    ),
    max_leaves=20,
)
inputs = st.one_of(st.sampled_from(list(INPUTS.values())), plain.map(encode_json), st.binary())


@pytest.mark.soak
def test_mutated_values_are_answered_in_time():
    @given(mutated(inputs, TOKENS))
    def mutation(data: bytes) -> None:
        check(data)

    until_time_is_up(mutation)
