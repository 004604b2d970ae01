"""Calls of nodes: what each kind puts on record when it starts, and what its outcome means.

Agents, judges, routers that ask a model and workflows are child sessions; people, waits and gates
are suspended from the start; tools, programs and functions are dispatched in this process. All of
them are calls of the run's ledger like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.core.facts import BudgetReserved, CallResolved, CallSuspended, Fact, SessionStarted
from holdfast.core.forms import data_of
from holdfast.core.payloads import Slot, manifest, slot
from holdfast.core.run_facts import NodeFinished
from holdfast.core.state import PendingCall, State, call_reservation
from holdfast.runtime import budget
from holdfast.runtime.children import Posts, child_id, stops
from holdfast.runtime.settings import Settings
from holdfast.runtime.settle import outcome_of
from holdfast.workflows.batch import Batch
from holdfast.workflows.calls_port import Kept, LimitReached, PlainCalls, Start
from holdfast.workflows.model import Node, Workflow, schema_document
from holdfast.workflows.nodes import agent, human, tool, wait, workflow
from holdfast.workflows.nodes.agent import AgentPlan
from holdfast.workflows.nodes.common import requested
from holdfast.workflows.nodes.continuing import Continued
from holdfast.workflows.recovery import MODEL_CAUSES
from holdfast.workflows.registry import Registry
from holdfast.workflows.rewinding import Reuse
from holdfast.workflows.schemas import Schema
from holdfast.workflows.settling import Settling
from holdfast.workflows.values import Values, ValuesMissing

CHILDREN = frozenset({"agent", "judge", "workflow"})


def is_child(node: Node) -> bool:
    """Tell whether a session of its own carries a node out."""
    return node.kind in CHILDREN or node.asks


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
    reuse: Reuse | None = None  # of a run that was rewound
    continued: dict[int, Continued | None] = field(default_factory=dict)

    def begin(self) -> None:
        """Forget what belongs to a batch that is planned anew."""
        self.payloads.clear()
        self.posts.clear()

    def commit_of(self, call_id: str) -> str | None:
        """Return the commit of the workspace as a call left it."""
        return self.commits.get(call_id)

    def kept(
        self, batch: Batch, branch: str, node: Node, iteration: Mapping[str, int]
    ) -> Kept | None:
        """Return what the run that this one was rewound from finished in place of an execution."""
        return None if self.reuse is None else self.reuse.find(batch, branch, node, iteration)

    def taken_over(self, kept: Kept) -> NodeFinished:
        """Return the outcome of an execution that is taken over."""
        assert self.reuse is not None
        return self.reuse.outcome(kept)

    # -- starts

    def request(self, state: State, start: Start) -> list[Fact]:
        """Return the facts that put a node's call on record."""
        if start.asking is not None:
            return list(human.decision(start))
        if is_child(start.node):
            return self._child(state, start)
        match start.node.kind:
            case "human":
                return list(human.form(start, self.expected(start.node)))
            case "wait":
                return list(wait.wait(start))
            case "tool":
                return list(tool.tool(start, self.registry))
        return list(tool.dispatched(start))

    def _child(self, state: State, start: Start) -> list[Fact]:
        node = start.node
        child = child_id(state.session, start.call_id)
        grant = self._grant(state, node)
        schema = self.expected(node)
        started: SessionStarted
        task: str | dict[str, Any]
        if node.kind == "workflow":
            started, parts, task = workflow.sub_run(
                self.registry, self.settings, state, start, grant
            )
        else:
            started, parts = agent.session(self.plans[node.id], state, start, child, grant)
            before = self._before(start)
            if before is not None:
                started = before.derived.onto(started)
                parts += before.payloads
            task = agent.task(self.workflow, start, schema)
        self.payloads += parts
        asked = {
            "task": task,
            "inputs": {} if node.kind == "workflow" else agent.bound(start.input),
            "output": None if schema is None else schema_document(schema),
        }
        return [
            requested(
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

    def _before(self, start: Start) -> Continued | None:
        """Return the conversation that a node goes on with, where it does."""
        if start.node.session != "continue":
            return None
        ended = start.environment.ended(start.node.id)
        if ended is None:
            return None
        if ended[0] not in self.continued:
            raise ValuesMissing(continued=ended)
        return self.continued[ended[0]]

    def _grant(self, state: State, node: Node) -> budget.Grant:
        names = ("usd", "tokens", "seconds")
        wish = {name: node.budget[name] for name in names if name in node.budget}
        try:
            return budget.grant(self.settings, state, self.workflow.parallel, wish)
        except budget.Exceeded as error:
            excess = error.excess
            raise LimitReached(excess.limit, excess.used, excess.allowed) from error

    def warnings(self, state: State) -> list[Fact]:
        """Return what the log says of money and tokens of which little is left."""
        return budget.warned(self.settings, state, 0)

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
        until = envelope.get("until")
        return code or "agent_failed", message, until if isinstance(until, str) else None
