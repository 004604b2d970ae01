"""Ids mean the same in a file name, a URL and an SQL key; everything else is refused by name."""

import time
from enum import Enum
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.errors import InvalidId
from holdfast.core.ids import (
    MOST_SEEN,
    check_content_id,
    check_id,
    check_key,
    friendly_name,
    new_owner_id,
    new_session_id,
)
from holdfast.core.names import ADJECTIVES, NOUNS
from holdfast.testing.store_contract import HOSTILE_IDS


@pytest.mark.parametrize("hostile", HOSTILE_IDS, ids=lambda item: repr(item)[:20])
def test_hostile_ids_are_refused(hostile):
    for check in (check_id, check_content_id):
        with pytest.raises(InvalidId) as caught:
            check(hostile)
        assert len(str(caught.value)) < 400


@pytest.mark.parametrize("hostile", ["", "a b", "a\n", "é", "\x7f", "x" * 201, None, 3, b"k"])
def test_hostile_keys_are_refused(hostile):
    with pytest.raises(InvalidId):
        check_key(hostile, "inbox key")


@pytest.mark.parametrize("good", ["a", "0", "s-1", "a.b_c-d", "x" * 128, "console", "com10"])
def test_plain_ids_pass_unchanged(good):
    assert check_id(good) == good


@given(st.text())
def test_an_accepted_id_is_safe_as_a_file_name(text):
    try:
        check_id(text)
    except InvalidId:
        return
    assert text.isascii()
    assert text == text.lower()
    assert not set(text) & set("/\\:\0 ")
    assert text.strip(".") == text


def test_new_session_ids_are_valid_distinct_and_sorted_by_age():
    first = new_session_id()
    started = time.time_ns()
    while time.time_ns() - started < 3_000_000:
        pass
    ids = {new_session_id() for _ in range(1000)}
    assert len(ids) == 1000
    assert all(check_id(item) and item > first for item in ids)


def test_new_owner_ids_are_valid_and_distinct():
    ids = {new_owner_id() for _ in range(1000)}
    assert len(ids) == 1000
    assert all(check_id(item) for item in ids)


def test_friendly_names_have_enough_pairs_and_never_change():
    assert len(set(ADJECTIVES)) * len(set(NOUNS)) >= 6400
    assert len(set(ADJECTIVES)) == len(ADJECTIVES)
    assert len(set(NOUNS)) == len(NOUNS)
    assert friendly_name("s-1") == friendly_name("s-1") == "simple-larch-4168"


@given(st.text())
def test_a_friendly_name_has_its_form_for_any_id(text):
    try:
        name = friendly_name(text)
    except UnicodeEncodeError:
        return
    adjective, noun, tail = name.split("-")
    assert adjective in ADJECTIVES
    assert noun in NOUNS
    assert len(bytes.fromhex(tail)) == 2


class Kind(str, Enum):  # noqa: UP042  (which says another text of itself)
    CHAT = "chat"


class Liar(str):
    def __str__(self):
        return "../../outside"


@pytest.mark.parametrize("value", [Kind.CHAT, Liar("fine")])
@pytest.mark.parametrize("check", [check_id, partial(check_key, what="key"), check_content_id])
def test_what_is_not_exactly_text_is_no_id_and_makes_none_valid(value, check):
    with pytest.raises(InvalidId, match="pass text"):
        check(value)
    with pytest.raises(InvalidId):
        check_id(str(value))


def test_more_ids_than_are_remembered_are_checked_all_the_same():
    for number in range(2 * MOST_SEEN):
        assert check_id(f"s-{number}") == f"s-{number}"
        with pytest.raises(InvalidId):
            check_id(f"s-{number}/")
