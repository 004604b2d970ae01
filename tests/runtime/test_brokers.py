"""A trusted session acts on the world through recorded calls, each checked against its gate."""

import asyncio
import http.server
import os
import socket
import threading
from ipaddress import ip_address

import pytest

import holdfast
from holdfast.core.capability import Capability, profile
from holdfast.core.errors import CapabilityDenied
from holdfast.runtime.brokers import Broker, work_tools
from holdfast.runtime.outbound import is_public

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
    assert work_tools(profile("default", str(tmp_path)), str(tmp_path)) == ()


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


@pytest.fixture
def names(monkeypatch):
    """Names of a resolver under the test's control; each asks the next of its answers."""
    answers: dict[str, list[str]] = {}
    real = socket.getaddrinfo

    def resolve(host, port, *arguments, **options):
        if host not in answers:
            return real(host, port, *arguments, **options)
        address = answers[host].pop(0)
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        return [(family, socket.SOCK_STREAM, 6, "", (address, port))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    return answers


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "127.9.9.9", "10.1.2.3", "192.168.1.1", "172.16.0.1", "169.254.169.254"),
        *("0.0.0.0", "100.64.0.1", "224.0.0.1", "::1", "fe80::1", "fd00::1", "::ffff:127.0.0.1"),
        *("64:ff9b::7f00:1", "2002:7f00:1::"),
    ],
)
def test_a_name_that_leads_to_an_address_that_is_not_public_is_refused(tmp_path, names, address):
    for hosts in (("*",), ("*.example",), ("rebound.example",)):
        names["rebound.example"] = [address]
        broker = Broker(Capability(network_hosts=hosts), tmp_path)
        with pytest.raises(CapabilityDenied, match="is not a public address; list the address"):
            broker.fetch("http://rebound.example:9/")
        assert names["rebound.example"] == []


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/", "http://2130706433:9/", "http://[::1]:9/"])
def test_an_address_written_out_is_no_way_around(tmp_path, url):
    broker = Broker(Capability(network_hosts=("*",)), tmp_path)
    with pytest.raises(CapabilityDenied, match="is not a public address"):
        broker.fetch(url)


@pytest.mark.parametrize("listed", ["127.0.0.1", "127.0.0.0/8"])
def test_a_private_address_that_is_listed_is_reached_and_the_name_is_asked_once(
    tmp_path, names, site, listed
):
    port = site.rpartition(":")[2]
    names["inner.example"] = ["127.0.0.1", "10.0.0.1"]
    broker = Broker(Capability(network_hosts=("inner.example", listed)), tmp_path)
    assert broker.fetch(f"http://inner.example:{port}/")["body"] == b"found"
    assert names["inner.example"] == ["10.0.0.1"]


def test_localhost_is_reached_where_it_is_listed(tmp_path, site):
    port = site.rpartition(":")[2]
    listed = Broker(Capability(network_hosts=("localhost",)), tmp_path)
    assert listed.fetch(f"http://localhost:{port}/")["body"] == b"found"
    with pytest.raises(CapabilityDenied, match="is not a public address"):
        Broker(Capability(network_hosts=("*",)), tmp_path).fetch(f"http://localhost:{port}/")


def test_a_redirect_to_a_name_that_leads_inside_is_refused(tmp_path, names, site):
    names["elsewhere.example"] = ["169.254.169.254"]
    broker = Broker(Capability(network_hosts=("127.0.0.1", "*.example")), tmp_path)
    with pytest.raises(CapabilityDenied, match=r"169\.254\.169\.254"):
        broker.fetch(site + "/away")


def test_a_proxy_of_the_environment_is_not_asked(tmp_path, site, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    broker = Broker(Capability(network_hosts=("127.0.0.1",)), tmp_path)
    assert broker.fetch(site + "/")["body"] == b"found"


@pytest.mark.parametrize("address", ["8.8.8.8", "2606:4700::1111", "64:ff9b::808:808"])
def test_public_addresses_are_public(address):
    assert is_public(ip_address(address))
