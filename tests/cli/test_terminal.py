"""Nothing that a model or a user wrote can act on a terminal, and documents lose nothing of it."""

from __future__ import annotations

import json

import pytest

from holdfast.cli.terminal import clean, dumps, one_line, table

HOSTILE = [
    ("\x1b[31;5mred\x1b[0m", "red"),
    ("\x1b]0;title\x07text", "text"),
    ("\x1b]52;c;c2VjcmV0\x1b\\text", "text"),
    ("\x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\", "link"),
    ("\x9b31mred", "red"),
    ("\x9d0;title\x9ctext", "text"),
    ("\x1bPq#0\x1b\\text", "text"),
    ("\x1b(0text\x1bc", "text"),
    ("safe\rEVIL", "safe\nEVIL"),
    ("a\r\nb", "a\nb"),
    ("a\x08\x08b\x00c\x7fd", "abcd"),
    ("\u202eevil\u2066\u200b\ufeff", "evil"),
    ("\ud800", "\ufffd"),
    ("hidden\U000e0041\U000e0042", "hidden"),
    ("\x1b]0;never closed", "0;never closed"),
    ("tab\tand\nline é 字 👩\u200d🚀", "tab\tand\nline é 字 👩\u200d🚀"),
]


@pytest.mark.parametrize(("text", "shown"), HOSTILE)
def test_control_sequences_are_stripped(text, shown):
    assert clean(text).removeprefix("]") == shown


@pytest.mark.parametrize("text", [text for text, _ in HOSTILE])
def test_a_document_holds_the_exact_text_and_no_control_character(text):
    written = dumps({"text": text})
    assert json.loads(written) == {"text": text}
    assert clean(written) == written
    assert "\n" not in written


def test_a_table_stays_a_table_whatever_its_cells_hold():
    shown = table(("NAME", "TEXT"), [("a", "one\ntwo\x1b[2J"), ("b", "x" * 500)])
    lines = shown.split("\n")
    assert lines[1] == "a     one two"
    assert len(lines) == 3
    assert lines[2].endswith("…")


def test_one_line_does_not_read_a_whole_huge_text():
    assert one_line("word " * 10_000_000, 20) == "word word word word…"
