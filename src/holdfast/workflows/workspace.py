"""Workspaces: where a run has its files, and what becomes of them.

A worktree belongs to one run. What a node leaves in it is committed under a ref of our own before
the node's end is put on record, so that resume and rewind find the files as the log says. Every
step here may be repeated after a kill and comes to the same: the log is told once, at the end.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from holdfast.core.errors import HoldfastError
from holdfast.core.ids import friendly_name
from holdfast.core.run_facts import WorkspaceFinalised, WorkspaceOpened
from holdfast.core.run_state import WorkspaceState
from holdfast.workflows.git import GitFailed, git, succeeds
from holdfast.workflows.model import Workspace

REASONS = ("no_changes", "opted_out", "detached", "dirty", "diverged", "not_fast_forward", "busy")
"""Why a finished run was not merged into the branch that it began on."""


class WorkspaceFailed(HoldfastError):
    """A workspace cannot be opened, restored or looked at."""


def open_workspace(wanted: Workspace, run: str, place: Path, start: Path) -> WorkspaceOpened:
    """Open a run's workspace below `place`; the same run gets the same one again.

    `start` is the folder from which the run was launched.
    """
    if wanted.kind == "none":
        return WorkspaceOpened(kind="none")
    if wanted.kind == "directory":
        folder = (start / wanted.path).resolve() if wanted.path else place / run
        folder.mkdir(parents=True, exist_ok=True)
        return WorkspaceOpened(kind="directory", path=str(folder))
    return _open_worktree(wanted, place / run, start)


def _open_worktree(wanted: Workspace, folder: Path, start: Path) -> WorkspaceOpened:
    inside = (start / wanted.path).resolve() if wanted.path else start
    try:
        repository = Path(git(inside, "rev-parse", "--show-toplevel").strip())
    except GitFailed as error:
        raise WorkspaceFailed(
            f"{inside} is not in a git repository, and a worktree needs one; run 'git init', or "
            "choose 'workspace: directory'"
        ) from error
    try:
        base = git(repository, "rev-parse", "--verify", f"{wanted.base or 'HEAD'}^{{commit}}")
    except GitFailed as error:
        raise WorkspaceFailed(
            f"{repository} has no commit {wanted.base or 'HEAD'!r}; commit something first"
        ) from error
    _add_worktree(repository, folder, base.strip())
    return WorkspaceOpened(
        kind="worktree",
        path=str(folder),
        repository=str(repository),
        base_commit=base.strip(),
        base_branch=_branch(repository),
    )


def _branch(repository: Path) -> str | None:
    try:
        return git(repository, "symbolic-ref", "--short", "--quiet", "HEAD").strip()
    except GitFailed:
        return None  # detached


def _add_worktree(repository: Path, folder: Path, commit: str) -> None:
    """Make a worktree at a commit; what a kill left of an earlier attempt is replaced."""
    if folder.exists():
        _remove_worktree(repository, folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        git(repository, "worktree", "add", "--detach", "--force", str(folder), commit)
    except GitFailed as error:
        raise WorkspaceFailed(f"the worktree {folder} cannot be made: {error}") from error


def _remove_worktree(repository: Path, folder: Path) -> None:
    if repository.is_dir():
        for words in (["remove", "--force", "--force", str(folder)], ["prune"]):
            succeeds(repository, "worktree", *words)
    shutil.rmtree(folder, ignore_errors=True)
    if repository.is_dir():
        succeeds(repository, "worktree", "prune")


def _git_folder(folder: Path) -> Path:
    return Path(git(folder, "rev-parse", "--absolute-git-dir").strip())


def ref_of(run: str, seq: int) -> str:
    """Return the ref that keeps a commit of a run."""
    # Git takes no name that ends like its own locks.
    return f"refs/holdfast/{run.replace('.lock', '.lock_')}/{seq}"


def commit(workspace: WorkspaceState, run: str, seq: int, message: str) -> str | None:
    """Commit what a node left in a worktree, before its end is put on record.

    Return the commit that the files stand at, or None where nothing changed. An index of our own
    is used, so that one which a node left locked is no matter.
    """
    if workspace.kind != "worktree" or workspace.path is None:
        return None
    folder = Path(workspace.path)
    known = workspace.commit or workspace.base_commit or "HEAD"
    parent = _parent(folder, known)
    with tempfile.TemporaryDirectory(prefix="holdfast-index-") as place:
        own = {"GIT_INDEX_FILE": str(Path(place) / "index")}
        git(folder, "read-tree", parent, environment=own)
        git(folder, "add", "--all", environment=own)
        tree = git(folder, "write-tree", environment=own).strip()
    made = parent
    if tree != git(folder, "rev-parse", f"{parent}^{{tree}}").strip():
        made = git(folder, "commit-tree", tree, "-p", parent, given=message).strip()
    if made == known:
        return None
    git(folder, "update-ref", ref_of(run, seq), made)
    git(folder, "update-ref", "--no-deref", "HEAD", made)
    succeeds(folder, "read-tree", made)  # so that nodes see a clean index; a locked one stays
    return made


def keep(workspace: WorkspaceState, run: str, seq: int, made: str) -> None:
    """Keep a commit of another run for as long as this one is there."""
    assert workspace.repository is not None
    git(Path(workspace.repository), "update-ref", ref_of(run, seq), made)


def _parent(folder: Path, known: str) -> str:
    """Return the commit to build on: that of the node itself, where it made some."""
    head = git(folder, "rev-parse", "HEAD").strip()
    return head if succeeds(folder, "merge-base", "--is-ancestor", known, head) else known


def restore(workspace: WorkspaceState) -> None:
    """Make the files what the log says they are, whatever a killed node left behind."""
    if workspace.kind != "worktree" or workspace.path is None or workspace.repository is None:
        return
    folder, repository = Path(workspace.path), Path(workspace.repository)
    wanted = workspace.commit or workspace.base_commit or "HEAD"
    if not folder.is_dir() or not succeeds(folder, "rev-parse", "--git-dir"):
        _add_worktree(repository, folder, wanted)
        return
    # The run has its lease, so nobody else works here: a lock is one that was left behind.
    (_git_folder(folder) / "index.lock").unlink(missing_ok=True)
    git(folder, "reset", "--hard", "--quiet", wanted)
    git(folder, "clean", "-ffd", "--quiet")


def finalise(workspace: WorkspaceState, run: str, *, merge: bool = True) -> WorkspaceFinalised:
    """Leave what a finished run made as a branch, and merge it where that takes no decision."""
    if workspace.kind != "worktree" or workspace.repository is None:
        return WorkspaceFinalised()
    final = workspace.commit
    if final is None or final == workspace.base_commit:
        return WorkspaceFinalised(commit=workspace.base_commit, reason="no_changes")
    repository = Path(workspace.repository)
    branch = _final_branch(repository, f"holdfast/run/{friendly_name(run)}", final)
    if not merge:
        return WorkspaceFinalised(commit=final, branch=branch, reason="opted_out")
    if workspace.base_branch is None:
        return WorkspaceFinalised(commit=final, branch=branch, reason="detached")
    reason = _merge(repository, workspace.base_branch, str(workspace.base_commit), final)
    merged = None if reason else workspace.base_branch
    return WorkspaceFinalised(commit=final, branch=branch, merged_into=merged, reason=reason)


def _final_branch(repository: Path, name: str, final: str) -> str:
    """Return a branch at a commit: the one that an earlier attempt made, or a new one."""
    for number in range(1, 1000):
        branch = name if number == 1 else f"{name}-{number}"
        ref = f"refs/heads/{branch}"
        try:
            there = git(repository, "rev-parse", "--verify", "--quiet", ref).strip()
        except GitFailed:
            # Nobody else may have made it meanwhile: no old value is expected.
            if succeeds(repository, "update-ref", ref, final, ""):
                return branch
            continue
        if there == final:
            return branch
    raise WorkspaceFailed(f"{repository} has a thousand branches named {name}; remove some")


def _merge(repository: Path, branch: str, base: str, final: str) -> str | None:
    """Move a branch forward to a commit; return why not, where that is not possible."""
    ref = f"refs/heads/{branch}"
    try:
        tip = git(repository, "rev-parse", "--verify", "--quiet", ref).strip()
    except GitFailed:
        return "diverged"  # it is gone
    if succeeds(repository, "merge-base", "--is-ancestor", final, tip):
        return None  # an earlier attempt did it
    if not succeeds(repository, "merge-base", "--is-ancestor", tip, final):
        grown = succeeds(repository, "merge-base", "--is-ancestor", base, tip)
        return "diverged" if grown else "not_fast_forward"
    checkout = _checkout(repository, ref)
    if checkout is None:
        return None if succeeds(repository, "update-ref", ref, final, tip) else "busy"
    if (_git_folder(checkout) / "index.lock").exists():
        return "busy"
    if git(checkout, "status", "--porcelain", "--untracked-files=no").strip():
        return "dirty"
    # It refuses to write over files that are not tracked.
    merged = succeeds(checkout, "merge", "--ff-only", "--quiet", final)
    return None if merged else "dirty"


def _checkout(repository: Path, ref: str) -> Path | None:
    """Return the folder in which a branch is checked out."""
    found = None
    for line in git(repository, "worktree", "list", "--porcelain").splitlines():
        if line.startswith("worktree "):
            found = Path(line.removeprefix("worktree "))
        elif line == f"branch {ref}":
            return found
    return None


def diff(workspace: WorkspaceState, final: str | None = None) -> str:
    """Return what a run changed, whether or not its folder is still there."""
    if workspace.kind != "worktree" or workspace.repository is None:
        raise WorkspaceFailed("only a worktree keeps what a run changed; this run has none")
    last = final or workspace.commit or workspace.base_commit
    if not Path(workspace.repository).is_dir():
        raise WorkspaceFailed(f"the repository {workspace.repository} is gone")
    return git(workspace.repository, "diff", str(workspace.base_commit), str(last), "--")


def remove(workspace: WorkspaceState) -> bool:
    """Remove the folder of a worktree; commits and branches stay. Tell whether it was there."""
    if workspace.kind != "worktree" or workspace.path is None or workspace.repository is None:
        return False
    folder = Path(workspace.path)
    there = folder.exists()
    _remove_worktree(Path(workspace.repository), folder)
    return there


def forget(workspace: WorkspaceState, run: str) -> int:
    """Remove the refs that keep a run's commits, once the run itself is deleted."""
    if workspace.repository is None or not Path(workspace.repository).is_dir():
        return 0
    repository = workspace.repository
    prefix = ref_of(run, 0).removesuffix("0")
    refs = git(repository, "for-each-ref", "--format=%(refname)", prefix).split()
    for ref in refs:
        git(repository, "update-ref", "-d", ref)
    return len(refs)
