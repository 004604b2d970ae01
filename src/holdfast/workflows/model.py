"""The model: a workflow as data, whether it was written in YAML or in Python.

One class serves all kinds of nodes; `KINDS` says which fields each kind has. Places are carried
along for messages and count for nothing when two models are compared. The canonical document of a
model is what is stored with a run: what reads it again gives an equal model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.core.payloads import slot
from holdfast.workflows.problems import NOWHERE, Place
from holdfast.workflows.schemas import ANY, NULL, ObjectOf, OneOf, Schema

Path = tuple[str | int, ...]
Places = Mapping[Path, Place]

_TASK = {"output", "inputs", "next", "join", "publish", "retry", "timeout", "writes", "description"}

KINDS: dict[str, frozenset[str]] = {
    "agent": frozenset(_TASK | {"prompt", "model", "limits", "session", "assignee"}),
    "judge": frozenset(_TASK | {"prompt", "model", "limits"}),
    "router": frozenset(
        {"next", "join", "inputs", "retry", "timeout", "description", "prompt", "model", "many"}
    ),
    "human": frozenset((_TASK - {"timeout"}) | {"assignee", "deadline", "on_expiry"}),
    "tool": frozenset(_TASK | {"effect"}),
    "run": frozenset(_TASK | {"effect"}),
    "compute": frozenset(_TASK - {"writes", "timeout"}),
    "each": frozenset({"next", "join", "description", "publish", "as", "key", "parallel", "do"}),
    "workflow": frozenset(_TASK | {"budget"}),
    "wait": frozenset({"next", "join", "output", "description", "until", "signal"}),
    "done": frozenset({"join", "description"}),
    "fail": frozenset({"join", "description", "code"}),
}
"""The fields of each kind of node, beside the one that names the kind."""

ROUTERS = ("all", "condition", "round_robin", "model")
JOINS = ("all", "best_effort", "first")
EFFECTS = ("pure", "idempotent", "once")
BUDGETS = ("usd", "tokens", "executions", "seconds", "branches")
WORKSPACES = ("none", "directory", "worktree")
IMPLICIT = ("done", "fail")
"""Ends that need no declaration."""

DEFAULT_PARALLEL = 8
DEFAULT_BRANCHES = 256
"""How many branches may be open at a time, waiting ones included, where no budget says so."""


@dataclass(frozen=True, slots=True)
class Edge:
    """Where a node leads."""

    to: str
    when: str | None = None
    inputs: Mapping[str, Any] = field(default_factory=dict)
    loop: str | None = None
    on: str = "ok"


@dataclass(frozen=True, slots=True)
class Retry:
    """What is done about one kind of failure."""

    times: int = 0
    wait_ms: int = 0
    at_most_ms: int | None = None
    then: str = "fail"


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable of a workflow, given when a run starts."""

    schema: Schema
    default: Any = None
    required: bool = True


