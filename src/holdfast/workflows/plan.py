"""A plan: what one round of scheduling leads to."""

from __future__ import annotations

from dataclasses import dataclass, field

from holdfast.core.facts import Fact
from holdfast.core.heads import HeadDraft
from holdfast.core.payloads import Slot
from holdfast.core.state import State
from holdfast.workflows.calls_port import Start


@dataclass(slots=True)
class Plan:
    """What one round of scheduling leads to."""

    facts: list[Fact] = field(default_factory=list)
    state: State | None = None
    starts: list[Start] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)  # calls that are to be stopped
    head: HeadDraft | None = None
    payloads: list[Slot] = field(default_factory=list)
    more: bool = False  # something is due at once: schedule again
    wake: str | None = None  # when something is due by itself
