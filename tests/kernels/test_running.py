"""Which value a cell has: that of its last expression, however the cell is laid out."""

from __future__ import annotations

import ast
from typing import Any

import pytest

from holdfast.kernels.worker.cell import running

CELLS = [
    "1 + 1",
    "  1 + 1  ",
    "\n\n1 + 1\n\n",
    "x = 1\nx",
    "x = 1\n\n# a comment\nx  # and another\n",
    "x = 1\nx\n# the last line is a comment",
    "x = 1; x",
    "x = 1\ny = 2; x",
    "x = 1",
    "x = (\n1\n+ 2)\n(x,\nx)",
    "x = [\n1,\n2]",
    "x = 1 + \\\n2",
    "1 + \\\n2",
    "x = 1 \\\n\n2",
    "x = '''\n1\n'''",
    'x = """\n1\n""" """\n2"""\nx',
    "'''\n1\n'''",
    "def f():\n    return 1\nf()",
    "def f():\n    return 1\n\n    1",
    "for i in range(3):\n    i",
    "for i in range(3): i\ni",
    "if 1:\n    x = 1\nelse:\n    x = 2\nx",
    "try:\n    x = 1\nfinally:\n    y = 2\nx + y",
    "x = 1\r\nx\r\n",
    "x = 1 + \\\r\n2\r\n",
    "(y := 5)",
    "x = [n for n in range(3)]\nx[-1]",
    "lambda: 1",
    "x = 2\nx if x else 3",
    "async def f():\n    return 7\nawait f()",
    "async def f():\n    return 7\nx = await f()\nx + 1",
    "from __future__ import annotations\ndef f(x: nothing): return x\nf(4)",
    "x = 1\nnot x",
    "",
    "\n",
    "# nothing",
    "pass",
    "'''text'''\n'''more'''",
    "print",
]


def _by_tree(source: str, namespace: dict[str, Any]) -> Any:
    """Find the last expression in the tree: slower, and plainly right."""
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    only_tree = ast.PyCF_ONLY_AST | flags
    text = source if "\n" in source else source.strip()
    tree: Any = compile(text, "<cell 1>", "exec", only_tree, True)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    running._execute([compile(tree, "<cell 1>", "exec", flags, True)], namespace)
    if last is None:
        return None
    expression = ast.Expression(last.value)
    return running._execute([compile(expression, "<cell 1>", "eval", flags, True)], namespace)


@pytest.mark.parametrize("source", CELLS)
def test_a_cell_has_the_value_of_its_last_expression(source: str) -> None:
    expected: dict[str, Any] = {}
    found: dict[str, Any] = {}
    value = _by_tree(source, expected)
    assert repr(running.run(source, "<cell 1>", found))[:12] == repr(value)[:12]
    expected.pop("__builtins__")
    found.pop("__builtins__", None)
    assert repr(sorted(found.items()))[:20] == repr(sorted(expected.items()))[:20]


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("1 / 0", 1),
        ("\n\n1 / 0\n\n", 3),
        ("x = 1\n\nx / 0", 3),
        ("x = 1\nx / 0\nx", 2),
        ("def f():\n    return 1 / 0\n\nf()", 2),
        ("x = '''\n\n'''\n1 / 0", 4),
    ],
)
def test_an_error_is_told_with_the_line_it_stands_in(source: str, line: int) -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        running.run(source, "<cell 1>", {})
    sources = running.Sources()
    sources.add("<cell 1>", source)
    assert running.describe_error(caught.value, sources)["line"] == line


@pytest.mark.parametrize("source", ["x = 1\nx +", "x = (\n1", "x = 1\n  x", "1 +\n2", "x = '''\n1"])
def test_what_does_not_parse_runs_nothing_of_the_cell(source: str) -> None:
    namespace: dict[str, Any] = {}
    with pytest.raises(SyntaxError):
        running.run(source, "<cell 1>", namespace)
    assert namespace == {}


def test_output_can_be_reconfigured_to_no_effect() -> None:
    stream = running.Capture("<stdout>")
    stream.reset(100, 100)
    stream.reconfigure(encoding="latin-1", errors="strict", line_buffering=True)
    stream.write("ä")
    assert stream.excerpt() == ["ä", "", 1]
    assert stream.encoding == "utf-8"
