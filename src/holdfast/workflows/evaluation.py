"""Evaluation of expressions and templates: from data to a value, in a bounded number of steps.

Values are plain data. `true` is not `1`, conditions are booleans and nothing else, a missing key is
an error unless `default` stands around it. Lists and texts are charged by their length.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Mapping
from typing import Any

from holdfast.workflows.expressions import CONSTANTS, Expression, ExpressionFailed, parse, span
from holdfast.workflows.schemas import describe

MAX_STEPS = 100_000
MAX_RESULT = 10_000_000
MAX_BITS = 1_024

Data = Mapping[str, Any]


def evaluate(expression: Expression | str, data: Data) -> Any:
    """Return the value of an expression; raise ExpressionFailed where it has none."""
    one = parse(expression) if isinstance(expression, str) else expression
    return _Evaluation(data).value(one.tree)


def condition(expression: Expression | str, data: Data) -> bool:
    """Return whether a condition holds; anything but a boolean is an error."""
    value = evaluate(expression, data)
    if not isinstance(value, bool):
        text = expression if isinstance(expression, str) else expression.text
        raise ExpressionFailed(
            f"the condition {text!r} is {describe(value)}", remedy="compare it with something"
        )
    return value


def text_of(value: Any) -> str:
    """Return a value as templates write it: text as it is, everything else as JSON."""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, default=str)


class _Evaluation:
    """One evaluation, with the steps that it may take."""

    def __init__(self, data: Data) -> None:
        self._data = data
        self._bound: dict[str, Any] = {}
        self._steps = MAX_STEPS

    def _charge(self, steps: int, node: ast.AST) -> None:
        self._steps -= steps
        if self._steps < 0:
            raise _failed(node, f"the expression takes more than {MAX_STEPS} steps")

    def value(self, node: ast.AST) -> Any:
        """Return the value of a part of the expression."""
        self._charge(1, node)
        return _FORMS[type(node)](self, node)

    def _constant(self, node: ast.Constant) -> Any:
        return node.value

    def _name(self, node: ast.Name) -> Any:
        if node.id in self._bound:
            return self._bound[node.id]
        if node.id in CONSTANTS:
            return CONSTANTS[node.id]
        try:
            return self._data[node.id]
        except KeyError:
            raise _missing(node, f"there is no {node.id!r} here") from None

    def _attribute(self, node: ast.Attribute) -> Any:
        return _key(node, self.value(node.value), node.attr)

    def _subscript(self, node: ast.Subscript) -> Any:
        value = self.value(node.value)
        if isinstance(node.slice, ast.Slice):
            first = self._bound_of(node.slice.lower)
            last = self._bound_of(node.slice.upper)
            if not isinstance(value, list | str):
                raise _failed(node, f"{describe(value)} has no slices")
            self._charge(len(value), node)
            return value[first:last]
        key = self.value(node.slice)
        if isinstance(value, list):
            if not _is_integer(key):
                raise _failed(node, f"a list has no item {describe(key)}")
            if not -len(value) <= key < len(value):
                raise _missing(node, f"a list of {len(value)} has no item {key}")
            return value[key]
        return _key(node, value, key)

    def _bound_of(self, node: ast.expr | None) -> int | None:
        if node is None:
            return None
        value = self.value(node)
        if not _is_integer(value):
            raise _failed(node, f"a slice cannot end at {describe(value)}")
        return int(value)

    def _boolean(self, node: ast.BoolOp) -> bool:
        stops = isinstance(node.op, ast.Or)
        for part in node.values:
            if self._truth(part) is stops:
                return stops
        return not stops

    def _truth(self, node: ast.AST) -> bool:
        value = self.value(node)
        if not isinstance(value, bool):
            raise _failed(node, f"{describe(value)} is not true or false")
        return value

    def _unary(self, node: ast.UnaryOp) -> Any:
        if isinstance(node.op, ast.Not):
            return not self._truth(node.operand)
        value = _number(node, self.value(node.operand))
        return -value if isinstance(node.op, ast.USub) else value

    def _choice(self, node: ast.IfExp) -> Any:
        return self.value(node.body if self._truth(node.test) else node.orelse)

    def _list(self, node: ast.List) -> list[Any]:
        return [self.value(item) for item in node.elts]

    def _object(self, node: ast.Dict) -> dict[str, Any]:
        pairs = zip(node.keys, node.values, strict=True)
        return {self.value(key): self.value(part) for key, part in pairs if key is not None}

    def _comprehension(self, node: ast.ListComp | ast.GeneratorExp) -> list[Any]:
        one = node.generators[0]
        assert isinstance(one.target, ast.Name)
        items = self._items(one.iter, self.value(one.iter))
        name, outer, found = one.target.id, dict(self._bound), []
        for item in items:
            self._charge(1, node)
            self._bound = {**outer, name: item}
            if all(self._truth(test) for test in one.ifs):
                found.append(self.value(node.elt))
        self._bound = outer
        return found

    def _items(self, node: ast.AST, value: Any) -> list[Any]:
        if not isinstance(value, list):
            raise _failed(node, f"{describe(value)} is not a list")
        self._charge(len(value), node)
        return value

    def _compare(self, node: ast.Compare) -> bool:
        left = self.value(node.left)
        for operator, part in zip(node.ops, node.comparators, strict=True):
            right = self.value(part)
            self._charge(_size(left) + _size(right), node)
            if not _COMPARE[type(operator)](node, left, right):
                return False
            left = right
        return True

    def _arithmetic(self, node: ast.BinOp) -> Any:
        left, right = self.value(node.left), self.value(node.right)
        match node.op, left, right:
            case ast.Add(), str(), str():
                self._charge((len(left) + len(right)) // 100, node)
                return _bounded(node, left + right)
            case ast.Add(), list(), list():
                self._charge(len(left) + len(right), node)
                return left + right
        return _calculate(node, _number(node, left), _number(node, right))

    def _call(self, node: ast.Call) -> Any:
        assert isinstance(node.func, ast.Name)
        name = node.func.id
        if name == "default":
            try:
                value = self.value(node.args[0])
            except ExpressionFailed as error:
                if not error.missing:
                    raise
                value = None
            return self.value(node.args[1]) if value is None else value
        values = [self.value(argument) for argument in node.args]
        self._charge(sum(map(_size, values)), node)
        try:
            return _bounded(node, _FUNCTIONS[name](*values))
        except (TypeError, ValueError, ArithmeticError, AttributeError) as error:
            given = ", ".join(map(describe, values))
            raise _failed(node, f"{name} has no value for {given}") from error


_FORMS: dict[type[ast.AST], Callable[[_Evaluation, Any], Any]] = {
    ast.Constant: _Evaluation._constant,
    ast.Name: _Evaluation._name,
    ast.Attribute: _Evaluation._attribute,
    ast.Subscript: _Evaluation._subscript,
    ast.BoolOp: _Evaluation._boolean,
    ast.UnaryOp: _Evaluation._unary,
    ast.IfExp: _Evaluation._choice,
    ast.List: _Evaluation._list,
    ast.Dict: _Evaluation._object,
    ast.ListComp: _Evaluation._comprehension,
    ast.GeneratorExp: _Evaluation._comprehension,
    ast.Compare: _Evaluation._compare,
    ast.BinOp: _Evaluation._arithmetic,
    ast.Call: _Evaluation._call,
}


def _failed(node: ast.AST, message: str) -> ExpressionFailed:
    return ExpressionFailed(message, *span(node))


def _missing(node: ast.AST, message: str) -> ExpressionFailed:
    """Return the failure of a path that leads to nothing, for which `default` makes up."""
    failed = _failed(node, message)
    failed.missing = True
    return failed


def _key(node: ast.AST, value: Any, key: Any) -> Any:
    if isinstance(value, Mapping) and isinstance(key, str):
        try:
            return value[key]
        except KeyError:
            raise _missing(node, f"there is no field {key!r}") from None
    if value is None:
        raise _missing(node, f"null has no field {key!r}")
    raise _failed(node, f"{describe(value)} has no field {key!r}")


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _number(node: ast.AST, value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _failed(node, f"{describe(value)} is not a number")
    return value


def _calculate(node: ast.BinOp, left: Any, right: Any) -> Any:
    try:
        match node.op:
            case ast.Add():
                result = left + right
            case ast.Sub():
                result = left - right
            case ast.Mult():
                result = left * right
            case ast.Div():
                result = left / right
            case _:
                result = left % right
    except ArithmeticError as error:
        raise _failed(node, f"{left} and {right}: {error}") from error
    if isinstance(result, int) and result.bit_length() > MAX_BITS:
        raise _failed(node, "the result is too large a number")
    return result


def _bounded(node: ast.AST, value: Any) -> Any:
    if isinstance(value, str) and len(value) > MAX_RESULT:
        raise _failed(node, f"the result is a text of {len(value)} letters")
    return value


def _size(value: Any) -> int:
    """Return how much it costs to look at a value."""
    if isinstance(value, str):
        return len(value) // 100
    return len(value) if isinstance(value, list | dict) else 0


def equal(left: Any, right: Any) -> bool:
    """Tell whether two values are the same; true is not 1, but 1 is 1.0."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(equal, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(equal(left[key], right[key]) for key in left)
    return bool(left == right)


