"""Settling: every way in which a turn ends, each as the facts of one batch.

No turn ends while one of its calls is open: the batch that ends it brings the outcome of each.
What was never started, or can be repeated without harm, is cancelled; what may have taken effect
once is unknown; a model call that was broken off counts at its ceiling.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core.facts import CallResolved, EvalAdded, Fact, Outcome, StepPut, TurnPut, TurnStatus
from holdfast.core.fold import spend_after
from holdfast.core.payloads import Slot, slot
from holdfast.core.state import PendingCall, Spend, State, lost_leaves, step_reservation


def problem(code: str, message: str) -> Slot:
    """Return an error as facts store it."""
    return slot({"code": code, "message": message}, "error")


def outcome_of(call: PendingCall) -> Outcome:
    """Return what an open call has come to once nobody waits for it any more."""
    in_flight = call.stage == "dispatched" and call.executor == "server"
    return "unknown" if in_flight and call.effect == "once" else "cancelled"


def calls_settled(state: State, calls: Sequence[PendingCall]) -> list[Fact]:
    """Return the outcomes of open calls whose cell or turn is over, and of leaf calls in flight."""
    resolved = [CallResolved(call_id=call.call_id, outcome=outcome_of(call)) for call in calls]
    return [*resolved, *lost_leaves(state)]


def step_lost(state: State, error: Slot) -> list[Fact]:
    """Return what settles a model call whose reply is lost, at the ceiling set aside for it."""
    turn = state.turn
    if turn is None or turn.phase != "asking":
        return []
    aside = state.reserved.get(step_reservation(turn.step))
    sent = None if aside is None else aside.input_tokens
    tokens = None if aside is None else aside.tokens
    return [
        StepPut(
            step=turn.step,
            turn=turn.turn,
            status="unknown",
            cost_usd=None if aside is None else aside.usd,
            usage={
                "input_tokens": sent,
                "output_tokens": None if tokens is None or sent is None else tokens - sent,
            },
            error=error,
        )
    ]


def turn_end(
    state: State,
    status: TurnStatus,
    before: Sequence[Fact] = (),
    *,
    final: Slot | None = None,
    error: Slot | None = None,
) -> TurnPut:
    """Return the fact that says how the open turn stands; `before` are facts of the same batch."""
    turn = state.turn
    assert turn is not None
    spend, driven_ms = state.turn_spend(), turn.driven_ms
    for fact in before:
        spend = spend + (spend_after(state, fact) - state.spend)
        if isinstance(fact, EvalAdded):
            driven_ms += fact.elapsed_ms or 0
    return TurnPut(
        turn=turn.turn,
        status=status,
        steps=turn.steps,
        final=final,
        error=error,
        usage={"input_tokens": spend.input_tokens, "output_tokens": spend.output_tokens},
        cost_usd=spend.usd,
        held_usd=spend.held_usd if spend.unknown_usd else None,
        unknown_calls=spend.unknown_usd,
        elapsed_ms=driven_ms,
    )


def broken_off(state: State) -> Spend:
    """Return the open turn's spend as it stands while calls in flight are broken off."""
    spend = state.turn_spend()
    for fact in (*step_lost(state, problem("lost", "")), *lost_leaves(state)):
        spend = spend + (spend_after(state, fact) - state.spend)
    return spend


def abandoned(state: State, error: Slot) -> list[Fact]:
    """Return the outcomes of everything that is open in the turn, which ends without a value."""
    turn = state.turn
    calls = state.calls_of(None if turn is None else turn.turn)
    return [*step_lost(state, error), *calls_settled(state, calls)]
