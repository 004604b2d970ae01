"""A run with a recorded model: every session of the tree is told what its own was told."""

from __future__ import annotations

import asyncio
from typing import Any

import holdfast
from holdfast.models.port import ModelReply, ModelRequest, OnDelta
from holdfast.models.recorded import RecordedModel
from holdfast.runtime.replay import recorded_model
from holdfast.stores.memory.store import MemorySessionStore

from .conftest import Lab, cell

WIDTH = 4
TASK = "the same task"
ROOT = cell(f"answers = [slot['value'] for slot in map_rlm(['{TASK}'] * {WIDTH})]\nFINAL(answers)")


class Backwards:
    """A model that answers the first requests of children once all have asked, the last first."""

    def __init__(self, model: RecordedModel) -> None:
        self._model, self._waiting = model, list[asyncio.Event]()
        self.name, self.ceiling_usd, self.close = model.name, model.ceiling_usd, model.close

    async def request(
        self, request: ModelRequest, *, on_delta: OnDelta | None = None
    ) -> ModelReply:
        if request.parent is not None and request.ordinal == 0:
            turn = asyncio.Event()
            self._waiting.append(turn)
            if len(self._waiting) == WIDTH:
                self._waiting.pop().set()
            await turn.wait()
            reply = await self._model.request(request)
            if self._waiting:
                self._waiting.pop().set()
            return reply
        return await self._model.request(request)


async def test_children_of_one_message_are_told_what_the_same_call_was_told_before(
    lab: Lab,
) -> None:
    told: dict[str, int] = {}

    def respond(request: ModelRequest) -> str:
        if request.first_user_text == "root":
            return ROOT
        number = told.setdefault(request.session_id, len(told))
        return cell("n = 1") if request.ordinal == 0 else cell(f"FINAL({number})")

    runtime = await lab.open(respond)
    session = await runtime.start(max_fanout=WIDTH)
    first = await session.send("root")
    assert isinstance(first, holdfast.Final)
    assert sorted(first.value) == list(range(WIDTH))

    model: Any = Backwards(await recorded_model(lab.store, session.id))
    async with holdfast.open(MemorySessionStore(), model=model) as again:
        other = await again.start(max_fanout=WIDTH)
        second = await other.send("root")
    assert isinstance(second, holdfast.Final)
    assert second.value == first.value
    assert other.id != session.id
