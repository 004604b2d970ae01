"""Workflow runs on the command line, with the two examples, offline."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from holdfast.workflows.git import git

ROOT = Path(__file__).resolve().parents[2]


SHELL: list = []


@pytest.fixture
def place(shell, tmp_path, monkeypatch):
    SHELL[:] = [shell]
    for name in ("essay.yaml", "essay_app.py", "review.yaml", "review_app.py"):
        shutil.copy(ROOT / "examples" / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDFAST_STORE", f"sqlite:{tmp_path}/store")
    return tmp_path


def run(*words, code=0):
    done = SHELL[0].inside(*words, "--json")
    assert done.returncode == code, (done.stdout, done.stderr)
    return json.loads(done.stdout)


def essay():
    return run(
        "workflow", "run", "essay.yaml", "--with", "essay_app.py", "--var", "topic=rivers",
        "--run-id", "r-1", code=3,
    )  # fmt: skip


def test_the_essay_is_revised_waits_for_its_editor_and_goes_on_by_its_id_alone(place):
    told = essay()
    assert (told["status"], told["next_to_act"]) == ("paused", "people: editor")
    (call,) = told["waiting"]
    shown = run("show", "r-1")
    assert (shown["status"], shown["cursors"][0]["node"]) == ("paused", "approve")
    decision = json.dumps({"answer": "publish", "remarks": ""})
    told = run("answer", "r-1", call, "--value", decision, "--by", "editor")
    assert told["status"] == "finished"
    assert "sea" in told["output"]["text"], "the second draft was published"
    (one,) = run("artifacts", "r-1")["artifacts"]
    assert (one["node"], one["version"]) == ("publish", 0)
    assert run("artifacts", "r-1", "publish@0")["data"] == told["output"]
    assert [one["status"] for one in run("runs")["runs"]] == ["finished"]


def test_a_report_has_the_timeline_the_cost_the_loops_the_artifacts_and_the_questions(place):
    essay()
    page = run("report", "r-1")["report"]
    for title in ("Timeline", "Cost by node and model", "Loops", "Artifacts", "Questions"):
        assert f"## {title}" in page
    assert "| revise | 1 |" in page
    assert "scripted-writer" in page
    whole = run("report", "r-1", "--format", "html")["report"]
    assert whole.startswith("<!doctype html>")
    assert "<script" not in whole


def test_a_cancelled_run_is_resumed_with_its_id_alone(place):
    essay()
    assert run("cancel", "r-1", code=6)["status"] == "cancelled"
    assert run("resume", "r-1", code=3)["status"] == "paused"


def test_a_changed_file_is_refused_by_resume_until_it_is_meant(place):
    essay()
    file = place / "essay.yaml"
    file.write_text(file.read_text().replace("Score this", "Judge this"))
    done = SHELL[0].inside("workflow", "resume", "r-1")
    assert done.returncode != 0
    assert "node judge was changed (prompt)" in done.stderr
    assert run("workflow", "resume", "r-1", "--changed", code=3)["status"] == "paused"


def test_the_review_reads_a_worktree_in_parallel_and_leaves_its_page_in_the_branch(place):
    folder = place / "repository"
    folder.mkdir()
    git(folder, "init", "--quiet", "--initial-branch=main")
    for name in ("a.py", "b.py", "c.py"):
        (folder / name).write_text("x = 1\n")
        git(folder, "add", ".")
        git(folder, "commit", "--quiet", "--message", name)
    told = run(
        "workflow", "run", "review.yaml", "--with", "review_app.py", "--var", "base=HEAD~2",
        "--in", str(folder), "--run-id", "r-2",
    )  # fmt: skip
    assert told["status"] == "finished"
    page = (folder / "REVIEW.md").read_text()
    assert "- b.py: 1 finding(s)" in page
    assert "- c.py: 1 finding(s)" in page


SLOW = """
import time
def slow():
    open("begun", "w").close()
    time.sleep(60)