def _ordered(node: ast.AST, left: Any, right: Any) -> tuple[Any, Any]:
    if isinstance(left, str) and isinstance(right, str):
        return left, right
    for value in (left, right):
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise _failed(node, f"{describe(left)} and {describe(right)} have no order")
    return left, right


def _contains(node: ast.AST, item: Any, holder: Any) -> bool:
    match holder:
        case list():
            return any(equal(item, one) for one in holder)
        case str() if isinstance(item, str):
            return item in holder
        case dict() if isinstance(item, str):
            return item in holder
    raise _failed(node, f"{describe(holder)} cannot hold {describe(item)}")


_Comparison = Callable[[ast.AST, Any, Any], bool]
_COMPARE: dict[type[ast.cmpop], _Comparison] = {
    ast.Eq: lambda node, left, right: equal(left, right),
    ast.NotEq: lambda node, left, right: not equal(left, right),
    ast.Lt: lambda node, *both: (pair := _ordered(node, *both))[0] < pair[1],
    ast.LtE: lambda node, *both: (pair := _ordered(node, *both))[0] <= pair[1],
    ast.Gt: lambda node, *both: (pair := _ordered(node, *both))[0] > pair[1],
    ast.GtE: lambda node, *both: (pair := _ordered(node, *both))[0] >= pair[1],
    ast.In: _contains,
    ast.NotIn: lambda node, *both: not _contains(node, *both),
}


