"""Heads and edges are named by their content, and the published vectors pin every byte of it."""

import json
from dataclasses import replace
from importlib.resources import files

import pytest
from hypothesis import given, settings
from walks import AT, choices, walk

from holdfast.core import facts, values
from holdfast.core.errors import InvalidInput
from holdfast.core.events import chain_start, check_digest, event_from_record
from holdfast.core.fold import fold
from holdfast.core.forms import fact_from_data
from holdfast.core.heads import EdgeDraft, HeadDraft, content_id, publish, relate
from holdfast.core.ids import friendly_name
from holdfast.core.log import extend
from holdfast.core.payloads import slot_of_bytes, to_record
from holdfast.core.records import canonical, digest_id, record_id
from holdfast.core.state import empty

VECTORS = json.loads((files("holdfast.testing") / "vectors.json").read_text("utf-8"))


@pytest.mark.parametrize("vector", VECTORS["records"], ids=lambda item: item["name"])
def test_records_match_the_published_vectors(vector):
    assert canonical(vector["record"]).decode() == vector["canonical"]
    assert record_id(vector["record"]) == vector["id"]


@pytest.mark.parametrize("vector", VECTORS["values"], ids=lambda item: item["name"])
def test_values_match_the_published_vectors(vector):
    data = bytes.fromhex(vector["hex"])
    assert digest_id(data) == vector["id"]
    value = values.decode(vector["encoding"], data)
    assert repr(value) == vector["repr"]
    assert values.encode(value) == (vector["encoding"], data)
    item = slot_of_bytes(vector["encoding"], data, vector["slot"]["kind"])
    assert to_record(item) == vector["slot"]


def test_logs_match_the_published_vectors():
    for vector in VECTORS["logs"]:
        session, previous = vector["session"], chain_start(vector["session"])
        assert previous == vector["chain_start"]
        assert friendly_name(session) == vector["name"]
        events = [event_from_record(session, record) for record in vector["events"]]
        for event in events:
            check_digest(previous, event)
            previous = event.digest
            if event.type in ("head.published", "lineage.added"):
                fact = event.fact()
                assert content_id(fact) == fact.id
        assert fold(empty(session), events).head == vector["head"]


def test_heads_and_edges_match_the_published_vectors():
    kinds = {"head": facts.HeadPublished, "edge": facts.LineageAdded}
    for vector in VECTORS["named"]:
        fact = fact_from_data(kinds[vector["kind"]], vector["record"])
        assert content_id(fact) == vector["record"]["id"]
        body = {key: value for key, value in vector["body"].items()}
        assert record_id(body) == vector["record"]["id"]


@given(choices)
@settings(max_examples=60)
def test_heads_form_a_chain_whose_ranges_cover_the_log_without_gap(picks):
    log, _ = walk(picks)
    basis, end = None, 0
    for event in log:
        if event.type == "head.published":
            head = event.fact()
            assert head.basis == basis
            assert head.range == [end + 1, event.seq - 1]
            assert head.digest == log[event.seq - 2].digest
            assert head.id == content_id(head)
            basis, end = head.id, head.range[1]


@pytest.mark.parametrize(
    "change",
    [
        {"session": "s-2"},
        {"basis": "sha256:" + "0" * 64},
        {"range": [1, 4]},
        {"digest": "0" * 64},
        {"kind": "compaction"},
        {"turn": 2},
        {"version": 2},
    ],
    ids=str,
)
def test_every_part_of_a_head_takes_part_in_its_id(change):
    head = publish(HeadDraft(kind="turn_final", turn=1), "s-1", None, 1, 3, "1" * 64)
    assert content_id(replace(head, **change)) != head.id


def test_two_histories_that_differ_in_one_value_have_different_heads():
    def head_of(text: str) -> str | None:
        state = extend(empty("s-1"), [facts.SessionStarted()], at=AT).state
        briefing = facts.SessionCompacted(
            message=1, content=slot_of_bytes("text", text.encode(), "message")
        )
        return extend(state, [briefing], head=HeadDraft(kind="compaction"), at=AT).state.head

    assert head_of("yes") == head_of("yes")
    assert head_of("yes") != head_of("yet")


def test_unknown_kinds_of_heads_and_edges_are_refused():
    with pytest.raises(InvalidInput, match="'party'"):
        publish(HeadDraft(kind="party"), "s-1", None, 1, 1, "1" * 64)
    with pytest.raises(InvalidInput, match="'friendship'"):
        relate(EdgeDraft(type="friendship", from_session="a", to_session="b"), "h")
