"""Every way to end has its exit code, and says on standard error what to do next."""

from __future__ import annotations

import asyncio
import json

import pytest
from shells import cell, until

from holdfast.core.facts import CallRequested, CallSuspended, MessageAppended, TurnStarted
from holdfast.core.payloads import slot
from holdfast.stores.choose import open_store
from holdfast.testing.driver import drive


def test_a_final_turn_prints_its_value_and_leaves_with_0(shell):
    done = shell.run("run", "hi", "--model", shell.script(cell("FINAL('forty-two')")))
    assert (done.returncode, done.stdout) == (0, "forty-two\n")


def test_a_failed_turn_leaves_with_1_and_names_the_reason(shell):
    model = shell.script({"error": "auth"})
    done = shell.run("run", "hi", "--model", model, "--session-id", "a")
    assert (done.returncode, done.stdout) == (1, "")
    assert "rejected the credentials" in done.stderr
    assert "holdfast show a" in done.stderr


def test_a_used_up_limit_leaves_with_4(shell):
    model = shell.script(cell("x = 1"), cell("FINAL(x)"))
    document = shell.json("run", "hi", "--model", model, "--max-steps", "1", code=4)
    assert document["status"] == "budget_exceeded"
    assert document["error"]["message"] == "max_steps: 1 used of 1 allowed"


def test_a_model_that_takes_too_long_leaves_with_5(shell):
    model = shell.script({"reply": cell("FINAL(1)"), "delay_ms": 30_000})
    document = shell.json("run", "hi", "--model", model, "--call-timeout-seconds", "1", code=5)
    assert document["status"] == "timed_out"


def test_a_session_that_is_stopped_leaves_its_driver_with_6(shell):
    model = shell.script({"reply": cell("FINAL(1)"), "delay_ms": 30_000})
    driver = shell.start("run", "hi", "--model", model, "--session-id", "a", "--json")
    shell.wait_for("a", "step.started")
    assert shell.json("stop", "a")["status"] == "stop_requested"
    out, _ = driver.communicate(timeout=30)
    assert (driver.returncode, json.loads(out)["status"]) == (6, "stopped")
    assert shell.json("stop", "a")["status"] == "stopped"


