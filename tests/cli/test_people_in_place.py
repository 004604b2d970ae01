"""People and tenants on the command line: asked at the terminal, audited, erased."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pty

from shells import COMMAND, cell

from holdfast.core.facts import SessionStarted
from holdfast.stores.choose import open_store
from holdfast.testing.driver import drive


def test_a_question_is_asked_in_place_at_a_terminal(shell):
    model = shell.script(cell("FINAL('to ' + ask('Which port?'))"))
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(shell.place)
        words = ["run", "go", "--model", model, "--session-id", "boat"]
        os.execve(COMMAND[0], [*COMMAND, *words], shell.environment | {"TERM": "dumb"})
    shown = b""
    while b"answer" not in shown or b"Which port?" not in shown:
        shown += os.read(terminal, 65536)
    os.write(terminal, b"Oslo\n")
    with contextlib.suppress(OSError):  # the end of a terminal
        while more := os.read(terminal, 65536):
            shown += more
    _, status = os.waitpid(process, 0)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 0, shown
    assert "to Oslo" in shown.decode()


def test_the_audit_is_shown_and_shortened_by_gc(shell):
    words = ("--model", shell.script(cell("FINAL('x')")), "--session-id", "a")
    shell.run("run", "hi", *words, "--audit", "records")
    (row,) = json.loads(shell.run("audit", "a", "--json").stdout)["audit"]
    assert (row["number"], row["purpose"], row["status"]) == (1, "step", "ok")
    assert "step script:" in shell.run("audit", "a").stdout
    done = json.loads(shell.run("gc", "--audit-rows", "0", "--json").stdout)
    assert done["audit_rows"] == 1
    assert json.loads(shell.run("audit", "a", "--json").stdout)["audit"] == []
    assert shell.run("verify", "a").returncode == 0
    assert shell.run("gc", "--dry-run", "--audit-days", "1").returncode == 2
    done = json.loads(shell.run("gc", "--worktrees", "--idle-days", "1", "--json").stdout)
    assert done["worktrees"] == {"finished": [], "abandoned": [], "deleted": [], "kept": 0}
    assert "0 worktrees" in shell.run("gc", "--worktrees").stdout


def test_a_tenant_is_listed_and_deleted_with_a_certificate(shell):
    async def fill():
        store = await open_store(shell.store)
        driver = await drive(store, "theirs", SessionStarted(tenant="acme"))
        await driver.say("a private thing")
        await store.of("acme").release(driver.lease)
        await store.close()

    asyncio.run(fill())
    assert "theirs" not in shell.run("sessions").stdout
    assert "theirs" in shell.run("sessions", "--tenant", "acme").stdout
    assert "theirs" in shell.run("sessions", "--tenant", "*").stdout
    assert shell.run("pending", "--tenant", "*").returncode == 0
    target = shell.place / "proof.json"
    done = shell.run("delete", "--tenant", "acme", "--yes", "--certificate", str(target))
    assert done.returncode == 0, done.stderr
    made = json.loads(target.read_text())
    assert [item["session"] for item in made["sessions"]] == ["theirs"]
    assert "theirs" not in shell.run("sessions", "--tenant", "*").stdout
    assert shell.run("delete", "--yes").returncode == 2
