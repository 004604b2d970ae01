"""Lineage commands: heads, tree, graph, and the first divergence of two sessions."""

from __future__ import annotations

from difflib import unified_diff

import click

from holdfast.cli.naming import find_session
from holdfast.cli.options import Call, command, session_argument
from holdfast.cli.reading import with_reads, with_store
from holdfast.cli.tables import (
    Column,
    display_width,
    screen_width,
    shortened,
    table,
    unique_length,
)
from holdfast.cli.wording import cost_view_text, count, form_text
from holdfast.stores.port import SessionInfo, SessionStore
from holdfast.views.divergence import Divergence, Side, divergence
from holdfast.views.documents import diff_document, head_document, tree_document
from holdfast.views.families import Family, read_family, read_tree
from holdfast.views.graph import FORMATS
from holdfast.views.lineage import HeadView
from holdfast.views.reads import Reads
from holdfast.views.values import value_form

PAGE_HEADS = 500
HEADS = (
    Column("HEAD", least=19, is_id=True),
    Column("KIND"),
    Column("TURN", right=True),
    Column("EVENT", right=True),
    Column("AT", spare=1),
    Column(""),
)
DIFF_CONTEXT = 2
DIFF_LINES = 200
SHORT_ID = 15


@command("heads")
@session_argument
def heads_command(call: Call, session: str) -> None:
    """List the heads of SESSION: positions to fork from, each a proof of all events before it."""

    async def read(store: SessionStore, reads: Reads) -> tuple[SessionInfo, list[HeadView]]:
        info = await find_session(store, session)
        found: list[HeadView] = []
        while page := await reads.heads(
            info.id, after=found[-1].seq if found else 0, limit=PAGE_HEADS
        ):
            found += page
        return info, found

    info, found = with_reads(call, read)
    heads = [head_document(head, current=head.id == info.head) for head in found]
    rows = [
        (
            head.id,
            head.kind,
            str(head.turn or ""),
            str(head.seq),
            head.at[:16].replace("T", " "),
            "current" if head.id == info.head else "",
        )
        for head in found
    ]
    text = table(HEADS, rows, screen_width())
    call.answer({"session": info.id, "heads": heads}, text if rows else "no heads yet")


@command("tree")
@click.argument("session", required=False)
def tree_command(call: Call, session: str | None) -> None:
    """Show the family of SESSION, or of every session: parents, children, forks, and their cost."""

    async def read(store: SessionStore) -> Family:
        wanted = None if session is None else (await find_session(store, session)).id
        return await (read_family if call.as_json else read_tree)(store, wanted)

    family = with_store(call, read)
    call.answer(tree_document(family), "\n".join(_lines(family, screen_width())) or "no sessions")


def _lines(family: Family, width: int | None) -> list[str]:
    """Return the lines of trees, with the branches that lead to each node.

    Where a line is too long, ids are cut to beginnings that are unique here.
    """
    ids = [node.info.id for node in family.nodes]
    whole = [_line(family, place, len(node.info.id)) for place, node in enumerate(family.nodes)]
    if width is None or max(map(display_width, whole), default=0) <= width:
        return _branched(family, whole)
    cut = max(SHORT_ID, unique_length(ids))
    lines = [_line(family, place, cut) for place in range(len(ids))]
    return [shortened(line, width) for line in _branched(family, lines)]


def _line(family: Family, place: int, cut: int) -> str:
    node = family.nodes[place]
    info = node.info
    cost, with_all = cost_view_text(node.cost), cost_view_text(node.subtree)
    if with_all != cost:
        cost += f", with all below {with_all}"
    mark = f"  (from {node.cut}: a cycle, cut here)" if node.cut else ""
    mark += "  <-" if info.id == family.wanted else ""
    about = f"{info.kind}, {info.status}, {count(info.turns, 'turn')}, {cost}"
    return f"{info.id[:cut]}  {info.name}  {about}{mark}"


