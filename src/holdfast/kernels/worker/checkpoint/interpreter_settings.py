"""Settings of the interpreter that one cell changes and a later one relies on.

They are part of the checkpoint where they are not what every worker begins with: the recursion
limit, within bounds that leave the worker itself room, and the decimal context.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_LEAST_RECURSION = 200
_LONGEST_CONTEXT = 400  # as the host has it


class Interpreter:
    """The settings of this process."""

    def __init__(self) -> None:
        self._recursion_limit = sys.getrecursionlimit()

    def bound(self) -> None:
        """Leave the worker room to do its own work after a cell."""
        if sys.getrecursionlimit() < _LEAST_RECURSION:
            sys.setrecursionlimit(_LEAST_RECURSION)

    def settings(self) -> dict[str, Any]:
        """Return what the checkpoint keeps: 0 and no text for what is as at the start."""
        limit = sys.getrecursionlimit()
        kept = 0 if limit == self._recursion_limit else limit
        return {"recursion_limit": kept, "decimal": _decimal_context()}

    def restore(self, recursion_limit: int, decimal: str) -> None:
        """Go on with the settings of a checkpoint."""
        if recursion_limit:
            sys.setrecursionlimit(recursion_limit)
        if decimal:
            try:
                _set_decimal_context(decimal)
            except Exception:
                # Written by a cell that had put something else in the module's place.
                return


def _decimal_context() -> str:
    module = sys.modules.get("decimal")
    if module is None:
        return ""
    try:
        parts = module.getcontext().__reduce__()[1]
        text = "" if parts == module.Context().__reduce__()[1] else _text(parts)
    except Exception:
        # The model may have put anything in its place.
        return ""
    return "" if len(text) > _LONGEST_CONTEXT else text


def _text(parts: Any) -> str:
    *numbers, flags, traps = parts
    names = (",".join(signal.__name__ for signal in signals) for signals in (flags, traps))
    return ";".join([*map(str, numbers), *names])


def _set_decimal_context(text: str) -> None:
    import decimal

    precision, rounding, least, most, capitals, clamp, flags, traps = text.split(";")
    context = decimal.Context(
        int(precision),
        rounding,
        int(least),
        int(most),
        int(capitals),
        int(clamp),
        [getattr(decimal, name) for name in flags.split(",") if name],
        [getattr(decimal, name) for name in traps.split(",") if name],
    )
    decimal.setcontext(context)
