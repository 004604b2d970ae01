"""Progress of a run on standard error, and its questions asked in place on a terminal."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.options import note
from holdfast.core.errors import InvalidInput
from holdfast.core.events import Event
from holdfast.core.facts import CallSuspended, Fact
from holdfast.core.run_facts import (
    ArtifactWritten,
    BranchFinished,
    JoinReady,
    NodeFinished,
    NodeRetried,
    NodeStarted,
    RunPaused,
)
from holdfast.stores.port import PendingFilter, PendingWait, SessionStore

if TYPE_CHECKING:
    from holdfast.workflows.runs import Runs


class RunProgress:
    """Follows the log of a run, and prints a line for each node, branch and pause."""

    def __init__(self, store: SessionStore, *, shown: bool) -> None:
        self._store = store
        self._shown = shown
        self._task: asyncio.Task[None] | None = None

    def follow(self, run: str, after: int) -> None:
        """Print what happens to a run from a position on."""
        if self._shown and self._task is None:
            self._task = asyncio.ensure_future(self._print(run, after))

    async def _print(self, run: str, after: int) -> None:
        async with self._store.subscribe(run, after=after) as events:
            async for item in events:
                text = line_of(item.fact()) if isinstance(item, Event) and item.known else None
                if text is not None:
                    note(text)

    async def __aenter__(self) -> RunProgress:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._task is not None:
            await asyncio.sleep(0)  # what is there already is printed
            self._task.cancel()
            await asyncio.wait({self._task})


def line_of(fact: Fact) -> str | None:
    """Return what a fact of a run means for whoever watches it."""
    match fact:
        case NodeStarted():
            return f"  {fact.node}{_place(fact)} …"
        case NodeFinished() if fact.status == "ok":
            return f"✓ {fact.node}{_place(fact)}"
        case NodeFinished():
            return f"✗ {fact.node}{_place(fact)} {fact.status} {fact.code or ''}".rstrip()
        case NodeRetried():
            what = "a person is asked" if fact.then == "ask" else f"attempt {fact.attempt}"
            return f"↻ {fact.node}{_place(fact)} {fact.code}: {what}"
        case BranchFinished():
            return f"  branch {fact.branch} {fact.status}"
        case JoinReady():
            return f"  joined: {fact.ok} ok, {fact.failed} failed"
        case ArtifactWritten():
            return f"  published {fact.node}@{fact.version}"
        case RunPaused():
            return f"  waits for {fact.reason}"
    return None


def _place(fact: Any) -> str:
    """Return branch and loop counters, where they say something."""
    parts = [] if fact.branch == "main" else [fact.branch]
    parts += [f"{name} {count}" for name, count in fact.iteration.items() if count]
    return f" ({', '.join(parts)})" if parts else ""


def _said(wait: PendingWait, prompt: Any, form: Any) -> Any:
    """Ask the person at the terminal; a form field by field."""
    from holdfast.cli.people import answer_in_place, json_or_text, question_text

    fields = form.get("properties") if isinstance(form, dict) else None
    if wait.kind != "question" or not fields:
        return answer_in_place(wait, prompt)
    note(f"{wait.kind}: {question_text(prompt)}")
    said: dict[str, Any] = {}
    for name, schema in fields.items():
        needed = name in form.get("required", ())
        choices = schema.get("enum") if isinstance(schema, dict) else None
        about = f" ({', '.join(map(str, choices))})" if choices else ""
        text = click.prompt(
            f"{name}{about}", default=None if needed else "", show_default=False, err=True
        )
        if text == "" and not needed:
            continue
        plain = choices or (isinstance(schema, dict) and schema.get("type") == "string")
        said[name] = text if plain else json_or_text(text)
    return said


async def _form(store: SessionStore, wait: PendingWait) -> Any:
    """Return the schema of what is asked, as the event has it that began the wait."""
    from holdfast.views.values import read_value

    (event,) = await store.read_events(wait.session, after=wait.seq - 1, limit=1)
    fact = event.fact()
    if not isinstance(fact, CallSuspended) or fact.schema is None:
        return None
    return await read_value(store, wait.session, fact.schema)


async def ask_in_place(runs: Runs, run: str) -> bool:
    """Ask the person at the terminal the first open question of a run; tell if there was one."""
    from holdfast.views.values import read_value

    for asked in await runs.interactions(run):
        if not asked.open or asked.kind not in ("question", "approval"):
            continue
        page = await runs.store.pending(PendingFilter(session=asked.session), limit=1000)
        wait = next((one for one in page.waits if one.call_id == asked.id), None)
        if wait is None:
            continue
        prompt: Any = None
        if wait.prompt is not None:
            prompt = await read_value(runs.store, asked.session, wait.prompt)
        form = await _form(runs.store, wait)
        while True:
            try:
                said = await asyncio.to_thread(_said, wait, prompt, form)
            except click.Abort:
                return False  # it goes on waiting
            try:
                await runs.answer(run, asked.id, said, by=asked.assignee)
            except InvalidInput as error:
                note(str(error))
                continue
            return True
    return False
