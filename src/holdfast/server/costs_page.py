"""Costs of a session: by turn, by model and by what asked, with known, held and unknown apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from holdfast.core import facts
from holdfast.stores.port import SessionStore
from holdfast.views.turns import amount

PAGE_EVENTS = 500
MOST_TURNS = 200


@dataclass(slots=True)
class Sum:
    """What one thing cost."""

    name: str
    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    usd: Decimal = Decimal(0)
    held_usd: Decimal = Decimal(0)
    unknown: int = 0
    link: str = ""

    def add(self, usd: str | None, usage: facts.Usage | None, unknown: bool) -> None:
        """Count one model call."""
        self.calls += 1
        if unknown:
            self.held_usd += amount(usd) or Decimal(0)
        else:
            self.usd += amount(usd) or Decimal(0)
            given: dict[str, Any] = dict(usage or {})
            self.input_tokens += given.get("input_tokens") or 0
            self.output_tokens += given.get("output_tokens") or 0
            self.cached_tokens += given.get("cached_tokens") or 0
        self.unknown += int(unknown or usd is None)


@dataclass(frozen=True, slots=True)
class Costs:
    """What a session cost, seen from three sides."""

    turns: Sequence[Sum]
    models: Sequence[Sum]
    purposes: Sequence[Sum]
    more: bool

    @property
    def most(self) -> Decimal:
        """Return the largest cost of a turn, for the bars."""
        return max((row.usd + row.held_usd for row in self.turns), default=Decimal(0))


async def costs(store: SessionStore, session_id: str) -> Costs:
    """Return what the model calls of a session cost."""
    turns: dict[int, Sum] = {}
    models: dict[str, Sum] = {}
    purposes: dict[str, Sum] = {}
    after = 0
    types = [facts.StepPut.TYPE, facts.LeafCalled.TYPE, facts.SessionCompacted.TYPE]
    while page := await store.read_events(session_id, after=after, limit=PAGE_EVENTS, types=types):
        for event in page:
            fact = event.fact() if event.known else None
            match fact:
                case facts.StepPut():
                    purpose, turn = "steps", fact.turn
                case facts.LeafCalled():
                    purpose, turn = fact.function, fact.turn
                case facts.SessionCompacted() if fact.model is not None:
                    purpose, turn = "compaction", 0
                case _:
                    continue
            rows = [
                models.setdefault(fact.model or "unknown model", Sum(fact.model or "?")),
                purposes.setdefault(purpose, Sum(purpose)),
            ]
            if turn:
                name = f"Turn {turn}"
                rows.append(turns.setdefault(turn, Sum(name, link=f"?turn={turn}")))
            for row in rows:
                row.add(fact.cost_usd, fact.usage, fact.unknown)
        after = page[-1].seq
    newest = sorted(turns)[-MOST_TURNS:]
    return Costs(
        [turns[number] for number in newest],
        sorted(models.values(), key=lambda row: -row.usd),
        sorted(purposes.values(), key=lambda row: -row.usd),
        len(turns) > MOST_TURNS,
    )
