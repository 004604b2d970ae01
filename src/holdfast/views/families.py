"""Families: sessions that came out of one another, as a tree and with every relation between them.

A session is placed under its parent, whose call it answers, else under the source of its fork.
Relations are what the logs say: parent and origin in `session.started`, the child named in
`call.requested`, and lineage edges. Two that say the same of the same two sessions are one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from holdfast.core import facts
from holdfast.core.errors import SessionNotFound
from holdfast.core.state import State
from holdfast.stores.port import SessionInfo, SessionStore
from holdfast.views.costs import CostView, cost_of
from holdfast.views.lineage import EdgeView, read_edges
from holdfast.views.sessions import all_sessions

PAGE_EVENTS = 500


@dataclass(frozen=True, slots=True)
class TreeNode:
    """A session in the tree of its family."""

    info: SessionInfo
    depth: int
    last: bool
    """Whether it is the last one under its source."""
    call: str | None
    """The call of the parent that it answers."""
    origin_head: str | None
    """The head of the source that it was forked from."""
    cost: CostView
    subtree: CostView
    """The cost of the session and of all below it."""
    cut: str | None = None
    """The source that would close a cycle, where the tree was cut here."""


@dataclass(frozen=True, slots=True)
class Relation:
    """One session led to another: by a call (`invocation`), or as a copy of it (`derivation`)."""

    type: str
    from_session: str
    to_session: str
    call_id: str | None = None
    from_head: str | None = None
    to_head: str | None = None


@dataclass(frozen=True, slots=True)
class Family:
    """Sessions from the top down, each before all below it, and how they are related."""

    wanted: str | None
    nodes: tuple[TreeNode, ...]
    edges: tuple[EdgeView, ...] = ()
    relations: tuple[Relation, ...] = ()


@dataclass(frozen=True, slots=True)
class _Place:
    info: SessionInfo
    depth: int
    last: bool
    cut: str | None


async def read_tree(store: SessionStore, wanted: str | None = None) -> Family:
    """Return the family of a session, or every family of the store, without its relations."""
    if wanted is not None:
        await store.session_info(wanted)  # SessionNotFound where there is none
    found = [info async for info in all_sessions(store)]
    places = _places(found, wanted)
    states: dict[str, State] = {}
    for place in places:
        try:
            states[place.info.id] = await store.load_state(place.info.id)
        except SessionNotFound:
            continue  # deleted since it was listed
    nodes = [_node(place, states[place.info.id]) for place in places if place.info.id in states]
    return Family(wanted, _with_subtrees(nodes))


async def read_family(store: SessionStore, wanted: str | None = None) -> Family:
    """Return the family of a session, or every family of the store, with its relations."""
    family = await read_tree(store, wanted)
    edges: dict[str, EdgeView] = {}
    relations: list[Relation] = []
    for node in family.nodes:
        relations += _started(node)
        relations += await _children(store, node.info.id)
        async for edge in read_edges(store, node.info.id):
            edges.setdefault(edge.id, edge)
    relations += [
        Relation(e.type, e.from_session, e.to_session, e.call_id, e.from_head, e.to_head)
        for e in edges.values()
    ]
    return replace(family, edges=tuple(edges.values()), relations=_merged(relations))


def _node(place: _Place, state: State) -> TreeNode:
    cost = cost_of(state)
    return TreeNode(
        info=place.info,
        depth=place.depth,
        last=place.last,
        call=(state.parent or {}).get("call"),
        origin_head=_text((state.origin or {}).get("head")),
        cost=cost,
        subtree=cost,
        cut=place.cut,
    )


def _text(part: str | int | None) -> str | None:
    return part if isinstance(part, str) else None


def _with_subtrees(nodes: list[TreeNode]) -> tuple[TreeNode, ...]:
    """Return the nodes with the costs of all below each added up, from the bottom."""
    summed: list[TreeNode] = []
    below: list[CostView] = []  # per depth, what the nodes seen there so far cost with theirs
    for node in reversed(nodes):
        while len(below) <= node.depth + 1:
            below.append(CostView())
        total = node.cost.plus(below[node.depth + 1])
        below[node.depth + 1] = CostView()
        below[node.depth] = below[node.depth].plus(total)
        summed.append(replace(node, subtree=total))
    return tuple(reversed(summed))


def _started(node: TreeNode) -> list[Relation]:
    """Return what a session's first event says of where it came from."""
    info, found = node.info, list[Relation]()
    if info.parent is not None:
        found.append(Relation("invocation", info.parent, info.id, call_id=node.call))
    if info.origin is not None:
        found.append(Relation("derivation", info.origin, info.id, from_head=node.origin_head))
    return found


async def _children(store: SessionStore, session_id: str) -> list[Relation]:
    """Return the children that a session's calls name, whether or not they exist."""
    after, found = 0, list[Relation]()
    while page := await store.read_events(
        session_id, after=after, limit=PAGE_EVENTS, types=[facts.CallRequested.TYPE]
    ):
        for event in page:
            fact = event.fact() if event.known else None
            if isinstance(fact, facts.CallRequested) and fact.child is not None:
                found.append(Relation("invocation", session_id, fact.child, call_id=fact.call_id))
        after = page[-1].seq
    return found


def _merged(relations: list[Relation]) -> tuple[Relation, ...]:
    """Return each relation once, with all that any place of the logs says of it."""
    merged: dict[tuple[str, str, str], list[Relation]] = {}
    for new in relations:
        same = merged.setdefault((new.type, new.from_session, new.to_session), [])
        for place, old in enumerate(same):
            if _agree(old, new):
                same[place] = replace(
                    old,
                    call_id=old.call_id or new.call_id,
                    from_head=old.from_head or new.from_head,
                    to_head=old.to_head or new.to_head,
                )
                break
        else:
            same.append(new)
    return tuple(relation for same in merged.values() for relation in same)


def _agree(one: Relation, other: Relation) -> bool:
    """Tell whether two relations can be the same: nothing that both say differs."""
    pairs = (
        (one.call_id, other.call_id),
        (one.from_head, other.from_head),
        (one.to_head, other.to_head),
    )
    return all(a is None or b is None or a == b for a, b in pairs)


def _places(found: Sequence[SessionInfo], wanted: str | None) -> list[_Place]:
    """Return sessions (listed newest first) from the top of their trees down, oldest first."""
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
    places: list[_Place] = []
    queue = [(known[root], 0, True) for root in reversed(roots)]
    while queue:
        info, depth, last = queue.pop()
        places.append(_Place(info, depth, last, cut.get(info.id)))
        # The newest is first in the list, last on the page.
        children = below.get(info.id, [])
        queue += [(child, depth + 1, place == 0) for place, child in enumerate(children)]
    return places


def _source(info: SessionInfo, known: dict[str, SessionInfo]) -> str | None:
    """Return the session that this one is placed under, if the store has it."""
    return next((source for source in (info.parent, info.origin) if source in known), None)


def _cut_cycles(above: dict[str, str | None]) -> dict[str, str]:
    """Put one session of each cycle on top; return those and their sources.

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
