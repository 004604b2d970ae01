"""How values, counts and costs are worded for people."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

from holdfast.views.costs import CostView


def form_text(form: Any) -> str:
    """Return a value in JSON's form for people: text as it is, everything else as JSON."""
    if isinstance(form, str):
        return form
    text = json.dumps(form, ensure_ascii=False)
    return text if len(text) <= 100 else json.dumps(form, ensure_ascii=False, indent=2)


def cost_text(known: Decimal | str | None, reserved: Decimal | str | None, unknown: int) -> str:
    """Return the three sums of a cost for people; those that are nothing are left out."""
    text = f"${_amount(known)}"
    if reserved is not None and Decimal(reserved):
        text += f" + up to ${_amount(reserved)}"
    if unknown:
        text += f" + {count(unknown, 'call')} of unknown cost"
    return text


def _amount(usd: Decimal | str | None) -> str:
    return f"{Decimal(usd or 0).normalize():f}"


def cost_view_text(cost: CostView) -> str:
    """Return a cost for people."""
    return cost_text(cost.known_usd, cost.reserved_usd, cost.unknown)


def count(number: int, noun: str, plural: str | None = None) -> str:
    """Return a number with its noun, in the plural where it is not one."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"
