"""The transcript: the messages a model is shown.

A driver keeps it in memory while it drives and rebuilds it from the log otherwise;
`holdfast.views.messages` says which messages are kept at a position, and how one is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from msgspec import structs

from holdfast.core import messages
from holdfast.core.facts import MessageAppended
from holdfast.core.messages import Message, Text, ToolCall, ToolResult
from holdfast.core.payloads import Slot, manifest, slot, slot_of_bytes, to_record
from holdfast.core.records import Record
from holdfast.core.state import State
from holdfast.runtime import requests
from holdfast.stores.port import SessionStore
from holdfast.views.messages import CHARACTERS_PER_TOKEN as CHARACTERS_PER_TOKEN
from holdfast.views.messages import Kept, kept_messages, read_message
from holdfast.views.messages import estimate_tokens as estimate_tokens


def message_slots(message: Message) -> tuple[Slot, list[Slot]]:
    """Return the slot of a message, and those of the parts that its manifest refers to."""
    if len(message.parts) == 1 and type(message.parts[0]) is Text and message.parts[0].note is None:
        return slot(message.parts[0].text, "message"), []
    record, binaries = messages.to_record(message)
    body = slot(record, "message")
    parts = [slot_of_bytes("bytes", data, "chunk") for data in binaries.values()]
    whole = {"message": to_record(body), "binaries": [to_record(part) for part in parts]}
    return manifest(whole, "message"), [body, *parts]


@dataclass(slots=True)
class Transcript:
    """The messages kept for the model, with a rough count of their tokens.

    `first_user_text` is of this session's own first user message: a fork's is not its source's.
    `number` is that of the last message of the log that it holds: whoever finds another one in the
    state must load it again. `digest` proves the messages.

    Every tool call in it has its result: a turn that ended while calls were open, by a stop or a
    kill, left a reply without results, and providers take no such transcript.
    """

    messages: list[Message] = field(default_factory=list)
    first_user_text: str = ""
    tokens: int = 0
    number: int = 0
    digest: str = requests.START

    def add(self, message: Message, *cards: Message) -> None:
        """Append one message that this session's log has got, and what is told beside it."""
        if message.role == "user" and not self.first_user_text:
            self.first_user_text = message.text
        self.number += 1
        for item in (message, *cards):
            self.keep(item)

    def keep(self, message: Message) -> None:
        """Append one message, the session's own or inherited."""
        if self.messages and (calls := self.messages[-1].tool_calls) and not _has_results(message):
            self.messages.append(_cancelled(calls))
        self.messages.append(message)
        self.digest = requests.chained(self.digest, [message])
        self.tokens += size_of(message)

    def replace(self, other: Transcript) -> None:
        """Become another transcript of the same session, for everyone who holds this one."""
        self.messages, self.tokens, self.number = other.messages, other.tokens, other.number
        self.first_user_text, self.digest = other.first_user_text, other.digest


def _has_results(message: Message) -> bool:
    return any(isinstance(part, ToolResult) for part in message.parts)


def _cancelled(calls: Sequence[ToolCall]) -> Message:
    text = Text("the turn ended before this call had a result that was shown")
    results = (ToolResult(call.call_id, call.name, (text,), "cancelled") for call in calls)
    return messages.observation(*results)


def size_of(message: Message) -> int:
    """Return a rough token count of a message, its tool calls and their results included."""
    found = estimate_tokens(message.text)
    for part in message.parts:
        if isinstance(part, ToolCall):
            found += estimate_tokens(part.arguments) + estimate_tokens(part.name)
        elif isinstance(part, ToolResult):
            found += sum(estimate_tokens(t.text) for t in part.content if isinstance(t, Text))
    return found


async def load_transcript(store: SessionStore, state: State) -> Transcript:
    """Return the kept transcript of a session at a position of its log."""
    transcript = Transcript(number=state.counters.get("message", 0))
    kept = kept_messages(store, state.session, state.compact_from, state.seq)
    async for role, content in kept:
        transcript.keep(await read_message(store, state.session, role, content))
    if transcript.number:
        transcript.first_user_text = await _first_user_text(store, state.session)
    if not transcript.first_user_text and state.turn is not None:
        # A fork inside a turn: the message that it works on is its source's.
        asked = [message.text for message in transcript.messages if message.role == "user"]
        transcript.first_user_text = asked[-1] if asked else ""
    return transcript


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


def compacted_content(kept: Sequence[Kept]) -> tuple[Slot, list[Slot]]:
    """Return the content of a compaction, messages that stand for its span, and its small ones.

    A frame alone is a message as any other; with more beside it, it is a manifest of all.
    """
    if len(kept) == 1 and kept[0].part == "frame":
        return kept[0].content, []
    entries: list[Record] = []
    small = []
    for item in kept:
        content = structs.replace(item.content, by_ref=item.content.erased is None)
        if content.data is not None:
            small.append(content)
        entry: Record = {"role": item.role, "content": to_record(content), "part": item.part}
        if item.part != "frame":
            entry["seq"] = item.seq
        if item.turn is not None:
            entry["turn"] = item.turn
        entries.append(entry)
    return manifest({"v": 1, "messages": entries}, "transcript"), small
