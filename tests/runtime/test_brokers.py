"""A trusted session acts on the world through recorded calls, each checked against its gate."""

import asyncio
import http.server
import os
import threading

import pytest

import holdfast
from holdfast.core.capability import Capability, profile
from holdfast.core.errors import CapabilityDenied
from holdfast.runtime.brokers import Broker, work_surface

from .conftest import Lab, cell, replies


async def test_a_trusted_session_writes_runs_and_leaves_a_ledger(lab: Lab, tmp_path) -> None:
    code = (
        "import work\n"
        "size = work.write_text('out/a.txt', 'hello')\n"
        "made = work.run(['cat', 'out/a.txt'])\n"
        f"FINAL((size, made['code'], made['stdout'], open({str(tmp_path / 'out/a.txt')!r}).read()))"
    )
    runtime = await lab.open(replies(cell(code)), profile="trusted", work_area=str(tmp_path))
    session = await runtime.start()
    result = await session.send("x")
    assert isinstance(result, holdfast.Final), result
    assert result.value == (5, 0, "hello", "hello")
    calls = await runtime.calls(session.id)
    assert [(c.requested.name, c.requested.effect, c.resolved.outcome) for c in calls] == [
        ("work.write_text", "idempotent", "ok"),
        ("work.run", "once", "ok"),
    ]


async def test_other_profiles_have_no_such_module(lab: Lab, tmp_path) -> None:
    code = "try:\n    import work\nexcept ImportError:\n    FINAL('none')"
    runtime = await lab.open(replies(cell(code)), work_area=str(tmp_path))
    session = await runtime.start()
    assert (await session.send("x")).value == "none"
    assert work_surface(profile("default", str(tmp_path)), str(tmp_path)) == ()


@pytest.mark.parametrize(
    "path", ["../out.txt", "/etc/holdfast", "link/x", "to_file", ".", "a/../../b", "x\0y", ""]
)
def test_nothing_is_written_outside_the_roots(tmp_path, path: str) -> None:
    area, outside = tmp_path / "area", tmp_path / "outside"
    area.mkdir()
    outside.mkdir()
    (outside / "file").write_text("kept")
    (area / "link").symlink_to(outside)
    (area / "to_file").symlink_to(outside / "file")
    broker = Broker(Capability(write_roots=(str(area),)), area)
    with pytest.raises((CapabilityDenied, TypeError)):
        broker.write_text(path, "bad")
    with pytest.raises((CapabilityDenied, TypeError)):
        broker.remove(path)
    assert [p.name for p in outside.iterdir()] == ["file"]
    assert (outside / "file").read_text() == "kept"


async def test_only_named_programs_run_and_a_slow_one_is_ended(tmp_path) -> None:
    broker = Broker(Capability(shell_commands=("echo", "sh", "head")), tmp_path)
    assert (await broker.run(["echo", "a b"]))["stdout"] == "a b\n"
    with pytest.raises(CapabilityDenied, match="shell_commands"):
        await broker.run(["cat", "x"])
    with pytest.raises(TimeoutError):
        await broker.run(["sh", "-c", "sleep 60"], timeout=1)
    with pytest.raises(TypeError):
        await broker.run("echo x")
    long = await broker.run(["head", "-c", "3000000", "/dev/zero"])
    assert len(long["stdout"]) < 1_100_000
    assert "of 3000000 bytes left out" in long["stdout"]


async def test_breaking_a_call_off_ends_the_program_and_what_it_started(tmp_path) -> None:
    broker = Broker(Capability(shell_commands=("sh",)), tmp_path)
    os.mkfifo(tmp_path / "pipe")
    # Both the shell and what it starts hold the pipe open: its end proves the end of both.
    code = "exec 3> pipe; echo ready >&3; sleep 300 & wait"
    task = asyncio.ensure_future(broker.run(["sh", "-c", code]))
    with await asyncio.to_thread(open, tmp_path / "pipe") as pipe:
        assert await asyncio.to_thread(pipe.readline) == "ready\n"
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.to_thread(pipe.read) == ""


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/away":
            self.send_response(302)
            self.send_header("Location", "http://elsewhere.example/")
            self.end_headers()
            return
        self.send_response(200 if self.path == "/" else 404)
        self.end_headers()
        self.wfile.write(b"found" if self.path == "/" else b"nothing")

    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing."""


@pytest.fixture
def site():
    server = http.server.HTTPServer(("127.0.0.1", 0), _Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_network_is_reached_only_where_the_gate_allows(tmp_path, site: str) -> None:
    broker = Broker(Capability(network_hosts=("127.0.0.1",)), tmp_path)
    assert broker.fetch(site + "/")["body"] == b"found"
    assert broker.fetch(site + "/missing")["status"] == 404
    for url in (site + "/away", "http://elsewhere.example/", "file:///etc/passwd", "nothing"):
        with pytest.raises((CapabilityDenied, ValueError)):
            broker.fetch(url)
