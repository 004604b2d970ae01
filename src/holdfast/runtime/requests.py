"""The digest of a request: a proof of what the model was sent, kept in `step.started`.

It covers the system text, the tools, the options and every message in order, but not the texts that
are added to one call alone (warnings about limits, transient texts of toolsets). Messages are
chained, so that a step costs only what was said since the last one, and whoever reads the log can
compute the digest again from the messages kept at that position.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from holdfast.core import values
from holdfast.core.errors import InvalidRecord
from holdfast.core.messages import Message, to_record
from holdfast.core.records import canonical, digest_id
from holdfast.core.state import State
from holdfast.models.port import ToolSpec

START = digest_id(b"")


def chained(digest: str, messages: Iterable[Message]) -> str:
    """Return the digest of a transcript that goes on with these messages."""
    for message in messages:
        record, _ = to_record(message)
        try:
            body = canonical(record)
        except InvalidRecord:
            body = values.encode_json(record)  # text with a lone surrogate, which no record holds
        digest = digest_id(digest.encode() + body)
    return digest


def request_digest(
    transcript: str,
    *,
    system: str,
    options: Mapping[str, Any],
    max_output_tokens: int,
    tools: Sequence[ToolSpec] = (),
) -> str:
    """Return the digest of a request whose messages have the digest `transcript`."""
    around = {
        "system": system,
        "options": dict(options),
        "max_output_tokens": max_output_tokens,
        "tools": [
            {"name": tool.name, "about": tool.description, "parameters": dict(tool.parameters)}
            for tool in tools
        ],
    }
    # Options and schemas may hold floats, which records do not: they are encoded as values.
    return digest_id(transcript.encode() + values.encode_json(around))


def parent_call(state: State) -> tuple[str, str] | None:
    """Return the session that a child was asked for by, and the id of that call."""
    return None if state.parent is None else (state.parent["session"], state.parent["call"])
