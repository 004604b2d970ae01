"""How values, counts and costs are worded for people."""

from __future__ import annotations

import json
from typing import Any

from holdfast.views.costs import CostView


def form_text(form: Any) -> str:
    """Return a value in JSON's form for people: text as it is, everything else as JSON."""
    if isinstance(form, str):
        return form
    text = json.dumps(form, ensure_ascii=False)
    return text if len(text) <= 100 else json.dumps(form, ensure_ascii=False, indent=2)


def cost_text(usd: str | None, unknown: bool = False) -> str:
    """Return a cost for people; what is unknown is said as unknown."""
    if usd is None:
        return "cost unknown"
    return f"${usd}{' and unknown' if unknown else ''}"


def cost_view_text(cost: CostView) -> str:
    """Return the three sums of a cost for people; those that are nothing are left out."""
    text = f"${cost.known_usd.normalize():f}"
    if cost.reserved_usd:
        text += f" + ${cost.reserved_usd.normalize():f} reserved"
    if cost.unknown:
        text += f" + {cost.unknown} unknown"
    return text


def count(number: int, noun: str, plural: str | None = None) -> str:
    """Return a number with its noun, in the plural where it is not one."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"
