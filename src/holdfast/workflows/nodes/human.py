"""People: forms of `human` nodes, and what a person is asked about a node that failed."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.core.facts import CallSuspended, Fact
from holdfast.core.payloads import slot
from holdfast.workflows.calls_port import Start
from holdfast.workflows.nodes.common import later, requested, text_of
from holdfast.workflows.schemas import Schema
from holdfast.workflows.templates import render_text

DECISION = {
    "type": "object",
    "properties": {"action": {"enum": ["retry", "replace", "fail"]}, "value": {}},
    "required": ["action"],
    "additionalProperties": False,
}
"""What a person may say about a node that failed."""


def form(start: Start, schema: Schema | None) -> Iterator[Fact]:
    """Ask a person, by the schema of the node's output."""
    node = start.node
    question = render_text(str(node.subject), start.environment)
    deadline = later(start, node.deadline_ms)
    default = None
    if node.on_expiry not in (None, "fail"):
        default = slot(node.on_expiry, "answer")
    yield requested(
        start,
        executor="human",
        kind="question",
        arguments=slot({"question": question, **start.input}, "arguments"),
        deadline=deadline,
    )
    yield CallSuspended(
        call_id=start.call_id,
        kind="question",
        prompt=slot(question, "prompt"),
        schema=None if schema is None else slot(schema.document(), "schema"),
        deadline=deadline,
        default=default,
        assignee=text_of(node.assignee, start),
    )


def decision(start: Start) -> Iterator[Fact]:
    """Ask a person what to do about a node that failed."""
    text = f"Node {start.node.id} failed ({start.asking}). Try it again, give its value, or fail?"
    asked = {"question": text, "node": start.node.id, "error": start.error}
    yield requested(start, executor="human", kind="question", arguments=slot(asked, "arguments"))
    yield CallSuspended(
        call_id=start.call_id,
        kind="question",
        prompt=slot(text, "prompt"),
        schema=slot(DECISION, "schema"),
        assignee=text_of(start.node.assignee, start),
        reason=str(start.asking),
    )
