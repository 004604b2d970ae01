"""The fold is pure, works in any portions, stays small and says what is open."""

from decimal import Inexact, localcontext

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from walks import AT, begin, choices, walk

from holdfast.core import facts
from holdfast.core.fold import fold
from holdfast.core.log import extend
from holdfast.core.payloads import slot
from holdfast.core.state import Reserved, Spend, State, empty
from holdfast.testing.histories import finish_turn, start_turn


def play(state: State, *new: facts.Fact) -> State:
    return extend(state, new, at=AT).state


@given(choices, st.data())
@settings(max_examples=80)
def test_folding_a_prefix_and_then_the_rest_equals_folding_all(picks, data):
    log, states = walk(picks)
    cut = data.draw(st.integers(0, len(log)))
    whole = fold(empty("s-1"), log)
    assert fold(fold(empty("s-1"), log[:cut]), log[cut:]) == whole == states[-1]


@given(choices)
@settings(max_examples=40)
def test_a_state_survives_its_snapshot_form_at_every_point(picks):
    for state in walk(picks)[1]:
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(state), type=State) == state


@given(choices)
@settings(max_examples=40)
def test_folding_changes_neither_the_events_nor_the_state_it_starts_from(picks):
    log, states = walk(picks)
    before = [msgspec.json.encode(state) for state in states], [repr(event) for event in log]
    fold(states[0], log[1:])
    assert before == ([msgspec.json.encode(s) for s in states], [repr(event) for event in log])


def test_the_state_does_not_grow_with_history():
    state = begin().state
    sizes = []
    for _ in range(50):
        for move in (start_turn(state, "hello"), None):
            move = move or finish_turn(state, "bye")
            state = extend(state, move.facts, at=AT, head=move.head, payloads=move.payloads).state
        sizes.append(len(msgspec.json.encode(state)))
    assert state.counters["turn"] == 50
    assert sizes[-1] - sizes[0] < 40


def test_values_are_kept_by_id_only():
    batch = begin(vars=slot("secret", "vars"))
    assert batch.state.vars is not None
    assert batch.state.vars.data is None
    assert b"secret" not in msgspec.json.encode(batch.state)


def request(call_id: str, turn: int | None = 1) -> facts.CallRequested:
    return facts.CallRequested(
        call_id=call_id,
        name="ask",
        executor="human",
        effect="once",
        arguments=slot({}, "arguments"),
        turn=turn,
    )


def test_a_turn_is_suspended_while_all_its_calls_wait_and_running_once_one_does_not():
    state = play(begin().state, facts.TurnStarted(turn=1), request("a"), request("b"))
    assert state.status == "running"
    state = play(state, facts.CallSuspended(call_id="a"))
    assert state.status == "running"
    state = play(state, facts.CallSuspended(call_id="b", deadline=AT))
    assert state.status == "suspended"
    assert state.calls["b"].deadline == AT
    state = play(state, facts.CallResolved(call_id="a", outcome="ok"))
    assert state.status == "suspended"
    state = play(state, facts.CallResolved(call_id="b", outcome="expired"))
    assert state.status == "running"
    assert state.calls == {}


def test_a_session_without_a_turn_is_suspended_while_its_calls_wait():
    state = play(begin().state, request("a", turn=None))
    assert state.status == "running"
    state = play(state, facts.CallSuspended(call_id="a", kind="approval", assignee="ann"))
    assert (state.status, state.calls["a"].waits_for) == ("suspended", "approval")
    assert play(state, facts.CallResolved(call_id="a", outcome="ok")).status == "idle"


def test_what_a_step_may_cost_is_set_aside_until_its_outcome():
    step = facts.StepStarted(
        step=1,
        turn=1,
        ordinal=0,
        reserved_usd="0.2",
        reserved_input_tokens=3,
        reserved_output_tokens=4,
    )
    state = play(begin().state, facts.TurnStarted(turn=1), step)
    assert state.reserved == {"step:1": Reserved("0.2", 7, 3)}
    assert play(state, facts.StepPut(step=1, turn=1, status="unknown")).reserved == {}


def test_what_children_spent_is_kept_apart_from_what_the_session_did():
    aside = facts.BudgetReserved(reservation="call:c-1", usd="1", child="s-2")
    ended = facts.BudgetSettled(
        reservation="call:c-1", child="s-2", usd="0.4", tokens=10, held_usd="0.1", unknown_calls=1
    )
    state = play(begin().state, aside, ended)
    assert (state.spend.usd, state.delegated.usd, state.total.usd) == ("0", "0.4", "0.4")
    assert (state.total.held_usd, state.total.unknown_usd, state.reserved) == ("0.1", 1, {})


