"""Inference: the schema of an expression's value, and what is wrong with it before it is run.

What cannot be known is `any` and is left to the run. What is known to go wrong is reported with its
place: a field that is not there, a comparison that has no sense, a value that may be null.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.workflows.expressions import CONSTANTS, Expression, Path, path_of, span
from holdfast.workflows.problems import suggestion
from holdfast.workflows.schemas import (
    ANY,
    BOOLEAN,
    INTEGER,
    NULL,
    NUMBER,
    STRING,
    Choice,
    Field,
    ListOf,
    ObjectOf,
    OneOf,
    Schema,
    fits,
    may_be_null,
    one_of,
    schema_of,
    without_null,
)


@dataclass(frozen=True, slots=True)
class Finding:
    """Something wrong in an expression, with its place in the text."""

    start: int
    length: int
    message: str
    remedy: str
    code: str = "type"


@dataclass(frozen=True, slots=True)
class Scope:
    """The names that an expression may use, and why a value of them may be missing."""

    names: Mapping[str, Schema]
    why_null: Callable[[Path], str | None] = field(default=lambda path: None)
    why_unknown: Callable[[Path], tuple[str, str] | None] = field(default=lambda path: None)


def infer(expression: Expression, scope: Scope) -> tuple[Schema, list[Finding]]:
    """Return the schema of an expression's value, and what is wrong with it."""
    inference = _Inference(scope)
    return inference.of(expression.tree), inference.findings


