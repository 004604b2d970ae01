"""A family as a graph: the text that Graphviz (`dot`) and Mermaid draw."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.stores.port import SessionInfo
from holdfast.views.families import Family, Relation

SHORT_ID = 12
"""How many digits of a content id are shown."""


def dot(family: Family) -> str:
    """Return a family in the language of Graphviz."""
    lines = ["digraph holdfast {", "  rankdir=TB;", "  node [shape=box];"]
    names, missing = _names(family)
    for node in family.nodes:
        style = ", penwidth=2" if node.info.id == family.wanted else ""
        label = "\\n".join(_dot_text(line) for line in _label(node.info, str(node.cost.known_usd)))
        lines.append(f'  {names[node.info.id]} [label="{label}"{style}];')
    for session in missing:
        lines.append(f'  {names[session]} [label="{_dot_text(session)}\\nnot here", style=dashed];')
    for relation in family.relations:
        style = "solid" if relation.type == "invocation" else "dashed"
        label = _dot_text(_relation_label(relation))
        ends = f"{names[relation.from_session]} -> {names[relation.to_session]}"
        lines.append(f'  {ends} [label="{label}", style={style}];')
    return "\n".join([*lines, "}"])


def mermaid(family: Family) -> str:
    """Return a family in the language of Mermaid."""
    lines = ["flowchart TB"]
    names, missing = _names(family)
    for node in family.nodes:
        label = _mermaid_lines(_label(node.info, str(node.cost.known_usd)))
        lines.append(f'  {names[node.info.id]}["{label}"]')
    for session in missing:
        lines.append(f'  {names[session]}["{_mermaid_text(session)}<br/>not here"]')
        lines.append(f"  style {names[session]} stroke-dasharray: 4")
    for relation in family.relations:
        arrow = "-->" if relation.type == "invocation" else "-.->"
        label = _mermaid_text(_relation_label(relation))
        ends = names[relation.from_session], names[relation.to_session]
        lines.append(f'  {ends[0]} {arrow}|"{label}"| {ends[1]}')
    if family.wanted is not None:
        lines.append(f"  style {names[family.wanted]} stroke-width: 3px")
    return "\n".join(lines)


FORMATS: dict[str, Callable[[Family], str]] = {"dot": dot, "mermaid": mermaid}


def _names(family: Family) -> tuple[dict[str, str], list[str]]:
    """Return a plain name for every session, and those that the family has no node of.

    Session ids hold signs that both languages give a meaning to.
    """
    shown = [node.info.id for node in family.nodes]
    ends = [end for r in family.relations for end in (r.from_session, r.to_session)]
    missing = [session for session in dict.fromkeys(ends) if session not in set(shown)]
    return {session: f"s{place}" for place, session in enumerate([*shown, *missing])}, missing


def _label(info: SessionInfo, usd: str) -> list[str]:
    turns = "1 turn" if info.turns == 1 else f"{info.turns} turns"
    return [info.id, info.name, f"{info.kind}, {info.status}, {turns}, ${usd}"]


def _relation_label(relation: Relation) -> str:
    if relation.type == "invocation":
        return "call" if relation.call_id is None else f"call {relation.call_id}"
    if relation.from_head is None:
        return "derived"
    return f"from {relation.from_head.removeprefix('sha256:')[:SHORT_ID]}"


def _dot_text(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _mermaid_lines(lines: list[str]) -> str:
    return "<br/>".join(_mermaid_text(line) for line in lines)


def _mermaid_text(text: str) -> str:
    # In a quoted label only these have a meaning; Mermaid writes them as entities.
    for sign, entity in (("#", "#35;"), ('"', "#quot;"), ("<", "#lt;"), (">", "#gt;")):
        text = text.replace(sign, entity)
    return text
