"""Pictures of the pages for README and docs, light and dark: `make pictures`.

With a folder, pictures of every page go there, or of those that are named after it.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.server import scene
from tests.server.browsers import staged

from holdfast.server.access import Principal

FOLDER = Path(__file__).parents[2] / "docs" / "pictures"
PAGES = {
    "sessions": "/sessions",
    "session": f"/s/{scene.TALK}?sel=step:2#step-2",
    "time-travel": f"/s/{scene.TALK}?at=40",
    "timeline": f"/s/{scene.TALK}/timeline",
    "events": f"/s/{scene.TALK}/events?sel=event:12",
    "variables": f"/s/{scene.TALK}/variables",
    "costs": f"/s/{scene.TALK}/costs",
    "lineage": f"/s/{scene.TALK}/lineage",
    "model-saw": f"/s/{scene.TALK}/step/3",
    "fork": f"/s/{scene.TALK}/fork?at=40",
    "compare": f"/compare?a={scene.TALK}&b={scene.FORK}",
    "runs": "/runs",
    "run": f"/r/{scene.RUN}?node=write",
    "inbox": "/inbox",
    "chat": "/chat",
    "missing": "/s/nobody",
}


async def taken(folder: Path, only: list[str]) -> None:
    """Take pictures of every page into a folder."""
    async with staged(latency=0.05) as stage:
        for theme in ("light", "dark"):
            context: Any = await stage.browser.new_context(
                viewport={"width": 1280, "height": 800}, color_scheme=theme
            )
            page = await context.new_page()
            link = stage.access.link_code(Principal("owner"))
            await page.goto(f"{stage.base}/login?code={link}")
            await page.wait_for_url("**/sessions")
            for name, path in PAGES.items():
                if only and name not in only:
                    continue
                await page.goto(f"{stage.base}{path}")
                await page.wait_for_load_state("load")
                await page.screenshot(path=str(folder / f"{name}-{theme}.png"))
            await context.close()


if __name__ == "__main__":
    place = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    chosen = sys.argv[2:] if len(sys.argv) > 1 else ["session", "timeline", "run", "model-saw"]
    place.mkdir(parents=True, exist_ok=True)
    asyncio.run(taken(place, chosen))
