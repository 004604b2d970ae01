"""Every document of `--json` is exactly what the reference page says."""

from __future__ import annotations

import json

import click
import pytest
from documented import DOCUMENTS, PAGE, check
from shells import Shell, cell

from holdfast.cli.main import COMMANDS, holdfast


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """A session with two turns, one of them failed, and a fork of it."""
    shell = Shell(tmp_path_factory.mktemp("documents"))
    model = shell.script(
        cell("text = 'long ' * 1000\nanswer = lm('what is it?')\nprint(answer)"),
        cell("FINAL({'answer': answer, 'shape': (1, 2)})"),
        {"error": "quota"},
        {"leaf": True, "match": "what", "reply": "a test"},
    )
    shell.first = shell.json(
        "run", "hi", "--model", model, "--session-id", "a", "--label", "for=tests"
    )
    shell.second = shell.json("send", "a", "again", code=1)
    shell.forked = shell.json("fork", "a", "--session-id", "b")
    return shell


def test_results(work):
    check(work.first, "result")
    check(work.second, "result")
    assert work.first["value"] == {"answer": "a test", "shape": {"$tuple": [1, 2]}}
    assert work.first["steps"] == 2
    assert work.first["cost_usd"] == "0"
    assert work.first["head"].startswith("sha256:")
    assert (work.second["status"], work.second["error"]["code"]) == ("failed", "quota_exceeded")


def test_lineage(work):
    check(work.forked, "fork")
    assert work.forked["origin"] == {"session": "a", "head": work.first["head"]}
    heads = work.json("heads", "a")
    check(heads, "heads")
    assert [(head["id"], head["current"]) for head in heads["heads"]] == [
        (work.first["head"], True)
    ]
    tree = work.json("tree", "b")
    check(tree, "tree")
    assert [(node["id"], node["depth"]) for node in tree["nodes"]] == [("a", 0), ("b", 1)]
    assert work.inside("tree").stdout.splitlines()[1].startswith("└─ b")
    assert tree["relations"][0]["from_head"] == work.first["head"]


def test_a_family_as_a_picture(work):
    for language, begins in (("dot", "digraph"), ("mermaid", "flowchart")):
        graph = work.json("graph", "b", "--format", language)
        check(graph, "graph")
        assert graph["graph"].startswith(begins)
        assert work.inside("graph", "b", "--format", language).stdout == graph["graph"] + "\n"


def test_where_two_sessions_part(work):
    found = work.json("diff", "a", "b")
    check(found, "diff")
    assert (found["relation"], found["common_turns"]) == ("source", 1)
    assert (found["one"]["kind"], found["other"]["kind"]) == ("turn", None)
    lines = work.inside("diff", "a", "b").stdout.splitlines()
    assert lines[0] == "b was forked from a"
    assert lines[2] == "first difference: b ends where the other has a turn"
    same = work.json("diff", "a", "a")
    check(same, "diff")
    assert not same["diverges"]
    assert work.inside("diff", "a", "a").stdout.splitlines()[-1] == "no difference"


def test_a_family_that_goes_in_a_cycle_is_cut_and_shown_once(shell):
    """Two stores use the same two ids the other way round, and a third has one of each."""
    model = shell.script(cell("FINAL(1)"))
    for store, first, second in (("one", "a", "b"), ("two", "b", "a")):
        place = ("--store", str(shell.place / store))
        shell.json(*place, "run", "hi", "--model", model, "--session-id", first)
        shell.json(*place, "fork", first, "--session-id", second)
        shell.json(*place, "export", second, "--output", str(shell.place / second))
        shell.json("import", str(shell.place / second))
    shell.json("run", "hi", "--model", model, "--session-id", "c")
    shell.json("fork", "c", "--session-id", "d")
    for words, shown in ((["tree"], [*"bacd"]), (["tree", "a"], [*"ba"]), (["tree", "b"], [*"ba"])):
        told = shell.run(*words)
        assert told.returncode == 0, told.stderr
        lines = told.stdout.splitlines()
        assert [line.removeprefix("└─ ")[0] for line in lines] == shown
        assert ["(from a: a cycle, cut here)" in line for line in lines] == [
            name == "b" for name in shown
        ]
    tree = shell.json("tree", "a")
    check(tree, "tree")
    assert [(node["id"], node["origin"], node["depth"]) for node in tree["nodes"]] == [
        ("b", "a", 0),
        ("a", "b", 1),
    ]