@dataclass(frozen=True, slots=True)
class Workspace:
    """Where a run has its files."""

    kind: str = "none"
    path: str | None = None  # of the directory or the repository
    base: str | None = None  # the commit to begin with
    merge: bool = True  # whether a finished run is merged into the branch it began on


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One node: what it does, and where it leads."""

    id: str
    kind: str
    subject: Any = None
    scope: str | None = None  # the `each` whose body it belongs to
    output: Schema | None = None
    inputs: Mapping[str, Any] = field(default_factory=dict)
    next: tuple[Edge, ...] = ()
    join: str | None = None
    publish: str | None = None
    retry: Mapping[str, Retry] = field(default_factory=dict)
    timeout_ms: int | None = None
    writes: bool = False
    prompt: str | None = None
    model: str | None = None
    limits: Mapping[str, Any] = field(default_factory=dict)
    session: str = "fresh"
    assignee: str | None = None
    many: bool = False
    deadline_ms: int | None = None
    on_expiry: Any = None
    effect: str | None = None  # by default that of the tool; of a program, `once`
    as_name: str | None = None
    key: str | None = None
    parallel: int | None = None
    body: tuple[str, ...] = ()
    budget: Mapping[str, Any] = field(default_factory=dict)
    until: str | None = None
    signal: str | None = None
    code: str | None = None
    description: str | None = field(default=None, compare=False)
    places: Places = field(default_factory=dict, compare=False, repr=False)

    def at(self, *path: str | int) -> Place:
        """Return the place of a part of the node, or of the nearest part around it."""
        return nearest(self.places, path)

    @property
    def forks(self) -> bool:
        """Tell whether the node fans out."""
        return self.kind == "each" or (
            self.kind == "router" and (self.subject == "all" or (self.many and self.asks))
        )

    @property
    def asks(self) -> bool:
        """Tell whether the node is a router that asks a model."""
        return self.kind == "router" and self.subject == "model"

    @property
    def calls(self) -> bool:
        """Tell whether a call carries the node out; else the run settles it by itself."""
        if self.kind == "compute":
            return isinstance(self.subject, str)
        return self.asks or self.kind not in ("router", "each", "done", "fail")

    @property
    def free(self) -> bool:
        """Tell whether a budget of executions leaves the node out."""
        return not self.calls or self.kind in ("compute", "wait", "human")


@dataclass(frozen=True, slots=True, kw_only=True)
class Workflow:
    """A graph of nodes, with all it takes to run it."""

    name: str
    start: str
    nodes: Mapping[str, Node]
    vars: Mapping[str, Variable] = field(default_factory=dict)
    schemas: Mapping[str, Schema] = field(default_factory=dict)
    loops: Mapping[str, int | str] = field(default_factory=dict)
    budget: Mapping[str, Any] = field(default_factory=dict)
    workspace: Workspace = field(default_factory=Workspace)
    parallel: int = DEFAULT_PARALLEL
    retry: Mapping[str, Retry] = field(default_factory=dict)
    output: Schema | None = None
    description: str | None = field(default=None, compare=False)
    places: Places = field(default_factory=dict, compare=False, repr=False)
    source: str | None = field(default=None, compare=False, repr=False)
    file: str = field(default="", compare=False)

    def at(self, *path: str | int) -> Place:
        """Return the place of a part of the workflow, or of the nearest part around it."""
        return nearest(self.places, path)

    @property
    def branches(self) -> int:
        """Return how many branches may be open at a time."""
        return int(self.budget.get("branches", DEFAULT_BRANCHES))

    def document(self) -> dict[str, Any]:
        """Return the canonical model, which says all that matters and nothing else."""
        return _Document(self).made()

    def hash(self) -> str:
        """Return the content id of the canonical model."""
        return slot(self.document(), "settings").id


def nearest(places: Places, path: Path) -> Place:
    """Return the place of a path, or of the nearest one around it."""
    while path not in places and path:
        path = path[:-1]
    return places.get(path, NOWHERE)


class _Document:
    """The canonical document of a workflow: names sorted, defaults left out."""

    def __init__(self, workflow: Workflow) -> None:
        self._flow = workflow

    def made(self) -> dict[str, Any]:
        flow = self._flow
        named = {name: schema_document(schema) for name, schema in sorted(flow.schemas.items())}
        return _kept(
            {
                "workflow": flow.name,
                "start": flow.start,
                "vars": {name: _variable(one) for name, one in sorted(flow.vars.items())},
                "schemas": named,
                "loops": dict(sorted(flow.loops.items())),
                "budget": dict(sorted(flow.budget.items())),
                "workspace": _workspace(flow.workspace),
                "parallel": flow.parallel if flow.parallel != DEFAULT_PARALLEL else None,
                "retry": _retries(flow.retry),
                "output": None if flow.output is None else schema_document(flow.output),
                "nodes": self._nodes(None),
            }
        )

    def _nodes(self, scope: str | None) -> dict[str, Any]:
        inside = [node for node in self._flow.nodes.values() if node.scope == scope]
        first = self._flow.start if scope is None else self._flow.nodes[scope].body[0]
        # A body begins with its first node, so that one keeps its place.
        inside.sort(key=lambda node: (node.id != first, node.id))
        return {node.id: self._node(node) for node in inside}

    def _node(self, node: Node) -> dict[str, Any]:
        rest = {
            "output": None if node.output is None else schema_document(node.output),
            "inputs": dict(sorted(node.inputs.items())),
            "next": [_edge(edge) for edge in node.next],
            "join": node.join,
            "publish": node.publish,
            "retry": _retries(node.retry),
            "timeout": _duration(node.timeout_ms),
            "writes": "workspace" if node.writes else None,
            "prompt": node.prompt,
            "model": node.model,
            "limits": dict(sorted(node.limits.items())),
            "session": node.session if node.session != "fresh" else None,
            "assignee": node.assignee,
            "many": node.many or None,
            "deadline": _duration(node.deadline_ms),
            "on_expiry": node.on_expiry,
            "effect": node.effect,
            "as": node.as_name,
            "key": node.key,
            "parallel": node.parallel,
            "do": self._nodes(node.id) if node.kind == "each" else None,
            "budget": dict(sorted(node.budget.items())),
            "until": node.until,
            "signal": node.signal,
            "code": node.code,
        }
        subject = _duration(node.subject) if node.kind == "wait" else node.subject
        return {node.kind: subject} | _kept(rest)


def schema_document(schema: Schema) -> Any:
    """Return a schema as models hold it: JSON Schema, or a word where that would be empty."""
    return "any" if schema == ANY else schema.document()


def _kept(parts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: part for name, part in parts.items() if part not in (None, {}, [], ())}


def _variable(one: Variable) -> dict[str, Any]:
    rest = {} if one.required else {"default": one.default}
    return {"type": schema_document(one.schema), **rest}


def _workspace(one: Workspace) -> dict[str, Any]:
    if one == Workspace():
        return {}
    rest = _kept({"path": one.path, "base": one.base, "merge": None if one.merge else False})
    return {"kind": one.kind, **rest}


def _retries(rules: Mapping[str, Retry]) -> dict[str, Any]:
    return {
        code: {"times": rule.times, "wait": _duration(rule.wait_ms)}
        | _kept({"at_most": _duration(rule.at_most_ms)})
        | ({"then": rule.then} if rule.then != "fail" else {})
        for code, rule in sorted(rules.items())
    }


def _duration(milliseconds: int | None) -> str | None:
    return None if milliseconds is None else f"{milliseconds}ms"


def _edge(edge: Edge) -> dict[str, Any]:
    return {"to": edge.to} | _kept(
        {
            "when": edge.when,
            "inputs": dict(sorted(edge.inputs.items())),
            "loop": edge.loop,
            "on": edge.on if edge.on != "ok" else None,
        }
    )


def fields_of(schema: Schema | None) -> Iterator[tuple[str, Schema]]:
    """Yield the fields of an object's schema."""
    options = schema.options if isinstance(schema, OneOf) else (schema,)
    for option in options:
        if isinstance(option, ObjectOf):
            for name, one in option.fields.items():
                yield name, one.schema if one.required else OneOf((one.schema, NULL))