def _branched(family: Family, lines: list[str]) -> list[str]:
    drawn: list[str] = []
    passed: list[bool] = []  # whether the node above, at each depth, was the last of its level
    for node, line in zip(family.nodes, lines, strict=True):
        del passed[node.depth :]
        lead = "".join("   " if last else "│  " for last in passed[1:])
        if node.depth:
            lead += "└─ " if node.last else "├─ "
        passed.append(node.last)
        drawn.append(lead + line)
    return drawn


@command("graph")
@click.argument("session", required=False)
@click.option(
    "--format",
    "language",
    type=click.Choice(list(FORMATS)),
    default="dot",
    show_default=True,
    help="Language of the graph: Graphviz or Mermaid.",
)
def graph_command(call: Call, session: str | None, language: str) -> None:
    """Print the family of SESSION, or of every session, as a graph for Graphviz or Mermaid."""

    async def read(store: SessionStore) -> Family:
        wanted = None if session is None else (await find_session(store, session)).id
        return await read_family(store, wanted)

    family = with_store(call, read)
    text = FORMATS[language](family)
    call.answer({"session": family.wanted, "format": language, "graph": text}, text)


@command("diff")
@click.argument("one")
@click.argument("other")
def diff_command(call: Call, one: str, other: str) -> None:
    """Show the first divergence of the sessions ONE and OTHER, inherited history included.

    Times, usage, ids and lost model calls are not compared.
    """

    async def read(store: SessionStore) -> Divergence:
        first, second = await find_session(store, one), await find_session(store, other)
        names.extend((first.id, second.id))
        return await divergence(store, first.id, second.id)

    names: list[str] = []
    found = with_store(call, read)
    call.answer(diff_document(found), "\n".join(_diff_lines(found, *names)))


_RELATIONS = {
    "same": "{one} is one session, given twice",
    "fork": "{one} was forked from {ancestor}",
    "source": "{other} was forked from {one}",
    "siblings": "{one} and {other} were both forked from {ancestor}",
    "unrelated": "{one} and {other} share no source in this store",
}


def _diff_lines(found: Divergence, one: str, other: str) -> list[str]:
    lines = [_RELATIONS[found.relation].format(one=one, other=other, ancestor=found.ancestor)]
    shared = f"in common: {count(found.common, 'entry', 'entries')} in {count(found.turns, 'turn')}"
    lines.append(shared if found.common else "in common: nothing")
    if found.one is None or found.other is None:
        return [*lines, "no difference"]
    lines.append(f"first difference: {_what(found.one, found.other)}")
    shown = unified_diff(
        _side_lines(found.one),
        _side_lines(found.other),
        _side_title(found.one),
        _side_title(found.other),
        n=DIFF_CONTEXT,
        lineterm="",
    )
    lines += [line for line in shown if not line.startswith("@@")][:DIFF_LINES]
    return lines


def _what(one: Side, other: Side) -> str:
    kinds = [side.moment.kind for side in (one, other) if side.moment is not None]
    names = list(dict.fromkeys([*one.values, *other.values]))
    if len(kinds) == 1:
        ended = one if one.moment is None else other
        return f"{ended.session} ends where the other has a {kinds[0]}"
    if kinds[0] != kinds[1]:
        return f"a {kinds[0]} against a {kinds[1]}"
    return f"{kinds[0]} ({', '.join(names)})" if names else kinds[0]


def _side_title(side: Side) -> str:
    if side.moment is None:
        return f"{side.session} (ends here)"
    turn = "" if side.moment.turn is None else f", turn {side.moment.turn}"
    return f"{side.session} (event {side.moment.seq} of {side.moment.session}{turn})"


def _side_lines(side: Side) -> list[str]:
    lines: list[str] = []
    for name, value in side.values.items():
        text = form_text(value_form(value))
        lines += [f"{name}: {text}"] if "\n" not in text else [f"{name}:", *text.split("\n")]
    return lines
