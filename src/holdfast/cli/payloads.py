"""Stored values: print one, list the namespace, erase one."""

from __future__ import annotations

import base64
import sys
from pathlib import Path

import click

from holdfast.cli.naming import find_payload, find_session
from holdfast.cli.options import Call, command, note, session_argument
from holdfast.cli.reading import with_reads, with_store
from holdfast.cli.tables import Column, screen_width, table
from holdfast.cli.terminal import clean, dumps
from holdfast.cli.wording import count
from holdfast.core.ids import check_content_id
from holdfast.runtime.erasing import Erasure, erase
from holdfast.stores.port import SessionInfo, SessionStore
from holdfast.views.documents import variables_document
from holdfast.views.reads import Reads
from holdfast.views.variables import VariablesView

VARIABLES = (
    Column("NAME", least=12),
    Column("TYPE", least=8),
    Column("BYTES", right=True),
    Column("PREVIEW", least=10),
)


@command("payload")
@session_argument
@click.argument("payload")
@click.option(
    "--output",
    "-o",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write the bytes to this file.",
)
def payload_command(call: Call, session: str, payload: str, output: Path | None) -> None:
    """Print the bytes of PAYLOAD, a content id (or a beginning of one) that SESSION refers to.

    Bytes are exact in a pipe or a file; on a terminal, text is cleaned of control sequences.
    """

    async def read(store: SessionStore) -> tuple[str, str, bytes]:
        info = await find_session(store, session)
        found = await find_payload(store, info.id, payload)
        return info.id, found, await store.get_payload(info.id, found)

    session_id, wanted, data = with_store(call, read)
    if output is not None:
        output.write_bytes(data)
    text = _text(data)
    if call.as_json:
        document = {
            "session": session_id,
            "id": wanted,
            "size": len(data),
            "text": text,
            "base64": base64.b64encode(data).decode() if text is None else None,
        }
        click.echo(dumps(document))
    elif output is not None:
        note(f"{len(data):,} bytes written to {str(output)!r}")
    elif not sys.stdout.isatty():
        sys.stdout.buffer.write(data)
    elif text is None:
        note(f"{len(data):,} bytes that are not text; write them to a file with -o FILE")
    else:
        click.echo(clean(text))


def _text(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


@command("vars")
@session_argument
def vars_command(call: Call, session: str) -> None:
    """List the variables of SESSION at its last checkpoint; nothing is run or loaded."""

    async def read(store: SessionStore, reads: Reads) -> VariablesView:
        return await reads.variables((await find_session(store, session)).id)

    view = with_reads(call, read)
    rows = [
        (item.name, item.type, f"{item.size:,}", item.preview if item.kept else "—")
        for item in view.variables
    ]
    text = table(VARIABLES, rows, screen_width()) if rows else "no variables"
    call.answer(variables_document(view), text)


@command("erase")
@session_argument
@click.argument("payload")
@click.option(
    "--rule",
    required=True,
    metavar="NAME",
    help="Name of the rule by which it is erased, without spaces; kept in the tombstone.",
)
def erase_command(call: Call, session: str, payload: str, rule: str) -> None:
    """Erase one value, by content id, from SESSION; digests and heads still verify.

    An input goes with the copies that were made of it: its card, checkpoints that show it.
    """
    # Not by a beginning of its id: what is erased cannot be brought back.
    wanted = check_content_id(payload if ":" in payload else f"sha256:{payload}")

    async def work(store: SessionStore) -> tuple[SessionInfo, Erasure]:
        info = await find_session(store, session)
        return info, await erase(store, info.id, wanted, rule)

    info, done = with_store(call, work)
    document = {
        "session": info.id,
        "payload": wanted,
        "places": done.places,
        "copies": done.copies,
    }
    along = f", and {count(done.copies, 'copy', 'copies')} of it" if done.copies else ""
    call.answer(document, f"erased in {count(done.places, 'place')}{along}")
