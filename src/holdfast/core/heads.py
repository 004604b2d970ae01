"""Heads and lineage edges: content-addressed records that the log publishes about itself.

A head is an immutable continuation boundary. Its id covers the running digest at that boundary,
so one head id proves every event before it. The current head is the only mutable restore pointer
for fork, attach and proof. An edge relates two sessions' heads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar, get_args

from holdfast.core.errors import InvalidInput
from holdfast.core.facts import EdgeType, HeadKind, HeadPublished, LineageAdded
from holdfast.core.forms import forms
from holdfast.core.payloads import Slot
from holdfast.core.records import record_id

_Named = TypeVar("_Named", HeadPublished, LineageAdded)

HEAD_VERSION = 1
EDGE_VERSION = 1
HEAD_KINDS = frozenset(get_args(HeadKind))
EDGE_TYPES = frozenset(get_args(EdgeType))

ANY_BASIS = "any"
"""As `expected_basis`: take whatever head is current."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadDraft:
    """A head that an append is to publish; the log fills in basis, range, digest and id."""

    kind: HeadKind
    turn: int | None = None
    vars: Slot | None = None
    final: Slot | None = None
    compact_from: int | None = None
    expected_basis: str | None = ANY_BASIS


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeDraft:
    """An edge that an append is to record; a missing `to_head` is the head of the same append."""

    type: EdgeType
    from_session: str
    to_session: str
    from_head: str | None = None
    to_head: str | None = None
    call_id: str | None = None


def publish(
    draft: HeadDraft, session: str, basis: str | None, start: int, end: int, digest: str
) -> HeadPublished:
    """Return the head that covers events start to end."""
    if type(draft.kind) is not str or draft.kind not in HEAD_KINDS:
        raise InvalidInput(f"unknown head kind {draft.kind!r}; use one of {sorted(HEAD_KINDS)}")
    return _named(
        HeadPublished,
        version=HEAD_VERSION,
        session=session,
        basis=basis,
        range=[start, end],
        digest=digest,
        kind=draft.kind,
        turn=draft.turn,
        vars=draft.vars,
        final=draft.final,
        compact_from=draft.compact_from,
    )


def relate(draft: EdgeDraft, new_head: str | None) -> LineageAdded:
    """Return the edge of a draft; there is no edge without a child head."""
    if type(draft.type) is not str or draft.type not in EDGE_TYPES:
        raise InvalidInput(f"unknown edge type {draft.type!r}; use one of {sorted(EDGE_TYPES)}")
    to_head = draft.to_head or new_head
    if to_head is None:
        raise InvalidInput("an edge needs the head it leads to; publish a head in the same append")
    return _named(
        LineageAdded,
        version=EDGE_VERSION,
        type=draft.type,
        from_session=draft.from_session,
        to_session=draft.to_session,
        from_head=draft.from_head,
        to_head=to_head,
        call_id=draft.call_id,
    )


def content_id(fact: HeadPublished | LineageAdded) -> str:
    """Return the id that a head's or an edge's content has, which is the id it must carry."""
    body = forms(fact)[0]
    body.pop("id", None)
    return record_id(body)


def _named(cls: type[_Named], /, **content: Any) -> _Named:
    return cls(id=content_id(cls(id="", **content)), **content)
