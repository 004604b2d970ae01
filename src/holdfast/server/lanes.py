"""Lanes: the family of a session as a list with a gutter, each session below what it came from.

Children of one caller fold beyond a few, and failures stay out of the fold, so that the list stays
usable with thousands.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal

from markupsafe import Markup

from holdfast.views.costs import CostView
from holdfast.views.families import Family, TreeNode

SHOWN = 8
"""How many of the same kind below one session are shown before the rest folds."""

MOST_ROWS = 1000
LOUD = frozenset({"failed", "interrupted", "suspended", "running", "stop_requested"})
QUIET_TURNS = frozenset({None, "final"})
DEEPEST = 4
"""Lanes that are drawn; what is deeper is drawn in the last."""


@dataclass(frozen=True, slots=True)
class Lane:
    """One row: a session, or several that are folded."""

    node: TreeNode | None
    relation: str  # root, child, fork, attach
    gutter: Markup
    share: float
    folded: int = 0
    cost: CostView = field(default_factory=CostView)
    below: str = ""
    """Whose folded ones these are."""


def lanes(family: Family, unfolded: str = "") -> tuple[list[Lane], bool]:
    """Return the rows of a family, and whether there are more than are shown."""
    whole = family.nodes[0].subtree.known_usd if family.nodes else Decimal(0)
    below = _below(family.nodes)
    line = _line_to(family)
    rows: list[Lane] = []
    todo: list[TreeNode | Lane] = [node for node in reversed(family.nodes) if node.depth == 0]
    while todo and len(rows) <= MOST_ROWS:
        item = todo.pop()
        if isinstance(item, Lane):
            rows.append(item)
            continue
        relation, wanted = _relation(item), item.info.id == family.wanted
        gutter = _gutter(item.depth, relation, wanted)
        rows.append(Lane(item, relation, gutter, _share(item.subtree, whole)))
        shown: dict[str, int] = {}
        folds: dict[str, list[TreeNode]] = {}
        following: list[TreeNode | Lane] = []
        for node in below.get(item.info.id, ()):
            kind = _relation(node)
            kept = _is_loud(node) or node.info.id in line or item.info.id == unfolded
            if shown.get(kind, 0) < SHOWN or kept:
                shown[kind] = shown.get(kind, 0) + 1
                following.append(node)
            else:
                folds.setdefault(kind, []).append(node)
        following += [_fold(item, kind, nodes, whole) for kind, nodes in folds.items()]
        todo += reversed(following)
    return rows[:MOST_ROWS], len(rows) > MOST_ROWS


def _below(nodes: Sequence[TreeNode]) -> dict[str, list[TreeNode]]:
    """Return the sessions right below each, from the tree in order."""
    above: list[str] = []
    found: dict[str, list[TreeNode]] = {}
    for node in nodes:
        del above[node.depth :]
        if above:
            found.setdefault(above[-1], []).append(node)
        above.append(node.info.id)
    return found


def _line_to(family: Family) -> set[str]:
    """Return the session that the page is about and all above it: they are never folded."""
    above: list[str] = []
    for node in family.nodes:
        del above[node.depth :]
        above.append(node.info.id)
        if node.info.id == family.wanted:
            return set(above)
    return set()


def _is_loud(node: TreeNode) -> bool:
    """Tell whether a session wants attention, or goes on."""
    return node.info.status in LOUD or node.info.last_turn not in QUIET_TURNS


def _fold(above: TreeNode, kind: str, nodes: Sequence[TreeNode], whole: Decimal) -> Lane:
    total = CostView()
    for node in nodes:
        total = total.plus(node.subtree)
    gutter = _gutter(above.depth + 1, kind, False)
    return Lane(None, kind, gutter, _share(total, whole), len(nodes), total, above.info.id)


def _relation(node: TreeNode) -> str:
    if node.info.parent is not None:
        return "child" if node.info.origin is None else "attach"
    return "fork" if node.info.origin is not None else "root"


def _share(cost: CostView, whole: Decimal) -> float:
    return float(cost.known_usd / whole) if whole else 0.0


def _gutter(depth: int, relation: str, wanted: bool) -> Markup:
    """Return the gutter of a row: lines of those above, the edge to it, and its mark."""
    lane = min(depth, DEEPEST)
    x = 14 + 16 * lane
    lines = "".join(f'<path class="edge-line" d="M{14 + 16 * n} 0V34"/>' for n in range(lane))
    edge = ""
    if depth:
        kind = {"child": "call", "fork": "fork", "attach": "att"}.get(relation, "call")
        edge = f'<path class="edge-{kind}" d="M{x - 16} 0V10Q{x - 16} 17 {x - 9} 17H{x - 4}"/>'
    mark = f'<circle class="node{" now" if wanted else ""}" cx="{x}" cy="17" r="4"/>'
    return Markup(lines + edge + mark)
