"""Reading: from plain data with places to the model, with everything that is malformed named.

Files and the Python builder end here alike. What is read is well formed, not yet sound: names,
wiring and types are looked at by `holdfast.workflows.check`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from decimal import Decimal, InvalidOperation
from pathlib import Path as FilePath
from typing import Any

from holdfast.workflows.model import (
    BUDGETS,
    DEFAULT_PARALLEL,
    EFFECTS,
    IMPLICIT,
    JOINS,
    KINDS,
    ROUTERS,
    WORKSPACES,
    Edge,
    Node,
    Path,
    Places,
    Retry,
    Variable,
    Workflow,
    Workspace,
    nearest,
)
from holdfast.workflows.problems import InvalidWorkflow, Place, Problem, ordered, suggestion
from holdfast.workflows.schema_reading import SchemaBook, SchemaProblem
from holdfast.workflows.schemas import ANY, NULL, Schema, optional
from holdfast.workflows.yaml_source import KEY, Source

TOP = (
    "workflow",
    "description",
    "vars",
    "schemas",
    "start",
    "nodes",
    "loops",
    "budget",
    "workspace",
    "parallel",
    "retry",
    "output",
)
RESERVED = frozenset(
    {"vars", "input", "outputs", "output", "error", "artifacts", "loop", "run", "secrets"}
    | {"true", "false", "null", "main"}
)
ID = re.compile(r"[a-z][a-z0-9_]{0,47}")
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)")
_UNITS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def load(path: str | FilePath) -> Workflow:
    """Return the workflow that a file holds; raise InvalidWorkflow with all that is malformed."""
    file = FilePath(path)
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidWorkflow(f"{file} cannot be read: {error}") from error
    workflow, problems = read_text(text, str(path))
    if workflow is None or problems:
        raise InvalidWorkflow(f"{file} is not a valid workflow", problems)
    return workflow


def read_text(text: str, file: str = "") -> tuple[Workflow | None, list[Problem]]:
    """Return the workflow of a text, as far as it can be made out, and what is malformed in it."""
    source = Source(text, file)
    if source.data is None or source.problems:
        return None, ordered(source.problems)
    return read_data(source.data, source.places, file, text)


def read_document(document: Mapping[str, Any]) -> Workflow:
    """Return the workflow of a canonical document, as runs store it."""
    workflow, problems = read_data(dict(document), {}, "")
    if workflow is None or problems:
        raise InvalidWorkflow("the stored workflow cannot be read", problems)
    return workflow


def read_data(
    data: Any, places: Places, file: str, source: str | None = None
) -> tuple[Workflow | None, list[Problem]]:
    """Return the workflow of plain data, as far as it can be made out, and what is malformed."""
    reader = _Reader(places, file)
    workflow = reader.workflow(data, source)
    return None if reader.dropped else workflow, ordered(reader.problems)


def duration_ms(value: Any) -> int | None:
    """Return the milliseconds of `10s`, `2h`, `3d` or a number of seconds; else None."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int | float):
        return round(value * 1_000) if 0 <= value < 10**9 else None
    match = _DURATION.fullmatch(str(value).strip())
    return None if match is None else round(float(match[1]) * _UNITS[match[2]])