class _Inference:
    def __init__(self, scope: Scope) -> None:
        self.findings: list[Finding] = []
        self._scope = scope
        self._bound: dict[str, Schema] = {}
        self._present: frozenset[Path] = frozenset()
        self._guarded = 0

    def _add(self, node: ast.AST, message: str, remedy: str, code: str = "type") -> Schema:
        start, length = span(node)
        self.findings.append(Finding(start, length, message, remedy, code))
        return ANY

    def of(self, node: ast.AST) -> Schema:
        """Return the schema of a part of the expression."""
        return _FORMS[type(node)](self, node)

    def _constant(self, node: ast.Constant) -> Schema:
        value = node.value
        return Choice((value,)) if isinstance(value, str) else schema_of(value)

    def _list(self, node: ast.List) -> Schema:
        items = [self.of(item) for item in node.elts]
        return ListOf(one_of(*map(_wide, items)) if items else ANY)

    def _object(self, node: ast.Dict) -> Schema:
        pairs = zip(node.keys, node.values, strict=True)
        return ObjectOf({_literal(key): Field(self.of(part)) for key, part in pairs})

    def _attribute(self, node: ast.Attribute) -> Schema:
        return self._key(node, node.value, node.attr)

    # -- paths

    def _name(self, node: ast.Name) -> Schema:
        name = node.id
        if name in self._bound:
            return self._bound[name]
        if name in CONSTANTS:
            return schema_of(CONSTANTS[name])
        if name in self._scope.names:
            return self._known(node, self._scope.names[name])
        known = [*self._scope.names, *self._bound]
        why = self._scope.why_unknown((name,))
        if why is not None:
            return self._add(node, why[0], why[1], "name")
        close = suggestion(name, known)
        remedy = f"did you mean {close!r}?" if close else f"known are: {', '.join(known)}"
        if not close and not self._scope.names:
            remedy = "nothing is known here"
        return self._add(node, f"there is no {name!r} here", remedy, "name")

    def _known(self, node: ast.AST, schema: Schema) -> Schema:
        """Return a schema, less null where the expression has made sure of that."""
        path = path_of(node)
        return without_null(schema) if path in self._present else schema

    def _key(self, node: ast.AST, of: ast.AST, key: str) -> Schema:
        holder = self.of(of)
        if may_be_null(holder):
            if not self._guarded:
                self._report_null(of)
            holder = without_null(holder)
        return self._known(node, self._field(node, of, holder, key))

    def _field(self, node: ast.AST, of: ast.AST, holder: Schema, key: str) -> Schema:
        if holder == ANY:
            return ANY
        if isinstance(holder, OneOf):
            found = [
                option.fields[key].schema
                for option in holder.options
                if isinstance(option, ObjectOf) and key in option.fields
            ]
            if found:
                return one_of(*found, *([NULL] if len(found) < len(holder.options) else []))
        if isinstance(holder, ObjectOf):
            if key in holder.fields:
                one = holder.fields[key]
                return one.schema if one.required else one_of(one.schema, NULL)
            if holder.others is not None:
                return holder.others
        return self._no_field(node, of, holder, key)

    def _no_field(self, node: ast.AST, of: ast.AST, holder: Schema, key: str) -> Schema:
        path = path_of(node)
        why = None if path is None else self._scope.why_unknown(path)
        if why is not None:
            return self._add(node, why[0], why[1], "name")
        known = list(holder.fields) if isinstance(holder, ObjectOf) else []
        close = suggestion(key, known)
        if close:
            return self._add(node, f"there is no field {key!r}", f"did you mean {close!r}?", "name")
        remedy = f"it has: {', '.join(known)}" if known else f"{ast.unparse(of)} is {holder}"
        return self._add(node, f"there is no field {key!r}", remedy, "name")

    def _report_null(self, node: ast.AST) -> None:
        path = path_of(node)
        why = None if path is None else self._scope.why_null(path)
        text = ast.unparse(node)
        start = getattr(node, "col_offset", 0)
        end = getattr(node, "end_col_offset", None) or start + 1
        self.findings.append(
            Finding(
                start,
                end - start,
                f"{text} may be null here" + (f": {why}" if why else ""),
                "write default(…, …), or pass it by an edge",
                "null",
            )
        )

    def _item(self, node: ast.Subscript) -> Schema:
        if isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str):
            return self._key(node, node.value, node.slice.value)
        holder = self._present_value(node.value)
        if isinstance(node.slice, ast.Slice):
            return holder
        index = self.of(node.slice)
        if isinstance(holder, ListOf):
            if not fits(index, INTEGER):
                self._add(node.slice, f"a list has no item {index}", "write a whole number")
            return holder.item
        if isinstance(holder, ObjectOf):
            return holder.others or ANY
        if holder == ANY or fits(holder, STRING):
            return holder
        return self._add(node, f"{holder} has no items", "take a field of it, or a list")

    def _present_value(self, node: ast.AST) -> Schema:
        """Return the schema of a value that must not be null."""
        found = self.of(node)
        if may_be_null(found):
            if not self._guarded:
                self._report_null(node)
            return without_null(found)
        return found

    # -- logic

    def _truth(self, node: ast.AST) -> None:
        found = self._present_value(node)
        if not fits(found, BOOLEAN):
            self._add(
                node,
                f"{ast.unparse(node)} is {found}, not true or false",
                "compare it with a value",
            )

    def _boolean(self, node: ast.BoolOp) -> Schema:
        outer = self._present
        for part in node.values:
            self._truth(part)
            # What comes after holds only where this was true, or, after an `or`, where it was not.
            self._present |= _made_sure(part, holds=isinstance(node.op, ast.And))
        self._present = outer
        return BOOLEAN

    def _unary(self, node: ast.UnaryOp) -> Schema:
        if isinstance(node.op, ast.Not):
            self._truth(node.operand)
            return BOOLEAN
        return self._number(node.operand)

    def _number(self, node: ast.AST) -> Schema:
        found = self._present_value(node)
        if found == ANY:
            return ANY
        if not fits(found, NUMBER):
            return self._add(node, f"{ast.unparse(node)} is {found}, not a number", "use a number")
        return INTEGER if fits(found, INTEGER) else NUMBER

    def _choice(self, node: ast.IfExp) -> Schema:
        self._truth(node.test)
        outer = self._present
        self._present |= _made_sure(node.test)
        first = self.of(node.body)
        self._present = outer
        return one_of(_wide(first), _wide(self.of(node.orelse)))

    def _comprehension(self, node: ast.ListComp | ast.GeneratorExp) -> Schema:
        one = node.generators[0]
        assert isinstance(one.target, ast.Name)
        holder = self._present_value(one.iter)
        item: Schema = ANY
        if isinstance(holder, ListOf):
            item = holder.item
        elif holder != ANY:
            self._add(one.iter, f"{ast.unparse(one.iter)} is {holder}, not a list", "use a list")
        outer = dict(self._bound)
        self._bound = {**outer, one.target.id: item}
        for test in one.ifs:
            self._truth(test)
        found = ListOf(_wide(self.of(node.elt)))
        self._bound = outer
        return found

    def _compare(self, node: ast.Compare) -> Schema:
        sides = [node.left, *node.comparators]
        for operator, left, right in zip(node.ops, sides, sides[1:], strict=False):
            match operator:
                case ast.Eq() | ast.NotEq():
                    self._comparable(node, left, right)
                case ast.In() | ast.NotIn():
                    self._held(node, self.of(left), self._present_value(right))
                case _:
                    self._ordered(node, self._present_value(left), self._present_value(right))
        return BOOLEAN

    def _comparable(self, node: ast.Compare, first: ast.AST, second: ast.AST) -> None:
        left, right = self.of(first), self.of(second)
        if ANY in (left, right) or _overlap(left, right):
            return
        for what, one, other in ((first, left, right), (second, right, left)):
            words = _words(one)
            if words and isinstance(other, Choice):
                close = suggestion(str(other.values[0]), words)
                remedy = f"did you mean {close!r}?" if close else f"it may be: {', '.join(words)}"
                self._add(node, f"{ast.unparse(what)} is never {str(other)!r}", remedy)
                return
        self._add(node, f"{left} is never {right}", "compare values of one type")

    def _held(self, node: ast.Compare, item: Schema, holder: Schema) -> None:
        match holder:
            case ListOf() if ANY in (item, holder.item) or _overlap(item, holder.item):
                return
            case ObjectOf() if fits(item, STRING):
                return
            case ListOf() | ObjectOf():
                self._add(node, f"{holder} never has {item} in it", "look for what it may hold")
                return
        if not (holder == ANY or (fits(holder, STRING) and fits(item, STRING))):
            self._add(node, f"{holder} cannot hold {item}", "use a list, an object or a text")

    def _ordered(self, node: ast.Compare, left: Schema, right: Schema) -> None:
        if ANY in (left, right):
            return
        numbers = fits(left, NUMBER) and fits(right, NUMBER)
        if not numbers and not (fits(left, STRING) and fits(right, STRING)):
            self._add(
                node,
                f"{_wide(left)} and {_wide(right)} have no order",
                "compare number with number",
            )

    # -- values

    def _arithmetic(self, node: ast.BinOp) -> Schema:
        if isinstance(node.op, ast.Add):
            left, right = self._present_value(node.left), self._present_value(node.right)
            if ANY in (left, right):
                return ANY
            if fits(left, STRING) and fits(right, STRING):
                return STRING
            if isinstance(left, ListOf) and isinstance(right, ListOf):
                return ListOf(one_of(left.item, right.item))
            if fits(left, NUMBER) and fits(right, NUMBER):
                return INTEGER if fits(left, INTEGER) and fits(right, INTEGER) else NUMBER
            return self._add(
                node,
                f"{_wide(left)} + {_wide(right)} has no value",
                "turn it into text with str(…)",
            )
        left, right = self._number(node.left), self._number(node.right)
        if ANY in (left, right):
            return NUMBER
        whole = left == right == INTEGER and not isinstance(node.op, ast.Div)
        return INTEGER if whole else NUMBER

    def _call(self, node: ast.Call) -> Schema:
        assert isinstance(node.func, ast.Name)
        name = node.func.id
        if name == "default":
            self._guarded += 1
            first = without_null(self.of(node.args[0]))
            self._guarded -= 1
            other = self.of(node.args[1])
            return other if first == NULL else one_of(_wide(first), _wide(other))
        if name == "str":
            self.of(node.args[0])
            return STRING
        given = [self._present_value(argument) for argument in node.args]
        wanted, result = _SIGNATURES[name]
        for argument, found in zip(node.args, given, strict=True):
            expected = wanted(node.args.index(argument), len(given))
            if not fits(found, expected):
                self._add(
                    argument,
                    f"{name} takes {expected}, and {ast.unparse(argument)} is {found}",
                    f"pass {expected}",
                )
        return result(given)


