"""What the nodes of all kinds share: the request of a call, and texts filled in for it."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from holdfast.core.facts import CallRequested
from holdfast.core.payloads import slot
from holdfast.workflows.calls_port import Start
from holdfast.workflows.templates import render_text


def requested(begun: Start, /, **fields: Any) -> CallRequested:
    """Return the request of a node's call; `fields` say what is not as usual."""
    named: dict[str, Any] = {
        "call_id": begun.call_id,
        "name": begun.node.id,
        "executor": "server",
        "effect": "once",
        "kind": "node",
        "arguments": slot(dict(begun.input), "arguments"),
    }
    return CallRequested(**(named | fields))


def later(start: Start, milliseconds: int | None) -> str | None:
    """Return the time so long after a start."""
    if milliseconds is None:
        return None
    due = datetime.fromisoformat(start.at) + timedelta(milliseconds=milliseconds)
    return due.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def text_of(template: str | None, start: Start) -> str | None:
    """Return a text of a node with the values that it names."""
    return None if template is None else render_text(template, start.environment)
