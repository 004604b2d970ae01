"""What the scheduler needs of whoever carries nodes out: the facts of a call's start and end.

The scheduler decides what starts and what is given up; how a call is put on record, reserved,
suspended or stopped belongs to the ledger behind this port.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from holdfast.core.errors import HoldfastError
from holdfast.core.facts import Fact
from holdfast.core.state import PendingCall, State
from holdfast.workflows.environment import Environment
from holdfast.workflows.model import Node


class LimitReached(HoldfastError):
    """A limit of the run leaves nothing for what would start next."""

    def __init__(self, limit: str = "", used: str = "", allowed: str = "") -> None:
        super().__init__(f"the run has used {used} of {allowed} {limit}; raise it to go on")
        self.limit = limit
        self.used = used
        self.allowed = allowed


@dataclass(frozen=True, slots=True)
class Start:
    """An attempt at a node that begins with this batch."""

    branch: str
    node: Node
    execution: int
    attempt: int
    call_id: str
    input: Mapping[str, Any] = field(compare=False)
    environment: Environment = field(compare=False, repr=False)
    asking: str | None = None  # a person is asked about this failure instead
    error: Any = None


class Calls(Protocol):
    """The ledger, as the scheduler sees it."""

    def request(self, state: State, start: Start) -> Sequence[Fact]:
        """Return the facts that put a call on record; raise LimitReached where nothing is left."""
        ...

    def cancel(self, state: State, call: PendingCall) -> Sequence[Fact]:
        """Return the facts that settle a call which nobody waits for any more."""
        ...

    def commit_of(self, call_id: str) -> str | None:
        """Return the commit of the workspace as a call left it, if it changed anything."""
        ...
