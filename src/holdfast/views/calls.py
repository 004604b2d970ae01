"""Calls as readers see them: request, stage and outcome."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from holdfast.core import facts
from holdfast.core.events import Event
from holdfast.core.facts import Fact
from holdfast.core.payloads import Slot
from holdfast.core.state import State
from holdfast.stores.port import SessionStore

CALL_TYPES = (
    facts.CallDispatched.TYPE,
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
    kind: str  # tool, leaf, child, question, budget, node
    stage: str  # requested, approved, dispatched, denied, suspended, resolved
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
    waits: facts.CallSuspended | None
    """The wait that it is in: for whom, until when, with which question."""
    requested: facts.CallRequested
    resolved: facts.CallResolved | None


def call_view(seq: int, at: str, requested: facts.CallRequested, later: Sequence[Fact]) -> CallView:
    """Return the view of a call from its request and what was said of it later, in order."""
    stage, deadline = "requested", requested.deadline
    waits: facts.CallSuspended | None = None
    resolved: facts.CallResolved | None = None
    for fact in later:
        match fact:
            case facts.CallApproved():
                stage, waits = "approved", None
            case facts.CallDispatched():
                stage, waits = "dispatched", None
            case facts.CallDenied():
                stage = "denied"
            case facts.CallSuspended():
                stage, waits, deadline = "suspended", fact, fact.deadline or deadline
            case facts.CallExtended():
                deadline = fact.deadline
            case facts.CallResolved():
                stage, waits, resolved = "resolved", None, fact
    return CallView(
        seq=seq,
        at=at,
        call_id=requested.call_id,
        name=requested.name,
        executor=requested.executor,
        effect=requested.effect,
        kind=requested.kind,
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
        waits=waits,
        requested=requested,
        resolved=resolved,
    )


def said_of(event: Event) -> list[str]:
    """Return the ids of the calls that an event is about."""
    if event.type == facts.CallDispatched.TYPE:
        return [call_id for call_id in event.data.get("calls", []) if isinstance(call_id, str)]
    call_id = event.data.get("call_id")
    return [call_id] if isinstance(call_id, str) else []


async def read_later(
    store: SessionStore, session_id: str, after: int, wanted: Iterable[str]
) -> dict[str, list[Fact]]:
    """Return what the log says of calls after a position, in order, until all have an outcome."""
    said: dict[str, list[Fact]] = {call_id: [] for call_id in wanted}
    unsettled = set(said)
    while unsettled and (
        page := await store.read_events(session_id, after=after, types=CALL_TYPES)
    ):
        for event in page:
            for call_id in said_of(event) if event.known else []:
                if call_id in said:
                    said[call_id].append(event.fact())
                if event.type == facts.CallResolved.TYPE:
                    unsettled.discard(call_id)
        after = page[-1].seq
    return said


async def pending_calls(store: SessionStore, state: State) -> list[CallView]:
    """Return the calls of a session that have no outcome, oldest first."""
    calls = sorted(state.calls.values(), key=lambda item: item.seq)
    if not calls:
        return []
    said = await read_later(store, state.session, calls[0].seq, state.calls)
    found: list[CallView] = []
    for call in calls:
        for event in await store.read_events(
            state.session, after=call.seq - 1, before=call.seq + 1
        ):
            requested = event.fact() if event.known else None
            if isinstance(requested, facts.CallRequested):
                found.append(call_view(event.seq, event.at, requested, said[call.call_id]))
    return [view for view in found if view.resolved is None]
