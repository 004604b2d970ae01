"""A session as one HTML file: it opens from disk, has no script, and asks no host for anything.

It holds what the transcript shows. Erased values are told as erased; variables, settings and other
stored values are not in it.
"""

from __future__ import annotations

from holdfast.server.page import NOBODY
from holdfast.server.rendering import inline_style, rendered
from holdfast.server.session_pages import head_values
from holdfast.stores.port import SessionStore
from holdfast.views.transcript import TurnTranscript, transcript


async def exported(store: SessionStore, session_id: str) -> str:
    """Return the file of a session."""
    values = await head_values(store, session_id)
    turns = [
        item async for item in transcript(store, session_id) if isinstance(item, TurnTranscript)
    ]
    return rendered(
        "session.html",
        **(NOBODY | values | {"style": inline_style()}),
        key="",
        tab="",
        may_act=False,
        older=None,
        newer=False,
        turns=turns,
    )
