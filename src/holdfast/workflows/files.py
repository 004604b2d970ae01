"""The files of a run: committed before node ends are recorded, restored, finalised once."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

from holdfast.core.facts import CallResolved, Fact
from holdfast.core.run_facts import NodeFinished, NodeStarted, WorkspaceFinalised, WorkspaceOpened
from holdfast.core.run_state import WorkspaceState
from holdfast.core.state import State
from holdfast.workflows import workspace as workspaces
from holdfast.workflows.graph import Graph
from holdfast.workflows.model import Workspace


async def open(wanted: Workspace, run: str, place: Path, folder: Path) -> WorkspaceOpened:
    """Make the files of a run, or find those that an earlier attempt made."""
    return await asyncio.to_thread(workspaces.open_workspace, wanted, run, place, folder)


async def restore(place: WorkspaceState | None) -> None:
    """Make the files of a worktree what the log says they are."""
    if place is not None and place.kind == "worktree":
        await asyncio.to_thread(workspaces.restore, place)


async def commit(
    graph: Graph, state: State, finished: list[CallResolved], made: Mapping[str, str]
) -> dict[str, str]:
    """Commit what writing nodes left in the worktree, before their ends are on record."""
    run = state.run
    assert run is not None
    found: dict[str, str] = {}
    if run.workspace is None or run.workspace.kind != "worktree":
        return found
    over = {fact.call_id for fact in finished}
    for cursor in run.cursors.values():
        node, call = graph.node(cursor.node), cursor.call
        due = cursor.resolved is not None or call in over
        if not node.writes or not due or call is None or call in made:
            continue
        message = f"{node.id}: execution {cursor.execution}"
        one = await asyncio.to_thread(
            workspaces.commit, run.workspace, state.session, state.seq + 1, message
        )
        if one is not None:
            found[call] = one
    return found


async def adopt(place: WorkspaceState | None, run: str, after: int, facts: Sequence[Fact]) -> None:
    """Make the files those of results that were taken over from another run, and keep them."""
    if place is None or place.kind != "worktree":
        return
    found = [
        (seq, fact.commit)
        for seq, fact in enumerate(facts, after + 1)
        if isinstance(fact, NodeFinished) and fact.reused is not None and fact.commit is not None
    ]
    for seq, commit in found:
        await asyncio.to_thread(workspaces.keep, place, run, seq, commit)
    if found:
        await restore(place)


def before_the_end(facts: list[Fact]) -> list[Fact]:
    """Return what a batch that finishes a run has before its last node begins."""
    last = max(place for place, fact in enumerate(facts) if isinstance(fact, NodeStarted))
    return facts[:last]


async def finalise(place: WorkspaceState, run: str, merge: bool) -> WorkspaceFinalised:
    """Make a branch of what a run left, and merge it where that takes no decision."""
    return await asyncio.to_thread(workspaces.finalise, place, run, merge=merge)
