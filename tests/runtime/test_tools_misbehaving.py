"""Tools that exit, print, return what cannot be stored, or raise after their effect."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from typing import Any

import pytest

import holdfast
from holdfast import Agent, ScriptedModel, tool
from holdfast.core.messages import ToolCall, assistant
from holdfast.stores.memory.store import MemorySessionStore
from holdfast.stores.verify import verify

EFFECTS: list[str] = []


@tool
def leave() -> str:
    """Leave."""
    sys.exit("bye")


@tool
async def leave_loop() -> str:
    """Leave the event loop."""
    raise SystemExit(7)


@tool
def cancel() -> str:
    """Raise what cancels tasks."""
    raise asyncio.CancelledError("inside")


@tool
def stop_iteration() -> str:
    """Raise what ends generators."""
    raise StopIteration(3)


@tool
def unstorable() -> Any:
    """Return what no store keeps."""
    return threading.Lock()


@tool
def endless() -> Any:
    """Return what contains itself."""
    found: list[Any] = []
    found.append(found)
    return found


@tool
def late() -> str:
    """Take effect, and fail."""
    EFFECTS.append("sent")
    raise ConnectionError("after the effect")


@tool
def loud() -> str:
    """Print."""
    print("to the screen")
    print("to the errors", file=sys.stderr)
    return "quiet"


TOLD = {
    "leave": "error: RuntimeError: the function raised SystemExit(bye)",
    "leave_loop": "error: RuntimeError: the function raised SystemExit(7)",
    "cancel": "error: RuntimeError: the function raised CancelledError(inside)",
    "stop_iteration": "error: RuntimeError: the function raised StopIteration(3)",
    "unstorable": "error: TypeError: unstorable returned what cannot be kept",
    "endless": "error: TypeError: endless returned what cannot be kept",
    "late": "error: ConnectionError: after the effect",
    "loud": "quiet",
}
TOOLS = [leave, leave_loop, cancel, stop_iteration, unstorable, endless, late, loud]


@pytest.mark.parametrize("name", TOLD)
async def test_a_tool_that_misbehaves_is_a_result_and_its_neighbours_are_not_harmed(name: str):
    def respond(request: Any) -> Any:
        if request.ordinal == 0:
            return assistant(ToolCall("a", name, "{}"), ToolCall("b", "loud", "{}"))
        return json.dumps([part.content[0].text for part in request.messages[-1].parts])

    EFFECTS.clear()
    agent = Agent(harness="tools", model=ScriptedModel(respond), tools=TOOLS)
    store = MemorySessionStore()
    async with holdfast.open(store, agents=[agent]) as runtime:
        session = await runtime.start(agent=agent)
        first, second = json.loads((await session.send("go")).unwrap())
        assert first.startswith(TOLD[name])
        assert second == "quiet"
        assert (await verify(store, session.id)).ok
    assert (["sent"] if name == "late" else []) == EFFECTS


@pytest.mark.parametrize("name", [name for name in TOLD if name != "loud"])
async def test_code_can_catch_what_a_tool_does_wrong(name: str):
    code = f"try:\n    {name}()\nexcept Exception as error:\n    FINAL(str(error))"
    model = ScriptedModel(lambda request: f"```python\n{code}\n```")
    agent = Agent(model=model, tools=TOOLS)
    async with holdfast.open(MemorySessionStore(), agents=[agent]) as runtime:
        session = await runtime.start(agent=agent)
        told = (await session.send("go")).unwrap()
        assert TOLD[name].split(": ", 2)[2] in told
