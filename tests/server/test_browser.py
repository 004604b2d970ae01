"""The pages in a real browser: nothing in them executes, and they follow a session live."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from holdfast.server.access import Principal

from .browsers import chromium
from .conftest import ASK, House, cell
from .test_streams import served

EVIL = "</script><script>window.hit=1</script><img src=x onerror=window.hit=1>\u202e" + "w" * 5000


@asynccontextmanager
async def browsing(house: House) -> AsyncIterator[tuple[Any, str, list[str]]]:
    """Sign a browser in; yield its page, the address and every request to another host."""
    async with served(house) as client, chromium() as browser:
        base = str(client.base_url).rstrip("/")
        page = await browser.new_page()
        strayed: list[str] = []
        page.on(
            "request",
            lambda item: None if item.url.startswith(base) else strayed.append(item.url),
        )
        await page.goto(f"{base}/login?code={house.access.link_code(Principal('owner'))}")
        await page.wait_for_url("**/sessions")
        yield page, base, strayed


async def test_hostile_text_does_not_execute_on_any_page(house: House) -> None:
    await house.open(cell(f"print({EVIL!a})\nx = {EVIL!a}\nFINAL({EVIL!a})"))
    session = await house.runtime.start(labels={"note": "<img src=x onerror=window.hit=1>"})
    await session.send(EVIL)
    async with browsing(house) as (page, base, strayed):
        paths = ("", "/events", "/variables", "/lineage", "/step/1", "/timeline", "/costs", "/fork")
        for path in paths:
            await page.goto(f"{base}/s/{session.id}{path}")
            assert await page.evaluate("window.hit") is None, path
            wide = "document.documentElement.scrollWidth > innerWidth + 1"
            assert path != "" or not await page.evaluate(wide)
        await page.goto(f"{base}/sessions")
        assert await page.evaluate("window.hit") is None
        assert strayed == []


async def test_a_session_is_started_watched_answered_and_forked(house: House) -> None:
    await house.open(ASK)
    async with browsing(house) as (page, base, strayed):
        await page.goto(f"{base}/chat")
        await page.fill("textarea[name=message]", "Where to?")
        await page.click("button:has-text('Start')")
        await page.wait_for_url("**/s/**")
        await page.click("a:has-text('Answer…')")  # it appears without loading the page again
        await page.fill("textarea[name='f-']", "cork")
        await page.click("button:has-text('Send answer')")
        await page.wait_for_selector("text=to cork")
        before = page.url
        await page.click("a:has-text('Fork…')")
        await page.click("button:text-is('Fork')")
        await page.wait_for_selector("text=forked from")
        assert page.url != before
        assert strayed == []
