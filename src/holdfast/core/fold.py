"""The fold: a pure function from a state and one event to the next state.

No I/O, no clock, no model, no code evaluation: folding a log again gives the same state, and
folding a prefix and then the rest gives what folding all of it gives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from msgspec.structs import replace

from holdfast.core import facts, run_fold, run_state, status
from holdfast.core.events import Event
from holdfast.core.run_facts import RunStarted
from holdfast.core.state import (
    MOVED,
    OpenTurn,
    PendingCall,
    Reserved,
    Spend,
    State,
    leaf_reservation,
    step_reservation,
)

FOLD_VERSION = 4
"""Raised when the fold changes meaning: snapshots of another version are not used."""

OPEN_TURN_STATUSES = frozenset({"open", "interrupted"})

EDGES_KEPT = 64
"""How many of its latest edges a state knows: the same one is told again only soon after."""


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
    else:
        counters = _counted(state, fact)
        handler = _HANDLERS.get(event.type)
        if handler is not None:
            changes = handler(state, fact, event)
        if counters is not None:
            changes["counters"] = counters | changes.get("counters", {})
        if state.run is not None or isinstance(fact, RunStarted):
            changes |= _run_changes(state, fact, event, changes.get("status", state.status))
    return replace(state, seq=event.seq, digest=event.digest, updated_at=event.at, **changes)


def _run_changes(state: State, fact: facts.Fact, event: Event, now: str) -> dict[str, Any]:
    """Return what a fact changes of the session's run, and the status that follows from it."""
    run = run_fold.apply(state.run, fact, event.seq, event.at, state.updated_at)
    if run is None or now in (status.STOPPED, status.FAILED):
        return {"run": run}
    stopping = now == status.STOP_REQUESTED and run.status in run_state.OPEN
    return {"run": run, "status": now if stopping else run_state.SESSION_STATUS[run.status]}


def _counted(state: State, fact: facts.Fact) -> dict[str, int] | None:
    """Return the counters once a fact is told that its class says to count."""
    if fact.NUMBERED is not None:
        number: int = getattr(fact, fact.NUMBERED)
        return {**state.counters, fact.NUMBERED: max(number, state.counters.get(fact.NUMBERED, 0))}
    if fact.COUNTS is not None:
        return {**state.counters, fact.COUNTS: state.next(fact.COUNTS)}
    return None


def _status(state: State, turn: OpenTurn | None, calls: dict[str, PendingCall]) -> str:
    """Return the status that follows from what is open."""
    if state.status in (status.STOP_REQUESTED, status.STOPPED, status.FAILED):
        return state.status
    waiting = bool(calls) and all(call.stage == "suspended" for call in calls.values())
    if waiting and (turn is None or turn.phase != "asking"):
        return status.SUSPENDED
    return status.IDLE if turn is None and not calls else status.RUNNING


def _started(state: State, fact: Any, event: Event) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    if fact.turn is not None:
        # A fork inside of a turn goes on with it, at the step boundary where it was made.
        steps = fact.turn.get("steps", 0)
        turn = OpenTurn(1, event.seq, event.at, phase="observed", steps=steps)
        changes = {"turn": turn, "counters": {"turn": 1}}
    return changes | {
        "status": status.IDLE if fact.turn is None else status.RUNNING,
        "tenant": fact.tenant,
        "kind": fact.kind,
        "agent": fact.agent,
        "agent_version": fact.agent_version,
        "started_at": event.at,
        "cache_id": fact.cache_id,
        "labels": dict(fact.labels),
        "parent": fact.parent,
        "origin": fact.origin,
        "depth": fact.depth,
        "grant": dict(fact.grant),
        "vars": fact.vars.bare() if fact.vars else None,
    }


def _configured(state: State, fact: Any, event: Event) -> dict[str, Any]:
    version = fact.agent_version or state.agent_version
    return {"configured": event.seq, "agent_version": version, "warned": ()}


def _moved(state: State, fact: Any, event: Event) -> dict[str, Any]:
    return {"read_only": f"{MOVED} {fact.to}"}


def _turn_started(state: State, fact: Any, event: Event) -> dict[str, Any]:
    turn = OpenTurn(fact.turn, event.seq, event.at, base=state.total)
    return {
        "turn": turn,
        "settled": None,
        "status": _status(state, turn, state.calls),
        "revivals": 0,
    }


def _turn_reopened(state: State, fact: Any, event: Event) -> dict[str, Any]:
    if state.settled is None:
        return {}
    # It may be driven for as long again: it was the time, or what cost it, that ended it.
    turn = replace(state.settled, phase="opened", driven_ms=0, prose=0)
    return {
        "turn": turn,
        "settled": None,
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
        "settled": None if fact.status == "final" else state.turn,
        "calls": calls,
        "status": _status(state, None, calls),
        "revivals": 0,
    }


