"""The fold: a pure function from a state and one event to the next state.

No I/O, no clock, no model, no code evaluation: folding a log again gives the same state, and
folding a prefix and then the rest gives what folding all of it gives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from msgspec.structs import replace

from holdfast.core import facts, status
from holdfast.core.events import Event
from holdfast.core.state import OpenTurn, PendingCall, Reserved, Spend, State, leaf_reservation

FOLD_VERSION = 2
"""Raised when the fold changes meaning: snapshots of another version are not used."""

OPEN_TURN_STATUSES = frozenset({"open", "interrupted"})


def fold(state: State, events: Iterable[Event]) -> State:
    """Return the state after events."""
    for event in events:
        state = apply(state, event)
    return state


def apply(state: State, event: Event, fact: facts.Fact | None = None) -> State:
    """Return the state after one event; `fact` spares decoding where it is at hand."""
    changes: dict[str, Any] = {}
    if fact is None and event.known:
        fact = event.fact()
    if fact is None:
        changes = {"read_only": f"event {event.seq} is a {event.type!r} version {event.version}"}
    elif (handler := _HANDLERS.get(event.type)) is not None:
        changes = handler(state, fact, event)
    return replace(state, seq=event.seq, digest=event.digest, updated_at=event.at, **changes)


def _count(state: State, counter: str, number: int) -> dict[str, int]:
    known = state.counters.get(counter, 0)
    return {**state.counters, counter: number if number > known else known}


def _status(state: State, turn: OpenTurn | None, calls: dict[str, PendingCall]) -> str:
    """Return the status that follows from what is open."""
    if state.status in (status.STOP_REQUESTED, status.STOPPED, status.FAILED):
        return state.status
    waiting = bool(calls) and all(call.stage == "suspended" for call in calls.values())
    if turn is None:
        return status.IDLE
    idle_step = turn.phase != "asking"
    return status.SUSPENDED if waiting and idle_step else status.RUNNING


def _started(state: State, fact: Any, event: Event) -> dict[str, Any]:
    return {
        "status": status.IDLE,
        "tenant": fact.tenant,
        "kind": fact.kind,
        "agent": fact.agent,
        "agent_version": fact.agent_version,
        "started_at": event.at,
        "cache_id": fact.cache_id,
        "labels": dict(fact.labels),
        "parent": fact.parent,
        "origin": fact.origin,
        "vars": fact.vars.bare() if fact.vars else None,
    }


def _turn_started(state: State, fact: Any, event: Event) -> dict[str, Any]:
    spend = state.spend
    turn = OpenTurn(
        fact.turn,
        event.seq,
        event.at,
        usd=spend.usd,
        input_tokens=spend.input_tokens,
        output_tokens=spend.output_tokens,
        unknown_usd=spend.unknown_usd,
        unknown_tokens=spend.unknown_tokens,
    )
    return {
        "turn": turn,
        "counters": _count(state, "turn", fact.turn),
        "status": _status(state, turn, state.calls),
        "revivals": 0,
    }


def _turn_put(state: State, fact: Any, event: Event) -> dict[str, Any]:
    if state.turn is None or state.turn.turn != fact.turn:
        return {}
    if fact.status in OPEN_TURN_STATUSES:
        # A clean interruption is no crash: the next revival starts counting anew.
        return {"revivals": 0} if fact.status == "interrupted" else {}
    calls = {key: call for key, call in state.calls.items() if call.turn != fact.turn}
    return {
        "turn": None,
        "last_turn": fact.status,
        "calls": calls,
        "status": _status(state, None, calls),
        "revivals": 0,
    }


def _step_started(state: State, fact: Any, event: Event) -> dict[str, Any]:
    changes: dict[str, Any] = {"counters": _count(state, "step", fact.step)}
    if state.turn is not None:
        changes["turn"] = replace(
            state.turn,
            phase="asking",
            step=fact.step,
            steps=state.turn.steps + 1,
            step_seq=event.seq,
            evals=0,
        )
    return changes


def at_ceiling(fact: Any) -> bool:
    """Say whether a failed call's spend is the most that it can have been."""
    return fact.status in ("failed", "error") and any((fact.usage or {}).values())


