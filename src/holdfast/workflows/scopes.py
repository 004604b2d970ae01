"""Scopes: which names the expressions of a node may use, and what their values are.

A node sees the variables, its input, the latest outputs of nodes of its own scope and of those
around it, artifacts, loops and items. Edges also see the outcome of their source. Values of nodes
that may not have run are optional.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.workflows.expressions import ExpressionFailed, Path, parse
from holdfast.workflows.graph import Graph
from holdfast.workflows.inference import Scope, infer
from holdfast.workflows.known import Known
from holdfast.workflows.model import Edge, Node
from holdfast.workflows.schemas import (
    ANY,
    BOOLEAN,
    INTEGER,
    NULL,
    STRING,
    Field,
    ListOf,
    ObjectOf,
    Schema,
    one_of,
    optional,
    schema_of,
)
from holdfast.workflows.templates import read

VERDICT = ObjectOf({"approved": Field(BOOLEAN), "notes": Field(STRING)})
ANSWER = ObjectOf({"answer": Field(STRING)})
PROGRAM = ObjectOf({"exit": Field(INTEGER), "output": Field(STRING), "errors": Field(STRING)})
ERROR = ObjectOf({"code": Field(STRING), "message": Field(STRING)})
FAILED = ObjectOf(
    {
        "index": Field(INTEGER),
        "key": Field(STRING),
        "code": Field(STRING),
        "message": Field(STRING),
    }
)
RUN = {"id": Field(STRING), "workflow": Field(STRING)}


class Scopes:
    """The scopes of all nodes and edges of a workflow."""

    def __init__(self, graph: Graph, known: Known) -> None:
        self.graph = graph
        self._known = known
        self._outputs: dict[str, Schema] = {}
        self._inputs: dict[str, ObjectOf] = {}
        self._busy: set[tuple[str, str]] = set()

    # -- outputs

    def output(self, name: str) -> Schema:
        """Return the schema of a node's output."""
        if name not in self._outputs:
            if ("output", name) in self._busy:
                return ANY  # it depends on itself, over a loop
            self._busy.add(("output", name))
            self._outputs[name] = self._output(self.graph.node(name))
            self._busy.discard(("output", name))
        return self._outputs[name]

    def _output(self, node: Node) -> Schema:
        if node.output is not None:
            return node.output
        match node.kind:
            case "judge":
                return VERDICT
            case "human":
                return ANSWER
            case "run":
                return PROGRAM
            case "compute":
                return self._computed(node)
            case "each":
                return self._collected(node)
            case "router" if node.asks:
                return ObjectOf({"chosen": Field(ListOf(STRING) if node.many else STRING)})
            case "tool":
                return self._gives("tools", node.subject)
            case "workflow":
                return self._gives("workflows", node.subject)
            case "agent":
                return ANY
            case "wait":
                return ANY if node.signal is not None else NULL
        return NULL

    def _gives(self, what: str, name: Any) -> Schema:
        signatures = getattr(self._known, what) or {}
        return getattr(signatures.get(name), "gives", None) or ANY

    def _computed(self, node: Node) -> Schema:
        if isinstance(node.subject, str):
            return self._gives("functions", node.subject)
        scope = self.of(node)
        return ObjectOf({name: Field(_typed(text, scope)) for name, text in node.subject.items()})

    def _collected(self, node: Node) -> Schema:
        ends = [one for one in self.graph.members(node.id) if not self.graph.node(one).next]
        item = one_of(*(self.output(one) for one in ends)) if ends else ANY
        return ObjectOf({"items": Field(ListOf(item)), "failed": Field(ListOf(FAILED))})

    # -- inputs

    def input(self, node: Node) -> ObjectOf:
        """Return the schema of what a node is given."""
        if node.id not in self._inputs:
            if ("input", node.id) in self._busy:
                return ObjectOf({}, ANY)
            self._busy.add(("input", node.id))
            self._inputs[node.id] = self._input(node)
            self._busy.discard(("input", node.id))
        return self._inputs[node.id]

    def _input(self, node: Node) -> ObjectOf:
        own = self._mapped(node.inputs, self.of(node, with_input=False))
        ways = [
            self._mapped(edge.inputs, self.of_edge(source, edge))
            for source in self.graph.nodes.values()
            for edge in self.graph.edges(source.id)
            if edge.to == node.id
        ]
        if node.id == self.graph.start_of(node.scope):
            ways.append({})  # the way that a run or a branch comes in
        fields: dict[str, Field] = {name: Field(schema) for name, schema in own.items()}
        for name in dict.fromkeys(name for way in ways for name in way):
            given = [way[name] for way in ways if name in way]
            always = len(given) == len(ways)
            if name in own:
                fields[name] = Field(one_of(own[name], *given))
            else:
                fields[name] = Field(one_of(*given, *([] if always else [NULL])))
        return ObjectOf(fields)

    def _mapped(self, inputs: Mapping[str, Any], scope: Scope) -> dict[str, Schema]:
        return {name: value_schema(value, scope) for name, value in inputs.items()}

    # -- scopes

    def of(self, node: Node, *, with_input: bool = True) -> Scope:
        """Return what the expressions of a node may use."""
        names = self._names(node)
        if with_input:
            names["input"] = self.input(node)
        return Scope(names, self._why_null(node, after=False), self._why_unknown(node))

    def of_edge(self, node: Node, edge: Edge) -> Scope:
        """Return what the expressions of an edge may use."""
        names = self._names(node, after=edge.on == "ok")
        names["input"] = self.input(node)
        if edge.on == "ok":
            names["output"] = self.output(node.id)
        else:
            names["error"] = ERROR
        return Scope(names, self._why_null(node, after=edge.on == "ok"), self._why_unknown(node))

    def _names(self, node: Node, *, after: bool = False) -> dict[str, Schema]:
        flow = self.graph.workflow
        names: dict[str, Schema] = {
            "vars": ObjectOf({name: Field(one.schema) for name, one in flow.vars.items()}),
            "outputs": self._visible(node, after=after),
            "run": self._run(),
        }
        published = {one.publish: one.id for one in self.graph.nodes.values() if one.publish}
        if published:
            names["artifacts"] = ObjectOf(
                {
                    str(name): Field(self._present(owner, node, after=after))
                    for name, owner in published.items()
                }
            )
        loops = {name: Field(self._loop(name)) for name in self._loops_seen(node)}
        if loops:
            names["loop"] = ObjectOf(loops)
        for scope in self._around(node):
            if scope.as_name is not None:
                names[scope.as_name] = self._item(scope)
        return names

    def _run(self) -> ObjectOf:
        """Return what is known of the run itself; its folder, where it has one."""
        if self.graph.workflow.workspace.kind == "none":
            return ObjectOf(RUN)
        return ObjectOf({**RUN, "workspace": Field(STRING)})

    def _around(self, node: Node) -> list[Node]:
        found: list[Node] = []
        scope = node.scope
        while scope is not None:
            found.append(self.graph.node(scope))
            scope = self.graph.node(scope).scope
        return found[::-1]

    def _item(self, each: Node) -> Schema:
        if ("item", each.id) in self._busy:
            return ANY
        self._busy.add(("item", each.id))
        found = _typed(str(each.subject), self.of(each, with_input=False))
        self._busy.discard(("item", each.id))
        return found.item if isinstance(found, ListOf) else ANY

    def _visible(self, node: Node, *, after: bool) -> ObjectOf:
        scopes = {None, node.scope, *(one.scope for one in self._around(node))}
        return ObjectOf(
            {
                name: Field(self._present(name, node, after=after))
                for name, one in self.graph.nodes.items()
                if one.scope in scopes and one.kind not in ("done", "fail") and _has_output(one)
            }
        )

    def _present(self, name: str, node: Node, *, after: bool) -> Schema:
        there = name in self.graph.available.get(node.id, frozenset())
        if there or (after and name == node.id):
            return self.output(name)
        return optional(self.output(name))

    def _loops_seen(self, node: Node) -> list[str]:
        scopes = {node.scope, *(one.scope for one in self._around(node))}
        return [
            name
            for name, loop in self.graph.loops.items()
            if self.graph.node(loop.entry).scope in scopes
        ]

    def _loop(self, name: str) -> ObjectOf:
        sources = [
            self.output(node.id)
            for node in self.graph.nodes.values()
            if any(edge.loop == name and edge.on == "ok" for edge in node.next)
        ]
        return ObjectOf(
            {
                "iteration": Field(INTEGER),
                "max": Field(INTEGER),
                "previous_output": Field(one_of(*sources, NULL)),
            }
        )

    # -- reasons

    def _why_null(self, node: Node, *, after: bool) -> Any:
        def why(path: Path) -> str | None:
            if len(path) < 2 or path[0] != "outputs" or path[1] not in self.graph.nodes:
                return None
            name = path[1]
            if name == node.id or self.graph.ran_before(node.id, name):
                return f"{name} runs after {node.id}"
            if not self.graph.ran_before(name, node.id):
                return f"{name} never runs before {node.id}"
            return f"{node.id} can be reached without {name}"

        return why

    def _why_unknown(self, node: Node) -> Any:
        def why(path: Path) -> tuple[str, str] | None:
            if path == ("output",):
                return "'output' is known on edges alone", f"write outputs.{node.id} further on"
            if path == ("error",):
                return (
                    "'error' is known on edges with 'on: failure' alone",
                    "map it on such an edge",
                )
            if path == ("input",):
                return "a node's inputs cannot use 'input'", "write outputs.…, or map it on an edge"
            if path[:1] == ("secrets",):
                return "a secret cannot be used here", "pass it alone, as one input of a tool"
            if len(path) != 2 or path[0] != "outputs" or path[1] not in self.graph.nodes:
                return None
            other = self.graph.node(path[1])
            around = {node.scope, *(one.id for one in self._around(node)), None}
            if other.scope not in around:
                return (
                    f"{other.id!r} is inside of {other.scope!r}",
                    f"write outputs.{other.scope}.items",
                )
            return f"{other.id!r} has no output", "refer to a node that has one"

        return why


def _has_output(node: Node) -> bool:
    return node.kind != "router" or node.asks


def _typed(text: str, scope: Scope) -> Schema:
    try:
        return infer(parse(text), scope)[0]
    except ExpressionFailed:
        return ANY


def value_schema(value: Any, scope: Scope) -> Schema:
    """Return the schema of a mapped value, whose texts are templates."""
    if isinstance(value, str):
        try:
            template = read(value)
        except ExpressionFailed:
            return ANY
        if template.alone is not None:
            return infer(template.alone.expression, scope)[0]
        return STRING
    if isinstance(value, dict):
        return ObjectOf({str(name): Field(value_schema(one, scope)) for name, one in value.items()})
    if isinstance(value, list):
        return ListOf(one_of(*(value_schema(one, scope) for one in value)) if value else ANY)
    return schema_of(value)
