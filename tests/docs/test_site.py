"""The documentation site builds without a warning, can be searched, and needs no other host."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pages import ROOT

OWN = {"zensical.org", "www.w3.org"}
"""Hosts that a page may name: the generator's notice in the footer, and the namespace of SVG."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("site")
    shutil.copytree(ROOT / "docs", place / "docs")
    shutil.copy(ROOT / "mkdocs.yml", place)
    (place / "src").symlink_to(ROOT / "src")
    builder = Path(sys.executable).with_name("zensical")
    done = subprocess.run(
        [builder, "build", "--strict", "--config-file", "mkdocs.yml"],
        cwd=place,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return place / "site"


def test_every_page_is_there_and_can_be_found_by_search(site: Path) -> None:
    pages = [page.relative_to(ROOT / "docs") for page in (ROOT / "docs").rglob("*.md")]
    for page in pages:
        folder = page.parent if page.stem in ("README", "index") else page.with_suffix("")
        assert (site / folder / "index.html").is_file(), page
    found = json.dumps(json.loads((site / "search.json").read_text(encoding="utf-8")))
    for words in ("Resume after a crash", "call.suspended", "open_runtime"):
        assert words in found


def test_the_api_reference_has_signatures_and_docstrings(site: Path) -> None:
    page = (site / "api" / "runtime" / "index.html").read_text(encoding="utf-8")
    assert 'id="holdfast.runtime.runtime.Runtime.fork"' in page
    assert "ready to drive sessions" in page


def test_no_page_loads_anything_from_another_host(site: Path) -> None:
    for path in site.rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        loaded = re.findall(
            r'<(?:script|link|img|iframe)[^>]+(?:src|href)="https?://([^/"]+)', text
        )
        assert set(loaded) <= OWN, path
