"""What the scheduler needs of whoever carries nodes out: the facts of a call's start and end.

The scheduler decides what starts and what is given up; how a call is put on record, reserved,
suspended or stopped belongs to the ledger behind this port.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from holdfast.core.errors import HoldfastError
from holdfast.core.facts import CallResolved, Fact
from holdfast.core.payloads import Slot
from holdfast.core.run_facts import NodeFinished
from holdfast.core.state import PendingCall, State
from holdfast.workflows.batch import Batch
from holdfast.workflows.environment import Environment
from holdfast.workflows.model import Node
from holdfast.workflows.values import Values

NO_SLOT = frozenset({"human", "wait"})
"""Kinds that wait from the start, and so take nobody's place."""


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
    at: str = ""
    failures: Mapping[str, int] = field(default_factory=dict, compare=False)  # so far, by code
    asking: str | None = None  # a person is asked about this failure instead
    error: Any = None


@dataclass(frozen=True, slots=True)
class Kept:
    """An execution of another run whose result can be taken over."""

    seq: int
    input: str | None  # content id of what it was given
    chosen: tuple[str, ...] = ()  # where it led to, of a router that fans out


class Calls(Protocol):
    """The ledger, as the scheduler sees it."""

    def request(self, state: State, start: Start) -> Sequence[Fact]:
        """Return the facts that put a call on record; raise LimitReached where nothing is left."""
        ...

    def cancel(self, state: State, call: PendingCall) -> Sequence[Fact]:
        """Return the facts that settle a call which nobody waits for any more."""
        ...

    def meaning(self, node: Node, result: Slot | None, values: Values) -> tuple[Slot | None, Any]:
        """Return what a call's result means as the output of its node: the slot and the value."""
        ...

    def cause(self, node: Node, fact: CallResolved, values: Values) -> tuple[str, str, str | None]:
        """Return why a call failed: a code, a message, and when a limit resets."""
        ...

    def warnings(self, state: State) -> Sequence[Fact]:
        """Return what the log says of limits of the ledger of which little is left, each once."""
        ...

    def commit_of(self, call_id: str) -> str | None:
        """Return the commit of the workspace as a call left it, if it changed anything."""
        ...

    def kept(
        self, batch: Batch, branch: str, node: Node, iteration: Mapping[str, int]
    ) -> Kept | None:
        """Return what another run finished in place of an execution, if it can be taken over."""
        ...

    def taken_over(self, kept: Kept) -> NodeFinished:
        """Return the outcome of an execution that is taken over."""
        ...


class PlainCalls:
    """What holds for calls whose result is the output, and whose error says its code."""

    def meaning(self, node: Node, result: Slot | None, values: Values) -> tuple[Slot | None, Any]:
        """Return a result as it is."""
        return result, None if result is None else values.value(result)

    def cause(self, node: Node, fact: CallResolved, values: Values) -> tuple[str, str, str | None]:
        """Return what the outcome and the error of a call say."""
        said = values.value(fact.error) if fact.error is not None else {}
        known = said if isinstance(said, Mapping) else {"message": str(said)}
        by_outcome = {
            "denied": "denied",
            "cancelled": "cancelled",
            "unknown": "unknown_outcome",
            "expired": "expired" if node.kind in NO_SLOT else "timeout",
        }
        code = by_outcome.get(fact.outcome) or str(known.get("code") or "tool_error")
        message = str(known.get("message") or f"{node.id} ended as {fact.outcome}")
        until = known.get("until")
        return code, message, until if isinstance(until, str) else None

    def warnings(self, state: State) -> Sequence[Fact]:
        """Return nothing: there are no limits."""
        return ()

    def commit_of(self, call_id: str) -> str | None:
        """Return nothing: no files are kept."""
        return None

    def kept(
        self, batch: Batch, branch: str, node: Node, iteration: Mapping[str, int]
    ) -> Kept | None:
        """Return nothing: the run goes its own way."""
        return None

    def taken_over(self, kept: Kept) -> NodeFinished:
        """Refuse: nothing is taken over."""
        raise NotImplementedError
