"""The log's one write path, as far as it is pure: from facts to a checked, stamped, folded batch.

Every store calls `extend` inside its transaction with the state it holds for the present tip, then
makes the batch durable as a whole. What is legal, what numbers entities get, how heads and edges
are computed and which payloads must exist is decided here, once, for all stores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
from msgspec import structs

from holdfast.core import facts, heads, run_facts, run_rules
from holdfast.core.errors import (
    HeadConflict,
    InvalidInput,
    InvalidRef,
    ReadOnlySession,
    check_kind,
)
from holdfast.core.events import Event, stamp
from holdfast.core.facts import Fact, HeadPublished
from holdfast.core.fold import OPEN_TURN_STATUSES, apply
from holdfast.core.forms import check_type, slots_of
from holdfast.core.heads import EdgeDraft, HeadDraft
from holdfast.core.ids import check_content_id, check_id, check_key
from holdfast.core.payloads import (
    INLINE_BYTES,
    Slot,
    check_bytes,
    check_size,
    check_slot,
    manifest_slots,
)
from holdfast.core.state import MOVED, State, is_model_call
from holdfast.core.status import check_legal
from holdfast.core.values import MAX_INTEGER

_OWN = frozenset({HeadPublished, facts.LineageAdded})
_BOUNDARIES = frozenset({facts.TurnPut, facts.SessionCompacted, run_facts.RunFinished})
_MARKED = _OWN | _BOUNDARIES
_ABOUT_CALLS = frozenset(
    cls
    for cls in vars(facts).values()
    if isinstance(cls, type) and issubclass(cls, Fact) and "call_id" in cls.__dataclass_fields__
) - {facts.LineageAdded, facts.InputAdmitted}


class Draft(msgspec.Struct, frozen=True, gc=False):
    """The events that an append makes, before a look at the values they carry."""

    events: list[Event]
    state: State
    head: HeadPublished | None
    slots: list[Slot]
    """Those that were given beside the facts, then those of the facts."""
    given: int
    """How many were given beside the facts."""


class Batch(msgspec.Struct, frozen=True, gc=False):
    """What one append makes durable, as a whole or not at all."""

    events: tuple[Event, ...]
    state: State
    head: HeadPublished | None
    payloads: dict[str, Slot]
    """Payloads whose bytes came with the append, by id; inline values are not among them."""
    refs: dict[str, Slot]
    """All payloads that the events refer to, by id, manifests followed as far as bytes are here."""
    unreferenced: frozenset[str] = frozenset()
    """Payloads that came with the append, and what they lead to, although no event leads there."""


def values_in(
    new: Sequence[Fact], head: HeadDraft | None = None, payloads: Iterable[Slot] = ()
) -> list[Slot]:
    """Return all values that an append brings or refers to, before anything else is known of it."""
    slots = [*payloads, *(item for fact in new for item in slots_of(fact))]
    if head is not None:
        check_kind(head, HeadDraft, "head")
        slots += [item for item in (head.vars, head.final) if item is not None]
    for item in slots:
        check_slot(item)
    return slots


def extend(
    state: State,
    new: Sequence[Fact],
    *,
    at: str,
    head: HeadDraft | None = None,
    edges: Sequence[EdgeDraft] = (),
    payloads: Iterable[Slot] = (),
) -> Batch:
    """Return the batch that an append of these facts is; raise before anything is written."""
    return complete(draft(state, new, at, head, edges, payloads))


def draft(
    state: State,
    new: Sequence[Fact],
    at: str,
    head: HeadDraft | None = None,
    edges: Sequence[EdgeDraft] = (),
    payloads: Iterable[Slot] = (),
) -> Draft:
    """Return the events of an append; its cost does not grow with the values they carry."""
    if state.read_only is not None:
        raise ReadOnlySession(
            f"session {state.session!r} is read-only here: {state.read_only}; "
            f"{'drive it there' if state.read_only.startswith(MOVED) else 'upgrade to drive it'}"
        )
    if not new and head is None and not edges:
        raise InvalidInput("an append needs at least one event")
    events: list[Event] = []
    slots = [*payloads]
    for item in slots:
        check_slot(item)
    given = len(slots)
    bounds = False
    for fact in new:
        if type(fact) in _MARKED:
            if type(fact) in _OWN:
                raise InvalidInput(
                    f"{fact.TYPE} is written by the log itself: pass head= or edges="
                )
            bounds = True
        check_settled(state, fact)
        state = _add(state, fact, at, events, slots)
    if head is not None:
        check_kind(head, HeadDraft, "head")
    if bounds:
        _check_published(new, head)
    published = None
    if head is not None:
        published = _publish(state, head)
        state = _add(state, published, at, events, slots)
    for edge in edges:
        check_kind(edge, EdgeDraft, "edge")
        relation = heads.relate(edge, published.id if published else None)
        state = _add(state, relation, at, events, slots)
    return Draft(events, state, published, slots, given)


def complete(drafted: Draft) -> Batch:
    """Return the batch of a draft, its values checked against their ids."""
    slots = drafted.slots
    given, refs, parts = _payloads(slots)
    unreferenced: frozenset[str] = frozenset()
    if drafted.given:
        reached = [item.id for item in slots[drafted.given :]]
        for payload_id in reached:  # which grows by what the manifests among them lead to
            reached += parts.pop(payload_id, ())
        unreferenced = frozenset(refs.keys() - reached)
    return Batch(tuple(drafted.events), drafted.state, drafted.head, given, refs, unreferenced)


def _add(state: State, fact: Fact, at: str, events: list[Event], slots: list[Slot]) -> State:
    """Add a fact's event and its slots; return the state after it."""
    check_fact(state, fact)
    event = stamp(state.digest, state.session, state.seq + 1, at, fact, slots)
    events.append(event)
    try:
        return apply(state, event, fact)
    except (ValueError, TypeError, ArithmeticError, LookupError) as error:
        raise InvalidInput(f"{fact.TYPE} cannot be folded: {error!r}") from error