def _step_started(state: State, fact: Any, event: Event) -> dict[str, Any]:
    sent, answered = fact.reserved_input_tokens, fact.reserved_output_tokens
    tokens = None if sent is None or answered is None else sent + answered
    aside = Reserved(fact.reserved_usd, tokens, sent)
    changes: dict[str, Any] = {
        "reserved": {**state.reserved, step_reservation(fact.step): aside},
    }
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
    """Tell whether what a fact says of a call's spend is only the most that it can have been."""
    if fact.unknown or fact.status == "unknown":
        return True
    # Logs of the first format say it by a failed call that has usage.
    return fact.status in ("failed", "error") and any((fact.usage or {}).values())


def spend_after(state: State, fact: facts.Fact) -> Spend:
    """Return what the session itself has used once a fact is told."""
    spend = state.spend
    match fact:
        case facts.StepPut() | facts.LeafCalled():
            return spend.plus(fact.cost_usd, fact.usage, ceiling=at_ceiling(fact))
        case facts.SessionCompacted() | facts.CompactionFailed():
            if fact.usage is None and fact.cost_usd is None and not fact.unknown:
                return spend  # no model was asked
            return spend.plus(fact.cost_usd, fact.usage, ceiling=fact.unknown)
        case facts.BudgetSettled(unknown=True, child=None) if fact.reservation in state.reserved:
            # Most of a ceiling is that of the reply, which costs more.
            usage = {"input_tokens": 0, "output_tokens": fact.tokens}
            return spend.plus(fact.usd, usage, ceiling=True)
    return spend


def _driven(spend: Spend, milliseconds: int | None) -> Spend:
    return replace(spend, driven_ms=spend.driven_ms + (milliseconds or 0))


def _step_put(state: State, fact: Any, event: Event) -> dict[str, Any]:
    lost = fact.status == "unknown"
    changes: dict[str, Any] = {
        "spend": _driven(spend_after(state, fact), fact.latency_ms),
        "reserved": _without(state.reserved, step_reservation(fact.step)),
    }
    if not lost:
        changes["revivals"] = 0
        changes["counters"] = {**state.counters, "answered": state.next("answered")}
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
            cell_calls=state.calls_made,
        )
    return changes


def _message_appended(state: State, fact: Any, event: Event) -> dict[str, Any]:
    if fact.role != "observation" or state.turn is None or state.turn.phase == "asking":
        return {}
    prose = 0 if state.turn.evals or not fact.prose else state.turn.prose + 1
    return {"turn": replace(state.turn, phase="observed", prose=prose)}


def _eval_added(state: State, fact: Any, event: Event) -> dict[str, Any]:
    changes: dict[str, Any] = {
        "revivals": 0,
        "spend": _driven(state.spend, fact.elapsed_ms),
    }
    if state.turn is not None:
        changes["turn"] = replace(
            state.turn,
            evals=state.turn.evals + 1,
            driven_ms=state.turn.driven_ms + (fact.elapsed_ms or 0),
            cell_at=event.at,
            cell_calls=state.calls_made,
        )
    return changes


def _vars_checkpointed(state: State, fact: Any, event: Event) -> dict[str, Any]:
    return {"vars": fact.vars.bare()}


def _compacted(state: State, fact: Any, event: Event) -> dict[str, Any]:
    changes: dict[str, Any] = {
        "compact_from": event.seq,
        "spend": spend_after(state, fact),
        "reserved": _without(state.reserved, fact.reservation),
    }
    if fact.vars is not None:
        changes["vars"] = fact.vars.bare()
    return changes


def _compaction_failed(state: State, fact: Any, event: Event) -> dict[str, Any]:
    return {
        "spend": spend_after(state, fact),
        "reserved": _without(state.reserved, fact.reservation),
    }


def _leaf_called(state: State, fact: Any, event: Event) -> dict[str, Any]:
    lost = fact.status == "unknown"
    answered = state.counters.get("leaf_answered", 0) + (not lost)
    return {
        "counters": {"leaf_answered": answered},
        "spend": spend_after(state, fact),
        "revivals": state.revivals if lost else 0,
        "reserved": _without(state.reserved, leaf_reservation(fact.ordinal)),
    }


def _with_calls(state: State, calls: dict[str, PendingCall]) -> dict[str, Any]:
    return {"calls": calls, "status": _status(state, state.turn, calls)}


def _call_requested(state: State, fact: Any, event: Event) -> dict[str, Any]:
    runs_at_once = fact.eval is not None and fact.executor == "server" and not fact.approval
    call = PendingCall(
        call_id=fact.call_id,
        name=fact.name,
        executor=fact.executor,
        effect=fact.effect,
        seq=event.seq,
        kind=fact.kind,
        stage="dispatched" if runs_at_once and fact.kind != "child" else "requested",
        turn=fact.turn,
        eval=fact.eval,
        deadline=fact.deadline,
        child=fact.child,
        policy=fact.policy,
    )
    return _with_calls(state, {**state.calls, fact.call_id: call})


