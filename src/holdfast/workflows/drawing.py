"""Drawings of a workflow: Mermaid for pages and chats, DOT for Graphviz."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.workflows.graph import Graph
from holdfast.workflows.model import Edge, Node, Workflow

_SHAPES = {
    "agent": ("[", "]"),
    "judge": ("{{", "}}"),
    "router": ("{", "}"),
    "human": ("[/", "/]"),
    "tool": ("[[", "]]"),
    "run": ("[[", "]]"),
    "compute": ("(", ")"),
    "workflow": ("[[", "]]"),
    "wait": ("([", "])"),
    "done": ("((", "))"),
    "fail": ("(((", ")))"),
}
_DOT = {
    "agent": "box",
    "judge": "hexagon",
    "router": "diamond",
    "human": "parallelogram",
    "tool": "component",
    "run": "component",
    "compute": "ellipse",
    "workflow": "box3d",
    "wait": "oval",
    "done": "doublecircle",
    "fail": "doubleoctagon",
}


def mermaid(workflow: Workflow) -> str:
    """Return a workflow as a Mermaid flowchart."""
    graph = Graph(workflow)
    lines = ["flowchart TD", f"  start(( )) --> {_id(workflow.start)}"]
    lines += _mermaid_nodes(graph, None, "  ")
    for node in workflow.nodes.values():
        for edge in node.next:
            if edge.to in workflow.nodes:
                lines.append(f"  {_id(node.id)} {_arrow(node, edge)} {_id(edge.to)}")
    return "\n".join(lines) + "\n"


def _mermaid_nodes(graph: Graph, scope: str | None, indent: str) -> Iterator[str]:
    for name in graph.members(scope):
        node = graph.node(name)
        if node.kind == "each":
            yield f"{indent}subgraph {_id(name)} [{_text(_label(node))}]"
            yield from _mermaid_nodes(graph, name, indent + "  ")
            yield f"{indent}end"
        else:
            left, right = _SHAPES[node.kind]
            yield f"{indent}{_id(name)}{left}{_text(_label(node))}{right}"


def _id(name: str) -> str:
    # Some words mean something to Mermaid: `end` closes a subgraph.
    return f"n_{name}"


def _arrow(node: Node, edge: Edge) -> str:
    words = _edge_words(edge)
    line = "-.->" if edge.loop or edge.on == "failure" else "-->"
    return f"{line}|{_text(words)}|" if words else line


def _edge_words(edge: Edge) -> str:
    parts = []
    if edge.on == "failure":
        parts.append("failure")
    if edge.when is not None:
        parts.append(edge.when)
    if edge.loop is not None:
        parts.append(f"loop {edge.loop}")
    return ", ".join(parts)


def _label(node: Node) -> str:
    match node.kind:
        case "each":
            what = f"each {node.as_name} of {node.subject}"
        case "compute":
            what = "compute" if isinstance(node.subject, dict) else f"compute {node.subject}"
        case "run":
            what = f"run {node.subject[0]}"
        case "human":
            what = f"human {node.assignee or ''}".strip()
        case "wait":
            what = f"wait {node.signal or ''}".strip()
        case "done" | "fail":
            what = ""
        case _:
            what = f"{node.kind} {node.subject}"
    joined = f", join {node.join}" if node.join else ""
    return f"{node.id}: {what}{joined}" if what else f"{node.id}{joined}"


def _text(text: str) -> str:
    """Return a text as Mermaid takes it in quotes; entities stand for what has a meaning there."""
    plain = " ".join(text.split())
    for letter, entity in (("#", "#35;"), ('"', "#quot;"), ("<", "#lt;"), (">", "#gt;")):
        plain = plain.replace(letter, entity)
    return f'"{plain}"'


def dot(workflow: Workflow) -> str:
    """Return a workflow as a graph for Graphviz."""
    graph = Graph(workflow)
    lines = [f"digraph {_quoted(workflow.name)} {{", "  rankdir=TB;"]
    lines += _dot_nodes(graph, None, "  ")
    for node in workflow.nodes.values():
        for edge in node.next:
            if edge.to in workflow.nodes:
                style = ", style=dashed" if edge.loop or edge.on == "failure" else ""
                label = f"[label={_quoted(_edge_words(edge))}{style}]"
                lines.append(f"  {_quoted(node.id)} -> {_quoted(edge.to)} {label};")
    return "\n".join([*lines, "}"]) + "\n"


def _dot_nodes(graph: Graph, scope: str | None, indent: str) -> Iterator[str]:
    for name in graph.members(scope):
        node = graph.node(name)
        shape = _DOT.get(node.kind, "folder")
        yield f"{indent}{_quoted(name)} [label={_quoted(_label(node))}, shape={shape}];"
        if node.kind == "each":
            yield f"{indent}subgraph {_quoted(f'cluster_{name}')} {{"
            yield f"{indent}  label={_quoted(name)};"
            yield from _dot_nodes(graph, name, indent + "  ")
            yield f"{indent}}}"
            first = node.body[0]
            yield f"{indent}{_quoted(name)} -> {_quoted(first)} [style=dotted];"


def _quoted(text: str) -> str:
    plain = " ".join(text.split()).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{plain}"'
