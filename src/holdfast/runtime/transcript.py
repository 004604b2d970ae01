"""The transcript: the messages a model is shown, read from the log.

Messages are stored by value: plain text as text, anything richer as a manifest of the message
record and its binaries. A driver keeps the transcript in memory while it drives and rebuilds it
from the log otherwise; after a compaction only what follows the boundary is kept. A fork begins
with the messages that its manifest carries.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec import structs

from holdfast.core import messages
from holdfast.core.errors import PayloadNotFound
from holdfast.core.facts import MessageAppended, SessionCompacted, SessionStarted
from holdfast.core.messages import Message, Text
from holdfast.core.payloads import Slot, from_record, manifest, slot, slot_of_bytes, to_record
from holdfast.runtime.journal import hydrate
from holdfast.stores.port import SessionStore

PAGE_EVENTS = 500
CHARACTERS_PER_TOKEN = 4
ERASED_TEXT = "[this message was erased]"


def message_slots(message: Message) -> tuple[Slot, list[Slot]]:
    """Return the slot of a message, and those of the parts that its manifest refers to."""
    if len(message.parts) == 1 and type(message.parts[0]) is Text and message.parts[0].note is None:
        return slot(message.parts[0].text, "message"), []
    record, binaries = messages.to_record(message)
    body = slot(record, "message")
    parts = [slot_of_bytes("bytes", data, "chunk") for data in binaries.values()]
    whole = {"message": to_record(body), "binaries": [to_record(part) for part in parts]}
    return manifest(whole, "message"), [body, *parts]


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


@dataclass(slots=True)
class Transcript:
    """The messages kept for the model, with a rough count of their tokens.

    `first_user_text` is of this session's own first user message: a fork's is not its source's.
    """

    messages: list[Message] = field(default_factory=list)
    first_user_text: str = ""
    tokens: int = 0

    def add(self, message: Message) -> None:
        """Append one message that this session's log has got."""
        if message.role == "user" and not self.first_user_text:
            self.first_user_text = message.text
        self.keep(message)

    def keep(self, message: Message) -> None:
        """Append one message, the session's own or inherited."""
        self.messages.append(message)
        self.tokens += estimate_tokens(message.text)


def estimate_tokens(text: str) -> int:
    """Return a rough token count; what a provider reports is the truth."""
    return -(-len(text) // CHARACTERS_PER_TOKEN)


async def load_transcript(
    store: SessionStore, session_id: str, compact_from: int | None
) -> Transcript:
    """Return the kept transcript of a session."""
    transcript = Transcript()
    async for role, content in kept_messages(store, session_id, compact_from, None):
        transcript.keep(await read_message(store, session_id, role, content))
    transcript.first_user_text = await _first_user_text(store, session_id)
    return transcript


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


async def _first_user_text(store: SessionStore, session_id: str) -> str:
    # The first message of a log is always a user's: a turn begins with it.
    events = await store.read_events(session_id, limit=1, types=[MessageAppended.TYPE])
    for event in events:
        fact = event.fact()
        if isinstance(fact, MessageAppended) and fact.role == "user":
            return (await read_message(store, session_id, fact.role, fact.content)).text
    return ""


def transcript_manifest(kept: Sequence[tuple[str, Slot]]) -> tuple[Slot, list[Slot]]:
    """Return the manifest with which a fork carries its source's messages, and the small ones.

    Small messages stand apart, so that each can be erased from the fork by itself.
    """
    apart = [(role, structs.replace(item, by_ref=item.erased is None)) for role, item in kept]
    entries = [{"role": role, "content": to_record(item)} for role, item in apart]
    small = [item for _, item in apart if item.data is not None]
    return manifest({"v": 1, "messages": entries}, "transcript"), small
