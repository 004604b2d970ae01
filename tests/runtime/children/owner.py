"""A process that drives a session whose reply asks a person while a tool of it is running.

The tool `hold` tells that it began, waits until there is a file named `go`, and returns; `leave`
ends the process with its effect done. What the session is driven with is used by the tests, too.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path
from typing import Any

import holdfast
from holdfast.core.messages import ToolCall, assistant
from holdfast.models.port import ModelRequest
from holdfast.models.scripted import ScriptedModel
from holdfast.runtime.tools import make_tool

SESSION = "owned"


def agent(folder: Path, *wishes: str) -> holdfast.Agent[Any]:
    def hold() -> str:
        (folder / "begun").touch()
        while not (folder / "go").exists():
            time.sleep(0.01)
        return "held"

    def which() -> str:
        """Which one?"""
        raise AssertionError("a person answers")

    def leave() -> str:
        with (folder / "effects").open("ab", buffering=0) as file:
            file.write(b"left\n")
        os._exit(3)

    def respond(request: ModelRequest) -> Any:
        if request.ordinal == 0:
            return assistant(*(ToolCall(f"x-{name}", name, "{}") for name in wishes))
        return " ".join(part.content[0].text for part in request.messages[-1].parts)  # type: ignore

    return holdfast.Agent(
        name="owner",
        harness="tools",
        model=ScriptedModel(respond, name="owner"),
        tools=[
            make_tool(hold, effect="idempotent"),
            make_tool(which, executor="human"),
            make_tool(leave),
        ],
    )


async def main(url: str, folder: Path, wishes: list[str]) -> None:
    async with holdfast.open(url, agents=[agent(folder, *wishes)]) as runtime:
        session = await runtime.start(session_id=SESSION, agent="owner")
        await session.send("go")
        await runtime.settled()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:]))
