"""`holdfast serve`, `view` and `token`: the HTTP server with its pages, and who may use it."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from holdfast.cli.options import Call, command, note
from holdfast.cli.tables import Column, screen_width, table
from holdfast.cli.turns import settings_options
from holdfast.core.errors import InvalidInput, InvalidSettings, needing
from holdfast.stores.choose import store_url
from holdfast.stores.tenancy import DEFAULT_TENANT

LOOPBACK = ("127.0.0.1", "::1", "localhost")


def _serving_options(function: Any) -> Any:
    for option in (
        click.option(
            "--host", default="127.0.0.1", show_default=True, help="Address to listen on."
        ),
        click.option(
            "--port",
            default=8765,
            show_default=True,
            type=click.IntRange(0, 65535),
            help="Port to listen on; 0 takes a free one.",
        ),
        click.option(
            "--name",
            "names",
            multiple=True,
            metavar="HOST[:PORT]",
            help="Another Host name under which the server is reached. May be repeated.",
        ),
        click.option(
            "--allow-remote",
            is_flag=True,
            help="Listen on an address that other machines reach. Put TLS in front of it.",
        ),
        click.option(
            "--agents",
            metavar="MODULE:NAME",
            help="Where the agents are: an agent, or a sequence of them.",
        ),
        click.option("--read-only", is_flag=True, help="Change nothing, drive nothing."),
        click.option(
            "--hand-over",
            is_flag=True,
            help="Drive no session here: workers of the same store do (`holdfast worker`).",
        ),
        click.option("--audit-log", metavar="FILE", help="Write a line for each change to a file."),
        click.option(
            "--allow-unconfined",
            is_flag=True,
            help="Run model-written code without confinement where there is none. Dangerous.",
        ),
        settings_options,
    ):
        function = option(function)
    return function


@command("serve")
@_serving_options
def serve_command(call: Call, **options: Any) -> int:
    """Serve the API under /api/v1 and the viewer, and drive sessions in this process."""
    return asyncio.run(_serve(call, options, browser=False))


@command("view")
@_serving_options
@click.option("--no-browser", is_flag=True, help="Only print the link.")
def view_command(call: Call, no_browser: bool, **options: Any) -> int:
    """Serve the viewer and open it in the browser."""
    return asyncio.run(_serve(call, options, browser=not no_browser))


async def _serve(call: Call, options: dict[str, Any], *, browser: bool) -> int:
    with needing("server", "serving"):
        import uvicorn

        from holdfast.server.app import create_app
    from holdfast.runtime.runtime import open_runtime
    from holdfast.server.access import Access, Principal, access_path

    host, port = options.pop("host"), options.pop("port")
    names, read_only = options.pop("names"), options.pop("read_only")
    if host not in LOOPBACK and not options["allow_remote"]:
        raise InvalidInput(f"{host!r} can be reached by other machines; say --allow-remote")
    options.pop("allow_remote")
    agents = load_agents(options.pop("agents"))
    _log_changes(options.pop("audit_log"))
    hand_over = options.pop("hand_over")
    recover = not read_only and not hand_over
    async with open_runtime(call.store, agents=agents, recover=recover, **options) as runtime:
        access = Access(await asyncio.to_thread(access_path, runtime.store.flags.url))
        config = uvicorn.Config(
            "", host=host, port=port, log_level="warning", timeout_graceful_shutdown=3
        )
        listening = config.bind_socket()
        port = listening.getsockname()[1]
        shown = "127.0.0.1" if host in ("0.0.0.0", "::") else host
        hosts = {f"{name}:{port}" for name in (*LOOPBACK, "[::1]", shown)} | set(names)
        hosts |= {name.partition(":")[0] for name in hosts if port == 80}
        app = create_app(
            runtime, access=access, hosts=hosts, read_only=read_only, drives=not hand_over
        )
        config.app = app
        server = uvicorn.Server(config)
        base = f"http://{f'[{shown}]' if ':' in shown else shown}:{port}"
        link = f"{base}/login?code={access.link_code(Principal('owner'))}"
        call.answer({"url": base, "link": link}, f"serving {base}\nsign in once with: {link}")
        sys.stdout.flush()
        if browser:
            click.launch(link)
        await server.serve(sockets=[listening])
    return 0


def load_agents(place: str | None) -> Sequence[Any]:
    """Return the agents that MODULE:NAME holds."""
    if place is None:
        return ()
    import importlib

    from holdfast.runtime.agent import Agent

    module, colon, name = place.partition(":")
    if not colon:
        raise InvalidInput(f"{place!r} is not a valid place of agents; write MODULE:NAME")
    sys.path.insert(0, str(Path.cwd()))
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise InvalidSettings(f"the agents {place!r} cannot be loaded: {error}") from error
    return (found,) if isinstance(found, Agent) else tuple(found)


def _log_changes(path: str | None) -> None:
    """Let the audit lines of the server go to a file."""
    if path is None:
        return
    handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter("%(message)s"))
    audit = logging.getLogger("holdfast.audit")
    audit.addHandler(handler)
    audit.setLevel(logging.INFO)
    audit.propagate = False


@click.group("token")
def token_command() -> None:
    """Create, list and revoke tokens for the API."""


@command("create")
@click.argument("name")
@click.option(
    "--right",
    "rights",
    multiple=True,
    default=("read",),
    show_default=True,
    help="read, act, answer or admin. May be repeated.",
)
@click.option("--tenant", default=DEFAULT_TENANT, show_default=True, help="Whose sessions.")
def _create(call: Call, name: str, rights: tuple[str, ...], tenant: str) -> None:
    """Create a token for NAME; it is printed once and stored as a hash only."""
    info, text = _access(call).create(name, rights, tenant)
    note(f"token {info.id} of {info.name}: {', '.join(info.rights)}, tenant {info.tenant}")
    call.answer({"id": info.id, "token": text}, text)


@command("list")
def _list(call: Call) -> None:
    """List tokens without their secrets."""
    found = _access(call).tokens()
    columns = [Column(name) for name in ("ID", "NAME", "TENANT", "RIGHTS", "CREATED", "REVOKED")]
    rows = [
        (
            item.id,
            item.name,
            item.tenant,
            ",".join(item.rights),
            item.created_at[:16],
            (item.revoked_at or "")[:16],
        )
        for item in found
    ]
    document = [
        {
            "id": item.id,
            "name": item.name,
            "tenant": item.tenant,
            "rights": list(item.rights),
            "created_at": item.created_at,
            "revoked_at": item.revoked_at,
        }
        for item in found
    ]
    text = table(columns, rows, screen_width()) if rows else "there are no tokens"
    call.answer({"tokens": document}, text)


@command("revoke")
@click.argument("token_id", metavar="ID")
def _revoke(call: Call, token_id: str) -> None:
    """Revoke a token; servers that run refuse it at once."""
    info = _access(call).revoke(token_id)
    call.answer({"id": info.id, "revoked_at": info.revoked_at}, f"token {info.id} is revoked")


def _access(call: Call) -> Any:
    from holdfast.server.access import Access, access_path

    path = access_path(store_url(call.store)[0])
    if path is None:
        raise InvalidInput("this store has no folder to keep tokens in; name another with --store")
    path.parent.mkdir(parents=True, exist_ok=True)
    return Access(path)


for made in (_create, _list, _revoke):
    token_command.add_command(made)
