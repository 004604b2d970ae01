"""`extend` decides for every store what may be appended and what it becomes."""

import dataclasses

import pytest
from hypothesis import given, settings
from msgspec.structs import replace
from walks import AT, begin, choices, walk

from holdfast.core import facts, replay
from holdfast.core.errors import (
    Corruption,
    HeadConflict,
    IllegalTransition,
    InvalidId,
    InvalidInput,
    InvalidRef,
    ReadOnlySession,
)
from holdfast.core.events import Event, chain_start, check_digest, event_digest, stamp
from holdfast.core.fold import fold
from holdfast.core.forms import FACTS
from holdfast.core.heads import EdgeDraft, HeadDraft
from holdfast.core.log import extend
from holdfast.core.payloads import INLINE_BYTES, Erased, Slot, manifest, slot, to_record
from holdfast.core.state import State
from holdfast.core.status import STATUSES, check_legal

BIG = slot("b" * 600, "message")


def running() -> State:
    return extend(begin().state, [facts.TurnStarted(turn=1)], at=AT).state


def message(number: int, content: Slot) -> facts.MessageAppended:
    return facts.MessageAppended(message=number, role="user", content=content)


def briefing(number: int) -> facts.SessionCompacted:
    return facts.SessionCompacted(message=number, content=slot("so far", "message"))


@given(choices)
@settings(max_examples=60)
def test_seqs_are_gap_free_and_every_digest_follows(picks):
    log, _ = walk(picks)
    assert [event.seq for event in log] == list(range(1, len(log) + 1))
    previous = chain_start("s-1")
    for event in log:
        check_digest(previous, event)
        previous = event.digest


@pytest.mark.parametrize(
    "new",
    [
        [facts.TurnStarted(turn=2)],
        [facts.TurnStarted(turn=0)],
        [message(2, BIG)],
        [message(1, BIG), message(1, BIG)],
        [facts.SessionCompacted(message=2, content=BIG)],
    ],
    ids=str,
)
def test_an_entity_must_have_the_next_number_of_its_kind(new):
    with pytest.raises(InvalidInput, match="the next"):
        extend(begin().state, new, at=AT)


def call(call_id: str) -> facts.CallRequested:
    return facts.CallRequested(
        call_id=call_id, name="f", executor="server", effect="once", arguments=slot(1, "arguments")
    )


def test_a_call_has_one_id_and_one_outcome():
    state = extend(running(), [call("a")], at=AT).state
    with pytest.raises(InvalidInput, match="'a' is open already"):
        extend(state, [call("a")], at=AT)
    done = facts.CallResolved(call_id="a", outcome="ok")
    with pytest.raises(InvalidInput, match="'a' is not open"):
        extend(state, [done, done], at=AT)
    with pytest.raises(InvalidInput, match="'b' is not open"):
        extend(state, [facts.CallSuspended(call_id="b")], at=AT)
    with pytest.raises(InvalidId):
        extend(state, [call("two words")], at=AT)


def _called(**words):
    asked = {"executor": "server", "effect": "once"} | words
    return facts.CallRequested(call_id="c", name="n", arguments=slot(1, "answer"), **asked)


@pytest.mark.parametrize(
    "fact",
    [
        facts.TurnPut(turn=1, status="banana"),
        facts.MessageAppended(message=1, role="wizard", content=slot("x", "message")),
        facts.InputAdmitted(key="k", kind="party"),
        _called(executor="martian"),
        _called(effect="whatever"),
    ],
    ids=lambda fact: fact.TYPE,
)
def test_a_word_that_no_reader_knows_is_refused(fact):
    with pytest.raises(InvalidInput, match=fact.TYPE):
        extend(running(), [fact], at=AT)


def test_an_append_of_nothing_is_refused():
    with pytest.raises(InvalidInput, match="at least one event"):
        extend(begin().state, [], at=AT)


@pytest.mark.parametrize("thing", ["text", None, {"type": "turn.started"}, facts.Fact()])
def test_what_is_no_fact_is_refused_by_name(thing):
    with pytest.raises(InvalidInput, match=f"{type(thing).__name__} is not a fact type"):
        extend(begin().state, [thing], at=AT)


