"""Our messages to pydantic-ai's and back.

What a provider signs or numbers comes back to it unchanged: it is kept in the part's
`ProviderNote`, whose details are JSON text so that the stored form has no floats. It goes to no
other model: a message that another one wrote is sent without its reasoning, signatures and item
ids, and with ids of calls that any provider accepts. Lone surrogates, which JSON escapes can bring
in and UTF-8 cannot carry, become U+FFFD in both directions.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any, Literal

from pydantic_ai.messages import (
    BinaryContent,
    FilePart,
    ModelMessage,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    ModelResponsePart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserContent,
    UserPromptPart,
)

from holdfast.core.facts import Outcome
from holdfast.core.messages import (
    File,
    Image,
    Message,
    Part,
    ProviderNote,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
)

logger = logging.getLogger("holdfast.models")

_SURROGATE = re.compile("[\ud800-\udfff]")
_PORTABLE_ID = re.compile(r"[A-Za-z0-9_-]{1,40}")  # what OpenAI and Anthropic both take
_STORABLE_ID = re.compile(r"[!-~]{1,100}")
_OUTCOMES: dict[Outcome, Literal["success", "failed", "denied", "interrupted"]] = {
    "ok": "success",
    "error": "failed",
    "denied": "denied",
    "expired": "interrupted",
    "cancelled": "interrupted",
    "unknown": "interrupted",
}


def to_provider(messages: Sequence[Message], model: str) -> list[ModelMessage]:
    """Return the messages in pydantic-ai's form, as they are sent to the model of this name."""
    ids = _call_ids(messages, model)
    return [
        ModelResponse(parts=[_response_part(part, ids) for part in _own_parts(message, model)])
        if message.role == "assistant"
        else ModelRequest(parts=_request_parts(message, ids))
        for message in messages
    ]


def from_provider(response: ModelResponse, model: str) -> Message:
    """Return the assistant message of a response that the model of this name wrote."""
    parts = (_our_part(part, model) for part in response.parts)
    return Message("assistant", _with_own_ids([part for part in parts if part is not None]))


def _own_parts(message: Message, model: str) -> list[Part]:
    """Return what a model is shown of an assistant's message: all, if it wrote it itself."""
    if not any(_is_foreign(part, model) for part in message.parts):
        return list(message.parts)
    return [
        part if isinstance(part, ToolResult) else replace(part, note=None)
        for part in message.parts
        if not isinstance(part, Reasoning)
    ]


def _is_foreign(part: Part, model: str) -> bool:
    """Say whether another model wrote a part; reasoning of unknown origin counts as such."""
    note = None if isinstance(part, ToolResult) else part.note
    if note is None:
        return isinstance(part, Reasoning)
    return note.model != model


def _call_ids(messages: Sequence[Message], model: str) -> dict[str, str]:
    """Return the id that each tool call is sent under: its own, or one that all providers take."""
    ids: dict[str, str] = {}
    for message in messages:
        for call in message.tool_calls:
            own = call.note is not None and call.note.model == model
            ids[call.call_id] = call.call_id if own else _portable_id(call.call_id)
    return ids


def _portable_id(call_id: str) -> str:
    if _PORTABLE_ID.fullmatch(call_id):
        return call_id
    return "call_" + sha256(call_id.encode("utf-8", "surrogatepass")).hexdigest()[:24]


def _with_own_ids(parts: list[Part]) -> tuple[Part, ...]:
    """Return parts whose tool calls have ids that are unique and that the log can hold."""
    taken: set[str] = set()
    found: list[Part] = []
    for part in parts:
        if isinstance(part, ToolCall):
            call_id, number = part.call_id, 1
            if not _STORABLE_ID.fullmatch(call_id):
                call_id = _portable_id(call_id or "none")
            while call_id in taken:
                number += 1
                call_id = f"{part.call_id[:90]}_{number}"
            taken.add(call_id)
            part = replace(part, call_id=call_id)
        found.append(part)
    return tuple(found)


def well_formed(text: str) -> str:
    """Return the text with lone surrogates replaced."""
    return _SURROGATE.sub("\ufffd", text)


def _request_parts(message: Message, ids: Mapping[str, str]) -> list[ModelRequestPart]:
    # Results first: Anthropic wants them at the start of the message that follows their calls.
    results: list[ModelRequestPart] = []
    content: list[UserContent] = []
    for part in message.parts:
        if isinstance(part, ToolResult):
            results.append(_tool_return(part, ids))
        elif isinstance(part, Text | Image | File):
            content.append(_content(part))
    if len(content) == 1 and isinstance(content[0], str):
        return [*results, UserPromptPart(content[0])]
    return [*results, UserPromptPart(content)] if content else results


def _content(part: Text | Image | File) -> str | BinaryContent:
    if isinstance(part, Text):
        return well_formed(part.text)
    return BinaryContent(part.data, media_type=part.media_type, identifier=part.name)


def _tool_return(part: ToolResult, ids: Mapping[str, str]) -> ToolReturnPart:
    content = [_content(inner) for inner in part.content] or [""]
    return ToolReturnPart(
        part.name,
        content[0] if len(content) == 1 else content,
        ids.get(part.call_id) or _portable_id(part.call_id),
        outcome=_OUTCOMES[part.outcome],
    )


def _response_part(part: Part, ids: Mapping[str, str]) -> ModelResponsePart:
    match part:
        case Text():
            return TextPart(well_formed(part.text), **_note_fields(part.note))
        case Reasoning():
            signature = part.note.signature if part.note else None
            fields = _note_fields(part.note)
            return ThinkingPart(well_formed(part.text), signature=signature, **fields)
        case ToolCall():
            arguments = well_formed(part.arguments)
            call_id = ids[part.call_id]
            return ToolCallPart(part.name, arguments, call_id, **_note_fields(part.note))
        case Image() | File():
            content = BinaryContent(part.data, media_type=part.media_type, identifier=part.name)
            return FilePart(BinaryContent.narrow_type(content), **_note_fields(part.note))
        case ToolResult():
            raise TypeError("a message refuses tool results in the assistant's role")


def _our_part(part: ModelResponsePart, model: str) -> Part | None:
    match part:
        case TextPart():
            return Text(well_formed(part.content), _note(part, model))
        case ThinkingPart():
            # Always with a note: reasoning goes back to the model that wrote it and to no other.
            note = _note(part, model, part.signature)
            return Reasoning(well_formed(part.content), note or ProviderNote("", model=model))
        case ToolCallPart():
            arguments = part.args if isinstance(part.args, str) else _json(part.args or {})
            note = _note(part, model) or ProviderNote(part.provider_name or "", model=model)
            return ToolCall(part.tool_call_id, part.tool_name, well_formed(arguments), note)
        case FilePart():
            kind = Image if part.content.is_image else File
            return kind(part.content.data, part.content.media_type, note=_note(part, model))
    logger.warning("a reply held a part of kind %r, which was dropped", part.part_kind)
    return None


def _note(
    part: TextPart | ThinkingPart | ToolCallPart | FilePart,
    model: str,
    signature: str | None = None,
) -> ProviderNote | None:
    if not (part.id or signature or part.provider_details):
        return None
    details = _json(part.provider_details) if part.provider_details else None
    return ProviderNote(part.provider_name or "", part.id, signature, details, model)


def _note_fields(note: ProviderNote | None) -> dict[str, Any]:
    if note is None:
        return {}
    return {
        "id": note.id,
        "provider_name": note.provider or None,
        "provider_details": json.loads(note.details) if note.details else None,
    }


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)
