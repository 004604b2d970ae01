"""What a model call is counted as: what is known, and the most of what nobody knows.

The rule is one for all who ask models. A request that the provider never accepted costs nothing. An
answer costs what it says. Whatever else was accepted, or may have been (a server error, a broken
stream, a deadline that passed), has an unknown cost and is held at its ceiling; each attempt counts
by itself. docs/reference/spend.md has the table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from holdfast.models.port import Attempt, ModelReply


@dataclass(frozen=True, slots=True)
class Ceiling:
    """The most that one attempt can cost; `usd` is None where nobody knows the price."""

    usd: str | None
    input_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Spent:
    """What a call is counted as. `unknown` attempts are held at `held_…`, the rest is known.

    `usd` is None where the reply has no known price, `held_usd` where there is no ceiling.
    """

    usd: str | None
    usage: dict[str, int | None]
    unknown: int = 0
    held_usd: str | None = "0"
    held_usage: dict[str, int | None] | None = None

    @property
    def of_failure(self) -> tuple[str | None, dict[str, int | None], bool]:
        """Return cost, usage and whether they are ceilings, for a call that brought no reply."""
        if self.unknown:
            return self.held_usd, self.held_usage or NOTHING, True
        return "0", NOTHING, False


NOTHING: dict[str, int | None] = {"input_tokens": 0, "output_tokens": 0}


def spent(attempts: Sequence[Attempt], ceiling: Ceiling, reply: ModelReply | None = None) -> Spent:
    """Return what a call is counted as, from its attempts and the reply that it may have brought.

    A call that says nothing of its attempts and brought no reply was made once, and may have cost
    what one can cost.
    """
    failed = [attempt for attempt in attempts if attempt.outcome != "ok"]
    unknown = sum(attempt.accepted for attempt in failed)
    if reply is None and not failed:
        unknown = 1
    usd, usage = ("0", NOTHING) if reply is None else (reply.cost_usd, reply.usage.to_record())
    if not unknown:
        return Spent(usd, usage)
    held = None if ceiling.usd is None else format(Decimal(ceiling.usd) * unknown, "f")
    held_usage: dict[str, int | None] = {
        "input_tokens": ceiling.input_tokens * unknown,
        "output_tokens": ceiling.output_tokens * unknown,
    }
    return Spent(usd, usage, unknown, held, held_usage)


def affordable_attempts(left_usd: str, ceiling: Ceiling) -> int | None:
    """Return how many attempts that may be charged fit into what is left; None: any number."""
    if ceiling.usd is None or not Decimal(ceiling.usd):
        return None
    return max(1, int(Decimal(left_usd) / Decimal(ceiling.usd)))
