"""Forks: a new session from any head of another, which it never touches nor needs again.

A fork's first event carries the source head's id and content-addressed manifests of the kept
transcript and of the namespace at that head, so it stands on its own. The derivation edge is
recorded in the fork's log with its first head.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from holdfast.core.errors import HeadNotFound
from holdfast.core.facts import HeadPublished, SessionStarted
from holdfast.core.ids import check_content_id
from holdfast.core.payloads import Erased, Slot
from holdfast.runtime.journal import namespace
from holdfast.runtime.transcript import transcript_manifest
from holdfast.stores.port import SessionStore
from holdfast.views.messages import kept_messages
from holdfast.views.values import hydrate

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
    """What a session starts with that goes on from a head of another."""

    origin: dict[str, str | int]
    transcript: Slot
    vars: Slot | None
    payloads: list[Slot]

    def onto(self, started: SessionStarted) -> SessionStarted:
        """Return the first record of a session that starts with this."""
        return replace(started, origin=self.origin, transcript=self.transcript, vars=self.vars)


async def derive(store: SessionStore, source: str, head_id: str | None) -> Derived:
    """Return what a session starts with that goes on from a head of another, untouched here."""
    head = await find_head(store, source, head_id)
    erased = {key: Erased(*mark) for key, mark in (await store.erased(source)).items()}
    kept = [
        (
            role,
            item.without(erased[item.id]) if item.id in erased else item,
        )
        async for role, item in kept_messages(store, source, head.compact_from, head.range[1])
    ]
    if head.vars is not None:
        await namespace(store, source, head.vars)
    transcript, small = transcript_manifest(kept)
    return Derived(
        origin={
            "session": source,
            "seq": head.range[1],
            "digest": head.digest,
            "head": head.id,
        },
        transcript=transcript,
        vars=None if head.vars is None else head.vars.bare(),
        payloads=small,
    )


async def fork_session(
    store: SessionStore, source: str, head_id: str | None, new_id: str, cache_id: str
) -> None:
    """Create a session that goes on from a head of another."""
    derived = await derive(store, source, head_id)
    first = (await store.read_events(source, limit=1))[0].fact()
    assert isinstance(first, SessionStarted)
    started = replace(
        derived.onto(first),
        kind="fork",
        cache_id=cache_id,
        parent=None,
        depth=0,
        grant={},
        settings=None if first.settings is None else await hydrate(store, source, first.settings),
    )
    await store.create_session(new_id, started, payloads=derived.payloads, adopt_from=source)
