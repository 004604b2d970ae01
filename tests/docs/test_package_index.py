"""The description that a package index shows has no link that leads nowhere."""

from __future__ import annotations

import importlib.util
import re

from pages import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")


def _description(repository):
    spec = importlib.util.spec_from_file_location("holdfast_setup", ROOT / "setup.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.description(README, repository)


def _targets(text):
    return re.findall(r"\]\(([^)\s]+)\)", text)


def test_every_link_leads_to_the_repository_where_one_is_named():
    text = _description("https://example.org/holdfast/blob/main/")
    relative = [target for target in _targets(README) if "://" not in target]
    assert relative
    assert [t for t in _targets(text) if "://" not in t] == []
    assert f"(https://example.org/holdfast/blob/main/{relative[0]})" in text


def test_without_a_repository_the_files_are_named_and_nothing_is_linked_to_them():
    text = _description(None)
    assert [target for target in _targets(text) if "://" not in target] == []
    assert "threat model (`docs/explanation/threat-model.md`)" in text