def test_sessions_and_their_filters(work):
    document = work.json("sessions")
    check(document, "sessions")
    assert [session["id"] for session in document["sessions"]] == ["b", "a"]
    first_page = work.json("sessions", "--limit", "1")
    rest = work.json("sessions", "--limit", "1", "--cursor", first_page["cursor"])
    assert [session["id"] for session in rest["sessions"]] == ["a"]
    assert rest["cursor"] is None
    assert work.json("sessions", "--all", "--label", "for=others")["sessions"] == []


def test_show_tells_turns_steps_code_output_and_cost(work):
    document = work.json("show", "a")
    check(document, "show")
    first, second = document["turns"]
    assert [step["cells"][0]["status"] for step in first["steps"]] == ["ok", "final"]
    assert first["steps"][0]["leaves"] == {"asked": 1, "failed": 0, "lost": 0}
    assert (second["status"], second["error"]["code"]) == ("failed", "quota_exceeded")
    page = work.inside("show", "a").stdout
    for part in (
        "turn 1 · final",
        "answer = lm(",
        "> a test",
        "1 leaf call, 0 failed",
        "quota",
        "for=tests",
    ):
        assert part in page


def test_events_are_lines_and_may_begin_anywhere(work):
    events = work.lines("events", "a")
    for event in events:
        check(event, "event")
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert work.lines("events", "a", "--from", "5")[0]["seq"] == 5


def test_payloads_are_exact_in_a_pipe(work):
    events = work.lines("events", "a", "--type", "session.started")
    settings = events[0]["data"]["settings"]["$ref"]
    document = work.json("payload", "a", settings)
    check(document, "payload")
    assert json.loads(document["text"])["settings"]["max_steps"] == 25
    assert work.run("payload", "a", settings).stdout == document["text"]
    work.inside("payload", "a", settings, "-o", "out.json")
    assert (work.place / "out.json").read_text() == document["text"]
    assert work.json("payload", "a", "sha256:" + "0" * 64, code=2)["error"]["code"] == "invalid_ref"


def test_a_session_goes_on_live_from_a_step_in_a_fork(work):
    other = work.script({"reply": cell("FINAL(answer.upper())")}, name="other.jsonl")
    document = work.json("replay", "a", "--from", "2", "--model", other, "--session-id", "what-if")
    check(document, "result")
    assert (document["session"], document["value"]) == ("what-if", "A TEST")
    told = work.json("diff", "a", "what-if")
    assert told["one"]["kind"] == told["other"]["kind"] == "reply"
    assert "turn 1 · final" in work.inside("show", "what-if").stdout
    work.json("replay", "a", "--model", other, code=2)
    work.json("replay", "a", "--from", "9", code=2)
    work.json("replay", "a", "--from", "2", "--agent", "nothing:here", code=2)


def test_a_session_is_replayed_from_its_log(work):
    document = work.json("replay", "a")
    check(document, "replay")
    (replayed,) = document["replays"]
    assert (replayed["difference"], replayed["turns"], replayed["cells"]) == (None, 2, 2)
    work.inside("export", "a", "-o", "a.holdfast")
    told = work.inside("replay", "--export", "a.holdfast").stdout
    assert "2 turns, 3 steps, 2 cells replayed without divergence" in told


def test_the_context_is_shown_and_compacted(work):
    document = work.json("context", "a")
    check(document, "context")
    assert document["parts"][0]["role"] == "system"
    assert document["parts"][1]["text"] == "hi"
    fork = work.json("fork", "a")["session"]
    check(work.json("compact", fork, "--strategy", "window"), "compaction")  # too short for one
    work.json("send", fork, "word " * 1000)
    compacted = work.json("compact", fork, "--strategy", "window")
    check(compacted, "compaction")
    assert compacted["strategy"] == "window"
    assert compacted["tokens_after"] < compacted["tokens_before"]
    assert "[continuation]" in work.inside("context", fork).stdout


def test_vars_come_from_the_checkpoint(work):
    document = work.json("vars", "a")
    check(document, "vars")
    answer, text = document["variables"]
    assert (answer["name"], answer["preview"]) == ("answer", "'a test'")
    assert text["name"] == "text"
    assert text["type"].startswith("str")
    assert text["size"] >= 5000