class _Reader:
    """One pass over the data of a workflow."""

    def __init__(self, places: Places, file: str) -> None:
        self.problems: list[Problem] = []
        self._places = places
        self._file = file
        self._book = SchemaBook()
        self._nodes: dict[str, Node] = {}
        self.dropped = False  # a node could not be read: the rest cannot be judged without it

    # -- messages

    def _at(self, path: Path) -> Place:
        found = nearest(self._places, path)
        return found if found.file or not self._file else Place(self._file)

    def _key(self, path: Path) -> Place:
        return self._places.get((*path, KEY)) or self._at(path)

    def _add(
        self, path: Path, subject: str, message: str, remedy: str, *, key: bool = False
    ) -> None:
        place = self._key(path) if key else self._at(path)
        length = len(str(path[-1])) if key and path else 1
        self.problems.append(Problem(place, subject, message, remedy, "form", length))

    # -- the whole

    def workflow(self, data: Any, source: str | None) -> Workflow | None:
        """Return the workflow."""
        if not isinstance(data, dict):
            self._add((), "file", "a workflow is a mapping", "begin with 'workflow: NAME'")
            return None
        self._known_keys((), "workflow", data, TOP)
        name = self._id(data.get("workflow"), ("workflow",), "workflow", "name", required=True)
        schemas = self._schemas(data.get("schemas", {}))
        variables = self._variables(data.get("vars", {}))
        loops = self._loops(data.get("loops", {}))
        nodes = data.get("nodes")
        if not isinstance(nodes, dict) or not nodes:
            self._add(
                ("nodes",) if "nodes" in data else (),
                "workflow",
                "a workflow needs nodes",
                "add 'nodes:' with a mapping of names to nodes",
            )
            return None
        self._read_nodes(nodes, ("nodes",), None)
        start = data.get("start", next(iter(nodes)))
        self._implicit()
        parallel = self._integer(
            data.get("parallel", DEFAULT_PARALLEL), ("parallel",), "workflow", 1
        )
        if name is None or not self._nodes:
            return None
        return Workflow(
            name=name,
            start=str(start),
            nodes=self._nodes,
            vars=variables,
            schemas=schemas,
            loops=loops,
            budget=self._budget(data.get("budget", {}), ("budget",), "workflow"),
            workspace=self._workspace(data.get("workspace")),
            parallel=parallel or DEFAULT_PARALLEL,
            retry=self._retry(data.get("retry", {}), ("retry",), "workflow"),
            output=self._schema(data.get("output"), ("output",), "workflow"),
            description=data.get("description"),
            places=self._places,
            source=source,
            file=self._file,
        )

    def _implicit(self) -> None:
        targets = {edge.to for node in self._nodes.values() for edge in node.next}
        for name in IMPLICIT:
            if name in targets and name not in self._nodes:
                self._nodes[name] = Node(id=name, kind=name)

    def _schemas(self, data: Any) -> dict[str, Schema]:
        found: dict[str, Schema] = {}
        if not self._mapping(data, ("schemas",), "workflow"):
            return found
        self._book = SchemaBook(data)
        for name in data:
            try:
                found[name] = self._book.named(name)
            except SchemaProblem as problem:
                path = ("schemas", name, *problem.path)
                self._add(path, f"schema {name}", problem.message, problem.remedy)
                self._book.give_up(name)
        return found

    def _variables(self, data: Any) -> dict[str, Variable]:
        found: dict[str, Variable] = {}
        if not self._mapping(data, ("vars",), "workflow"):
            return found
        for name, one in data.items():
            path, subject = ("vars", name), f"variable {name}"
            if self._id(name, path, subject, "name", key=True) is None:
                continue
            if isinstance(one, dict) and "default" in one and one.keys() <= _VARIABLE:
                schema = self._schema(one.get("type", "any"), (*path, "type"), subject) or ANY
                default = one["default"]
                accepted = optional(schema) if default is None else schema
                for problem in accepted.problems(default):
                    remedy = f"give a default that is {schema}"
                    self._add((*path, "default"), subject, problem, remedy)
                found[name] = Variable(
                    schema if default is not None else accepted, default, required=False
                )
                continue
            written = one["type"] if isinstance(one, dict) and one.keys() <= _VARIABLE else one
            schema = self._schema(written, path, subject) or ANY
            found[name] = Variable(schema, None, required=schema != NULL)
        return found

    def _loops(self, data: Any) -> dict[str, int | str]:
        found: dict[str, int | str] = {}
        if not self._mapping(data, ("loops",), "workflow"):
            return found
        for name, most in data.items():
            path, subject = ("loops", name), f"loop {name}"
            if self._id(name, path, subject, "name", key=True) is None:
                continue
            if isinstance(most, str) and re.fullmatch(r"vars\.[a-z][a-z0-9_]*", most.strip()):
                found[name] = most.strip()
            elif isinstance(most, int) and not isinstance(most, bool) and 1 <= most <= 1_000_000:
                found[name] = most
            else:
                self._add(
                    path,
                    subject,
                    f"{most!r} is not a valid bound of a loop",
                    "write how often it may be passed, such as 3, or a variable: vars.rounds",
                )
                found[name] = 1
        return found

    def _budget(self, data: Any, path: Path, subject: str) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if not self._mapping(data, path, subject):
            return found
        self._known_keys(path, subject, data, BUDGETS)
        for name in BUDGETS:
            if name not in data:
                continue
            value = data[name]
            if name == "usd":
                amount = _money(value)
                if amount is None:
                    self._add(
                        (*path, name),
                        subject,
                        f"{value!r} is not a valid amount of dollars",
                        "write a number above zero, such as 2 or 0.50",
                    )
                else:
                    found[name] = amount
            else:
                number = self._integer(value, (*path, name), subject, 1)
                if number is not None:
                    found[name] = number
        return found

    def _workspace(self, data: Any) -> Workspace:
        if data is None:
            return Workspace()
        path, subject = ("workspace",), "workflow"
        if isinstance(data, str):
            data = {"kind": data}
        if not self._mapping(data, path, subject):
            return Workspace()
        self._known_keys(path, subject, data, ("kind", "path", "base", "merge"))
        kind = self._choice(data.get("kind", "none"), (*path, "kind"), subject, WORKSPACES)
        merge = data.get("merge", True)
        if not isinstance(merge, bool):
            self._add((*path, "merge"), subject, "'merge' is true or false", "write true or false")
        return Workspace(
            kind or "none",
            self._text(data.get("path"), (*path, "path"), subject),
            self._text(data.get("base"), (*path, "base"), subject),
            merge is True,
        )

    # -- nodes

    def _read_nodes(self, data: dict[str, Any], path: Path, scope: str | None) -> tuple[str, ...]:
        found: list[str] = []
        for name, one in data.items():
            here, subject = (*path, name), f"node {name}"
            if self._id(name, here, subject, "name", key=True) is None:
                continue
            if name in self._nodes:
                self._add(
                    here, subject, f"there are two nodes {name!r}", "rename one of them", key=True
                )
                continue
            node = self._node(name, one, here, scope) if self._mapping(one, here, subject) else None
            if node is not None:
                found.append(name)
        self.dropped = self.dropped or len(found) < len(data)
        return tuple(found)

    def _node(self, name: str, data: dict[str, Any], path: Path, scope: str | None) -> Node | None:
        subject = f"node {name}"
        kinds = [kind for kind in KINDS if kind in data]
        if len(kinds) != 1:
            what = "has no kind" if not kinds else f"is both {kinds[0]!r} and {kinds[1]!r}"
            self._add(path, subject, what, f"give it one of: {', '.join(KINDS)}", key=True)
            return None
        kind = kinds[0]
        if name in IMPLICIT and kind != name:
            self._add(
                path, subject, f"{name!r} is the name of an end", "give it another name", key=True
            )
        self._known_keys(path, subject, data, (kind, *sorted(KINDS[kind])))
        # The node stands in the model before its body, as it does in the file.
        self._nodes[name] = Node(id=name, kind=kind)
        places = {key[len(path) :]: place for key, place in self._under(path)}
        subject_value = self._subject(kind, data[kind], (*path, kind), subject)
        body: tuple[str, ...] = ()
        if kind == "each":
            inside = data.get("do")
            if isinstance(inside, dict) and inside:
                body = self._read_nodes(inside, (*path, "do"), name)
            else:
                self._add(path, subject, "an 'each' needs a body", "add 'do:' with nodes")
        self._nodes[name] = Node(
            id=name,
            kind=kind,
            subject=subject_value,
            scope=scope,
            body=body,
            output=self._schema(data.get("output"), (*path, "output"), subject),
            inputs=self._inputs(data.get("inputs", {}), (*path, "inputs"), subject),
            next=self._edges(name, data.get("next"), (*path, "next")),
            join=self._choice(data.get("join"), (*path, "join"), subject, JOINS),
            publish=self._published(data.get("publish"), (*path, "publish"), subject),
            retry=self._retry(data.get("retry", {}), (*path, "retry"), subject),
            timeout_ms=self._duration(data.get("timeout"), (*path, "timeout"), subject),
            writes=self._choice(data.get("writes"), (*path, "writes"), subject, ("workspace",))
            is not None,
            description=data.get("description"),
            places=places,
            **self._own(kind, data, path, subject),
        )
        return self._nodes[name]

    def _under(self, path: Path) -> Iterable[tuple[Path, Place]]:
        size = len(path)
        return [(key, place) for key, place in self._places.items() if key[:size] == path]

    def _own(self, kind: str, data: dict[str, Any], path: Path, subject: str) -> dict[str, Any]:
        def text(name: str) -> str | None:
            return self._text(data.get(name), (*path, name), subject)

        many = data.get("many", False)
        if not isinstance(many, bool):
            self._add((*path, "many"), subject, "'many' is true or false", "write true or false")
        limits = data.get("limits", {})
        if not self._mapping(limits, (*path, "limits"), subject):
            limits = {}
        session = self._choice(
            data.get("session", "fresh"), (*path, "session"), subject, ("fresh", "continue")
        )
        parallel = data.get("parallel")
        if parallel is not None:
            parallel = self._integer(parallel, (*path, "parallel"), subject, 1)
        as_name = data.get("as", "item" if kind == "each" else None)
        if as_name is not None:
            as_name = self._id(as_name, (*path, "as"), subject, "name of an item")
        return {
            "prompt": text("prompt"),
            "model": text("model"),
            "limits": limits,
            "session": session or "fresh",
            "assignee": text("assignee"),
            "many": many is True,
            "deadline_ms": self._duration(data.get("deadline"), (*path, "deadline"), subject),
            "on_expiry": data.get("on_expiry"),
            "effect": self._choice(data.get("effect"), (*path, "effect"), subject, EFFECTS),
            "as_name": as_name,
            "key": text("key"),
            "parallel": parallel,
            "budget": self._budget(data.get("budget", {}), (*path, "budget"), subject),
            "until": text("until"),
            "signal": text("signal"),
            "code": text("code"),
        }

    def _subject(self, kind: str, value: Any, path: Path, subject: str) -> Any:
        match kind:
            case "router":
                return self._choice(value, path, subject, ROUTERS) or "condition"
            case "run":
                words = [value] if isinstance(value, str) else value
                if not isinstance(words, list) or not words or not all(map(_is_word, words)):
                    self._add(path, subject, "'run' is a program with arguments", "write a list")
                    return [""]
                return [str(word) for word in words]
            case "compute":
                return self._computed(value, path, subject)
            case "wait":
                return self._duration(value, path, subject)
            case "done":
                return value if value is None or isinstance(value, dict) else {"value": value}
            case "fail":
                return None if value is None else self._text(value, path, subject)
        found = self._text(value, path, subject)
        if not found:
            self._add(path, subject, f"{kind!r} names nothing", f"write '{kind}: NAME'")
        return found or ""

    def _computed(self, value: Any, path: Path, subject: str) -> Any:
        if isinstance(value, str) and value.strip():
            return value.strip()
        if isinstance(value, dict) and value:
            found: dict[str, str] = {}
            for name, one in value.items():
                if isinstance(one, str):
                    found[name] = one
                elif isinstance(one, int | float | bool) or one is None:
                    found[name] = json.dumps(one)
                else:
                    self._add(
                        (*path, name),
                        subject,
                        f"{name!r} is not an expression",
                        "write it as text, quoted where YAML would read it otherwise",
                    )
            return found
        self._add(
            path,
            subject,
            "'compute' is a mapping of fields to expressions, or the name of a function",
            "write 'compute: {field: expression}'",
        )
        return {}

    def _edges(self, name: str, data: Any, path: Path) -> tuple[Edge, ...]:
        if data is None:
            return ()
        subject = f"node {name}"
        if isinstance(data, str):
            return (Edge(data),)
        if isinstance(data, dict):
            data, paths = [data], [path]
        elif isinstance(data, list):
            paths = [(*path, number) for number in range(len(data))]
        else:
            self._add(path, subject, f"{data!r} leads nowhere", "write 'next: NODE' or a list")
            return ()
        found: list[Edge] = []
        for one, here in zip(data, paths, strict=True):
            if isinstance(one, str):
                found.append(Edge(one))
            elif isinstance(one, dict) and isinstance(one.get("to"), str):
                found.append(self._edge(name, one, here))
            else:
                self._add(here, subject, "an edge needs a target", "write '{to: NODE}'")
                found.append(Edge(""))
        return tuple(found)

    def _edge(self, name: str, data: dict[str, Any], path: Path) -> Edge:
        subject = f"edge {name} → {data['to']}"
        self._known_keys(path, subject, data, ("to", "when", "inputs", "loop", "on"))
        when = data.get("when")
        if isinstance(when, bool):
            when = "true" if when else "false"
        return Edge(
            data["to"],
            self._text(when, (*path, "when"), subject),
            self._inputs(data.get("inputs", {}), (*path, "inputs"), subject),
            self._text(data.get("loop"), (*path, "loop"), subject),
            self._choice(data.get("on", "ok"), (*path, "on"), subject, ("ok", "failure")) or "ok",
        )

    # -- parts

    def _known_keys(
        self, path: Path, subject: str, data: Mapping[str, Any], known: Iterable[str]
    ) -> None:
        names = list(known)
        for key in data:
            if key not in names:
                close = suggestion(str(key), names)
                remedy = f"did you mean {close!r}?" if close else f"known are: {', '.join(names)}"
                self._add((*path, key), subject, f"there is no field {key!r}", remedy, key=True)

    def _mapping(self, data: Any, path: Path, subject: str) -> bool:
        if isinstance(data, dict):
            return True
        if data is not None:
            self._add(path, subject, f"{path[-1]!r} is a mapping", "write 'name: value' lines")
        return False

    def _id(
        self,
        value: Any,
        path: Path,
        subject: str,
        what: str,
        *,
        required: bool = False,
        key: bool = False,
    ) -> str | None:
        if value is None and required:
            self._add((), subject, f"the workflow has no {what}", "begin with 'workflow: NAME'")
            return None
        if isinstance(value, str) and ID.fullmatch(value) and value not in RESERVED:
            return value
        taken = isinstance(value, str) and value in RESERVED
        message = f"{value!r} is not a valid {what}"
        remedy = "it has a meaning already; take another" if taken else _ID_RULE
        self._add(path, subject, message, remedy, key=key)
        return None

    def _text(self, value: Any, path: Path, subject: str) -> str | None:
        if value is None or isinstance(value, str):
            return value
        if isinstance(value, int | float) and not isinstance(value, bool):
            return str(value)
        self._add(path, subject, f"{path[-1]!r} is a text", "write it in quotes")
        return None

    def _integer(self, value: Any, path: Path, subject: str, least: int) -> int | None:
        if isinstance(value, int) and not isinstance(value, bool) and least <= value <= 10**12:
            return value
        self._add(
            path,
            subject,
            f"{value!r} is not a valid number for {path[-1]!r}",
            f"write a whole number from {least}",
        )
        return None

    def _choice(self, value: Any, path: Path, subject: str, words: tuple[str, ...]) -> str | None:
        if value is None or value in words:
            return value  # type: ignore[no-any-return]
        close = suggestion(str(value), words)
        remedy = f"did you mean {close!r}?" if close else f"write one of: {', '.join(words)}"
        self._add(path, subject, f"{value!r} is not a valid {path[-1]}", remedy)
        return None

    def _duration(self, value: Any, path: Path, subject: str) -> int | None:
        if value is None:
            return None
        found = duration_ms(value)
        if found is None:
            self._add(
                path, subject, f"{value!r} is not a valid duration", "write 30s, 10m, 2h or 3d"
            )
        return found

    def _schema(self, value: Any, path: Path, subject: str) -> Schema | None:
        if value is None:
            return None
        try:
            return self._book.read(value)
        except SchemaProblem as problem:
            self._add((*path, *problem.path), subject, problem.message, problem.remedy)
            return ANY

    def _inputs(self, value: Any, path: Path, subject: str) -> dict[str, Any]:
        if not self._mapping(value, path, subject):
            return {}
        for name in value:
            if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", str(name)):
                self._add((*path, name), subject, f"{name!r} is not a valid name", _ID_RULE)
        return dict(value)

    def _published(self, value: Any, path: Path, subject: str) -> str | None:
        return None if value is None else self._id(value, path, subject, "name of an artifact")

    def _retry(self, value: Any, path: Path, subject: str) -> dict[str, Retry]:
        found: dict[str, Retry] = {}
        if not self._mapping(value, path, subject):
            return found
        for code, rule in value.items():
            here = (*path, code)
            if not self._mapping(rule, here, subject):
                continue
            self._known_keys(here, subject, rule, ("times", "wait", "at_most", "then"))
            times = self._integer(rule.get("times", 0), (*here, "times"), subject, 0)
            wait = self._duration(rule.get("wait"), (*here, "wait"), subject)
            then = rule.get("then", "fail")
            found[code] = Retry(
                times or 0,
                wait or 0,
                self._duration(rule.get("at_most"), (*here, "at_most"), subject),
                self._choice(then, (*here, "then"), subject, ("fail", "ask")) or "fail",
            )
        return found


_VARIABLE = {"type", "default", "description"}
_ID_RULE = "names have up to 48 of a-z, 0-9 and _, and begin with a letter"


def _is_word(value: Any) -> bool:
    return isinstance(value, str | int | float) and not isinstance(value, bool)


def _money(value: Any) -> str | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        amount = Decimal(str(value))
    except InvalidOperation:
        return None
    return f"{amount.normalize():f}" if amount.is_finite() and amount > 0 else None
