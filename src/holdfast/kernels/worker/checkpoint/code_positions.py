"""Where a code object stands in its source, so that it can be found there again."""

from __future__ import annotations

import types

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any


def span(node: Any) -> tuple[int, int]:
    """Return the first and the last line of a statement, decorators included."""
    begin = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
    return begin, node.end_lineno


def spans(tree: Any) -> list[tuple[int, int]]:
    """Return the lines of the statements of a module; those that share a line go together."""
    found: list[tuple[int, int]] = []
    for begin, end in map(span, tree.body):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((begin, end))
    return found


def codes(code: Any) -> Iterable[Any]:
    """Yield every code object inside of one, in order."""
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield constant
            yield from codes(constant)


def place(module: Any, code: Any) -> tuple[str, int, int] | None:
    """Return (qualified name, line, n-th such) of a code object within its module's."""
    same = [
        found
        for found in codes(module)
        if found.co_qualname == code.co_qualname and found.co_firstlineno == code.co_firstlineno
    ]
    for nth, found in enumerate(same):
        if found == code or len(same) == 1:
            return code.co_qualname, code.co_firstlineno, nth
    return None


def find(module: Any, qualname: str, line: int, nth: int) -> Any:
    """Return the code object at a place, None if there is none."""
    for found in codes(module):
        if found.co_qualname == qualname and found.co_firstlineno == line:
            if nth == 0:
                return found
            nth -= 1
    return None