_FORMS: dict[type[ast.AST], Callable[[_Inference, Any], Schema]] = {
    ast.Constant: _Inference._constant,
    ast.Name: _Inference._name,
    ast.Attribute: _Inference._attribute,
    ast.Subscript: _Inference._item,
    ast.BoolOp: _Inference._boolean,
    ast.UnaryOp: _Inference._unary,
    ast.IfExp: _Inference._choice,
    ast.List: _Inference._list,
    ast.Dict: _Inference._object,
    ast.ListComp: _Inference._comprehension,
    ast.GeneratorExp: _Inference._comprehension,
    ast.Compare: _Inference._compare,
    ast.BinOp: _Inference._arithmetic,
    ast.Call: _Inference._call,
}


def _made_sure(node: ast.AST, *, holds: bool = True) -> frozenset[Path]:
    """Return the paths that are not null where a condition holds, or where it does not."""
    match node:
        case ast.Compare(ops=[ast.NotEq() | ast.Eq()], comparators=[ast.Name(id="null")]):
            path = path_of(node.left)
            if path is not None and isinstance(node.ops[0], ast.NotEq) == holds:
                return frozenset({path})
        case ast.BoolOp() if isinstance(node.op, ast.And) == holds:
            return frozenset().union(*(_made_sure(part, holds=holds) for part in node.values))
        case ast.UnaryOp(op=ast.Not()):
            return _made_sure(node.operand, holds=not holds)
    return frozenset()


