"""What needs an extra that is not installed says which one, with the same error everywhere."""

from __future__ import annotations

import asyncio
import sys

import pytest

import holdfast
from holdfast.errors import ExtraMissing
from holdfast.kernels.choose import Kernels


def hide(monkeypatch, *names: str) -> None:
    """Let imports of modules, and of ours that have loaded them, fail as if they were not there."""
    for loaded in list(sys.modules):
        if loaded.startswith(("holdfast.stores.postgres", "holdfast.kernels.monty")):
            monkeypatch.delitem(sys.modules, loaded)
    for name in names:
        monkeypatch.setitem(sys.modules, name, None)


async def test_the_postgresql_store(monkeypatch) -> None:
    hide(monkeypatch, "psycopg", "psycopg_pool")
    with pytest.raises(ExtraMissing, match=r"pip install 'holdfast\[postgres\]'"):
        await holdfast.open("postgresql://nowhere/none", model="script:x.jsonl")


async def test_the_monty_engine(monkeypatch) -> None:
    hide(monkeypatch, "pydantic_monty")
    with pytest.raises(ExtraMissing, match=r"pip install 'holdfast\[monty\]'") as caught:
        await Kernels().choose("monty")
    assert caught.value.details["extra"] == "monty"


def test_the_server(monkeypatch) -> None:
    from holdfast.cli import serve

    hide(monkeypatch, "uvicorn")
    with pytest.raises(ExtraMissing, match=r"pip install 'holdfast\[server\]'"):
        asyncio.run(serve._serve(None, {}, browser=False))
