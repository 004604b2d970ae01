"""Progress of a run on standard error, and its questions asked in place on a terminal."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import TYPE_CHECKING, Any

from holdfast.cli.options import note
from holdfast.core.events import Event
from holdfast.core.facts import Fact
from holdfast.core.run_facts import (
    ArtifactWritten,
    BranchFinished,
    JoinReady,
    NodeFinished,
    NodeRetried,
    NodeStarted,
    RunPaused,
)
from holdfast.stores.port import PendingFilter, SessionStore

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


async def ask_in_place(runs: Runs, run: str) -> bool:
    """Ask the person at the terminal the first open question of a run; tell if there was one."""
    from holdfast.cli.people import answer_in_place
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
        await runs.answer(run, asked.id, answer_in_place(wait, prompt), by=asked.assignee)
        return True
    return False
