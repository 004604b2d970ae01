"""People on the command line with programs: approve, deny, edit, nested questions, redaction."""

from __future__ import annotations

import json

import pytest
from shells import cell

PROGRAM = '''
import json

from holdfast import Agent, ScriptedModel, tool
from holdfast.core.messages import ToolCall, assistant


@tool(approval=True)
def refund(amount: int) -> str:
    """Refund an amount."""
    return f"refunded {amount}"


def respond(request):
    if request.ordinal == 0:
        return assistant(ToolCall("x", "refund", json.dumps({"amount": 5})))
    return request.messages[-1].parts[0].content[0].text


def REDACT(kind, value):
    return json.loads(json.dumps(value).replace("4111", "[card]"))


AGENTS = [
    Agent("shop", harness="tools", model=ScriptedModel(respond, name="shop"), tools=[refund])
]
'''


@pytest.fixture
def refund(shell):
    """A session that waits for an approval, and the program that drives it."""
    (shell.place / "shop.py").write_text(PROGRAM)
    words = ("--with", "shop.py", "--agent", "shop", "--session-id", "boat")
    ran = shell.run("run", "Refund five.", *words)
    assert ran.returncode == 3, ran.stderr
    assert "approval t1.0: refund" in ran.stderr
    assert "--approve (or --deny REASON, --edit JSON)" in ran.stderr
    return "t1.0"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--approve",), "refunded 5"),
        (("--deny", "too much"), "denied: too much"),
        (("--edit", '{"amount": 3}'), "refunded 3"),
    ],
    ids=["approve", "deny", "edit"],
)
def test_a_gated_call_is_decided_and_the_session_goes_on(shell, refund, words, told):
    done = shell.run("answer", "boat", refund, *words, "--with", "shop.py", "--by", "ann")
    assert done.returncode == 0, done.stderr
    assert told in done.stdout


def test_an_answer_without_the_program_is_stored_and_says_who_goes_on(shell, refund):
    done = shell.run("answer", "boat", refund, "--approve")
    assert (done.returncode, done.stdout.strip()) == (0, "the answer is stored"), done.stderr
    assert "agent 'shop', which is not registered here" in done.stderr
    assert "refunded 5" in shell.run("resume", "boat", "--with", "shop.py").stdout


def test_a_person_answers_a_child_and_its_parent_goes_on(shell):
    script = shell.script(
        {"match": "go", "reply": cell("FINAL('to ' + rlm('which port')['value'])")},
        {"match": "which port", "reply": cell("FINAL(ask('Which port?'))")},
    )
    ran = shell.run("run", "go", "--model", script, "--session-id", "boat")
    assert ran.returncode == 3, ran.stderr
    assert "Which port?" in ran.stderr
    (row,) = json.loads(shell.run("pending", "--json").stdout)["pending"]
    assert (row["kind"], row["prompt"]) == ("question", "Which port?")
    calls = json.loads(shell.run("show", "boat", "--json").stdout)
    (call,) = calls["turns"][0]["steps"][0]["calls"]
    refused = shell.run("answer", "boat", call["call_id"], "--value", "Oslo")
    assert refused.returncode == 1
    assert f"waits for its child '{row['session']}'" in refused.stderr
    done = shell.run("answer", row["session"], row["call"], "--value", "Oslo")
    assert (done.returncode, done.stdout.strip()) == (0, "to Oslo"), done.stderr


def test_an_answer_on_the_command_line_is_redacted_before_it_is_stored(shell):
    (shell.place / "shop.py").write_text(PROGRAM)
    script = shell.script(cell("FINAL('paid with ' + ask('Which card?'))"))
    shell.run("run", "go", "--model", script, "--session-id", "boat")
    (row,) = json.loads(shell.run("pending", "--json").stdout)["pending"]
    words = ("--value", "number 4111", "--with", "shop.py")
    done = shell.run("answer", "boat", row["call"], *words)
    assert done.stdout.strip() == "paid with number [card]", done.stderr
    assert "4111" not in shell.run("export", "boat", "--output", "-").stdout
