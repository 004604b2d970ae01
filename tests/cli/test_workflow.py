"""`holdfast workflow`: checking and drawing files, without a store and without running anything."""

from __future__ import annotations

import json

SOUND = """\
workflow: essay
nodes:
  write: {agent: writer, next: judge}
  judge:
    judge: critic
    next:
      - {to: done, when: output.approved}
      - {to: fail}
"""
BROKEN = SOUND.replace("next: judge", "next: jugde")


def test_a_sound_file_is_said_to_be_so(shell, tmp_path):
    (tmp_path / "essay.yaml").write_text(SOUND)
    done = shell.inside("workflow", "check", "essay.yaml")
    assert (done.returncode, done.stdout.strip()) == (0, "essay.yaml: ok (essay, 4 nodes)")
    assert not (tmp_path / ".holdfast").exists(), "no store is needed"


def test_all_problems_of_all_files_are_told_with_place_and_remedy(shell, tmp_path):
    (tmp_path / "good.yaml").write_text(SOUND)
    (tmp_path / "bad.yaml").write_text(BROKEN.replace("judge: critic", "jugde: critic"))
    (tmp_path / "worse.yaml").write_text(BROKEN)
    done = shell.inside("workflow", "check", "good.yaml", "bad.yaml", "worse.yaml")
    assert done.returncode == 1
    assert "good.yaml: ok" in done.stdout
    assert "bad.yaml:4:3  node judge: has no kind" in done.stdout
    assert "worse.yaml:3:32  edge write → jugde: there is no node 'jugde'" in done.stdout
    assert "did you mean 'judge'?" in done.stdout
    assert "^" in done.stdout
    assert done.stdout.rstrip().endswith("2 problems")


def test_a_program_gets_the_problems_as_a_document(shell, tmp_path):
    (tmp_path / "bad.yaml").write_text(BROKEN)
    done = shell.inside("workflow", "check", "bad.yaml", "--json")
    document = json.loads(done.stdout)
    assert (done.returncode, document["ok"]) == (1, False)
    (problem,) = document["files"][0]["problems"]
    assert problem == {
        "code": "unknown_node",
        "file": "bad.yaml",
        "line": 3,
        "column": 32,
        "subject": "edge write → jugde",
        "message": "there is no node 'jugde'",
        "remedy": "did you mean 'judge'?",
    }


def test_names_that_a_run_will_not_find_are_refused_where_they_are_known(shell, tmp_path):
    (tmp_path / "essay.yaml").write_text(SOUND)
    done = shell.inside(
        "workflow", "check", "essay.yaml", "--agent", "writer", "--agent", "critics"
    )
    assert done.returncode == 1
    assert "there is no agent 'critic'" in done.stdout
    assert "did you mean 'critics'?" in done.stdout


def test_a_file_is_drawn_for_mermaid_and_for_graphviz(shell, tmp_path):
    (tmp_path / "essay.yaml").write_text(SOUND)
    assert shell.inside("workflow", "graph", "essay.yaml").stdout.startswith("flowchart TD\n")
    drawn = shell.inside("workflow", "graph", "essay.yaml", "--format", "dot")
    assert drawn.stdout.startswith('digraph "essay" {')
    document = json.loads(shell.inside("workflow", "graph", "essay.yaml", "--json").stdout)
    assert document["format"] == "mermaid"


def test_a_file_that_is_not_there_or_not_text_is_named(shell, tmp_path):
    done = shell.inside("workflow", "check", "nowhere.yaml")
    assert done.returncode == 2
    assert "nowhere.yaml cannot be read: No such file" in done.stderr
    (tmp_path / "odd.yaml").write_bytes(b"\xff\xfe\x00")
    assert "is not text in UTF-8" in shell.inside("workflow", "graph", "odd.yaml").stderr
    (tmp_path / "bad.yaml").write_text("nodes: {}")
    done = shell.inside("workflow", "graph", "bad.yaml")
    assert done.returncode == 2
    assert "bad.yaml:1:8" in done.stderr or "bad.yaml:1:1" in done.stderr
