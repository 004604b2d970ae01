"""Kernels use the public standard library: what it hides may change with any release of Python."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import holdfast.kernels

# Documented as the low-level interface to threads, in spite of its name.
DOCUMENTED = {"_thread"}


def _imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def test_no_private_module_of_the_standard_library_is_imported() -> None:
    root = Path(next(iter(holdfast.kernels.__path__)))
    private = {
        f"{path.relative_to(root)}: {name}"
        for path in root.rglob("*.py")
        for name in _imported(ast.parse(path.read_text()))
        if name.startswith("_") and name not in {"__future__", *DOCUMENTED}
    }
    assert private == set()
