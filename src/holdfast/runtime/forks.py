"""Forks: a new session from a head or a step of another, which it never touches nor needs again.

A fork's first event carries the source head's id and content-addressed manifests of the kept
transcript and of the namespace at that head, so it stands on its own. A fork at a step starts with
the turn of that step open, as it stood right before the model was asked. The derivation edge is
recorded in the fork's log with its first head.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from holdfast.core.errors import HeadNotFound, InvalidInput
from holdfast.core.facts import HeadPublished, SessionConfigured, SessionStarted, StepStarted
from holdfast.core.fold import apply
from holdfast.core.ids import check_content_id
from holdfast.core.payloads import Erased, Slot
from holdfast.core.state import State, empty
from holdfast.runtime import blueprint as blueprints
from holdfast.runtime.blueprint import Blueprint
from holdfast.runtime.journal import namespace
from holdfast.runtime.transcript import transcript_manifest
from holdfast.stores.port import SessionStore
from holdfast.views.messages import kept_messages

PAGE_EVENTS = 200


async def find_head(store: SessionStore, session_id: str, head_id: str | None) -> HeadPublished:
    """Return a head of a session, by default its current one."""
    state = await store.load_state(session_id)
    wanted = state.head if head_id is None else check_content_id(head_id)
    if wanted is None:
        raise HeadNotFound(
            f"session {session_id!r} has no head yet: only a turn that ended with FINAL, or a "
            "compaction, leaves one to fork from"
        )
    before: int | None = None
    while page := await store.read_events(
        session_id, before=before, limit=PAGE_EVENTS, reverse=True, types=[HeadPublished.TYPE]
    ):
        for event in page:
            fact = event.fact()
            if isinstance(fact, HeadPublished) and fact.id == wanted:
                return fact
        before = page[-1].seq
    raise HeadNotFound(
        f"session {session_id!r} has no head {wanted!r}; `holdfast heads {session_id}` lists them"
    )


@dataclass(frozen=True, slots=True)
class Derived:
    """What a session starts with that goes on from a position of another."""

    origin: dict[str, str | int]
    transcript: Slot
    vars: Slot | None
    payloads: list[Slot]
    turn: dict[str, int] | None = None  # the open turn, where the position is inside one

    def onto(self, started: SessionStarted) -> SessionStarted:
        """Return the first record of a session that starts with this."""
        return replace(
            started,
            origin=self.origin,
            transcript=self.transcript,
            vars=self.vars,
            turn=self.turn,
        )


async def derive(
    store: SessionStore, source: str, head_id: str | None, step: int | None = None
) -> Derived:
    """Return what a session starts with that goes on from a head of another, or from a step."""
    if step is not None:
        state = await before_step(store, source, step)
        assert state.turn is not None
        found = await _derived(
            store, source, state.seq, state.digest, state.head, state.compact_from, state.vars
        )
        return replace(found, turn={"steps": state.turn.steps})
    head = await find_head(store, source, head_id)
    return await _derived(
        store, source, head.range[1], head.digest, head.id, head.compact_from, head.vars
    )


async def before_step(store: SessionStore, source: str, step: int) -> State:
    """Return the state of a session as it stood right before a step was started."""
    state, after = empty(source), 0
    while page := await store.read_events(source, after=after, limit=PAGE_EVENTS):
        for event in page:
            fact = event.fact() if event.known else None
            if isinstance(fact, StepStarted) and fact.step == step:
                return state
            state = apply(state, event, fact)
        after = page[-1].seq
    last = state.counters.get("step", 0)
    raise InvalidInput(
        f"session {source!r} has no step {step}; it has "
        + (f"steps 1 to {last}" if last else "none yet")
    )


async def _derived(
    store: SessionStore,
    source: str,
    seq: int,
    digest: str,
    head: str | None,
    compact_from: int | None,
    vars: Slot | None,
) -> Derived:
    erased = {key: Erased(*mark) for key, mark in (await store.erased(source)).items()}
    kept = [
        (
            role,
            item.without(erased[item.id]) if item.id in erased else item,
        )
        async for role, item in kept_messages(store, source, compact_from, seq)
    ]
    if vars is not None:
        await namespace(store, source, vars)
    transcript, small = transcript_manifest(kept)
    return Derived(
        origin={
            "session": source,
            "seq": seq,
            "digest": digest,
            **({} if head is None else {"head": head}),
        },
        transcript=transcript,
        vars=None if vars is None else vars.bare(),
        payloads=small,
    )


Change = Callable[[Blueprint, SessionStarted], Awaitable[tuple[Blueprint, SessionStarted]]]


async def fork_session(
    store: SessionStore,
    source: str,
    head_id: str | None,
    new_id: str,
    *,
    step: int | None = None,
    change: Change | None = None,
) -> None:
    """Create a session that goes on from a head or a step of another.

    It is driven with what its source was driven with there, or what `change` makes of that.
    """
    derived = await derive(store, source, head_id, step)
    first = (await store.read_events(source, limit=1))[0].fact()
    assert isinstance(first, SessionStarted)
    configured = await _configured_at(store, source, int(derived.origin["seq"]))
    if head_id is None and step is None:
        # Forked from where it stands now: what was configured since its last head counts.
        configured = (await store.load_state(source)).configured
    started = replace(
        derived.onto(first),
        kind="fork",
        cache_id=new_id,
        parent=None,
        depth=0,
        grant={},
    )
    payloads = list(derived.payloads)
    if first.settings is not None:
        plan = await blueprints.load(store, source, configured)
        if change is not None:
            plan, started = await change(plan, started)
        item, parts = plan.slots()
        started = replace(started, settings=item)
        payloads += parts
    await store.create_session(new_id, started, payloads=payloads, adopt_from=source)


async def _configured_at(store: SessionStore, source: str, seq: int) -> int:
    """Return the event that has the settings in force at a position."""
    page = await store.read_events(
        source, before=seq + 1, limit=1, reverse=True, types=[SessionConfigured.TYPE]
    )
    return page[0].seq if page else 1
