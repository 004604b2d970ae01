"""What goes to which stream, and how inputs come in."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import shlex
import subprocess
import sys

import pytest
from shells import COMMAND, cell, until


def test_only_the_result_is_on_standard_output(shell):
    done = shell.run("run", "hi", "--model", shell.script(cell("print('noise')\nFINAL('x')")))
    assert done.stdout == "x\n"
    assert done.stderr.splitlines()[0].startswith("session s-")
    assert "turn 1: final" in done.stderr


def test_a_terminal_shows_steps_tokens_cost_and_the_code_that_runs(shell):
    go = shell.place / "go"
    model = shell.script(until(go, "FINAL('whole')"))
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(shell.place)
        words = ["run", "hi", "--model", model, "--session-id", "a"]
        environment = shell.environment | {"TERM": "xterm-256color", "COLUMNS": "100"}
        os.execve(COMMAND[0], [*COMMAND, *words], environment)
    shown = b""
    while not all(part in shown for part in (b"step 1", b"tokens", b"$0", b"while not os.path")):
        shown += os.read(terminal, 65536)
    go.touch()
    while b"whole" not in shown:
        shown += os.read(terminal, 65536)
    os.waitpid(process, 0)
    os.close(terminal)


def at_a_terminal(shell, *words, **environment):
    """Run a command at a terminal and return all that it shows."""
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(shell.place)
        os.execve(COMMAND[0], [*COMMAND, *words], shell.environment | environment)
    shown = b""
    with contextlib.suppress(OSError):  # the end of a terminal
        while more := os.read(terminal, 65536):
            shown += more
    os.waitpid(process, 0)
    os.close(terminal)
    return shown.decode()


def test_a_terminal_that_cannot_redraw_is_shown_plain_lines(shell):
    model = shell.script(cell("FINAL('whole')"))
    words = ("run", "hi", "--model", model, "--session-id", "a")
    shown = at_a_terminal(shell, *words, TERM="dumb")
    assert "cell 1: final" in shown
    assert "\x1b" not in shown


@pytest.mark.parametrize("plain", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_nothing_is_styled_where_that_is_not_wanted(shell, plain):
    shell.run("run", "hi", "--model", shell.script(cell("FINAL(1)")), "--session-id", "a")
    assert "\x1b" in at_a_terminal(shell, "show", "a", TERM="xterm")
    assert "\x1b" not in at_a_terminal(shell, "show", "a", **{"TERM": "xterm"} | plain)


def test_quiet_leaves_standard_error_empty(shell):
    done = shell.run("run", "hi", "--model", shell.script(cell("FINAL(1)")), "--quiet")
    assert (done.stdout, done.stderr) == ("1\n", "")


def test_a_message_comes_from_standard_input(shell):
    model = shell.script(cell("FINAL(1)"))
    shell.run("run", "-", "--model", model, "--session-id", "a", input="from a pipe")
    assert shell.json("show", "a")["turns"][0]["message"] == "from a pipe"


def test_inputs_are_texts_and_files(shell):
    (shell.place / "file.txt").write_text("from a file\n", encoding="utf-8")
    model = shell.script(cell("FINAL([a, b, c])"))
    words = ["--input", "a=x=y", "--input", "b=@file.txt", "--input", "c=@@home"]
    document = shell.json("run", "hi", "--model", model, *words)
    assert document["value"] == ["x=y", "from a file\n", "@home"]


def test_values_that_json_cannot_say_are_tagged(shell):
    model = shell.script(cell("FINAL({'t': (1, 2), 'b': b'hi', 'n': float('nan'), 3: 'k'})"))
    value = shell.json("run", "hi", "--model", model)["value"]
    assert value == {
        "$dict": [
            ["t", {"$tuple": [1, 2]}],
            ["b", {"$bytes": "aGk="}],
            ["n", {"$float": "nan"}],
            [3, "k"],
        ]
    }


def test_a_reader_that_goes_away_is_no_failure_to_shout_about(shell):
    model = shell.script(*[cell(f"x = {n}") for n in range(20)], cell("FINAL(1)"))
    shell.run("run", "hi", "--model", model, "--session-id", "a")
    reader = shell.start("events", "a", "--json")
    first = reader.stdout.readline()
    reader.stdout.close()
    told = reader.stderr.read()
    assert json.loads(first)["seq"] == 1
    assert reader.wait(timeout=30) in (0, 1)
    assert told == ""


def test_following_shows_events_as_they_come(shell):
    model = shell.script(cell("FINAL(1)"), cell("FINAL(2)"))
    shell.run("run", "hi", "--model", model, "--session-id", "a")
    last = shell.json("sessions")["sessions"][0]["seq"]
    follower = shell.start("events", "a", "--from", str(last), "--follow", "--json")
    assert json.loads(follower.stdout.readline())["seq"] == last
    shell.run("send", "a", "more")
    assert json.loads(follower.stdout.readline())["type"] == "turn.started"
    follower.terminate()
    follower.communicate(timeout=30)


def test_help_loads_nothing_heavy_and_pipes_never_load_rich(shell):
    shell.run("run", "hi", "--model", shell.script(cell("FINAL(1)")))
    program = (
        "import sys\nfrom holdfast.cli.main import run\nassert run(sys.argv[1:]) == 0\n"
        "heavy = ('asyncio', 'rich', 'apsw', 'msgspec', 'pydantic_ai', 'holdfast.runtime.runtime')"
        "\nprint([name for name in heavy if name in sys.modules], file=sys.stderr)"
    )

    def loaded(*words):
        done = subprocess.run(
            [sys.executable, "-c", program, *words],
            env=shell.environment,
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stderr.strip()

    assert loaded("--help") == "[]"
    assert loaded("sessions") == "['asyncio', 'apsw', 'msgspec']"


def test_a_file_s_line_ends_are_kept(shell):
    (shell.place / "table.csv").write_bytes(b"a\r\nb\rc\n")
    model = shell.script(cell("FINAL(text)"))
    done = shell.json("run", "x", "--model", model, "--input", "text=@table.csv")
    assert done["value"] == "a\r\nb\rc\n"


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-", "2>/dev/full"])
def test_output_that_has_nowhere_to_go_costs_no_work(shell, closed):
    model = shell.script(cell("FINAL('x')"))
    words = shlex.join([*COMMAND, "run", "hi", "--model", model, "--session-id", "a"])
    done = subprocess.run(
        ["sh", "-c", f"{words} {closed}"],
        cwd=shell.place,
        env=shell.environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0
    assert done.stdout == ("" if ">&-" in closed.split() else "x\n")
    assert "Traceback" not in done.stderr
    assert [turn["status"] for turn in shell.json("show", "a")["turns"]] == ["final"]
    assert shell.json("verify", "a")["ok"]


@pytest.mark.parametrize("options", ["", "--json"])
def test_a_result_that_cannot_be_written_is_an_error_and_no_traceback(shell, options):
    model = shell.script(cell("FINAL('x')"))
    words = shlex.join([*COMMAND, "run", "hi", "--model", model, "--session-id", "a", "--quiet"])
    done = subprocess.run(
        ["sh", "-c", f"{words} {options} > /dev/full"],
        cwd=shell.place,
        env=shell.environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert done.stderr == "error: [Errno 28] No space left on device\n"
    assert [turn["status"] for turn in shell.json("show", "a")["turns"]] == ["final"]


def test_a_terminal_keeps_a_line_with_steps_tokens_and_cost(shell):
    replies = [cell("x = lm('q')"), cell("FINAL(x)"), {"leaf": True, "match": "q", "reply": "a"}]
    words = ("run", "hi", "--model", shell.script(*replies), "--session-id", "a")
    shown = at_a_terminal(shell, *words, TERM="xterm-256color", COLUMNS="100")
    last = shown.rindex("turn 1: final · 2 steps · 1 leaf call · ")
    assert "tokens · $0" in shown[last:]
    # After the panel was taken away: nothing erases the line any more.
    assert "\x1b[2K" not in shown[last:]
    assert "\x1b[1A" not in shown[last:]


def test_a_fan_out_tells_how_far_it_is(shell):
    model = shell.script(
        cell("answers = map_lm([f'q{n}' for n in range(8)])\nFINAL(len(answers))"),
        {"leaf": True, "match": "q", "reply": "a"},
    )
    told = shell.run("run", "hi", "--model", model).stderr.splitlines()
    assert [line for line in told if line.startswith("map_lm")] == [
        f"map_lm: {done} of 8 calls" for done in (2, 4, 6, 8)
    ]


@pytest.mark.parametrize("width", [80, 140])
def test_tables_fit_the_terminal(shell, width):
    model = shell.script(cell("text = 'word ' * 1000\nFINAL(text[:9])"), cell("FINAL(1)"))
    for words in (("run", "hi"), ("run", "hi", "--label", "a-label=of-some-length-for-tests")):
        assert shell.run(*words, "--model", model).returncode == 0
    sessions = [item["id"] for item in shell.json("sessions")["sessions"]]
    for words in (["sessions"], ["heads", sessions[0]], ["vars", sessions[0]], ["config"]):
        shown = at_a_terminal(shell, *words, TERM="dumb", COLUMNS=str(width)).splitlines()
        assert len(shown) > 1
        assert max(len(line) for line in shown) <= width, words
    listed = at_a_terminal(shell, "sessions", TERM="dumb", COLUMNS=str(width)).splitlines()
    for column in ("SESSION", "NAME", "STATUS", "COST", "UPDATED"):
        assert column in listed[0]
    for line, session in zip(listed[1:], sessions, strict=True):
        begun = line.split()[0]
        assert begun == session if width == 140 else session.startswith(begun)
        assert shell.json("show", begun)["session"]["id"] == session
    head = shell.json("heads", sessions[0])["heads"][0]["id"]
    shown = at_a_terminal(shell, "heads", sessions[0], TERM="dumb", COLUMNS=str(width))
    forked = shell.json("fork", sessions[0], "--head", shown.splitlines()[1].split()[0])
    assert forked["origin"]["head"] == head


def test_advice_names_a_program_that_can_be_started(shell):
    model = shell.script({"error": "quota"})
    done = shell.run("run", "hi", "--model", model, "--session-id", "a")
    advice = done.stderr[done.stderr.index("See: ") + 5 :].strip()
    assert advice.startswith("holdfast")
    # Where `holdfast` is not found, the interpreter is named that has it.
    done = shell.run(
        "run", "hi", "--model", model, "--session-id", "b", environment={"PATH": "/usr/bin:/bin"}
    )
    advice = done.stderr[done.stderr.index("See: ") + 5 :].strip()
    assert shlex.split(advice)[:3] == [sys.executable, "-m", "holdfast"]
    again = subprocess.run(
        advice, shell=True, cwd=shell.place, env=shell.environment, capture_output=True, text=True
    )
    assert again.returncode == 0, again
