"""Signals: what comes from outside to a `wait` node, by the name that it waits for."""

from __future__ import annotations

from holdfast.core.errors import CallNotFound
from holdfast.stores.port import PendingFilter, SessionStore
from holdfast.views.values import read_value
from holdfast.workflows.results import state_of


async def waiting_for(store: SessionStore, run: str, name: str) -> list[str]:
    """Return the calls of a run that wait for a signal; refuse one for which none does."""
    await state_of(store, run)
    waiting: list[tuple[str, str]] = []
    cursor = None
    while True:
        page = await store.pending(PendingFilter(session=run), limit=500, cursor=cursor)
        for wait in page.waits:
            if wait.kind == "signal" and wait.prompt is not None:
                waiting.append((wait.call_id, str(await read_value(store, run, wait.prompt))))
        cursor = page.cursor
        if cursor is None:
            break
    found = [call_id for call_id, wanted in waiting if wanted == name]
    if not found:
        known = ", ".join(sorted({wanted for _, wanted in waiting})) or "none"
        raise CallNotFound(
            f"run {run!r} does not wait for the signal {name!r}; it waits for: {known}"
        )
    return found
