"""Events chain by their digests, read back as they were, and tolerate a newer release's types."""

from dataclasses import dataclass
from dataclasses import fields as dataclass_fields
from dataclasses import replace as replace_fact
from datetime import UTC, datetime, timedelta
from functools import partial
from types import UnionType
from typing import Union, get_args, get_origin, get_type_hints

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from walks import AT, begin, choices, walk

from holdfast.core import events as events_module
from holdfast.core import facts
from holdfast.core.errors import Corruption, InvalidInput, InvalidRecord
from holdfast.core.events import (
    Event,
    chain_start,
    check_digest,
    event_digest,
    event_from_line,
    event_to_line,
    now,
    stamp,
)
from holdfast.core.fold import fold
from holdfast.core.forms import FACTS, data_of, fact_from_data, forms
from holdfast.core.payloads import Erased, Slot, slot
from holdfast.core.state import empty


@given(choices)
@settings(max_examples=60)
def test_every_event_of_a_history_survives_its_line_and_its_digest_holds(picks):
    log, _ = walk(picks)
    previous = chain_start("s-1")
    for seq, event in enumerate(log, 1):
        again = event_from_line("s-1", event_to_line(event))
        assert again == event
        assert again.seq == seq
        assert data_of(again.fact()) == event.data
        check_digest(previous, again)
        previous = event.digest


def test_the_chain_begins_with_the_session_id():
    log, _ = walk([(0, "hi")])
    with pytest.raises(Corruption, match="event 1 of session 's-2'"):
        check_digest(chain_start("s-2"), replace(log[0], session="s-2"))


@pytest.mark.parametrize(
    "change",
    [
        {"seq": 3},
        {"type": "turn.put"},
        {"version": 2},
        {"at": "2030-01-02T03:04:05.678902Z"},
        {"digest": "0" * 64},
        {"data": {"role": "user"}},
        {"at": "yesterday"},
    ],
    ids=str,
)
def test_any_change_of_an_event_breaks_its_digest(change):
    log, _ = walk([(0, "hi")])
    with pytest.raises(Corruption):
        check_digest(log[0].digest, replace(log[1], **change))


def test_a_flipped_bit_in_an_inline_value_breaks_the_digest():
    log, _ = walk([(0, "hi")])
    message = log[2]
    content = message.data["content"] | {"$v": "ho"}
    with pytest.raises(Corruption):
        check_digest(log[1].digest, replace(message, data=message.data | {"content": content}))


def test_erasing_a_value_leaves_the_digest_as_it_was():
    log, _ = walk([(0, "hi")])
    message = log[2]
    item = slot("hi", "message")
    erased = item.ref() | {"$erased": {"at": AT, "rule": "asked"}}
    check_digest(log[1].digest, replace(message, data=message.data | {"content": erased}))


def test_defaults_are_left_out_so_that_a_new_optional_field_needs_no_version():
    assert data_of(facts.SessionStarted()) == {}
    assert fact_from_data(facts.SessionStarted, {}) == facts.SessionStarted()


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        ({}, "lacks the field 'turn'"),
        ({"turn": "1", "status": "open"}, "turn.put.turn"),
        ({"turn": 1, "status": "open", "mood": "good"}, r"unknown fields \['mood'\]"),
    ],
)
def test_data_that_does_not_fit_its_type_is_named(data, complaint):
    with pytest.raises(InvalidRecord, match=complaint):
        fact_from_data(facts.TurnPut, data)


def test_a_fact_says_of_an_erased_value_that_it_was_erased():
    item = replace(slot("gone " * 200, "message"), data=None, erased=Erased(AT, "asked"))
    data = data_of(facts.MessageAppended(message=1, role="user", content=item))
    assert data["content"]["$erased"] == {"at": AT, "rule": "asked"}
    assert fact_from_data(facts.MessageAppended, data).content.erased == Erased(AT, "asked")


class Shout(str):
    """Text of another type."""


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"turn": "1"}, "turn.put cannot be read back.*turn"),
        ({"turn": None}, "turn.put is|turn.put cannot be read back|turn.put.turn"),
        ({"turn": True}, "turn.put cannot be read back.*turn"),
        ({"turn": 2**53}, r"turn.put.turn is an integer beyond 2\*\*53-1"),
        ({"cost_usd": 0.5}, "turn.put.cost_usd is a float"),
        ({"status": Shout("open")}, "turn.put.status is a Shout"),
        ({"usage": {"input_tokens": 0.5}}, "turn.put.usage.input_tokens is a float"),
        ({"usage": {"input_tokens": Shout("1")}}, "turn.put"),
        ({"usage": {"input_tokens": 2**53}}, "turn.put.usage.input_tokens is an integer beyond"),
        ({"usage": {"t\u00f6kens": 1}}, "keys are ASCII"),
        ({"usage": {"$ref": 1}}, "reserved"),
        ({"usage": ["input_tokens"]}, "turn.put cannot be read back.*usage"),
    ],
)
def test_a_fact_that_could_not_be_read_back_is_never_written(change, complaint):
    fact = replace_fact(facts.TurnPut(turn=1, status="open"), **change)
    with pytest.raises(InvalidRecord, match=complaint):
        data_of(fact)


