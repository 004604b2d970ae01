"""Tools, programs and functions: calls that this process carries out."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.core.facts import CallDispatched, Fact
from holdfast.runtime.handlers.tool import first_wait
from holdfast.workflows.calls_port import Start
from holdfast.workflows.nodes.common import requested
from holdfast.workflows.registry import Registry


def tool(start: Start, registry: Registry) -> Iterator[Fact]:
    """Call a registered tool; one that needs an approval waits for it first."""
    found = registry.tools[str(start.node.subject)]
    arguments = dict(start.input)
    approval = found.needs_approval(arguments)
    yield requested(
        start,
        name=found.name,
        executor=found.executor,
        effect=start.node.effect or found.effect,
        kind="tool",
        approval=approval,
    )
    wait = first_wait(found, start.call_id, found.name, arguments, approval, start.at)
    yield wait or CallDispatched(calls=[start.call_id])


def dispatched(start: Start) -> Iterator[Fact]:
    """Run a program, or call a registered function."""
    effect = "pure" if start.node.kind == "compute" else start.node.effect or "once"
    yield requested(start, effect=effect)
    yield CallDispatched(calls=[start.call_id])
