"""Worktrees that nobody needs any more: found by the runs of a store, and removed.

Only folders go. What nodes left is committed under refs of the run, so the changes of a run can
still be shown, and a run that is resumed gets its folder back. Refs go with the run itself: where a
folder is left of a run that was deleted, its refs are removed with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from holdfast.core.errors import InvalidId, LeaseHeld, NotFound, SessionDeleted
from holdfast.core.events import now
from holdfast.core.ids import check_id
from holdfast.core.run_state import FAILED, FINISHED, WorkspaceState
from holdfast.core.state import State
from holdfast.stores.port import SessionFilter, SessionStore
from holdfast.workflows import workspace
from holdfast.workflows.git import GitFailed, git

PLACE = Path(".holdfast") / "worktrees"
"""Where worktrees are made unless something else is said."""

IDLE_DAYS = 7.0
"""How long a run that can be resumed keeps its folder after its last event."""

PAGE_RUNS = 200


@dataclass(frozen=True, slots=True)
class WorktreesRemoved:
    """What a collection of worktrees has removed, by run, and how many folders it left."""

    finished: tuple[str, ...] = ()
    abandoned: tuple[str, ...] = ()  # can be resumed, and get their folder back then
    deleted: tuple[str, ...] = ()  # the run is gone from the store
    kept: int = 0


async def collect(
    store: SessionStore,
    place: Path,
    *,
    idle_days: float = IDLE_DAYS,
    dry_run: bool = False,
) -> WorktreesRemoved:
    """Remove the worktrees of runs that are over, were given up or were deleted.

    A run that someone drives keeps its own, and so does one that went on a short while ago.
    """
    found: dict[str, list[str]] = {"finished": [], "abandoned": [], "deleted": []}
    kept = 0
    async for state in _runs(store):
        held = _folder(state)
        if held is None:
            continue
        why = _reason(state, idle_days)
        if why is None or not await _removed(store, state.session, held, dry_run):
            kept += 1
        else:
            found[why].append(state.session)
    for folder in await asyncio.to_thread(_folders, place):
        if await _is_deleted(store, folder.name):
            if not dry_run:
                await asyncio.to_thread(_forget, folder)
            found["deleted"].append(folder.name)
    return WorktreesRemoved(**{why: tuple(runs) for why, runs in found.items()}, kept=kept)


async def _runs(store: SessionStore) -> AsyncIterator[State]:
    cursor = None
    while True:
        page = await store.list_sessions(SessionFilter(kind="run"), limit=PAGE_RUNS, cursor=cursor)
        for info in page.sessions:
            yield await store.load_state(info.id)
        cursor = page.cursor
        if cursor is None:
            return


def _folder(state: State) -> WorkspaceState | None:
    """Return the worktree of a run, if its folder is there."""
    held = None if state.run is None else state.run.workspace
    if held is None or held.kind != "worktree" or held.path is None:
        return None
    return held if Path(held.path).exists() else None


def _reason(state: State, idle_days: float) -> str | None:
    """Return why a run needs its folder no more; None where it does."""
    assert state.run is not None
    if state.run.status in (FINISHED, FAILED):
        return "finished"
    idle = datetime.fromisoformat(now()) - datetime.fromisoformat(state.updated_at)
    return "abandoned" if idle >= timedelta(days=idle_days) else None


async def _removed(store: SessionStore, run: str, held: WorkspaceState, dry_run: bool) -> bool:
    """Remove a folder while nobody drives its run; tell whether that could be done."""
    if dry_run:
        lease = await store.lease_of(run)
        return lease is None or not lease.live
    try:
        lease_taken = await store.acquire(run)
    except LeaseHeld:
        return False
    try:
        await asyncio.to_thread(workspace.remove, held)
    finally:
        await store.release(lease_taken)
    return True


def _folders(place: Path) -> list[Path]:
    return sorted(path for path in place.iterdir() if path.is_dir()) if place.is_dir() else []


async def _is_deleted(store: SessionStore, run: str) -> bool:
    """Tell whether a run was deleted here; one that is not known may be of another store."""
    try:
        await store.load_state(check_id(run))
    except SessionDeleted:
        return True
    except (NotFound, InvalidId):
        pass
    return False


def _forget(folder: Path) -> None:
    """Remove the folder of a run that was deleted, and the refs that kept its commits."""
    try:
        found = git(folder, "rev-parse", "--path-format=absolute", "--git-common-dir")
    except GitFailed:
        return  # not one of ours
    left = WorkspaceState("worktree", str(folder), str(Path(found.strip()).parent))
    workspace.remove(left)
    workspace.forget(left, folder.name)