@pytest.mark.parametrize("field", ["id", "encoding", "kind", "size", "data", "erased"])
@pytest.mark.parametrize("size", [10, 600])
def test_a_value_that_no_record_can_hold_is_refused_by_what_it_is(field, size):
    value = replace(slot("b" * size, "message"), **{field: object()})
    for new in (message(1, value), facts.TurnStarted(turn=1, inputs={"x": value})):
        with pytest.raises(InvalidRef, match="is not a valid slot"):
            extend(begin().state, [new], at=AT)


def test_more_tokens_than_a_session_can_count_are_refused():
    most = {"input_tokens": 2**53 - 1, "output_tokens": 1}
    state = extend(running(), [facts.StepStarted(step=1, turn=1, ordinal=1)], at=AT).state
    put = facts.StepPut(step=1, turn=1, status="replied", model="m", usage=most)
    with pytest.raises(InvalidInput, match="more than a session can count"):
        extend(state, [put], at=AT)


def test_a_read_only_session_takes_nothing():
    state = begin().state
    digest = event_digest(state.digest, 2, "moon.risen", 1, AT, {})
    state = fold(state, [Event("s-1", 2, "moon.risen", 1, AT, {}, digest)])
    with pytest.raises(ReadOnlySession, match=r"moon\.risen"):
        extend(state, [facts.SessionStopped()], at=AT)


def test_payloads_are_gathered_with_their_bytes_and_manifests_are_followed():
    part, small = slot("p" * 700, "chunk"), slot("tiny", "chunk")
    names = manifest({"x": to_record(part), "y": to_record(small)}, "vars")
    batch = extend(
        begin().state, [facts.VarsCheckpointed(vars=names), message(1, BIG)], at=AT, payloads=[part]
    )
    assert set(batch.payloads) == {names.id, part.id, BIG.id}
    assert set(batch.refs) == {names.id, part.id, BIG.id}


@pytest.mark.parametrize("size", [INLINE_BYTES, INLINE_BYTES + 1])
def test_only_what_is_too_long_for_its_record_is_a_payload(size):
    said = facts.MessageAppended(message=1, role="user", content=slot("x" * size, "message"))
    batch = extend(begin().state, [said], at=AT)
    assert len(batch.payloads) == len(batch.refs) == (size > INLINE_BYTES)


def test_a_ref_without_bytes_is_demanded_of_the_store():
    batch = extend(begin().state, [message(1, BIG.bare())], at=AT)
    assert (batch.payloads, set(batch.refs)) == ({}, {BIG.id})


def test_bytes_that_are_not_what_their_id_says_are_refused():
    lie = Slot(BIG.id, "text", "message", BIG.size, b"x" * 600)
    with pytest.raises(Corruption):
        extend(begin().state, [message(1, lie)], at=AT)


def test_inline_bytes_that_are_not_what_their_id_says_are_refused():
    lie = Slot(slot("yes", "message").id, "text", "message", 2, b"no")
    with pytest.raises(Corruption):
        extend(begin().state, [message(1, lie)], at=AT)


@pytest.mark.parametrize("change", [{"size": 600.0}, {"kind": "moon"}, {"encoding": "rot13"}])
def test_a_slot_that_no_record_can_hold_is_refused(change):
    item = replace(slot("x" * 600, "message"), **change)
    new = facts.MessageAppended(message=1, role="user", content=item)
    with pytest.raises(InvalidRef, match="not a valid slot"):
        extend(begin().state, [new], at=AT)


@pytest.mark.parametrize(
    "change",
    [
        {"id": "sha256:" + BIG.id[7:].upper()},
        {"id": "sha256:" + BIG.id[7:39] + " " + BIG.id[39:]},
        {"id": "sha256:zz"},
        {"size": -1, "by_ref": True},
        {"size": 2**60},
    ],
)
def test_a_ref_that_could_not_be_read_back_is_refused(change):
    with pytest.raises((InvalidRef, InvalidId)):
        extend(begin().state, [message(1, replace(BIG.bare(), **change))], at=AT)


def test_an_erased_value_cannot_be_referred_to_again():
    gone = Slot(BIG.id, "text", "message", BIG.size, None, Erased(AT, "asked"))
    with pytest.raises(InvalidRef, match="erased"):
        extend(begin().state, [message(1, gone)], at=AT)


