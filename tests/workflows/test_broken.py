"""Broken workflows: each file ends with comments that say what is wrong with it, and where.

A comment is `# line:column subject: message | remedy`. Nothing else may be reported.
"""

import re
from pathlib import Path

import pytest
from known import KNOWN

from holdfast.workflows import check_text

FILES = sorted((Path(__file__).parent / "broken").glob("*.yaml"))
EXPECTED = re.compile(r"# (\d+:\d+) (.+?): (.+) \| (.+)")


def expected(text):
    comments = [line for line in text.splitlines() if line.startswith("# ")]
    return [EXPECTED.fullmatch(line).groups() for line in comments]


def test_there_are_many():
    assert len(FILES) >= 80


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_broken_workflow_is_refused_with_place_and_remedy(file):
    text = file.read_text()
    _, problems = check_text(text, file.name, KNOWN)
    found = [
        (f"{one.place.line}:{one.place.column}", one.subject, one.message, one.remedy)
        for one in problems
    ]
    assert found == expected(text)
    assert found


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_problem_points_at_the_text_that_is_wrong(file):
    text = file.read_text()
    _, problems = check_text(text, file.name, KNOWN)
    for one in problems:
        shown = one.render(text).splitlines()
        assert shown[0].startswith(f"{file.name}:")
        assert shown[-1].strip() == one.remedy
        if len(shown) > 2:
            line, carets = shown[1].split("| ", 1)[1], shown[2].split("| ", 1)[1]
            assert line == text.splitlines()[one.place.line - 1]
            assert len(carets) <= len(line) + 1


def test_one_mistake_is_told_once():
    text = Path(__file__).parent.joinpath("broken", "unknown_target.yaml").read_text()
    assert len(check_text(text, "f", KNOWN)[1]) == 1
