"""Pending and answer on the command line: who waits for what, and the session goes on."""

from __future__ import annotations

import json

import pytest
from shells import cell

ASK = cell("FINAL('to ' + ask('Which port?'))")


@pytest.fixture
def waiting(shell):
    """A session that waits for an answer."""
    ran = shell.run("run", "go", "--model", shell.script(ASK), "--session-id", "boat")
    assert ran.returncode == 3, ran.stderr
    assert "answer with: " in ran.stderr
    (row,) = json.loads(shell.run("pending", "--json").stdout)["pending"]
    return row


def test_pending_lists_who_waits_for_what(shell, waiting):
    assert (waiting["session"], waiting["kind"], waiting["prompt"]) == (
        *("boat", "question", "Which port?"),
    )
    text = shell.run("pending").stdout
    assert "Which port?" in text
    assert "boat" in text
    assert "nothing waits" in shell.run("pending", "--assignee", "ann").stdout


def test_an_answer_lets_the_session_go_on(shell, waiting):
    done = shell.run("answer", "boat", waiting["call"], "--value", "Oslo", "--by", "ann")
    assert (done.returncode, done.stdout.strip()) == (0, "to Oslo"), done.stderr
    again = shell.run("answer", "boat", waiting["call"], "--value", "Bergen")
    assert again.returncode == 2
    assert "no open call" in again.stderr
    assert "nothing waits" in shell.run("pending").stdout


def test_an_answer_may_be_left_for_another_process(shell, waiting):
    stored = shell.run("answer", "boat", waiting["call"], "--value", "Oslo", "--no-resume")
    assert "stored" in stored.stdout
    assert shell.run("resume", "boat").stdout.strip() == "to Oslo"


def test_wrong_answers_are_refused_with_the_next_step(shell, waiting):
    call = waiting["call"]
    for words, told in (
        (("--approve",), "waits for a value"),
        (("--value", "3"), "takes text"),
        (("--value", "a", "--cancel"), "several answers"),
        ((), "stdin is not a terminal"),
    ):
        refused = shell.run("answer", "boat", call, *words)
        assert refused.returncode != 0
        assert told in refused.stderr
    assert shell.run("resume", "boat").returncode == 3


def test_tick_applies_deadlines(shell):
    code = cell("FINAL(ask('Now?', default='no', timeout_seconds=0))")
    shell.run("run", "go", "--model", shell.script(code), "--session-id", "boat")
    ticked = shell.run("tick")
    assert ticked.stdout.strip() == "boat", ticked.stderr
    assert shell.run("tick").stdout.strip() == "no deadline has passed"
    shown = shell.run("resume", "boat", "--json")
    events = shell.run("events", "boat", "--json").stdout
    assert "call.resolved" in events, shown.stderr
