"""Git, run as a program: nothing of the user's settings or hooks takes part in what we do."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from holdfast.core.errors import HoldfastError

SECONDS = 120
"""How long one command may take."""

_SETTINGS = (
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "gc.auto=0",
    "commit.gpgSign=false",
    "core.quotePath=false",
)
_WHO = "Holdfast"
_MAIL = "holdfast@localhost"


class GitFailed(HoldfastError):
    """A git command failed; the message says which and why."""

    def __init__(self, message: str | None = None, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


def git(
    folder: Path | str,
    *words: str,
    environment: Mapping[str, str] | None = None,
    given: str | None = None,
) -> str:
    """Run a git command in a folder and return what it prints; raise GitFailed where it fails."""
    settings = [part for setting in _SETTINGS for part in ("-c", setting)]
    try:
        done = subprocess.run(
            ["git", *settings, *words],
            cwd=folder,
            env=_environment() | dict(environment or {}),
            input=given,
            stdin=subprocess.DEVNULL if given is None else None,
            capture_output=True,
            encoding="utf-8",
            errors="surrogateescape",
            timeout=SECONDS,
        )
    except FileNotFoundError as error:
        what = "git is not installed" if Path(folder).is_dir() else f"there is no folder {folder}"
        raise GitFailed(f"{what}; install it, or choose another workspace") from error
    except subprocess.TimeoutExpired as error:
        raise GitFailed(f"git {words[0]} in {folder} took more than {SECONDS} s") from error
    if done.returncode:
        told = done.stderr.strip().splitlines() or ["it says nothing"]
        raise GitFailed(f"git {' '.join(words[:3])} in {folder}: {told[-1][:300]}", done.returncode)
    return done.stdout


def succeeds(folder: Path | str, *words: str) -> bool:
    """Tell whether a git command that answers yes or no says yes."""
    try:
        git(folder, *words)
    except GitFailed as error:
        if error.status == 0:  # it could not be asked at all
            raise
        return False
    return True


def _environment() -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "TMPDIR") if name in os.environ}
    return kept | {
        "HOME": "/nonexistent",
        "LC_ALL": "C.UTF-8",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_AUTHOR_NAME": _WHO,
        "GIT_AUTHOR_EMAIL": _MAIL,
        "GIT_COMMITTER_NAME": _WHO,
        "GIT_COMMITTER_EMAIL": _MAIL,
    }
