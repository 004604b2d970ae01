"""Messages of a session, read from the log: each by itself, and those kept at a position.

Messages are stored by value: plain text as text, anything richer as a manifest of the message
record and its binaries. After a compaction its content stands for its span, and what follows the
span is kept as it is. A fork begins with the messages that its manifest carries.
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
CHARACTERS_PER_TOKEN = 4


def estimate_tokens(text: str) -> int:
    """Return a rough token count; what a provider reports is the truth."""
    return -(-len(text) // CHARACTERS_PER_TOKEN)


@dataclass(frozen=True, slots=True)
class MessageView:
    """A message of the transcript."""

    seq: int
    at: str
    number: int
    turn: int | None
    message: Message
    inherited: bool = False  # from the source of a fork


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


@dataclass(frozen=True, slots=True)
class Kept:
    """A message that the model is shown at a position, and how it comes to be there.

    Parts: `inherited` (of a fork's source), `frame` (written by a compaction), `repeated` (carried
    over by a compaction as it was), `evicted` (its output replaced by a stub), `message`.
    """

    seq: int  # the event of the message; for a frame that of its compaction, for inherited ones 1
    role: str
    content: Slot
    part: str = "message"
    turn: int | None = None


async def kept_messages(
    store: SessionStore, session_id: str, compact_from: int | None, until: int | None
) -> AsyncIterator[tuple[str, Slot]]:
    """Yield (role, content) of the messages kept at a position, oldest first."""
    async for item in kept_entries(store, session_id, compact_from, until):
        yield item.role, item.content


async def kept_entries(
    store: SessionStore, session_id: str, compact_from: int | None, until: int | None
) -> AsyncIterator[Kept]:
    """Yield the messages kept at a position, oldest first, with where each comes from."""
    after = 0
    if compact_from is None:
        async for item in _inherited(store, session_id):
            yield item
    else:
        after = compact_from
        for event in await store.read_events(session_id, after=compact_from - 1, limit=1):
            fact = event.fact()
            if isinstance(fact, SessionCompacted):
                after = covered(fact, event.seq)
                async for item in _compacted(store, session_id, event.seq, fact):
                    yield item
    before = None if until is None else until + 1
    while page := await store.read_events(
        session_id, after=after, before=before, limit=PAGE_EVENTS, types=[MessageAppended.TYPE]
    ):
        for event in page:
            fact = event.fact()
            if isinstance(fact, MessageAppended):
                yield Kept(event.seq, fact.role, fact.content, turn=fact.turn)
                if fact.card is not None:
                    # To the model it is a message of its own, beside what was said.
                    yield Kept(event.seq, "observation", fact.card, turn=fact.turn)
        after = page[-1].seq


def covered(fact: SessionCompacted, seq: int) -> int:
    """Return the last position for which a compaction stands."""
    return fact.span[1] if len(fact.span) == 2 else seq


async def _compacted(
    store: SessionStore, session_id: str, seq: int, fact: SessionCompacted
) -> AsyncIterator[Kept]:
    """Yield the messages that stand for the span of a compaction."""
    if fact.content.kind != "transcript":
        yield Kept(seq, "user", fact.content, "frame")
        return
    record: Any = (await hydrate(store, session_id, fact.content)).value()
    for entry in record["messages"]:
        content = from_record(entry["content"])
        place = entry.get("seq", seq)
        yield Kept(place, entry["role"], content, entry.get("part", "frame"), entry.get("turn"))


async def _inherited(store: SessionStore, session_id: str) -> AsyncIterator[Kept]:
    """Yield the messages that a fork begins with."""
    first = (await store.read_events(session_id, limit=1))[0].fact()
    if isinstance(first, SessionStarted) and first.transcript is not None:
        record: Any = (await hydrate(store, session_id, first.transcript)).value()
        for entry in record["messages"]:
            yield Kept(1, entry["role"], from_record(entry["content"]), "inherited")


async def inherited_messages(store: SessionStore, session_id: str) -> list[MessageView]:
    """Return the messages that a fork begins with, at the position of its first event."""
    first = (await store.read_events(session_id, limit=1))[0]
    return [
        MessageView(
            first.seq,
            first.at,
            0,
            None,
            await read_message(store, session_id, item.role, item.content),
            inherited=True,
        )
        async for item in _inherited(store, session_id)
    ]
