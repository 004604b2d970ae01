"""Agents, judges and routers that ask a model: sessions of their own, and their task."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from holdfast.core import values as encoded
from holdfast.core.facts import SessionStarted
from holdfast.core.payloads import Slot
from holdfast.core.state import State
from holdfast.runtime import blueprint as blueprints
from holdfast.runtime import budget
from holdfast.runtime.agent import Agent
from holdfast.runtime.blueprint import Blueprint
from holdfast.runtime.engine import Engine
from holdfast.runtime.settings import check_model, resolve
from holdfast.workflows.calls_port import Start
from holdfast.workflows.model import Node, Workflow, schema_document
from holdfast.workflows.schemas import Schema
from holdfast.workflows.templates import render_text


@dataclass(frozen=True, slots=True)
class AgentPlan:
    """What the session of a node is driven with."""

    blueprint: Blueprint
    agent: Agent[Any]


async def plan_agent(engine: Engine, node: Node, folder: str | None) -> AgentPlan:
    """Return what a node's session is driven with, before any of them exists."""
    name = _agent_name(engine, node)
    agent = engine.agent(name)
    given = engine.resolved.settings.to_record()
    own: dict[str, Any] = {**node.limits, "model": node.model}
    if folder is not None:
        own["work_area"] = folder
    if node.timeout_ms is not None:
        own["turn_seconds"] = math.ceil(node.timeout_ms / 1000)
    for layer in (agent.given(), own):
        given |= {key: value for key, value in layer.items() if value is not None}
    settings = resolve(given, environment={}).settings
    check_model(settings)
    engine.model(settings.model)
    card = ""
    if settings.harness == "code":
        card = (await engine.kernels.choose(settings.kernel, None)).card
    blueprint = blueprints.draft(
        settings, agent, kernel_card=card, capability=None, seed=0, store=engine.store, depth=1
    )
    return AgentPlan(blueprint, agent)


def _agent_name(engine: Engine, node: Node) -> str:
    if not node.asks:
        return str(node.subject)
    return "router" if "router" in engine.agents else next(iter(engine.agents))


def session(
    plan: AgentPlan, state: State, start: Start, child: str, grant: budget.Grant
) -> tuple[SessionStarted, list[Slot]]:
    """Return how the session of a node starts, and what that refers to."""
    blueprint = replace(
        plan.blueprint,
        settings=budget.within(plan.blueprint.settings, grant),
        seed=int.from_bytes(encoded.encode(child)[1][-6:], "big"),
    )
    settings, parts = blueprint.slots()
    started = SessionStarted(
        tenant=state.tenant,
        kind="child",
        agent=plan.agent.name,
        agent_version=plan.agent.version,
        settings=settings,
        cache_id=child,
        labels={"node": start.node.id},
        parent={"session": state.session, "call": start.call_id},
        depth=state.depth + 1,
        grant=grant,
    )
    return started, [settings, *parts]


def task(workflow: Workflow, start: Start, schema: Schema | None) -> str:
    """Return what the session of a node is told to do."""
    node = start.node
    text = render_text(node.prompt or _default_prompt(node), start.environment)
    if node.asks:
        text += "\n\nChoose among:\n" + "\n".join(_targets(workflow, node))
    if schema is not None:
        document = json.dumps(schema_document(schema), ensure_ascii=False)
        text += f"\n\nThe final value must fit this JSON schema: {document}"
        if start.failures.get("schema_invalid"):
            text += "\nAn earlier answer did not fit it."
    return text


def _targets(workflow: Workflow, node: Node) -> list[str]:
    lines = []
    for edge in node.next:
        if edge.on == "ok":
            about = workflow.nodes[edge.to].description
            lines.append(f"- {edge.to}" + (f": {about}" if about else ""))
    return lines


def bound(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what an agent gets as variables: what has a name that code can use."""
    return {
        name: value for name, value in given.items() if name.isidentifier() and value is not None
    }


def _default_prompt(node: Node) -> str:
    return f"Do the work of {node.id!r} with: {{{{ input }}}}"
