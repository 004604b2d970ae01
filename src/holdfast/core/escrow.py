"""Escrow: what closes the grant of a child is what the child and all below it have spent.

The parent's log says it once, in `budget.settled`; the child's log proves it. Whoever writes that
fact and whoever verifies it take the sums from here.
"""

from __future__ import annotations

from holdfast.core.facts import BudgetSettled
from holdfast.core.state import State, call_reservation, plus


def closing(call_id: str, below: State) -> BudgetSettled:
    """Return what closes the grant of a call, by the state of the child that answered it.

    What the child set aside for children of its own that have not ended counts at its ceiling.
    """
    spend = below.total
    left = [aside for aside in below.reserved.values() if aside.child is not None]
    held = spend.held_usd
    for aside in left:
        held = plus(held, aside.usd or "0")
    return BudgetSettled(
        reservation=call_reservation(call_id),
        child=below.session,
        usd=spend.usd,
        tokens=spend.tokens,
        calls=spend.calls,
        driven_ms=spend.driven_ms,
        held_usd=held,
        held_tokens=spend.held_tokens + sum(aside.tokens or 0 for aside in left),
        unknown_calls=max(spend.unknown_usd, spend.unknown_tokens) + len(left),
        unbounded_calls=max(spend.unbounded_usd, spend.unbounded_tokens),
    )
