"""The store of runs: everything that can be asked about runs, and the right to drive one.

It needs a session store and nothing else: neither the workflow of a run nor its agents. Every verb
works on every store, beside a live driver and from any process; reading changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from holdfast.core.errors import CallNotFound
from holdfast.core.events import Event
from holdfast.core.run_facts import RunChanged, RunStarted
from holdfast.core.state import State
from holdfast.stores.port import Lease, LeaseInfo, SessionStore
from holdfast.views.values import read_value
from holdfast.workflows import artifacts as artifact_views
from holdfast.workflows import workspace
from holdfast.workflows.artifacts import Artifact
from holdfast.workflows.interactions import Interaction, interactions
from holdfast.workflows.model import Workflow
from holdfast.workflows.reading import read_document
from holdfast.workflows.records import Checkpoint, RunRecord, load_record
from holdfast.workflows.results import (
    RunInfo,
    RunNotFound,
    RunResult,
    page_of,
    result_of,
    state_of,
)
from holdfast.workflows.workspace import WorkspaceFailed

PAGE_EVENTS = 500


class RunStore:
    """The runs of one session store."""

    def __init__(self, store: SessionStore) -> None:
        self._store = store

    @property
    def store(self) -> SessionStore:
        """Return the store that the runs are in."""
        return self._store

    async def _state(self, run: str) -> State:
        return await state_of(self._store, run)

    # -- the run as a whole

    async def load(self, run: str) -> RunRecord:
        """Return everything about a run: how it was launched, where it stands, what it came to."""
        return await load_record(self._store, await self._state(run))

    async def status(self, run: str) -> str:
        """Return the status of a run; `interrupted` where nobody drives one that is running."""
        return (await self.load(run)).status

    async def checkpoint(self, run: str) -> Checkpoint:
        """Return what it takes to go on with a run, with the values that its state names."""
        return (await self.load(run)).checkpoint

    async def result(self, run: str) -> RunResult:
        """Return what a run has come to so far."""
        return await result_of(self._store, run)

    async def workflow(self, run: str) -> Workflow:
        """Return the workflow that a run goes by, as it is stored with it."""
        state = (await self._state(run)).run
        if state is None:
            raise RunNotFound(f"run {run!r} has not begun; drive it first")
        (event,) = await self._store.read_events(run, after=state.model - 1, limit=1)
        fact = event.fact()
        assert isinstance(fact, RunStarted | RunChanged)
        assert fact.model is not None
        document: Any = await read_value(self._store, run, fact.model)
        return read_document(document)

    async def page(
        self, *, limit: int = 100, cursor: str | None = None, workflow: str | None = None
    ) -> tuple[list[RunInfo], str | None]:
        """Return one page of runs, newest first, and where the next page begins."""
        return await page_of(self._store, limit, cursor, workflow)

    # -- its log

    async def events(
        self, run: str, start: int = 1, end: int | None = None, limit: int = 1000
    ) -> list[Event]:
        """Return events from `start` up to, not including, `end`, at most `limit`."""
        await self._state(run)
        return await self._store.read_events(run, after=start - 1, before=end, limit=limit)

    async def scan(self, run: str, start: int = 1, end: int | None = None) -> AsyncIterator[Event]:
        """Yield events one by one; whoever has seen enough stops, and no more is read."""
        after = start - 1
        while page := await self._store.read_events(
            run, after=after, before=end, limit=PAGE_EVENTS
        ):
            for event in page:
                yield event
            after = page[-1].seq

    # -- what it published and asked

    async def artifacts(self, run: str, node: str | None = None) -> list[Artifact]:
        """Return the versions that a run, or one node of it, has published."""
        await self._state(run)
        return await artifact_views.versions(self._store, run, node)

    async def artifact(self, run: str, node: str, version: int | None = None) -> Any:
        """Return what a version of an artifact holds, by default the latest."""
        await self._state(run)
        found = await artifact_views.find(self._store, run, node, version)
        return await artifact_views.body(self._store, run, found)

    async def interactions(self, run: str) -> list[Interaction]:
        """Return what people were asked in a run, and what they said."""
        await self._state(run)
        return await interactions(self._store, run)

    async def interaction(self, run: str, interaction_id: str) -> Interaction:
        """Return one thing that people were asked in a run."""
        found = await self.interactions(run)
        for one in found:
            if one.id == interaction_id:
                return one
        known = ", ".join(one.id for one in found) or "none"
        raise CallNotFound(f"run {run!r} asked nobody {interaction_id!r}; it asked: {known}")

    async def diff(self, run: str) -> str:
        """Return what a run changed in its worktree, whether or not the folder is still there."""
        state = (await self._state(run)).run
        place = None if state is None else state.workspace
        if place is None:
            raise WorkspaceFailed(f"run {run!r} has no workspace")
        return await asyncio.to_thread(workspace.diff, place)

    # -- who drives it

    async def driver(self, run: str) -> LeaseInfo | None:
        """Return who drives a run, if anyone does."""
        await self._state(run)
        lease = await self._store.lease_of(run)
        return lease if lease is not None and lease.live else None

    @asynccontextmanager
    async def lock(self, run: str) -> AsyncIterator[Lease]:
        """Hold the right to drive a run, so that nobody else does meanwhile.

        LeaseHeld where someone does already. A process that dies loses it.
        """
        await self._state(run)
        lease = await self._store.acquire(run)
        try:
            yield lease
        finally:
            await self._store.release(lease)
