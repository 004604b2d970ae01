"""Sub-runs: a workflow as a node of another one, a session of its own."""

from __future__ import annotations

from typing import Any

from holdfast.core.facts import SessionStarted
from holdfast.core.payloads import Slot
from holdfast.core.state import State
from holdfast.runtime import budget
from holdfast.runtime.settings import Settings
from holdfast.workflows.calls_port import Start
from holdfast.workflows.launching import run_settings, session_started
from holdfast.workflows.registry import Registry


def sub_run(
    registry: Registry, settings: Settings, state: State, start: Start, grant: budget.Grant
) -> tuple[SessionStarted, list[Slot], dict[str, Any]]:
    """Return how the run below a node starts, what that refers to, and how it is launched."""
    flow = registry.workflows[str(start.node.subject)]
    limits: dict[str, Any] = {
        name: grant[name] for name in ("usd", "tokens", "seconds") if name in grant
    }
    started, parts = session_started(
        flow,
        run_settings(settings, flow, limits),
        tenant=state.tenant,
        labels={"node": start.node.id},
        parent={"session": state.session, "call": start.call_id},
        depth=state.depth + 1,
        grant=grant,
    )
    assert started.settings is not None
    launch = {"workflow": flow.document(), "vars": dict(start.input)}
    return started, [started.settings, *parts], launch
