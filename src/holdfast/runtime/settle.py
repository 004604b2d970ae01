"""Settling: every way in which a turn ends, each as the facts of one batch.

No turn ends while one of its calls is open: the batch that ends it brings the outcome of each.
What was never started, or can be repeated without harm, is cancelled; what may have taken effect
once is unknown; a model call that was broken off counts at its ceiling.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from holdfast.core.facts import (
    CallResolved,
    CompactionFailed,
    EvalAdded,
    Fact,
    LimitExceeded,
    Outcome,
    SessionStopped,
    SessionStopRequested,
    StepPut,
    TurnPut,
    TurnStatus,
)
from holdfast.core.fold import spend_after
from holdfast.core.payloads import Slot, slot
from holdfast.core.state import PendingCall, Spend, State, lost_leaves, step_reservation
from holdfast.runtime import children, results
from holdfast.runtime.budget import Excess
from holdfast.runtime.handlers.tool import unknown_wait
from holdfast.runtime.inbox import admitted
from holdfast.runtime.journal import Journal
from holdfast.runtime.results import TurnResult
from holdfast.stores.port import InboxItem


def problem(code: str, message: str, until: str | None = None) -> Slot:
    """Return an error as facts store it; `until` is when a limit that was met resets."""
    error = {"code": code, "message": message}
    return slot(error if until is None else error | {"until": until}, "error")


def outcome_of(call: PendingCall) -> Outcome:
    """Return what an open call has come to once nobody waits for it any more."""
    in_flight = call.stage == "dispatched" and call.executor == "server"
    return "unknown" if in_flight and call.effect == "once" else "cancelled"


def calls_settled(state: State, calls: Iterable[PendingCall]) -> list[Fact]:
    """Return the outcomes of open calls whose cell or turn is over, and of leaf calls in flight."""
    resolved = [CallResolved(call_id=call.call_id, outcome=outcome_of(call)) for call in calls]
    return [*resolved, *compaction_lost(state), *lost_leaves(state)]


def left_by_programs(state: State) -> list[Fact]:
    """Return what settles calls that programs made outside of turns, once their process is gone."""
    if state.run is not None:
        return []
    facts: list[Fact] = []
    for call in state.calls.values():
        if call.turn is not None or call.kind != "tool" or call.stage == "suspended":
            continue
        if outcome_of(call) == "unknown" and call.policy == "ask":
            facts.append(replace(unknown_wait(call.call_id, call.name), wait=call.wait + 1))
        else:
            facts.append(CallResolved(call_id=call.call_id, outcome=outcome_of(call)))
    return facts


def step_lost(state: State, why: Slot) -> list[Fact]:
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
            error=why,
        )
    ]


_COMPACTION = "compaction:"


def compaction_reservation(first: int, last: int) -> str:
    """Return under which key the spend of a summary of a span is set aside."""
    return f"{_COMPACTION}{first}-{last}"


def compaction_lost(state: State) -> list[CompactionFailed]:
    """Return what settles summaries whose replies are lost, at the ceilings set aside for them."""
    return [
        CompactionFailed(
            error=problem("lost", "the process ended while the summary was being written"),
            span=[int(part) for part in key.removeprefix(_COMPACTION).split("-")],
            reservation=key,
            usage={"input_tokens": 0, "output_tokens": aside.tokens},
            cost_usd=aside.usd,
            unknown=True,
        )
        for key, aside in state.reserved.items()
        if key.startswith(_COMPACTION)
    ]


def abandoned(state: State, why: Slot) -> list[Fact]:
    """Return the outcomes of everything that is open in the turn, which ends without a value."""
    turn = state.turn
    calls = state.calls_of(None if turn is None else turn.turn)
    return [*step_lost(state, why), *calls_settled(state, calls)]


def is_at_rest(state: State) -> bool:
    """Tell whether nothing of the open turn was in flight: no model was asked, no call runs."""
    asking = state.turn is not None and state.turn.phase == "asking"
    started = any(call.stage == "dispatched" for call in state.calls.values())
    return not (asking or started or lost_leaves(state))


def spend_of_turn(state: State, before: Sequence[Fact] = ()) -> Spend:
    """Return what the open turn has used, with facts that are about to be told."""
    spend = state.turn_spend()
    for fact in before:
        spend = spend + (spend_after(state, fact) - state.spend)
    return spend


def spend_if_broken_off(state: State) -> Spend:
    """Return what the open turn has used if what is in flight now brings nothing."""
    lost = [*step_lost(state, problem("lost", "")), *compaction_lost(state), *lost_leaves(state)]
    return spend_of_turn(state, lost)


def turn_put(
    state: State,
    status: TurnStatus,
    before: Sequence[Fact] = (),
    *,
    final: Slot | None = None,
    why: Slot | None = None,
    spend: Spend | None = None,
) -> TurnPut:
    """Return the fact that says how the open turn stands; `before` are facts of the same batch."""
    turn = state.turn
    assert turn is not None
    spend = spend_of_turn(state, before) if spend is None else spend
    driven = [fact.elapsed_ms or 0 for fact in before if isinstance(fact, EvalAdded)]
    return TurnPut(
        turn=turn.turn,
        status=status,
        steps=turn.steps,
        final=final,
        error=why,
        usage={"input_tokens": spend.input_tokens, "output_tokens": spend.output_tokens},
        cost_usd=spend.usd,
        held_usd=spend.held_usd if spend.unknown_usd else None,
        unknown_calls=spend.unknown_usd,
        elapsed_ms=turn.driven_ms + sum(driven),
    )


async def ended(
    journal: Journal,
    status: TurnStatus,
    code: str,
    message: str,
    *,
    before: Sequence[Fact] = (),
    limit: Excess | None = None,
    until: str | None = None,
) -> TurnResult:
    """End the open turn without a value, and return its result."""
    why = problem(code, message, until)
    told = None if limit is None else limit.fact()
    put: TurnPut | None = None

    def build(state: State) -> list[Fact]:
        nonlocal put
        settled = [fact for fact in abandoned(state, why) if not _settles(before, fact)]
        outcomes = [*before, *settled, *([] if told is None else [told])]
        put = turn_put(state, status, outcomes, why=why)
        return [*outcomes, put]

    await journal.append(build, posts=posts(journal.state))
    return await results.of(
        journal.store, journal.session, put, limit=told, head=journal.state.head
    )


def posts(state: State) -> children.Posts:
    """Return what others are told when the open turn ends: the parent, and children to stop."""
    turn = state.turn
    open_calls = state.calls_of(None if turn is None else turn.turn)
    return [*children.stops(open_calls), *children.report(state)]


def _settles(before: Sequence[Fact], fact: Fact) -> bool:
    """Tell whether the step that a fact settles has its outcome among others."""
    return isinstance(fact, StepPut) and any(isinstance(other, StepPut) for other in before)


async def stopped(journal: Journal, item: InboxItem) -> TurnResult:
    """End the session, and the turn that is open in it, because someone asked for it."""
    why = problem("stopped", "the session was stopped")
    put: TurnPut | None = None

    def build(state: State) -> list[Fact]:
        nonlocal put
        outcomes = abandoned(state, why)
        if state.turn is not None:
            put = turn_put(state, "stopped", outcomes, why=why)
            outcomes.append(put)
        rest = calls_settled(state, [call for call in state.calls.values() if call.turn is None])
        others = [] if state.turn is None else [f for f in rest if isinstance(f, CallResolved)]
        return [admitted(item), SessionStopRequested(), *outcomes, *others, SessionStopped()]

    stops = children.stops(journal.state.calls.values())
    await journal.append(
        build, consumes=[item.key], posts=[*stops, *children.report(journal.state)]
    )
    if put is None:
        return results.Stopped(session=journal.session, head=journal.state.head)
    return await results.of(journal.store, journal.session, put, head=journal.state.head)


async def refused(
    journal: Journal, excess: Excess, admission: Sequence[Fact], consumes: Sequence[str]
) -> TurnResult:
    """Record that a limit forbids the turn of a message, which is not begun."""
    fact: LimitExceeded = excess.fact()
    await journal.append(
        lambda _: [*admission, fact], consumes=consumes, posts=children.report(journal.state)
    )
    return await results.of(
        journal.store, journal.session, None, limit=fact, head=journal.state.head
    )


async def interrupted(journal: Journal) -> None:
    """Record that driving was broken off on purpose; the turn stays open."""
    text = "driving was broken off; resume goes on from here"

    def build(state: State) -> list[Fact]:
        spend = spend_if_broken_off(state)
        return [turn_put(state, "interrupted", why=problem("interrupted", text), spend=spend)]

    if journal.state.turn is not None:
        await journal.append(build)