def _literal(key: ast.AST | None) -> str:
    assert isinstance(key, ast.Constant)
    return str(key.value)


def _wide(schema: Schema) -> Schema:
    """Return a schema with texts that stand in the expression as plain text."""
    if isinstance(schema, Choice) and len(schema.values) == 1:
        return schema_of(schema.values[0])
    return schema


def _words(schema: Schema) -> list[str]:
    if isinstance(schema, Choice) and len(schema.values) > 1:
        return [str(value) for value in schema.values]
    if isinstance(schema, OneOf):
        return [word for option in schema.options for word in _words(option)]
    return []


def _overlap(left: Schema, right: Schema) -> bool:
    """Tell whether some value fits both."""
    if isinstance(left, OneOf):
        return any(_overlap(option, right) for option in left.options)
    if isinstance(right, OneOf):
        return any(_overlap(left, option) for option in right.options)
    if isinstance(left, Choice):
        return any(right.accepts(value) for value in left.values)
    if isinstance(right, Choice):
        return any(left.accepts(value) for value in right.values)
    if isinstance(left, ListOf) and isinstance(right, ListOf):
        return True
    if isinstance(left, ObjectOf) and isinstance(right, ObjectOf):
        return True
    return fits(left, right) or fits(right, left)


_LIST = ListOf(ANY)
_SIZED = OneOf((STRING, _LIST, ObjectOf({}, ANY)))
_SORTABLE = OneOf((ListOf(NUMBER), ListOf(STRING)))


def _same(schema: Schema) -> Callable[[int, int], Schema]:
    return lambda index, count: schema


def _extreme(index: int, count: int) -> Schema:
    return _SORTABLE if count == 1 else OneOf((NUMBER, STRING))


def _picked(given: list[Schema]) -> Schema:
    if len(given) == 1:
        return given[0].item if isinstance(given[0], ListOf) else ANY
    return one_of(*map(_wide, given))


def _first(given: list[Schema]) -> Schema:
    return given[0]


def _flattened(given: list[Schema]) -> Schema:
    inner = given[0].item if isinstance(given[0], ListOf) else ANY
    return inner if isinstance(inner, ListOf) else _LIST


def _total(given: list[Schema]) -> Schema:
    return INTEGER if fits(given[0], ListOf(INTEGER)) and given[0] != ANY else NUMBER


_Signature = tuple[Callable[[int, int], Schema], Callable[[list[Schema]], Schema]]
_SIGNATURES: dict[str, _Signature] = {
    "abs": (_same(NUMBER), lambda given: _wide(given[0])),
    "all": (_same(ListOf(BOOLEAN)), lambda given: BOOLEAN),
    "any": (_same(ListOf(BOOLEAN)), lambda given: BOOLEAN),
    "flat": (_same(ListOf(_LIST)), _flattened),
    "join": (lambda index, count: _LIST if index == 0 else STRING, lambda given: STRING),
    "keys": (_same(ObjectOf({}, ANY)), lambda given: ListOf(STRING)),
    "len": (_same(_SIZED), lambda given: INTEGER),
    "lower": (_same(STRING), lambda given: STRING),
    "max": (_extreme, _picked),
    "min": (_extreme, _picked),
    "round": (
        lambda index, count: NUMBER if index == 0 else INTEGER,
        lambda given: INTEGER if len(given) == 1 else NUMBER,
    ),
    "sorted": (_same(_SORTABLE), _first),
    "split": (_same(STRING), lambda given: ListOf(STRING)),
    "strip": (_same(STRING), lambda given: STRING),
    "sum": (_same(ListOf(NUMBER)), _total),
    "unique": (_same(_LIST), _first),
    "upper": (_same(STRING), lambda given: STRING),
}
