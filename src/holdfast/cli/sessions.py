"""Sessions as a whole: list, stop, fork, delete."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import click

from holdfast.cli.naming import find_head, find_session
from holdfast.cli.options import Call, command, note, session_argument
from holdfast.cli.reading import opened, with_store
from holdfast.cli.tables import Column, screen_width, table
from holdfast.cli.wording import cost_text, count
from holdfast.core.errors import InvalidInput
from holdfast.core.ids import friendly_name
from holdfast.core.status import STATUSES
from holdfast.stores.port import SessionFilter, SessionInfo, SessionStore
from holdfast.views.documents import result_document, session_document
from holdfast.views.sessions import all_sessions

DEFAULT_ROWS = 50
COLUMNS = (
    Column("SESSION", least=15, is_id=True),
    Column("NAME"),
    Column("STATUS"),
    Column("TURNS", spare=2, right=True),
    Column("TOKENS", spare=3, right=True),
    Column("COST", spare=1, right=True),
    Column("UPDATED", spare=1),
    Column("LABELS", least=10, spare=4),
)


@command("sessions")
@click.option("--status", type=click.Choice(STATUSES), help="Only sessions in this status.")
@click.option("--label", metavar="KEY=VALUE", help="Only sessions with this label.")
@click.option("--tenant", help="Sessions of this tenant, or of all with '*'.")
@click.option(
    "--limit",
    default=DEFAULT_ROWS,
    show_default=True,
    type=click.IntRange(1),
    metavar="N",
    help="How many to list.",
)
@click.option("--all", "everything", is_flag=True, help="All of them, whatever --limit says.")
@click.option("--cursor", help="Start after the page that gave this cursor.")
def sessions_command(
    call: Call,
    status: str | None,
    label: str | None,
    tenant: str | None,
    limit: int,
    everything: bool,
    cursor: str | None,
) -> None:
    """List sessions, newest first."""
    where = SessionFilter(
        tenant=tenant, status=status, label=None if label is None else pair(label, "--label")
    )

    async def read(store: SessionStore) -> tuple[list[SessionInfo], str | None]:
        if everything:
            return [info async for info in all_sessions(store, where)], None
        page = await store.list_sessions(where, limit=limit, cursor=cursor)
        return list(page.sessions), page.cursor

    found, more = with_store(call, read)
    document = {"sessions": [session_document(info) for info in found], "cursor": more}
    rows = table(COLUMNS, map(_row, found), screen_width())
    call.answer(document, rows if found else "no sessions")
    if more is not None and not call.as_json:
        note(f"the newest {len(found)} are shown; see more with --all or --limit")


def _row(info: SessionInfo) -> tuple[str, ...]:
    return (
        info.id,
        info.name,
        info.status,
        str(info.turns),
        f"{info.tokens:,}",
        cost_text(info.usd, None, info.unknown_usd).removesuffix(" of unknown cost"),
        info.updated_at[:16].replace("T", " "),
        " ".join(f"{key}={value}" for key, value in info.labels.items()),
    )


def pair(text: str, option: str) -> tuple[str, str]:
    """Return the two sides of KEY=VALUE."""
    key, sign, value = text.partition("=")
    if not sign or not key:
        raise InvalidInput(f"{option} {text!r} is not of the form KEY=VALUE")
    return key, value


@command("stop")
@session_argument
def stop_command(call: Call, session: str) -> None:
    """Stop SESSION: at once, or by its driver where one is at work."""
    from holdfast.runtime.results import TurnSummary
    from holdfast.runtime.runtime import Runtime
    from holdfast.runtime.settings import resolve

    async def work() -> None:
        async with opened(call) as store:
            info = await find_session(store, session)
            async with Runtime(store, resolved=resolve()) as runtime:
                result = await runtime.stop(info.id)
        if result is None:
            asked = result_document(
                TurnSummary(session=info.id, head=info.head), status="stop_requested"
            )
            call.answer(asked, f"{info.id} is being driven; its driver was asked to stop")
        else:
            call.answer(result_document(result), f"{info.id} is stopped")

    asyncio.run(work())


@command("fork")
@session_argument
@click.option(
    "--head", help="Head to start from, or a beginning of its id; by default the current one."
)
@click.option("--session-id", help="The id of the new session; by default a new one.")
def fork_command(call: Call, session: str, head: str | None, session_id: str | None) -> None:
    """Start a session from a head of SESSION, which is not changed; print the new id."""
    from holdfast.runtime.runtime import Runtime
    from holdfast.runtime.settings import resolve

    async def work() -> None:
        async with opened(call) as store:
            info = await find_session(store, session)
            async with Runtime(store, resolved=resolve()) as runtime:
                chosen = None if head is None else await find_head(store, info.id, head)
                new = await runtime.fork(info.id, chosen, session_id=session_id)
            first = await store.load_state(new.id)
        origin = first.origin or {}
        call.answer(
            {
                "session": new.id,
                "name": friendly_name(new.id),
                "origin": {"session": origin.get("session"), "head": origin.get("head")},
            },
            new.id,
        )
        if not call.as_json:
            note(f"forked from {info.id}; continue with: {call.command_line('send', new.id, '…')}")

    asyncio.run(work())


def _agreed(question: str) -> bool:
    try:
        return click.confirm(question, err=True)
    except click.Abort:
        if sys.stdin.isatty():
            raise
        raise click.UsageError("there is no terminal to confirm at; pass --yes") from None


@command("delete")
@click.argument("session", required=False)
@click.option("--tenant", help="Delete all sessions of this tenant, with payloads and audit.")
@click.option(
    "--certificate",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Where the certificate of a tenant's erasure is written.",
)
@click.option("--yes", is_flag=True, help="Do not ask.")
def delete_command(
    call: Call, session: str | None, tenant: str | None, certificate: Path | None, yes: bool
) -> None:
    """Delete SESSION for good, or all of a tenant; their ids are never used again."""
    if (session is None) == (tenant is None):
        raise InvalidInput("name a session to delete, or a tenant with --tenant")
    if tenant is not None:
        _delete_tenant(call, tenant, certificate, yes)
        return

    async def work(store: SessionStore) -> SessionInfo:
        info = await find_session(store, str(session))
        if not yes and not _agreed(f"Delete {info.id} ({info.name}) for good?"):
            raise click.ClickException(f"{info.id} was not deleted")
        await store.delete(info.id)
        return info

    info = with_store(call, work)
    call.answer({"session": info.id, "deleted": True}, f"{info.id} is deleted")


def _delete_tenant(call: Call, tenant: str, certificate: Path | None, yes: bool) -> None:
    from holdfast.stores.tenant_erasure import delete_tenant

    if not yes and not _agreed(f"Delete everything of tenant {tenant} for good?"):
        raise click.ClickException(f"nothing of tenant {tenant} was deleted")
    made = with_store(call, lambda store: delete_tenant(store, tenant))
    stamp = made["at"][:19].replace(":", "")
    target = certificate or Path(f"erasure-{tenant}-{stamp}.json")
    target.write_text(json.dumps(made, indent=2) + "\n", encoding="utf-8")
    sessions = count(len(made["sessions"]), "session")
    payloads = count(made["payloads"], "payload")
    call.answer(
        made | {"certificate": str(target.absolute())},
        f"{sessions} and {payloads} of tenant {tenant} are deleted; certificate: {target}",
    )