def _call_dispatched(state: State, fact: Any, event: Event) -> dict[str, Any]:
    started = {
        key: replace(state.calls[key], stage="dispatched", waits_for=None)
        for key in fact.calls
        if key in state.calls
    }
    return _with_calls(state, {**state.calls, **started})


def _call_moved(state: State, fact: Any, event: Event) -> dict[str, Any]:
    call = state.calls.get(fact.call_id)
    if call is None:
        return {}
    changes: dict[str, Any] = {}
    if isinstance(fact, facts.CallApproved):
        call = replace(call, stage="approved", waits_for=None)
    elif isinstance(fact, facts.CallSuspended):
        call = replace(
            call,
            stage="suspended",
            wait=fact.wait,
            wait_seq=event.seq,
            waits_for=fact.kind,
            deadline=fact.deadline or call.deadline,
            assignee=fact.assignee,
        )
        if fact.driven_ms and state.turn is not None:
            driven = state.turn.driven_ms + fact.driven_ms
            changes["turn"] = replace(state.turn, driven_ms=driven)
            changes["spend"] = _driven(state.spend, fact.driven_ms)
    elif isinstance(fact, facts.CallExtended):
        call = replace(call, deadline=fact.deadline)
    return changes | _with_calls(state, {**state.calls, fact.call_id: call})


def _call_resolved(state: State, fact: Any, event: Event) -> dict[str, Any]:
    calls = {key: call for key, call in state.calls.items() if key != fact.call_id}
    return _with_calls(state, calls) | {"revivals": 0}


def _head_published(state: State, fact: Any, event: Event) -> dict[str, Any]:
    return {
        "head": fact.id,
        "head_end": fact.range[1],
    }


def _lineage_added(state: State, fact: Any, event: Event) -> dict[str, Any]:
    if fact.id in state.edges:
        return {}
    derived = state.derived or (fact.type == "derivation" and fact.to_session == state.session)
    return {
        "derived": derived,
        "edges": (*state.edges, fact.id)[-EDGES_KEPT:],
        "counters": {**state.counters, "edge": state.next("edge")},
    }


def _reserved(state: State, fact: Any, event: Event) -> dict[str, Any]:
    aside = Reserved(
        fact.usd, fact.tokens, calls=fact.calls, seconds=fact.seconds, child=fact.child
    )
    return {"reserved": {**state.reserved, fact.reservation: aside}}


def _settled(state: State, fact: Any, event: Event) -> dict[str, Any]:
    changes: dict[str, Any] = {"reserved": _without(state.reserved, fact.reservation)}
    if fact.child is None:
        return changes | {"spend": spend_after(state, fact)}
    return changes | {"delegated": state.delegated + _child_spend(fact)}


def _child_spend(fact: Any) -> Spend:
    return Spend(
        usd=fact.usd or "0",
        output_tokens=fact.tokens or 0,
        held_usd=fact.held_usd or "0",
        held_tokens=fact.held_tokens,
        unknown_usd=fact.unknown_calls,
        unknown_tokens=fact.unknown_calls,
        unbounded_usd=fact.unbounded_calls,
        unbounded_tokens=fact.unbounded_calls,
        calls=fact.calls,
        driven_ms=fact.driven_ms,
    )


def _warned(state: State, fact: Any, event: Event) -> dict[str, Any]:
    return {} if fact.limit in state.warned else {"warned": (*state.warned, fact.limit)}


def _without(reserved: dict[str, Reserved], key: str | None) -> dict[str, Reserved]:
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
    latest = run_state.ArtifactVersion(fact.version, event.seq)
    return {"artifacts": {**state.artifacts, fact.node: latest}}


_HANDLERS: dict[str, Callable[[State, Any, Event], dict[str, Any]]] = {
    "session.started": _started,
    "session.revived": _revived,
    "session.stop_requested": _stop_requested,
    "session.stopped": _stopped,
    "session.failed": _failed,
    "session.compacted": _compacted,
    "session.configured": _configured,
    "session.moved": _moved,
    "compaction.failed": _compaction_failed,
    "turn.started": _turn_started,
    "turn.put": _turn_put,
    "turn.reopened": _turn_reopened,
    "step.started": _step_started,
    "step.put": _step_put,
    "message.appended": _message_appended,
    "eval.added": _eval_added,
    "vars.checkpointed": _vars_checkpointed,
    "leaf.called": _leaf_called,
    "call.requested": _call_requested,
    "call.dispatched": _call_dispatched,
    "call.approved": _call_moved,
    "call.suspended": _call_moved,
    "call.extended": _call_moved,
    "call.resolved": _call_resolved,
    "head.published": _head_published,
    "lineage.added": _lineage_added,
    "budget.reserved": _reserved,
    "budget.settled": _settled,
    "budget.warned": _warned,
    "artifact.written": _artifact_written,
}
