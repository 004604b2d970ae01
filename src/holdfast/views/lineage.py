"""Where sessions come from and what came of them: heads, edges, and the tree of a store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.core import facts
from holdfast.core.payloads import Slot
from holdfast.stores.port import SessionInfo


@dataclass(frozen=True, slots=True)
class HeadView:
    """A head: a position to go on from, which proves every event before it."""

    seq: int
    at: str
    id: str
    version: int
    session: str
    kind: str
    turn: int | None
    basis: str | None
    range: tuple[int, ...]
    digest: str
    vars: Slot | None
    final: Slot | None
    compact_from: int | None
    fact: facts.HeadPublished


def head_view(seq: int, at: str, fact: facts.HeadPublished) -> HeadView:
    """Return the view of a head."""
    return HeadView(
        seq=seq,
        at=at,
        id=fact.id,
        version=fact.version,
        session=fact.session,
        kind=fact.kind,
        turn=fact.turn,
        basis=fact.basis,
        range=tuple(fact.range),
        digest=fact.digest,
        vars=fact.vars,
        final=fact.final,
        compact_from=fact.compact_from,
        fact=fact,
    )


@dataclass(frozen=True, slots=True)
class EdgeView:
    """A lineage edge: the head of one session that led to the head of another."""

    seq: int
    at: str
    id: str
    version: int
    type: str
    from_session: str
    from_head: str | None
    to_session: str
    to_head: str
    call_id: str | None
    fact: facts.LineageAdded


def edge_view(seq: int, at: str, fact: facts.LineageAdded) -> EdgeView:
    """Return the view of an edge."""
    return EdgeView(
        seq=seq,
        at=at,
        id=fact.id,
        version=fact.version,
        type=fact.type,
        from_session=fact.from_session,
        from_head=fact.from_head,
        to_session=fact.to_session,
        to_head=fact.to_head,
        call_id=fact.call_id,
        fact=fact,
    )


@dataclass(frozen=True, slots=True)
class TreeNode:
    """A session in the tree of its family; `cut` is the source that would close a cycle."""

    info: SessionInfo
    depth: int
    last: bool
    """Whether it is the last one under its source."""
    cut: str | None = None


def tree(found: Sequence[SessionInfo], wanted: str | None = None) -> list[TreeNode]:
    """Return the trees of sessions (listed newest first), or only the tree that holds one of them.

    From the top down, oldest first, each node before what hangs under it.
    """
    known = {info.id: info for info in found}
    above = {info.id: _source(info, known) for info in reversed(found)}
    cut = _cut_cycles(above)
    roots = [info.id for info in reversed(found) if above[info.id] is None]
    if wanted is not None:
        root = wanted
        while (source := above[root]) is not None:
            root = source
        roots = [root]
    below: dict[str, list[SessionInfo]] = {}
    for info in found:
        below.setdefault(above[info.id] or "", []).append(info)
    nodes: list[TreeNode] = []
    queue = [(known[root], 0, True) for root in reversed(roots)]
    while queue:
        info, depth, last = queue.pop()
        nodes.append(TreeNode(info, depth, last, cut.get(info.id)))
        # The newest is first in the list, last on the page.
        children = below.get(info.id, [])
        queue += [(child, depth + 1, place == 0) for place, child in enumerate(children)]
    return nodes


def _source(info: SessionInfo, known: dict[str, SessionInfo]) -> str | None:
    """Return the session that this one hangs under, if the store has it."""
    source = info.parent or info.origin
    return source if source in known else None


def _cut_cycles(above: dict[str, str | None]) -> dict[str, str]:
    """Put one session of each cycle on top; return those and what they hung under.

    Sessions of different stores can have the same ids, so that imports may name each other as
    their source.
    """
    cut: dict[str, str] = {}
    settled: set[str] = set()
    for start in above:
        path: set[str] = set()
        place = start
        while place not in settled and (source := above[place]) is not None:
            if place in path:
                cut[place], above[place] = source, None
                break
            path.add(place)
            place = source
        settled |= path
    return cut
