"""`holdfast mcp`: an MCP client of the SDK works sessions over stdio and over HTTP."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

AGENTS = """
import holdfast

@holdfast.tool(executor="human")
def colour() -> str:
    "Which colour?"

@holdfast.tool(approval=True)
def pay(cents: int) -> int:
    return cents

def respond(request):
    said = request.messages[-1]
    if said.role == "user" and "paint" in said.text:
        return holdfast_reply("colour", "{}")
    if said.role == "user" and "pay" in said.text:
        return holdfast_reply("pay", '{"cents": 5}')
    return "the harbour is quiet"

def holdfast_reply(name, arguments):
    from holdfast.core.messages import ToolCall, assistant
    return assistant(ToolCall("1", name, arguments))

AGENT = holdfast.Agent(
    "clerk", tools=[colour, pay], model=holdfast.ScriptedModel(respond), harness="tools"
)
"""


def command(folder: Path, *more: str) -> list[str]:
    (folder / "clerk.py").write_text(AGENTS)
    run = [sys.executable, "-m", "holdfast", "mcp", "--store", str(folder / "store")]
    return [*run, "--agents", "clerk:AGENT", *more]


async def called(client: Client, name: str, **arguments: Any) -> dict[str, Any]:
    result = await client.call_tool(name, arguments)
    assert not result.is_error, result
    return result.structured_content or {}


async def refused(client: Client, name: str, **arguments: Any) -> str:
    result = await client.call_tool(name, arguments)
    assert result.is_error
    return str(result.content[0].text)


async def works(client: Client, *, answers: bool) -> None:
    tools = {tool.name for tool in (await client.list_tools()).tools}
    reads = {"list_sessions", "show_session", "search_sessions", "list_pending"}
    writes = {"send_message", "fork_session"} | ({"answer_call"} if answers else set())
    assert tools == reads | writes
    first = await called(client, "send_message", message="what news?", agent="clerk", key="k")
    session = first["session"]
    assert "the harbour is quiet" in json.dumps(first)
    (listed,) = (await called(client, "list_sessions"))["sessions"]
    assert listed["id"] == session
    shown = json.dumps(await called(client, "show_session", session=session))
    assert "what news?" in shown
    found = (await called(client, "search_sessions", text="HARBOUR"))["found"]
    assert found[0]["session"] == session
    fork = (await called(client, "fork_session", session=session))["session"]
    uri = f"holdfast://sessions/{fork}/transcript"
    page = json.loads((await client.read_resource(uri)).contents[0].text)
    assert page["session"]["id"] == fork
    assert "session_not_found" in await refused(client, "show_session", session="nobody")
    assert "agent_missing" in await refused(client, "send_message", message="x", agent="other")

    await called(client, "send_message", message="paint it", session=fork)
    (wait,) = (await called(client, "list_pending"))["pending"]
    assert wait["session"] == fork
    if answers:
        about = {"session": fork, "call": wait["call"]}
        assert (await called(client, "answer_call", **about, value="red"))["answered"]
        paying = await called(client, "send_message", message="pay", session=session)
        waits = (await called(client, "list_pending", session=session))["pending"]
        said = await refused(
            client, "answer_call", session=session, call=waits[0]["call"], value=True
        )
        assert "answer_refused" in said
        assert paying["session"] == session


async def test_over_stdio(tmp_path) -> None:
    run = command(tmp_path)
    place = StdioServerParameters(command=run[0], args=run[1:], cwd=tmp_path)
    async with Client(place) as client:
        await works(client, answers=False)


@pytest.fixture
def served(tmp_path) -> Iterator[dict[str, str]]:
    run = command(tmp_path, "--http", "--port", "0", "--allow-answers", "--json")
    with subprocess.Popen(run, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())
        process.terminate()


async def test_over_http_with_a_token_and_answers(served) -> None:
    async with httpx2.AsyncClient() as bare:
        assert (await bare.post(served["url"], json={})).status_code == 401
    headers = {"Authorization": f"Bearer {served['token']}"}
    async with httpx2.AsyncClient(headers=headers, timeout=60) as http:
        async with Client(streamable_http_client(served["url"], http_client=http)) as client:
            await works(client, answers=True)


def test_another_address_has_to_be_allowed(tmp_path) -> None:
    run = command(tmp_path, "--http", "--host", "0.0.0.0", "--port", "0")
    done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode != 0
    assert "--allow-remote" in done.stderr
