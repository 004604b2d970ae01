"""Runs whose process is really killed after any durable write, and resumed by another one.

A witness outside of the store says what was done, and by which call. Whatever was finished as far
as the logs said when the process died is never done again; what was in flight is done once more,
unless it must run once; and all that the run comes to is as if nobody had been killed.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from killing import RUN, SCENARIOS, Server

from holdfast.workflows.git import git

NAMES = [name for name in SCENARIOS if name not in ("once", "many")]
EVERY = ("line", "loop", "fan_out")
"""Killed after every write in every test run, the others after each fourth; the soak has all."""


@pytest.fixture(scope="module")
def server():
    server = Server()
    yield server
    server.close()


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    """Return a repository with one commit, to be copied."""
    folder = tmp_path_factory.mktemp("git") / "repository"
    folder.mkdir()
    git(folder, "init", "--quiet", "--initial-branch=main")
    (folder / "a.txt").write_text("one\n")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message", "first")
    return folder


class Bench:
    """Places to run one scenario in, and what came of it."""

    def __init__(self, server: Server, scenario: str, kind: str, root: Path, repository: Path):
        self.server = server
        self.scenario = scenario
        self._kind = kind
        self._root = root
        self._repository = repository if scenario == "worktree" else None
        self.plain: Any = self.run(self.place("plain"))

    def place(self, name: str) -> Path:
        folder = self._root / name
        folder.mkdir()
        if self._repository is not None:
            shutil.copytree(self._repository, folder / "repository")
        return folder

    def run(self, folder: Path, **options: Any) -> dict[str, Any] | None:
        """Let a process work the scenario; return what it told, None where it was killed."""
        url = f"{self._kind}:{folder / 'store'}"
        found = self.server.work(self.scenario, url, folder, **options)
        assert found in ((0, -9) if "kill" in options else (0,)), f"{self.scenario} in {folder}"
        return json.loads((folder / "told.json").read_text()) if found == 0 else None

    def killed(self, what: str, number: int) -> dict[str, Any] | None:
        """Kill a process at a point; return what the one told that went on.

        None where it came to its end before: how many outcomes share a write depends on time.
        """
        folder = self.place(f"{what}-{number}")
        told = None
        if self.run(folder, kill=[what, number]) is None:
            told = self.run(folder, again=True)
        shutil.rmtree(folder)
        return told


def check_nothing_finished_was_done_again(told: dict[str, Any], where: str) -> None:
    before, after = told["before"]["done"], told["after"]
    for call in told["before"]["finished"]:
        assert after.get(call, 0) == before.get(call, 0) <= 1, f"{where}: {call} was done again"
    for call in after:
        assert after[call] <= before.get(call, 0) + 1, (
            f"{where}: {call} was done {after[call]} times"
        )
        if call not in before:
            assert after[call] == 1, f"{where}: {call}"


def every_kill(bench: Bench, what: str, stride: int = 1) -> int:
    """Kill at every point of a kind; return at how many."""
    points = range(1, bench.plain["points"].get(what, 0) + 1, stride)
    for number in points:
        told = bench.killed(what, number)
        if told is None:
            return number - 1
        where = f"{bench.scenario}, {what} {number}"
        check_nothing_finished_was_done_again(told, where)
        assert told["shape"] == bench.plain["shape"], where
        assert told["did"] == bench.plain["did"], where
    return len(points)


@pytest.mark.parametrize("name", NAMES)
def test_a_kill_after_a_durable_write_changes_nothing(server, repository, name, tmp_path):
    bench = Bench(server, name, "sqlite", tmp_path, repository)
    assert bench.plain["shape"]["status"] == "finished"
    assert set(bench.plain["after"].values()) == {1}
    assert every_kill(bench, "write", 1 if name in EVERY else 4) >= 2


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["sqlite", "files"])
@pytest.mark.parametrize("name", NAMES)
def test_a_kill_after_every_durable_write(server, repository, name, kind, tmp_path):
    bench = Bench(server, name, kind, tmp_path, repository)
    assert every_kill(bench, "write") >= 5
    every_kill(bench, "effect")


@pytest.mark.parametrize("name", ["fan_out", "loop"])
def test_a_kill_in_the_middle_of_an_effect_repeats_that_one_alone(
    server, repository, name, tmp_path
):
    bench = Bench(server, name, "sqlite", tmp_path, repository)
    assert every_kill(bench, "effect") >= 3


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("files", marks=pytest.mark.soak)])
def test_what_must_run_once_runs_once_wherever_its_process_died(server, repository, kind, tmp_path):
    bench = Bench(server, "once", kind, tmp_path, repository)
    plain = bench.plain["shape"]
    for what in ("write", "effect"):
        for number in range(1, bench.plain["points"][what] + 1):
            told = bench.killed(what, number)
            assert told is not None
            where = f"{what} {number}"
            check_nothing_finished_was_done_again(told, where)
            paid = f"{RUN}:b.2.1"
            assert told["after"].get(paid, 0) <= 1, where
            shape = told["shape"]
            assert shape["status"] == "finished"
            if shape["asked"]:  # nobody can know whether it ran, so a person was asked
                assert shape["output"] == {"did": "by hand"}
                assert paid not in told["before"]["finished"], where
            else:
                assert shape == plain, where


def killed_while_working_through(
    server: Server, kind: str, root: Path, count: int, points: list[int]
) -> dict[str, Any]:
    """Work through a list in processes that are killed in turn; return what the last one told."""
    url, given = f"{kind}:{root / 'store'}", {"variables": {"count": count}, "again": True}
    for number in points:
        assert server.work("many", url, root, kill=["write", number], **given) == -9
    assert server.work("many", url, root, **given) == 0
    told: dict[str, Any] = json.loads((root / "told.json").read_text())
    shape = told["shape"]
    assert shape["status"] == "finished"
    assert shape["output"]["did"] == [f"item {number}" for number in range(count)]
    assert len(told["after"]) == count + 1
    done = told["before"]["done"]
    again = [call for call in told["before"]["finished"] if told["after"][call] != done[call]]
    assert again == []
    assert told["largest"] < 64_000
    return told


def test_a_long_list_is_worked_through_by_processes_that_are_killed(server, tmp_path):
    told = killed_while_working_through(server, "sqlite", tmp_path, 400, [4, 6])
    repeated = sum(told["after"].values()) - len(told["after"])
    assert repeated <= 2 * 200, "only what was in flight was done again"


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["sqlite", "files"])
def test_ten_thousand_items_are_worked_through_by_processes_that_are_killed(server, kind, tmp_path):
    points = [5, 20, 50, 90]
    told = killed_while_working_through(server, kind, tmp_path, 10_000, points)
    assert sum(told["after"].values()) <= len(told["after"]) + 200 * len(points)
