"""Our messages to pydantic-ai's and back.

What a provider signs or numbers comes back to it unchanged: it is kept in the part's
`ProviderNote`, whose details are JSON text so that the stored form has no floats. Lone surrogates,
which JSON escapes can smuggle in and UTF-8 cannot carry, become U+FFFD in both directions.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Sequence
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
_OUTCOMES: dict[Outcome, Literal["success", "failed", "denied", "interrupted"]] = {
    "ok": "success",
    "error": "failed",
    "denied": "denied",
    "expired": "interrupted",
    "cancelled": "interrupted",
    "unknown": "interrupted",
}


def to_provider(messages: Sequence[Message]) -> list[ModelMessage]:
    """Return the messages in pydantic-ai's form."""
    return [
        ModelResponse(parts=[_response_part(part) for part in message.parts])
        if message.role == "assistant"
        else ModelRequest(parts=_request_parts(message))
        for message in messages
    ]


def from_provider(response: ModelResponse) -> Message:
    """Return the assistant message of a response."""
    parts = (_our_part(part) for part in response.parts)
    return Message("assistant", tuple(part for part in parts if part is not None))


def well_formed(text: str) -> str:
    """Return the text with lone surrogates replaced."""
    return _SURROGATE.sub("\ufffd", text)


def _request_parts(message: Message) -> list[ModelRequestPart]:
    # Results first: Anthropic wants them at the start of the message that follows their calls.
    results: list[ModelRequestPart] = []
    content: list[UserContent] = []
    for part in message.parts:
        if isinstance(part, ToolResult):
            results.append(_tool_return(part))
        elif isinstance(part, Text | Image | File):
            content.append(_content(part))
    if len(content) == 1 and isinstance(content[0], str):
        return [*results, UserPromptPart(content[0])]
    return [*results, UserPromptPart(content)] if content else results


def _content(part: Text | Image | File) -> str | BinaryContent:
    if isinstance(part, Text):
        return well_formed(part.text)
    return BinaryContent(part.data, media_type=part.media_type, identifier=part.name)


def _tool_return(part: ToolResult) -> ToolReturnPart:
    content = [_content(inner) for inner in part.content]
    return ToolReturnPart(
        part.name,
        content[0] if len(content) == 1 else content,
        part.call_id,
        outcome=_OUTCOMES[part.outcome],
    )


def _response_part(part: Part) -> ModelResponsePart:
    match part:
        case Text():
            return TextPart(well_formed(part.text), **_note_fields(part.note))
        case Reasoning():
            signature = part.note.signature if part.note else None
            fields = _note_fields(part.note)
            return ThinkingPart(well_formed(part.text), signature=signature, **fields)
        case ToolCall():
            arguments = well_formed(part.arguments)
            return ToolCallPart(part.name, arguments, part.call_id, **_note_fields(part.note))
        case Image() | File():
            content = BinaryContent(part.data, media_type=part.media_type, identifier=part.name)
            return FilePart(BinaryContent.narrow_type(content), **_note_fields(part.note))
        case ToolResult():
            raise TypeError("a message refuses tool results in the assistant's role")


def _our_part(part: ModelResponsePart) -> Part | None:
    match part:
        case TextPart():
            return Text(well_formed(part.content), _note(part))
        case ThinkingPart():
            return Reasoning(well_formed(part.content), _note(part, part.signature))
        case ToolCallPart():
            arguments = part.args if isinstance(part.args, str) else _json(part.args or {})
            return ToolCall(part.tool_call_id, part.tool_name, well_formed(arguments), _note(part))
        case FilePart():
            kind = Image if part.content.is_image else File
            return kind(part.content.data, part.content.media_type, note=_note(part))
    logger.warning("a reply held a part of kind %r, which was dropped", part.part_kind)
    return None


def _note(
    part: TextPart | ThinkingPart | ToolCallPart | FilePart, signature: str | None = None
) -> ProviderNote | None:
    if not (part.id or signature or part.provider_details):
        return None
    details = _json(part.provider_details) if part.provider_details else None
    return ProviderNote(part.provider_name or "", part.id, signature, details)


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
