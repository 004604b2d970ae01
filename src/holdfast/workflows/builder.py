"""The builder: workflows written in Python, with the same model behind them as files.

Every call notes the line of its caller, so that a problem is reported where it was written. What is
collected is the same data that a file holds, and the same reader makes the model of it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from holdfast.workflows.model import Path, schema_document
from holdfast.workflows.model import Workflow as Model
from holdfast.workflows.problems import InvalidWorkflow, Place
from holdfast.workflows.reading import read_data
from holdfast.workflows.schema_reading import SchemaProblem, from_python
from holdfast.workflows.schemas import Schema, schema_of
from holdfast.workflows.yaml_source import places_of

_PACKAGE = __name__


def _here() -> Place:
    """Return the line outside of this module that is being run."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__") == _PACKAGE:
        frame = frame.f_back
    return Place(frame.f_code.co_filename, frame.f_lineno)


class NodeHandle:
    """A node of a workflow that is being written."""

    def __init__(self, scope: Scope, name: str) -> None:
        self._scope = scope
        self.name = name

    def to(
        self,
        target: NodeHandle | str,
        *,
        when: str | None = None,
        inputs: Mapping[str, Any] | None = None,
        loop: str | None = None,
        on: str = "ok",
    ) -> NodeHandle | str:
        """Add an edge to another node; return that node, so that lines can be chained."""
        name = target.name if isinstance(target, NodeHandle) else target
        edge: dict[str, Any] = {"to": name}
        for key, value in (("when", when), ("inputs", inputs), ("loop", loop)):
            if value is not None:
                edge[key] = dict(value) if isinstance(value, Mapping) else value
        if on != "ok":
            edge["on"] = on
        self._scope._add_edge(self.name, edge, _here())
        return target


class Scope:
    """Where nodes are added: a workflow, or the body of an `each`."""

    def __init__(self, data: dict[str, Any], places: dict[Path, Place], path: Path) -> None:
        self._data = data
        self._places = places
        self._path = path

    def agent(self, name: str, agent: str, **fields: Any) -> NodeHandle:
        """Add an agent, which works in a session of its own."""
        return self._add("agent", name, agent, fields)

    def judge(self, name: str, agent: str, **fields: Any) -> NodeHandle:
        """Add a judge, which gives a structured verdict."""
        return self._add("judge", name, agent, fields)

    def router(self, name: str, mode: str = "condition", **fields: Any) -> NodeHandle:
        """Add a router: `all`, `condition`, `round_robin` or `model`."""
        return self._add("router", name, mode, fields)

    def human(self, name: str, question: str, **fields: Any) -> NodeHandle:
        """Add a question to a person."""
        return self._add("human", name, question, fields)

    def tool(self, name: str, tool: str, **fields: Any) -> NodeHandle:
        """Add a call of a registered tool."""
        return self._add("tool", name, tool, fields)

    def run(self, name: str, program: list[str], **fields: Any) -> NodeHandle:
        """Add a program that is run under the capability profile."""
        return self._add("run", name, list(program), fields)

    def compute(self, name: str, what: Mapping[str, str] | str, **fields: Any) -> NodeHandle:
        """Add expressions by field, or a registered function."""
        subject = what if isinstance(what, str) else dict(what)
        return self._add("compute", name, subject, fields)

    def each(
        self, name: str, items: str, *, do: Callable[[Scope], Any], **fields: Any
    ) -> NodeHandle:
        """Add a body that is run for each item of a list."""
        handle = self._add("each", name, items, fields | {"do": {}})
        inside = self._data[name]["do"]
        do(Scope(inside, self._places, (*self._path, name, "do")))
        return handle

    def workflow(self, name: str, workflow: str, **fields: Any) -> NodeHandle:
        """Add a run inside of the run."""
        return self._add("workflow", name, workflow, fields)

    def wait(self, name: str, duration: str | None = None, **fields: Any) -> NodeHandle:
        """Add a wait for a time or a signal."""
        return self._add("wait", name, duration, fields)

    def done(self, name: str = "done", output: Any = None, **fields: Any) -> NodeHandle:
        """Add an end of the run, with its output."""
        return self._add("done", name, output, fields)

    def fail(self, name: str = "fail", message: str | None = None, **fields: Any) -> NodeHandle:
        """Add an end of the run that is a failure."""
        return self._add("fail", name, message, fields)

    def _add(self, kind: str, name: str, subject: Any, fields: Mapping[str, Any]) -> NodeHandle:
        place = _here()
        if name in self._data:
            raise InvalidWorkflow(f"{place}: there are two nodes {name!r}; rename one of them")
        written = {key.removesuffix("_"): value for key, value in fields.items()}
        if "output" in written:
            written["output"] = _schema(written["output"], place)
        # None stands for a field that is not there.
        node = {key: value for key, value in written.items() if value is not None}
        self._data[name] = {kind: subject, **node}
        self._places.update(places_of(self._data[name], place, (*self._path, name)))
        return NodeHandle(self, name)

    def _add_edge(self, name: str, edge: dict[str, Any], place: Place) -> None:
        node = self._data[name]
        edges = node.setdefault("next", [])
        if not isinstance(edges, list):
            edges = node["next"] = [{"to": edges}]
        path = (*self._path, name, "next", len(edges))
        edges.append(edge)
        self._places.update(places_of(edge, place, path))


def _schema(source: Any, place: Place) -> Any:
    if isinstance(source, str | Mapping):
        return source
    try:
        schema = source if isinstance(source, Schema) else from_python(source)
    except SchemaProblem as problem:
        raise InvalidWorkflow(f"{place}: {problem.message}; {problem.remedy}") from problem
    return schema_document(schema)


class Workflow(Scope):
    """A workflow that is being written."""

    def __init__(
        self,
        name: str,
        *,
        vars: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> None:
        place = _here()
        super().__init__({}, {}, ("nodes",))
        written = {key: value for key, value in fields.items() if value is not None}
        if "output" in written:
            written["output"] = _schema(written["output"], place)
        self._top: dict[str, Any] = {"workflow": name, **written, "nodes": self._data}
        if vars:
            self._top["vars"] = {key: _variable(value, place) for key, value in vars.items()}
        self._places.update(places_of({**self._top, "nodes": {}}, place))

    def build(self) -> Model:
        """Return the workflow; raise InvalidWorkflow with all that is malformed in it."""
        workflow, problems = read_data(self._top, dict(self._places), self._places[()].file)
        if workflow is None or problems:
            raise InvalidWorkflow(f"workflow {self._top['workflow']!r} is not valid", problems)
        return workflow


def _variable(value: Any, place: Place) -> Any:
    """Return a variable as files have it: a type, or a default that says its type."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, type | Schema) or hasattr(value, "__origin__"):
        return {"type": _schema(value, place)}
    return {"type": schema_document(schema_of(value)), "default": value}


__all__ = ["NodeHandle", "Scope", "Workflow"]
