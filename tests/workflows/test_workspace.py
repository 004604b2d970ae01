"""Workspaces: real repositories, killed after every git command."""

import subprocess
from pathlib import Path

import pytest

from holdfast.core.ids import friendly_name
from holdfast.core.run_state import WorkspaceState
from holdfast.workflows import workspace as module
from holdfast.workflows.git import GitFailed, git
from holdfast.workflows.model import Workspace
from holdfast.workflows.workspace import (
    WorkspaceFailed,
    commit,
    diff,
    finalise,
    forget,
    open_workspace,
    ref_of,
    remove,
    restore,
)

RUN = "r-1"
BRANCH = f"holdfast/run/{friendly_name(RUN)}"


class Killed(Exception):
    """The process is gone."""


@pytest.fixture
def repository(tmp_path):
    """Return a repository with one commit on its branch."""
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "--quiet", "--initial-branch=main")
    (folder / "a.txt").write_text("one\n")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message", "first")
    return folder


def opened(repository, tmp_path, **wanted):
    """Return the state of a workspace that was just opened."""
    fact = open_workspace(Workspace("worktree", **wanted), RUN, tmp_path / "worktrees", repository)
    return WorkspaceState(fact.kind, fact.path, fact.repository, fact.base_commit, fact.base_branch)


def after(state, made):
    """Return the state once a node's end is on record."""
    if made is None:
        return state
    return WorkspaceState(
        state.kind, state.path, state.repository, state.base_commit, state.base_branch, made
    )


def write(state, name, text):
    path = Path(state.path) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def worked(repository, tmp_path, seq=7):
    """Return the workspace of a run whose one node changed a file."""
    state = opened(repository, tmp_path)
    write(state, "b.txt", "two\n")
    return after(state, commit(state, RUN, seq, "write"))


def head(folder, ref="HEAD"):
    return git(folder, "rev-parse", ref).strip()


def branches(repository):
    return git(repository, "for-each-ref", "--format=%(refname:short)", "refs/heads").split()


def test_a_run_gets_a_worktree_of_its_own_at_the_commit_it_began_with(repository, tmp_path):
    state = opened(repository, tmp_path)
    assert Path(state.path, "a.txt").read_text() == "one\n"
    assert (state.base_commit, state.base_branch) == (head(repository), "main")
    assert state.repository == str(repository)
    write(state, "a.txt", "changed\n")
    assert (repository / "a.txt").read_text() == "one\n", "the user's files stay as they are"


def test_opening_twice_is_opening_once(repository, tmp_path):
    first = opened(repository, tmp_path)
    write(first, "left.txt", "by a node that was killed")
    assert opened(repository, tmp_path) == first
    assert not Path(first.path, "left.txt").exists()
    assert len(git(repository, "worktree", "list").splitlines()) == 2


def test_what_a_kill_left_of_an_opening_is_replaced(repository, tmp_path):
    folder = tmp_path / "worktrees" / RUN
    folder.mkdir(parents=True)
    (folder / ".git").write_text("gitdir: /nowhere\n")
    state = opened(repository, tmp_path)
    assert Path(state.path, "a.txt").exists()


@pytest.mark.parametrize("wanted", [{"path": ".."}, {"base": "no-such-branch"}])
def test_a_worktree_that_cannot_be_is_refused_with_what_to_do(repository, tmp_path, wanted):
    with pytest.raises(WorkspaceFailed, match=r"git init|commit something first"):
        opened(repository, tmp_path, **wanted)


