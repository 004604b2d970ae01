"""What sessions cost, with three sums kept apart: known, set aside, and unknown.

`known_usd` and `tokens` were used. `reserved_…` is the most that model calls can cost which are in
flight or were lost, and `unknown` counts those and all others of which nobody knows the cost.
Unknown is never counted as zero: whoever shows a cost shows all three.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Context, Decimal

from holdfast.core.state import State, is_model_call

# A sum must not depend on the decimal context of the program that reads it.
_MONEY = Context(prec=28)


@dataclass(frozen=True, slots=True)
class CostView:
    """What one session or several together cost."""

    known_usd: Decimal = Decimal(0)
    tokens: int = 0
    reserved_usd: Decimal = Decimal(0)
    reserved_tokens: int = 0
    unknown: int = 0

    def plus(self, other: CostView) -> CostView:
        """Return the cost of both."""
        return CostView(
            known_usd=_MONEY.add(self.known_usd, other.known_usd),
            tokens=self.tokens + other.tokens,
            reserved_usd=_MONEY.add(self.reserved_usd, other.reserved_usd),
            reserved_tokens=self.reserved_tokens + other.reserved_tokens,
            unknown=self.unknown + other.unknown,
        )


def cost_of(state: State) -> CostView:
    """Return what a session itself has cost, without its children.

    What is set aside for a child is left out: the child's own sums have it.
    """
    spend = state.spend
    flying = [item for key, item in state.reserved.items() if is_model_call(key)]
    return CostView(
        known_usd=Decimal(spend.usd),
        tokens=spend.tokens,
        reserved_usd=_sum([spend.held_usd, *(item.usd for item in flying)]),
        reserved_tokens=spend.held_tokens + sum(item.tokens or 0 for item in flying),
        unknown=spend.unknown_usd + len(flying),
    )


def _sum(amounts: Iterable[str | None]) -> Decimal:
    total = Decimal(0)
    for amount in amounts:
        total = _MONEY.add(total, Decimal(amount or 0))
    return total
