"""MCP servers as tool sources: real servers over stdio and HTTP, killed in mid-call too."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.adapters.mcp import McpServer, McpServerFailed
from holdfast.core.messages import ToolCall, assistant
from holdfast.errors import CallFailed, CallWaits, InvalidInput
from holdfast.models.port import ModelRequest

DESK = Path(__file__).parent / "mcp_servers" / "desk.py"
PROGRAM = holdfast.Agent("program", external=True)


def stdio(name: str = "desk", **options: Any) -> McpServer:
    return McpServer(name, sys.executable, [str(DESK)], **options)


class WebServer:
    """The server over HTTP, which can be killed and started again at the same port."""

    def __init__(self) -> None:
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            self.port = found.getsockname()[1]
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    def start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(DESK), str(self.port)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        end = time.monotonic() + 30
        while time.monotonic() < end:
            try:
                socket.create_connection(("127.0.0.1", self.port)).close()
                return
            except OSError:
                time.sleep(0.05)
        raise AssertionError("the server did not start")

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()


@pytest.fixture
def web() -> Iterator[WebServer]:
    server = WebServer()
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def shared() -> Iterator[McpServer]:
    """One server for the tests that leave it alive: starting one takes a while."""
    with stdio(trusted=True) as server:
        yield server


@pytest.fixture
async def program() -> Any:
    async with holdfast.open("memory://", agents=[PROGRAM]) as runtime:
        yield runtime.session("s", agent=PROGRAM, create=True)


def tool(server: McpServer, name: str) -> holdfast.Tool:
    return next(item for item in server.toolset().tools if item.name == name)


async def test_a_model_and_a_cell_call_the_tools_of_a_server(shared) -> None:
    def respond(request: ModelRequest) -> Any:
        if request.ordinal == 0:
            wishes = [
                ToolCall("1", "desk__add", '{"a": 3}'),
                ToolCall("2", "desk__fails", '{"why": "x"}'),
            ]
            return assistant(*wishes)
        return str(request.messages[-1])

    tries = "try:\n    desk.fails('z')\nexcept Exception as error:\n    said = str(error)\n"
    reply = f"```python\nimport desk\n{tries}FINAL([desk.add(1), desk.add(a=1, b=5), said])\n```"
    desk = shared
    native = holdfast.Agent(
        "native", tools=[desk.toolset()], model=holdfast.ScriptedModel(respond), harness="tools"
    )
    coding = holdfast.Agent(
        "coding",
        tools=[desk.toolset()],
        model=holdfast.ScriptedModel(lambda request: reply, name="code"),
        settings={"kernel": "monty"},
    )
    async with holdfast.open("memory://", agents=[native, coding]) as runtime:
        said = await (await runtime.start(agent=native)).ask("go")
        assert "5" in said
        assert "McpToolFailed: Error executing tool fails: no: x" in said
        found = await (await runtime.start(agent=coding)).ask("go")
        assert found == [3, 6, "McpToolFailed: Error executing tool fails: no: z"]
    assert desk.toolset().prompt == "Mind the desk."


def test_hints_count_where_the_server_is_trusted(shared) -> None:
    effects = {item.name: item.effect for item in shared.offered()}
    assert effects["add"] == "pure"
    assert effects["whoami"] == "idempotent"
    assert effects["fails"] == effects["die_first"] == "once"


def test_without_trust_all_count_as_once_and_the_process_is_confined(monkeypatch, caplog) -> None:
    caplog.set_level(logging.WARNING, "holdfast.adapters.mcp")
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    with holdfast.open_sync("memory://", agents=[PROGRAM]) as runtime:
        with stdio(env={"DESK": "1"}, effects={"remove": "idempotent"}) as desk:
            effects = {item.name: (item.effect, item.why) for item in desk.offered()}
            session = runtime.session("s", agent=PROGRAM, create=True)
            about = session.call(tool(desk, "whoami"), key="1")
            assert desk.toolset().prompt == ""
    assert effects["add"] == ("once", "not declared")
    assert effects["remove"] == ("idempotent", "declared")
    (said,) = caplog.messages
    assert "add, whoami, fails, die-first, asks_at_once count as effect 'once'" in said
    assert "trusted=True" in said
    assert about["group"] == about["pid"] != os.getpid()
    assert "DESK" in about["environment"]
    assert "OPENAI_API_KEY" not in about["environment"]
    with pytest.raises(ProcessLookupError):
        os.kill(about["pid"], 0)


@pytest.mark.parametrize("transport", ["stdio", "http"])
async def test_a_once_call_that_lost_its_server_is_unknown(
    program, tmp_path, request, transport
) -> None:
    witness = tmp_path / "witness"
    web = request.getfixturevalue("web") if transport == "http" else None
    source = stdio() if web is None else McpServer("desk", url=web.url)
    async with source as desk:
        die = tool(desk, "die_first")
        for _ in range(2):  # the second is answered from the log
            with pytest.raises(CallFailed) as failed:
                await program.call(die, {"witness": str(witness)}, key="1")
            assert failed.value.outcome == "unknown"
        assert witness.read_text() == "x"
        if web is not None:
            web.stop()
            web.start()
        assert await program.call(die, {"witness": str(witness)}, key="2") == 2


async def test_an_idempotent_call_that_lost_its_server_is_made_again(program, tmp_path) -> None:
    witness = tmp_path / "witness"
    async with stdio(effects={"die-first": "idempotent", "whoami": "pure"}) as desk:
        first = await program.call(tool(desk, "whoami"), key="0")
        assert await program.call(tool(desk, "die_first"), {"witness": str(witness)}, key="1") == 2
        second = await program.call(tool(desk, "whoami"), key="2")
        os.kill(second["pid"], signal.SIGKILL)  # while nothing is under way
        third = await program.call(tool(desk, "whoami"), key="3")
    assert witness.read_text() == "xx"
    assert len({one["pid"] for one in (first, second, third)}) == 3


@pytest.mark.parametrize("restarted", [False, True], ids=["same server", "server started again"])
async def test_a_question_of_a_server_waits_for_a_person(tmp_path, restarted) -> None:
    witness = tmp_path / "witness"

    def respond(request: ModelRequest) -> Any:
        if request.ordinal == 0:
            arguments = json.dumps({"path": "a.txt", "witness": str(witness)})
            return assistant(ToolCall("1", "desk__remove", arguments))
        return str(request.messages[-1])

    async def opened(desk: McpServer) -> holdfast.Runtime:
        model = holdfast.ScriptedModel(respond)
        agent = holdfast.Agent("clerk", tools=[desk.toolset()], model=model, harness="tools")
        return await holdfast.open(tmp_path / "store", agents=[agent])

    desk = stdio()
    runtime = await opened(desk)
    session = await runtime.start()
    result = await session.send("go")
    assert isinstance(result, holdfast.Suspended)
    await runtime.close()
    if restarted:
        desk.close()
        desk = stdio()
    runtime = await opened(desk)
    (wait,) = (await runtime.pending()).waits
    prompt = await runtime.value(session.id, wait.prompt)
    assert (wait.kind, prompt["question"]) == ("question", "Remove a.txt?")
    with pytest.raises(InvalidInput):
        await runtime.answer(session.id, wait.call_id, {"sure": "perhaps"})
    await runtime.answer(session.id, wait.call_id, {"sure": True})
    await runtime.settled()
    (call,) = await runtime.calls(session.id)
    assert await runtime.value(session.id, call.result) == "a.txt accept True"
    assert witness.read_text() == "x"
    await runtime.close()
    desk.close()


async def test_whoever_declines_is_passed_on_to_the_server(shared, program, tmp_path) -> None:
    arguments = {"path": "a", "witness": str(tmp_path / "witness")}
    with pytest.raises(CallWaits) as waits:
        await program.call(tool(shared, "remove"), arguments, key="1")
    await program.answer(waits.value.call_id, holdfast.Deny("no"))
    said = await program.call(tool(shared, "remove"), arguments, key="1")
    assert said == "a decline False"


async def test_a_question_that_cannot_wait_is_a_typed_outcome(program) -> None:
    async with stdio(legacy=True) as desk:
        with pytest.raises(CallFailed, match="QuestionNotKept: asks_at_once asked 'Really"):
            await program.call(tool(desk, "asks_at_once"), key="1")


async def test_a_server_over_http_serves_the_same_tools(web, program) -> None:
    async with McpServer("desk", url=web.url, only=["add", "fails"]) as desk:
        assert [item.name for item in desk.toolset().tools] == ["add", "fails"]
        assert await program.call(tool(desk, "add"), {"a": 1}, key="1") == 3
        with pytest.raises(CallFailed, match="no: x"):
            await program.call(tool(desk, "fails"), {"why": "x"}, key="2")


def test_what_cannot_be_started_says_why(tmp_path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("raise SystemExit('no license found')")
    with pytest.raises(McpServerFailed, match="no license found"):
        McpServer("broken", sys.executable, [str(broken)]).toolset()
    with pytest.raises(McpServerFailed, match="nowhere-to-be-found"):
        McpServer("missing", "nowhere-to-be-found").toolset()
    with pytest.raises(McpServerFailed, match="ConnectError"):
        McpServer("away", url="http://127.0.0.1:9/mcp").toolset()
    with pytest.raises(InvalidInput, match="a command or a url"):
        McpServer("neither")
    with pytest.raises(InvalidInput, match="has no tool shout"):
        stdio(effects={"shout": "pure"}).toolset()