def test_a_turn_that_waits_for_someone_leaves_with_3(shell):
    async def prepare():
        store = await open_store(shell.store)
        driver = await drive(store, "a")
        await driver.append(
            TurnStarted(turn=1),
            MessageAppended(message=1, role="user", content=slot("hi", "message"), turn=1),
            CallRequested(
                call_id="ask-1",
                name="ask",
                executor="human",
                effect="once",
                arguments=slot({}, "arguments"),
                turn=1,
            ),
            CallSuspended(call_id="ask-1"),
        )
        await store.release(driver.lease)
        await store.close()

    asyncio.run(prepare())
    document = shell.json("resume", "a", code=3)
    assert (document["status"], document["calls"]) == ("suspended", ["ask-1"])


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["run"], "Missing argument 'MESSAGE'"),
        (["no-such-command"], "No such command"),
        (["show", "nobody"], "there is no store"),
        (["run", "hi"], "no model is set"),
        (["run", "hi", "--model", "script:none.jsonl"], "cannot be read"),
        (["run", "hi", "--model", "nonsense"], "is not a model name"),
        (["run", "hi", "--input", "novalue"], "not of the form KEY=VALUE"),
        (["run", "hi", "--input", "text=@no-such-file"], "cannot be read as text"),
        (["run", "hi", "--max-steps", "many"], "not a valid integer"),
        (["--store", "http://x", "sessions"], "is not a store"),
    ],
    ids=lambda part: " ".join(part) if isinstance(part, list) else None,
)
def test_a_wrong_call_leaves_with_2(shell, words, expected):
    done = shell.inside(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert expected in done.stderr


def test_an_error_is_a_document_with_json(shell):
    error = shell.json("run", "hi", code=2)["error"]
    assert error["code"] == "invalid_settings"
    assert "--model" in error["message"]
    assert shell.json("run", "--no-such-option", code=2)["error"]["code"] == "usage"


def test_a_busy_session_refuses_a_second_driver_or_queues_for_it(shell):
    go = shell.place / "go"
    model = shell.script(until(go, "FINAL('first')"), cell("FINAL('second')"))
    driver = shell.start("run", "hi", "--model", model, "--session-id", "a", "--json")
    shell.wait_for("a", "step.put")
    refused = shell.json("send", "a", "more", code=1)["error"]
    assert refused["code"] == "lease_held"
    assert str(driver.pid) in refused["message"]
    queued = shell.json("send", "a", "more", "--queue")
    assert (queued["status"], queued["turn"]) == ("queued", None)
    go.touch()
    out, _ = driver.communicate(timeout=30)
    assert json.loads(out)["value"] == "first"
    turns = shell.json("show", "a")["turns"]
    assert [turn["value"] for turn in turns] == ["first", "second"]


def test_nothing_to_resume_is_no_failure(shell):
    shell.run("run", "hi", "--model", shell.script(cell("FINAL(1)")), "--session-id", "a")
    document = shell.json("resume", "a")
    assert (document["status"], document["value"], document["turn"]) == ("idle", None, None)


def test_a_work_area_that_is_no_folder_is_refused_before_anything_starts(shell):
    missing = str(shell.place / "missing")
    model = shell.script(cell("FINAL(1)"))
    done = shell.run("run", "hi", "--model", model, "--work-area", missing)
    assert done.returncode == 2
    assert missing in done.stderr
    assert shell.json("sessions")["sessions"] == []


def test_a_turn_that_is_not_there_is_not_found(shell):
    shell.run("run", "hi", "--model", shell.script(cell("FINAL(1)")), "--session-id", "a")
    assert [turn["turn"] for turn in shell.json("show", "a", "--turn", "1")["turns"]] == [1]
    assert "turn 1 " in shell.inside("show", "a", "--turn", "1").stdout
    done = shell.inside("show", "a", "--turn", "9")
    assert (done.returncode, done.stdout) == (2, "")
    assert "'a' has no turn 9; it has 1" in done.stderr
    assert shell.json("show", "a", "--turn", "9", code=2)["error"]["code"] == "not_found"


def test_a_value_is_erased_by_the_id_by_which_it_is_printed(shell):
    shell.run("run", "hi", "--model", shell.script(cell("FINAL(1)")), "--session-id", "a")
    first = shell.lines("events", "a", "--type", "session.started")[0]
    given = first["data"]["settings"]["$ref"]
    digits = given.removeprefix("sha256:")
    assert shell.inside("payload", "a", digits, "-o", "value").returncode == 0
    assert shell.json("erase", "a", digits, "--rule", "r")["payload"] == given
    assert shell.json("erase", "a", "nonsense", "--rule", "r", code=2)["error"]


def test_a_reason_that_is_a_sentence_ends_with_one_full_stop(shell):
    done = shell.run("run", "hi", "--model", shell.script({"error": "auth"}))
    assert " rejected the credentials. See: " in done.stderr


def test_an_import_says_which_copies_are_read_only(shell):
    shell.run("run", "hi", "--model", shell.script(cell("FINAL(1)")), "--session-id", "a")
    shell.inside("export", "a", "-o", "a.holdfast")
    done = shell.inside("--store", "other", "import", "a.holdfast")
    assert (done.returncode, done.stderr) == (0, "")

    async def leave_open():
        store = await open_store(shell.store)
        driver = await drive(store, "b")
        await driver.append(
            TurnStarted(turn=1),
            MessageAppended(message=1, role="user", content=slot("hi", "message"), turn=1),
        )
        await store.release(driver.lease)
        await store.close()

    asyncio.run(leave_open())
    shell.inside("export", "a", "b", "-o", "both.holdfast")
    told = shell.inside("--store", "other", "import", "both.holdfast").stderr
    assert "read-only copies with open work: b;" in told


@pytest.mark.parametrize("name", ["1x", "lm", "class"])
def test_a_name_that_code_cannot_use_is_refused_before_anything_starts(shell, name):
    model = shell.script(cell("FINAL(1)"))
    done = shell.run("run", "x", "--model", model, "--input", f"{name}=1")
    assert done.returncode == 2
    assert f"'{name}' cannot be a variable" in done.stderr
    assert not (shell.place / "store").exists()
