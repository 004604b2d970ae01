"""`holdfast mcp`: sessions of a store for MCP clients, over stdio or over HTTP."""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
from typing import Any

import click

from holdfast.cli.options import Call, command
from holdfast.cli.serve import LOOPBACK, load_agents
from holdfast.cli.turns import settings_options
from holdfast.core.errors import InvalidInput, needing

TOKEN = "HOLDFAST_MCP_TOKEN"


@command("mcp")
@click.option("--http", is_flag=True, help="Serve over HTTP under /mcp instead of stdio.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address of HTTP.")
@click.option(
    "--port",
    default=8766,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="Port of HTTP; 0 takes a free one.",
)
@click.option(
    "--allow-remote",
    is_flag=True,
    help="Listen on an address that other machines reach. Put TLS in front of it.",
)
@click.option("--agents", metavar="MODULE:NAME", help="Where the agents are: an agent, or several.")
@click.option(
    "--allow-answers", is_flag=True, help="Let clients answer questions; approvals never."
)
@settings_options
def mcp_command(call: Call, **options: Any) -> int:
    """Serve sessions to MCP clients: list, show, search, send, pending, fork."""
    return asyncio.run(_serve(call, options))


async def _serve(call: Call, options: dict[str, Any]) -> int:
    with needing("mcp", "serving MCP", "mcp>=2.3,<3"):
        from holdfast.server.mcp import session_server
    from holdfast.runtime.runtime import open_runtime

    http, host, port = options.pop("http"), options.pop("host"), options.pop("port")
    if http and host not in LOOPBACK and not options["allow_remote"]:
        raise InvalidInput(f"{host!r} can be reached by other machines; say --allow-remote")
    options.pop("allow_remote")
    agents, answers = load_agents(options.pop("agents")), options.pop("allow_answers")
    async with open_runtime(call.store, agents=agents, **options) as runtime:
        server = session_server(runtime, answers=answers)
        if http:
            await _serve_http(call, server, host, port)
        else:
            await server.run_stdio_async()
    return 0


async def _serve_http(call: Call, server: Any, host: str, port: int) -> None:
    with needing("server", "serving MCP over HTTP"):
        import uvicorn
    from holdfast.server.mcp import guarded

    token = os.environ.get(TOKEN) or secrets.token_urlsafe(32)
    config = uvicorn.Config("", host=host, port=port, log_level="warning")
    listening = config.bind_socket()
    listening.listen()  # before the address is told: whoever reads it connects at once
    port = listening.getsockname()[1]
    config.app = guarded(server.streamable_http_app(host=host), token)
    url = f"http://{host}:{port}/mcp"
    told = f"serving {url}"
    if TOKEN not in os.environ:
        told += f"\nauthorization: Bearer {token}"
    call.answer({"url": url, "token": token}, told)
    sys.stdout.flush()
    await uvicorn.Server(config).serve(sockets=[listening])
