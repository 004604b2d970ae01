"""The reference pages say everything there is, and nothing else."""

from __future__ import annotations

import ast
import importlib
import json
import pkgutil
import re
from dataclasses import MISSING, fields
from importlib.resources import files

import apsw
import pytest
from pages import ROOT, blocks

import holdfast
from holdfast import runs
from holdfast.cli.main import COMMANDS
from holdfast.core import payloads, values
from holdfast.core.errors import HoldfastError
from holdfast.core.forms import FACTS
from holdfast.runtime import results
from holdfast.runtime.settings import PREFIX, Settings
from holdfast.stores.sqlite.database import migrations

REFERENCE = ROOT / "docs" / "reference"


def _page(name):
    return (REFERENCE / name).read_text(encoding="utf-8")


def _sections(text, mark):
    parts = re.split(rf"^{mark} (.+)$", text, flags=re.MULTILINE)
    return {title.strip("`"): body for title, body in zip(parts[1::2], parts[2::2], strict=True)}


@pytest.mark.parametrize("kind", FACTS)
def test_the_page_of_events_lists_every_field_of_every_type(kind):
    section = _sections(_page("events.md"), "###")[kind]
    rows = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
    assert rows == [item.name for item in fields(FACTS[kind])]


@pytest.mark.parametrize("kind", FACTS)
def test_the_page_of_events_says_which_fields_may_be_left_out(kind):
    section = _sections(_page("events.md"), "###")[kind]
    required = set(re.findall(r"^\| `(\w+)` \|[^|]*\| yes \|", section, re.MULTILINE))
    assert required == {
        item.name
        for item in fields(FACTS[kind])
        if item.default is MISSING and item.default_factory is MISSING
    }


def test_the_page_of_events_has_no_type_that_is_not_there():
    assert set(_sections(_page("events.md"), "###")) == set(FACTS)


# Run as programs, or in need of the testing extra.
NOT_IMPORTED = ("holdfast.kernels.worker", "holdfast.testing", "holdfast.cli.__main__")


def _errors(cls=HoldfastError):
    yield cls
    for child in cls.__subclasses__():
        yield from _errors(child)


def test_the_page_of_errors_lists_every_class_with_its_code():
    for module in pkgutil.walk_packages(holdfast.__path__, "holdfast."):
        if not module.name.startswith(NOT_IMPORTED):
            importlib.import_module(module.name)
    there = {e.__name__: e for e in _errors() if e.__module__.startswith("holdfast.")}
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \| (.+) \|$", _page("errors.md"), re.MULTILINE)
    assert {name: code for name, code, _ in rows} == {n: e().code for n, e in there.items()}
    assert all(len(what) > 20 for _, _, what in rows)


def test_the_page_of_settings_lists_every_setting_with_its_variable_and_default():
    pattern = r"^\| `(\w+)` \| `(\w+)` \| (.+?) \| .+ \|$"
    rows = re.findall(pattern, _page("settings.md"), re.MULTILINE)
    there = {
        item.name: (PREFIX + item.name.upper(), f"`{item.default}`" if item.default else "none")
        for item in fields(Settings)
    }
    zeros = {item.name for item in fields(Settings) if item.default == 0}
    said = {name: (variable, default) for name, variable, default in rows}
    assert said == {
        name: (variable, "`0`" if name in zeros else default)
        for name, (variable, default) in there.items()
    }


def test_the_page_of_results_says_status_and_exit_code_of_each():
    rows = re.findall(r"\| `(\w+)` \| `(\w+)` \| (\d) \|$", _page("results.md"), re.MULTILINE)
    there = {
        (cls.__name__, cls.STATUS, str(cls.EXIT_CODE))
        for cls in results.TurnSummary.__subclasses__()
    }
    assert {(name, status, code) for name, status, code in rows} == there


def test_the_page_of_the_command_line_names_every_command():
    page = _page("cli.md")
    assert [name for name in COMMANDS if f"holdfast {name}" not in page] == []


def test_the_page_of_the_python_api_names_every_public_name():
    page = _page("python.md")
    for name in holdfast.__all__:
        assert f"`{name}" in page or f"`holdfast.{name}" in page, name
    for cls in (holdfast.Runtime, holdfast.Session, holdfast.SyncRuntime):
        for name in dir(cls):
            if not name.startswith("_") and callable(getattr(cls, name)):
                assert f"`{name}(" in page, f"{cls.__name__}.{name}"


