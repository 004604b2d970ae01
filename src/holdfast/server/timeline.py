"""The timeline of a session: what was done as bars over time, with waits, retries and idle gaps.

Rows are actions, not events: a step from its start to its reply, a cell, leaf calls of one cell
together, each other call, what revived a session. Stretches in which nothing happened are squeezed
and labelled, unless the true time is asked for.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from holdfast.core import facts
from holdfast.core.events import Event
from holdfast.stores.port import SessionStore
from holdfast.views.turns import amount
from holdfast.views.values import value_or_erased

MOST_EVENTS = 4000
MOST_ROWS = 400
GAP_WIDTH = 4.0
"""How much of the axis a squeezed stretch takes, in percent."""


@dataclass(slots=True)
class Bar:
    """A stretch of time in a row: where it is on the axis is known at the end."""

    begin: float
    end: float
    tone: str = ""
    hatch: str = ""
    thin: bool = False
    label: str = ""
    x: float = 0.0
    width: float = 0.0


@dataclass(slots=True)
class Row:
    """One action."""

    level: int
    icon: str
    label: str
    seq: int
    last: int
    begin: float
    end: float
    bars: list[Bar] = field(default_factory=list)
    usd: Decimal | None = None
    unknown: int = 0

    @property
    def milliseconds(self) -> int:
        """Return how long it took."""
        return int((self.end - self.begin) * 1000)


@dataclass(frozen=True, slots=True)
class Gap:
    """A squeezed stretch of the axis."""

    x: float
    width: float
    label: str


@dataclass(frozen=True, slots=True)
class Timeline:
    """Rows over one axis."""

    rows: Sequence[Row]
    ticks: Sequence[tuple[float, str]]
    gaps: Sequence[Gap]
    cut: bool
    """Whether there are more actions than are shown."""


def moment(text: str) -> float:
    """Return a time of the log in seconds."""
    return datetime.fromisoformat(text).timestamp()


async def timeline(
    store: SessionStore, session_id: str, after: int, before: int | None, *, squeezed: bool = True
) -> Timeline:
    """Return the timeline of a stretch of a log."""
    reader = _Reader(store, session_id)
    seen = 0
    while seen < MOST_EVENTS:
        page = await store.read_events(session_id, after=after, before=before, limit=500)
        if not page:
            break
        for event in page:
            await reader.take(event)
        after, seen = page[-1].seq, seen + len(page)
    rows = reader.done()
    cut = seen >= MOST_EVENTS or len(rows) > MOST_ROWS
    rows = rows[:MOST_ROWS]
    axis = _Axis(rows, squeezed)
    for row in rows:
        for bar in row.bars:
            bar.x = axis.place(bar.begin)
            bar.width = max(0.25, round(axis.place(bar.end) - bar.x, 2))
    return Timeline(rows, axis.ticks(), axis.gaps, cut)


class _Reader:
    """Puts actions together from events."""

    def __init__(self, store: SessionStore, session_id: str) -> None:
        self._store = store
        self._session = session_id
        self._rows: list[Row] = []
        self._turn: Row | None = None
        self._steps: dict[int, Row] = {}
        self._calls: dict[str, Row] = {}
        self._leaves: dict[tuple[int, str], Row] = {}
        self._widths: dict[tuple[int, str], int] = {}
        self._last: float | None = None

    def _row(self, level: int, icon: str, label: str, event: Event, begin: float) -> Row:
        row = Row(level, icon, label, event.seq, event.seq, begin, begin)
        self._rows.append(row)
        return row

    def done(self) -> list[Row]:
        """Return the actions; what has not ended lasts to the end of the log."""
        end = self._last or 0.0
        for row in (*self._steps.values(), *self._calls.values()):
            if not row.bars:
                waits = row.icon in ("ask", "approve")
                row.end = end
                row.bars.append(Bar(row.begin, end, "f-live", "wait" if waits else ""))
        for row in self._calls.values():
            if row.bars[-1].hatch == "wait" and row.bars[-1].end == row.bars[-1].begin:
                row.bars[-1].end = row.end = end
        if self._turn is not None and not self._turn.bars:
            self._turn.end = end
            self._turn.bars.append(Bar(self._turn.begin, end, "f-book", thin=True))
        return sorted(self._rows, key=lambda row: (row.seq, row.level))

    async def take(self, event: Event) -> None:
        """Take one event."""
        at = moment(event.at)
        fact = event.fact() if event.known else None
        match fact:
            case facts.TurnStarted():
                self._turn = self._row(0, "user", f"Turn {fact.turn}", event, at)
            case facts.StepStarted():
                row = self._row(1, "model", f"Step {fact.step}", event, at)
                self._steps[fact.step] = row
            case facts.StepPut() if fact.step in self._steps:
                await self._step(self._steps[fact.step], fact, event, at)
            case facts.EvalAdded():
                self._cell(fact, event, at)
            case facts.LeafCalled():
                self._leaf(fact, event, at)
            case facts.SessionRevived():
                row = self._row(
                    1, "interrupted", "No driver, then revived", event, self._last or at
                )
                self._end(row, event, at, Bar(row.begin, at, hatch="cut"))
            case facts.SessionCompacted():
                row = self._row(0, "compact", f"Compaction ({fact.strategy})", event, at)
                row.usd, row.unknown = amount(fact.cost_usd), int(fact.unknown)
                self._end(row, event, at, Bar(self._last or at, at, "f-model"))
            case facts.TurnPut() if self._turn is not None:
                if fact.status not in ("open", "interrupted"):
                    self._turn.usd = amount(fact.cost_usd)
                    self._turn.unknown = fact.unknown_calls
                    bar = Bar(self._turn.begin, at, "f-book", thin=True)
                    self._end(self._turn, event, at, bar)
            case _:
                self._call(fact, event, at)
        self._last = at

    @staticmethod
    def _end(row: Row, event: Event, at: float, *bars: Bar) -> None:
        row.last, row.end = event.seq, at
        row.bars += bars

    async def _step(self, row: Row, fact: facts.StepPut, event: Event, at: float) -> None:
        row.usd = None if fact.unknown else amount(fact.cost_usd)
        row.unknown = int(fact.unknown or fact.cost_usd is None)
        if fact.status == "unknown" or fact.unknown:
            row.label += ": lost"
            self._end(row, event, at, Bar(row.begin, at, hatch="lost", label="outcome unknown"))
            return
        tone = "f-bad" if fact.status == "failed" else "f-model"
        tries: Any = None
        if fact.attempts is not None:
            tries = await value_or_erased(self._store, self._session, fact.attempts)
        bars = _tries(tries, tone) if isinstance(tries, list) and len(tries) > 1 else []
        self._end(row, event, at, *(bars or [Bar(row.begin, at, tone)]))

    def _cell(self, fact: facts.EvalAdded, event: Event, at: float) -> None:
        begin = at - (fact.elapsed_ms or 0) / 1000
        row = self._row(2, "code", f"Cell {fact.eval}", event, begin)
        bad = fact.status in ("error", "died")
        if fact.status != "ok":
            row.label += f": {fact.status}"
        self._end(row, event, at, Bar(begin, at, "f-bad" if bad else "f-code", thin=True))

    def _leaf(self, fact: facts.LeafCalled, event: Event, at: float) -> None:
        key = fact.eval, fact.function
        begin = at - (fact.latency_ms or 0) / 1000
        if key not in self._leaves:
            self._leaves[key] = self._row(3, "leaf", fact.function, event, begin)
            self._widths[key] = 0
        row = self._leaves[key]
        self._widths[key] += 1
        row.label = f"{fact.function} × {self._widths[key]}"
        row.begin, row.end, row.last = min(row.begin, begin), max(row.end, at), event.seq
        row.usd = (row.usd or Decimal(0)) + (amount(fact.cost_usd) or Decimal(0))
        row.unknown += int(fact.unknown or fact.cost_usd is None)
        row.bars = [Bar(row.begin, row.end, "f-leaf")]
        if fact.status == "error":
            row.label += ", some failed"

    def _call(self, fact: Any, event: Event, at: float) -> None:
        match fact:
            case facts.CallRequested():
                icon = {"question": "ask", "child": "child"}.get(fact.kind, "tool")
                icon = "child" if fact.child else "approve" if fact.approval else icon
                label = f"{fact.name} → {fact.child}" if fact.child else fact.name
                level = 3 if fact.eval is not None else 2
                self._calls[fact.call_id] = self._row(level, icon, label, event, at)
            case facts.CallSuspended() if fact.call_id in self._calls:
                row = self._calls[fact.call_id]
                tone = "f-child" if row.icon == "child" else ""
                row.bars.append(Bar(at, at, tone, "" if tone else "wait"))
            case facts.CallApproved() | facts.CallDenied() if fact.call_id in self._calls:
                row = self._calls[fact.call_id]
                if row.bars:
                    row.bars[-1].end = at
                row.end = at
            case facts.CallResolved() if fact.call_id in self._calls:
                self._resolved(self._calls[fact.call_id], fact, event, at)

    def _resolved(self, row: Row, fact: facts.CallResolved, event: Event, at: float) -> None:
        begin = row.bars[-1].end if row.bars else row.begin
        if row.bars and row.bars[-1].begin == row.bars[-1].end:
            row.bars[-1].end = begin = at
        tone = "f-child" if row.icon == "child" else "f-tool"
        if fact.outcome != "ok":
            row.label += f": {fact.outcome}"
            tone = "f-bad" if fact.outcome == "error" else tone
        row.last, row.end = event.seq, at
        if fact.outcome == "unknown":
            row.bars.append(Bar(begin, at, hatch="lost", label="outcome unknown"))
        elif begin < at or not row.bars:
            row.bars.append(Bar(begin, at, tone))


def _tries(tries: Sequence[Any], tone: str) -> list[Bar]:
    """Return a bar for each try at the provider, with what the failed ones failed by."""
    bars = []
    for item in tries:
        begin = moment(item["started_at"])
        failed = item["outcome"] != "ok"
        bars.append(Bar(begin, begin + item["duration_ms"] / 1000, "f-bad" if failed else tone))
    failures = [str(item.get("error") or item["outcome"]) for item in tries[:-1]]
    bars[-1].label = f"{len(tries)} tries: {', '.join(failures)}"[:60]
    return bars


class _Axis:
    """Where times are on the axis, with idle stretches squeezed."""

    def __init__(self, rows: Sequence[Row], squeezed: bool) -> None:
        spans = sorted(
            (bar.begin, bar.end) for row in rows for bar in row.bars if row.level or not row.bars
        ) or sorted((bar.begin, bar.end) for row in rows for bar in row.bars)
        spans = spans or [(0.0, 1.0)]
        busy: list[list[float]] = []
        for begin, end in spans:
            if busy and begin <= busy[-1][1]:
                busy[-1][1] = max(busy[-1][1], end)
            else:
                busy.append([begin, end])
        worked = max(0.001, sum(end - begin for begin, end in busy))
        least = worked / 5 if squeezed else float("inf")
        pairs = itertools.pairwise(busy)
        idle = [(a[1], b[0]) for a, b in pairs if b[0] - a[1] > least]
        whole = busy[-1][1] - busy[0][0] - sum(end - begin for begin, end in idle)
        share = max(20.0, 100 - GAP_WIDTH * len(idle))
        self._fine = whole < 20
        self._stops: list[tuple[float, float]] = [(busy[0][0], 0.0)]
        self.gaps: list[Gap] = []
        scale = share / max(0.001, whole)
        width = min(GAP_WIDTH, (100 - share) / len(idle)) if idle else 0.0
        x, at = 0.0, busy[0][0]
        for begin, end in idle:
            x += (begin - at) * scale
            self._stops.append((begin, x))
            self.gaps.append(Gap(round(x, 2), width, f"{_words(end - begin)} idle"))
            x, at = x + width, end
            self._stops.append((end, x))
        self._stops.append((max(busy[-1][1], at + 0.001), 100.0))

    def place(self, at: float) -> float:
        """Return where a time is, in percent."""
        (before, x) = self._stops[0]
        for stop, there in self._stops[1:]:
            if at <= stop:
                part = (at - before) / (stop - before) if stop > before else 0.0
                return round(max(0.0, x + part * (there - x)), 2)
            before, x = stop, there
        return 100.0

    def ticks(self) -> list[tuple[float, str]]:
        """Return times to write on the axis."""
        found: list[tuple[float, str]] = []
        for (begin, left), (end, right) in itertools.pairwise(self._stops):
            squeezed = any(gap.x == round(left, 2) for gap in self.gaps)
            if squeezed or right - left < 8:
                continue
            count = max(1, int((right - left) // 16))
            for number in range(count):
                at = begin + (end - begin) * number / count
                text = datetime.fromtimestamp(at, UTC).strftime("%H:%M:%S.%f")
                text = text[:12] if self._fine else text[:8]
                found.append((round(left + (right - left) * number / count, 2), text))
        return found


def _words(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h"
