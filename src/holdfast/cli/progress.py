"""Progress of a turn, for people, on standard error: live on a terminal, plain lines in a pipe.

Everything shown is read from the log through a subscription, so what a person sees is what is
stored. A display that fails or lags never holds up the work.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Protocol

from holdfast.cli.options import note
from holdfast.cli.terminal import clean, one_line
from holdfast.cli.wording import cost_text, count
from holdfast.core import facts
from holdfast.core.errors import HoldfastError
from holdfast.core.events import Event
from holdfast.core.fold import at_ceiling
from holdfast.core.state import is_lost_leaf, is_model_call
from holdfast.kernels.cells import extract
from holdfast.runtime.runtime import Runtime

CATCH_UP_SECONDS = 2.0
CODE_LINES = 12
FAN_OUT_TOLD = 8
"""From how many items on a fan-out is told of in a pipe, at every quarter."""

_PHASES = {
    "opened": "which had not asked the model yet",
    "asking": "interrupted during a model call",
    "replied": "interrupted while its code ran",
    "observed": "interrupted between two steps",
}
"""How far a turn had got, by the phase in which it was found."""


@dataclass(slots=True)
class FanOut:
    """A call of `map_lm` in flight: how many of its items are answered."""

    key: tuple[int, str, int]  # eval, digest and occurrence of the call
    width: int
    done: int = 0


@dataclass(slots=True)
class Tally:
    """What a turn has come to so far."""

    doing: str = "starting"
    steps: int = 0
    leaves: int = 0
    tokens: int = 0
    usd: Decimal = field(default_factory=Decimal)
    unknown: int = 0
    code: str = ""
    fan_out: FanOut | None = None
    in_flight: int = 0

    def spend(self, fact: facts.StepPut | facts.LeafCalled) -> None:
        """Count one model call; one that is known by its ceiling only counts as unknown."""
        if at_ceiling(fact):
            self.unknown += 1
            return
        known = fact.usage or {}
        self.tokens += (known.get("input_tokens") or 0) + (known.get("output_tokens") or 0)
        self.usd += Decimal(fact.cost_usd or 0)
        self.unknown += fact.cost_usd is None

    def leaf(self, fact: facts.LeafCalled) -> str | None:
        """Count one leaf call; return a line where it is time to tell of a fan-out."""
        self.leaves += 1
        self.in_flight = max(0, self.in_flight - 1)
        self.spend(fact)
        if fact.width <= 1 or fact.status == "unknown":
            return None
        key = (fact.eval, fact.digest, fact.occurrence)
        if self.fan_out is None or self.fan_out.key != key:
            self.fan_out = FanOut(key, fact.width)
        fan_out = self.fan_out
        fan_out.done += 1
        told = fan_out.width >= FAN_OUT_TOLD and _quarter(fan_out.done, fan_out.width)
        return f"{fact.function}: {fan_out.done} of {fan_out.width} calls" if told else None

    @property
    def line(self) -> str:
        """Return where things stand, in one line."""
        parts = [f"step {self.steps}", self.doing]
        if self.fan_out is not None and self.fan_out.done < self.fan_out.width:
            parts.append(f"{self.fan_out.done} of {self.fan_out.width} leaf calls")
        elif self.leaves:
            parts.append(count(self.leaves, "leaf call"))
        if self.in_flight:
            parts.append(f"{self.in_flight} in flight")
        return " · ".join([*parts, self._used])

    @property
    def sums(self) -> str:
        """Return what was used."""
        leaves = f"{count(self.leaves, 'leaf call')} · " if self.leaves else ""
        return leaves + self._used

    @property
    def _used(self) -> str:
        return f"{count(self.tokens, 'token')} · {cost_text(self.usd, None, self.unknown)}"


def _quarter(done: int, width: int) -> bool:
    """Tell whether an item is the first beyond a quarter of all."""
    return done * 4 // width > (done - 1) * 4 // width


class Display(Protocol):
    """Where a tally is shown."""

    def show(self, tally: Tally, news: str | None) -> None:
        """Show where things stand; `news` is what just happened, where it is worth a line."""
        ...

    def close(self, summary: str | None) -> None:
        """Show nothing more than what the turn came to."""
        ...


class PlainDisplay:
    """A line for every step and cell."""

    def show(self, tally: Tally, news: str | None) -> None:
        """Print what just happened."""
        if news:
            note(one_line(news, 160))

    def close(self, summary: str | None) -> None:
        """Print what the turn came to."""
        if summary:
            note(summary)


class LiveDisplay:
    """The tally and the code that is running, kept up to date in place."""

    def __init__(self) -> None:
        # Only here: rich costs a tenth of a second and serves nobody in a pipe.
        from rich.console import Console
        from rich.live import Live

        self._console = Console(stderr=True, highlight=False)
        self._live = Live(console=self._console, transient=True, refresh_per_second=8)
        self._live.start()

    def show(self, tally: Tally, news: str | None) -> None:
        """Redraw."""
        from rich.console import Group
        from rich.spinner import Spinner
        from rich.text import Text

        parts: list[Any] = [Spinner("dots", Text(clean(tally.line)))]
        lines = clean(tally.code).split("\n")
        if tally.code:
            more = [f"… {len(lines) - CODE_LINES} more lines"] * (len(lines) > CODE_LINES)
            shown = "\n".join(f"  {line}" for line in [*lines[:CODE_LINES], *more])
            parts.append(Text(shown, style="dim", no_wrap=True, overflow="ellipsis"))
        self._live.update(Group(*parts))

    def close(self, summary: str | None) -> None:
        """Take the display away; what the turn came to stays."""
        self._live.stop()
        if summary:
            note(summary)


@dataclass(slots=True)
class Progress:
    """Follows one session into a display."""

    runtime: Runtime
    session: str
    display: Display
    tally: Tally = field(default_factory=Tally)
    summary: str | None = None
    seen: int = 0
    until: int | None = None

    async def follow(self) -> None:
        """Show events as they come, until `until`."""
        async with self.runtime.subscribe(self.session, after=self.seen) as items:
            async for item in items:
                if isinstance(item, Event):
                    self.display.show(self.tally, await self._news(item))
                    self.seen = item.seq
                    if self.until is not None and self.seen >= self.until:
                        return

    async def _news(self, event: Event) -> str | None:
        tally = self.tally
        if not event.known:
            return None
        match event.fact():
            case facts.SessionRevived() as fact:
                return f"resuming turn {fact.turn}, {_PHASES.get(fact.found or '', 'interrupted')}"
            case facts.StepStarted() as fact:
                tally.steps, tally.doing, tally.code = tally.steps + 1, f"asking {fact.model}", ""
                tally.fan_out, tally.in_flight = None, 0
            case facts.StepPut() as fact:
                tally.spend(fact)
                tally.doing = "running code" if fact.status == "replied" else fact.status
                took = f" in {fact.latency_ms} ms" if fact.latency_ms is not None else ""
                return f"step {tally.steps}: {fact.status}{took}"
            case facts.MessageAppended(role="assistant") as fact:
                tally.code = await self._code(fact)
                tally.doing = "running code"
            case facts.LeafCalled() as fact:
                return tally.leaf(fact)
            case facts.BudgetReserved() as fact if is_model_call(fact.reservation):
                tally.in_flight += 1
            case facts.BudgetSettled() as fact if is_lost_leaf(fact):
                tally.unknown += 1
            case facts.EvalAdded() as fact:
                calls = f", {count(fact.calls, 'call')}" if fact.calls else ""
                return f"cell {fact.eval}: {fact.status}{calls} in {fact.elapsed_ms} ms"
            case facts.LimitExceeded() as fact:
                return f"limit {fact.limit}: {fact.used} used of {fact.allowed} allowed"
            case facts.TurnPut() as fact:
                tally.doing = fact.status
                steps = count(tally.steps, "step")
                self.summary = f"turn {fact.turn}: {fact.status} · {steps} · {tally.sums}"
        return None

    async def _code(self, fact: facts.MessageAppended) -> str:
        try:
            return "\n".join(extract(str(await self.runtime.value(self.session, fact.content))))
        except HoldfastError:
            return ""


@asynccontextmanager
async def shown(runtime: Runtime, session: str, *, quiet: bool) -> AsyncIterator[None]:
    """Show the progress of a session while the block runs."""
    if quiet:
        yield
        return
    # A dumb terminal cannot redraw: rich would show nothing at all on it.
    live = sys.stderr.isatty() and os.environ.get("TERM") not in (None, "", "dumb", "unknown")
    display: Display = LiveDisplay() if live else PlainDisplay()
    state = await runtime.state(session)
    progress = Progress(runtime, session, display, seen=state.seq)
    if state.turn is not None:
        progress.tally.steps = state.turn.steps
    following = asyncio.ensure_future(progress.follow())
    try:
        yield
        # The last lines belong before the result: the display catches up with the log.
        progress.until = (await runtime.state(session)).seq
        if progress.seen < progress.until:
            await asyncio.wait({following}, timeout=CATCH_UP_SECONDS)
    finally:
        following.cancel()
        await asyncio.wait({following})
        with suppress(OSError):
            display.close(progress.summary)
