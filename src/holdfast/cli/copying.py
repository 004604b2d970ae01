"""Copying and moving sessions between stores."""

from __future__ import annotations

import asyncio
import getpass
from dataclasses import asdict

import click

from holdfast.cli.options import Call, command, note
from holdfast.cli.wording import count
from holdfast.core.errors import InvalidInput
from holdfast.stores.choose import open_store
from holdfast.stores.copying import Copied, copy_sessions, move_tree


@command("copy")
@click.argument("source")
@click.argument("target")
@click.argument("sessions", nargs=-1)
@click.option("--move", is_flag=True, help="Seal the source: the session goes on in TARGET.")
def copy_command(
    call: Call, source: str, target: str, sessions: tuple[str, ...], move: bool
) -> None:
    """Copy SESSIONS, or all, from store SOURCE to store TARGET; again to go on after a stop."""
    if move and not sessions:
        raise InvalidInput("name the sessions to move, each the root of its tree")

    async def work() -> list[Copied]:
        ours = await open_store(source, create=False)
        try:
            theirs = await open_store(target)
            try:
                if not move:
                    return await copy_sessions(ours, theirs, sessions)
                by = f"user:{getpass.getuser()}"
                trees = [await move_tree(ours, theirs, name, by=by) for name in sessions]
                return [item for tree in trees for item in tree]
            finally:
                await theirs.close()
        finally:
            await ours.close()

    done = asyncio.run(work())
    lines = [f"{item.session}: {item.outcome}, {count(item.events, 'event')}" for item in done]
    call.answer(
        {"sessions": [asdict(item) for item in done]}, "\n".join(lines) or "no sessions there"
    )
    unowned = [item.session for item in done if item.read_only]
    if unowned and not call.as_json:
        names = ", ".join(unowned)
        note(f"read-only copies with open work: {names}; resume with --takeover, or fork")
