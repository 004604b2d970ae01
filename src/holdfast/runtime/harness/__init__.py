"""Harnesses: how an agent acts on a model's reply; same loop, log, calls and heads for all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from holdfast.core.facts import Fact
from holdfast.core.messages import Message
from holdfast.core.payloads import Slot
from holdfast.models.port import ToolSpec
from holdfast.runtime.blueprint import Blueprint
from holdfast.runtime.children import Children
from holdfast.runtime.dispatch import Dispatcher
from holdfast.runtime.journal import Journal
from holdfast.runtime.shortage import Shortage
from holdfast.stores.port import InboxDraft


@dataclass(frozen=True, slots=True)
class Acted:
    """What became of a reply, with the facts of its last part still to be appended.

    Whoever drives adds what belongs into the same batch: the messages that the model sees next
    and, where there is a final value, the end of the turn with its head. `prose` says that the
    reply held nothing to act on; `waits` that calls of it wait for someone outside.
    """

    messages: tuple[Message, ...] = ()
    facts: tuple[Fact, ...] = ()
    payloads: tuple[Slot, ...] = ()
    final: Slot | None = None
    vars: Slot | None = None
    posts: tuple[tuple[str, InboxDraft], ...] = ()
    prose: bool = False
    waits: bool = False


class Harness(Protocol):
    """Acts on replies for one session, as long as a driver of this process keeps it warm."""

    journal: Journal
    children: Children
    shortage: Shortage
    blueprint: Blueprint
    dispatcher: Dispatcher

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """Return the tools that the model may call natively."""
        ...

    async def bind(self, inputs: Mapping[str, Slot]) -> tuple[Slot | None, list[Slot]]:
        """Take a turn's inputs; return the namespace that holds them, and its new parts."""
        ...

    async def act(self, reply: Message) -> Acted:
        """Act on what is left of a stored reply, from where the log says it stood."""
        ...

    def can_go_on(self) -> bool:
        """Tell whether a whole wait of what was given up is over, though others are not."""
        ...

    def matches(self, vars: Slot | None) -> bool:
        """Tell whether what it holds in memory is what the log says."""
        ...

    async def close(self) -> None:
        """Let go of everything in memory."""
        ...

    @property
    def details(self) -> Mapping[str, Any]:
        """Return what a turn records of its harness."""
        ...
