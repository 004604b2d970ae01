"""The context of a session: show what the model would be sent now, and shorten it."""

from __future__ import annotations

import asyncio

import click

from holdfast.cli.naming import find_session
from holdfast.cli.options import Call, command, note, session_argument
from holdfast.cli.reading import with_store
from holdfast.cli.tables import Column, screen_width, table
from holdfast.cli.turns import existing
from holdfast.runtime.compaction import Compaction
from holdfast.runtime.runtime import open_runtime
from holdfast.runtime.settings import COMPACTIONS
from holdfast.stores.port import SessionStore
from holdfast.views.context import ContextPart, ContextView, read_context
from holdfast.views.documents import Document, context_document

PARTS = (
    Column("", least=3),
    Column("EVENT", right=True),
    Column("ROLE", least=6),
    Column("TOKENS", right=True),
    Column("WHY", least=20),
    Column("TEXT", least=10),
)


@command("context")
@session_argument
@click.option("--full", is_flag=True, help="Print every part that is sent, whole.")
def context_command(call: Call, session: str, full: bool) -> None:
    """Show what the model would be sent now, and why each part is in or out.

    Texts that are added to one call alone, such as warnings about limits, are not part of it.
    """

    async def read(store: SessionStore) -> ContextView:
        return await read_context(store, (await find_session(store, session)).id)

    view = with_store(call, read)
    of_window = "" if view.window is None else f" of {view.window:,}"
    summary = f"about {view.tokens:,}{of_window} tokens"
    if full:
        shown = [_whole(part) for part in view.parts if part.included]
        text = "\n\n".join([*shown, summary])
    else:
        text = f"{table(PARTS, [_row(part) for part in view.parts], screen_width())}\n\n{summary}"
    call.answer(context_document(view), text)


def _row(part: ContextPart) -> tuple[str, ...]:
    mark = "in" if part.included else "out"
    text = " ".join((part.text or "").split())[:200]
    return mark, str(part.seq), part.role, f"{part.tokens:,}", part.why, text


def _whole(part: ContextPart) -> str:
    return f"── {part.role} · event {part.seq} · {part.why}\n{part.text}"


@command("compact")
@session_argument
@click.option(
    "--strategy",
    "strategies",
    type=click.Choice(COMPACTIONS),
    multiple=True,
    help="How; tried in the order given.  [default: the session's own]",
)
@click.option("--takeover", is_flag=True, help="Drive an imported copy that has open work.")
def compact_command(call: Call, session: str, strategies: tuple[str, ...], takeover: bool) -> None:
    """Shorten what the model is sent of SESSION; its log keeps everything."""
    find = existing(call, session)

    async def work() -> tuple[str, Compaction | None]:
        async with await open_runtime(call.store) as runtime:
            session_id = await find(runtime)
            return session_id, await runtime.compact(session_id, *strategies, takeover=takeover)

    session_id, done = asyncio.run(work())
    if call.as_json:
        call.answer(_document(session_id, done), "")
    elif done is None:
        note(f"nothing to compact in {session_id}")
    else:
        text = f"compacted by {done.strategy}: about {done.tokens_before:,} tokens became "
        call.answer(None, f"{text}{done.tokens_after:,} (event {done.seq})")


def _document(session: str, done: Compaction | None) -> Document:
    """Return what a compaction came to; all null where there was nothing to compact."""
    return {
        "session": session,
        "seq": None if done is None else done.seq,
        "span": None if done is None else list(done.span),
        "strategy": None if done is None else done.strategy,
        "tokens_before": None if done is None else done.tokens_before,
        "tokens_after": None if done is None else done.tokens_after,
        "head": None if done is None else done.head,
    }
