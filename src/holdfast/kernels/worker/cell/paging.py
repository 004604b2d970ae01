"""`inspect(value, …)`: a bounded page of a big value, printed into the observation."""

from __future__ import annotations

from itertools import islice

from holdfast.kernels.worker.cell import render

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PAGE_ITEMS = 25
PAGE_CHARACTERS = 3000
ITEM_CHARACTERS = 120


class Inspect:
    """The `inspect` of a cell. Code that means the standard module of that name gets it, too."""

    __name__ = __qualname__ = "inspect"

    def __call__(self, value: Any, start: int = 0, count: int | None = None) -> None:
        """Print one page of a value: its kind and true size, then the part from `start`."""
        print("\n".join(page(value, start, count)))

    def __getattr__(self, name: str) -> Any:
        import inspect

        return getattr(inspect, name)

    def __repr__(self) -> str:
        return "<inspect(value, start=0, count=None): print a page of a big value>"


def page(value: Any, start: int, count: int | None) -> list[str]:
    """Return the lines of one page."""
    if isinstance(value, (str, bytes, bytearray)):
        return _characters(value, start, PAGE_CHARACTERS if count is None else count)
    if isinstance(value, dict):
        return _items(value, start, PAGE_ITEMS if count is None else count, mapping=True)
    if isinstance(value, (list, tuple, set, frozenset)):
        return _items(value, start, PAGE_ITEMS if count is None else count, mapping=False)
    text, whole = render.bounded(value, PAGE_CHARACTERS)
    lines = [render.kind_of(value), text if whole else text + " …"]
    attributes = getattr(value, "__dict__", None)
    if isinstance(attributes, dict) and attributes and not isinstance(value, type):
        lines += _items(attributes, start, PAGE_ITEMS if count is None else count, mapping=True)[1:]
    return lines


def _characters(value: Any, start: int, count: int) -> list[str]:
    begin = max(0, start + len(value) if start < 0 else start)
    part = value[begin : begin + count]
    end = begin + len(part)
    return [
        f"{render.kind_of(value)}, showing {begin} to {end}",
        part if isinstance(part, str) else repr(part),
        *_more(end, len(value)),
    ]


def _items(value: Any, start: int, count: int, *, mapping: bool) -> list[str]:
    size = len(value)
    begin = max(0, start + size if start < 0 else start)
    shown = list(islice(value.items() if mapping else value, begin, begin + count))
    lines = [f"{render.kind_of(value)}, showing {begin} to {begin + len(shown)}"]
    for index, item in enumerate(shown, begin):
        label = render.bounded(item[0], 60)[0] if mapping else f"[{index}]"
        text, whole = render.bounded(item[1] if mapping else item, ITEM_CHARACTERS)
        lines.append(f"{label}: {text}" + ("" if whole else " …"))
    return lines + _more(begin + len(shown), size)


def _more(end: int, size: int) -> list[str]:
    return [f"… {size - end} more: inspect(value, {end})"] if end < size else []
