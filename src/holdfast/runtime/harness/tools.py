"""The tools harness: native tool calls of a model, and its text as the answer.

The calls of one reply are requested together in one batch, and those that run here are dispatched
in it and run side by side; each outcome is recorded as it comes. Some may wait for people: the turn
goes on when the last outcome is in, with one message that holds all results in the order of the
reply's calls. A call of an agent that was given as a tool is answered by a child session and waits
from its start, as `rlm` does in code. Wrong arguments and unknown tools are results that the model
can act on. A reply without a tool call is the answer.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from holdfast.core import values
from holdfast.core.errors import HoldfastError, InvalidInput
from holdfast.core.facts import (
    CallApproved,
    CallDispatched,
    CallKind,
    CallRequested,
    CallResolved,
    CallSuspended,
    Fact,
    Outcome,
)
from holdfast.core.messages import Message, Text, ToolCall, ToolResult, observation
from holdfast.core.payloads import Slot, slot, slot_of_bytes
from holdfast.core.state import OpenTurn, State
from holdfast.kernels.port import Encoded
from holdfast.models.port import ToolSpec
from holdfast.runtime import budget
from holdfast.runtime.blueprint import Blueprint
from holdfast.runtime.calls import pages
from holdfast.runtime.children import Children
from holdfast.runtime.dispatch import Dispatcher, Running
from holdfast.runtime.engine import Engine
from holdfast.runtime.handlers.question import deadline_after
from holdfast.runtime.handlers.tool import first_wait, outside_wait, unknown_wait
from holdfast.runtime.harness import Acted
from holdfast.runtime.hooks import Halted
from holdfast.runtime.journal import Journal
from holdfast.runtime.shortage import Shortage
from holdfast.runtime.signals import NeedsAnswer, answer_wait
from holdfast.runtime.spawning import ChildDraft, Spawning, wish_of
from holdfast.runtime.tools import Tool, Toolset, not_here, path
from holdfast.runtime.transcript import Transcript

if TYPE_CHECKING:
    from holdfast.runtime.recordings import SessionRecording

RESULT_CHARACTERS = 60_000
"""A longer result is shown as its beginning and its size; the whole of it stays in the log."""
SEPARATOR = "__"
NO_CHILD: Any = {"child": None, "start": None, "grant": {}}
"""What a replay changes in a call that a child answered: the child is replayed by itself."""


@dataclass(slots=True)
class _Call:
    """One tool call of the reply, with what the log has of it."""

    wish: ToolCall
    request: CallRequested | None = None
    approved: CallApproved | None = None
    resolved: CallResolved | None = None


class ToolsHarness:
    """Carries out the tool calls of one session's replies."""

    def __init__(
        self,
        engine: Engine,
        journal: Journal,
        blueprint: Blueprint,
        toolsets: tuple[Toolset, ...],
        transcript: Transcript,
        children: Children,
        shortage: Shortage,
    ) -> None:
        self.journal = journal
        self.children = children
        self.shortage = shortage
        self.blueprint = blueprint
        self.dispatcher = Dispatcher(journal, engine.guards)
        self._engine = engine
        self._replay = engine.replay
        self._fresh: set[str] = set()
        """Calls that this process recorded as dispatched and has not run yet."""
        self._tools = {
            spec_name(toolset, tool): (path(toolset, tool), tool)
            for toolset in toolsets
            for tool in toolset.tools
        }

    @property
    def details(self) -> Mapping[str, Any]:
        """Return what a turn records of its harness."""
        return {"harness": "tools"}

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """Return the tools as the model is told of them."""
        return tuple(
            ToolSpec(name, tool.doc, dict(tool.parameters))
            for name, (_, tool) in self._tools.items()
        )

    def can_go_on(self) -> bool:
        """Tell whether more can be done though calls wait: all results are shown as one message."""
        return False

    def matches(self, vars: Slot | None) -> bool:
        """Tell whether what is in memory is what the log says: there is nothing in memory."""
        return True

    async def close(self) -> None:
        """Let go of nothing."""

    async def bind(self, inputs: Mapping[str, Slot]) -> tuple[Slot | None, list[Slot]]:
        """Take a turn's inputs; a session without code has no namespace to bind them in."""
        return None, []

    async def act(self, reply: Message) -> Acted:
        """Carry out what is left of a reply's tool calls; text without any is the answer."""
        if not reply.tool_calls:
            return Acted(final=slot(reply.text, "final"))
        calls = [_Call(wish) for wish in reply.tool_calls]
        if self._replay is not None:
            return await self._repeat(calls, self._replay)
        await self._refresh(calls)
        if any(call.request is None for call in calls):
            await self._request(calls)
        self.children.take_up()  # beside the tools that run here
        while True:
            await self._refresh(calls)
            ready = [call for call in calls if self._is_ready(call)]
            if ready:
                await self._run_all(ready)
                continue
            if all(call.resolved is not None for call in calls):
                await self._tell_of_children(calls)
                return Acted((await self._results(calls),))
            return Acted(waits=True)

    async def _repeat(self, calls: list[_Call], replay: SessionRecording) -> Acted:
        """Take the calls of a reply from a recording: nothing is dispatched, nobody is asked."""
        recorded = replay.native.get(self.journal.state.counters.get("answered", 0) - 1, {})
        facts: list[Fact] = []
        for index, call in enumerate(calls):
            known = recorded.get(index)
            if known is None:
                replay.unrecorded.append((0, call.wish.name))
                return Acted(final=slot("", "final"))
            call.request, call.approved = known.request, known.approved
            call.resolved = known.resolved or CallResolved(
                call_id=known.request.call_id, outcome="cancelled"
            )
            asked = replace(
                known.request,
                call_id=self._call_id(index),
                turn=self._turn.turn,
                step=self._turn.step,
                arguments=await replay.whole(known.request.arguments),
                **({} if known.request.child is None else NO_CHILD),
            )
            done = replace(
                call.resolved,
                call_id=asked.call_id,
                wait=None,
                result=await replay.whole(call.resolved.result),
                error=await replay.whole(call.resolved.error),
            )
            facts += [asked, done]
            call.resolved = done
            if known.approved is not None:
                edited = await replay.whole(known.approved.arguments)
                call.approved = replace(known.approved, arguments=edited)
        await self.journal.append(lambda _: facts)
        return Acted((await self._results(calls),))

    @property
    def _turn(self) -> OpenTurn:
        turn = self.journal.state.turn
        assert turn is not None
        return turn

    def _call_id(self, index: int) -> str:
        return f"t{self._turn.step}.{index}"

    async def _refresh(self, calls: list[_Call]) -> None:
        by_id = {self._call_id(index): call for index, call in enumerate(calls)}
        types = [CallRequested.TYPE, CallApproved.TYPE, CallResolved.TYPE]
        journal = self.journal
        async for event in pages(journal.store, journal.session, self._turn.step_seq, types):
            fact = event.fact()
            match fact:
                case CallRequested(call_id=call_id) if call_id in by_id:
                    by_id[call_id].request = fact
                case CallApproved(call_id=call_id) if call_id in by_id:
                    gated = by_id[call_id]
                    # The first is the gate's; later ones let a tool that asked go on.
                    if gated.request is not None and gated.request.approval:
                        gated.approved = gated.approved or fact
                case CallResolved(call_id=call_id) if call_id in by_id:
                    by_id[call_id].resolved = fact

    async def _request(self, calls: list[_Call]) -> None:
        """Record the intent of every call, with what it waits for, and start those that do not."""
        drafts, refused = await self._drafts(calls)
        while True:
            known = self.shortage.blueprint
            try:
                return await self._record(calls, drafts, refused)
            except budget.Exceeded as error:
                if not await self.shortage.relieved(error.excess, known):
                    refused |= dict.fromkeys(drafts, f"BudgetExceeded: {error}")
                    drafts = {}

    async def _record(
        self, calls: list[_Call], drafts: Mapping[int, ChildDraft], refused: Mapping[int, str]
    ) -> None:
        started: set[str] = set()
        payloads: list[Slot] = []  # what the first records of children refer to

        def build(state: State) -> list[Fact]:
            facts: list[Fact] = []
            starts: list[str] = []
            payloads.clear()
            for index, call in enumerate(calls):
                if call.request is None and index in drafts:
                    grant = self._spawning.grant(state, len(drafts), drafts[index].budget)
                    made, parts = drafts[index].facts(state, grant)
                    facts += made
                    payloads.extend(parts)
                elif call.request is None:
                    why = refused.get(index)
                    facts += self._intent(index, call, state.updated_at, starts, why)
            started.update(starts)
            return [*facts, CallDispatched(calls=starts)] if starts else facts

        await self.journal.append(build, payloads=payloads)
        self._fresh |= started

    @property
    def _spawning(self) -> Spawning:
        return Spawning(self._engine, self.journal, self.shortage)

    async def _drafts(self, calls: list[_Call]) -> tuple[dict[int, ChildDraft], dict[int, str]]:
        """Return the children that calls of a reply ask for, and why others get none, by index."""
        drafts: dict[int, ChildDraft] = {}
        refused: dict[int, str] = {}
        for index, call in enumerate(calls):
            name, tool, arguments, problem = self._understood(call.wish)
            if call.request is not None or tool is None or tool.delegate is None or problem:
                continue
            # Asked before the intent: once recorded, the child is made by whoever drives.
            await self.dispatcher.allow(self._asked_of(tool, name, self._call_id(index), arguments))
            intent = self._requested(index, call, name, arguments, tool, kind="child")
            try:
                wish = wish_of(tool, arguments)
                self._spawning.check(name, wish)
                (drafts[index],) = await self._spawning.drafts([intent], wish)
            except (TypeError, ValueError, HoldfastError) as error:
                refused[index] = f"{type(error).__name__}: {error}"
        return drafts, refused

    def _asked_of(
        self, tool: Tool, name: str, call_id: str, arguments: Mapping[str, Any]
    ) -> Running:
        turn = self._turn
        return Running(
            tool=tool,
            name=name,
            call_id=call_id,
            kwargs=arguments,
            turn=turn.turn,
            step=turn.step,
        )

    async def _tell_of_children(self, calls: list[_Call]) -> None:
        """Tell the hooks what came of the calls that children answered."""
        for call in calls:
            request, done = call.request, call.resolved
            tool = None if request is None else self._tool(request.name)
            if request is None or done is None or tool is None or request.kind != "child":
                continue
            if not self.dispatcher.hooks.has("after_tool"):
                return
            found = None if done.result is None else await self.journal.hydrate(done.result)
            value = None if found is None else Encoded(found.encoding, found.data or b"")
            why = None if done.error is None else str(await self.journal.value(done.error))
            arguments: Any = await self.journal.value(request.arguments)
            running = self._asked_of(tool, request.name, request.call_id, arguments)
            await self.dispatcher.told(running, (done.outcome, value, why))

    def _intent(
        self, index: int, call: _Call, at: str, starts: list[str], refused: str | None
    ) -> list[Fact]:
        call_id = self._call_id(index)
        name, tool, arguments, problem = self._understood(call.wish)
        problem = problem or refused
        approval = tool is not None and problem is None and tool.needs_approval(arguments)
        deadline = None if tool is None else deadline_after(at, tool.deadline_seconds)
        request = replace(
            self._requested(index, call, name, arguments if problem is None else None, tool),
            approval=approval,
            deadline=deadline,
        )
        if tool is None or problem is not None:
            error = slot(problem or "no such tool", "error")
            return [request, CallResolved(call_id=call_id, outcome="error", error=error)]
        wait = first_wait(tool, call_id, name, arguments, approval, at)
        if wait is not None:
            return [request, wait]
        starts.append(call_id)
        return [request]

    def _requested(
        self,
        index: int,
        call: _Call,
        name: str,
        arguments: Mapping[str, Any] | None,
        tool: Tool | None,
        kind: CallKind = "tool",
    ) -> CallRequested:
        """Return the intent of a call; without arguments that fit, with those the model wrote."""
        given: Any = call.wish.arguments if arguments is None else dict(arguments)
        return CallRequested(
            call_id=self._call_id(index),
            name=name,
            executor="server" if tool is None else tool.executor,
            effect="pure" if tool is None else tool.effect,
            kind=kind,
            arguments=slot(given, "arguments"),
            turn=self._turn.turn,
            step=self._turn.step,
            policy="tell" if tool is None else tool.unknown,
            provider_id=call.wish.call_id,
            index=index,
        )

    def _understood(self, wish: ToolCall) -> tuple[str, Tool | None, dict[str, Any], str | None]:
        """Return (name, tool, arguments, what is wrong) of a call that a model wishes."""
        known = self._tools.get(wish.name)
        if known is None:
            have = ", ".join(self._tools) or "none"
            return wish.name[:200], None, {}, f"there is no tool {wish.name!r}; tools are: {have}"
        name, tool = known
        if tool.gone:
            return name, tool, {}, not_here(name)
        try:
            arguments = json.loads(wish.arguments) if wish.arguments.strip() else {}
        except (ValueError, RecursionError) as error:
            return name, tool, {}, f"the arguments are not JSON: {error}"
        if not isinstance(arguments, dict):
            return name, tool, {}, "the arguments are not a JSON object"
        try:
            if tool.check is not None:
                tool.check(arguments)
        except InvalidInput as error:
            return name, tool, {}, str(error)
        return name, tool, arguments, None

    def _is_ready(self, call: _Call) -> bool:
        """Tell whether a call is to be carried on by this process now."""
        if call.request is None or call.resolved is not None:
            return False
        pending = self.journal.state.calls.get(call.request.call_id)
        return pending is not None and pending.stage != "suspended"

    async def _run_all(self, calls: list[_Call]) -> None:
        """Carry calls on: start what was approved or never started, recover what a crash cut."""
        runs: list[tuple[_Call, Tool]] = []
        starts: list[str] = []
        for call in calls:
            assert call.request is not None
            call_id = call.request.call_id
            tool = self._tool(call.request.name)
            stage = self.journal.state.calls[call_id].stage
            gone = tool is None or tool.gone
            lost = stage == "dispatched" and call_id not in self._fresh
            once = "once" in ("" if tool is None else tool.effect, call.request.effect)
            if tool is None or (gone and not (lost and once)):
                await self._resolve(call_id, "cancelled", error=not_here(call.request.name))
            elif lost:
                if not once:
                    runs.append((call, tool))
                elif call.request.policy == "ask":
                    await self._suspend(unknown_wait(call_id, call.request.name))
                else:
                    await self._resolve(call_id, "unknown")
            elif stage == "approved" and tool.executor != "server":
                at = self.journal.state.updated_at
                arguments = await self._arguments(call)
                wait = outside_wait(tool, call_id, call.request.name, arguments, at)
                await self._suspend(wait)
            else:
                if stage != "dispatched":
                    starts.append(call_id)
                runs.append((call, tool))
        if starts:
            await self.journal.append(lambda _: [CallDispatched(calls=starts)])
        if runs:
            await self._start(runs)

    async def _start(self, runs: list[tuple[_Call, Tool]]) -> None:
        """Run calls that are recorded as dispatched, side by side."""
        # Fencing protects the log, not the world: look at the lease right before the effects.
        await self.journal.store.renew(self.journal.lease)
        self._fresh.clear()
        asked = [await self._running(call, tool) for call, tool in runs]
        ready = [running for running in asked if running is not None]
        try:
            for running in ready:
                await self.dispatcher.allow(running)
        except Halted as halted:
            # None of them has run: settled as dispatched, they would count as unknown.
            for running in ready:
                await self._resolve(running.call_id, "cancelled", error=str(halted))
            raise
        try:
            async with asyncio.TaskGroup() as group:
                for running in ready:
                    group.create_task(self._run(running))
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from failures

    def _tool(self, name: str) -> Tool | None:
        found = [tool for known, tool in self._tools.values() if known == name]
        return found[0] if found else None

    async def _arguments(self, call: _Call) -> dict[str, Any]:
        """Return the arguments to run a call with: those that an approver edited, or its own."""
        assert call.request is not None
        source = call.request.arguments
        if call.approved is not None and call.approved.arguments is not None:
            source = call.approved.arguments
        found: Any = await self.journal.value(source)
        return dict(found)

    async def _running(self, call: _Call, tool: Tool) -> Running | None:
        """Return a call as it is run; None where edited arguments do not fit, which is recorded."""
        assert call.request is not None
        request = call.request
        arguments = await self._arguments(call)
        if tool.check is not None:
            try:
                arguments = tool.check(arguments)
            except InvalidInput as error:
                await self._resolve(request.call_id, "error", error=str(error))
                return None
        return Running(
            tool=tool,
            name=request.name,
            call_id=request.call_id,
            kwargs=arguments,
            turn=request.turn,
            step=request.step or 0,
            deadline=request.deadline,
            approved=call.approved,
        )

    async def _run(self, running: Running) -> None:
        started = time.monotonic()
        try:
            ran = await self.dispatcher.run(running)
        except NeedsAnswer as need:
            at = self.journal.state.updated_at
            await self._suspend(answer_wait(running.call_id, running.name, need, at))
            return
        outcome, value, failure = ran
        result = None if value is None else slot_of_bytes(value.encoding, value.data, "answer")
        elapsed = int((time.monotonic() - started) * 1000)
        await self._resolve(running.call_id, outcome, result, failure, elapsed)
        await self.dispatcher.told(running, ran)

    async def _suspend(self, wait: CallSuspended) -> None:
        await self.journal.append(
            lambda state: [replace(wait, wait=state.calls[wait.call_id].wait + 1)]
        )

    async def _resolve(
        self,
        call_id: str,
        outcome: Outcome,
        result: Slot | None = None,
        error: str | None = None,
        latency_ms: int | None = None,
    ) -> None:
        fact = CallResolved(
            call_id=call_id,
            outcome=outcome,
            result=result,
            error=None if error is None else slot(error, "error"),
            latency_ms=latency_ms,
        )
        await self.journal.append(lambda _: [fact])

    async def _results(self, calls: list[_Call]) -> Message:
        """Return the one message with all results, in the order of the reply's calls."""
        parts = []
        for call in calls:
            assert call.resolved is not None
            is_child = call.request is not None and call.request.kind == "child"
            text = await self._told(call.resolved, is_child)
            if call.approved is not None and call.approved.arguments is not None:
                edited = await self.journal.value(call.approved.arguments)
                text = f"[an approver changed the arguments to {_written(edited)}]\n{text}"
            content = (Text(text),)
            outcome = call.resolved.outcome
            parts.append(ToolResult(call.wish.call_id, call.wish.name, content, outcome))
        return observation(*parts)

    async def _told(self, resolved: CallResolved, is_child: bool) -> str:
        if resolved.outcome == "ok":
            value: Any = None
            if resolved.result is not None:
                value = await self.journal.value(resolved.result)
            if is_child:  # an envelope, of which a model needs no more than this
                value = value.get("preview", value["value"])
            return _fitted(value if isinstance(value, str) else _written(value))
        if resolved.outcome == "unknown":
            return "the process ended during this call: whether it took effect is unknown"
        reason = "" if resolved.error is None else str(await self.journal.value(resolved.error))
        return _fitted(f"{resolved.outcome}: {reason}" if reason else resolved.outcome)


def spec_name(toolset: Toolset, tool: Tool) -> str:
    """Return the name under which a model calls a tool; providers allow no dots in it."""
    return f"{toolset.name}{SEPARATOR}{tool.name}" if toolset.name else tool.name


def _written(value: Any) -> str:
    return values.encode_json(value).decode()


def _fitted(text: str) -> str:
    """Return a text whole if it fits, else its beginning and how much there is."""
    if len(text) <= RESULT_CHARACTERS:
        return text
    left = len(text) - RESULT_CHARACTERS
    return f"{text[:RESULT_CHARACTERS]}\n[{left} of {len(text)} characters left out]"
