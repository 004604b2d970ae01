"""The log's one write path, as far as it is pure: from facts to a checked, stamped, folded batch.

Every store calls `extend` inside its transaction with the state it holds for the present tip, then
makes the batch durable as a whole. What is legal, what numbers entities get, how heads and edges
are computed and which payloads must exist is decided here, once, for all stores.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from holdfast.core import facts, heads
from holdfast.core.errors import HeadConflict, InvalidInput, InvalidRef, ReadOnlySession
from holdfast.core.events import Event, slots_of, stamp
from holdfast.core.facts import Fact, HeadPublished
from holdfast.core.fold import apply
from holdfast.core.heads import EdgeDraft, HeadDraft
from holdfast.core.ids import check_key
from holdfast.core.payloads import Slot, check_bytes, manifest_slots
from holdfast.core.state import State
from holdfast.core.status import check_legal

_NUMBERED: dict[type[Fact], str] = {
    facts.MessageAppended: "message",
    facts.SessionCompacted: "message",
    facts.TurnStarted: "turn",
    facts.StepStarted: "step",
    facts.EvalAdded: "eval",
    facts.LeafCalled: "leaf",
}
_OWN = (HeadPublished, facts.LineageAdded)


class Batch(msgspec.Struct, frozen=True):
    """What one append makes durable, as a whole or not at all."""

    events: tuple[Event, ...]
    state: State
    head: HeadPublished | None
    payloads: dict[str, Slot]
    """Payloads whose bytes came with the append, by id; inline values are not among them."""
    refs: dict[str, Slot]
    """All payloads that the events refer to, by id, manifests followed as far as bytes are here."""


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
    if state.read_only is not None:
        raise ReadOnlySession(
            f"session {state.session!r} is read-only here: {state.read_only}; upgrade to drive it"
        )
    if not new and head is None and not edges:
        raise InvalidInput("an append needs at least one event")
    for fact in new:
        if isinstance(fact, _OWN):
            raise InvalidInput(f"{fact.TYPE} is written by the log itself: pass head= or edges=")
    events: list[Event] = []
    state = _add(state, new, at, events)
    own: list[Fact] = []
    published = _publish(state, head)
    if published is not None:
        own.append(published)
    own += [heads.relate(edge, published.id if published else None) for edge in edges]
    state = _add(state, own, at, events)
    slots = [*payloads]
    for fact in [*new, *own]:
        slots += slots_of(fact)
    given, refs = _payloads(slots)
    return Batch(tuple(events), state, published, given, refs)


def _add(state: State, new: Sequence[Fact], at: str, events: list[Event]) -> State:
    """Add the events of these facts; return the state after them."""
    for fact in new:
        check_fact(state, fact)
        event = stamp(state.digest, state.session, state.seq + 1, at, fact)
        try:
            state = apply(state, event, fact)
        except (ValueError, TypeError, ArithmeticError, LookupError) as error:
            raise InvalidInput(f"{fact.TYPE} cannot be folded: {error!r}") from error
        events.append(event)
    return state


def _publish(state: State, draft: HeadDraft | None) -> HeadPublished | None:
    if draft is None:
        return None
    if draft.expected_basis not in (heads.ANY_BASIS, state.head):
        raise HeadConflict(
            f"the current head of {state.session!r} is {state.head!r}, not the expected "
            f"{draft.expected_basis!r}; read it again and decide what to build on",
            current=state.head,
        )
    return heads.publish(
        draft, state.session, state.head, state.head_end + 1, state.seq, state.digest
    )


def check_fact(state: State, fact: Fact) -> None:
    """Refuse a fact that does not follow from the state before it."""
    check_legal(state.status, fact.TYPE)
    counter = _NUMBERED.get(type(fact))
    if counter is not None:
        number = getattr(fact, counter)
        if number != state.next(counter):
            raise InvalidInput(
                f"{fact.TYPE} has {counter} {number}, but the next {counter} of session "
                f"{state.session!r} is {state.next(counter)}"
            )
    if isinstance(fact, facts.TurnPut | facts.StepPut):
        _check_open(state, fact)
    call_id = getattr(fact, "call_id", None)
    if call_id is None or isinstance(fact, facts.LineageAdded | facts.InputAdmitted):
        return
    check_key(call_id, "call id")
    if isinstance(fact, facts.CallRequested):
        if call_id in state.calls:
            raise InvalidInput(f"call {call_id!r} is open already; a call id is used once")
    elif call_id not in state.calls:
        raise InvalidInput(f"call {call_id!r} is not open: it has its one outcome or never began")


def _check_open(state: State, fact: facts.TurnPut | facts.StepPut) -> None:
    turn = state.turn
    if turn is None or turn.turn != fact.turn:
        raise InvalidInput(f"{fact.TYPE} is about turn {fact.turn}, which is not open")
    if isinstance(fact, facts.StepPut) and turn.step != fact.step:
        raise InvalidInput(f"{fact.TYPE} is about step {fact.step}, not the present {turn.step}")


def _payloads(slots: Iterable[Slot]) -> tuple[dict[str, Slot], dict[str, Slot]]:
    given: dict[str, Slot] = {}
    refs: dict[str, Slot] = {}
    queue = list(slots)
    for item in queue:
        if item.erased is not None:
            raise InvalidRef(f"payload {item.id!r} was erased and cannot be referred to again")
    while queue:
        item = queue.pop()
        if item.erased is not None:
            continue  # a manifest may say of a part that it was erased
        if item.inline:
            if item.data is not None:
                check_bytes(item, item.data)
            continue
        seen = given.get(item.id)
        # Equal bytes may stand as a user's text too: only the manifest says what it refers to.
        if seen is not None and (item.encoding != "manifest" or seen.encoding == "manifest"):
            continue
        if item.id not in refs or item.encoding == "manifest":
            refs[item.id] = item.bare()
        if item.data is not None:
            check_bytes(item, item.data)
            given[item.id] = item
            queue.extend(manifest_slots(item, item.data))
    return given, refs
