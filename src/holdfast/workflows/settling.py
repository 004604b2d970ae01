"""Settling: how one execution of a node begins, ends, is tried again, and which edge it takes."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from msgspec.structs import replace

from holdfast.core import facts
from holdfast.core.heads import HeadDraft
from holdfast.core.payloads import Slot, slot
from holdfast.core.run_facts import (
    ArtifactWritten,
    NodeFinished,
    NodeRetried,
    NodeStarted,
    RunFinished,
)
from holdfast.core.run_state import Cursor, RunState
from holdfast.workflows.batch import Batch
from holdfast.workflows.calls_port import NO_SLOT, Calls, LimitReached, Start
from holdfast.workflows.edges import Edges, NoEdge
from holdfast.workflows.environment import Environment, Given
from holdfast.workflows.evaluation import evaluate
from holdfast.workflows.expressions import ExpressionFailed
from holdfast.workflows.graph import Graph
from holdfast.workflows.model import Edge, Node
from holdfast.workflows.plan import Plan
from holdfast.workflows.recovery import backoff_ms, rule_for
from holdfast.workflows.schemas import ANY, Choice, Field, ListOf, ObjectOf, Schema, describe
from holdfast.workflows.scopes import ANSWER, PROGRAM, VERDICT
from holdfast.workflows.templates import fill, render_text
from holdfast.workflows.values import Values

WARN_AT = 0.8


class Settling:
    """The life of single executions."""

    def __init__(
        self, batch: Batch, graph: Graph, values: Values, calls: Calls, plan: Plan
    ) -> None:
        self._batch = batch
        self._graph = graph
        self._values = values
        self._calls = calls
        self._plan = plan
        self._edges = Edges(batch, graph, values)

    @property
    def _run(self) -> RunState:
        return self._batch.run

    def cursor(self, branch: str) -> Cursor:
        """Return where a branch stands."""
        return self._run.cursors[branch]

    def node(self, branch: str) -> Node:
        """Return the node that a branch stands at."""
        return self._graph.node(self.cursor(branch).node)

    def environment(self, branch: str) -> Environment:
        """Return the names that expressions of a branch use."""
        return Environment(self._batch, self._graph, self._values, branch)

    def iteration(self, branch: str) -> dict[str, int]:
        """Return how often the loops around a branch's node were passed."""
        cursor = self.cursor(branch)
        around = self._graph.loops_around[cursor.node]
        return {name: loop.passed for name, loop in sorted(cursor.loops.items()) if name in around}

    def take(self, branch: str, edge: Edge) -> None:
        """Move a branch along an edge that needs no choice."""
        self._edges.take(branch, edge, self.environment(branch))

    def finished(self, branch: str) -> NodeFinished:
        """Return the outcome that an edge of a branch is due for."""
        outcome = self.cursor(branch).outcome
        assert outcome is not None
        fact = self._values.fact(outcome, self._batch)
        assert isinstance(fact, NodeFinished)
        return fact

    # -- beginning

    def start(self, branch: str, *, has_slot: bool) -> None:
        """Begin the node that a branch stands at, if it may."""
        node = self.node(branch)
        if node.calls and self._take_over(branch, node):
            return
        if node.calls and not has_slot and node.kind not in NO_SLOT:
            return
        if self._is_over_budget(node):
            return
        mark = self._batch.mark()
        try:
            given = self._input(branch, node)
            if node.calls:
                self._begin_call(branch, node, given)
            else:
                source = self.environment(branch).came_from()
                self._begin(branch, node, self._own_input(branch, node, given))
                self._settle_by_itself(branch, node, given, source)
        except LimitReached as limit:
            self._batch.take_back(mark)
            self._exceeded(limit.limit, limit.used, limit.allowed)
        except ExpressionFailed as error:
            self._batch.take_back(mark)
            self._begin(branch, node, None)
            self.failure(branch, "expression", error_slot("expression", str(error)))

    def _take_over(self, branch: str, node: Node) -> bool:
        """Take over what the run that this one was rewound from has finished; tell if it did."""
        kept = self._calls.kept(self._batch, branch, node, self.iteration(branch))
        if kept is None:
            return False
        try:
            given = _slot_of(self._input(branch, node))
        except ExpressionFailed:
            return False
        if (None if given is None else given.id) != kept.input:
            return False  # it was given something else there
        if node.forks:  # where it led to is looked up when its branches are opened
            self._begin(branch, node, given, free=True)
            return True
        found = self._calls.taken_over(kept)
        self._begin(branch, node, given, free=True)
        if found.status == "ok":
            value = None if found.output is None else self._values.value(found.output)
            self.success(branch, found.output, value, taken=found)
        else:
            assert found.error is not None
            self.failure(branch, str(found.code), found.error, final=True, reused=found.reused)
        return True

    def _begin(
        self,
        branch: str,
        node: Node,
        given: Slot | None,
        call: str | None = None,
        *,
        free: bool = False,
    ) -> None:
        self._batch.add(
            NodeStarted(
                execution=self._batch.state.next("execution"),
                node=node.id,
                kind=node.kind,
                branch=branch,
                iteration=self.iteration(branch),
                input=given,
                call=call,
                free=free or node.free,
            )
        )

    def _input(self, branch: str, node: Node) -> Given:
        environment = self.environment(branch)
        plain = {name: value for name, value in node.inputs.items() if not _is_secret(value)}
        own = fill(plain, environment)
        secrets = {name: value for name, value in node.inputs.items() if _is_secret(value)}
        return Given({**own, **secrets, **environment.given()})

    def _own_input(self, branch: str, node: Node, given: Given) -> Slot | None:
        """Return what is kept of a node's input; of an `each`, the list that it works through."""
        if node.kind != "each":
            return _slot_of(given)
        items = evaluate(str(node.subject), self.environment(branch).having(input=given))
        if not isinstance(items, list):
            raise ExpressionFailed(f"{node.subject} is {describe(items)}, not a list")
        return slot(items, "input")

    def _begin_call(self, branch: str, node: Node, given: Given) -> None:
        execution = self._batch.state.next("execution")
        call_id = f"{node.id}.{execution}.1"
        self._begin(branch, node, _slot_of(given), call_id)
        self._request(branch, node, given, call_id)

    def _request(
        self, branch: str, node: Node, given: Given, call_id: str, error: Any = None
    ) -> None:
        cursor = self.cursor(branch)
        start = Start(
            branch,
            node,
            cursor.execution,
            cursor.attempt,
            call_id,
            given,
            self.environment(branch).having(input=given),
            at=self._batch.at,
            failures=cursor.attempts,
            asking=cursor.asking,
            error=error,
        )
        self._batch.add(*self._calls.request(self._batch.state, start))
        self._plan.starts.append(start)

    def attempt(self, branch: str) -> None:
        """Begin the attempt that is due on a branch."""
        node, cursor = self.node(branch), self.cursor(branch)
        assert cursor.call is not None
        mark = self._batch.mark()
        try:
            given = self.environment(branch).received(node)
            self._request(branch, node, given, cursor.call)
        except LimitReached as limit:
            self._batch.take_back(mark)
            self._exceeded(limit.limit, limit.used, limit.allowed)

    # -- limits

    def _is_over_budget(self, node: Node) -> bool:
        if node.free:
            return False
        budget = self._graph.workflow.budget
        for limit, used in (("executions", self._run.executions), ("seconds", self._seconds())):
            allowed = budget.get(limit)
            if allowed is None:
                continue
            if used >= allowed:
                self._exceeded(limit, str(used), str(allowed))
                return True
            due = used + (limit == "executions")  # with the one that starts now
            if due >= allowed * WARN_AT and limit not in self._batch.state.warned:
                self._batch.add(
                    facts.BudgetWarned(limit=limit, used=str(used), allowed=str(allowed))
                )
        return False

    def _seconds(self) -> int:
        run = self._run
        if run.active_since is None:
            return run.driven_ms // 1000
        since = datetime.fromisoformat(self._batch.at) - datetime.fromisoformat(run.active_since)
        return (run.driven_ms + round(since.total_seconds() * 1000)) // 1000

    def _exceeded(self, limit: str, used: str, allowed: str) -> None:
        self._batch.add(facts.LimitExceeded(limit=limit, used=used, allowed=allowed))

    # -- nodes that the run settles by itself

    def _settle_by_itself(self, branch: str, node: Node, given: Given, source: str | None) -> None:
        match node.kind:
            case "compute":
                environment = self.environment(branch).having(input=given)
                value = {name: evaluate(text, environment) for name, text in node.subject.items()}
                self.success(branch, slot(value, "output"), value)
            case "done":
                self._done(branch, node, given, source)
            case "fail":
                text = render_text(node.subject or "", self.environment(branch).having(input=given))
                code = node.code or "failed"
                message = text or f"the run came to {node.id!r}"
                self.failure(branch, code, error_slot(code, message), final=True)
            case "router" if not node.forks:
                self.success(branch, None, None)
            case _:
                pass  # it fans out: its branches are opened where fan-outs are tended

    def _done(self, branch: str, node: Node, given: Given, source: str | None) -> None:
        environment = self.environment(branch).having(input=given)
        if node.subject is not None:
            value = fill(node.subject, environment)
        else:  # what the node gave that led here
            value = None if source is None else environment.output(source)
        wanted = self._graph.workflow.output
        problem = None if wanted is None else next(wanted.problems(value), None)
        if problem is not None:
            self.failure(branch, "schema_invalid", error_slot("schema_invalid", problem))
            return
        output = slot(value, "output")
        self._batch.add(self._end(branch, output=output))
        self._batch.add(RunFinished(output=output))
        self._plan.head = HeadDraft(kind="run_final", final=output)

    # -- endings

    def outcome(self, branch: str) -> None:
        """Settle a node whose call has an outcome."""
        cursor, node = self.cursor(branch), self.node(branch)
        assert cursor.resolved is not None
        fact = self._values.fact(cursor.resolved, self._batch)
        assert isinstance(fact, facts.CallResolved)
        if cursor.asking is not None:
            self._decided(branch, node, fact)
        elif fact.outcome == "ok" or self._ends_well(node, fact):
            self._accept(branch, node, *self._calls.meaning(node, fact.result, self._values))
        else:
            code, message, until = self._calls.cause(node, fact, self._values)
            self.failure(branch, code, error_slot(code, message, until))

    def _ends_well(self, node: Node, fact: facts.CallResolved) -> bool:
        if fact.outcome != "expired":
            return False
        # The deadline of a wait is what it waits for; that of a form may bring an answer.
        return fact.result is not None or (node.kind == "wait" and node.signal is None)

    def _decided(self, branch: str, node: Node, fact: facts.CallResolved) -> None:
        """Do what a person said about a failure: try again, take a value, or fail."""
        cursor = self.cursor(branch)
        assert cursor.asking is not None
        answer = self._values.value(fact.result) if fact.result is not None else {}
        action = answer.get("action") if isinstance(answer, Mapping) else None
        if fact.outcome == "ok" and action == "retry":
            self._retry(branch, cursor.asking, None, None)
        elif fact.outcome == "ok" and action == "replace":
            value = answer.get("value")
            self._accept(branch, node, slot(value, "output"), value)
        else:
            message = f"{node.id} failed ({cursor.asking}), and nobody wanted to go on"
            self.failure(branch, cursor.asking, error_slot(cursor.asking, message), final=True)

    def _accept(self, branch: str, node: Node, result: Slot | None, value: Any) -> None:
        problem = self._problem(node, value)
        if problem is not None:
            self.failure(branch, "schema_invalid", error_slot("schema_invalid", problem))
            return
        output = None if result is None else replace(result, kind="output")
        if node.asks and node.many:
            return  # it fans out to what was chosen
        self.success(branch, output, value)

    def _problem(self, node: Node, value: Any) -> str | None:
        schema = self.expected(node)
        return None if schema is None else next(schema.problems(value), None)

    @staticmethod
    def expected(node: Node) -> Schema | None:
        """Return what the output of a node must be."""
        if node.asks:
            targets = Choice(tuple(edge.to for edge in node.next if edge.on == "ok"))
            chosen = ListOf(targets, 1) if node.many else targets
            return ObjectOf({"chosen": Field(chosen)}, ANY)
        if node.output is not None:
            return node.output
        return {"judge": VERDICT, "human": ANSWER, "run": PROGRAM}.get(node.kind)

    def _end(self, branch: str, **fields: Any) -> NodeFinished:
        cursor = self.cursor(branch)
        return NodeFinished(
            execution=cursor.execution,
            node=cursor.node,
            branch=branch,
            iteration=self.iteration(branch),
            **fields,
        )

    def success(
        self, branch: str, output: Slot | None, value: Any, taken: NodeFinished | None = None
    ) -> None:
        """End an execution well, publish what it gave, and take an edge.

        `taken` is the outcome in another run, where it was taken over from there.
        """
        node, cursor = self.node(branch), self.cursor(branch)
        problem = self._problem(node, value) if node.kind == "compute" else None
        if problem is not None:
            self.failure(branch, "schema_invalid", error_slot("schema_invalid", problem))
            return
        commit = self._calls.commit_of(cursor.call) if cursor.call is not None else None
        reused = None
        if taken is not None:
            commit, reused = taken.commit, taken.reused
        mark = self._batch.mark()
        try:
            self._batch.add(self._end(branch, output=output, commit=commit, reused=reused))
            if node.publish is not None and output is not None:
                self._publish(branch, node, output)
            self._edges.leave(branch, node, "ok", output=value)
        except NoEdge:
            self._batch.take_back(mark)
            self.failure(branch, "no_edge", error_slot("no_edge", "no edge is left"))
        except ExpressionFailed as error:
            self._batch.take_back(mark)
            self.failure(branch, "expression", error_slot("expression", str(error)))

    def _publish(self, branch: str, node: Node, output: Slot) -> None:
        self._batch.add(
            ArtifactWritten(
                node=node.id,
                version=self._batch.state.next_version(node.id),
                data=replace(output, kind="artifact"),
                name=node.publish,
                execution=self.cursor(branch).execution,
                branch=branch,
                iteration=self.iteration(branch),
            )
        )

    def failure(
        self,
        branch: str,
        code: str,
        error: Slot,
        *,
        final: bool = False,
        reused: dict[str, str | int] | None = None,
    ) -> None:
        """Try again, ask a person, take a failure edge, or let the branch fail."""
        node, cursor = self.node(branch), self.cursor(branch)
        rule = rule_for(code, node.retry, self._graph.workflow.retry)
        if node.calls and not final and cursor.call is not None:
            if cursor.attempts.get(code, 0) < rule.times:
                wait = backoff_ms(rule, cursor.attempts.get(code, 0) + 1)
                self._retry(branch, code, error, self._later(wait, error))
                return
            if rule.then == "ask":
                self._ask(branch, code, error)
                return
        self._batch.add(self._end(branch, status="failed", code=code, error=error, reused=reused))
        mark = self._batch.mark()
        try:
            self._edges.leave(branch, node, "failure", error=self._values.value(error))
        except (NoEdge, ExpressionFailed):
            self._batch.take_back(mark)  # the branch stands failed, and goes where that leads

    def _later(self, wait_ms: int, error: Slot) -> str | None:
        """Return when the next attempt is due; a limit that says when it resets is believed."""
        said = self._values.value(error)
        if isinstance(said, Mapping) and isinstance(said.get("until"), str):
            return str(said["until"])
        if wait_ms <= 0:
            return None
        due = datetime.fromisoformat(self._batch.at) + timedelta(milliseconds=wait_ms)
        return due.strftime("%Y-%m-%dT%H:%M:%S.%fZ")

    def _retry(self, branch: str, code: str, error: Slot | None, until: str | None) -> None:
        cursor = self.cursor(branch)
        attempt = cursor.attempt + 1
        self._batch.add(
            NodeRetried(
                execution=cursor.execution,
                node=cursor.node,
                attempt=attempt,
                code=code,
                call=f"{cursor.node}.{cursor.execution}.{attempt}",
                branch=branch,
                iteration=self.iteration(branch),
                error=error,
                until=until,
            )
        )

    def _ask(self, branch: str, code: str, error: Slot) -> None:
        cursor, node = self.cursor(branch), self.node(branch)
        call_id = f"{cursor.node}.{cursor.execution}.{cursor.attempt}?{code}"
        self._batch.add(
            NodeRetried(
                execution=cursor.execution,
                node=cursor.node,
                attempt=cursor.attempt,
                code=code,
                call=call_id,
                branch=branch,
                iteration=self.iteration(branch),
                then="ask",
                error=error,
            )
        )
        given = self.environment(branch).received(node)
        self._request(branch, node, given, call_id, self._values.value(error))

    def give_up(self, branch: str) -> None:
        """End what a branch has under way, as if its node had not begun."""
        cursor = self._run.cursors.get(branch)
        if cursor is None or cursor.phase != "running":
            return
        call = self._batch.state.calls.get(cursor.call or "")
        if call is not None:
            self._batch.add(*self._calls.cancel(self._batch.state, call))
            self._plan.cancelled.append(call.call_id)
        self._batch.add(self._end(branch, status="cancelled"))


def error_slot(code: str, message: str, until: Any = None) -> Slot:
    """Return an error as facts hold it; `until` says when a limit resets."""
    error = {"code": code, "message": message}
    return slot(error | {"until": until} if isinstance(until, str) else error, "error")


def _slot_of(given: Given) -> Slot | None:
    return slot(dict(given), "input") if given else None


def _is_secret(value: Any) -> bool:
    return isinstance(value, str) and "secrets." in value and value.strip().startswith("{{")