@pytest.mark.parametrize("content", [None, "", "hello", {}])
def test_a_fact_without_its_value_is_never_written(content):
    with pytest.raises(InvalidRecord, match=r"message\.appended\.content"):
        data_of(facts.MessageAppended(message=1, role="user", content=content))


@pytest.mark.parametrize("inputs", [["a"], {"a": "text"}])
def test_inputs_that_are_no_slots_are_never_written(inputs):
    with pytest.raises(InvalidRecord, match=r"turn\.started\.inputs"):
        data_of(facts.TurnStarted(turn=1, inputs=inputs))


def test_a_fact_of_a_type_of_its_own_is_never_written():
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Mood(facts.TurnPut):
        mood: str = ""

    with pytest.raises(InvalidRecord, match="Mood is not a fact type"):
        data_of(Mood(turn=1, status="open"))


def test_stored_data_that_does_not_fit_is_corruption_of_that_event():
    event = Event("s-1", 7, "turn.put", 1, AT, {}, "0" * 64)
    with pytest.raises(Corruption, match="event 7 of 's-1'"):
        event.fact()


@pytest.mark.parametrize("line", [b"[]", b"3", b"{}", b'{"seq":"1"}', b"\xff", b"null"])
def test_a_line_that_is_no_event_is_corruption(line):
    with pytest.raises(Corruption):
        event_from_line("s-1", line)


def _append_raw(log: list[Event], kind: str, version: int, data: dict[str, object]) -> Event:
    last = log[-1]
    digest = event_digest(last.digest, last.seq + 1, kind, version, AT, data)
    return Event(last.session, last.seq + 1, kind, version, AT, data, digest)


@pytest.mark.parametrize(("kind", "version"), [("turn.dreamt", 1), ("turn.started", 99)])
def test_a_newer_event_is_kept_proven_and_makes_the_session_read_only(kind, version):
    log, states = walk([(0, "hi")])
    newer = _append_raw(log, kind, version, {"colour": "blue"})
    check_digest(log[-1].digest, newer)
    assert event_from_line("s-1", event_to_line(newer)) == newer
    assert not newer.known
    with pytest.raises(InvalidRecord, match="upgrade"):
        newer.fact()
    state = fold(states[-1], [newer])
    assert state.seq == newer.seq
    assert kind in (state.read_only or "")
    later = fold(state, [_append_raw([*log, newer], "session.stopped", 1, {})])
    assert later.read_only == state.read_only


def test_an_old_version_is_upcast_after_its_digest_was_checked(monkeypatch):
    monkeypatch.setattr(facts.TurnPut, "VERSION", 3)
    monkeypatch.setitem(
        events_module.UPCASTS,
        ("turn.put", 1),
        lambda data: (
            {key: value for key, value in data.items() if key != "state"}
            | {"status": data["state"]}
        ),
    )
    monkeypatch.setitem(
        events_module.UPCASTS, ("turn.put", 2), lambda data: data | {"steps": data["steps"] * 2}
    )
    log, _ = walk([(0, "hi")])
    old = _append_raw(log, "turn.put", 1, {"turn": 1, "state": "failed", "steps": 2})
    check_digest(log[-1].digest, old)
    assert old.fact() == facts.TurnPut(turn=1, status="failed", steps=4)
    assert old.data == {"turn": 1, "state": "failed", "steps": 2}


def test_every_fact_says_its_own_type_once():
    assert len(FACTS) == len({cls.TYPE for cls in FACTS.values()}) == 51
    assert all(cls.VERSION >= 1 for cls in FACTS.values())


def test_stored_times_are_utc_with_microseconds():
    event = stamp(chain_start("s-1"), "s-1", 1, now(), facts.SessionStarted())
    check_digest(chain_start("s-1"), event)


@pytest.mark.parametrize("key", ["$ref", "$v", "$erased"])
@pytest.mark.parametrize("field", ["labels", "parent", "origin"])
def test_plain_fields_cannot_be_written_in_the_form_of_a_ref(field, key):
    with pytest.raises(InvalidRecord):
        begin(**{field: {key: "sha256:" + "0" * 64}})


