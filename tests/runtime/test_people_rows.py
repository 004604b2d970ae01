"""States in which a turn with people and tools is left, and how it goes on from each."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import Any

import pytest

import holdfast
from holdfast import Agent, CallContext, ScriptedModel, tool
from holdfast.core.errors import AnswerRefused, AnswerStale, CallNotFound, InboxConsumed
from holdfast.core.messages import ToolCall, assistant
from holdfast.runtime.answers import Approve, Fail
from holdfast.stores.memory.store import MemorySessionStore
from holdfast.stores.port import PendingFilter, SessionStore, Transient
from holdfast.testing.faults import DyingStore

from .conftest import Lab, cell


@tool(executor="client", approval=True)
def show(page: str) -> str:
    """Show a page."""
    return ""


@tool(executor="human")
def which() -> str:
    """Which one?"""
    return ""


def served(*wishes: ToolCall, tools: Any = (show, which)) -> Agent[Any]:
    """Return an agent that makes some calls and answers with their results."""

    def respond(request: Any) -> Any:
        if request.ordinal == 0:
            return assistant(*wishes)
        shown = [
            part.content[0].text
            for message in request.messages
            for part in message.parts
            if hasattr(part, "content")
        ]
        said = [m.text for m in request.messages if m.role == "user"][1:]
        return json.dumps([*shown, *said])

    return Agent("rows", harness="tools", model=ScriptedModel(respond, name="m"), tools=tools)


async def begun(store: SessionStore, agent: Agent[Any]) -> str:
    async with holdfast.open(store, agents=[agent]) as runtime:
        session = await runtime.start(agent=agent)
        assert isinstance(await session.send("go"), holdfast.Suspended)
        return session.id


async def test_a_gated_client_call_comes_back_in_the_phase_that_it_was_in() -> None:
    store, agent = MemorySessionStore(), served(ToolCall("x", "show", '{"page": "home"}'))
    session = await begun(store, agent)
    for said, kind, after in ((Approve(), "approval", "client"), ("shown", "client", None)):
        async with holdfast.open(store, agents=[agent]) as runtime:
            (wait,) = (await runtime.pending()).waits
            assert wait.kind == kind
            if kind == "client":
                with pytest.raises(AnswerRefused, match="waits for a value"):
                    await runtime.answer(session, wait.call_id, Approve())
            await runtime.answer(session, wait.call_id, said)
            await runtime.settled()
            left = [one.kind for one in (await runtime.pending()).waits]
            assert left == ([] if after is None else [after])
    (put,) = await store.read_events(session, types=["turn.put"])
    assert put.fact().final.value() == '["shown"]'  # type: ignore[attr-defined]


@pytest.mark.parametrize("appends", range(8))
async def test_a_message_that_steers_is_shown_once_wherever_its_driver_ended(appends: int) -> None:
    store, agent = MemorySessionStore(), served(ToolCall("x", "which", "{}"))
    session = await begun(store, agent)
    dying = DyingStore(store.database, appends)
    runtime = await holdfast.open(dying, agents=[agent])
    try:
        await runtime.send(session, "hurry", when_busy="steer", key="k")
        await runtime.answer(session, "t1.0", "left")
        await runtime.settled()
        await runtime.resume(session)
    except BaseException:
        assert appends < 8
    dying.bury()
    await runtime.close()
    async with holdfast.open(store, agents=[agent]) as again:
        with suppress(InboxConsumed):  # it is in the log, of the turn that is open
            await again.send(session, "hurry", when_busy="steer", key="k")
        for wait in (await again.pending()).waits:
            await again.answer(session, wait.call_id, "left")
        await again.settled()
        await again.resume(session)
        told = [m.message.text for m in await again.session(session).messages()]
        assert told.count("hurry") == 1
        assert (await again.state(session)).status == "idle"
        told_again = await again.send(session, "hurry", when_busy="steer", key="k")
        assert isinstance(told_again, holdfast.Final)


async def test_every_wrong_answer_is_typed_and_changes_nothing() -> None:
    store, agent = MemorySessionStore(), served(ToolCall("x", "which", "{}"))
    session, other = await begun(store, agent), await begun(store, agent)
    async with holdfast.open(store, agents=[agent]) as runtime:
        before = (await runtime.state(session)).seq
        for call, wait, error in (
            ("t9.9", None, CallNotFound),  # unknown
            ("t1.0", 7, AnswerStale),  # of another wait
        ):
            with pytest.raises(error):
                await runtime.answer(session, call, "left", wait=wait)
        assert (await runtime.state(session)).seq == before
        await runtime.answer(session, "t1.0", "left")
        await runtime.settled()
        with pytest.raises((AnswerStale, CallNotFound)):
            await runtime.answer(session, "t1.0", "right")
        assert (await runtime.state(other)).status == "suspended"
        await runtime.answer(other, "t1.0", Fail("nobody knows"))
        await runtime.settled()
        assert (await runtime.turns(other))[-1].status == "final"


async def test_progress_of_a_tool_is_live_only_and_ends_with_its_call() -> None:
    heard: list[Any] = []
    contexts: list[CallContext] = []

    @tool
    def load(context: CallContext) -> str:
        """Load."""
        contexts.append(context)
        context.progress({"done": 1, "of": 2})
        return "loaded"

    store = MemorySessionStore()
    agent = served(ToolCall("x", "load", "{}"), tools=[load])
    async with holdfast.open(store, agents=[agent]) as runtime:
        session = await runtime.start(agent=agent)

        async def listen() -> None:
            async with session.subscribe() as items:
                async for item in items:
                    if isinstance(item, Transient) and item.kind == "tool.progress":
                        heard.append(item.data)
                    if getattr(item, "type", "") == "turn.put":
                        return

        listening = asyncio.ensure_future(listen())
        await asyncio.sleep(0)
        await session.send("go")
        contexts[0].progress("too late")
        await asyncio.wait_for(listening, 20)
    assert heard == [{"call": "t1.0", "tool": "load", "data": {"done": 1, "of": 2}}]
    assert "too late" not in repr(await store.read_events(session.id))


async def test_only_a_child_answers_for_a_child_and_its_question_reaches_people(lab: Lab) -> None:
    def respond(request: Any) -> str:
        if request.first_user_text.startswith("which"):
            return cell("FINAL(ask('Which port?'))")
        return cell("FINAL('to ' + rlm('which port')['value'])")

    runtime = await lab.open(respond)
    session = await runtime.start()
    result = await session.send("go")
    assert isinstance(result, holdfast.Suspended)
    (wait,) = (await runtime.pending()).waits
    assert (wait.kind, wait.session == session.id) == ("question", False)
    (above,) = (await runtime.pending(PendingFilter(kind="child"))).waits
    with pytest.raises(AnswerRefused, match=f"waits for its child '{wait.session}'"):
        await session.answer(above.call_id, "Bergen")
    await runtime.answer(wait.session, wait.call_id, "Oslo")
    await runtime.settled()
    (put,) = await lab.facts(session.id, "turn.put")
    assert put.final.value() == "to Oslo"
