"""Messages in our own stored form, free of any provider's types.

Providers change their message types in minor releases; a log must be readable for years. So a
message is a role and a few kinds of part, and it has exactly one record form. A record holds no
floats and no bytes: binary parts are in it by content id, and their bytes are passed separately, so
that whoever stores the record stores them as payloads of their own. What only the provider
understands (signatures, item ids, extra fields) is kept as opaque text in a `ProviderNote`,
so that it can be sent back and never has to be interpreted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, get_args

from holdfast.core.errors import InvalidInput, InvalidRecord
from holdfast.core.facts import Outcome, Role
from holdfast.core.records import Record, digest_id
from holdfast.core.values import is_too_deep


@dataclass(frozen=True, slots=True)
class ProviderNote:
    """What a provider wants back unchanged; `details` is JSON text, never parsed by us.

    `model` is the name of the model that wrote the part: it goes back to no other.
    """

    provider: str
    id: str | None = None
    signature: str | None = None
    details: str | None = None
    model: str | None = None


@dataclass(frozen=True, slots=True)
class Text:
    """Plain text."""

    text: str
    note: ProviderNote | None = None


@dataclass(frozen=True, slots=True)
class Reasoning:
    """What a model thought before it answered; the text may be empty where it is encrypted."""

    text: str
    note: ProviderNote | None = None


@dataclass(frozen=True, slots=True)
class Image:
    """An image, by its bytes."""

    data: bytes
    media_type: str
    name: str | None = None
    note: ProviderNote | None = None


@dataclass(frozen=True, slots=True)
class File:
    """Any other file (document, audio, video), by its bytes."""

    data: bytes
    media_type: str
    name: str | None = None
    note: ProviderNote | None = None


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A model's wish to call a tool; `arguments` is the text exactly as the model wrote it."""

    call_id: str
    name: str
    arguments: str
    note: ProviderNote | None = None

    def parsed(self) -> dict[str, Any]:
        """Return the arguments; raise InvalidInput where their text is not a JSON object."""
        try:
            if is_too_deep(self.arguments.encode()):
                raise ValueError("it is nested too deeply")
            found = json.loads(self.arguments.strip() or "{}", parse_constant=_refuse_constant)
        except ValueError as error:
            raise InvalidInput(
                f"the arguments of {self.name!r} are not valid JSON: {error}; pass a JSON object"
            ) from error
        if not isinstance(found, dict):
            raise InvalidInput(
                f"the arguments of {self.name!r} are a {type(found).__name__}; pass a JSON object"
            )
        return found


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What became of a tool call, as the model is told."""

    call_id: str
    name: str
    content: tuple[Text | Image | File, ...]
    outcome: Outcome = "ok"


def _refuse_constant(word: str) -> Any:
    raise ValueError(f"{word} is not a JSON value")


Part: TypeAlias = Text | Reasoning | Image | File | ToolCall | ToolResult

_KIND_OF: dict[type[Part], str] = {
    Text: "text",
    Reasoning: "reasoning",
    Image: "image",
    File: "file",
    ToolCall: "tool_call",
    ToolResult: "tool_result",
}
_CONTENT: tuple[type[Part], ...] = (Text, Image, File)
_ALLOWED: dict[str, tuple[type[Part], ...]] = {
    "user": _CONTENT,
    "assistant": (*_CONTENT, Reasoning, ToolCall),
    "observation": (*_CONTENT, ToolResult),
}


@dataclass(frozen=True, slots=True)
class Message:
    """One message: who speaks, and what in which order."""

    role: Role
    parts: tuple[Part, ...]

    def __post_init__(self) -> None:
        allowed = _ALLOWED.get(self.role)
        if allowed is None:
            raise InvalidInput(f"role {self.role!r} is not one of {', '.join(_ALLOWED)}")
        for part in self.parts:
            if not isinstance(part, allowed):
                kind = _KIND_OF.get(type(part), type(part).__name__)
                raise InvalidInput(f"a message of role {self.role!r} cannot hold a {kind!r} part")

    @property
    def text(self) -> str:
        """Return the text parts, each on lines of its own, without reasoning and tool parts."""
        return "\n".join(part.text for part in self.parts if isinstance(part, Text))

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """Return the tool calls, in order."""
        return tuple(part for part in self.parts if isinstance(part, ToolCall))


def user(*parts: str | Text | Image | File) -> Message:
    """Return a user message; a bare string is a text part."""
    return Message("user", _parts(parts))


def assistant(*parts: str | Text | Reasoning | Image | File | ToolCall) -> Message:
    """Return an assistant message; a bare string is a text part."""
    return Message("assistant", _parts(parts))


def observation(*parts: str | Text | Image | File | ToolResult) -> Message:
    """Return an observation, what the runtime tells the model; a bare string is a text part."""
    return Message("observation", _parts(parts))


def to_record(message: Message) -> tuple[Record, dict[str, bytes]]:
    """Return the message's record, and the bytes that it names, by content id."""
    binaries: dict[str, bytes] = {}
    record: Record = {
        "role": message.role,
        "parts": [_part_to_record(part, binaries) for part in message.parts],
    }
    return record, binaries


