"""Nothing that a model or a user wrote can act on a terminal, and documents lose nothing of it."""

from __future__ import annotations

import json

import pytest

from holdfast.cli.tables import Column, display_width, table
from holdfast.cli.terminal import clean, dumps, one_line

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
    columns = (Column("NAME"), Column("TEXT", least=5))
    shown = table(columns, [("a", "one\ntwo\x1b[2J"), ("b", "x" * 500)], 40)
    lines = shown.split("\n")
    assert lines[1] == "a     one two"
    assert len(lines) == 3
    assert lines[2].endswith("…")
    assert len(lines[2]) == 40


IDS = ("s-0199a1b2-c3d4-7e5f-8a9b-c0d1e2f30415", "s-0199a1b2-c3d5-7e5f-8a9b-c0d1e2f30415")
ROWS = [(name, "a name of a session", "12,345", f"label=字字 {'x' * 60}") for name in IDS]
FULL = (
    Column("SESSION", least=8, is_id=True),
    Column("NAME", least=12),
    Column("TOKENS", right=True, spare=1),
    Column("LABELS", least=8, spare=2),
)


@pytest.mark.parametrize("width", [30, 40, 50, 60, 80, 100, 140])
def test_a_table_fits_the_screen(width):
    lines = table(FULL, ROWS, width).split("\n")
    assert max(map(display_width, lines)) <= width
    begun = [line.split()[0] for line in lines[1:]]
    assert len(set(begun)) == 2
    assert all(whole.startswith(part) for whole, part in zip(IDS, begun, strict=True))


def test_a_table_uses_the_room_that_there_is():
    wide = table(FULL, ROWS, 160).split("\n")
    assert all(name in line for name, line in zip(IDS, wide[1:], strict=True))
    assert wide[1].endswith("x" * 60)
    assert "LABELS" not in table(FULL, ROWS, 40)
    assert table(FULL, ROWS) == table(FULL, ROWS, 10_000)


def test_one_line_does_not_read_a_whole_huge_text():
    assert one_line("word " * 10_000_000, 20) == "word word word word…"
