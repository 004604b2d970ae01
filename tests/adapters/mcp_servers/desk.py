"""An MCP server for tests: over stdio, or over HTTP at the port that is named."""

import os
import signal
import sys
from pathlib import Path
from typing import Annotated, Any

from mcp.server import MCPServer
from mcp.server.mcpserver import Context, Elicit, ElicitationResult, Resolve
from mcp_types import ToolAnnotations
from pydantic import BaseModel

server = MCPServer("desk", instructions="Mind the desk.")


def note(witness: str) -> None:
    with open(witness, "a") as file:
        file.write("x")


class Sure(BaseModel):
    sure: bool


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def add(a: int, b: int = 2) -> int:
    """Add two numbers."""
    return a + b


@server.tool(annotations=ToolAnnotations(idempotent_hint=True, destructive_hint=False))
def whoami() -> dict[str, Any]:
    """Tell about the process."""
    return {
        "pid": os.getpid(),
        "group": os.getpgid(0),
        "environment": sorted(os.environ),
    }


@server.tool(annotations=ToolAnnotations(destructive_hint=True))
def fails(why: str) -> str:
    """Fail."""
    from mcp.server.mcpserver.exceptions import ToolError

    raise ToolError(f"no: {why}")


@server.tool(name="die-first")
def die_first(witness: str) -> int:
    """Note the call, and die where it is the first."""
    note(witness)
    if len(Path(witness).read_text()) == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return len(Path(witness).read_text())


async def may(path: str) -> Elicit[Sure]:
    return Elicit(f"Remove {path}?", Sure)


@server.tool()
async def remove(
    path: str, witness: str, answer: Annotated[ElicitationResult[Sure], Resolve(may)]
) -> str:
    """Remove a file if someone agrees."""
    note(witness)
    sure = answer.action == "accept" and answer.data.sure
    return f"{path} {answer.action} {sure}"


@server.tool()
async def asks_at_once(context: Context) -> str:
    """Ask in mid-call, as older servers do."""
    said = await context.elicit("Really?", Sure)
    return f"it was {said.action}"


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
    else:
        server.run()