def _publish(state: State, draft: HeadDraft) -> HeadPublished:
    if draft.expected_basis not in (heads.ANY_BASIS, state.head):
        raise HeadConflict(
            f"the current head of {state.session!r} is {state.head!r}, not the expected "
            f"{draft.expected_basis!r}; read it again and decide what to build on",
            current=state.head,
        )
    return heads.publish(
        draft, state.session, state.head, state.head_end + 1, state.seq, state.digest
    )


def _check_published(new: Sequence[Fact], head: HeadDraft | None) -> None:
    """Refuse an end of a turn or a run, or a compaction, that does not bring its head along."""
    for fact in new:
        match fact:
            case facts.TurnPut(status="final"):
                kind = "turn_final"
            case facts.SessionCompacted():
                kind = "compaction"
            case run_facts.RunFinished():
                kind = "run_final"
            case _:
                continue
        if head is None or head.kind != kind:
            raise InvalidInput(
                f"{fact.TYPE} is published by a head of kind {kind!r} in the same append: pass "
                "it as head="
            )


def _check_head(state: State, fact: HeadPublished) -> None:
    """Refuse a head anywhere but at a boundary; a turn that failed or is open is not one."""
    if fact.kind == "turn_final":
        ended = state.turn is None and state.last_turn == "final"
        if not ended or fact.turn != state.counters.get("turn", 0):
            raise InvalidInput(
                f"a head of kind 'turn_final' for turn {fact.turn} does not follow its final "
                f"outcome: the last turn of session {state.session!r} is "
                f"{state.counters.get('turn', 0)}, "
                f"{'open' if state.turn is not None else state.last_turn}"
            )
    elif fact.kind == "run_final":
        if state.run is None or state.run.ended != state.seq or state.run.status != "finished":
            raise InvalidInput(
                "a head of kind 'run_final' follows run.finished, in the same append; that is not "
                f"the last event of session {state.session!r}"
            )
    elif state.compact_from is None or state.compact_from <= state.head_end:
        raise InvalidInput(
            f"a head of kind {fact.kind!r} needs a session.compacted since the last head of "
            f"session {state.session!r}"
        )


def check_fact(state: State, fact: Fact) -> None:
    """Refuse a fact that does not follow from the state before it."""
    cls = type(fact)
    if cls not in _KNOWN:
        check_type(cls)
        _KNOWN.add(cls)
    if state.status not in cls.LEGAL:
        check_legal(state.status, fact.TYPE, cls.LEGAL)
    counter = cls.NUMBERED
    if counter is not None and getattr(fact, counter) != state.next(counter):
        raise InvalidInput(
            f"{fact.TYPE} has {counter} {getattr(fact, counter)}, but the next {counter} of "
            f"session {state.session!r} is {state.next(counter)}"
        )
    check = _CHECKS.get(cls)
    if check is not None:
        check(state, fact)


def check_settled(state: State, fact: Fact) -> None:
    """Refuse an end of a turn or a session while a call of it is open.

    Not part of `check_fact`: logs of the first format hold such turns, and stay readable.
    """
    match fact:
        case facts.TurnPut() if fact.status not in OPEN_TURN_STATUSES:
            turn: int | None = fact.turn
        case facts.SessionStopped() | facts.SessionFailed():
            turn = None
        case _:
            return
    unsettled = [call.call_id for call in state.calls_of(turn)]
    if state.turn is not None and turn in (None, state.turn.turn):
        unsettled += [key for key in state.reserved if is_model_call(key)]
    if unsettled:
        raise InvalidInput(
            f"{fact.TYPE} would settle session {state.session!r} while {', '.join(unsettled)} "
            "has no outcome; bring each outcome in the same append, before it"
        )


def _check_start(state: State, fact: facts.SessionStarted) -> None:
    """Refuse a session that no store could show or nobody could find the way back from."""
    check_id(fact.tenant, "tenant")
    check_id(fact.agent, "agent name")
    for relation in (fact.parent, fact.origin):
        if isinstance(relation, dict) and "session" in relation:
            check_id(relation["session"])


def _check_edge(state: State, fact: facts.LineageAdded) -> None:
    check_id(fact.from_session)
    check_id(fact.to_session)
    for head in (fact.from_head, fact.to_head):
        if head is not None:
            check_content_id(head)
    if fact.call_id is not None:
        check_key(fact.call_id, "call id")


