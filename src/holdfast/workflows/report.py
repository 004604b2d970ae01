"""Reports: one run as a page to read, in markdown or HTML, made from its log alone."""

from __future__ import annotations

import html
import json
from collections import Counter
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from holdfast.core.events import Event
from holdfast.core.facts import CallRequested, StepPut
from holdfast.core.ids import friendly_name
from holdfast.core.run_facts import (
    EdgeSelected,
    JoinReady,
    NodeFinished,
    NodeRetried,
    NodeStarted,
)
from holdfast.stores.port import SessionStore
from holdfast.views.values import read_value
from holdfast.workflows import artifacts
from holdfast.workflows.interactions import interactions, node_of

PAGE_EVENTS = 500
CELL_CHARACTERS = 300


@dataclass(slots=True)
class Section:
    """One table of a report."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]] = field(default_factory=list)


@dataclass(slots=True)
class Report:
    """What a run did, as tables."""

    run: str
    title: str
    facts: list[tuple[str, str]]
    sections: list[Section]

    def markdown(self) -> str:
        """Return the report as markdown."""
        lines = [f"# {_cell(self.title)}", ""]
        lines += [f"- {name}: {_cell(value)}" for name, value in self.facts]
        for part in self.sections:
            lines += ["", f"## {part.title}", ""]
            if not part.rows:
                lines.append("none")
                continue
            lines.append("| " + " | ".join(part.columns) + " |")
            lines.append("|" + "---|" * len(part.columns))
            lines += ["| " + " | ".join(map(_cell, row)) + " |" for row in part.rows]
        return "\n".join(lines) + "\n"

    def html(self) -> str:
        """Return the report as one page of HTML, without scripts and without links."""
        told = "".join(
            f"<li>{html.escape(name)}: {html.escape(value)}</li>" for name, value in self.facts
        )
        parts = [f"<h1>{html.escape(self.title)}</h1><ul>{told}</ul>"]
        for part in self.sections:
            parts.append(f"<h2>{html.escape(part.title)}</h2>")
            if not part.rows:
                parts.append("<p>none</p>")
                continue
            parts.append(f"<table>{_row('th', part.columns)}")
            parts += [_row("td", row) for row in part.rows]
            parts.append("</table>")
        style = "body{font:15px sans-serif;max-width:60em;margin:2em auto}td,th{padding:.2em .6em;"
        style += "text-align:left;vertical-align:top;border-bottom:1px solid #ddd}"
        head = f"<meta charset=utf-8><title>{html.escape(self.title)}</title><style>{style}</style>"
        return f"<!doctype html><html><head>{head}</head><body>{''.join(parts)}</body></html>\n"


def _row(tag: str, cells: tuple[str, ...]) -> str:
    return "<tr>" + "".join(f"<{tag}>{html.escape(one)}</{tag}>" for one in cells) + "</tr>"


def _cell(text: str) -> str:
    """Return text that cannot end its cell, its row or its line."""
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= CELL_CHARACTERS else text[:CELL_CHARACTERS] + " …"


async def report(store: SessionStore, run: str) -> Report:
    """Return the report of a run."""
    state = await store.load_state(run)
    timeline = Section("Timeline", ("at", "node", "branch", "loops", "what"))
    loops: Counter[str] = Counter()
    children: list[tuple[str, str]] = []
    first = last = ""
    after = 0
    while page := await store.read_events(run, after=after, limit=PAGE_EVENTS):
        first = first or page[0].at
        last = page[-1].at
        for event in page:
            _noted(event, timeline, loops, children)
        after = page[-1].seq
    status = "created" if state.run is None else state.run.status
    facts = [
        ("run", run),
        ("status", status),
        ("began", first),
        ("last event", last),
        ("executions", str(0 if state.run is None else state.run.executions)),
        ("cost", _cost(state.total.usd, state.total.unknown_usd)),
    ]
    name = "" if state.run is None else state.run.workflow
    sections = [
        timeline,
        await _costs(store, children),
        Section("Loops", ("loop", "passed"), [(k, str(n)) for k, n in sorted(loops.items())]),
        await _artifacts(store, run),
        await _questions(store, run),
    ]
    return Report(run, f"{name} · {friendly_name(run)}", facts, sections)


def _noted(
    event: Event, timeline: Section, loops: Counter[str], children: list[tuple[str, str]]
) -> None:
    fact: Any = event.fact() if event.known else None
    what = None
    match fact:
        case NodeStarted():
            what = "started"
        case NodeFinished():
            what = fact.status + (f" ({fact.code})" if fact.code else "")
        case NodeRetried():
            what = f"{fact.then} after {fact.code}"
        case JoinReady():
            timeline.rows.append(
                (event.at[:19], "", fact.branch, "", f"joined {fact.ok} ok, {fact.failed} failed")
            )
        case EdgeSelected() if fact.loop is not None:
            loops[fact.loop] += 1
        case CallRequested() if fact.child is not None:
            children.append((node_of(fact.call_id), fact.child))
    if what is not None:
        passed = ", ".join(f"{name} {count}" for name, count in fact.iteration.items())
        timeline.rows.append((event.at[:19], fact.node, fact.branch, passed, what))


def _cost(usd: str, unknown: int) -> str:
    return f"${Decimal(usd):f}" + (f" and {unknown} unknown" if unknown else "")


async def _costs(store: SessionStore, children: list[tuple[str, str]]) -> Section:
    """Return what the nodes cost, by node and model."""
    sums: dict[tuple[str, str], tuple[Decimal, int, int]] = {}
    for node, child in children:
        after = 0
        while page := await store.read_events(
            child, after=after, limit=PAGE_EVENTS, types=[StepPut.TYPE]
        ):
            for event in page:
                fact = event.fact()
                assert isinstance(fact, StepPut)
                usd, unknown, calls = sums.get((node, fact.model or ""), (Decimal(0), 0, 0))
                known = fact.cost_usd is not None
                sums[node, fact.model or ""] = (
                    usd + Decimal(fact.cost_usd or 0),
                    unknown + (not known),
                    calls + 1,
                )
            after = page[-1].seq
    rows: list[tuple[str, ...]] = [
        (node, model, str(calls), _cost(str(usd), unknown))
        for (node, model), (usd, unknown, calls) in sorted(sums.items())
    ]
    return Section("Cost by node and model", ("node", "model", "calls", "cost"), rows)


async def _artifacts(store: SessionStore, run: str) -> Section:
    found = await artifacts.versions(store, run)
    rows: list[tuple[str, ...]] = [
        (f"{one.node}@{one.version}", str(one.size), one.written_at[:19]) for one in found
    ]
    return Section("Artifacts", ("artifact", "bytes", "written"), rows)


async def _questions(store: SessionStore, run: str) -> Section:
    part = Section("Questions", ("node", "asked", "question", "answer", "by"))
    for one in await interactions(store, run):
        question = None
        if one.question is not None:
            question = await read_value(store, one.session, one.question)
        answer: Any = one.outcome or "open"
        if one.answer is not None:
            answer = await read_value(store, one.session, one.answer)
        part.rows.append(
            (one.node, one.requested_at[:19], _short(question), _short(answer), one.by or "")
        )
    return part