def test_care_of_the_store(work, tmp_path):
    proof = work.json("verify")
    check(proof, "verify")
    assert proof["ok"]
    check(work.json("gc", "--dry-run"), "gc")
    exported = work.json("export", "--all", "-o", str(tmp_path / "all.holdfast"))
    check(exported, "export")
    other = Shell(tmp_path)
    imported = other.json("import", "all.holdfast")
    check(imported, "import")
    assert {item["outcome"] for item in imported["sessions"]} == {"created"}
    again = other.json("import", "all.holdfast")
    assert {item["outcome"] for item in again["sessions"]} == {"unchanged"}
    assert other.json("heads", "a")["heads"][0]["id"] == work.first["head"]
    message = other.lines("events", "a", "--type", "session.started")[0]
    erased = other.json("erase", "a", message["data"]["settings"]["$ref"], "--rule", "test")
    check(erased, "erase")
    assert erased["places"] == 1
    proof = other.json("verify", "a")["sessions"][0]
    assert (proof["erased"], proof["expired"]) == (1, 0)
    nobody = other.run("delete", "b")
    assert nobody.returncode == 2
    assert "--yes" in nobody.stderr
    declined = other.run("delete", "b", input="n\n")
    assert (declined.returncode, "b was not deleted" in declined.stderr) == (1, True)
    check(other.json("delete", "b", "--yes"), "delete")
    assert other.json("show", "b", code=1)["error"]["code"] == "session_deleted"


def test_setting_up(work):
    doctor = work.json("doctor")
    check(doctor, "doctor")
    assert doctor["store"]["sessions"] == len(work.json("sessions", "--all")["sessions"])
    (work.place / ".holdfast").mkdir()
    file = work.place / ".holdfast" / "config.toml"
    assert work.json("config")["config_file"] is None
    file.mkdir()
    unreadable = work.run("config")
    assert (unreadable.returncode, str(file) in unreadable.stderr) == (2, True)
    file.rmdir()
    file.write_text("max_steps = 7\nmax_turns = 3\n")
    work.environment["HOLDFAST_MAX_TURNS"] = "4"
    config = work.json("config")
    del work.environment["HOLDFAST_MAX_TURNS"]
    check(config, "config")
    for setting in config["settings"].values():
        check(setting, "setting")
    assert config["config_file"] == str(file)
    assert config["settings"]["max_steps"] == {"value": 7, "origin": "config.toml"}
    assert config["settings"]["max_turns"] == {"value": 4, "origin": "environment"}
    assert config["settings"]["kernel"] == {"value": "auto", "origin": "default"}


def test_stopping(work):
    check(work.json("stop", "b"), "result")
    check(work.json("send", "b", "hi", code=6), "result")


def test_errors(work):
    check(work.json("show", "nobody", code=2), "error")
    (work.place / "bad.holdfast").write_bytes(b"no export")
    check(work.json("import", "bad.holdfast", code=1), "error")


def test_the_page_describes_only_documents_that_are_used():
    used = {kind for fields in DOCUMENTS.values() for kind in fields.values()}
    named = {word for kind in used for word in kind.replace("list of ", "").split(" or ")}
    top = {"error", "result", "event", "setting", "compaction", *COMMANDS}
    assert set(DOCUMENTS) - named - top == set()


@pytest.mark.parametrize("name", COMMANDS)
def test_the_page_of_the_command_line_lists_every_option(name):
    page = (PAGE.parent / "cli.md").read_text(encoding="utf-8")
    made = holdfast.get_command(click.Context(holdfast), name)
    missing = [
        option
        for parameter in made.params
        if isinstance(parameter, click.Option)
        for option in parameter.opts
        if f"{option}`" not in page and f"{option} " not in page
    ]
    assert missing == []


@pytest.mark.parametrize("kind", ["sqlite", "files"])
def test_events_list_their_fields_in_the_declared_order_on_every_store(shell, kind):
    shell.environment["HOLDFAST_STORE"] = f"{kind}:{shell.place / kind}"
    model = shell.script(cell("FINAL(lm('q'))"), {"leaf": True, "match": "q", "reply": "a"})
    shell.run("run", "hi", "--model", model, "--session-id", "a", "--quiet")
    shown = [line.split(maxsplit=2)[2] for line in shell.inside("events", "a").stdout.splitlines()]
    about = {line.split(maxsplit=1)[0]: line.split(maxsplit=1)[1] for line in shown}
    assert about["message.appended"].startswith("message=3 role=observation turn=1 step=1 content=")
    assert about["step.started"].startswith("step=1 turn=1")
    assert about["leaf.called"].startswith("leaf=1 turn=1 step=1 eval=1 function=lm")
    assert about["turn.put"].startswith("turn=1 status=final steps=1 usage={input_tokens=")
