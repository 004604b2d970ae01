"""What all pages share: who asks, what waits for someone, and the fields of a form."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs

from fastapi import Request
from starlette.responses import HTMLResponse

from holdfast.server.rendering import rendered
from holdfast.server.requests import Caller

API = "/api/v1"
NOBODY: dict[str, Any] = {
    "stream": None,
    "follow": None,
    "style": None,
    "who": "",
    "csrf": "",
    "nav": "",
    "inbox": "",
    "at": None,
}
MOST_COUNTED = 99


async def page(template: str, asked: Caller, **values: Any) -> HTMLResponse:
    """Return a page for whoever asks."""
    who = asked.principal
    waiting = len((await asked.runtime.pending(limit=MOST_COUNTED + 1)).waits)
    usual = NOBODY | {
        "who": who.name,
        "csrf": who.csrf or "",
        "may_act": who.may("act"),
        "inbox": f"{MOST_COUNTED}+" if waiting > MOST_COUNTED else waiting,
    }
    return HTMLResponse(rendered(template, **(usual | values)))


async def form_of(request: Request) -> dict[str, str]:
    """Return what a form sends."""
    body = (await request.body()).decode("utf-8", "replace")
    return {name: given[0] for name, given in parse_qs(body, keep_blank_values=True).items()}
