"""Waits: a time that passes, or a signal from outside."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.core.facts import CallSuspended, Fact
from holdfast.core.payloads import slot
from holdfast.workflows.calls_port import Start
from holdfast.workflows.evaluation import evaluate
from holdfast.workflows.nodes.common import later, requested, text_of


def wait(start: Start) -> Iterator[Fact]:
    """Wait until a time, or for a signal by its name."""
    node = start.node
    deadline = later(start, node.subject)
    if node.until is not None:
        deadline = str(evaluate(node.until, start.environment))
    signal = text_of(node.signal, start)
    asked = {"signal": signal, "until": deadline}
    yield requested(
        start,
        executor="human" if signal else "server",
        effect="idempotent",
        arguments=slot(asked, "arguments"),
        deadline=deadline,
    )
    schema = None if node.output is None else slot(node.output.document(), "schema")
    yield CallSuspended(
        call_id=start.call_id,
        kind="signal" if signal else "time",
        prompt=None if signal is None else slot(signal, "prompt"),
        schema=schema,
        deadline=deadline,
    )
