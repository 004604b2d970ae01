"""Loading: what scheduling misses of a run's log, or of its children, is read in."""

from __future__ import annotations

from holdfast.core.facts import TurnPut
from holdfast.core.payloads import Slot, slot
from holdfast.core.run_facts import BranchFinished, RunFinished
from holdfast.core.run_state import RunState
from holdfast.stores.port import SessionStore
from holdfast.views.values import hydrate
from holdfast.workflows.values import Values, ValuesMissing

PAGE_EVENTS = 1000
NEAR = 64
"""Events that are not further apart than this are read in one page."""


async def load(
    store: SessionStore, values: Values, session: str, run: RunState, missing: ValuesMissing
) -> None:
    """Bring what scheduling needs, and what it will need next."""
    for first, last in _ranges(sorted({*missing.events, *values.lacks(run)})):
        page = await store.read_events(session, after=first - 1, before=last + 1, limit=PAGE_EVENTS)
        values.learn_events(page)
    for item in missing.payloads:
        values.learn_payload(item, (await hydrate(store, session, item)).data or b"")
    if missing.fork is not None:
        await _load_ended(store, values, session, *missing.fork)
    if missing.foreign is not None:
        await _load_foreign(store, values, *missing.foreign)


def _ranges(numbers: list[int]) -> list[tuple[int, int]]:
    """Return pages that cover some events, without reading far beyond them."""
    found: list[tuple[int, int]] = []
    for number in numbers:
        if found and number - found[-1][1] <= NEAR and number - found[-1][0] < PAGE_EVENTS:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return found


async def _load_ended(
    store: SessionStore, values: Values, session: str, fork: int, since: int
) -> None:
    """Read how the branches of a fan-out ended."""
    found: list[tuple[int, BranchFinished]] = []
    after = since
    types = [BranchFinished.TYPE]
    while page := await store.read_events(session, after=after, limit=PAGE_EVENTS, types=types):
        for event in page:
            fact = event.fact()
            if isinstance(fact, BranchFinished) and fact.fork == fork:
                found.append((event.seq, fact))
        after = page[-1].seq
    values.learn_ended(fork, found)


async def _load_foreign(store: SessionStore, values: Values, session: str, payload: str) -> None:
    """Read a value that was too large to be told, from the session that came to it."""
    types = [TurnPut.TYPE, RunFinished.TYPE]
    (event,) = await store.read_events(session, limit=1, reverse=True, types=types)
    fact = event.fact()
    item = fact.final if isinstance(fact, TurnPut) else getattr(fact, "output", None)
    assert isinstance(item, Slot)
    whole = await hydrate(store, session, item)
    values.learn_foreign(slot(whole.value(), "output"))
