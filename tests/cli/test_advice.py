"""What the command line advises where it cannot do what was asked."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from shells import cell

from holdfast.cli.main import COMMANDS, holdfast
from holdfast.runtime.settings import NAMES, Settings


def test_a_mistyped_command_brings_the_one_that_may_be_meant(shell):
    done = shell.run("rnu", "hi")
    assert (done.returncode, done.stdout) == (2, "")
    assert "Did you mean 'run'?" in done.stderr
    assert "Did you mean" not in shell.run("xylophone").stderr


@pytest.mark.parametrize(
    ("model", "advice"),
    [
        ("anthropic:claude-sonnet-5-5", "set ANTHROPIC_API_KEY to its key"),
        ("openai:gpt-5", "set OPENAI_API_KEY to its key"),
        ("gogle:gemini", "Unknown provider: gogle; use anthropic, azure, bedrock, google"),
    ],
)
def test_a_model_that_cannot_be_used_brings_its_own_next_step(shell, model, advice):
    keys = {"ANTHROPIC_API_KEY": "", "OPENAI_API_KEY": ""}
    shell.environment = {
        name: value for name, value in shell.environment.items() if name not in keys
    }
    done = shell.run("run", "hi", "--model", model)
    assert done.returncode != 0
    assert advice in done.stderr
    assert "Pydantic" not in done.stderr


def test_a_stopped_session_says_that_it_takes_no_messages_and_how_to_continue(shell):
    model = shell.script(cell("FINAL(1)"))
    shell.run("run", "hi", "--model", model, "--session-id", "a")
    assert shell.run("stop", "a").returncode == 0
    done = shell.run("send", "a", "more")
    assert (done.returncode, done.stdout) == (6, "")
    assert "takes no more messages; continue in a fork: holdfast" in done.stderr
    assert "fork a" in done.stderr


def test_a_transcript_that_is_too_long_says_how_to_go_on(shell):
    model = shell.script(cell("FINAL(1)"), cell("FINAL(2)"))
    options = ("--model", model, "--session-id", "a", "--context-tokens", "4000")
    assert shell.run("run", "hi", *options).returncode == 0
    done = shell.run("send", "a", "long " * 4000)
    assert done.returncode == 4
    assert "fork a --head HEAD" in done.stderr


def test_a_session_with_nothing_open_says_where_its_answer_is(shell):
    shell.run("run", "hi", "--model", shell.script(cell("FINAL(1)")), "--session-id", "a")
    done = shell.run("resume", "a")
    assert done.returncode == 0
    assert "show a" in done.stderr


def test_an_event_type_that_nobody_knows_is_refused_with_the_one_that_may_be_meant(shell):
    shell.run("run", "hi", "--model", shell.script(cell("FINAL(1)")), "--session-id", "a")
    done = shell.run("events", "a", "--type", "turn.putt")
    assert (done.returncode, done.stdout) == (2, "")
    assert "'turn.putt' is not an event type of this release" in done.stderr
    assert "did you mean 'turn.put'?" in done.stderr
    known = shell.run("events", "a", "--type", "turn.put")
    assert (known.returncode, known.stderr) == (0, "")


@pytest.mark.parametrize("message", ["", "  \n", "-"])
def test_an_empty_message_is_refused_before_anything_is_stored(shell, message):
    model = shell.script(cell("FINAL(1)"))
    done = shell.run("run", message, "--model", model, "--session-id", "a", input=" \n")
    assert (done.returncode, done.stdout) == (2, "")
    assert "the message is empty" in done.stderr
    assert not Path(shell.store).exists()
    shell.run("run", "hi", "--model", model, "--session-id", "a")
    assert shell.run("send", "a", message, input="").returncode == 2
    assert shell.json("sessions")["sessions"][0]["turns"] == 1


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_has_a_help_text(name):
    made = holdfast.get_command(click.Context(holdfast), name)
    options = [item for item in made.params if isinstance(item, click.Option)]
    assert [option.name for option in options if not option.help] == []


def test_every_setting_of_run_says_its_default():
    made = holdfast.get_command(click.Context(holdfast), "run")
    settings = [item for item in made.params if item.name in NAMES]
    assert len(settings) == len(NAMES)
    for option in settings:
        default = getattr(Settings(), option.name)
        assert "[default: " in option.help, option.name
        assert not option.help.startswith("  "), option.name
        assert not default or f"[default: {default}]" in option.help


def test_a_fork_says_where_what_it_began_with_can_be_read(shell):
    shell.run("run", "hi", "--model", shell.script(cell("FINAL(1)")), "--session-id", "a")
    assert shell.run("fork", "a", "--session-id", "b").returncode == 0
    assert "inherited history: holdfast" in shell.run("show", "b").stdout
    assert "show a" in shell.run("show", "b").stdout
    assert "inherited history" not in shell.run("show", "a").stdout


@pytest.mark.parametrize("options", [(), ("--model", "script:x", "--max-steps", "0")])
def test_a_run_that_cannot_begin_leaves_no_store_behind(shell, options):
    shell.environment.pop("HOLDFAST_MODEL", None)
    done = shell.run("run", "hi", *options)
    assert (done.returncode, done.stdout) == (2, "")
    assert not Path(shell.store).exists()