def test_a_manifest_is_followed_even_where_equal_bytes_stand_as_text_beside_it():
    part = slot("p" * 700, "chunk")
    names = manifest({"pad": "-" * 600, "x": to_record(part)}, "vars")
    twin = Slot(names.id, "text", "message", names.size, names.data)
    for order in ([twin, names], [names, twin]):
        batch = extend(begin().state, [message(1, BIG)], at=AT, payloads=order)
        assert part.id in batch.refs


def test_nothing_is_half_done_when_a_later_fact_is_refused():
    state = begin().state
    with pytest.raises(IllegalTransition):
        extend(state, [message(1, BIG), facts.StepStarted(step=1, turn=1, ordinal=1)], at=AT)
    assert extend(state, [message(1, BIG)], at=AT).events[0].seq == 2


def test_a_head_is_refused_on_an_unexpected_basis():
    state = begin().state
    wrong = HeadDraft(kind="compaction", expected_basis=None)
    first = extend(state, [briefing(1)], head=wrong, at=AT)
    assert first.head is not None
    with pytest.raises(HeadConflict) as caught:
        extend(first.state, [briefing(2)], head=wrong, at=AT)
    assert caught.value.details["current"] == first.head.id
    right = HeadDraft(kind="compaction", expected_basis=first.head.id)
    second = extend(first.state, [briefing(2)], head=right, at=AT)
    assert second.head is not None
    assert second.head.basis == first.head.id


TURN_HEAD = HeadDraft(kind="turn_final", turn=1)
COMPACT_HEAD = HeadDraft(kind="compaction")


@pytest.mark.parametrize(
    ("new", "head"),
    [
        ([], TURN_HEAD),
        ([facts.TurnPut(turn=1, status="failed")], TURN_HEAD),
        ([facts.TurnPut(turn=1, status="open")], TURN_HEAD),
        ([facts.TurnPut(turn=1, status="final")], HeadDraft(kind="turn_final", turn=2)),
        ([facts.TurnPut(turn=1, status="final")], HeadDraft(kind="turn_final")),
        ([facts.TurnPut(turn=1, status="final")], COMPACT_HEAD),
        ([facts.TurnPut(turn=1, status="final")], None),
        ([facts.SessionCompacted(message=1, content=BIG)], None),
        ([facts.SessionCompacted(message=1, content=BIG)], TURN_HEAD),
        ([message(1, BIG)], COMPACT_HEAD),
    ],
    ids=str,
)
def test_a_head_is_published_with_a_final_turn_or_a_compaction_and_with_nothing_else(new, head):
    with pytest.raises(InvalidInput, match="head"):
        extend(running(), new, head=head, at=AT)


def test_a_compaction_has_one_head():
    state = extend(running(), [briefing(1)], head=COMPACT_HEAD, at=AT).state
    with pytest.raises(InvalidInput, match=r"needs a session\.compacted"):
        extend(state, [message(2, BIG)], head=COMPACT_HEAD, at=AT)


def test_an_edge_of_the_same_append_leads_to_its_head():
    edge = EdgeDraft(type="derivation", from_session="s-0", to_session="s-1")
    batch = extend(begin().state, [briefing(1)], head=COMPACT_HEAD, edges=[edge], at=AT)
    assert batch.head is not None
    assert batch.events[-1].data["to_head"] == batch.head.id
    assert batch.state.derived
    with pytest.raises(InvalidInput, match="needs the head"):
        extend(begin().state, [], edges=[edge], at=AT)


def test_the_status_table_refuses_what_is_not_legal_and_names_what_would_be():
    with pytest.raises(IllegalTransition, match="legal in: idle") as caught:
        extend(running(), [facts.TurnStarted(turn=2)], at=AT)
    assert caught.value.details == {"status": "running", "event": "turn.started"}


@pytest.mark.parametrize("event_type", sorted(FACTS))
def test_the_statuses_on_a_fact_are_those_in_which_the_log_takes_it(event_type):
    legal = FACTS[event_type].LEGAL
    for status in ("new", *STATUSES):
        if status in legal:
            check_legal(status, event_type, legal)
        else:
            with pytest.raises(IllegalTransition):
                check_legal(status, event_type, legal)


def test_an_ended_session_only_takes_lineage():
    assert [kind for kind, cls in FACTS.items() if "stopped" in cls.LEGAL] == ["lineage.added"]
    assert [kind for kind, cls in FACTS.items() if "new" in cls.LEGAL] == ["session.started"]