def test_a_repository_without_a_commit_is_refused(tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    git(empty, "init", "--quiet")
    with pytest.raises(WorkspaceFailed, match="commit something first"):
        opened(empty, tmp_path)


def test_a_directory_is_made_and_kept(tmp_path):
    fact = open_workspace(Workspace("directory", path="here"), RUN, tmp_path / "w", tmp_path)
    assert (fact.kind, fact.path) == ("directory", str(tmp_path / "here"))
    state = WorkspaceState("directory", fact.path)
    assert commit(state, RUN, 3, "x") is None
    assert finalise(state, RUN).branch is None
    assert not remove(state)
    assert Path(fact.path).is_dir()
    none = open_workspace(Workspace(), RUN, tmp_path / "w", tmp_path)
    assert (none.kind, none.path) == ("none", None)


def test_what_a_node_leaves_is_committed_under_a_ref_of_the_run(repository, tmp_path):
    state = opened(repository, tmp_path)
    assert commit(state, RUN, 5, "nothing") is None, "a node that changed nothing makes no commit"
    write(state, "deep/er/c.txt", "three\n")
    Path(state.path, "a.txt").unlink()
    made = commit(state, RUN, 6, "node write, execution 2")
    assert head(repository, ref_of(RUN, 6)) == made
    assert git(repository, "show", "--stat", "--format=%s", made).startswith("node write")
    assert git(state.path, "status", "--porcelain") == ""
    assert head(state.path) == made
    state = after(state, made)
    assert commit(state, RUN, 9, "again") is None
    assert branches(repository) == ["main"]


def test_commits_that_a_node_made_itself_are_kept(repository, tmp_path):
    state = opened(repository, tmp_path)
    write(state, "c.txt", "by the node\n")
    git(state.path, "add", ".")
    git(state.path, "commit", "--quiet", "--message", "its own")
    own = head(state.path)
    assert commit(state, RUN, 4, "ours") == own
    write(state, "d.txt", "and more\n")
    made = commit(after(state, own), RUN, 8, "ours")
    assert head(repository, f"{made}~1") == own


def test_a_kill_before_the_end_is_on_record_costs_nothing(repository, tmp_path):
    state = opened(repository, tmp_path)
    write(state, "b.txt", "two\n")
    commit(state, RUN, 6, "lost")  # and the batch that would say so was never written
    restore(state)
    assert not Path(state.path, "b.txt").exists()
    write(state, "b.txt", "two, again\n")
    made = commit(state, RUN, 6, "kept")
    assert head(repository, ref_of(RUN, 6)) == made
    assert head(repository, f"{made}~1") == state.base_commit


def test_files_are_restored_to_what_the_log_says(repository, tmp_path):
    state = worked(repository, tmp_path)
    write(state, "b.txt", "half of it")
    write(state, "junk/x", "left behind")
    lock = Path(git(state.path, "rev-parse", "--absolute-git-dir").strip()) / "index.lock"
    lock.write_text("")
    restore(state)
    assert Path(state.path, "b.txt").read_text() == "two\n"
    assert not Path(state.path, "junk").exists()
    assert not lock.exists()


def test_a_worktree_that_is_gone_is_made_again(repository, tmp_path):
    state = worked(repository, tmp_path)
    subprocess.run(["rm", "-rf", state.path], check=True)
    restore(state)
    assert Path(state.path, "b.txt").read_text() == "two\n"


def test_a_locked_index_that_a_node_left_keeps_nothing_from_being_committed(repository, tmp_path):
    state = opened(repository, tmp_path)
    write(state, "b.txt", "two\n")
    lock = Path(git(state.path, "rev-parse", "--absolute-git-dir").strip()) / "index.lock"
    lock.write_text("")
    assert commit(state, RUN, 6, "write") is not None


def test_neither_hooks_nor_settings_of_the_user_take_part(repository, tmp_path, monkeypatch):
    witness = tmp_path / "witness"
    for name in ("pre-commit", "post-checkout", "reference-transaction", "post-merge"):
        hook = repository / ".git" / "hooks" / name
        hook.write_text(f"#!/bin/sh\necho {name} >> {witness}\nexit 1\n")
        hook.chmod(0o755)
    config = tmp_path / "config"
    config.write_text("[user]\n\tname = Someone Else\n[commit]\n\tgpgSign = true\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(config))
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    state = worked(repository, tmp_path)
    finalise(state, RUN)
    assert not witness.exists()
    assert git(repository, "log", "-1", "--format=%an", state.commit).strip() == "Holdfast"


def test_odd_names_of_files_and_runs_are_no_matter(repository, tmp_path):
    state = opened(repository, tmp_path)
    for name in ("-rf", "with space", "ü\n", ";touch x", ".gitignore.lock"):
        write(state, name, "x")
    made = commit(state, "a.lock", 6, "--amend")
    assert head(repository, ref_of("a.lock", 6)) == made
    assert len(git(repository, "ls-tree", "-z", "--name-only", made).split("\0")) == 7


# -- finalising


def test_a_finished_run_leaves_a_branch_and_is_merged(repository, tmp_path):
    state = worked(repository, tmp_path)
    told = finalise(state, RUN)
    assert (told.commit, told.branch) == (state.commit, BRANCH)
    assert (told.merged_into, told.reason) == ("main", None)
    assert (repository / "b.txt").read_text() == "two\n", "the checkout moved along"
    assert git(repository, "status", "--porcelain") == ""


def _dirty(repository):
    (repository / "a.txt").write_text("in the middle of something\n")


def _untracked(repository):
    (repository / "b.txt").write_text("mine\n")


def _diverged(repository):
    (repository / "other.txt").write_text("x")
    git(repository, "add", ".")
    git(repository, "commit", "--quiet", "--message", "meanwhile")


def _rewritten(repository):
    git(repository, "commit", "--quiet", "--amend", "--message", "rewritten")


def _locked(repository):
    (repository / ".git" / "index.lock").write_text("")


@pytest.mark.parametrize(
    ("disturb", "reason"),
    [
        (_dirty, "dirty"),
        (_untracked, "dirty"),
        (_diverged, "diverged"),
        (_rewritten, "not_fast_forward"),
        (_locked, "busy"),
    ],
)
def test_what_cannot_be_merged_stays_a_branch_with_the_reason(
    repository, tmp_path, disturb, reason
):
    state = worked(repository, tmp_path)
    disturb(repository)
    before = head(repository, "main")
    told = finalise(state, RUN)
    assert (told.branch, told.merged_into, told.reason) == (BRANCH, None, reason)
    assert head(repository, BRANCH) == state.commit
    assert head(repository, "main") == before


def test_a_detached_head_has_no_branch_to_merge_into(repository, tmp_path):
    git(repository, "checkout", "--quiet", "--detach")
    state = worked(repository, tmp_path)
    assert state.base_branch is None
    assert finalise(state, RUN).reason == "detached"


def test_whoever_opted_out_gets_the_branch_alone(repository, tmp_path):
    told = finalise(worked(repository, tmp_path), RUN, merge=False)
    assert (told.branch, told.reason) == (BRANCH, "opted_out")


def test_a_run_that_changed_nothing_leaves_nothing(repository, tmp_path):
    told = finalise(opened(repository, tmp_path), RUN)
    assert (told.branch, told.reason) == (None, "no_changes")
    assert branches(repository) == ["main"]


def test_a_branch_that_is_not_checked_out_is_moved_too(repository, tmp_path):
    state = worked(repository, tmp_path)
    git(repository, "checkout", "--quiet", "-b", "elsewhere")
    assert finalise(state, RUN).merged_into == "main"
    assert head(repository, "main") == state.commit
    assert not (repository / "b.txt").exists()


def test_a_name_that_is_taken_gets_a_number(repository, tmp_path):
    git(repository, "branch", BRANCH)
    assert finalise(worked(repository, tmp_path), RUN).branch == f"{BRANCH}-2"


def test_finalising_again_comes_to_the_same(repository, tmp_path):
    state = worked(repository, tmp_path)
    assert finalise(state, RUN) == finalise(state, RUN)
    assert branches(repository) == [BRANCH, "main"]


@pytest.mark.parametrize("disturb", [None, _dirty, _diverged])
def test_a_kill_at_any_git_command_leaves_one_branch_and_one_reason(
    repository, tmp_path, monkeypatch, disturb
):
    state = worked(repository, tmp_path)
    if disturb is not None:
        disturb(repository)
    real, kills = module.git, 0
    for limit in range(1, 30):
        left = limit

        def cut(*words, **options):
            nonlocal left
            done = real(*words, **options)
            left -= 1
            if left == 0:
                raise Killed
            return done

        monkeypatch.setattr(module, "git", cut)
        monkeypatch.setattr("holdfast.workflows.git.git", cut)
        try:
            told = finalise(state, RUN)
        except Killed:
            kills += 1
            continue
        break
    monkeypatch.undo()
    assert kills >= 3
    assert told == finalise(state, RUN)
    assert branches(repository) == [BRANCH, "main"]
    expected = {None: None, _dirty: "dirty", _diverged: "diverged"}[disturb]
    assert told.reason == expected


# -- afterwards


def test_what_a_run_changed_can_be_shown_after_its_folder_is_gone(repository, tmp_path):
    state = worked(repository, tmp_path)
    told = finalise(state, RUN)
    assert remove(state)
    assert not Path(state.path).exists()
    assert not remove(state), "there is nothing left to remove"
    git(repository, "gc", "--quiet", "--prune=now")
    assert "+two" in diff(state, told.commit)
    assert len(git(repository, "worktree", "list").splitlines()) == 1


def test_refs_of_a_deleted_run_are_removed_and_its_branch_stays(repository, tmp_path):
    state = worked(repository, tmp_path)
    finalise(state, RUN)
    assert forget(state, RUN) == 1
    assert forget(state, RUN) == 0
    assert branches(repository) == [BRANCH, "main"]


def test_a_diff_without_a_worktree_or_repository_says_why(tmp_path):
    with pytest.raises(WorkspaceFailed, match="this run has none"):
        diff(WorkspaceState("directory", str(tmp_path)))
    gone = WorkspaceState("worktree", "/x", str(tmp_path / "gone"), "0" * 40)
    with pytest.raises(WorkspaceFailed, match="is gone"):
        diff(gone)
    with pytest.raises(GitFailed, match="there is no folder"):
        git(tmp_path / "gone", "status")
