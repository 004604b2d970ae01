"""Types: whether every expression, template and mapping of a workflow has a sense."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.workflows.expressions import ExpressionFailed, parse
from holdfast.workflows.inference import Finding, Scope, infer
from holdfast.workflows.known import Known
from holdfast.workflows.model import Edge, Node
from holdfast.workflows.problems import Place, Problem, suggestion
from holdfast.workflows.recovery import DEFAULTS
from holdfast.workflows.schemas import (
    ANY,
    BOOLEAN,
    INTEGER,
    STRING,
    ListOf,
    ObjectOf,
    OneOf,
    Schema,
    fits,
    may_be_null,
    without_null,
)
from holdfast.workflows.scopes import Scopes, value_schema
from holdfast.workflows.templates import read, texts
from holdfast.workflows.wiring import edge_path, edge_subject

Path = tuple[str | int, ...]


def locate(place: Place, text: str, offset: int) -> Place:
    """Return the place of a position in a text that begins at a place."""
    before = text[:offset]
    lines = before.count("\n")
    if not lines:
        return place.moved(offset)
    if not place.column:
        return place
    return Place(place.file, place.line + lines, place.column + offset - before.rindex("\n") - 1)


def check_types(scopes: Scopes, known: Known) -> Iterator[Problem]:
    """Yield what is wrong in expressions, templates and mappings."""
    checker = _Checker(scopes, known)
    for node in scopes.graph.nodes.values():
        yield from checker.node(node)


class _Checker:
    def __init__(self, scopes: Scopes, known: Known) -> None:
        self._scopes = scopes
        self._known = known
        self._flow = scopes.graph.workflow

    def node(self, node: Node) -> Iterator[Problem]:
        """Yield the problems of one node and its edges."""
        subject = f"node {node.id}"
        scope = self._scopes.of(node)
        for name in ("prompt", "assignee", "signal"):
            text = getattr(node, name)
            if text is not None:
                yield from self._template(text, node.at(name), subject, scope)
        yield from self._inputs(node, subject)
        yield from self._own(node, subject, scope)
        yield from self._codes(node, subject)
        yield from self._declared(node, subject)
        for number, edge in enumerate(node.next):
            yield from self._edge(node, number, edge)

    def _own(self, node: Node, subject: str, scope: Scope) -> Iterator[Problem]:
        match node.kind:
            case "human" | "fail" if node.subject is not None:
                yield from self._template(node.subject, node.at(node.kind), subject, scope)
            case "compute" if isinstance(node.subject, dict):
                yield from self._compute(node, subject, scope)
            case "run":
                for number, word in enumerate(node.subject):
                    yield from self._template(word, node.at("run", number), subject, scope)
            case "each":
                yield from self._each(node, subject, scope)
            case "done" if node.subject is not None:
                yield from self._values(node.subject, ("done",), node, subject, scope)
                wanted = self._flow.output
                if wanted is not None:
                    found = value_schema(node.subject, scope)
                    yield from _mismatch(found, wanted, node.at("done"), subject, "the output")
            case "wait" if node.until is not None:
                yield from self._expression(node.until, node.at("until"), subject, scope, STRING)
            case "wait" if node.subject is None and node.signal is None:
                yield Problem(
                    node.at(),
                    subject,
                    "it waits for nothing",
                    "write 'wait: 2h', or add 'until' or 'signal'",
                    "wait",
                )

    def _compute(self, node: Node, subject: str, scope: Scope) -> Iterator[Problem]:
        for name, text in node.subject.items():
            wanted = _field(node.output, name)
            place = node.at("compute", name)
            if node.output is not None and wanted is None:
                yield Problem(
                    place,
                    subject,
                    f"{name!r} is not a field of its output",
                    f"its output has: {', '.join(_names(node.output))}",
                    "type",
                )
            yield from self._expression(text, place, subject, scope, wanted)
        missing = [name for name in _required(node.output) if name not in node.subject]
        if missing:
            yield Problem(
                node.at("compute"),
                subject,
                f"its output needs the field {missing[0]!r}",
                f"add '{missing[0]}: expression'",
                "type",
            )

    def _each(self, node: Node, subject: str, scope: Scope) -> Iterator[Problem]:
        yield from self._expression(str(node.subject), node.at("each"), subject, scope, ListOf(ANY))
        if node.key is not None:
            first = self._scopes.graph.node(node.body[0])
            inside = self._scopes.of(first, with_input=False)
            wanted = OneOf((STRING, INTEGER))
            yield from self._expression(node.key, node.at("key"), subject, inside, wanted)

    def _codes(self, node: Node, subject: str) -> Iterator[Problem]:
        for code in node.retry:
            close = suggestion(code, DEFAULTS) if code not in DEFAULTS else None
            if close is not None:
                yield Problem(
                    node.at("retry", code),
                    subject,
                    f"{code!r} is not a known cause of failure",
                    f"did you mean {close!r}?",
                    "retry",
                )

    def _declared(self, node: Node, subject: str) -> Iterator[Problem]:
        structured = node.output is None or isinstance(node.output, ObjectOf)
        if node.kind in ("human", "judge") and not structured:
            yield Problem(
                node.at("output"),
                subject,
                f"the output of a {node.kind} is an object, not {node.output}",
                "write a mapping of fields",
                "type",
            )
        if node.kind == "human" and node.on_expiry not in (None, "fail"):
            wanted = self._scopes.output(node.id)
            for problem in wanted.problems(node.on_expiry):
                yield Problem(
                    node.at("on_expiry"),
                    subject,
                    problem,
                    "give an answer that the form would take, or 'fail'",
                    "type",
                )

    def _inputs(self, node: Node, subject: str) -> Iterator[Problem]:
        scope = self._scopes.of(node, with_input=False)
        for name, value in node.inputs.items():
            if node.kind in ("tool", "run") and _is_secret(value):
                continue
            yield from self._values(value, ("inputs", name), node, subject, scope)
        signatures: Mapping[str, Any] | None = {
            "tool": self._known.tools,
            "workflow": self._known.workflows,
            "compute": self._known.functions,
        }.get(node.kind)
        if signatures is None or not isinstance(node.subject, str):
            return
        takes = getattr(signatures.get(node.subject), "takes", None)
        if isinstance(takes, ObjectOf):
            yield from self._taken(node, subject, takes)

    def _taken(self, node: Node, subject: str, takes: ObjectOf) -> Iterator[Problem]:
        given = self._scopes.input(node)
        for name, one in given.fields.items():
            place = node.at("inputs", name)
            wanted = _field(takes, name)
            if wanted is None:
                close = suggestion(name, takes.fields)
                remedy = (
                    f"did you mean {close!r}?" if close else f"it takes: {', '.join(takes.fields)}"
                )
                yield Problem(place, subject, f"{node.subject!r} takes no {name!r}", remedy, "type")
            elif not _is_secret(node.inputs.get(name)):
                yield from _mismatch(one.schema, wanted, place, subject, f"{name!r}")
        for name in _required(takes):
            if name not in given.fields:
                yield Problem(
                    node.at("inputs"),
                    subject,
                    f"{node.subject!r} needs {name!r}",
                    f"add '{name}: …' under inputs",
                    "type",
                )

    def _edge(self, node: Node, number: int, edge: Edge) -> Iterator[Problem]:
        path, subject = edge_path(node, number), edge_subject(node, edge)
        scope = self._scopes.of_edge(node, edge)
        if edge.when is not None:
            place = node.at(*path, "when")
            yield from self._expression(edge.when, place, subject, scope, BOOLEAN)
        for name, value in edge.inputs.items():
            yield from self._values(value, (*path, "inputs", name), node, subject, scope)
        target = self._scopes.graph.nodes.get(edge.to)
        ends = target is not None and target.kind == "done" and target.subject is None
        if ends and edge.on == "ok" and self._flow.output is not None:
            found = self._scopes.output(node.id)
            place = node.at(*path)
            yield from _mismatch(found, self._flow.output, place, subject, "the output of the run")

    # -- expressions

    def _values(
        self, value: Any, path: Path, node: Node, subject: str, scope: Scope
    ) -> Iterator[Problem]:
        for inner, text in texts(value, path):
            yield from self._template(text, node.at(*inner), subject, scope, keeps_type=True)

    def _template(
        self, text: str, place: Place, subject: str, scope: Scope, *, keeps_type: bool = False
    ) -> Iterator[Problem]:
        try:
            template = read(text)
        except ExpressionFailed as error:
            yield _unreadable(error, locate(place, text, error.start), subject)
            return
        for hole in template.holes:
            found, findings = infer(hole.expression, scope)
            yield from _placed(findings, place, text, hole.start, subject)
            whole = keeps_type and template.alone is not None
            if not whole and may_be_null(found) and not findings:
                message = f"{hole.expression.text} may be null here"
                reason = _reason(hole.expression.text, scope)
                yield Problem(
                    locate(place, text, hole.start),
                    subject,
                    message + reason,
                    "write default(…, …), or pass it by an edge",
                    "null",
                    len(hole.expression.text),
                )

    def _expression(
        self, text: str, place: Place, subject: str, scope: Scope, wanted: Schema | None
    ) -> Iterator[Problem]:
        try:
            expression = parse(text)
        except ExpressionFailed as error:
            yield _unreadable(error, locate(place, text, error.start), subject)
            return
        found, findings = infer(expression, scope)
        yield from _placed(findings, place, text, 0, subject)
        if findings or wanted is None:
            return
        if may_be_null(found) and not may_be_null(wanted):
            yield Problem(
                place,
                subject,
                f"{text} may be null here" + _reason(text, scope),
                "write default(…, …)",
                "null",
                len(text),
            )
            return
        if not fits(found, wanted):
            remedy = f"write one that is {_named(wanted)}"
            if wanted == BOOLEAN:
                remedy = "compare it with a value"
            yield Problem(
                place,
                subject,
                f"{text} is {found}, not {_named(wanted)}",
                remedy,
                "type",
                len(text),
            )


def _named(schema: Schema) -> str:
    if schema == BOOLEAN:
        return "true or false"
    return "a list" if schema == ListOf(ANY) else str(schema)


def _reason(text: str, scope: Scope) -> str:
    refs = parse(text).refs
    why = scope.why_null(refs[0].path[:2]) if len(refs) == 1 else None
    return f": {why}" if why else ""


def _unreadable(error: ExpressionFailed, place: Place, subject: str) -> Problem:
    return Problem(place, subject, str(error), error.remedy, "expression", error.length)


def _placed(
    findings: list[Finding], place: Place, text: str, offset: int, subject: str
) -> Iterator[Problem]:
    for one in findings:
        yield Problem(
            locate(place, text, offset + one.start),
            subject,
            one.message,
            one.remedy,
            one.code,
            one.length,
        )


def _mismatch(
    found: Schema, wanted: Schema, place: Place, subject: str, what: str
) -> Iterator[Problem]:
    if may_be_null(found) and not may_be_null(wanted) and fits(without_null(found), wanted):
        yield Problem(place, subject, f"{what} may be null", "write default(…, …)", "null")
    elif not fits(found, wanted):
        yield Problem(
            place, subject, f"{what} is {found}, and {wanted} is needed", f"give {wanted}", "type"
        )


def _is_secret(value: Any) -> bool:
    if not isinstance(value, str):
        return False
    try:
        alone = read(value).alone
    except ExpressionFailed:
        return False
    return alone is not None and alone.expression.text.startswith("secrets.")


def _field(schema: Schema | None, name: str) -> Schema | None:
    if not isinstance(schema, ObjectOf):
        return ANY if schema is not None else None
    if name in schema.fields:
        return schema.fields[name].schema
    return schema.others


def _names(schema: Schema | None) -> list[str]:
    return list(schema.fields) if isinstance(schema, ObjectOf) else []


def _required(schema: Schema | None) -> list[str]:
    if not isinstance(schema, ObjectOf):
        return []
    return [name for name, one in schema.fields.items() if one.required]
