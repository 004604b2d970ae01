"""The viewer in a real browser: axe finds nothing on any page, and keys do every action."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import axe_playwright_python
import pytest
import pytest_asyncio

from holdfast.server.access import Principal

from . import scene
from .browsers import staged
from .pictures import PAGES

pytestmark = pytest.mark.asyncio(loop_scope="module")
AXE = (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text()
TALK = f"/s/{scene.TALK}"


@dataclass
class View:
    """A scene that is served, and a browser that is signed in."""

    runtime: Any
    browser: Any
    page: Any
    base: str
    strayed: list[str]

    async def go(self, path: str) -> None:
        await self.page.goto(f"{self.base}{path}")

    async def keys(self, *keys: str) -> None:
        for key in keys:
            await self.page.keyboard.press(key)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def view() -> AsyncIterator[View]:
    async with staged() as stage:
        base = stage.base
        page = await stage.browser.new_page(viewport={"width": 1280, "height": 800})
        page.set_default_timeout(15_000)
        strayed: list[str] = []
        page.on(
            "request",
            lambda item: None if item.url.startswith((base, "data:")) else strayed.append(item.url),
        )
        await page.goto(f"{base}/login?code={stage.access.link_code(Principal('ana'))}")
        await page.wait_for_url("**/sessions")
        yield View(stage.runtime, stage.browser, page, base, strayed)


async def test_axe_finds_no_violation_on_any_page_in_light_and_dark(view: View) -> None:
    (wait,) = [item for item in (await view.runtime.pending()).waits if item.kind == "approval"]
    (form,) = [item for item in (await view.runtime.pending()).waits if item.session == "meeting"]
    (turn,) = (await view.runtime.turns(scene.TALK))[:1]
    paths = [
        *PAGES.values(),
        f"/inbox/{wait.session}/{wait.call_id}",
        f"/inbox/{form.session}/{form.call_id}",
        f"{TALK}/payload/{turn.final.id}",
        "/sessions?name=nothing-fits",
        "/login",
    ]
    wrong: list[str] = []
    for path in paths:
        await view.go(path)
        await view.page.evaluate(AXE)
        for scheme in ("light", "dark"):
            await view.page.emulate_media(color_scheme=scheme)
            # Only colours can differ between the two.
            only = "" if scheme == "light" else ", runOnly: ['color-contrast']"
            result = await view.page.evaluate(
                f"axe.run(document, {{resultTypes: ['violations']{only}}})"
            )
            wrong += [
                f"{scheme} {path}: {item['id']} {item['nodes'][0]['html'][:160]}"
                for item in result["violations"]
            ]
    assert not wrong, "\n".join(wrong)
    assert view.strayed == []


async def test_no_status_is_told_by_colour_alone(view: View) -> None:
    for path in ("/sessions", TALK, f"{TALK}/lineage", f"/r/{scene.RUN}"):
        await view.go(path)
        bare = await view.page.evaluate(
            "[...document.querySelectorAll('.chip')].filter((c) => !c.querySelector('svg') || "
            "!c.textContent.trim()).length"
        )
        assert bare == 0, path


async def test_keys_lead_everywhere(view: View) -> None:
    page = view.page
    for keys, place in (("gr", "/runs"), ("gi", "/inbox"), ("gc", "/chat"), ("gs", "/sessions")):
        await view.keys(*keys)
        await page.wait_for_url(f"**{place}")
    await view.keys("/")
    assert await page.evaluate("document.activeElement.type") == "search"
    await view.keys("Escape", "j", "j")
    chosen = await page.evaluate("document.activeElement.href")
    await view.keys("Enter")
    await page.wait_for_url(chosen)
    await view.keys("?")
    assert await page.is_visible("#keys")
    await view.keys("Escape")
    assert not await page.is_visible("#keys")


async def test_keys_travel_through_time_choose_and_fork(view: View) -> None:
    page = view.page
    await view.go(TALK)
    tip = int(await page.get_attribute("[data-scrub]", "data-tip"))
    await view.keys("[")
    await page.wait_for_url(f"**at={tip - 1}*")
    await view.keys("[")
    await page.wait_for_url(f"**at={tip - 2}*")
    await view.keys("]")
    await page.wait_for_url(f"**at={tip - 1}*")
    await view.keys(".")
    await page.wait_for_url(f"**{TALK}")
    await view.keys("j", "Enter")
    await page.wait_for_url("**sel=step**")
    for number, name in enumerate(("timeline", "events", "variables", "costs", "lineage"), start=2):
        await view.keys(str(number))
        await page.wait_for_url(f"**/{name}**")
    assert "sel=step" in page.url
    await view.keys("1")
    await page.wait_for_url(f"**{TALK}?sel=**")
    await view.keys("s")
    await page.wait_for_url("**/step/**")
    await view.keys("f")
    await page.wait_for_url("**/fork?at=**")
    await view.keys("Control+Enter")
    await page.wait_for_selector("text=forked from")
    assert view.strayed == []


async def test_the_scrubber_is_moved_by_arrow_keys(view: View) -> None:
    await view.go(f"{TALK}?at=20")
    await view.page.focus("[data-scrub] input")
    await view.keys("ArrowLeft")
    await view.page.wait_for_url("**at=19*")


async def test_two_sessions_are_marked_and_compared_by_keys(view: View) -> None:
    page = view.page
    await view.go(f"{TALK}/lineage")
    await page.focus(f"a.id[href='/s/{scene.FORK}']")
    await view.keys("x", "c")
    await page.wait_for_url("**/compare?**")
    await view.keys("n")
    assert "First difference" in await page.evaluate("document.activeElement.textContent")


async def test_a_form_is_filled_and_an_approval_denied_by_keys(view: View) -> None:
    page = view.page
    (form,) = [item for item in (await view.runtime.pending()).waits if item.session == "meeting"]
    await view.go(f"/inbox/{form.session}/{form.call_id}")
    await page.focus("[name='f-date']")
    await page.keyboard.type("18 November")
    await view.keys("Tab", "ArrowDown", "Control+Enter")
    await page.wait_for_selector("text='final'")
    (wait,) = [item for item in (await view.runtime.pending()).waits if item.session == scene.TALK]
    await view.go(f"/inbox/{wait.session}/{wait.call_id}")
    await view.keys("d")
    await page.keyboard.type("not in our name")
    await view.keys("Tab", "Tab", "Tab", "Enter")
    await page.wait_for_url(f"**{TALK}")
    await view.runtime.settled()
    call = next(c for c in await view.runtime.calls(scene.TALK) if c.name == "send_notice")
    assert call.outcome == "denied"


async def test_the_narrow_page_does_not_scroll_sideways(view: View) -> None:
    await view.page.set_viewport_size({"width": 390, "height": 800})
    for path in ("/sessions", TALK, "/inbox", f"{TALK}/costs", f"{TALK}/fork", "/chat"):
        await view.go(path)
        wide = await view.page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert wide <= 1, path
    await view.page.set_viewport_size({"width": 1280, "height": 800})
