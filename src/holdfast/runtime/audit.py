"""The audit of model calls: what was sent and received, by reference, beside the log.

A session keeps none, `records` or `full`. A row says which request it was (its position in the log
and which compaction applied, so that its messages can be read again from the log), what came back,
what it used and how often it was tried. `full` also has the texts that were added to this request
alone, which the log never holds. Messages are not copied: what is erased from the log is gone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from holdfast.core.errors import HoldfastError, ModelError
from holdfast.core.events import now
from holdfast.core.facts import SessionCompacted
from holdfast.core.state import State
from holdfast.models.asking import attempts_of
from holdfast.models.port import Model, ModelReply, ModelRequest, OnDelta
from holdfast.runtime.requests import START, chained
from holdfast.stores.port import SessionStore

logger = logging.getLogger("holdfast.runtime")

ERROR_CHARACTERS = 500


class AuditedModel:
    """A model whose calls are noted in the audit of one session, whatever comes of them."""

    def __init__(
        self,
        inner: Model,
        store: SessionStore,
        session: str,
        state: Callable[[], State],
        *,
        full: bool,
        redact: Callable[[str, Any], Any],
    ) -> None:
        self._inner = inner
        self._store = store
        self._session = session
        self._state = state
        self._full = full
        self._redact = redact
        self._writing: set[asyncio.Task[None]] = set()

    @property
    def name(self) -> str:
        """Return the name under which the model was chosen."""
        return self._inner.name

    def ceiling_usd(self, input_tokens: int, output_tokens: int) -> str | None:
        """Return the most that a call of this size can cost."""
        return self._inner.ceiling_usd(input_tokens, output_tokens)

    async def request(
        self, request: ModelRequest, *, on_delta: OnDelta | None = None
    ) -> ModelReply:
        """Ask the model, and note what came of it."""
        row = await self._asked(request)
        try:
            reply = await self._inner.request(request, on_delta=on_delta)
        except asyncio.CancelledError:
            self._write(row | {"status": "cancelled"})
            raise
        except Exception as error:
            tries = attempts_of(error) if isinstance(error, ModelError) else ()
            attempts = [attempt.to_record() for attempt in tries]
            text = f"{type(error).__name__}: {error}"[:ERROR_CHARACTERS]
            await self._write(row | {"status": "error", "error": text, "attempts": attempts})
            raise
        await self._write(row | _received(reply))
        return reply

    async def close(self) -> None:
        """Let go of connections."""
        await self._inner.close()

    async def _asked(self, request: ModelRequest) -> dict[str, Any]:
        state = self._state()
        turn = state.turn
        row: dict[str, Any] = {
            "asked_at": now(),
            "purpose": request.purpose,
            "model": self._inner.name,
            "turn": None if turn is None else turn.turn,
            "step": None if turn is None else turn.step,
            "ordinal": request.ordinal,
            "sent": {
                "through_seq": state.seq,
                "messages": len(request.messages),
                "digest": chained(START, request.messages),
                "compaction": await self._compaction(state),
            },
        }
        if self._full and request.messages:
            last = request.messages[-1]
            shown = last.text if last.role == "observation" else None
            row["sent"]["last"] = None if shown is None else self._redact("audit", shown)
        return row

    async def _compaction(self, state: State) -> dict[str, Any] | None:
        """Return which compaction applied: its event, what it stands for, and how it was made."""
        place = state.compact_from
        if place is None:
            return None
        try:
            page = await self._store.read_events(self._session, after=place - 1, before=place + 1)
        except HoldfastError:
            return {"seq": place}
        fact = page[0].fact() if page else None
        if not isinstance(fact, SessionCompacted):
            return {"seq": place}
        return {"seq": place, "strategy": fact.strategy, "span": list(fact.span)}

    def _write(self, row: dict[str, Any]) -> asyncio.Task[None]:
        """Store a row; one that cannot be stored is logged and harms no turn."""

        async def write() -> None:
            try:
                await self._store.put_audit(self._session, row)
            except HoldfastError:
                logger.warning("a call of %s is not in its audit", self._session, exc_info=True)

        task = asyncio.ensure_future(write())
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)
        return task


def _received(reply: Any) -> dict[str, Any]:
    if not isinstance(reply, ModelReply):
        return {"status": "error", "error": f"the model returned a {type(reply).__name__}"}
    return {
        "status": "ok",
        "received": {
            "digest": chained(START, [reply.message]),
            "finish_reason": reply.finish_reason,
            "response_id": reply.response_id,
        },
        "usage": reply.usage.to_record(),
        "cost_usd": reply.cost_usd,
        "price_table": reply.price_table,
        "latency_ms": reply.latency_ms,
        "attempts": [attempt.to_record() for attempt in reply.attempts],
    }
