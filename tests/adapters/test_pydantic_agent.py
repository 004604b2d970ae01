"""Agents of pydantic-ai made durable: killed for real, approved later, streamed, with a history."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent, ModelRetry, RunContext
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.toolsets import FunctionToolset

import holdfast
from holdfast.adapters.pydantic_ai import AGENT, HoldfastAgent, RunSuspended, toolset_from
from holdfast.errors import InvalidInput

PROGRAM = """
import asyncio, os, signal, sys
from pydantic_ai import Agent
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel
import holdfast
from holdfast.adapters.pydantic_ai import AGENT, HoldfastAgent

die_at = sys.argv[1]

def witness(what):
    with open("witness", "a") as file:
        file.write(what + "\\n")
    if what == die_at and open("witness").read().split().count(what) == 1:
        os.kill(os.getpid(), signal.SIGKILL)

def model(messages, info):
    count = len(messages) // 2
    witness(f"ask{count}")
    if count == 0:
        return ModelResponse(parts=[ToolCallPart("charge", {"cents": 5}), ToolCallPart("look", {})])
    if count == 1:
        return ModelResponse(parts=[ToolCallPart("look", {})])
    return ModelResponse(parts=[TextPart("done")])

agent = Agent(FunctionModel(model))

@agent.tool_plain
def charge(cents: int) -> int:
    witness("charge")
    return cents

@agent.tool_plain(metadata={"effect": "idempotent"})
def look() -> str:
    witness("look")
    return "seen"

async def main():
    async with holdfast.open("store", agents=[AGENT]) as runtime:
        durable = HoldfastAgent(agent, runtime)
        result = await durable.run("go", conversation_id="c", run_id="r")
        parts = [part for m in result.all_messages() for part in m.parts]
        told = [str(p.content) for p in parts if p.part_kind == "tool-return"]
        print(result.output, *told, sep="|")

