"""Replay: the proof that a stored log could have been written through `append`.

Digests prove that a log is unaltered; replay proves that it makes sense: it begins with the
session's start, every fact is legal where it stands, entities are numbered without gaps, and each
head and edge carries the id of its content and follows from the events before it. Verify and
import share it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from holdfast.core import heads
from holdfast.core.errors import Corruption, HoldfastError, InvalidInput, check_kind
from holdfast.core.events import Event, check_digest
from holdfast.core.facts import Fact, HeadPublished, LineageAdded, SessionStarted
from holdfast.core.fold import apply
from holdfast.core.ids import check_content_id, check_id
from holdfast.core.log import check_fact
from holdfast.core.payloads import walk
from holdfast.core.state import State, empty


@dataclass(frozen=True, slots=True)
class Copy:
    """A session's whole log that has proven itself, as an import brings it; `prove` makes one.

    `payloads` are the values that its events lead to, by id; whoever stores them checks their
    bytes. `erased` names payloads inside manifests that the original erased, with time and rule.
    """

    session: str
    events: Sequence[Event]
    payloads: Mapping[str, bytes] = field(default_factory=dict)
    erased: Mapping[str, tuple[str, str]] = field(default_factory=dict)


def prove(
    session_id: str,
    events: Sequence[Event],
    payloads: Mapping[str, bytes] | None = None,
    erased: Mapping[str, tuple[str, str]] | None = None,
) -> Copy:
    """Return a copy of a log that could have been written here; name the first event that is wrong.

    Its cost grows with the log: call it in a thread where an event loop must go on.
    """
    check_id(session_id)
    check_kind(events, Sequence, "log")
    for number, event in enumerate(events, 1):
        check_kind(event, Event, "event")
        try:
            msgspec.convert(msgspec.structs.asdict(event), Event)
        except (msgspec.ValidationError, UnicodeEncodeError) as error:
            raise Corruption(
                f"event {number} of session {session_id!r} is none: {error}",
                session=session_id,
                seq=number,
            ) from error
    replay(empty(session_id), events)
    given = {} if payloads is None else payloads
    marks = {} if erased is None else erased
    check_kind(given, Mapping, "collection of payloads by id")
    for payload_id, data in given.items():
        check_content_id(payload_id)
        check_kind(data, bytes, "payload")
    check_kind(marks, Mapping, "collection of erasures by payload id")
    for payload_id, mark in marks.items():
        check_content_id(payload_id)
        if type(mark) is not tuple or [type(part) for part in mark] != [str, str]:
            raise InvalidInput(f"{ascii(mark)[:80]} is not an erasure; pass its time and its rule")
    return Copy(session_id, events, given, marks)


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
        # What follows something that only a newer release understands cannot be judged here.
        if fact is not None and state.read_only is None:
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