def _booleans(values: Any) -> list[bool]:
    if not isinstance(values, list) or not all(isinstance(value, bool) for value in values):
        raise TypeError("a list of true and false is needed")
    return values


def _numbers(values: Any) -> list[Any]:
    plain = isinstance(values, list) and all(
        isinstance(value, int | float) and not isinstance(value, bool) for value in values
    )
    if not plain:
        raise TypeError("a list of numbers is needed")
    return list(values)


def _least(pick: Callable[[Any], Any]) -> Callable[..., Any]:
    def choose(*values: Any) -> Any:
        items = values[0] if len(values) == 1 else list(values)
        if not isinstance(items, list) or not items:
            raise TypeError("something to choose from is needed")
        return pick(items if all(isinstance(one, str) for one in items) else _numbers(items))

    return choose


def _text(method: Callable[[str], str]) -> Callable[[Any], str]:
    def apply(value: Any) -> str:
        if not isinstance(value, str):
            raise TypeError("a text is needed")
        return method(value)

    return apply


def _length(value: Any) -> int:
    if not isinstance(value, str | list | dict):
        raise TypeError("a text, list or object is needed")
    return len(value)


def _round(value: Any, digits: Any = 0) -> Any:
    (number,) = _numbers([value])
    return round(number, digits) if digits else round(number)


def _sorted(values: Any) -> list[Any]:
    items = values if isinstance(values, list) else None
    if items is None:
        raise TypeError("a list is needed")
    return sorted(items if all(isinstance(one, str) for one in items) else _numbers(items))


def _unique(values: list[Any]) -> list[Any]:
    if not isinstance(values, list):
        raise TypeError("a list is needed")
    found: dict[str, Any] = {}
    for value in values:
        found.setdefault(json.dumps(value, sort_keys=True, default=str), value)
    return list(found.values())


def _flat(values: list[Any]) -> list[Any]:
    if not all(isinstance(value, list) for value in values):
        raise TypeError("a list of lists is needed")
    return [item for value in values for item in value]


def _split(value: Any, mark: Any) -> list[str]:
    if not isinstance(value, str) or not isinstance(mark, str):
        raise TypeError("texts are needed")
    return value.split(mark)


def _join(values: Any, mark: Any) -> str:
    if not isinstance(values, list) or not isinstance(mark, str):
        raise TypeError("a list and a text are needed")
    return mark.join(map(text_of, values))


def _keys(value: Any) -> list[str]:
    if not isinstance(value, Mapping):
        raise TypeError("an object is needed")
    return list(value)


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abs": lambda value: abs(_numbers([value])[0]),
    "all": lambda values: all(_booleans(values)),
    "any": lambda values: any(_booleans(values)),
    "flat": _flat,
    "join": _join,
    "keys": _keys,
    "len": _length,
    "lower": _text(str.lower),
    "max": _least(max),
    "min": _least(min),
    "round": _round,
    "sorted": _sorted,
    "split": _split,
    "str": text_of,
    "strip": _text(str.strip),
    "sum": lambda values: sum(_numbers(values)),
    "unique": _unique,
    "upper": _text(str.upper),
}