def spend_after(state: State, fact: facts.Fact) -> Spend:
    """Return what the session has used once a fact is told."""
    if isinstance(fact, facts.StepPut | facts.LeafCalled):
        ceiling = fact.status == "unknown" or at_ceiling(fact)
        return state.spend.plus(fact.cost_usd, fact.usage, ceiling=ceiling)
    if isinstance(fact, facts.BudgetSettled) and fact.unknown:
        # Most of a ceiling is that of the reply, which costs more.
        usage = {"input_tokens": 0, "output_tokens": fact.tokens}
        if fact.reservation in state.reserved:
            return state.spend.plus(fact.usd, usage, ceiling=True)
    return state.spend


def _step_put(state: State, fact: Any, event: Event) -> dict[str, Any]:
    lost = fact.status == "unknown"
    changes: dict[str, Any] = {"spend": spend_after(state, fact)}
    if not lost:
        changes["revivals"] = 0
        changes["counters"] = _count(state, "answered", state.next("answered"))
    if state.turn is not None and state.turn.step == fact.step:
        phase = "replied" if fact.status == "replied" else "opened"
        # A lost call is made again as a new step: it does not use up the turn's steps.
        changes["turn"] = replace(
            state.turn,
            phase=phase,
            step_seq=event.seq,
            steps=state.turn.steps - lost,
            driven_ms=state.turn.driven_ms + (fact.latency_ms or 0),
            cell_at=event.at,
        )
    return changes


def _message_appended(state: State, fact: Any, event: Event) -> dict[str, Any]:
    changes: dict[str, Any] = {"counters": _count(state, "message", fact.message)}
    if fact.role == "observation" and state.turn is not None:
        changes["turn"] = replace(state.turn, phase="observed")
    return changes


def _eval_added(state: State, fact: Any, event: Event) -> dict[str, Any]:
    changes: dict[str, Any] = {"counters": _count(state, "eval", fact.eval), "revivals": 0}
    if state.turn is not None:
        changes["turn"] = replace(
            state.turn,
            evals=state.turn.evals + 1,
            driven_ms=state.turn.driven_ms + (fact.elapsed_ms or 0),
            cell_at=event.at,
        )
    return changes


def _vars_checkpointed(state: State, fact: Any, event: Event) -> dict[str, Any]:
    return {"vars": fact.vars.bare()}


def _compacted(state: State, fact: Any, event: Event) -> dict[str, Any]:
    changes: dict[str, Any] = {
        "counters": _count(state, "message", fact.message),
        "compact_from": event.seq,
        "spend": state.spend.plus(fact.cost_usd, fact.usage),
    }
    if fact.vars is not None:
        changes["vars"] = fact.vars.bare()
    return changes


def _leaf_called(state: State, fact: Any, event: Event) -> dict[str, Any]:
    lost = fact.status == "unknown"
    counters = _count(state, "leaf", fact.leaf)
    if not lost:
        counters["leaf_answered"] = counters.get("leaf_answered", 0) + 1
    return {
        "counters": counters,
        "spend": spend_after(state, fact),
        "revivals": state.revivals if lost else 0,
        "reserved": _without(state.reserved, leaf_reservation(fact.ordinal)),
    }


def _with_calls(state: State, calls: dict[str, PendingCall]) -> dict[str, Any]:
    return {"calls": calls, "status": _status(state, state.turn, calls)}


