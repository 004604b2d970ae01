"""Each adapter says which extra it needs, and refuses versions that it was not tested with."""

from __future__ import annotations

import importlib
import importlib.metadata
import re
import sys
import tomllib
from pathlib import Path

import pytest

from holdfast.errors import ExtraMissing, VersionUnsupported, needing

ROOT = Path(__file__).parents[2]
ADAPTERS = {
    "langgraph": ("langgraph", "langgraph-checkpoint"),
    "openai_agents": ("agents", "openai-agents"),
    "mcp": ("mcp", "mcp"),
    "pydantic_ai": ("pydantic_ai", "pydantic-ai-slim"),
    "otel": ("opentelemetry", "opentelemetry-sdk"),
}


def without(monkeypatch, adapter: str) -> None:
    for loaded in list(sys.modules):
        if loaded.startswith(f"holdfast.adapters.{adapter}"):
            monkeypatch.delitem(sys.modules, loaded)


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_an_adapter_without_its_package_names_the_extra(monkeypatch, adapter) -> None:
    without(monkeypatch, adapter)
    module, _ = ADAPTERS[adapter]
    for loaded in list(sys.modules):
        if loaded == module or loaded.startswith(f"{module}."):
            monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setitem(sys.modules, module, None)
    extra = adapter.replace("_", "-")
    with pytest.raises(ExtraMissing, match=rf"pip install 'holdfast\[{extra}\]'"):
        importlib.import_module(f"holdfast.adapters.{adapter}")


@pytest.mark.parametrize("adapter", ADAPTERS)
@pytest.mark.parametrize("found", ["0.1.0", "99.0rc1"])
def test_an_adapter_refuses_other_versions_and_says_which_work(monkeypatch, adapter, found) -> None:
    without(monkeypatch, adapter)
    real = importlib.metadata.version
    package = ADAPTERS[adapter][1]
    monkeypatch.setattr(
        importlib.metadata, "version", lambda name: found if name == package else real(name)
    )
    with pytest.raises(VersionUnsupported, match=rf"works with {package} from .* {found} is"):
        importlib.import_module(f"holdfast.adapters.{adapter}")


def test_versions_at_the_ends_of_a_range_are_told_apart(monkeypatch) -> None:
    installed = [""]
    monkeypatch.setattr(importlib.metadata, "version", lambda name: installed[0])
    for installed[0] in ("2.3", "2.3.0", "2.99.1", "2.3.1.dev4"):
        with needing("mcp", "it", "mcp>=2.3,<3"):
            pass
    for installed[0] in ("2.2.9", "3.0.0", "3", "10.1"):
        with pytest.raises(VersionUnsupported, match=re.escape(installed[0])):
            with needing("mcp", "it", "mcp>=2.3,<3"):
                pass


def test_what_an_adapter_checks_is_what_its_extra_installs() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = declared["project"]["optional-dependencies"]
    checked = {}
    for file in (ROOT / "src/holdfast/adapters").rglob("*.py"):
        for extra, rest in re.findall(r'needing\(\s*"([\w-]+)",(.*?)\):', file.read_text(), re.S):
            checked.setdefault(extra, set()).update(re.findall(r'"([\w-]+>=[^"]+)"', rest))
    assert set(checked) >= {"langgraph", "openai-agents", "mcp", "pydantic-ai", "otel"}
    for extra, requirements in checked.items():
        assert requirements <= set(extras[extra])
