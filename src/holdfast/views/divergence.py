"""Where the histories of two sessions part: their first divergence.

A session's history is what it went through, what a fork inherited included: messages, replies,
cells, calls and outcomes in order. Times, usage, ids and lost model calls are left out, as two runs
of the same thing differ in them. Values are compared by content id, so no payload is read until the
two differ, and what a fork shares with its source is not read twice.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass, replace
from typing import Any

from holdfast.core import facts
from holdfast.core.errors import SessionDeleted, SessionNotFound
from holdfast.core.events import Event
from holdfast.core.payloads import Slot
from holdfast.stores.port import SessionStore
from holdfast.views.lineage import head_end
from holdfast.views.values import value_or_erased

PAGE_EVENTS = 500
LONGEST_LINE = 100
"""How many sources of sources are followed; imports may name each other in a cycle."""


@dataclass(frozen=True, slots=True)
class Moment:
    """One thing that happened, and where the log says so."""

    session: str
    seq: int
    kind: str  # turn, message, reply, observation, step, cell, leaf, call, compaction, outcome
    turn: int | None
    content: tuple[tuple[str, Any], ...]
    """What is compared: names with plain values and slots."""


@dataclass(frozen=True, slots=True)
class Side:
    """One session at the divergence; `moment` is None where its history ends before it."""

    session: str
    moment: Moment | None
    values: dict[str, Any]
    """What differs, read."""


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where two sessions part: `common` counts what they share, `one` and `other` differ."""

    relation: str  # same, fork, source, siblings, unrelated
    ancestor: str | None
    common: int
    turns: int
    last: Moment | None
    one: Side | None
    other: Side | None

    @property
    def diverges(self) -> bool:
        """Tell whether the two differ at all."""
        return self.one is not None


@dataclass(frozen=True, slots=True)
class _Stretch:
    """A part of a session's log: the events after a position, up to another or to the end."""

    session: str
    until: int | None
    after: int = 0


@dataclass(frozen=True, slots=True)
class _Parting:
    """Two histories where they part: what they share, and what each goes on with."""

    relation: str
    ancestor: str | None
    common: int
    turns: int
    last: Moment | None
    one: Moment | None
    other: Moment | None
    left: AsyncIterator[Moment]
    right: AsyncIterator[Moment]


async def divergence(
    store: SessionStore, one: str, other: str, *, without: Collection[str] = ()
) -> Divergence:
    """Return where the histories of two sessions part; moments `without` are not compared."""
    found = await _parting(store, one, other, without)
    a, b = found.one, found.other
    sides: tuple[Side | None, Side | None] = None, None
    if a is not None or b is not None:
        sides = await _side(store, one, a, b), await _side(store, other, b, a)
    return Divergence(found.relation, found.ancestor, found.common, found.turns, found.last, *sides)


async def beyond(
    store: SessionStore, one: str, other: str, *, limit: int = 100
) -> tuple[list[Moment], list[Moment]]:
    """Return what two sessions went through from their first difference on, some of each."""
    found = await _parting(store, one, other, ())
    sides = []
    for first, rest in ((found.one, found.left), (found.other, found.right)):
        side = [] if first is None else [first]
        while side and len(side) < limit and (moment := await anext(rest, None)) is not None:
            side.append(moment)
        sides.append(side)
    return sides[0], sides[1]


async def moment_values(store: SessionStore, moment: Moment) -> dict[str, Any]:
    """Return what a moment is compared by, read."""
    return (await _side(store, moment.session, moment, None)).values


async def _parting(store: SessionStore, one: str, other: str, without: Collection[str]) -> _Parting:
    first, second = await _line(store, one), await _line(store, other)
    relation, ancestor = _relation(first, second)
    shared, first, second = _without_shared(first, second)
    common, turns, last = 0, 0, None
    async for moment in _moments(store, shared):
        common, turns, last = common + 1, turns + (moment.kind == "turn"), moment
    left = aiter(_compared(_moments(store, first), without))
    right = aiter(_compared(_moments(store, second), without))
    while True:
        a, b = await anext(left, None), await anext(right, None)
        if a is None or b is None or (a.kind, a.content) != (b.kind, b.content):
            return _Parting(relation, ancestor, common, turns, last, a, b, left, right)
        common, turns, last = common + 1, turns + (a.kind == "turn"), a


async def _compared(
    moments: AsyncIterator[Moment], without: Collection[str]
) -> AsyncIterator[Moment]:
    async for moment in moments:
        if moment.kind not in without:
            yield moment


async def _line(store: SessionStore, session_id: str) -> list[_Stretch]:
    """Return the stretches of logs that make up a session's history, oldest first.

    A source that is not in the store is left out: the history begins with the fork then.
    """
    stretches = [_Stretch(session_id, None)]
    met = {session_id}
    while len(stretches) < LONGEST_LINE:
        origin = (await store.load_state(stretches[0].session)).origin
        source = None if origin is None else str(origin["session"])
        if origin is None or source is None or source in met:
            break
        try:
            until = await _position(store, source, origin)
        except (SessionNotFound, SessionDeleted):
            break
        if until is None:
            break
        met.add(source)
        stretches.insert(0, _Stretch(source, until))
    return stretches


async def _position(store: SessionStore, source: str, origin: dict[str, str | int]) -> int | None:
    """Return the position of the source at which it was forked."""
    seq = origin.get("seq")
    if isinstance(seq, int):
        await store.session_info(source)
        return seq
    return await head_end(store, source, str(origin["head"]))


