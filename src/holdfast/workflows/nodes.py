"""Nodes as calls: what each kind puts on record when it starts, and what its outcome means.

Agents, judges, routers that ask a model and workflows are child sessions; people, waits and gates
are suspended from the start; tools, programs and functions are dispatched in this process. All of
them are calls of the run's ledger like any other.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from holdfast.core import values as encoded
from holdfast.core.facts import (
    BudgetReserved,
    CallDispatched,
    CallRequested,
    CallResolved,
    CallSuspended,
    Fact,
    SessionStarted,
)
from holdfast.core.forms import data_of
from holdfast.core.payloads import Slot, manifest, slot
from holdfast.core.state import PendingCall, State, call_reservation
from holdfast.runtime import blueprint as blueprints
from holdfast.runtime import budget
from holdfast.runtime.agent import Agent
from holdfast.runtime.blueprint import Blueprint
from holdfast.runtime.children import Posts, child_id, stops
from holdfast.runtime.engine import Engine
from holdfast.runtime.handlers.tool import first_wait
from holdfast.runtime.settings import Settings, check_model, resolve
from holdfast.runtime.settle import outcome_of
from holdfast.workflows.calls_port import LimitReached, PlainCalls, Start
from holdfast.workflows.evaluation import evaluate
from holdfast.workflows.launching import run_settings, session_started
from holdfast.workflows.model import Node, Workflow, schema_document
from holdfast.workflows.recovery import MODEL_CAUSES
from holdfast.workflows.registry import Registry
from holdfast.workflows.schemas import Schema
from holdfast.workflows.settling import Settling
from holdfast.workflows.templates import render_text
from holdfast.workflows.values import Values

DECISION = {
    "type": "object",
    "properties": {"action": {"enum": ["retry", "replace", "fail"]}, "value": {}},
    "required": ["action"],
    "additionalProperties": False,
}
"""What a person may say about a node that failed."""

CHILDREN = frozenset({"agent", "judge", "workflow"})


def is_child(node: Node) -> bool:
    """Tell whether a session of its own carries a node out."""
    return node.kind in CHILDREN or node.asks


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


@dataclass
class NodeCalls(PlainCalls):
    """The calls of one run's nodes."""

    workflow: Workflow
    settings: Settings  # of the run: the limits that its budget sets
    registry: Registry
    plans: Mapping[str, AgentPlan]
    expected: Callable[[Node], Schema | None] = Settling.expected
    payloads: list[Slot] = field(default_factory=list)
    posts: Posts = field(default_factory=list)
    commits: dict[str, str] = field(default_factory=dict)
    foreign: dict[str, Slot] = field(default_factory=dict)  # large values of children, by ref

    def begin(self) -> None:
        """Forget what belongs to a batch that is planned anew."""
        self.payloads.clear()
        self.posts.clear()

    def commit_of(self, call_id: str) -> str | None:
        """Return the commit of the workspace as a call left it."""
        return self.commits.get(call_id)

    # -- starts

    def request(self, state: State, start: Start) -> list[Fact]:
        """Return the facts that put a node's call on record."""
        if start.asking is not None:
            return list(self._decision(start))
        if is_child(start.node):
            return self._child(state, start)
        match start.node.kind:
            case "human":
                return list(self._human(start))
            case "wait":
                return list(self._wait(start))
            case "tool":
                return list(self._tool(start))
        effect = "pure" if start.node.kind == "compute" else start.node.effect or "once"
        return [
            self._requested(start, effect=effect),
            CallDispatched(calls=[start.call_id]),
        ]

    def _requested(self, begun: Start, /, **fields: Any) -> CallRequested:
        named: dict[str, Any] = {
            "call_id": begun.call_id,
            "name": begun.node.id,
            "executor": "server",
            "effect": "once",
            "kind": "node",
            "arguments": slot(dict(begun.input), "arguments"),
        }
        return CallRequested(**(named | fields))

    def _later(self, start: Start, milliseconds: int | None) -> str | None:
        if milliseconds is None:
            return None
        due = datetime.fromisoformat(start.at) + timedelta(milliseconds=milliseconds)
        return due.strftime("%Y-%m-%dT%H:%M:%S.%fZ")

    def _human(self, start: Start) -> Iterator[Fact]:
        node = start.node
        question = render_text(str(node.subject), start.environment)
        schema = self.expected(node)
        deadline = self._later(start, node.deadline_ms)
        default = None
        if node.on_expiry not in (None, "fail"):
            default = slot(node.on_expiry, "answer")
        yield self._requested(
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
            assignee=_text(node.assignee, start),
        )

    def _decision(self, start: Start) -> Iterator[Fact]:
        text = (
            f"Node {start.node.id} failed ({start.asking}). Try it again, give its value, or fail?"
        )
        asked = {"question": text, "node": start.node.id, "error": start.error}
        yield self._requested(
            start, executor="human", kind="question", arguments=slot(asked, "arguments")
        )
        yield CallSuspended(
            call_id=start.call_id,
            kind="question",
            prompt=slot(text, "prompt"),
            schema=slot(DECISION, "schema"),
            assignee=_text(start.node.assignee, start),
            reason=str(start.asking),
        )

    def _wait(self, start: Start) -> Iterator[Fact]:
        node = start.node
        deadline = self._later(start, node.subject)
        if node.until is not None:
            deadline = str(evaluate(node.until, start.environment))
        signal = _text(node.signal, start)
        asked = {"signal": signal, "until": deadline}
        yield self._requested(
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

    def _tool(self, start: Start) -> Iterator[Fact]:
        tool = self.registry.tools[str(start.node.subject)]
        arguments = dict(start.input)
        approval = tool.needs_approval(arguments)
        yield self._requested(
            start,
            name=tool.name,
            executor=tool.executor,
            effect=start.node.effect or tool.effect,
            kind="tool",
            approval=approval,
        )
        wait = first_wait(tool, start.call_id, tool.name, arguments, approval, start.at)
        yield wait or CallDispatched(calls=[start.call_id])

    # -- children

    def _child(self, state: State, start: Start) -> list[Fact]:
        node = start.node
        child = child_id(state.session, start.call_id)
        grant = self._grant(state, node)
        started: SessionStarted
        task: str | dict[str, Any]
        if node.kind == "workflow":
            started, task = self._sub_run(state, start, child, grant)
        else:
            started, task = self._session(state, start, child, grant)
        schema = self.expected(node)
        asked = {
            "task": task,
            "inputs": {} if node.kind == "workflow" else _bound(start.input),
            "output": None if schema is None else schema_document(schema),
        }
        return [
            self._requested(
                start,
                name=str(node.subject),
                effect="idempotent",
                kind="child",
                arguments=slot(asked, "arguments"),
                child=child,
                start=manifest(data_of(started), "settings"),
                grant=grant,
            ),
            BudgetReserved(
                reservation=call_reservation(start.call_id),
                child=child,
                **grant,  # type: ignore[arg-type]
            ),
            CallSuspended(call_id=start.call_id, kind="child"),
        ]

    def _grant(self, state: State, node: Node) -> budget.Grant:
        names = ("usd", "tokens", "seconds")
        wish = {name: node.budget[name] for name in names if name in node.budget}
        try:
            return budget.grant(self.settings, state, self.workflow.parallel, wish)
        except budget.Exceeded as error:
            excess = error.excess
            raise LimitReached(excess.limit, excess.used, excess.allowed) from error

    def _session(
        self, state: State, start: Start, child: str, grant: budget.Grant
    ) -> tuple[SessionStarted, str]:
        plan = self.plans[start.node.id]
        blueprint = replace(
            plan.blueprint,
            settings=budget.within(plan.blueprint.settings, grant),
            seed=int.from_bytes(encoded.encode(child)[1][-6:], "big"),
        )
        settings, parts = blueprint.slots()
        self.payloads += [settings, *parts]
        return (
            SessionStarted(
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
            ),
            self._task(start),
        )

    def _task(self, start: Start) -> str:
        node = start.node
        text = render_text(node.prompt or _default_prompt(node), start.environment)
        if node.asks:
            text += "\n\nChoose among:\n" + "\n".join(self._targets(node))
        schema = self.expected(node)
        if schema is not None:
            document = json.dumps(schema_document(schema), ensure_ascii=False)
            text += f"\n\nThe final value must fit this JSON schema: {document}"
            if start.failures.get("schema_invalid"):
                text += "\nAn earlier answer did not fit it."
        return text

    def _targets(self, node: Node) -> list[str]:
        lines = []
        for edge in node.next:
            if edge.on == "ok":
                about = self.workflow.nodes[edge.to].description
                lines.append(f"- {edge.to}" + (f": {about}" if about else ""))
        return lines

    def _sub_run(
        self, state: State, start: Start, child: str, grant: budget.Grant
    ) -> tuple[SessionStarted, dict[str, Any]]:
        flow = self.registry.workflows[str(start.node.subject)]
        limits: dict[str, Any] = {
            name: grant[name] for name in ("usd", "tokens", "seconds") if name in grant
        }
        started, parts = session_started(
            flow,
            run_settings(self.settings, flow, limits),
            tenant=state.tenant,
            labels={"node": start.node.id},
            parent={"session": state.session, "call": start.call_id},
            depth=state.depth + 1,
            grant=grant,
        )
        assert started.settings is not None
        self.payloads += [started.settings, *parts]
        return started, {"workflow": flow.document(), "vars": dict(start.input)}

    # -- ends

    def cancel(self, state: State, call: PendingCall) -> list[Fact]:
        """Return what settles a call which nobody waits for any more."""
        self.posts += stops([call])
        return [CallResolved(call_id=call.call_id, outcome=outcome_of(call))]

    def meaning(self, node: Node, result: Slot | None, values: Values) -> tuple[Slot | None, Any]:
        """Return what a call's result means as the output of its node."""
        if not is_child(node) or result is None:
            return super().meaning(node, result, values)
        envelope = values.value(result)
        if "ref" in envelope:
            large = values.foreign(str(envelope["session"]), str(envelope["ref"]))
            return large, values.value(large)
        value = envelope.get("value")
        return slot(value, "output"), value

    def cause(self, node: Node, fact: CallResolved, values: Values) -> tuple[str, str, str | None]:
        """Return why a call failed; of a child, by how its session ended."""
        if not is_child(node) or fact.result is None or fact.outcome != "error":
            return super().cause(node, fact, values)
        envelope = values.value(fact.result)
        status = str(envelope.get("status"))
        message = str(envelope.get("error") or f"the session ended as {status}")
        by_status = {"timed_out": "timeout", "budget_exceeded": "budget_exceeded"}
        code = by_status.get(status)
        if code is None:
            told = str(envelope.get("code") or "")
            code = MODEL_CAUSES.get(told) or (told if node.kind == "workflow" and told else None)
        return code or "agent_failed", message, None


def _text(template: str | None, start: Start) -> str | None:
    return None if template is None else render_text(template, start.environment)


def _bound(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what an agent gets as variables: what has a name that code can use."""
    return {
        name: value for name, value in given.items() if name.isidentifier() and value is not None
    }


def _default_prompt(node: Node) -> str:
    return f"Do the work of {node.id!r} with: {{{{ input }}}}"