FUNCTIONS = [slow]
"""


def test_a_run_that_is_terminated_is_interrupted_and_says_so(place):
    (place / "w.yaml").write_text("workflow: w\nnodes:\n  a: {compute: slow, next: done}\n")
    (place / "app.py").write_text(SLOW)
    words = ["workflow", "run", "w.yaml", "--with", "app.py", "--run-id", "r-3"]
    process = subprocess.Popen([sys.executable, "-m", "holdfast", *words], cwd=place)
    deadline = time.monotonic() + 60
    while not (place / "begun").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGTERM)
    try:
        while time.monotonic() < deadline:
            if run("show", "r-3")["status"] == "interrupted":
                break
        assert run("show", "r-3")["status"] == "interrupted"
    finally:
        process.kill()
        process.wait()


def test_on_a_terminal_a_question_is_asked_in_place_and_progress_shows_loops(place):
    words = ["workflow", "run", "essay.yaml", "--with", "essay_app.py", "--var", "topic=rivers"]
    process, terminal = pty.fork()
    if process == 0:
        environment = os.environ | {"TERM": "dumb", "COLUMNS": "200"}
        os.execve(sys.executable, [sys.executable, "-m", "holdfast", *words], environment)
    shown = b""
    with contextlib.suppress(OSError):  # the end of a terminal
        for wanted, said in ((b"answer", b"publish\n"), (b"remarks", b"good\n")):
            while wanted not in shown[shown.rfind(b"Publish") :]:
                shown += os.read(terminal, 65536)
            os.write(terminal, said)
        while more := os.read(terminal, 65536):
            shown += more
    _, status = os.waitpid(process, 0)
    os.close(terminal)
    text = shown.decode()
    assert os.waitstatus_to_exitcode(status) == 0, text
    assert ": finished" in text
    assert "write (revise 1)" in text
    assert "published publish@0" in text


def test_a_run_is_rewound_and_says_before_what_runs_again(place):
    (call,) = essay()["waiting"]
    decision = json.dumps({"answer": "publish", "remarks": ""})
    run("answer", "r-1", call, "--value", decision, "--by", "editor")
    again = run("rewind", "r-1", "--to", "judge:1", "--dry-run")["again"]
    assert [one["node"] for one in again] == ["judge", "approve"]
    told = run("rewind", "r-1", "--to", "judge:1", "--run-id", "r-2", code=3)
    assert (told["run"], told["status"], told["executions"]) == ("r-2", "paused", 1)


def test_a_signal_lets_a_run_go_on(place):
    (place / "w.yaml").write_text(
        "workflow: w\nnodes:\n  a: {wait: , signal: paid, next: end}\n"
        "  end: {done: {paid: '{{ outputs.a }}'}}\n"
    )
    told = run("workflow", "run", "w.yaml", "--run-id", "r-1", code=3)
    assert told["next_to_act"] == "whoever sends: paid"
    assert run("signal", "r-1", "paid", "--value", "5")["output"] == {"paid": 5}


def test_the_events_of_a_run_are_printed_by_type_and_place(place):
    essay()
    shell = SHELL[0]
    done = shell.inside("events", "r-1", "--json")
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert [one["seq"] for one in events] == list(range(1, len(events) + 1))
    ends = [one for one in events if one["type"] == "node.finished"]
    done = shell.inside("events", "r-1", "--type", "node.finished", "--json")
    assert [json.loads(line) for line in done.stdout.splitlines()] == ends
    assert {one["data"]["node"] for one in ends} >= {"write", "judge"}
    done = shell.inside("events", "r-1", "--from", str(events[-1]["seq"]))
    assert "run.paused" in done.stdout
    assert len(done.stdout.splitlines()) == 1


def test_a_report_is_written_to_a_file(place):
    essay()
    done = SHELL[0].inside("report", "r-1", "--format", "html", "-o", "page.html")
    assert (done.returncode, done.stdout) == (0, "")
    assert "page.html" in done.stderr
    assert (place / "page.html").read_text().startswith("<!doctype html>")


PUBLISHED = """
workflow: w
loops: {again: 1}
nodes:
  a:
    compute: {round: "loop.again.iteration", same: "'as before'"}
    publish: page
    next: [{to: a, loop: again}, {to: done}]
"""


def test_versions_of_an_artifact_are_compared_line_by_line(place):
    (place / "w.yaml").write_text(PUBLISHED)
    assert run("workflow", "run", "w.yaml", "--run-id", "r-1")["status"] == "finished"
    told = run("artifacts", "r-1", "a", "--diff")
    assert (told["node"], told["version"]) == ("a", 1)
    lines = told["diff"].splitlines()
    assert '-  "round": 0,' in lines
    assert '+  "round": 1,' in lines
    assert not any("as before" in line for line in lines if line[0] in "+-")
    first = run("artifacts", "r-1", "a@0", "--diff")["diff"]
    assert "+" in {line[0] for line in first.splitlines() if not line.startswith("+++")}
    done = SHELL[0].inside("artifacts", "r-1", "a@7")
    assert done.returncode != 0
    assert "a@7" in done.stderr or "7" in done.stderr


PASSING = """
import os
class Network(Exception):
    code = "network"
def work():
    if not os.path.exists("begun"):
        open("begun", "w").close()
        raise Network
    return {"n": 2}
FUNCTIONS = [work]
"""


def test_a_worker_resumes_a_run_whose_process_died_before_it_did_so_itself(place):
    (place / "w.yaml").write_text(
        "workflow: w\nretry: {network: {times: 0, then: fail}}\n"
        "nodes:\n  a: {compute: work, next: done}\n"
    )
    (place / "app.py").write_text(PASSING)
    words = ["workflow", "run", "w.yaml", "--with", "app.py", "--run-id", "r-1"]
    process = subprocess.Popen([sys.executable, "-m", "holdfast", *words], cwd=place)
    deadline = time.monotonic() + 60
    while not (place / "begun").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    process.kill()  # in its node, or while it waits for a second before it resumes the run
    process.wait()
    while run("show", "r-1")["status"] != "finished" and time.monotonic() < deadline:
        run("worker", "--with", "app.py", "--once")
    assert run("show", "r-1")["status"] == "finished"