def test_named_inputs_cannot_be_written_in_the_form_of_a_ref():
    fact = facts.TurnStarted(turn=1, inputs={"$ref": slot("x", "input")})
    with pytest.raises(InvalidRecord):
        stamp(chain_start("s-1"), "s-1", 1, AT, fact)
    nested = facts.TurnStarted(turn=1, limits={"usd": {"$v": "x"}})
    with pytest.raises(InvalidRecord):
        stamp(chain_start("s-1"), "s-1", 1, AT, nested)


def test_an_empty_state_is_what_the_chain_begins_with():
    assert empty("s-1").digest == chain_start("s-1")


def test_an_event_does_not_change_with_what_its_fact_was_made_of():
    usage = {"input_tokens": 1}
    fact = facts.TurnPut(turn=1, status="open", usage=usage)
    event = stamp(chain_start("s-1"), "s-1", 1, AT, fact)
    usage["input_tokens"] = 2
    check_digest(chain_start("s-1"), event)


class Word(str):
    """Text that is not exactly text."""


BIG, SMALL = slot("x" * 1000, "message"), slot("x", "message")
ANYTHING = [
    *(None, 0, 1, -1, True, False, 2**53, 1.5, "", "x", Word("user"), "\ud800", b"x"),
    *("user", "final", "failed", "ok", "root", "turn_final", "invocation", "once", "human"),
    *("message", "replied", "tool", "question", "tell", "people", "retry", "all", "worktree"),
    *({}, {"a": 1}, {"a": None}, {"a": "b"}, {"$v": "a"}, {"a": {"$ref": "b"}}, {1: 2}, {"é": 1}),
    *([], ["a"], [1], [["p", "d"]], [["p", 1]], [1.5], ("a",), {"a": 2**60}),
    *(BIG, SMALL, BIG.bare(), SMALL.bare(), replace(BIG, erased=Erased(AT, "r"))),
    *(replace(SMALL, by_ref=True), slot({"a": 1}, "input"), {"a": SMALL, "b": BIG}, {"a": 1}),
]


@given(st.data())
@settings(max_examples=400)
def test_a_fact_is_refused_as_invalid_or_comes_back_from_what_is_stored(data):
    cls = data.draw(st.sampled_from(sorted(FACTS.values(), key=lambda cls: cls.TYPE)))
    good = FILLED[cls]
    fields = data.draw(st.lists(st.sampled_from(sorted(good) or [""]), max_size=3, unique=True))
    wrong = {name: data.draw(st.sampled_from(ANYTHING)) for name in fields if name}
    fact = cls(**good | wrong)
    try:
        event = stamp(chain_start("s-1"), "s-1", 1, AT, fact)
    except InvalidInput:
        return
    again = event_from_line("s-1", event_to_line(event))
    check_digest(chain_start("s-1"), again)
    assert again.data == event.data == data_of(fact)
    assert again.fact() == fact


@pytest.mark.parametrize("inputs", [BIG, None, [], "x", {"a": 1}, {1: BIG}])
def test_named_values_are_a_dict_of_slots_with_names(inputs):
    with pytest.raises(InvalidRecord, match=r"turn\.started\.inputs"):
        data_of(facts.TurnStarted(turn=1, inputs=inputs))


def _filled(cls):
    """Return a value for each field of a fact that its type takes."""
    return {name: next(filter(partial(_takes, hint), ANYTHING)) for name, hint in _hints(cls)}


def _hints(cls):
    hints = get_type_hints(cls)
    return [(item.name, hints[item.name]) for item in dataclass_fields(cls)]


def _takes(hint, value):
    options = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    for option in options:
        if option is Slot or Slot in get_args(option):
            parts = value.values() if type(value) is dict else [value]
            if value and (option is Slot) == (type(value) is Slot):
                return all(type(part) is Slot and part.data is not None for part in parts)
        elif option is not type(None) and type(value) is not Word and value != "\ud800":
            try:
                msgspec.convert(value, option)
            except msgspec.ValidationError:
                continue
            return value is not None
    return False


FILLED = {cls: _filled(cls) for cls in FACTS.values()}


def test_that_property_begins_with_facts_that_can_be_written():
    written = [cls for cls, good in FILLED.items() if isinstance(forms(cls(**good))[0], dict)]
    assert len(written) == len(FACTS)


def test_the_present_time_is_written_to_the_microsecond(monkeypatch):
    moment = datetime(2026, 3, 4, 5, 6, 7, 89, tzinfo=UTC)
    for shift in (0, 911, 911, 999_911, 1_000_000, 86_400_000_000, -1, -90):
        at = moment + timedelta(microseconds=shift)
        nanoseconds = (at - datetime.fromtimestamp(0, UTC)) // timedelta(microseconds=1) * 1000
        monkeypatch.setattr(events_module.time, "time_ns", lambda ns=nanoseconds: ns + 999)
        assert now() == at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
