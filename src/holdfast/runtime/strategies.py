"""Compaction strategies: which messages are shortened, and what is put in their place.

All of them are functions of the kept messages. A transcript is cut into a head, which is
compacted, and a tail, which stays as it is; no cut parts a reply from its results. `evict` replaces
long output of the head by stubs, `summary` and `window` put one frame in place of the head. A
continuation frame says what was left out, and which variables are still there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from holdfast.core.messages import Message, Part, Text, ToolResult, user
from holdfast.runtime.transcript import CHARACTERS_PER_TOKEN, message_slots, size_of
from holdfast.views.messages import Kept
from holdfast.views.variables import VariableView

EVICT = "evict"
SUMMARY = "summary"
WINDOW = "window"

PROMPT_VERSION = 1
SUMMARY_PROMPT = """\
You condense the transcript of an agent's work, so that the agent can go on without it. Write what
it must still know, as short plain notes: what the user asked for and prefers, facts, names, numbers
and identifiers exactly as they were said, what was done and found, decisions with their reasons,
what failed and why, and what is still to be done. Keep what an earlier summary says unless it has
become wrong. Leave out greetings, code that can be written again, and long output. Do not answer
the user and do not add anything that the transcript does not say. Reply with the notes alone."""

EVICT_CHARACTERS = 1_000
"""Output of the head that is longer than this is evicted."""
STUB_CHARACTERS = 200
"""How much of evicted output is still shown."""
RENDERED_CHARACTERS = 8_000
"""How much of one message the summariser is shown."""
CARD_VARIABLES = 40
NOTES_HEADING = "Notes on what came before:"
VARIABLES_HEADING = "Variables that are still there:"


@dataclass(frozen=True, slots=True)
class Entry:
    """One kept message, read."""

    kept: Kept
    message: Message

    @property
    def tokens(self) -> int:
        """Return about how many tokens it takes."""
        return size_of(self.message)


@dataclass(frozen=True, slots=True)
class Cut:
    """Where a transcript is parted: what is compacted, and what stays as it is."""

    head: tuple[Entry, ...]
    tail: tuple[Entry, ...]

    @property
    def head_tokens(self) -> int:
        """Return about how many tokens the head takes."""
        return tokens_of(self.head)


def tokens_of(entries: Sequence[Entry]) -> int:
    """Return about how many tokens messages take."""
    return sum(entry.tokens for entry in entries)


def cut(entries: Sequence[Entry], open_turn: int | None, keep_tokens: int) -> Cut:
    """Part a transcript so that the tail takes about `keep_tokens`, in whole turns.

    The open turn may be parted before one of its replies, but the last reply with its results
    always stays. What an earlier compaction wrote is always part of the head.
    """
    places = [index for index in range(len(entries) + 1) if _may_part(entries, index, open_turn)]
    if not places:
        return Cut((), tuple(entries))
    best = places[-1]
    for index in reversed(places):
        if tokens_of(entries[index:]) > keep_tokens:
            break
        best = index
    return Cut(tuple(entries[:best]), tuple(entries[best:]))


def _may_part(entries: Sequence[Entry], index: int, open_turn: int | None) -> bool:
    if index == 0 or any(entry.kept.part != "message" for entry in entries[index:]):
        return False
    if index == len(entries):
        return open_turn is None
    entry = entries[index]
    if entry.kept.role == "user":
        # A message sent while a turn is at work is part of that turn.
        return entries[index - 1].kept.turn != entry.kept.turn
    return entry.kept.role == "assistant" and entry.kept.turn == open_turn is not None


def asked(entries: Sequence[Entry], open_turn: int | None) -> tuple[Entry, ...]:
    """Return the user messages of the open turn, which stay even where the turn is parted."""
    return tuple(
        Entry(replace(entry.kept, part="repeated"), entry.message)
        for entry in entries
        if open_turn is not None and entry.kept.turn == open_turn and entry.kept.role == "user"
    )


def evicted(entries: Sequence[Entry]) -> tuple[Entry, ...]:
    """Return messages with long output replaced by stubs; the others are carried over."""
    return tuple(_evicted(entry) for entry in entries)


def _evicted(entry: Entry) -> Entry:
    kept, message = entry.kept, entry.message
    if kept.part == "message":
        kept = replace(kept, part="repeated")
    if message.role != "observation" or len(_all_text(message)) <= EVICT_CHARACTERS:
        return Entry(kept, message)
    how = f"event {kept.seq}, {kept.content.id}"
    parts: list[Part] = [
        replace(part, content=(Text(_stub(_text_of(part), how)),))
        for part in message.parts
        if isinstance(part, ToolResult)
    ]
    if message.text:
        parts.append(Text(_stub(message.text, how)))
    stub = Message("observation", tuple(parts))
    content, _ = message_slots(stub)
    return Entry(replace(kept, content=content, part="evicted"), stub)


def _stub(text: str, how: str) -> str:
    if len(text) <= STUB_CHARACTERS * 2:
        return text
    left_out = len(text) - STUB_CHARACTERS
    return (
        f"{text[:STUB_CHARACTERS]}\n[{left_out} more characters were evicted from the context; to "
        f"see them again, print the variable or call again in smaller pieces. The log has them: "
        f"{how}]"
    )


def frame(
    strategy: str,
    head: Sequence[Entry],
    notes: str,
    variables: Sequence[VariableView],
    last: int,
) -> Entry:
    """Return the continuation frame that stands in place of a head."""
    lines = [
        f"[continuation] The conversation up to here was compacted: {_count(len(head))} "
        f"{'was' if len(head) == 1 else 'were'} left out (events 1 to {last}; they stay in the "
        "log). Go on from the notes and from what follows; do not start over."
    ]
    if notes:
        lines += ["", NOTES_HEADING, notes]
    if variables:
        lines += ["", VARIABLES_HEADING, *card(variables)]
    message = user("\n".join(lines))
    content, _ = message_slots(message)
    return Entry(Kept(0, "user", content, "frame"), message)


def card(variables: Sequence[VariableView]) -> list[str]:
    """Return a line on each variable of the namespace."""
    lines = [f"- {item.name}: {item.type}, {item.preview[:80]}" for item in variables]
    if len(lines) > CARD_VARIABLES:
        lines = [*lines[:CARD_VARIABLES], f"- and {len(lines) - CARD_VARIABLES} more"]
    return lines


def earlier_notes(head: Sequence[Entry]) -> str:
    """Return the notes of an earlier frame, which a window carries on."""
    for entry in head:
        if entry.kept.part == "frame":
            after = entry.message.text.partition(NOTES_HEADING)[2]
            return after.partition(VARIABLES_HEADING)[0].strip()
    return ""


def clipped(text: str, characters: int) -> str:
    """Return a text, or its beginning and end where it is longer."""
    if len(text) <= characters:
        return text
    half = max(1, characters // 2)
    return f"{text[:half]}\n[… {len(text) - 2 * half} characters …]\n{text[-half:]}"


def rendered(head: Sequence[Entry], tokens: int) -> str:
    """Return a head as the summariser reads it, in about so many tokens at most."""
    most = RENDERED_CHARACTERS
    while True:
        text = "\n\n".join(
            f"{_speaker(entry)}:\n{clipped(_all_text(entry.message), most)}" for entry in head
        )
        if len(text) <= tokens * CHARACTERS_PER_TOKEN or most <= STUB_CHARACTERS:
            return clipped(text, tokens * CHARACTERS_PER_TOKEN)
        most //= 2


def _speaker(entry: Entry) -> str:
    if entry.kept.part == "frame":
        return "EARLIER SUMMARY"
    names = {"user": "USER", "assistant": "AGENT", "observation": "OUTPUT"}
    return names.get(entry.message.role, entry.message.role)


def _count(messages: int) -> str:
    return "1 message" if messages == 1 else f"{messages} messages"


def _text_of(result: ToolResult) -> str:
    return "".join(part.text for part in result.content if isinstance(part, Text))


def _all_text(message: Message) -> str:
    results = [_text_of(part) for part in message.parts if isinstance(part, ToolResult)]
    calls = [f"{call.name}({call.arguments})" for call in message.tool_calls]
    return "\n".join(text for text in (message.text, *calls, *results) if text)
