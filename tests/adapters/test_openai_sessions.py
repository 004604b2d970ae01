"""A conversation of the OpenAI Agents SDK in a session of ours, run by the SDK's own runner."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from agents import Agent, RunConfig, Runner, function_tool
from agents.items import ModelResponse
from agents.memory import Session
from agents.models.interface import Model
from agents.usage import Usage
from openai.types.responses import (
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
)

import holdfast
from holdfast.adapters.openai_agents import AGENT, HoldfastSession


class Scripted(Model):
    """A model of the SDK that answers from a list."""

    def __init__(self, *replies: Any) -> None:
        self.replies = list(replies)
        self.heard: list[Any] = []

    async def get_response(self, *arguments: Any, **options: Any) -> Any:
        self.heard.append(options["input"])
        reply = self.replies.pop(0)
        output = reply if not isinstance(reply, str) else text(reply)
        return ModelResponse(output=[output], usage=Usage(), response_id=None)

    def stream_response(self, *arguments: Any, **options: Any) -> Any:
        raise NotImplementedError


def text(said: str) -> ResponseOutputMessage:
    part = ResponseOutputText(text=said, type="output_text", annotations=[])
    return ResponseOutputMessage(
        id="m", type="message", role="assistant", status="completed", content=[part]
    )


QUIET = RunConfig(tracing_disabled=True)


async def test_a_conversation_goes_on_after_a_restart(tmp_path: Path) -> None:
    async with holdfast.open(tmp_path, agents=[AGENT]) as runtime:
        session = HoldfastSession("User 7", runtime)
        assert isinstance(session, Session)
        agent = Agent("helper", model=Scripted("hello Ann"))
        await Runner.run(agent, "I am Ann", session=session, run_config=QUIET)
    async with holdfast.open(tmp_path, agents=[AGENT]) as runtime:
        session = HoldfastSession("User 7", runtime)
        model = Scripted("you are Ann")
        again = Agent("helper", model=model)
        result = await Runner.run(again, "who am I?", session=session, run_config=QUIET)
        assert result.final_output == "you are Ann"
        assert model.heard[0][0].get("content") == "I am Ann"
        assert len(await session.get_items()) == 4
        assert (await session.get_items(2))[0].get("content") == "who am I?"
        assert (await holdfast.verify(runtime.store, session.session.id)).ok


async def test_items_that_are_popped_or_cleared_are_retracted_and_stay_in_the_log() -> None:
    async with holdfast.open("memory:", agents=[AGENT]) as runtime:
        session = HoldfastSession("t", runtime)
        await session.add_items([{"role": "user", "content": str(n)} for n in range(6)])
        popped = await asyncio.gather(*(session.pop_item() for _ in range(3)))
        assert sorted(item["content"] for item in popped) == ["3", "4", "5"]  # type: ignore[index]
        assert [item["content"] for item in await session.get_items()] == ["0", "1", "2"]  # type: ignore[typeddict-item]
        await session.clear_session()
        await session.clear_session()
        assert await session.get_items() == []
        assert await session.pop_item() is None
        put = [
            e
            for e in await runtime.store.read_events(session.session.id, limit=1000)
            if e.type == "record.put" and e.data.get("value")
        ]
        assert len(put) == 6


async def test_a_run_that_waits_for_approval_is_kept_and_resumed_once(tmp_path: Path) -> None:
    ran: list[str] = []

    @function_tool(needs_approval=True)
    def pay(amount: str) -> str:
        ran.append(amount)
        return "paid"

    call = ResponseFunctionToolCall(
        type="function_call", name="pay", arguments='{"amount": "5"}', call_id="c1", id="f1"
    )
    async with holdfast.open(tmp_path, agents=[AGENT]) as runtime:
        session = HoldfastSession("t", runtime)
        agent = Agent("payer", model=Scripted(call), tools=[pay])
        result = await Runner.run(agent, "pay 5", session=session, run_config=QUIET)
        assert len(result.interruptions) == 1
        await session.keep_run(result.to_state())
    assert ran == []
    async with holdfast.open(tmp_path, agents=[AGENT]) as runtime:
        session = HoldfastSession("t", runtime)
        agent = Agent("payer", model=Scripted("done"), tools=[pay])
        state = await session.take_run(agent)
        assert state is not None
        assert await session.take_run(agent) is None
        state.approve(state.get_interruptions()[0])
        result = await Runner.run(agent, state, session=session, run_config=QUIET)
        assert result.final_output == "done"
    assert ran == ["5"]


async def test_a_conversation_of_2000_items_is_stored_once(tmp_path: Path) -> None:
    async with holdfast.open(tmp_path, agents=[AGENT]) as runtime:
        session = HoldfastSession("t", runtime)
        for start in range(0, 2000, 50):
            await session.add_items(
                [{"role": "user", "content": f"{start + n:0>200}"} for n in range(50)]
            )
        assert len(await session.get_items()) == 2000
        assert [i["content"] for i in await session.get_items(1)] == [f"{1999:0>200}"]  # type: ignore[typeddict-item]
    assert size_of(tmp_path) < 6 * 2000 * 200


def size_of(place: Path) -> int:
    return sum(file.stat().st_size for file in place.rglob("*") if file.is_file())


def test_the_adapter_says_which_extra_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib
    import sys

    import holdfast.adapters.openai_agents as adapter

    monkeypatch.setitem(sys.modules, "agents", None)
    with pytest.raises(holdfast.errors.HoldfastError, match=r"holdfast\[openai-agents\]"):
        importlib.reload(adapter)
    monkeypatch.undo()
    importlib.reload(adapter)
