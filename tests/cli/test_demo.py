"""The demo does what it says, and the commands that it offers work as printed."""

from __future__ import annotations

import json
import re
import subprocess


def test_the_tour_kills_resumes_forks_and_verifies(shell):
    # Settings of the user must not lead the tour astray.
    astray = {"HOLDFAST_MAX_STEPS": "1", "HOLDFAST_STORE": str(shell.place / "other")}
    done = shell.run("demo", "--at", str(shell.place / "tour"), environment=astray)
    assert done.returncode == 0, done
    recorded, asked = map(
        int, re.search(r"(\d+) answers came from the log.* other (\d+) were", done.stdout).groups()
    )
    assert recorded >= 9
    assert recorded + asked == 32
    assert "SIGKILL" in done.stdout
    assert str(shell.place / "tour") in done.stdout
    assert not (shell.place / "other").exists()
    offered = re.findall(r"^  (holdfast .+)$", done.stdout, re.MULTILINE)
    assert len(offered) == 5
    for line in offered:
        tried = subprocess.run(
            line, shell=True, cwd=shell.place, env=shell.environment, capture_output=True, text=True
        )
        assert tried.returncode == 0, (line, tried)
    store = ("--store", str(shell.place / "tour" / ".holdfast"))
    turns = shell.json(*store, "show", "harbour")["turns"]
    assert (len(turns), turns[0]["revivals"]) == (1, 1)
    assert json.loads(re.search(r"answer: (.+)", done.stdout).group(1)) == turns[0]["value"]
    (lost,) = map(int, re.findall(r"(\d+) of those had been in flight", done.stdout))
    assert lost >= 1
    assert sum(step["leaves"]["lost"] for step in turns[0]["steps"]) == lost
    assert turns[0]["unknown_calls"] == lost
    calls = "1 leaf call" if lost == 1 else f"{lost} leaf calls"
    assert f"{calls} lost in a crash" in shell.run(*store, "show", "harbour").stdout
    leaves = shell.lines(*store, "events", "harbour", "--type", "leaf.called")
    assert sorted(leaf["data"].get("item", 0) for leaf in leaves) == list(range(32))
    assert shell.lines(*store, "events", "harbour-what-if", "--type", "leaf.called") == []


def test_a_folder_with_something_in_it_is_left_alone(shell):
    (shell.place / "mine.txt").write_text("keep")
    assert shell.run("demo", "--at", str(shell.place)).returncode == 2
    assert [path.name for path in shell.place.iterdir()] == ["mine.txt"]
