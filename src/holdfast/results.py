"""What a turn came to: every type that `send`, `ask` and `resume` return or raise."""

from holdfast.runtime.results import (
    BudgetExceeded,
    Failed,
    Final,
    Pending,
    Queued,
    ResultOf,
    Stopped,
    Suspended,
    TimedOut,
    TurnNotFinal,
    TurnResult,
    TurnSummary,
    Unfinished,
)

__all__ = [
    "BudgetExceeded",
    "Failed",
    "Final",
    "Pending",
    "Queued",
    "ResultOf",
    "Stopped",
    "Suspended",
    "TimedOut",
    "TurnNotFinal",
    "TurnResult",
    "TurnSummary",
    "Unfinished",
]
