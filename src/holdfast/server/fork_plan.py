"""Forks before they are made: from where, what is carried over, and what will be run again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.core import facts
from holdfast.server.as_of import States
from holdfast.stores.port import SessionStore
from holdfast.views.messages import kept_entries
from holdfast.views.variables import read_variables

PAGE_EVENTS = 500


@dataclass(frozen=True, slots=True)
class Again:
    """Calls of the source after the point, which the fork may make again."""

    name: str
    effect: str
    count: int


@dataclass(frozen=True, slots=True)
class ForkPoint:
    """A place to fork from, with what follows from it."""

    value: str  # as the form sends it: head:ID or step:N
    title: str
    seq: int
    messages: int
    variables: int
    left: int  # events of the source that are not carried over
    steps: int  # model calls that will be made again
    again: Sequence[Again]

    @property
    def goes_on(self) -> bool:
        """Tell whether a turn is open in the fork, so that it can go on without a message."""
        return self.value.startswith("step:")


async def fork_points(
    store: SessionStore, states: States, session_id: str, at: int
) -> list[ForkPoint]:
    """Return where a session can be forked at or before an event: the last head, the last step."""
    tip = (await store.load_state(session_id)).seq
    points = []
    for type_name in (facts.HeadPublished.TYPE, facts.StepStarted.TYPE):
        page = await store.read_events(
            session_id, before=at + 1, limit=1, reverse=True, types=[type_name]
        )
        for event in page:
            fact = event.fact() if event.known else None
            if isinstance(fact, facts.HeadPublished):
                words = {"turn_final": f"the end of turn {fact.turn}", "run_final": "the end"}
                title = f"The last head, {words.get(fact.kind, f'a {fact.kind}')}"
                points.append((event.seq, f"head:{fact.id}", title, fact.range[1]))
            elif isinstance(fact, facts.StepStarted):
                title = f"Before step {fact.step}, in turn {fact.turn}"
                points.append((event.seq, f"step:{fact.step}", title, event.seq - 1))
    return [await _point(store, states, session_id, tip, *point) for point in points]


async def _point(
    store: SessionStore,
    states: States,
    session_id: str,
    tip: int,
    seq: int,
    value: str,
    title: str,
    until: int,
) -> ForkPoint:
    then = await states.store_at(store, session_id, until)
    state = await then.load_state(session_id)
    kept = kept_entries(then, session_id, state.compact_from, until)
    messages = sum([1 async for _ in kept])
    variables = len((await read_variables(then, session_id)).variables)
    steps, again = 0, Counter[tuple[str, str]]()
    if value.startswith("step:") and state.turn is not None:
        steps, again = await _after(store, session_id, until, state.turn.turn)
    listed = [Again(name, effect, count) for (name, effect), count in sorted(again.items())]
    return ForkPoint(value, title, seq, messages, variables, tip - until, steps, listed)


async def _after(
    store: SessionStore, session_id: str, after: int, turn: int
) -> tuple[int, Counter[tuple[str, str]]]:
    """Return how many steps a turn had after a position, and which calls it made."""
    steps, calls = 0, Counter[tuple[str, str]]()
    types = [facts.StepStarted.TYPE, facts.CallRequested.TYPE, facts.LeafCalled.TYPE]
    while page := await store.read_events(session_id, after=after, limit=PAGE_EVENTS, types=types):
        for event in page:
            fact = event.fact() if event.known else None
            if getattr(fact, "turn", turn) != turn:
                return steps, calls
            match fact:
                case facts.StepStarted():
                    steps += 1
                case facts.CallRequested():
                    calls[fact.name, fact.effect] += 1
                case facts.LeafCalled():
                    calls[fact.function, "asks a model"] += 1
        after = page[-1].seq
    return steps, calls
