"""Links between pages lead somewhere, and no page names a place outside of the project."""

from __future__ import annotations

import re

import pytest
from pages import PAGES, ROOT, page_id, prose

_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def _anchors(page):
    titles = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    kept = (re.sub(r"[^\w\- ]", "", title.lower().replace("`", "")) for title in titles)
    return {title.strip().replace(" ", "-") for title in kept}


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_the_links_of_a_page_resolve(page):
    for target in _LINK.findall(prose(page)):
        if target.startswith(("https://", "http://", "mailto:")):
            continue
        place, _, anchor = target.partition("#")
        path = (page.parent / place).resolve() if place else page
        assert path.exists(), f"{page_id(page)} links to {target}, which is not there"
        assert ROOT in path.parents, f"{page_id(page)} links to {target}, outside of the project"
        if anchor and path.suffix == ".md":
            assert anchor in _anchors(path), f"{page_id(page)} links to {target}: no such heading"


def test_every_page_can_be_reached_from_the_readme():
    reached, queue = set(), [ROOT / "README.md"]
    while queue:
        page = queue.pop()
        if page in reached:
            continue
        reached.add(page)
        for target in _LINK.findall(prose(page)):
            path = (page.parent / target.partition("#")[0]).resolve()
            if path.suffix == ".md" and path.exists():
                queue.append(path)
    lost = sorted(page_id(page) for page in set(PAGES) - reached)
    assert lost == [], "link these from README.md or from the README.md of their folder"
