"""Replies that come together are stored a few at a time, and none of them is lost by waiting."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import holdfast
from holdfast.core.facts import StepPut
from holdfast.models.port import ModelRequest
from holdfast.models.scripted import ScriptedModel
from holdfast.runtime.runtime import REPLIES_AT_ONCE
from holdfast.stores.memory.store import MemorySessionStore
from holdfast.stores.port import Appended

from .conftest import cell

MANY = 3 * REPLIES_AT_ONCE


class SlowReplies(MemorySessionStore):
    """A store that holds back replies until it is told to go on."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = asyncio.Event()
        self.full = asyncio.Event()
        self.held = self.most = 0

    async def append(self, lease: Any, after: int, facts: Any, **options: Any) -> Appended:
        if any(isinstance(fact, StepPut) for fact in facts):
            self.held += 1
            self.most = max(self.most, self.held)
            if self.held == REPLIES_AT_ONCE:
                self.full.set()
            await self.go_on.wait()
            self.held -= 1
        return await super().append(lease, after, facts, **options)


def together(count: int) -> tuple[ScriptedModel, list[ModelRequest]]:
    """Return a model that answers nobody before so many have asked, and what it was asked."""
    asked: list[ModelRequest] = []
    all_there = asyncio.Event()

    async def respond(request: ModelRequest) -> str:
        asked.append(request)
        if len(asked) == count:
            all_there.set()
        await all_there.wait()
        return cell("FINAL(1)")

    return ScriptedModel(respond), asked


async def test_replies_that_come_together_are_stored_a_few_at_a_time() -> None:
    store = SlowReplies()
    model, _ = together(MANY)
    async with await holdfast.open(store, model=model) as runtime:
        sessions = [await runtime.start() for _ in range(MANY)]
        work = asyncio.gather(*(session.send("go") for session in sessions))
        await store.full.wait()
        store.go_on.set()
        results = await work
    assert all(isinstance(result, holdfast.Final) for result in results)
    assert store.most == REPLIES_AT_ONCE


async def test_a_reply_that_waits_for_its_turn_when_its_send_is_cancelled_is_stored() -> None:
    store = SlowReplies()
    model, asked = together(MANY)
    async with await holdfast.open(store, model=model) as runtime:
        sessions = [await runtime.start() for _ in range(MANY)]
        tasks = [asyncio.ensure_future(session.send("go")) for session in sessions]
        await store.full.wait()
        for task in tasks:
            task.cancel()
        store.go_on.set()
        for task in tasks:
            with pytest.raises(asyncio.CancelledError):
                await task
        for session in sessions:
            assert isinstance(await session.resume(), holdfast.Final)
    assert len(asked) == MANY
