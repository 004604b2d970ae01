"""`holdfast show`: the transcript of a session, from top to bottom."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

import click

from holdfast.cli.naming import find_session
from holdfast.cli.options import Call, command, session_argument
from holdfast.cli.reading import opened
from holdfast.cli.run_views import run_page
from holdfast.cli.terminal import clean, one_line
from holdfast.cli.wording import cost_text, count, form_text
from holdfast.core.events import Event
from holdfast.stores.port import SessionInfo
from holdfast.views.documents import show_document
from holdfast.views.reads import Reads
from holdfast.views.transcript import CallTranscript, StepTranscript, TurnTranscript
from holdfast.views.values import value_form

SHOWN_LINES = 40
SHOWN_CHARACTERS = 8000


@command("show")
@session_argument
@click.option("--turn", type=click.IntRange(1), help="Only this turn.")
@click.option("--full", is_flag=True, help="Everything, however long.")
def show_command(call: Call, session: str, turn: int | None, full: bool) -> None:
    """Read SESSION: its turns with their steps, code, output and cost."""

    async def work() -> None:
        async with opened(call) as store:
            info = await find_session(store, session)
            if info.kind == "run":
                call.answer(*await run_page(store, info.id))
                return
            turns = Reads(store).transcript(info.id, turn=turn)
            if call.as_json:
                call.answer(show_document(info, [item async for item in turns]), "")
                return
            # A turn that is not there is said before anything is printed.
            first = await anext(turns, None)
            page = Page(colour=_styled(), full=full)
            page.session(info)
            if info.origin and turn is None:
                page.aside(f"inherited history: {call.command_line('show', info.origin)}")
            if first is not None:
                page.item(first)
            async for item in turns:
                page.item(item)
            if info.status == "interrupted":
                page.aside(f"interrupted; resume with: {call.command_line('resume', info.id)}")

    asyncio.run(work())


def _styled() -> bool:
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") in ("dumb", "unknown")
    return sys.stdout.isatty() and not plain


class Page:
    """Prints a transcript."""

    def __init__(self, *, colour: bool, full: bool) -> None:
        self._colour = colour
        self._full = full

    def session(self, info: SessionInfo) -> None:
        """Print what the session is."""
        self._title(f"{info.id}  {info.name}")
        cost = cost_text(info.usd, None, info.unknown_usd)
        labels = "".join(f" · {key}={value}" for key, value in info.labels.items())
        origin = f" · forked from {info.origin}" if info.origin else ""
        parent = f" · child of {info.parent}" if info.parent else ""
        self.aside(f"{info.status} · {info.tokens:,} tokens · {cost}{origin}{parent}{labels}")

    def item(self, item: TurnTranscript | Event) -> None:
        """Print one turn, or an event outside of all turns."""
        if isinstance(item, Event):
            self._raw(item)
        else:
            self._turn(item)

    def _turn(self, turn: TurnTranscript) -> None:
        click.echo()
        self._title(f"turn {turn.turn} · {turn.status} · {turn.at[:19]}")
        self._body(turn.message)
        for name, size in turn.inputs.items():
            self.aside(f"input {name}: {count(size, 'byte')}")
        for step in turn.steps:
            self._step(step)
        if turn.revivals:
            times = "once" if turn.revivals == 1 else f"{turn.revivals} times"
            self.aside(f"resumed {times} after an interruption")
        for event in turn.raw:
            self._raw(event)
        if turn.error not in (None, *(step.error for step in turn.steps)):
            self._body(_problem(turn.error))
        if turn.status == "final":
            self._title("answer")
            self._body(form_text(value_form(turn.value)))
            self.aside(f"head {turn.head}")
        if turn.usage is not None:
            cost = cost_text(turn.cost_usd, turn.held_usd, turn.unknown_calls)
            self.aside(f"{_usage(turn.usage)} · {cost}")

    def _step(self, step: StepTranscript) -> None:
        known = "cost unknown" if step.cost_usd is None else f"${step.cost_usd:f}"
        cost = f" · {known}" if step.usage is not None else ""
        self._title(f"step {step.step} · {step.status} · {step.model}{cost}")
        if step.reply is not None:
            self._body(step.reply)
        if step.error is not None:
            self._body(_problem(step.error))
        for cell in step.cells:
            self.aside(f"cell {cell.eval} · {cell.status} · {cell.elapsed_ms} ms")
        for call in step.calls:
            self._call(call)
        leaves = step.leaves
        if leaves.asked:
            self.aside(f"{count(leaves.asked, 'leaf call')}, {leaves.failed} failed")
        if leaves.lost:
            lost = count(leaves.lost, "leaf call")
            self.aside(f"{lost} lost in a crash: the cost is unknown")
        if step.observation:
            self._body(step.observation, mark="> ")

    def _call(self, call: CallTranscript) -> None:
        given = json.dumps(value_form(call.arguments), ensure_ascii=False)
        child = "" if call.child is None else f" · child {call.child}"
        self.aside(f"call {call.name} · {call.effect} · {call.status}{child} · {given}")
        if call.waits_for is not None:
            until = "" if call.deadline is None else f" until {call.deadline[:19]}"
            asked = "" if call.prompt is None else f": {form_text(value_form(call.prompt))}"
            self.aside(f"waits for {call.waits_for}{until}{asked}")
        if call.error is not None:
            self.aside(_problem(call.error))

    def _raw(self, event: Event) -> None:
        self._title(f"event {event.seq} · {event.type} version {event.version}")
        self.aside("not known to this release, shown as stored")
        self._body(form_text(event.data))

    def _title(self, text: str) -> None:
        line = one_line(text, 200)
        click.echo(click.style(line, bold=True) if self._colour else line)

    def aside(self, text: str) -> None:
        """Print a line about something."""
        line = "  " + one_line(text, 200)
        click.echo(click.style(line, dim=True) if self._colour else line)

    def _body(self, text: str, mark: str = "") -> None:
        shown = text if self._full else text[:SHOWN_CHARACTERS]
        lines = clean(shown).split("\n")
        if not self._full:
            lines = lines[:SHOWN_LINES]
        for line in lines:
            click.echo(f"  {mark}{line}".rstrip())
        if not self._full and (len(shown) < len(text) or shown.count("\n") >= SHOWN_LINES):
            self.aside(f"… cut, {len(text):,} characters in all; --full shows them")


def _problem(error: Any) -> str:
    error = value_form(error)
    if isinstance(error, dict) and "message" in error:
        return f"{error.get('code', 'error')}: {error['message']}"
    return str(error)


def _usage(usage: dict[str, Any]) -> str:
    asked, answered = usage.get("input_tokens"), usage.get("output_tokens")
    return " and ".join(
        f"{'unknown' if count is None else f'{count:,}'} tokens {way}"
        for count, way in ((asked, "in"), (answered, "out"))
    )
