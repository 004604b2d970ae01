"""The stored form of messages: what goes in comes out, and nothing but plain data is stored."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.errors import InvalidInput, InvalidRecord
from holdfast.core.messages import (
    File,
    Image,
    Message,
    ProviderNote,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    assistant,
    binaries_of,
    from_record,
    observation,
    to_record,
    user,
)
from holdfast.core.records import canonical, digest_id

optional_text = st.none() | st.text(max_size=8)
notes = st.none() | st.builds(
    ProviderNote, st.text(max_size=8), optional_text, optional_text, optional_text
)
texts = st.builds(Text, st.text(), notes)
images = st.builds(Image, st.binary(max_size=32), st.just("image/png"), optional_text, notes)
files = st.builds(File, st.binary(max_size=32), st.just("text/csv"), optional_text, notes)
content = texts | images | files
outcomes = st.sampled_from(["ok", "error", "denied", "expired", "cancelled", "unknown"])
calls = st.builds(ToolCall, st.text(), st.text(), st.text(), notes)
results = st.builds(
    ToolResult, st.text(), st.text(), st.lists(content, max_size=3).map(tuple), outcomes
)


def parts(kinds: st.SearchStrategy) -> st.SearchStrategy:
    return st.lists(kinds, max_size=4).map(tuple)


messages = (
    st.builds(Message, st.just("user"), parts(content))
    | st.builds(
        Message,
        st.just("assistant"),
        parts(content | st.builds(Reasoning, st.text(), notes) | calls),
    )
    | st.builds(Message, st.just("observation"), parts(content | results))
)


def leaves(value):
    if isinstance(value, dict):
        assert all(isinstance(key, str) for key in value)
        value = list(value.values())
    if isinstance(value, list):
        for inner in value:
            yield from leaves(inner)
    else:
        yield value


@given(messages)
def test_a_message_comes_back_from_its_record_and_binaries_unchanged(message):
    record, binaries = to_record(message)
    assert from_record(json.loads(json.dumps(record)), binaries) == message


@given(messages)
def test_a_record_is_plain_data_and_names_exactly_the_binaries_beside_it(message):
    record, binaries = to_record(message)
    assert canonical(record)
    assert {type(leaf) for leaf in leaves(record)} <= {str, int, bool, type(None)}
    assert sorted(binaries_of(record)) == sorted(binaries)
    assert all(digest_id(data) == name for name, data in binaries.items())


def test_the_record_form_is_fixed():
    message = assistant(Reasoning("hm", ProviderNote("anthropic", signature="s1")), "hi")
    assert to_record(message)[0] == {
        "role": "assistant",
        "parts": [
            {
                "kind": "reasoning",
                "text": "hm",
                "note": {"provider": "anthropic", "signature": "s1"},
            },
            {"kind": "text", "text": "hi"},
        ],
    }
    empty = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert to_record(user(Image(b"", "image/png")))[0]["parts"] == [
        {"kind": "image", "data": empty, "size": 0, "media_type": "image/png"}
    ]


def test_the_text_of_a_message_is_its_text_parts_alone():
    message = assistant(Reasoning("secret"), "a", ToolCall("1", "f", "{}"), "b")
    assert message.text == "a\nb"
    assert [call.name for call in message.tool_calls] == ["f"]


@pytest.mark.parametrize(
    ("role", "part"),
    [
        ("user", Reasoning("hm")),
        ("user", ToolCall("1", "f", "{}")),
        ("assistant", ToolResult("1", "f", ())),
        ("observation", ToolCall("1", "f", "{}")),
        ("user", "bare text"),
    ],
)
def test_a_part_in_the_wrong_role_is_refused(role, part):
    with pytest.raises(InvalidInput, match=repr(role)):
        Message(role, (part,))


def test_an_unknown_role_is_refused():
    with pytest.raises(InvalidInput, match="'system'"):
        Message("system", ())


@pytest.mark.parametrize(
    "record",
    [
        {},
        {"role": "user"},
        {"role": "system", "parts": []},
        {"role": "user", "parts": ["text"]},
        {"role": "user", "parts": [{"kind": "hologram"}]},
        {"role": "user", "parts": [{"kind": "text", "text": 1}]},
        {"role": "user", "parts": [{"kind": "text", "text": "a", "note": {"id": "x"}}]},
        {"role": "assistant", "parts": [{"kind": "tool_call", "call_id": "1", "name": "f"}]},
        {
            "role": "observation",
            "parts": [
                {
                    "kind": "tool_result",
                    "call_id": "1",
                    "name": "f",
                    "content": [{"kind": "reasoning", "text": "hm"}],
                    "outcome": "ok",
                }
            ],
        },
        {
            "role": "observation",
            "parts": [
                {
                    "kind": "tool_result",
                    "call_id": "1",
                    "name": "f",
                    "content": [],
                    "outcome": "great",
                }
            ],
        },
    ],
)
def test_a_malformed_record_is_a_typed_error(record):
    with pytest.raises(InvalidRecord):
        from_record(record)


def test_a_record_whose_bytes_were_not_passed_says_which_and_how_to_find_them():
    record, binaries = to_record(observation(File(b"a,b", "text/csv", "t.csv")))
    (name,) = binaries
    with pytest.raises(InvalidRecord, match=f"{name}.*binaries_of"):
        from_record(record, {})