def test_a_fork_inside_of_a_turn_begins_with_that_turn_open():
    started = facts.SessionStarted(kind="fork", turn={"steps": 3})
    state = extend(empty("s-9"), [started], at=AT).state
    assert (state.status, state.turn.turn, state.turn.steps) == ("running", 1, 3)
    assert state.next("turn") == 2


def test_a_failed_turn_does_not_fail_its_session():
    state = play(
        begin().state, facts.TurnStarted(turn=1), facts.TurnPut(turn=1, status="failed", steps=0)
    )
    assert (state.status, state.turn, state.last_turn) == ("idle", None, "failed")


def test_unknown_cost_is_counted_as_unknown_and_not_as_zero():
    state = play(
        begin().state,
        facts.TurnStarted(turn=1),
        facts.StepStarted(step=1, turn=1, ordinal=1),
        facts.StepPut(step=1, turn=1, status="unknown"),
        facts.StepStarted(step=2, turn=1, ordinal=2),
        facts.StepPut(
            step=2,
            turn=1,
            status="replied",
            cost_usd="0.10",
            usage={"input_tokens": 5, "output_tokens": None},
        ),
        facts.StepStarted(step=3, turn=1, ordinal=3),
        facts.StepPut(
            step=3,
            turn=1,
            status="replied",
            cost_usd="0.20",
            usage={"input_tokens": 5, "output_tokens": 1},
        ),
    )
    assert (state.spend.usd, state.spend.unknown_usd) == ("0.30", 1)
    assert (state.spend.tokens, state.spend.unknown_tokens) == (11, 2)


def test_what_was_set_aside_and_lost_counts_once_at_its_ceiling():
    lost = facts.BudgetSettled(reservation="leaf:0", usd="0.05", tokens=9, unknown=True)
    aside = facts.BudgetReserved(reservation="leaf:0", usd="0.05", tokens=9)
    state = play(begin().state, facts.TurnStarted(turn=1), lost)
    assert (state.spend, state.reserved) == (Spend(), {})
    state = play(state, aside)
    assert state.reserved == {"leaf:0": Reserved("0.05", 9)}
    state = play(state, lost, lost)
    assert (state.spend.usd, state.spend.tokens, state.reserved) == ("0", 0, {})
    assert (state.spend.held_usd, state.spend.held_tokens) == ("0.05", 9)
    assert (state.spend.unknown_usd, state.spend.unknown_tokens) == (1, 1)
    unbounded = facts.BudgetReserved(reservation="leaf:0")
    state = play(state, unbounded, facts.BudgetSettled(reservation="leaf:0", unknown=True))
    assert (state.spend.unbounded_usd, state.spend.unbounded_tokens) == (1, 1)


def test_revivals_count_up_until_there_is_an_outcome():
    state = play(begin().state, facts.TurnStarted(turn=1), facts.SessionRevived(turn=1))
    state = play(state, facts.SessionRevived(turn=1))
    assert state.revivals == 2
    assert play(state, facts.SessionRevived(turn=1, forced=True)).revivals == 1
    assert play(state, request("a"), facts.CallResolved(call_id="a", outcome="ok")).revivals == 0


@pytest.mark.parametrize("end", [facts.SessionStopped(), facts.SessionFailed()])
def test_an_ended_session_has_nothing_open(end):
    done = facts.CallResolved(call_id="a", outcome="cancelled")
    state = play(begin().state, facts.TurnStarted(turn=1), request("a"), done, end)
    assert (state.turn, state.calls) == (None, {})
    assert state.status == end.TYPE.removeprefix("session.")


def test_what_was_spent_does_not_hang_on_the_decimal_context_of_a_thread():
    state = play(
        begin().state,
        facts.TurnStarted(turn=1),
        facts.StepStarted(step=1, turn=1, ordinal=1),
    )
    put = facts.StepPut(step=1, turn=1, status="replied", cost_usd="0.123456789")
    with localcontext(prec=3, capitals=0, traps=[Inexact]):
        after = play(state, put)
        assert after.turn_spend().usd == "0.123456789"
    assert after.spend.usd == "0.123456789"
