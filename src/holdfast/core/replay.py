"""Replay: the proof that a stored log could have been written through `append`.

Digests prove that a log is unaltered; replay proves that it makes sense: it begins with the
session's start, every fact is legal where it stands, entities are numbered without gaps, and each
head and edge carries the id of its content and follows from the events before it. Verify and
import share it.
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.core import heads
from holdfast.core.errors import Corruption, HoldfastError, InvalidInput
from holdfast.core.events import Event, check_digest
from holdfast.core.facts import Fact, HeadPublished, LineageAdded, SessionStarted
from holdfast.core.fold import apply
from holdfast.core.log import check_fact
from holdfast.core.payloads import walk
from holdfast.core.state import State


def replay(state: State, events: Iterable[Event]) -> State:
    """Return the state after events; raise Corruption naming the first that is wrong."""
    for event in events:
        state = step(state, event)
    return state


def step(state: State, event: Event) -> State:
    """Return the state after one stored event, once its digest and its meaning are checked."""
    if event.session != state.session or event.seq != state.seq + 1:
        raise _wrong(event, f"event {state.seq + 1} of {state.session!r} belongs in its place")
    try:
        check_digest(state.digest, event)
    except InvalidInput as error:
        raise _wrong(event, str(error)) from error
    return step_meaning(state, event)


def step_meaning(state: State, event: Event) -> State:
    """Return the state after one stored event, once its meaning is checked."""
    try:
        for _ in walk(event.data):
            pass
        fact = event.fact() if event.known else None
        if fact is not None:
            _check(state, fact, event)
        return apply(state, event, fact)
    except Corruption:
        raise
    except (HoldfastError, ValueError, TypeError, ArithmeticError, LookupError) as error:
        raise _wrong(event, str(error) or repr(error)) from error


def _check(state: State, fact: Fact, event: Event) -> None:
    if (event.seq == 1) != isinstance(fact, SessionStarted):
        raise InvalidInput("a log begins with session.started and has it once")
    check_fact(state, fact)
    if isinstance(fact, HeadPublished | LineageAdded) and heads.content_id(fact) != fact.id:
        raise InvalidInput(f"its id {fact.id} is not that of its content")
    if isinstance(fact, HeadPublished):
        wanted = (state.session, state.head, [state.head_end + 1, state.seq], state.digest)
        if (fact.session, fact.basis, fact.range, fact.digest) != wanted:
            raise InvalidInput(f"head {fact.id} does not follow from the events before it")


def _wrong(event: Event, reason: str) -> Corruption:
    return Corruption(
        f"event {event.seq} of session {event.session!r} ({event.type}): {reason}",
        session=event.session,
        seq=event.seq,
    )