def from_record(record: Mapping[str, Any], binaries: Mapping[str, bytes] | None = None) -> Message:
    """Return the message of a record; `binaries` holds at least what `binaries_of` names."""
    parts = _field(record, "parts", list)
    role = _field(record, "role", str)
    try:
        return Message(role, tuple(_part_from_record(part, binaries or {}) for part in parts))
    except InvalidInput as error:
        raise InvalidRecord(f"message record is unusable: {error}") from error


def binaries_of(record: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the content ids of the bytes that a record names, each once, in order."""
    found: dict[str, None] = {}
    for part in _field(record, "parts", list):
        result = _field(part, "kind", str) == "tool_result"
        for inner in _field(part, "content", list) if result else (part,):
            if _field(inner, "kind", str) in ("image", "file"):
                found[_field(inner, "data", str)] = None
    return tuple(found)


def _parts(parts: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(Text(part) if isinstance(part, str) else part for part in parts)


def _part_to_record(part: Part, binaries: dict[str, bytes]) -> Record:
    record: Record = {"kind": _KIND_OF[type(part)]}
    match part:
        case Text() | Reasoning():
            record["text"] = part.text
        case Image() | File():
            binary = digest_id(part.data)
            binaries[binary] = part.data
            record |= {"data": binary, "size": len(part.data), "media_type": part.media_type}
            if part.name is not None:
                record["name"] = part.name
        case ToolCall():
            record |= {"call_id": part.call_id, "name": part.name, "arguments": part.arguments}
        case ToolResult():
            content = [_part_to_record(inner, binaries) for inner in part.content]
            record |= {"call_id": part.call_id, "name": part.name, "content": content}
            return record | {"outcome": part.outcome}
    return record | _note_to_record(part.note)


def _part_from_record(record: Any, binaries: Mapping[str, bytes]) -> Any:
    kind = _field(record, "kind", str)
    match kind:
        case "text" | "reasoning":
            return (Text if kind == "text" else Reasoning)(
                _field(record, "text", str), _note_from_record(record)
            )
        case "image" | "file":
            binary = _field(record, "data", str)
            if binary not in binaries:
                raise InvalidRecord(
                    f"message record names {binary!r}, whose bytes were not passed: "
                    "load what binaries_of() lists first"
                )
            return (Image if kind == "image" else File)(
                binaries[binary],
                _field(record, "media_type", str),
                _optional(record, "name"),
                _note_from_record(record),
            )
        case "tool_call":
            return ToolCall(
                _field(record, "call_id", str),
                _field(record, "name", str),
                _field(record, "arguments", str),
                _note_from_record(record),
            )
        case "tool_result":
            outcome = _field(record, "outcome", str)
            if outcome not in get_args(Outcome):
                raise InvalidRecord(f"tool result has the unknown outcome {outcome!r}")
            content = tuple(
                _part_from_record(inner, binaries) for inner in _field(record, "content", list)
            )
            if not all(isinstance(inner, _CONTENT) for inner in content):
                raise InvalidRecord("a tool result can hold text, images and files only")
            return ToolResult(
                _field(record, "call_id", str), _field(record, "name", str), content, outcome
            )
    raise InvalidRecord(f"message record has a part of unknown kind {kind!r}")


def _note_to_record(note: ProviderNote | None) -> Record:
    if note is None:
        return {}
    fields = {
        "provider": note.provider,
        "id": note.id,
        "signature": note.signature,
        "details": note.details,
        "model": note.model,
    }
    return {"note": {name: value for name, value in fields.items() if value is not None}}


def _note_from_record(record: Mapping[str, Any]) -> ProviderNote | None:
    if "note" not in record:
        return None
    note = _field(record, "note", dict)
    return ProviderNote(
        _field(note, "provider", str),
        _optional(note, "id"),
        _optional(note, "signature"),
        _optional(note, "details"),
        _optional(note, "model"),
    )


def _field(record: Any, name: str, kind: type) -> Any:
    value = record.get(name) if isinstance(record, Mapping) else None
    if not isinstance(value, kind):
        raise InvalidRecord(f"message record: {name!r} must be a {kind.__name__}, not {value!r}")
    return value


def _optional(record: Mapping[str, Any], name: str) -> str | None:
    return _field(record, name, str) if name in record else None
