"""Open cases: values for which no edge of a node is left.

Conditions over booleans, choices and numbers are tried with every combination that can make a
difference: numbers at, beside and between their constants, texts that are compared and one that is
not. Where that cannot be done, or would take too many, an edge without a condition is asked for.
Loop edges cover nothing, because a loop may be used up.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Collection, Iterator
from itertools import product
from typing import Any

from holdfast.workflows.evaluation import condition
from holdfast.workflows.expressions import Expression, ExpressionFailed, Path, parse, path_of
from holdfast.workflows.inference import Scope, infer
from holdfast.workflows.model import Node
from holdfast.workflows.problems import Problem
from holdfast.workflows.schemas import (
    BOOLEAN,
    INTEGER,
    NULL,
    NUMBER,
    STRING,
    Choice,
    OneOf,
    Schema,
    fits,
)
from holdfast.workflows.scopes import Scopes

MAX_CASES = 4_096
_OTHER = "\0something else"
_REMEDY = "add an edge without 'when' as the last one"


def check_cases(scopes: Scopes, skip: Collection[str] = ()) -> Iterator[Problem]:
    """Yield the nodes that may end with no edge to take, but for those to skip."""
    for node in scopes.graph.nodes.values():
        if node.kind in ("done", "fail") or node.id in skip or _is_exempt(node):
            continue
        problem = _check_node(node, scopes)
        if problem is not None:
            yield problem


def _is_exempt(node: Node) -> bool:
    if node.kind == "router" and node.subject != "condition":
        # Without a condition on them, only used-up loops can leave such a router nowhere to go.
        return any(edge.loop is None and edge.on == "ok" for edge in node.next)
    return not any(edge.on == "ok" for edge in node.next)


def _check_node(node: Node, scopes: Scopes) -> Problem | None:
    edges = [edge for edge in node.next if edge.on == "ok"]
    lasting = [edge for edge in edges if edge.loop is None]
    if any(edge.when is None for edge in lasting):
        return None
    loops = [edge.loop for edge in edges if edge.loop is not None]
    used_up = f" and {' and '.join(dict.fromkeys(map(str, loops)))} is used up" if loops else ""
    conditions = [parse(edge.when) for edge in lasting if edge.when is not None]
    if not conditions:
        message = f"no edge is left when {used_up.removeprefix(' and ')}"
        return _problem(node, message)
    scope = scopes.of_edge(node, edges[0])
    domains = _domains(conditions, scope)
    if domains is None:
        return _problem(node, f"its conditions may all be false{used_up}")
    for case in product(*domains.values()):
        values = dict(zip(domains, case, strict=True))
        if not _holds(conditions, values):
            shown = " and ".join(
                f"{'.'.join(path)} is {_shown(one)}" for path, one in values.items()
            )
            return _problem(node, f"no edge is left when {shown}{used_up}")
    return None


def _problem(node: Node, message: str) -> Problem:
    return Problem(node.at("next"), f"node {node.id}", message, _REMEDY, "open_case")


def _shown(value: Any) -> str:
    if value == _OTHER:
        return "something else"
    return value if isinstance(value, str) else json.dumps(value)


def _holds(conditions: list[Expression], values: dict[Path, Any]) -> bool:
    data: dict[str, Any] = {}
    for path, value in values.items():
        at = data
        for key in path[:-1]:
            at = at.setdefault(key, {})
        at[path[-1]] = value
    for one in conditions:
        try:
            if condition(one, data):
                return True
        except ExpressionFailed:
            continue  # it fails when the run comes here, which is another matter
    return False


def _domains(conditions: list[Expression], scope: Scope) -> dict[Path, list[Any]] | None:
    """Return for each path of the conditions the values that make a difference."""
    uses: dict[Path, list[Any]] = {}
    for one in conditions:
        if not _collect(one.tree, uses):
            return None
    if any(one != other and one == other[: len(one)] for one in uses for other in uses):
        return None
    domains: dict[Path, list[Any]] = {}
    total = 1
    for path, constants in uses.items():
        schema, findings = infer(parse(".".join(path)), scope)
        values = None if findings else _values(schema, constants)
        if values is None:
            return None
        domains[path] = values
        total *= len(values)
    return domains if total <= MAX_CASES else None


def _collect(node: ast.AST, uses: dict[Path, list[Any]]) -> bool:
    """Note which paths a condition looks at and what it compares them with; False if it cannot."""
    match node:
        case ast.BoolOp():
            return all(_collect(part, uses) for part in node.values)
        case ast.UnaryOp(op=ast.Not()):
            return _collect(node.operand, uses)
        case ast.Compare():
            return _collect_comparison(node, uses)
        case ast.Name(id="true" | "false"):
            return True
    path = path_of(node)
    if path is None:
        return False
    uses.setdefault(path, [])
    return True


def _collect_comparison(node: ast.Compare, uses: dict[Path, list[Any]]) -> bool:
    sides = [node.left, *node.comparators]
    paths = [path_of(side) for side in sides]
    found = [
        path for path in paths if path is not None and path[0] not in ("true", "false", "null")
    ]
    if len(found) != 1:
        return False
    constants: list[Any] = []
    for side, path in zip(sides, paths, strict=True):
        if path == found[0]:
            continue
        try:
            constants.append(ast.literal_eval(_python(side)))
        except (ValueError, TypeError, SyntaxError):
            return False
    known = uses.setdefault(found[0], [])
    for one in constants:
        known += one if isinstance(one, list) else [one]
    return True


def _python(node: ast.AST) -> ast.expr:
    """Return a literal as Python writes it."""
    words = {"true": True, "false": False, "null": None}
    if isinstance(node, ast.Name) and node.id in words:
        return ast.Constant(words[node.id])
    if isinstance(node, ast.List):
        return ast.List([_python(item) for item in node.elts], ast.Load())
    assert isinstance(node, ast.expr)
    return node


def _values(schema: Schema, constants: list[Any]) -> list[Any] | None:
    if isinstance(schema, OneOf):
        parts = [_values(option, constants) for option in schema.options]
        return None if None in parts else [one for part in parts for one in part or ()]
    if isinstance(schema, Choice):
        return list(schema.values)
    if schema == NULL:
        return [None]
    if fits(schema, BOOLEAN) and schema.__class__ is BOOLEAN.__class__:
        return [True, False]
    if fits(schema, NUMBER) and schema.__class__ is NUMBER.__class__:
        return _numbers(constants, whole=fits(schema, INTEGER))
    if schema == STRING:
        return [*dict.fromkeys(one for one in constants if isinstance(one, str)), _OTHER]
    return None


def _numbers(constants: list[Any], *, whole: bool) -> list[Any] | None:
    points = sorted({one for one in constants if isinstance(one, int | float)})
    if not points:
        return [0]
    step = 1 if whole else 0.5
    found: dict[Any, None] = {}
    for number, point in enumerate(points):
        found |= dict.fromkeys([point - step, point, point + step])
        if number + 1 < len(points):
            middle = (point + points[number + 1]) / 2
            found |= dict.fromkeys([int(middle) if whole else middle])
    return sorted(found)
