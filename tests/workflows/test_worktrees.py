"""Worktrees of runs that are over, given up or deleted are removed; what they made stays."""

import pytest
from lab import RUN, Lab
from test_runs_api import flow, repository, write

from holdfast.runs import Runs, registry
from holdfast.stores.memory.store import MemorySessionStore
from holdfast.workflows.git import git
from holdfast.workflows.workspace import WorkspaceFailed

TEXT = """
workflow: w
workspace: {kind: worktree, merge: false}
nodes:
  one:
    tool: write
    inputs: {path: "{{ run.workspace }}/b.txt", text: two}
    writes: workspace
    next: ask
  ask: {human: "Go on?", output: {answer: go | stop}, next: two}
  two:
    tool: write
    inputs: {path: "{{ run.workspace }}/c.txt", text: three}
    writes: workspace
    next: done
"""


@pytest.fixture
def lab():
    return Lab(MemorySessionStore())


async def begun(lab, tmp_path):
    """Return a process with a run that waits, and its repository."""
    folder = repository(tmp_path)
    process = await lab.process(tools=[write])
    process.runs = Runs(process.runtime, registry(tools=[write]), place=tmp_path / "worktrees")
    await process.runs.create(flow(TEXT), run_id=RUN, folder=folder)
    assert (await process.runs.drive(RUN)).status == "paused"
    return process, folder


async def finish(process):
    (asked,) = await process.runs.interactions(RUN)
    await process.runs.answer(RUN, asked.id, {"answer": "go"})
    await process.runtime.settled()
    return await process.runs.drive(RUN)


def worktrees(folder):
    return len(git(folder, "worktree", "list").splitlines()) - 1


async def test_the_folder_of_a_finished_run_is_removed_and_its_changes_are_still_shown(
    lab, tmp_path
):
    process, folder = await begun(lab, tmp_path)
    assert (await process.runs.remove_worktrees()).kept == 1, "it goes on when someone answers"
    assert (await finish(process)).status == "finished"
    told = await process.runs.remove_worktrees(dry_run=True)
    assert (told.finished, worktrees(folder)) == ((RUN,), 1)
    told = await process.runs.remove_worktrees()
    assert (told.finished, told.abandoned, told.kept) == ((RUN,), (), 0)
    assert worktrees(folder) == 0
    assert (await process.runs.remove_worktrees()).finished == ()
    git(folder, "gc", "--quiet", "--prune=now")
    changes = await process.runs.diff(RUN)
    assert "+two" in changes
    assert "+three" in changes
    await process.end()


async def test_a_run_that_was_given_up_gets_its_folder_back_when_it_is_resumed(lab, tmp_path):
    process, folder = await begun(lab, tmp_path)
    told = await process.runs.remove_worktrees(idle_days=0)
    assert told.abandoned == (RUN,)
    assert worktrees(folder) == 0
    assert "+two" in await process.runs.diff(RUN)
    assert (await finish(process)).status == "finished"
    record = await process.runs.load(RUN)
    assert git(folder, "show", f"{record.final_commit}:b.txt") == "two"
    assert git(folder, "show", f"{record.final_commit}:c.txt") == "three"
    assert record.not_merged == "opted_out"
    await process.end()


async def test_a_run_that_someone_drives_keeps_its_folder(lab, tmp_path):
    process, folder = await begun(lab, tmp_path)
    async with process.runs.lock(RUN):
        for dry_run in (True, False):
            told = await process.runs.remove_worktrees(idle_days=0, dry_run=dry_run)
            assert (told.abandoned, told.kept) == ((), 1)
    assert worktrees(folder) == 1
    await process.end()


async def test_what_a_deleted_run_left_goes_with_its_refs_and_nothing_else_does(lab, tmp_path):
    process, folder = await begun(lab, tmp_path)
    stranger = tmp_path / "worktrees" / "of-another-store"
    stranger.mkdir()
    await process.store.delete(RUN)
    assert git(folder, "for-each-ref", "refs/holdfast") != ""
    assert (await process.runs.remove_worktrees()).deleted == (RUN,)
    assert git(folder, "for-each-ref", "refs/holdfast") == ""
    assert (worktrees(folder), stranger.exists()) == (0, True)
    await process.end()


async def test_a_run_without_a_worktree_has_no_changes_to_show(lab):
    process = await lab.process()
    text = "workflow: w\nnodes:\n  a: {compute: {n: 1}, next: done}"
    await process.runs.run(flow(text), run_id=RUN)
    with pytest.raises(WorkspaceFailed, match="has no workspace"):
        await process.runs.diff(RUN)
    await process.end()
