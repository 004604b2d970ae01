"""What sessions cost, with three sums kept apart: known, set aside, and unknown.

`known_usd` and `tokens` are what the log counts as used, `reserved_…` what is set aside for work
that has not ended, and `unknown` says of how many model calls nobody knows what they cost. Unknown
is never counted as zero: whoever shows a cost shows all three.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Context, Decimal

from holdfast.core.state import State

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
    """Return what a session itself has cost, without its children."""
    reserved = list(state.reserved.values())
    return CostView(
        known_usd=Decimal(state.spend.usd),
        tokens=state.spend.tokens,
        reserved_usd=_sum(item.usd for item in reserved),
        reserved_tokens=sum(item.tokens or 0 for item in reserved),
        unknown=state.spend.unknown_usd + sum(item.usd is None for item in reserved),
    )


def _sum(amounts: Iterable[str | None]) -> Decimal:
    total = Decimal(0)
    for amount in amounts:
        total = _MONEY.add(total, Decimal(amount or 0))
    return total
