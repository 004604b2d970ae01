"""Attempts: the calls that this process carries out for a run, begun anew after a kill.

Right before an effect the lease is looked at. What an earlier driver had under way is begun again
where it may be repeated, and has an unknown outcome where it may not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from datetime import datetime
from typing import Any

from holdfast.core.events import now
from holdfast.core.facts import CallDispatched, CallRequested, CallResolved, Fact
from holdfast.core.run_state import RunState
from holdfast.core.state import PendingCall
from holdfast.runtime.children import requested
from holdfast.runtime.journal import Journal
from holdfast.runtime.tools import CallContext
from holdfast.workflows.batch import Batch
from holdfast.workflows.calls_port import Start
from holdfast.workflows.environment import Environment
from holdfast.workflows.graph import Graph
from holdfast.workflows.model import Node
from holdfast.workflows.nodes.carrying import carry_out
from holdfast.workflows.registry import Registry
from holdfast.workflows.templates import render_text
from holdfast.workflows.values import Values, ValuesMissing


class Attempts:
    """What is in flight in this process."""

    def __init__(
        self,
        journal: Journal,
        registry: Registry,
        graph: Graph,
        values: Values,
        load: Callable[[ValuesMissing], Awaitable[None]],
    ) -> None:
        self._journal = journal
        self._registry = registry
        self._graph = graph
        self._values = values
        self._load = load
        self.tasks: dict[str, asyncio.Task[CallResolved]] = {}

    @property
    def _run(self) -> RunState:
        assert self._journal.state.run is not None
        return self._journal.state.run

    async def start(self, start: Start) -> None:
        """Carry out what a batch has put on record, where it belongs to this process."""
        call = self._journal.state.calls.get(start.call_id)
        if call is None or call.stage != "dispatched":
            return
        words = await self._words(start.node, lambda: start.environment)
        self.begin(call, start.node, dict(start.input), words)

    async def _words(self, node: Node, environment: Callable[[], Environment]) -> list[str]:
        """Return the words of a program with the values that they name, loaded as needed."""
        while node.kind == "run":
            try:
                around = environment()
                return [render_text(str(word), around) for word in node.subject]
            except ValuesMissing as missing:
                await self._load(missing)
        return []

    def begin(
        self, call: PendingCall, node: Node, arguments: dict[str, Any], words: list[str]
    ) -> None:
        """Carry out a call; its outcome is the result of a task."""
        context = CallContext(
            call_id=call.call_id,
            session=self._journal.session,
            epoch=self._journal.lease.epoch,
            tenant=self._journal.state.tenant,
            deadline=None if call.deadline is None else datetime.fromisoformat(call.deadline),
        )
        folder = None if self._run.workspace is None else self._run.workspace.path
        work = self._fenced(carry_out(node, self._registry, context, arguments, words, folder))
        self.tasks[call.call_id] = asyncio.ensure_future(work)

    async def _fenced(self, work: Coroutine[Any, Any, CallResolved]) -> CallResolved:
        """Look at the lease right before an effect: fencing protects the log, not the world."""
        try:
            await self._journal.store.renew(self._journal.lease)
        except BaseException:
            work.close()
            raise
        return await work

    async def recover(self) -> None:
        """Go on with calls that an earlier driver began, as far as they may be repeated."""
        lost: list[Fact] = []
        again: list[tuple[PendingCall, str]] = []
        for branch, cursor in self._run.cursors.items():
            call = self._journal.state.calls.get(cursor.call or "")
            if call is None or call.executor != "server" or call.kind == "child":
                continue
            if call.stage == "dispatched" and call.effect == "once":
                lost.append(CallResolved(call_id=call.call_id, outcome="unknown"))
            elif call.stage in ("dispatched", "approved", "requested"):
                again.append((call, branch))
        waiting = [CallDispatched(calls=[call.call_id for call, _ in again])] if again else []
        if lost or waiting:
            await self._journal.append(lambda _: [*lost, *waiting])
        for call, branch in again:
            await self._begin_again(call, branch)

    async def _begin_again(self, call: PendingCall, branch: str) -> None:
        node = self._graph.node(self._run.cursors[branch].node)
        arguments: Any = await self._arguments(call)

        def environment() -> Environment:
            batch = Batch(self._journal.state, now())
            found = Environment(batch, self._graph, self._values, branch)
            return found.having(input=found.received(node))

        words = await self._words(node, environment)
        self.begin(call, node, dict(arguments), words)

    async def _arguments(self, call: PendingCall) -> Any:
        """Return the arguments of a call; those that a person edited, where someone did."""
        request: CallRequested = await requested(self._journal.store, self._journal.session, call)
        return await self._journal.value(request.arguments)

    async def approved(self) -> None:
        """Begin the calls that people let go ahead."""
        ready = [
            (call, branch)
            for branch, cursor in self._run.cursors.items()
            if (call := self._journal.state.calls.get(cursor.call or "")) is not None
            and call.stage == "approved"
            and call.call_id not in self.tasks
        ]
        if not ready:
            return
        ids = [call.call_id for call, _ in ready]
        await self._journal.append(lambda _: [CallDispatched(calls=ids)])
        for call, branch in ready:
            await self._begin_again(self._journal.state.calls[call.call_id], branch)