def test_the_page_of_the_store_of_runs_has_every_verb_and_field():
    page = _page("run-store.md")
    for cls in (runs.RunRecord, runs.Checkpoint, runs.Position):
        for one in fields(cls):
            assert f"\n| `{one.name}` |" in page, f"{cls.__name__}.{one.name}"
    for name in ("create", *vars(runs.RunStore)):
        assert name.startswith("_") or name == "store" or f"`{name}(" in page, name


def test_the_format_page_gives_every_tag_as_the_code_writes_it():
    page = (ROOT / "docs" / "FORMAT.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\$\w+)` \| .+ \| `(.+)` \| `(.+)` \|$", page, re.MULTILINE)
    assert {tag for tag, _, _ in rows} == {*values._READERS, *values._TABLES}
    names = {name: getattr(importlib.import_module(module), name) for module, name in _TYPES}
    for tag, source, stored in rows:
        value = eval(source, names)
        assert values.encode_json(value).decode() == stored, tag
        again = values.decode("json", stored.encode())
        assert (repr(again), type(again)) == (repr(value), type(value))


_TYPES = [
    ("datetime", "date"),
    ("datetime", "datetime"),
    ("datetime", "time"),
    ("datetime", "timedelta"),
    ("datetime", "timezone"),
    ("decimal", "Decimal"),
    ("uuid", "UUID"),
    ("zoneinfo", "ZoneInfo"),
]


def test_the_format_page_lists_every_encoding_and_kind_of_payload():
    page = (ROOT / "docs" / "FORMAT.md").read_text(encoding="utf-8")
    for name in (*payloads.ENCODINGS, *payloads.KINDS):
        assert f"`{name}`" in page, name


def test_the_vectors_of_the_format_page_are_the_published_ones():
    published = json.loads((files("holdfast.testing") / "vectors.json").read_text("utf-8"))
    everything = json.dumps(published)
    shown = [block for block in blocks(ROOT / "docs" / "FORMAT.md") if block.language == "text"]
    digests = {d for block in shown for d in re.findall(r"\b[0-9a-f]{64}\b", block.text)}
    assert len(digests) >= 8
    assert [digest for digest in digests if digest not in everything] == []


def test_the_schema_of_the_format_page_is_the_one_that_the_migrations_make():
    (shown,) = [block for block in blocks(ROOT / "docs" / "FORMAT.md") if block.language == "sql"]
    made = [text for _, _, text in migrations()]
    assert _tables([shown.text]) == _tables(made)


def _tables(statements: list[str]) -> dict[str, object]:
    """Return what it takes to tell two schemas apart: columns and indexes of every table."""
    connection = apsw.Connection(":memory:")
    for text in statements:
        connection.execute(text)
    names = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()
    found = {}
    for (name,) in names:
        columns = connection.execute("SELECT * FROM pragma_table_xinfo(?)", (name,)).fetchall()
        indexes = connection.execute(
            'SELECT l."unique", l.partial, group_concat(i.name) FROM pragma_index_list(?) l, '
            "pragma_index_xinfo(l.name) i GROUP BY l.name ORDER BY 1, 2, 3",
            (name,),
        ).fetchall()
        found[name] = (columns, indexes)
    return found


def test_the_architecture_page_lists_every_module_and_no_other():
    page = (ROOT / "docs" / "ARCHITECTURE.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `([\w/]+\.py)` \|", page, re.MULTILINE)
    package = ROOT / "src" / "holdfast"
    there = [path for path in package.rglob("*.py") if not path.name.startswith("__")]
    names = [str(path.relative_to(package)) for path in there]
    rows = [
        f"| `{name}` | {_idea(path)} |"
        for name, path in zip(names, there, strict=True)
        if name not in listed
    ]
    assert rows == [], "rows to add to docs/ARCHITECTURE.md:\n" + "\n".join(rows)
    assert sorted(listed) == sorted(names)


def _idea(path):
    """Return the first sentence of a module, which says what lives there."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    first = re.split(r"(?<=[.])\s", text.replace("\n", " "), maxsplit=1)[0].rstrip(".")
    return first[:1].upper() + first[1:]
