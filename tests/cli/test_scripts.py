"""`--model script:FILE`: which line serves which call, by ordinals that come from the log."""

from __future__ import annotations

from shells import cell


def test_lines_serve_the_sessions_whose_first_message_they_match(shell):
    model = shell.script(
        {"reply": cell("x = 'cats'"), "match": "cat"},
        {"reply": cell("x = 'dogs'"), "match": "dog"},
        cell("FINAL(x)"),
    )
    assert shell.json("run", "about dogs", "--model", model)["value"] == "dogs"
    assert shell.json("run", "about cats", "--model", model)["value"] == "cats"


def test_steps_are_counted_over_turns(shell):
    model = shell.script(cell("FINAL(1)"), cell("FINAL(2)"))
    assert shell.json("run", "hi", "--model", model, "--session-id", "a")["value"] == 1
    assert shell.json("send", "a", "again")["value"] == 2
    out_of_lines = shell.json("send", "a", "and again", code=1)
    assert out_of_lines["error"]["code"] == "script_exhausted"


def test_leaf_lines_serve_leaf_calls_and_may_come_from_another_script(shell):
    model = shell.script(cell("FINAL([lm('a cat'), *map_lm(['a dog', 'a fox'])])"))
    leaf_model = shell.script(
        {"leaf": True, "match": "cat", "reply": "meow"},
        {"leaf": True, "match": "dog", "reply": "woof"},
        {"leaf": True, "match": "fox", "error": "refused"},
        name="leaf.jsonl",
    )
    value = shell.json("run", "hi", "--model", model, "--leaf-model", leaf_model)["value"]
    assert value[:2] == ["meow", "woof"]
    assert value[2]["failed"]


def test_a_bad_line_is_named(shell):
    (shell.place / "bad.jsonl").write_text('{"reply": "x"}\n{"replay": 1}\n')
    error = shell.json("run", "hi", "--model", "script:bad.jsonl", code=2)["error"]
    assert error["code"] == "invalid_script"
    assert "bad.jsonl:2" in error["message"]
