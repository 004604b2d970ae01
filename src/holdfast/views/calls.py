"""Calls as readers see them: what was asked, how far it got, what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from holdfast.core import facts
from holdfast.core.facts import Fact
from holdfast.core.payloads import Slot
from holdfast.core.state import State
from holdfast.stores.port import SessionStore

CALL_TYPES = (
    facts.CallApproved.TYPE,
    facts.CallDenied.TYPE,
    facts.CallSuspended.TYPE,
    facts.CallExtended.TYPE,
    facts.CallResolved.TYPE,
)
"""The types of what is said of a call after it was requested."""


@dataclass(frozen=True, slots=True)
class CallView:
    """A call: what was asked, its stage and its outcome."""

    seq: int
    at: str
    call_id: str
    name: str
    executor: str
    effect: str
    stage: str  # requested, approved, denied, suspended, resolved
    outcome: str | None
    turn: int | None
    step: int | None
    eval: int | None
    deadline: str | None
    child: str | None
    arguments: Slot
    result: Slot | None
    error: Slot | None
    latency_ms: int | None
    requested: facts.CallRequested
    resolved: facts.CallResolved | None


def call_view(seq: int, at: str, requested: facts.CallRequested, later: Sequence[Fact]) -> CallView:
    """Return the view of a call from its request and what was said of it later, in order."""
    stage, deadline = "requested", requested.deadline
    resolved: facts.CallResolved | None = None
    for fact in later:
        match fact:
            case facts.CallApproved():
                stage = "approved"
            case facts.CallDenied():
                stage = "denied"
            case facts.CallSuspended():
                stage, deadline = "suspended", fact.deadline or deadline
            case facts.CallExtended():
                deadline = fact.deadline
            case facts.CallResolved():
                stage, resolved = "resolved", fact
    return CallView(
        seq=seq,
        at=at,
        call_id=requested.call_id,
        name=requested.name,
        executor=requested.executor,
        effect=requested.effect,
        stage=stage,
        outcome=None if resolved is None else resolved.outcome,
        turn=requested.turn,
        step=requested.step,
        eval=requested.eval,
        deadline=deadline,
        child=requested.child,
        arguments=requested.arguments,
        result=None if resolved is None else resolved.result,
        error=None if resolved is None else resolved.error,
        latency_ms=None if resolved is None else resolved.latency_ms,
        requested=requested,
        resolved=resolved,
    )


async def pending_calls(store: SessionStore, state: State) -> list[CallView]:
    """Return the calls of a session that have no outcome, oldest first."""
    found: list[CallView] = []
    for call in sorted(state.calls.values(), key=lambda item: item.seq):
        for event in await store.read_events(
            state.session, after=call.seq - 1, before=call.seq + 1
        ):
            requested = event.fact() if event.known else None
            if isinstance(requested, facts.CallRequested):
                view = call_view(event.seq, event.at, requested, ())
                found.append(replace(view, stage=call.stage, deadline=call.deadline))
    return found