def _check_call(state: State, fact: Any) -> None:
    call_id = fact.call_id
    if call_id is None:
        return
    check_key(call_id, "call id")
    if isinstance(fact, facts.CallRequested):
        if call_id in state.calls:
            raise InvalidInput(f"call {call_id!r} is open already; a call id is used once")
    elif call_id not in state.calls:
        raise InvalidInput(f"call {call_id!r} is not open: it has its one outcome or never began")


def _check_dispatch(state: State, fact: facts.CallDispatched) -> None:
    if not fact.calls:
        raise InvalidInput("call.dispatched names no call; name those that start")
    for call_id in fact.calls:
        call = state.calls.get(check_key(call_id, "call id"))
        if call is None:
            raise InvalidInput(f"call {call_id!r} is not open; it cannot be dispatched")


def _check_wait(state: State, fact: facts.CallSuspended) -> None:
    _check_call(state, fact)
    due = state.calls[fact.call_id].wait + 1
    if fact.wait != due:
        raise InvalidInput(
            f"call.suspended has wait {fact.wait}, but the next wait of call {fact.call_id!r} is "
            f"{due}"
        )


def _check_reopened(state: State, fact: facts.TurnReopened) -> None:
    if state.settled is None or state.settled.turn != fact.turn:
        raise InvalidInput(
            f"turn {fact.turn} of session {state.session!r} cannot be reopened: only the last "
            "turn can, if it ended without a final value"
        )


def _check_open(state: State, fact: facts.TurnPut | facts.StepPut) -> None:
    turn = state.turn
    if turn is None or turn.turn != fact.turn:
        raise InvalidInput(f"{fact.TYPE} is about turn {fact.turn}, which is not open")
    if isinstance(fact, facts.StepPut) and turn.step != fact.step:
        raise InvalidInput(f"{fact.TYPE} is about step {fact.step}, not the present {turn.step}")


def _check_no_run(state: State, fact: facts.TurnStarted) -> None:
    if state.run is not None:
        raise InvalidInput(
            f"session {state.session!r} is a workflow run; its agents have turns in sessions of "
            "their own"
        )


_CHECKS: dict[type[Fact], Callable[[State, Any], None]] = {
    **dict.fromkeys(_ABOUT_CALLS, _check_call),
    facts.CallSuspended: _check_wait,
    facts.CallDispatched: _check_dispatch,
    facts.TurnReopened: _check_reopened,
    facts.TurnPut: _check_open,
    facts.StepPut: _check_open,
    HeadPublished: _check_head,
    facts.SessionStarted: _check_start,
    facts.LineageAdded: _check_edge,
    facts.TurnStarted: _check_no_run,
    **{cls: run_rules.check for cls in run_facts.FACTS},
}


_KNOWN: set[type[Fact]] = set()
"""Fact types that were found to be ours."""


def _payloads(
    slots: Sequence[Slot],
) -> tuple[dict[str, Slot], dict[str, Slot], dict[str, list[str]]]:
    """Return what comes with its bytes, what is referred to, and what manifests lead to."""
    given: dict[str, Slot] = {}
    refs: dict[str, Slot] = {}
    inner: dict[str, list[str]] = {}
    queue = _apart(slots)
    at_hand = {item.id: item.data for item in queue if item.data is not None}
    while queue:
        item = queue.pop()
        if item.data is None:
            _check_bare(item)
            if item.encoding == "manifest" and item.id in at_hand:
                item = structs.replace(item, data=at_hand[item.id])
        if item.id in refs:
            check_size(item, refs[item.id].size)
        seen = given.get(item.id)
        # Equal bytes may stand as a user's text too: only the manifest says what it refers to.
        if seen is not None and (item.encoding != "manifest" or seen.encoding == "manifest"):
            continue
        if item.id not in refs or item.encoding == "manifest":
            refs[item.id] = item
        if item.data is not None:
            check_bytes(item, item.data)
            given[item.id] = item
            if item.encoding == "manifest":
                # It may say of a part that it was erased.
                parts = manifest_slots(item, item.data)
                queue += [part for part in parts if part.erased is None]
                inner[item.id] = [part.id for part in parts]
    return given, refs, inner


def _apart(slots: Iterable[Slot]) -> list[Slot]:
    """Return the values that are payloads of their own; refuse what records cannot hold."""
    apart: list[Slot] = []
    for item in slots:
        check_slot(item)
        if item.erased is not None:
            raise InvalidRef(f"payload {item.id!r} was erased and cannot be referred to again")
        if item.size > INLINE_BYTES or not item.inline:
            apart.append(item)
        elif item.data is not None:
            check_bytes(item, item.data)
    return apart


def _check_bare(item: Slot) -> None:
    """Refuse a ref that could not be read back; one with its bytes proves itself."""
    # A store may know the payload by its bytes and never look at how its id is spelled.
    check_content_id(item.id)
    if not 0 <= item.size <= MAX_INTEGER:
        raise InvalidRef(f"{item!r} has a size that no payload has")
