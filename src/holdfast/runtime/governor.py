"""The governor: limits that are enforced before each call, from what the log says was used.

Everything it needs survives a kill, because it is folded from the log: steps and recorded driving
time of the turn, spend of the session. Calls that are made at once count at their ceilings until
they have ended. Where a limit is in dollars and a cost is unknown, the limit cannot be proven to
hold, and the turn ends rather than hope.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from decimal import Decimal
from typing import Protocol

from holdfast.core.state import State, plus
from holdfast.runtime.settings import Settings


class Stated(Protocol):
    """Whatever knows where the log stands."""

    state: State


WARN_STEPS_LEFT = 2
OUTPUT_CEILING_TOKENS = 32_768
"""What is set aside for a reply where `max_output_tokens` does not bound it."""


@dataclass(frozen=True, slots=True)
class Excess:
    """A limit that is used up."""

    limit: str
    used: str
    allowed: str

    @property
    def message(self) -> str:
        """Return what to tell people."""
        return f"{self.limit}: {self.used} used of {self.allowed} allowed"


def before_turn(settings: Settings, state: State) -> Excess | None:
    """Return the limit that forbids another turn."""
    turns = state.counters.get("turn", 0)
    if settings.max_turns and turns >= settings.max_turns:
        return Excess("max_turns", str(turns), str(settings.max_turns))
    return before_call(settings, state)


def before_call(settings: Settings, state: State) -> Excess | None:
    """Return the spend limit that forbids another model call."""
    spend = state.total
    used_usd, used_tokens = plus(spend.usd, spend.held_usd), spend.tokens + spend.held_tokens
    if settings.max_usd:
        if spend.unbounded_usd:
            used = f"{used_usd} and {spend.unbounded_usd} calls of unknown cost"
            return Excess("max_usd", used, settings.max_usd)
        if Decimal(used_usd) >= Decimal(settings.max_usd):
            return Excess("max_usd", used_usd, settings.max_usd)
    if settings.max_tokens:
        if spend.unbounded_tokens:
            used = f"{used_tokens} and {spend.unbounded_tokens} calls of unknown size"
            return Excess("max_tokens", used, str(settings.max_tokens))
        if used_tokens >= settings.max_tokens:
            return Excess("max_tokens", str(used_tokens), str(settings.max_tokens))
    return None


class Reserve:
    """What the calls under way may cost, set aside until each has ended and is on record."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._calls: list[tuple[str | None, int]] = []
        self._ended = asyncio.Event()

    @asynccontextmanager
    async def aside(self, journal: Stated, usd: str | None, tokens: int) -> AsyncIterator[None]:
        """Set a call's ceiling aside, once those under way leave room for a call.

        A ceiling that nobody knows leaves none under a limit in dollars.
        """
        while self._calls and self._is_full(journal.state):
            await self._ended.wait()
        call = (usd, tokens)
        self._calls.append(call)
        try:
            yield
        finally:
            self._calls.remove(call)
            self._ended.set()
            self._ended = asyncio.Event()

    def _is_full(self, state: State) -> bool:
        spend = state.total
        if self._settings.max_usd:
            known = [Decimal(usd) for usd, _ in self._calls if usd is not None]
            most = sum(known, Decimal(plus(spend.usd, spend.held_usd)))
            if len(known) < len(self._calls) or most >= Decimal(self._settings.max_usd):
                return True
        tokens = spend.tokens + spend.held_tokens + sum(tokens for _, tokens in self._calls)
        return bool(self._settings.max_tokens) and tokens >= self._settings.max_tokens


def before_step(settings: Settings, state: State, context_tokens: int) -> Excess | None:
    """Return the limit that forbids another step."""
    steps = state.turn.steps if state.turn else 0
    if steps >= settings.max_steps:
        return Excess("max_steps", str(steps), str(settings.max_steps))
    if settings.context_tokens:
        hard = settings.context_tokens * settings.context_hard_percent // 100
        if context_tokens > hard:
            return Excess("context_tokens", f"about {context_tokens}", str(hard))
    return before_call(settings, state)


def seconds_left(settings: Settings, state: State) -> float | None:
    """Return how long the turn may still be driven; None is for ever."""
    if not settings.turn_seconds or state.turn is None:
        return None
    return max(0.0, settings.turn_seconds - state.turn.driven_ms / 1000)


def warning(settings: Settings, state: State, context_tokens: int) -> str:
    """Return what the model should know about limits that are near; empty if none is.

    The step that is being asked for is counted already.
    """
    notes = []
    left = settings.max_steps - (state.turn.steps if state.turn else 0)
    if left < WARN_STEPS_LEFT:
        notes.append(
            "this is the last step: call FINAL" if left == 0 else "one more step after this"
        )
    soft = settings.context_tokens * settings.context_soft_percent // 100
    if settings.context_tokens and context_tokens > soft:
        used = f"about {context_tokens} of {settings.context_tokens} context tokens are used"
        notes.append(f"{used}: print less")
    return "\n".join(f"[limit] {note}." for note in notes)


UNCHARGED = frozenset(
    {"rate_limited", "quota_exceeded", "authentication_failed", "bad_request", "script_exhausted"}
)
"""Codes of errors with which a provider turns a call away before it costs anything."""


def spent_on_failure(
    code: str, ceiling_usd: str | None, sent: int, most: int, attempts: int = 1
) -> tuple[str | None, dict[str, int | None]]:
    """Return (cost, usage) of a call that failed: nothing if it was turned away.

    Else nobody knows, and each attempt counts at its ceiling, as a call lost in a crash does.
    """
    if code in UNCHARGED:
        return "0", {"input_tokens": 0, "output_tokens": 0}
    times = max(1, attempts)
    usd = None if ceiling_usd is None else format(Decimal(ceiling_usd) * times, "f")
    return usd, {"input_tokens": sent * times, "output_tokens": most * times}


def output_ceiling(settings: Settings) -> int:
    """Return the most tokens that one reply can have, as far as a limit or custom bounds it."""
    return settings.max_output_tokens or OUTPUT_CEILING_TOKENS