def _call_requested(state: State, fact: Any, event: Event) -> dict[str, Any]:
    call = PendingCall(
        call_id=fact.call_id,
        name=fact.name,
        executor=fact.executor,
        effect=fact.effect,
        seq=event.seq,
        turn=fact.turn,
        eval=fact.eval,
        deadline=fact.deadline,
        child=fact.child,
    )
    number = state.next("call")
    changes = _with_calls(state, {**state.calls, fact.call_id: call})
    return changes | {"counters": _count(state, "call", number)}


def _call_moved(state: State, fact: Any, event: Event) -> dict[str, Any]:
    call = state.calls.get(fact.call_id)
    if call is None:
        return {}
    if isinstance(fact, facts.CallApproved):
        call = replace(call, stage="approved")
    elif isinstance(fact, facts.CallSuspended):
        call = replace(call, stage="suspended", deadline=fact.deadline or call.deadline)
    elif isinstance(fact, facts.CallExtended):
        call = replace(call, deadline=fact.deadline)
    return _with_calls(state, {**state.calls, fact.call_id: call})


def _call_resolved(state: State, fact: Any, event: Event) -> dict[str, Any]:
    calls = {key: call for key, call in state.calls.items() if key != fact.call_id}
    return _with_calls(state, calls) | {"revivals": 0}


def _head_published(state: State, fact: Any, event: Event) -> dict[str, Any]:
    return {
        "head": fact.id,
        "head_end": fact.range[1],
        "counters": _count(state, "head", state.next("head")),
    }


def _lineage_added(state: State, fact: Any, event: Event) -> dict[str, Any]:
    derived = state.derived or (fact.type == "derivation" and fact.to_session == state.session)
    return {"derived": derived, "counters": _count(state, "edge", state.next("edge"))}


def _reserved(state: State, fact: Any, event: Event) -> dict[str, Any]:
    aside = Reserved(fact.usd, fact.tokens)
    return {"reserved": {**state.reserved, fact.reservation: aside}}


def _settled(state: State, fact: Any, event: Event) -> dict[str, Any]:
    rest = _without(state.reserved, fact.reservation)
    return {"reserved": rest, "spend": spend_after(state, fact)}


def _without(reserved: dict[str, Reserved], key: str) -> dict[str, Reserved]:
    if key not in reserved:
        return reserved
    return {other: aside for other, aside in reserved.items() if other != key}


def _revived(state: State, fact: Any, event: Event) -> dict[str, Any]:
    return {"revivals": 1 if fact.forced else state.revivals + 1}


def _stop_requested(state: State, fact: Any, event: Event) -> dict[str, Any]:
    return {"status": status.STOP_REQUESTED}


def _stopped(state: State, fact: Any, event: Event) -> dict[str, Any]:
    return {"status": status.STOPPED, "turn": None, "calls": {}}


def _failed(state: State, fact: Any, event: Event) -> dict[str, Any]:
    return {"status": status.FAILED, "turn": None, "calls": {}}


def _artifact_written(state: State, fact: Any, event: Event) -> dict[str, Any]:
    return {"counters": _count(state, "artifact", state.next("artifact"))}


_HANDLERS: dict[str, Callable[[State, Any, Event], dict[str, Any]]] = {
    "session.started": _started,
    "session.revived": _revived,
    "session.stop_requested": _stop_requested,
    "session.stopped": _stopped,
    "session.failed": _failed,
    "session.compacted": _compacted,
    "turn.started": _turn_started,
    "turn.put": _turn_put,
    "step.started": _step_started,
    "step.put": _step_put,
    "message.appended": _message_appended,
    "eval.added": _eval_added,
    "vars.checkpointed": _vars_checkpointed,
    "leaf.called": _leaf_called,
    "call.requested": _call_requested,
    "call.approved": _call_moved,
    "call.suspended": _call_moved,
    "call.extended": _call_moved,
    "call.resolved": _call_resolved,
    "head.published": _head_published,
    "lineage.added": _lineage_added,
    "budget.reserved": _reserved,
    "budget.settled": _settled,
    "artifact.written": _artifact_written,
}