def _relation(first: list[_Stretch], second: list[_Stretch]) -> tuple[str, str | None]:
    """Return how the first session is related to the second, and what both came from."""
    one, other = first[-1].session, second[-1].session
    before, after = [s.session for s in first], [s.session for s in second]
    if one == other:
        return "same", one
    if other in before:
        return "fork", other
    if one in after:
        return "source", one
    common = [session for session in before if session in after]
    return ("siblings", common[-1]) if common else ("unrelated", None)


def _without_shared(
    first: list[_Stretch], second: list[_Stretch]
) -> tuple[list[_Stretch], list[_Stretch], list[_Stretch]]:
    """Split two histories into the stretches that both share, and what each has beyond them."""
    shared: list[_Stretch] = []
    for a, b in zip(first, second, strict=False):
        if a.session != b.session:
            break
        ends = [end for end in (a.until, b.until) if end is not None]
        until = min(ends) if ends else None
        shared.append(_Stretch(a.session, until))
        if a.until != b.until:
            break
    return shared, _beyond(first, shared), _beyond(second, shared)


def _beyond(line: list[_Stretch], shared: list[_Stretch]) -> list[_Stretch]:
    """Return the stretches of a history that follow what it shares with another."""
    if not shared:
        return line
    last, place = shared[-1], len(shared) - 1
    rest = line[place + 1 :]
    if line[place].until != last.until:
        rest.insert(0, _Stretch(last.session, line[place].until, after=last.until or 0))
    return rest


async def _moments(store: SessionStore, line: list[_Stretch]) -> AsyncIterator[Moment]:
    """Yield what happened in stretches of logs, in order."""
    for stretch in line:
        together = _Together()
        after, before = stretch.after, None if stretch.until is None else stretch.until + 1
        while page := await store.read_events(
            stretch.session, after=after, before=before, limit=PAGE_EVENTS
        ):
            for event in page:
                fact = event.fact() if event.known else None
                if together.takes(event, fact):
                    continue
                moment = _moment(event, fact)
                if moment is not None:
                    for done in together.done():
                        yield done
                    yield moment
            after = page[-1].seq
        for done in together.done():
            yield done


class _Together:
    """Calls that were in flight at once, in the order in which they were asked.

    The log has outcomes in the order in which they came, which two runs need not share.
    """

    def __init__(self) -> None:
        self._leaves: list[tuple[tuple[int, int], Moment]] = []
        self._calls: dict[str, Moment] = {}

    def takes(self, event: Event, fact: Any) -> bool:
        """Take a call or the outcome of one; return whether the event is either."""
        match fact:
            case facts.LeafCalled():
                if fact.status != "unknown":  # broken off, and asked again
                    content = _content(
                        function=fact.function,
                        request=fact.request,
                        status=fact.status,
                        reply=fact.reply,
                        error=fact.error,
                    )
                    moment = Moment(event.session, event.seq, "leaf", fact.turn, content)
                    self._leaves.append(((fact.ordinal, fact.item), moment))
            case facts.CallRequested():
                content = _content(name=fact.name, arguments=fact.arguments)
                moment = Moment(event.session, event.seq, "call", fact.turn, content)
                self._calls[fact.call_id] = moment
            case facts.CallResolved():
                if fact.call_id in self._calls:
                    asked = self._calls[fact.call_id]
                    more = _content(outcome=fact.outcome, result=fact.result, error=fact.error)
                    self._calls[fact.call_id] = replace(asked, content=asked.content + more)
            case _:
                return False
        return True

    def done(self) -> list[Moment]:
        """Return what was taken, and forget it."""
        leaves = [moment for _, moment in sorted(self._leaves, key=lambda item: item[0])]
        moments = [*leaves, *self._calls.values()]
        self._leaves, self._calls = [], {}
        return moments


_ROLES = {"user": "message", "assistant": "reply", "observation": "observation"}


def _moment(event: Event, fact: Any) -> Moment | None:
    """Return what an event says that a history is compared by, if anything."""
    match fact:
        case facts.TurnStarted():
            kind, content = "turn", _content(**fact.inputs)
        case facts.MessageAppended():
            kind, content = _ROLES[fact.role], _content(text=fact.content)
        case facts.StepPut(status="failed"):
            kind, content = "step", _content(status=fact.status, error=fact.error)
        case facts.EvalAdded():
            kind = "cell"
            content = _content(
                code=fact.code,
                status=fact.status,
                output=fact.output,
                value=fact.value,
                error=fact.error,
            )
        case facts.SessionCompacted():
            kind, content = "compaction", _content(text=fact.content)
        case facts.TurnPut() if fact.status not in ("open", "interrupted"):
            kind = "outcome"
            content = _content(status=fact.status, value=fact.final, error=fact.error)
        case _:
            return None
    return Moment(event.session, event.seq, kind, getattr(fact, "turn", None), content)


def _content(**parts: Any) -> tuple[tuple[str, Any], ...]:
    return tuple((name, part) for name, part in parts.items() if part is not None)


async def _side(
    store: SessionStore, session: str, moment: Moment | None, other: Moment | None
) -> Side:
    """Return one side of a divergence, with what the other does not have just so."""
    if moment is None:
        return Side(session, None, {})
    same = dict(other.content) if other is not None and other.kind == moment.kind else {}
    values: dict[str, Any] = {}
    for name, part in moment.content:
        if name in same and same[name] == part:
            continue
        is_slot = isinstance(part, Slot)
        values[name] = await value_or_erased(store, moment.session, part) if is_slot else part
    return Side(session, moment, values)
