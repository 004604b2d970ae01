"""OpenAI Agents SDK: `HoldfastSession`, a conversation's items as records of a session's log.

Items are kept once, in order; `pop_item` and `clear_session` retract them, so the log still says
what was there. A run that waits for an approval can be kept beside them and is handed out once.
"""

from __future__ import annotations

from typing import Any, cast

import holdfast
from holdfast.adapters import naming
from holdfast.errors import RecordConflict, needing

with needing("openai-agents", "the adapter of the OpenAI Agents SDK", "openai-agents>=0.24,<0.25"):
    from agents import Agent, RunState
    from agents.items import TResponseInputItem
    from agents.memory import SessionSettings
    from pydantic_core import to_jsonable_python

__all__ = ["AGENT", "HoldfastSession"]

AGENT = holdfast.Agent("openai-agents", external=True)
ITEM, RUN = "openai.item", "openai.run"
PAGE = 500


class HoldfastSession:
    """A session of the Agents SDK that lives in a runtime's store.

    Open the runtime with `agents=[AGENT]`. The name may be any text; conversations of the same name
    in one store are the same conversation.
    """

    def __init__(
        self,
        session_id: str,
        runtime: holdfast.Runtime,
        *,
        session_settings: SessionSettings | None = None,
    ) -> None:
        self.session_id = session_id
        self.session_settings: SessionSettings | None = session_settings or SessionSettings()
        self._session = runtime.session(
            naming.session_id("openai", session_id), agent=AGENT, create=True
        )

    @property
    def session(self) -> holdfast.Session[Any]:
        """Return the session that holds the items, for `show`, `fork`, `verify` and records."""
        return self._session

    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        """Return the newest items, oldest first; all of them without a limit."""
        wanted = limit
        if limit is None and self.session_settings is not None:
            wanted = self.session_settings.limit
        if wanted is not None:
            if wanted <= 0:
                return []
            found = await self._session.records(ITEM, limit=wanted, reverse=True)
            return [_item(view) for view in reversed(found)]
        return [_item(view) for view in await self._all()]

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        """Add items, all in one batch of the log."""
        if items:
            await self._session.record_all(
                [holdfast.Record(ITEM, to_jsonable_python(item)) for item in items]
            )

    async def pop_item(self) -> TResponseInputItem | None:
        """Take the newest item away; of two who do so at once, each gets another one."""
        while (last := await self._session.latest(ITEM)) is not None:
            try:
                await self._session.retract(last.number)
            except RecordConflict:
                continue
            return _item(last)
        return None

    async def clear_session(self) -> None:
        """Take all items away."""
        numbers = [view.number for view in await self._all()]
        if numbers:
            await self._session.retract(*numbers)

    async def keep_run(self, state: RunState[Any, Any]) -> None:
        """Keep a run that waits, until it is taken."""
        await self._session.record(RUN, to_jsonable_python(state.to_json()))

    async def take_run(
        self, agent: Agent[Any], *, context: Any = None
    ) -> RunState[Any, Any] | None:
        """Return the run that was kept last, once: whoever is later gets None.

        A run that is taken and lost is in the log, retracted; resuming it twice would run its
        tools twice.
        """
        while (last := await self._session.latest(RUN)) is not None:
            try:
                await self._session.retract(last.number)
            except RecordConflict:
                continue
            return await RunState.from_json(agent, last.value, context_override=context)
        return None

    async def _all(self) -> list[holdfast.RecordView]:
        found: list[holdfast.RecordView] = []
        while page := await self._session.records(
            ITEM, after=found[-1].seq if found else 0, limit=PAGE
        ):
            found += page
        return found


def _item(view: holdfast.RecordView) -> TResponseInputItem:
    return cast(TResponseInputItem, view.value)