asyncio.run(main())
"""


def run_program(folder: Path, die_at: str) -> subprocess.CompletedProcess[str]:
    (folder / "program.py").write_text(PROGRAM)
    return subprocess.run(
        [sys.executable, "program.py", die_at], cwd=folder, capture_output=True, text=True
    )


@pytest.mark.parametrize(
    ("die_at", "twice"),
    [
        pytest.param("ask0", {"ask0"}, marks=pytest.mark.soak),
        ("charge", set()),
        pytest.param("look", {"look"}, marks=pytest.mark.soak),
        ("ask2", {"ask2"}),
    ],
)
def test_a_killed_run_asks_and_does_nothing_again_that_is_recorded(tmp_path, die_at, twice) -> None:
    assert run_program(tmp_path, die_at).returncode == -signal.SIGKILL
    again = run_program(tmp_path, "never")
    assert again.returncode == 0, again.stderr
    assert again.stdout.startswith("done|")
    seen = (tmp_path / "witness").read_text().split()
    assert seen.count("charge") <= 1
    for what in ("ask0", "ask1", "ask2"):
        assert seen.count(what) == (2 if what in twice else 1)
    if die_at == "charge":
        assert "whether it took effect is unknown" in again.stdout
    third = run_program(tmp_path, "never")  # it has ended: all is answered from the log
    assert third.stdout == again.stdout
    assert (tmp_path / "witness").read_text().split() == seen


@pytest.fixture
async def runtime() -> Any:
    async with holdfast.open("memory://", agents=[AGENT]) as opened:
        yield opened


class Shop:
    """An agent that pays, by approval, and asks a client for the address."""

    def __init__(self) -> None:
        self.asked = 0
        self.paid: list[int] = []
        self.agent = Agent(FunctionModel(self.respond, stream_function=self.stream), deps_type=str)
        self.agent.tool_plain(self.pay, requires_approval=True)

    def respond(self, messages: Any, info: Any) -> ModelResponse:
        self.asked += 1
        last = messages[-1].parts[-1]
        if isinstance(last, ToolReturnPart):
            return ModelResponse(parts=[TextPart(f"told {last.content}")])
        return ModelResponse(parts=[ToolCallPart("pay", {"cents": 5})])

    async def stream(self, messages: Any, info: Any) -> Any:
        self.asked += 1
        for word in ("one ", "two ", "three"):
            yield word

    def pay(self, cents: int) -> int:
        self.paid.append(cents)
        return cents


@pytest.mark.parametrize(
    ("said", "told", "paid"),
    [
        (holdfast.Approve(), "told 5", [5]),
        (holdfast.Approve({"cents": 3}), "told 3", [3]),
        (holdfast.Deny("too much"), "told pay: too much", []),
    ],
)
async def test_an_approval_suspends_the_run_until_it_is_given(runtime, said, told, paid) -> None:
    shop = Shop()
    durable = HoldfastAgent(shop.agent, runtime)
    for _ in range(2):
        with pytest.raises(RunSuspended) as suspended:
            await durable.run("buy", conversation_id="c", run_id="r", deps="me")
    (call,) = suspended.value.calls
    assert await durable.unfinished("c") == [("r", "buy")]
    await durable.session("c").answer(call, said)
    result = await HoldfastAgent(shop.agent, runtime).resume("c", deps="me")
    assert result.output == told
    assert shop.paid == paid
    assert shop.asked == 2
    assert await durable.resume("c") is None


async def test_external_tools_wait_for_a_client(runtime) -> None:
    from pydantic_ai.exceptions import CallDeferred

    def respond(messages: Any, info: Any) -> ModelResponse:
        last = messages[-1].parts[-1]
        if isinstance(last, ToolReturnPart):
            return ModelResponse(parts=[TextPart(f"it is {last.content}")])
        return ModelResponse(parts=[ToolCallPart("where", {"who": "ann"})])

    agent = Agent(FunctionModel(respond))

    @agent.tool_plain
    def where(who: str) -> str:
        raise CallDeferred

    durable = HoldfastAgent(agent, runtime)
    with pytest.raises(RunSuspended) as suspended:
        await durable.run("go", conversation_id="c", run_id="r")
    await durable.session("c").answer(suspended.value.calls[0], "Rome")
    assert (await durable.resume("c")).output == "it is Rome"


async def test_earlier_runs_are_the_history_of_the_next(runtime) -> None:
    seen: list[int] = []

    def respond(messages: Any, info: Any) -> ModelResponse:
        seen.append(len(messages))
        return ModelResponse(parts=[TextPart("ok")])

    durable = HoldfastAgent(Agent(FunctionModel(respond)), runtime)
    await durable.run("one", conversation_id="c", run_id="1")
    await durable.run("two", conversation_id="c", run_id="2")
    assert (await durable.run("one", conversation_id="c", run_id="1")).output == "ok"
    assert seen == [1, 3]
    assert len(await durable.messages("c")) == 4
    with pytest.raises(InvalidInput, match="another prompt"):
        await durable.run("three", conversation_id="c", run_id="1")
    with pytest.raises(InvalidInput, match="conversation_id"):
        await durable.run("four")
    assert (await holdfast.verify(runtime.store, durable.session("c").id)).ok


async def test_tokens_are_streamed_and_a_replay_does_not_ask_again(runtime) -> None:
    shop = Shop()
    durable = HoldfastAgent(shop.agent, runtime)
    for first in (True, False):
        async with durable.run_stream("x", conversation_id="c", run_id="r", deps="me") as stream:
            chunks = [text async for text in stream.stream_text(delta=True, debounce_by=None)]
        assert "".join(chunks) == "one two three"
        assert not first or len(chunks) == 3
    assert shop.asked == 1


async def test_failures_of_provider_and_tool_are_told_apart(runtime) -> None:
    asked = []

    def respond(messages: Any, info: Any) -> ModelResponse:
        asked.append(len(messages))
        if len(asked) == 1:
            raise ModelHTTPError(503, "busy")
        if len(messages) < 5:
            return ModelResponse(parts=[ToolCallPart("pick", {"number": len(messages)})])
        return ModelResponse(parts=[TextPart("done")])

    agent = Agent(FunctionModel(respond))
    picked = []

    @agent.tool_plain(retries=3)
    def pick(number: int) -> int:
        picked.append(number)
        if number == 1:
            raise ModelRetry("not one")
        return number

    durable = HoldfastAgent(agent, runtime)
    with pytest.raises(ModelHTTPError):
        await durable.run("x", conversation_id="c", run_id="r")
    for _ in range(2):
        result = await durable.run("x", conversation_id="c", run_id="r")
        assert result.output == "done"
    assert picked == [1, 3]
    assert len(asked) == 4


async def test_a_toolset_is_a_tool_source(caplog) -> None:
    caplog.set_level(logging.WARNING, "holdfast.adapters.pydantic_ai")
    tools: FunctionToolset[int] = FunctionToolset()

    @tools.tool(metadata={"effect": "pure"})
    def add(ctx: RunContext[int], a: int, b: int = 2) -> int:
        """Add numbers."""
        return a + b + ctx.deps

    @tools.tool_plain(requires_approval=True)
    def pay(cents: int) -> str:
        """Pay."""
        return f"paid {cents}"

    made = await toolset_from(tools, "shop", deps=100)
    assert [(tool.name, tool.effect, tool.approval) for tool in made.tools] == [
        ("add", "pure", False),
        ("pay", "once", True),
    ]
    assert "pay count as effect 'once'" in caplog.messages[0]
    reply = (
        "```python\nimport shop\nx = shop.add(1)\nFINAL([x, shop.add(a=1, b=5), shop.pay(7)])\n```"
    )
    agent = holdfast.Agent(
        tools=[made],
        model=holdfast.ScriptedModel(lambda request: reply),
        settings={"kernel": "monty"},
    )
    async with holdfast.open("memory://", agents=[agent]) as runtime:
        session = await runtime.start()
        await session.send("go", key="k")
        (call,) = await session.open_calls()
        await session.answer(call.call_id, holdfast.Approve())
        await runtime.settled()
        assert (await session.result("k")).unwrap() == [103, 106, "paid 7"]
