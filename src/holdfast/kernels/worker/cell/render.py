"""Text of values within a budget: what a cell's value, a listing and `inspect` show.

`repr` of a large value costs as much as the value is large, so this walks built-in containers
itself and stops at the budget. Everything else is asked for its own repr, which may be any code
of the model and may fail; a failure is shown, never raised.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any


_OPEN: dict[type, tuple[str, str]] = {
    list: ("[", "]"),
    tuple: ("(", ")"),
    set: ("{", "}"),
    frozenset: ("frozenset({", "})"),
    dict: ("{", "}"),
}
_SIZED = (str, bytes, bytearray, list, tuple, set, frozenset, dict)
# By identity: a type of the model may be unhashable, or say that it equals another.
_BUILTIN = {id(cls): cls for cls in (*_SIZED, int, float, bool, complex)}
_UNITS = {str: "characters", bytes: "bytes", bytearray: "bytes"}


class _Full(Exception):
    """The budget is used up."""


def kind_of(value: Any) -> str:
    """Return the type of a value and its true size, if it has one: `list of 3 items`."""
    cls = type(value)
    known = _BUILTIN.get(id(cls))
    if known is not None and known not in _SIZED:
        return known.__name__
    name = qualname(cls)
    try:
        if cls.__module__ not in ("builtins", "__main__"):
            name = type_name(cls)
    except Exception:
        pass  # its metaclass refuses: the short name has to do
    # Not by isinstance and len: a class of the model may say anything there, or raise.
    sized = next((base for base in _SIZED if issubclass(cls, base)), None)
    if sized is None:
        return name
    size = sized.__len__(value)
    unit = _UNITS.get(sized)
    if unit is not None:
        return f"{name} of {size} {unit}"
    return f"{name} of {size} item{'' if size == 1 else 's'}"


def qualname(cls: type) -> str:
    """Return the name of a class, whatever its metaclass does about it."""
    return str(type.__getattribute__(cls, "__qualname__"))


def type_name(cls: type) -> str:
    """Return the full name of a class."""
    return f"{cls.__module__}.{cls.__qualname__}"


def bounded(value: Any, budget: int) -> tuple[str, bool]:
    """Return (text, whole): the repr of a value, cut where the budget ends."""
    parts: list[str] = []
    try:
        _walk(value, parts, [budget], 0, set())
    except _Full:
        return "".join(parts)[:budget], False
    text = "".join(parts)
    return (text, True) if len(text) <= budget else (text[:budget], False)


def excerpt(value: Any, fit: int) -> tuple[str, str, int]:
    """Return (head, tail, size) of a value's repr; the tail is empty where the whole fits.

    The size is the true length of the repr where it is known cheaply, else that of the parts:
    the kind gives the true size of the value itself.
    """
    text, whole = bounded(value, fit)
    if whole:
        return text, "", len(text)
    third = fit // 3
    tail = _tail(value, third)
    return text[: fit - third], tail, max(_size(value), fit - third + len(tail) + 1)


def text_excerpt(text: str, fit: int) -> tuple[str, str, int]:
    """Return (head, tail, size) of a text."""
    if len(text) <= fit:
        return text, "", len(text)
    return text[: fit - fit // 3], text[-(fit // 3) :], len(text)


def _size(value: Any) -> int:
    return len(value) + 2 if issubclass(type(value), (str, bytes, bytearray)) else 0


def _tail(value: Any, budget: int) -> str:
    cls = _BUILTIN.get(id(type(value)))
    if cls in (str, bytes, bytearray):
        return repr(value[-budget:])[-budget:]
    if (cls is list or cls is tuple) and value:
        parts: list[str] = []
        used = 1
        for item in _backwards(value):
            text, whole = bounded(item, budget)
            if not whole:
                text = "…" + (_tail(item, budget // 2) or text[-(budget // 2) :])
            if used + len(text) + 2 > budget and parts:
                break
            used += len(text) + 2
            parts.append(text[-budget:])
        return ", ".join(reversed(parts))[-budget:] + _OPEN[cls][1]
    if cls is dict and value:
        key = next(reversed(value))
        return f"{safe_repr(key)[:60]}: {bounded(value[key], budget // 2)[0]}}}"[-budget:]
    return ""


def _backwards(value: Any) -> Iterator[Any]:
    for index in range(len(value) - 1, max(len(value) - 200, -1), -1):
        yield value[index]


def safe_repr(value: Any) -> str:
    """Return a value's own repr; one that fails is shown as a failure."""
    try:
        text = repr(value)
        return text if type(text) is str else str.__str__(text)
    except Exception as error:
        return f"<{qualname(type(value))} whose repr raised {type(error).__name__}>"


def _walk(value: Any, parts: list[str], budget: list[int], depth: int, above: set[int]) -> None:
    cls = _BUILTIN.get(id(type(value)))
    if cls is None or cls not in _OPEN or depth > 60:
        if cls in (str, bytes, bytearray) and len(value) > budget[0]:
            _put(repr(value[: budget[0] + 1]), parts, budget)
            raise _Full
        _put(safe_repr(value), parts, budget)
        return
    if not value and cls in (set, frozenset):
        _put(f"{cls.__name__}()", parts, budget)
        return
    if id(value) in above:
        _put("[...]" if cls is list else "{...}" if cls is dict else "(...)", parts, budget)
        return
    above.add(id(value))
    opening, closing = _OPEN[cls]
    _put(opening, parts, budget)
    for index, item in enumerate(value.items() if cls is dict else value):
        if index:
            _put(", ", parts, budget)
        if cls is dict:
            _walk(item[0], parts, budget, depth + 1, above)
            _put(": ", parts, budget)
            item = item[1]
        _walk(item, parts, budget, depth + 1, above)
    _put(",)" if cls is tuple and len(value) == 1 else closing, parts, budget)
    above.discard(id(value))


def _put(text: str, parts: list[str], budget: list[int]) -> None:
    parts.append(text)
    budget[0] -= len(text)
    if budget[0] < 0:
        raise _Full
