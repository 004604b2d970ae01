"""Messages of a session, read from the log: each by itself, and those kept at a position.

Messages are stored by value: plain text as text, anything richer as a manifest of the message
record and its binaries. After a compaction only what follows the boundary is kept. A fork begins
with the messages that its manifest carries.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from holdfast.core import messages
from holdfast.core.errors import PayloadNotFound
from holdfast.core.facts import MessageAppended, SessionCompacted, SessionStarted
from holdfast.core.messages import Message, Text
from holdfast.core.payloads import Slot, from_record
from holdfast.stores.port import SessionStore
from holdfast.views.values import hydrate

PAGE_EVENTS = 500
ERASED_TEXT = "[this message was erased]"


@dataclass(frozen=True, slots=True)
class MessageView:
    """A message of the transcript."""

    seq: int
    at: str
    number: int
    turn: int | None
    message: Message


async def read_message(store: SessionStore, session_id: str, role: str, content: Slot) -> Message:
    """Return a stored message; an erased one says so."""
    if content.erased is not None:
        return _plain(role, ERASED_TEXT)
    try:
        return await _read_message(store, session_id, role, content)
    except PayloadNotFound as error:
        if "erased_at" not in error.details:
            raise
        return _plain(role, ERASED_TEXT)


async def _read_message(store: SessionStore, session_id: str, role: str, content: Slot) -> Message:
    value: Any = (await hydrate(store, session_id, content)).value()
    if content.encoding != "manifest":
        return _plain(role, str(value))
    body: Any = (await hydrate(store, session_id, from_record(value["message"]))).value()
    binaries = {}
    for part in map(from_record, value["binaries"]):
        loaded = await hydrate(store, session_id, part)
        binaries[part.id] = loaded.data or b""
    return messages.from_record(body, binaries)


def _plain(role: Any, text: str) -> Message:
    return Message(role, (Text(text),))


async def kept_messages(
    store: SessionStore, session_id: str, compact_from: int | None, until: int | None
) -> AsyncIterator[tuple[str, Slot]]:
    """Yield (role, content) of the messages kept at a position, oldest first."""
    if compact_from is None:
        async for item in _inherited(store, session_id):
            yield item
    after = (compact_from or 1) - 1
    types = (MessageAppended.TYPE, SessionCompacted.TYPE)
    before = None if until is None else until + 1
    while page := await store.read_events(
        session_id, after=after, before=before, limit=PAGE_EVENTS, types=types
    ):
        for event in page:
            fact = event.fact()
            if isinstance(fact, MessageAppended):
                yield fact.role, fact.content
            elif isinstance(fact, SessionCompacted) and event.seq == compact_from:
                yield "user", fact.content
        after = page[-1].seq


async def _inherited(store: SessionStore, session_id: str) -> AsyncIterator[tuple[str, Slot]]:
    """Yield the messages that a fork begins with."""
    first = (await store.read_events(session_id, limit=1))[0].fact()
    if isinstance(first, SessionStarted) and first.transcript is not None:
        record: Any = (await hydrate(store, session_id, first.transcript)).value()
        for entry in record["messages"]:
            yield entry["role"], from_record(entry["content"])
