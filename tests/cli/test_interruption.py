"""Ctrl-C and SIGTERM end a process, not its work: the log says so and `resume` goes on."""

from __future__ import annotations

import os
import pty
import re
import shlex
import signal
import subprocess
import sys

import pytest
from shells import COMMAND, cell, until


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_is_recorded_and_the_advice_goes_on(shell, number, code):
    go = shell.place / "go"
    model = shell.script(until(go, "FINAL('whole')"), cell("FINAL('other')"))
    driver = shell.start("run", "hi", "--model", model, "--session-id", "a")
    shell.wait_for("a", "step.put")
    driver.send_signal(number)
    out, told = driver.communicate(timeout=30)
    assert (driver.returncode, out) == (code, "")
    assert shell.lines("events", "a", "--type", "turn.put")[0]["data"]["status"] == "interrupted"
    advice = re.search(r"Resume: holdfast (.+)", told)
    assert advice is not None
    go.touch()
    done = shell.run(*shlex.split(advice.group(1)))
    assert (done.returncode, done.stdout) == (0, "whole\n")
    assert shell.json("verify")["ok"]


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT])
def test_a_signal_that_was_ignored_at_the_start_stays_ignored(shell, number):
    go = shell.place / "go"
    model = shell.script(until(go, "FINAL('whole')"))
    before = signal.signal(number, signal.SIG_IGN)  # as nohup and background jobs have it
    try:
        driver = shell.start("run", "hi", "--model", model, "--session-id", "a")
    finally:
        signal.signal(number, before)
    shell.wait_for("a", "step.put")
    driver.send_signal(number)
    go.touch()
    out, _ = driver.communicate(timeout=30)
    assert (driver.returncode, out) == (0, "whole\n")


def test_an_interrupted_run_is_a_document_with_json(shell):
    model = shell.script({"reply": cell("FINAL(1)"), "delay_ms": 30_000})
    driver = shell.start("run", "hi", "--model", model, "--session-id", "a", "--json")
    shell.wait_for("a", "step.started")
    driver.send_signal(signal.SIGTERM)
    out, _ = driver.communicate(timeout=30)
    assert driver.returncode == 143
    assert '"status": "interrupted"' in out
    assert shell.json("sessions", "--status", "interrupted")["sessions"][0]["id"] == "a"


def test_ctrl_c_at_a_terminal_breaks_off_a_running_cell_without_harming_it(shell):
    go = shell.place / "go"
    model = shell.script(until(go, "FINAL('whole')"))
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(shell.place)
        words = ["run", "hi", "--model", model, "--session-id", "a"]
        os.execve(COMMAND[0], [*COMMAND, *words], shell.environment)
    shell.wait_for("a", "step.put")
    os.write(terminal, b"\x03")
    shown = _read_to_end(terminal)
    _, status = os.waitpid(process, 0)
    assert os.waitstatus_to_exitcode(status) == 130
    assert b"resume a" in shown
    kinds = [event["type"] for event in shell.lines("events", "a")]
    assert "eval.added" not in kinds  # the cell itself never saw the signal
    go.touch()
    assert shell.json("resume", "a")["value"] == "whole"


def _read_to_end(terminal):
    shown = b""
    while True:
        try:
            part = os.read(terminal, 65536)
        except OSError:
            return shown
        if not part:
            return shown
        shown += part


def test_the_progress_of_a_resume_says_that_the_lost_call_is_unknown(shell):
    line = {"reply": cell("FINAL(1)"), "delay_ms": 2000, "cost_usd": 0.25}
    model = shell.script(line)
    killed = shell.start("run", "hi", "--model", model, "--session-id", "a")
    shell.wait_for("a", "step.started")
    killed.kill()
    killed.communicate(timeout=30)
    told = shell.run("resume", "a").stderr
    last = next(text for text in told.splitlines() if text.startswith("turn 1: final"))
    tokens = shell.json("show", "a")["turns"][0]["steps"][-1]["usage"]
    known = tokens["input_tokens"] + tokens["output_tokens"]
    assert last == f"turn 1: final · 2 steps · {known:,} tokens · $0.25 + 1 call of unknown cost"


def test_a_turn_that_is_killed_again_and_again_goes_on_when_it_is_forced(shell):
    model = shell.script({"reply": cell("FINAL(1)"), "delay_ms": 3000})
    words = ["run", "hi", "--model", model, "--session-id", "a"]
    for life in range(1, 4):
        killed = shell.start(*words)
        shell.wait_for("a", "step.started", life)
        killed.kill()
        killed.communicate(timeout=30)
        words = ["resume", "a"]
    refused = shell.run("resume", "a")
    assert refused.returncode == 1
    assert "holdfast resume a --force" in refused.stderr
    forced = shell.run("resume", "a", "--force")
    assert (forced.returncode, forced.stdout) == (0, "1\n")


@pytest.mark.parametrize("verb", [("resume",), ("send", "more")])
def test_a_copy_with_open_work_is_driven_once_it_is_taken_over(shell, verb):
    model = shell.script({"reply": cell("FINAL(1)"), "delay_ms": 1500}, cell("FINAL(2)"))
    killed = shell.start("run", "hi", "--model", model, "--session-id", "a")
    shell.wait_for("a", "step.started")
    killed.kill()
    killed.communicate(timeout=30)
    shell.run("export", "a", "--output", "a.holdfast")
    there = ("--store", str(shell.place / "there"))
    assert shell.run(*there, "import", "a.holdfast").returncode == 0
    words = (*there, verb[0], "a", *verb[1:])
    assert shell.run(*words).returncode == 1
    assert shell.run(*words, "--takeover").stdout == ("1\n" if verb == ("resume",) else "2\n")


def test_ctrl_c_while_the_command_is_loaded_ends_it_without_a_traceback():
    code = (
        "import os, runpy, signal, sys\n"
        "class Interrupting:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'click':\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupting())\n"
        "sys.argv = ['holdfast', '--help']\n"
        "runpy.run_module('holdfast', run_name='__main__')\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "error: interrupted\n")