def tool_call(call_id: str, **given: object) -> facts.CallRequested:
    return facts.CallRequested(
        call_id=call_id,
        name="mail.send",
        executor="server",
        effect="once",
        arguments=slot({}, "arguments"),
        turn=1,
        **given,
    )


SETTLED = [
    facts.TurnPut(turn=1, status="failed"),
    facts.TurnPut(turn=1, status="stopped"),
    facts.SessionStopped(),
    facts.SessionFailed(),
]


@pytest.mark.parametrize("end", SETTLED)
def test_nothing_settles_while_a_call_of_it_is_open(end):
    state = extend(running(), [tool_call("c-1", eval=1)], at=AT).state
    with pytest.raises(InvalidInput, match="while c-1 has no outcome"):
        extend(state, [end], at=AT)
    outcome = facts.CallResolved(call_id="c-1", outcome="unknown")
    assert extend(state, [outcome, end], at=AT).state.calls == {}


def test_a_turn_does_not_settle_while_a_model_is_being_asked():
    asked = extend(running(), [facts.StepStarted(step=1, turn=1, ordinal=1)], at=AT).state
    with pytest.raises(InvalidInput, match="while step:1 has no outcome"):
        extend(asked, [facts.TurnPut(turn=1, status="failed")], at=AT)
    aside = facts.BudgetReserved(reservation="leaf:0")
    with pytest.raises(InvalidInput, match="while leaf:0 has no outcome"):
        extend(running(), [aside, facts.TurnPut(turn=1, status="failed")], at=AT)


def test_a_turn_that_an_older_release_settled_beside_an_open_call_is_still_read():
    state = extend(running(), [tool_call("c-1")], at=AT).state
    event = stamp(state.digest, "s-1", state.seq + 1, AT, facts.TurnPut(turn=1, status="failed"))
    after = replay.step(state, event)
    assert (after.turn, after.calls, after.last_turn) == (None, {}, "failed")


def test_calls_are_dispatched_while_they_are_open_and_wait_one_time_after_the_other():
    state = extend(running(), [tool_call("c-1"), tool_call("c-2")], at=AT).state
    assert state.calls["c-1"].stage == "requested"
    state = extend(state, [facts.CallDispatched(calls=["c-1", "c-2"])], at=AT).state
    assert {item.stage for item in state.calls.values()} == {"dispatched"}
    for wrong in ([], ["c-3"]):
        with pytest.raises(InvalidInput):
            extend(state, [facts.CallDispatched(calls=wrong)], at=AT)
    with pytest.raises(InvalidInput, match="next wait of call 'c-1' is 1"):
        extend(state, [facts.CallSuspended(call_id="c-1", wait=2)], at=AT)


def test_only_the_last_turn_that_ended_without_a_value_is_reopened():
    ended = extend(running(), [facts.TurnPut(turn=1, status="failed")], at=AT).state
    again = extend(ended, [facts.TurnReopened(turn=1)], at=AT).state
    assert (again.status, again.turn.turn, again.turn.phase) == ("running", 1, "opened")
    with pytest.raises(InvalidInput, match="cannot be reopened"):
        extend(ended, [facts.TurnReopened(turn=2)], at=AT)
    second = [facts.TurnStarted(turn=2), facts.TurnPut(turn=2, status="failed")]
    with pytest.raises(InvalidInput, match="only the last turn"):
        extend(extend(ended, second, at=AT).state, [facts.TurnReopened(turn=1)], at=AT)


def test_the_same_edge_told_twice_counts_once():
    edge = EdgeDraft(
        type="invocation", from_session="p-1", to_session="s-1", to_head="sha256:" + "0" * 64
    )
    once = extend(begin().state, [], edges=[edge, edge], at=AT).state
    assert extend(once, [], edges=[edge], at=AT).state.counters["edge"] == 1
    other = dataclasses.replace(edge, call_id="c-1")
    assert extend(once, [], edges=[other], at=AT).state.counters["edge"] == 2


def test_a_session_that_was_moved_takes_no_more():
    moved = extend(begin().state, [facts.SessionMoved(to="elsewhere")], at=AT).state
    with pytest.raises(ReadOnlySession, match="moved to elsewhere"):
        extend(moved, [facts.TurnStarted(turn=1)], at=AT)
