"""A real Chromium, and the scene of the viewer on a server of its own, for tests and pictures."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import uvicorn
from playwright.async_api import async_playwright

from holdfast.server.access import Access
from holdfast.server.app import create_app
from holdfast.stores.memory.store import MemorySessionStore

from . import scene


@asynccontextmanager
async def chromium() -> AsyncIterator[Any]:
    """Yield a browser: the one of this machine."""
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "chrome"))), None)
    assert found, "Chromium is missing; `make browser` installs Debian's package, as root"
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        await browser.close()


@dataclass(frozen=True, slots=True)
class Stage:
    """The scene, played and served."""

    runtime: Any
    access: Access
    browser: Any
    base: str


@asynccontextmanager
async def staged(latency: float = 0.0) -> AsyncIterator[Stage]:
    """Play the scene and serve it."""
    async with await scene.opened(MemorySessionStore(), latency=latency) as runtime:
        await scene.play(runtime)
        access = Access()
        config = uvicorn.Config("", port=0, log_level="error", timeout_graceful_shutdown=1)
        listening = config.bind_socket()
        host = f"127.0.0.1:{listening.getsockname()[1]}"
        config.app = create_app(runtime, access=access, hosts=(host,))
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        while not server.started:  # noqa: ASYNC110
            await asyncio.sleep(0)
        async with chromium() as browser:
            yield Stage(runtime, access, browser, f"http://{host}")
        server.should_exit = True
        await serving
