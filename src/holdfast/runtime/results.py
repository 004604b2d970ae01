"""What a turn came to: one type per way in which it can end, or wait.

| result           | turn status      | exit code |
|------------------|------------------|-----------|
| `Final`          | final            | 0         |
| `Failed`         | failed           | 1         |
| `Suspended`      | open             | 3         |
| `BudgetExceeded` | budget_exceeded  | 4         |
| `TimedOut`       | timed_out        | 5         |
| `Stopped`        | stopped          | 6         |
| `Queued`         | not begun        | 0         |
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from holdfast.core.facts import Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnResult:
    """What every result says.

    `cost_usd` and `usage` are what is known; `unknown_calls` counts the calls of which nobody knows
    the cost, and `held_usd` is the most that those can have cost.
    """

    STATUS: ClassVar[str]
    EXIT_CODE: ClassVar[int]

    session: str
    turn: int | None = None
    steps: int = 0
    usage: Usage = field(default_factory=dict)
    cost_usd: str | None = None
    held_usd: str | None = None
    unknown_calls: int = 0
    head: str | None = None

    @property
    def status(self) -> str:
        """Return the stable name of this kind of result."""
        return self.STATUS


@dataclass(frozen=True, slots=True, kw_only=True)
class Final(TurnResult):
    """The model called FINAL."""

    STATUS: ClassVar[str] = "final"
    EXIT_CODE: ClassVar[int] = 0
    value: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed(TurnResult):
    """The turn cannot go on; the session can."""

    STATUS: ClassVar[str] = "failed"
    EXIT_CODE: ClassVar[int] = 1
    error: str = ""
    code: str = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspended(TurnResult):
    """The turn waits for someone; answer through the inbox and resume."""

    STATUS: ClassVar[str] = "suspended"
    EXIT_CODE: ClassVar[int] = 3
    calls: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetExceeded(TurnResult):
    """A limit is used up; what would have gone beyond it was not done."""

    STATUS: ClassVar[str] = "budget_exceeded"
    EXIT_CODE: ClassVar[int] = 4
    limit: str = ""
    used: str = ""
    allowed: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedOut(TurnResult):
    """A deadline passed."""

    STATUS: ClassVar[str] = "timed_out"
    EXIT_CODE: ClassVar[int] = 5
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped(TurnResult):
    """The session was asked to end, and did."""

    STATUS: ClassVar[str] = "stopped"
    EXIT_CODE: ClassVar[int] = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Queued(TurnResult):
    """The message waits in the inbox of a busy session; its driver takes it up next."""

    STATUS: ClassVar[str] = "queued"
    EXIT_CODE: ClassVar[int] = 0
    key: str = ""
