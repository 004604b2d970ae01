"""Expressions: conditions, computed values and mappings, as a small part of Python's grammar.

Python's own parser reads them; what is not on the list of allowed forms is refused by name, with
its place. There are no attributes, only keys: `outputs.write.text` is a path into data, and no
object of the host can be reached. Text, size, depth and steps are bounded, so that an expression
from a stranger costs little more than reading it.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from holdfast.core.errors import HoldfastError

MAX_TEXT = 1_000
MAX_NODES = 200
MAX_DEPTH = 25

FUNCTIONS: dict[str, tuple[int, int]] = {
    "abs": (1, 1),
    "all": (1, 1),
    "any": (1, 1),
    "default": (2, 2),
    "flat": (1, 1),
    "join": (2, 2),
    "keys": (1, 1),
    "len": (1, 1),
    "lower": (1, 1),
    "max": (1, 8),
    "min": (1, 8),
    "round": (1, 2),
    "sorted": (1, 1),
    "split": (2, 2),
    "str": (1, 1),
    "strip": (1, 1),
    "sum": (1, 1),
    "unique": (1, 1),
    "upper": (1, 1),
}
"""The functions, and how many arguments each takes."""

CONSTANTS: dict[str, Any] = {"true": True, "false": False, "null": None}
_PYTHON_CONSTANTS = {"True": "true", "False": "false", "None": "null"}

Path = tuple[str, ...]


class ExpressionFailed(HoldfastError):
    """An expression cannot be read, or has no value for the data it was given."""

    def __init__(
        self, message: str | None = None, start: int = 0, length: int = 1, remedy: str = ""
    ) -> None:
        super().__init__(message)
        self.start = start
        self.length = length
        self.remedy = remedy
        self.missing = False  # a path leads to nothing


@dataclass(frozen=True, slots=True)
class Expression:
    """One expression that was read: its text, its tree and the data it refers to."""

    text: str
    tree: ast.expr = field(compare=False, repr=False)
    refs: tuple[Ref, ...] = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Ref:
    """A path into the data, and where it stands; guarded where a missing value has a default."""

    path: Path
    start: int
    length: int
    guarded: bool = False


@lru_cache(maxsize=4096)
def parse(text: str) -> Expression:
    """Return the expression that a text is; raise ExpressionFailed where it is none."""
    tree = _tree(text)
    for number, (node, depth) in enumerate(_walk(tree, 1), 1):
        if number > MAX_NODES or depth > MAX_DEPTH:
            raise ExpressionFailed(
                "the expression is too large",
                remedy=f"at most {MAX_NODES} parts, nested {MAX_DEPTH} deep; split it into a "
                "compute node",
            )
        _check(node)
    return Expression(text, tree, tuple(_refs(tree, frozenset(), guarded=False)))


def _tree(text: str) -> ast.expr:
    if len(text) > MAX_TEXT:
        raise ExpressionFailed(
            f"the expression has {len(text)} letters",
            remedy=f"at most {MAX_TEXT} are read; split it into a compute node",
        )
    if "{{" in text:
        raise ExpressionFailed(
            "an expression has no '{{ }}' around it",
            start=text.index("{{"),
            length=2,
            remedy="leave the braces out: this field is an expression already",
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(text.replace("\n", " ").strip(), mode="eval").body
    except SyntaxError as error:
        start = max(0, (error.offset or 1) - 1)
        raise ExpressionFailed(
            f"{text.strip()!r} is not a valid expression: {error.msg}",
            start=start,
            length=max(1, (error.end_offset or 0) - (error.offset or 0)),
            remedy=_hint(text),
        ) from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise ExpressionFailed(
            "the expression cannot be read", remedy="write it more plainly"
        ) from error


def _hint(text: str) -> str:
    if text.count("(") != text.count(")") or text.count("[") != text.count("]"):
        return "quote the whole expression: in {…} YAML ends it at a comma"
    for wrong, right in (("&&", "and"), ("||", "or"), ("!", "not")):
        if wrong in text.replace("!=", ""):
            return f"write {right!r} instead of {wrong!r}"
    return "write a comparison such as output.score >= 8; keys that are keywords as x['from']"


def _walk(node: ast.AST, depth: int) -> Iterator[tuple[ast.AST, int]]:
    todo = [(node, depth)]
    while todo:
        one, level = todo.pop()
        yield one, level
        todo += [(child, level + 1) for child in ast.iter_child_nodes(one)]


_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Mod)
_COMPARISONS = (ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.In, ast.NotIn)
_PLAIN = (
    ast.BoolOp,
    ast.UnaryOp,
    ast.IfExp,
    ast.List,
    ast.comprehension,
    ast.And,
    ast.Or,
    ast.Not,
    ast.USub,
    ast.UAdd,
    ast.Load,
    ast.Store,
    ast.Slice,
    *_OPERATORS,
    *_COMPARISONS,
)

_INSTEAD: dict[type[ast.AST], str] = {
    ast.Pow: "write x * x",
    ast.FloorDiv: "write round(a / b)",
    ast.Is: "write ==",
    ast.IsNot: "write !=",
    ast.Invert: "write not",
    ast.Tuple: "write a list, with brackets",
    ast.Set: "write a list, with brackets",
    ast.JoinedStr: "join texts with +",
    ast.Lambda: "functions cannot be made here",
    ast.NamedExpr: "use a compute node for values in between",
    ast.DictComp: "use a compute node with a registered function",
    ast.SetComp: "write unique([…])",
    ast.Starred: "join lists with +",
    ast.Await: "an expression calls nothing outside",
}


def _refuse(node: ast.AST, what: str, remedy: str) -> ExpressionFailed:
    start, length = span(node)
    return ExpressionFailed(what, start=start, length=length, remedy=remedy)


def _check(node: ast.AST) -> None:
    """Refuse a part of an expression that is not on the list."""
    match node:
        case ast.Name():
            _check_name(node)
        case ast.Constant():
            if not isinstance(node.value, str | int | float | bool | type(None)):
                raise _refuse(
                    node,
                    f"{node.value!r} is not a valid value here",
                    "write text, a number, true, false or null",
                )
        case ast.Attribute() | ast.Subscript() | ast.Dict():
            _check_keys(node)
        case ast.Call():
            _check_call(node)
        case ast.ListComp() | ast.GeneratorExp():
            one = node.generators[0]
            if len(node.generators) > 1 or one.is_async or not isinstance(one.target, ast.Name):
                raise _refuse(
                    node, "a comprehension has one 'for x in list'", "use flat(…) for nested lists"
                )
        case ast.BinOp() if isinstance(node.op, _OPERATORS):
            pass
        case ast.Compare() if all(isinstance(op, _COMPARISONS) for op in node.ops):
            pass
        case _ if isinstance(node, _PLAIN):
            pass
        case _:
            part = node.op if isinstance(node, ast.BinOp | ast.UnaryOp) else node
            if isinstance(node, ast.Compare):
                part = next(op for op in node.ops if not isinstance(op, _COMPARISONS))
            remedy = _INSTEAD.get(type(part), "see which forms expressions have")
            raise _refuse(node, f"{type(part).__name__} is not part of expressions", remedy)


def _check_name(node: ast.Name) -> None:
    if node.id.startswith("_"):
        raise _refuse(node, f"{node.id!r} is not a valid name", "names begin with a letter")


def _check_keys(node: ast.Attribute | ast.Subscript | ast.Dict) -> None:
    match node:
        case ast.Attribute() if node.attr.startswith("__"):
            raise _refuse(node, f"{node.attr!r} is not a valid key", "write it as x['key']")
        case ast.Dict() if not all(
            isinstance(key, ast.Constant) and isinstance(key.value, str) for key in node.keys
        ):
            raise _refuse(node, "the keys of an object are texts", 'write {"key": value}')
        case ast.Subscript(slice=ast.Slice(step=step)) if step is not None:
            raise _refuse(node, "a slice has no step", "write x[a:b]")


def _check_call(node: ast.Call) -> None:
    name = node.func.id if isinstance(node.func, ast.Name) else None
    if name is None or name not in FUNCTIONS:
        from difflib import get_close_matches

        close = get_close_matches(name or "", FUNCTIONS, n=1)
        raise _refuse(
            node.func,
            f"there is no function {ast.unparse(node.func)[:40]!r}",
            f"did you mean {close[0]!r}?" if close else f"there are: {', '.join(FUNCTIONS)}",
        )
    least, most = FUNCTIONS[name]
    if node.keywords or not least <= len(node.args) <= most:
        wanted = str(least) if least == most else f"{least} to {most}"
        raise _refuse(node, f"{name} takes {wanted} arguments", f"it got {len(node.args)}")


def span(node: ast.AST) -> tuple[int, int]:
    """Return where a part of an expression begins, and how long it is."""
    start = getattr(node, "col_offset", 0)
    if isinstance(node, ast.Attribute):  # the key alone, which is what is wrong
        end = node.end_col_offset or start
        return end - len(node.attr), len(node.attr)
    return start, max(1, (getattr(node, "end_col_offset", None) or start + 1) - start)


def path_of(node: ast.AST) -> Path | None:
    """Return the path that a part of an expression is, if it is nothing else."""
    keys: list[str] = []
    while not isinstance(node, ast.Name):
        match node:
            case ast.Attribute():
                keys.append(node.attr)
                node = node.value
            case ast.Subscript(slice=ast.Constant(value=str(key))):
                keys.append(key)
                node = node.value
            case _:
                return None
    return (node.id, *reversed(keys))


def _refs(node: ast.AST, bound: frozenset[str], *, guarded: bool) -> Iterator[Ref]:
    path = path_of(node)
    if path is not None:
        if path[0] not in bound and (len(path) > 1 or path[0] not in _RESERVED):
            start = getattr(node, "col_offset", 0)
            end = getattr(node, "end_col_offset", None) or start + 1
            yield Ref(path, start, end - start, guarded)
        return
    match node:
        case ast.Call():
            first = node.func.id == "default"  # type: ignore[attr-defined]  # checked before
            for number, argument in enumerate(node.args):
                yield from _refs(argument, bound, guarded=guarded or (first and number == 0))
        case ast.ListComp() | ast.GeneratorExp():
            one = node.generators[0]
            inner = bound | {one.target.id}  # type: ignore[attr-defined]
            yield from _refs(one.iter, bound, guarded=guarded)
            for part in (node.elt, *one.ifs):
                yield from _refs(part, inner, guarded=guarded)
        case _:
            for child in ast.iter_child_nodes(node):
                yield from _refs(child, bound, guarded=guarded)


_RESERVED = CONSTANTS.keys() | _PYTHON_CONSTANTS.keys()
