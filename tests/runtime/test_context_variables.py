"""Context variables of the caller are seen wherever a turn runs code of the embedder."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

import pytest

import holdfast
from holdfast import Agent, CallContext, ScriptedModel, tool
from holdfast.core.messages import assistant
from holdfast.models.port import ModelRequest

from .conftest import Lab, cell
from .test_tools_harness import wish

caller: ContextVar[str] = ContextVar("caller", default="nobody")


def program() -> tuple[Agent[Any], dict[str, list[str]]]:
    """Return an agent whose model and tools note who calls them, and what they noted."""
    seen: dict[str, list[str]] = {}

    def note(what: str) -> None:
        seen.setdefault(what, []).append(caller.get())

    @tool
    def in_a_thread() -> str:
        """Run where blocking code runs."""
        note("tool in a thread")
        return caller.get()

    @tool
    async def in_the_loop() -> str:
        """Run where the turn is driven."""
        note("tool in the loop")
        return caller.get()

    code = """
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(2) as pool:
    leaves = list(pool.map(lm, ['a', 'b']))
found = [in_a_thread(), in_the_loop(), map_lm(['c'])[0], rlm('child')['value'], *leaves]
FINAL(found)
"""
    below = cell("FINAL([in_a_thread(), lm('d')])")

    async def respond(request: ModelRequest) -> str:
        task = "child" if request.first_user_text == "child" else "root"
        note(f"{request.purpose} of {task}")
        if request.purpose == "leaf":
            return caller.get()
        return below if task == "child" else cell(code)

    model = ScriptedModel(respond, name="noting")
    return Agent(model=model, tools=[in_a_thread, in_the_loop]), seen


async def test_leaves_children_and_tool_threads_of_a_turn_see_the_variables_of_its_sender(
    lab: Lab,
) -> None:
    agent, seen = program()
    runtime = await lab.open(None, agents=[agent])
    session = await runtime.start()
    for name in ("alice", "bob"):  # the second turn finds everything warm
        caller.set(name)
        result = await session.send("root")
        assert isinstance(result, holdfast.Final), result
        assert result.value == [name, name, name, [name, name], name, name]
        assert {who for notes in seen.values() for who in notes} == {name}, seen
        assert set(seen) == {
            *("step of root", "leaf of root", "step of child", "leaf of child"),
            *("tool in a thread", "tool in the loop"),
        }
        seen.clear()


async def test_native_tool_calls_and_agents_among_tools_see_them_too(lab: Lab) -> None:
    seen: list[str] = []

    def look() -> str:
        """Look."""
        seen.append(caller.get())
        return "looked"

    def respond(request: ModelRequest) -> Any:
        seen.append(caller.get())
        if request.ordinal:
            return "done"
        if request.first_user_text == "below":
            return assistant(wish("look"))
        return assistant(wish("look", 1), wish("helper", 2, task="below"))

    helper = Agent("helper", harness="tools", tools=[look])
    agent = Agent("lead", harness="tools", tools=[helper, look])
    runtime = await lab.open(respond, agents=[agent])
    for name in ("alice", "bob"):
        caller.set(name)
        assert (await (await runtime.start()).send("above")).status == "final"
    assert seen == ["alice"] * 6 + ["bob"] * 6


@pytest.mark.parametrize("kernel", ["cpython", "monty"])
async def test_a_scope_reaches_the_tools_of_grandchildren(lab: Lab, kernel: str) -> None:
    seen: list[tuple[str, str]] = []

    @tool(needs_scope=True)
    def pay(context: CallContext) -> str:
        """Pay."""
        seen.append((context.session, context.scope))
        return "paid"

    scripts = {
        "root": "FINAL([pay(), rlm('one')['value']])",
        "one": "FINAL([pay(), rlm('two')['value']])",
        "two": "FINAL(pay())",
    }
    agent = Agent(tools=[pay])
    runtime = await lab.open(lambda r: cell(scripts[r.first_user_text]), agents=[agent])
    session = await runtime.start(kernel=kernel)
    result = await session.send("root", scope="alice")
    assert isinstance(result, holdfast.Final), result
    assert result.value == ["paid", ["paid", "paid"]]
    assert len({place for place, _ in seen}) == 3
    assert {who for _, who in seen} == {"alice"}
