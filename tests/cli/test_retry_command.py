"""Resume --retry on the command line: a failed turn goes on where it stood."""

from __future__ import annotations

import json

from shells import cell


def test_a_failed_turn_is_taken_up_again_and_nothing_recorded_is_repeated(shell):
    steps = (cell("x = 41"), {"error": "bad_request"}, cell("FINAL(x + 1)"))
    failed = shell.run("run", "go", "--model", shell.script(*steps), "--session-id", "boat")
    assert failed.returncode == 1
    again = shell.run("resume", "boat", "--retry", "--json")
    assert again.returncode == 0, again.stderr
    result = json.loads(again.stdout)
    assert (result["value"], result["turn"]) == (42, 1)
    log = shell.run("events", "boat", "--json").stdout
    types = [json.loads(line)["type"] for line in log.splitlines()]
    assert types.count("turn.reopened") == 1
    assert (types.count("turn.started"), types.count("eval.added")) == (1, 2)
