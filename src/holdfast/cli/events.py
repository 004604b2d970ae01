"""`holdfast events`: the log as stored, one line per event, followed live on request."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import fields
from difflib import get_close_matches

import click

from holdfast.cli.naming import find_session
from holdfast.cli.options import Call, command, session_argument
from holdfast.cli.reading import opened
from holdfast.cli.tables import screen_width, shortened
from holdfast.cli.terminal import dumps, one_line
from holdfast.cli.wording import count
from holdfast.core.errors import InvalidInput
from holdfast.core.events import Event
from holdfast.core.forms import FACTS
from holdfast.core.payloads import from_record, is_slot
from holdfast.stores.port import SessionStore
from holdfast.views.documents import event_document

PAGE_EVENTS = 500
PIPE_WIDTH = 140
LEAST_ROOM = 20
SHORT_ID = 14
"""How much of a content id is shown; `holdfast payload` takes it so."""


@command("events")
@session_argument
@click.option(
    "--from",
    "first",
    default=1,
    type=click.IntRange(1),
    show_default=True,
    help="First event to print.",
)
@click.option("--follow", "-f", is_flag=True, help="Follow new events until Ctrl-C.")
@click.option(
    "--type",
    "types",
    multiple=True,
    metavar="TYPE",
    help="Only events of this type. May be repeated.",
)
def events_command(
    call: Call, session: str, first: int, follow: bool, types: tuple[str, ...]
) -> None:
    """Print the events of SESSION; with --json one document a line."""
    for name in types:
        if name not in FACTS:
            raise _unknown(name)

    async def work() -> None:
        async with opened(call) as store:
            info = await find_session(store, session)
            reading = _follow if follow else _read
            await reading(call, store, info.id, first - 1, types)

    asyncio.run(work())


def _unknown(name: str) -> InvalidInput:
    """Return the error for a type of which this release knows nothing."""
    near = get_close_matches(name, FACTS, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    return InvalidInput(
        f"{one_line(repr(name), 60)} is not an event type of this release{hint} Types that only a "
        "newer release knows are shown without --type"
    )


async def _read(
    call: Call, store: SessionStore, session_id: str, after: int, types: tuple[str, ...]
) -> None:
    while page := await store.read_events(
        session_id, after=after, limit=PAGE_EVENTS, types=types or None
    ):
        for event in page:
            _print(call, event)
        after = page[-1].seq


async def _follow(
    call: Call, store: SessionStore, session_id: str, after: int, types: tuple[str, ...]
) -> None:
    async with store.subscribe(session_id, after=after) as items:
        async for item in items:
            if isinstance(item, Event) and (not types or item.type in types):
                _print(call, item)
                sys.stdout.flush()


def _print(call: Call, event: Event) -> None:
    if call.as_json:
        click.echo(dumps(event_document(event)))
    else:
        at = event.at[11:23]
        about = " ".join(f"{key}={_brief(event.data[key])}" for key in _in_order(event))
        start = f"{event.seq:>6}  {at}  {one_line(event.type, 40):<18}  "
        room = (screen_width() or PIPE_WIDTH) - len(start)
        click.echo(start + shortened(one_line(about, PIPE_WIDTH * 10), max(room, LEAST_ROOM)))


def _in_order(event: Event) -> list[str]:
    """Return the names of an event's fields as its fact declares them: stores keep no order.

    Values come last, because a long one would push what is short out of the line.
    """
    kind = FACTS.get(event.type)
    declared = {} if kind is None else {item.name: n for n, item in enumerate(fields(kind))}

    def place(name: str) -> tuple[bool, int, str]:
        return is_slot(event.data[name]), declared.get(name, len(declared)), name

    return sorted(event.data, key=place)


def _brief(part: object) -> str:
    if is_slot(part):
        item = from_record(part)
        if item.erased is not None:
            return "(erased)"
        if item.data is not None and item.encoding in ("text", "json"):
            return repr(item.data[:60].decode(errors="replace"))
        return f"{item.id[:SHORT_ID]}… ({count(item.size, 'byte')})"
    if isinstance(part, dict):
        return "{" + " ".join(f"{key}={_brief(value)}" for key, value in sorted(part.items())) + "}"
    text = str(part)
    return text[:SHORT_ID] + "…" if text.startswith("sha256:") else text
