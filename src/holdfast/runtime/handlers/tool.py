"""Tool calls from code: recorded before and after, carried out by whoever the tool says.

A `server` tool runs in this process; a `client` tool is run by a connected program and a `human`
one is a question, and both wait for their answer. A tool with an approval rule waits for a person
first. After a crash between intent and outcome, `idempotent` calls are repeated with the same call
id, `once` calls never: by the tool's policy the code is told that the outcome is unknown, or a
person is asked for it.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from holdfast.core.errors import FileNotKept
from holdfast.core.facts import CallApproved, CallDispatched, CallSuspended
from holdfast.core.payloads import slot
from holdfast.kernels.port import HostAnswer, HostCall, RecordedCall
from holdfast.runtime.calls import Ledger, Recorded, nanoseconds
from holdfast.runtime.dispatch import Dispatcher, Running
from holdfast.runtime.handlers.question import deadline_after
from holdfast.runtime.hooks import Halted
from holdfast.runtime.signals import NeedsAnswer, answer_wait
from holdfast.runtime.tools import Tool, Toolset, find, not_here


@dataclass(slots=True)
class ToolHandler:
    """The tool calls of one evaluation."""

    ledger: Ledger
    toolsets: tuple[Toolset, ...]
    renew: Callable[[], Awaitable[None]]
    dispatcher: Dispatcher

    async def recorded(self) -> list[tuple[int, RecordedCall]]:
        """Return the recorded calls of this evaluation."""
        return await self.ledger.recorded_calls()

    async def call(self, call: HostCall) -> HostAnswer:
        """Carry out one call, or go on with one that the log has without an outcome."""
        tool = find(self.toolsets, call.function)
        if tool.gone:
            return await self._without_tool(call)
        known = self.ledger.calls.get(call.key)
        pure = tool.effect == "pure" and tool.executor == "server" and not tool.approval
        if pure and known is None:
            running = self._running(tool, call, self.ledger.call_id(call))
            await self.dispatcher.allow(running)
            try:
                ran = await self.dispatcher.run(running)
            except NeedsAnswer as need:
                refusal = await self._request(tool, call)
                return refusal or await self._ask(tool, call, running.call_id, need)
            answer = await self.ledger.pure(call, *ran)
            await self.dispatcher.told(running, ran)
            return answer
        if known is None:
            refusal = await self._request(tool, call)
            if refusal is not None:
                return refusal
            known = self.ledger.calls[call.key]
            pending = self.ledger.journal.state.calls.get(known.request.call_id)
            if pending is not None and pending.stage == "dispatched":
                return await self._dispatch(tool, call, known.request.call_id)
        return await self._go_on(tool, call, known)

    async def _request(self, tool: Tool, call: HostCall) -> HostAnswer | None:
        """Record the intent of a call, and what it waits for if it does; or refuse the call."""
        ledger = self.ledger
        at = ledger.journal.state.updated_at
        try:
            arguments = tool.bind(call.args, call.kwargs)
            await ledger.keep_files(call)
        except (TypeError, FileNotKept) as error:
            return HostAnswer.failed(type(error).__name__, str(error), nanoseconds(at))
        approval = tool.needs_approval(arguments)
        intent = ledger.requested(
            call,
            executor=tool.executor,
            effect=tool.effect,
            approval=approval,
            deadline=deadline_after(at, tool.deadline_seconds),
            policy=tool.unknown,
        )
        shown = ledger.guards.redacted("arguments", dict(arguments))
        wait = first_wait(tool, intent.call_id, call.function, shown, approval, at)
        await ledger.request(intent, *([] if wait is None else [wait]))
        return None

    async def _go_on(self, tool: Tool, call: HostCall, known: Recorded) -> HostAnswer:
        """Go on with a call that is requested: wait, dispatch, repeat, or say it is unknown."""
        ledger, call_id = self.ledger, known.request.call_id
        pending = ledger.journal.state.calls.get(call_id)
        if pending is not None and pending.stage == "dispatched":
            if "once" not in (tool.effect, known.request.effect):
                return await self._dispatch(tool, call, call_id)
            if "ask" not in (tool.unknown, known.request.policy):
                return await ledger.resolve(call_id, "unknown")
            await ledger.suspend(call, unknown_wait(call_id, call.function))
        moved = await ledger.moved_on(call)
        if isinstance(moved, HostAnswer):
            return moved
        if tool.executor != "server":
            at = ledger.journal.state.updated_at
            await ledger.suspend(call, outside_wait(tool, call_id, call.function, None, at))
            answer = await ledger.moved_on(call)
            assert answer is not None
            return answer
        await ledger.journal.append(lambda _: [CallDispatched(calls=[call_id])])
        return await self._dispatch(tool, call, call_id)

    async def _without_tool(self, call: HostCall) -> HostAnswer:
        """Settle a call whose tool is gone, as far as it is open; refuse one that is new."""
        ledger, text = self.ledger, not_here(call.function)
        known = ledger.calls.get(call.key)
        if known is None:
            at = nanoseconds(ledger.journal.state.updated_at)
            return HostAnswer.failed("CallError", text, at)
        call_id = known.request.call_id
        pending = ledger.journal.state.calls.get(call_id)
        if pending is not None and pending.stage == "dispatched":
            if known.request.effect != "once":
                return await ledger.resolve(call_id, "cancelled", error=text)
            if known.request.policy != "ask":
                return await ledger.resolve(call_id, "unknown")
            await ledger.suspend(call, unknown_wait(call_id, call.function))
        if pending is None or pending.stage in ("dispatched", "suspended", "approved"):
            moved = await ledger.moved_on(call)
            if isinstance(moved, HostAnswer):
                return moved
        return await ledger.resolve(call_id, "cancelled", error=text)

    async def _ask(self, tool: Tool, call: HostCall, call_id: str, need: NeedsAnswer) -> HostAnswer:
        """Let a call wait for the answer that its tool needs, and go on with it then."""
        at = self.ledger.journal.state.updated_at
        await self.ledger.suspend(call, answer_wait(call_id, call.function, need, at))
        return await self._go_on(tool, call, self.ledger.calls[call.key])

    async def _dispatch(self, tool: Tool, call: HostCall, call_id: str) -> HostAnswer:
        approved = self.ledger.calls[call.key].approved
        # Fencing protects the log, not the world: look at the lease right before the effect.
        await self.renew()
        running = self._running(tool, call, call_id, approved)
        if approved is not None and approved.arguments is not None:
            edited: Any = await self.ledger.journal.value(approved.arguments)
            running = replace(running, args=(), kwargs=edited)
        try:
            await self.dispatcher.allow(running)
        except Halted as halted:
            # It has not run: settled as dispatched, it would count as unknown.
            await self.ledger.resolve(call_id, "cancelled", error=str(halted))
            raise
        started = time.monotonic()
        try:
            ran = await self.dispatcher.run(running)
        except NeedsAnswer as need:
            return await self._ask(tool, call, call_id, need)
        elapsed = int((time.monotonic() - started) * 1000)
        answer = await self.ledger.resolve(call_id, *ran, elapsed)
        await self.dispatcher.told(running, ran)
        return answer

    def _running(
        self, tool: Tool, call: HostCall, call_id: str, approved: CallApproved | None = None
    ) -> Running:
        pending = self.ledger.journal.state.calls.get(call_id)
        return Running(
            tool=tool,
            name=call.function,
            call_id=call_id,
            args=tuple(call.args),
            kwargs=call.kwargs,
            turn=self.ledger.turn,
            step=self.ledger.step,
            deadline=None if pending is None else pending.deadline,
            approved=approved,
        )


def first_wait(
    tool: Tool, call_id: str, name: str, arguments: Mapping[str, Any], approval: bool, at: str
) -> CallSuspended | None:
    """Return what a call waits for from its start; None for a tool that runs here at once."""
    if approval:
        return CallSuspended(
            call_id=call_id,
            kind="approval",
            prompt=slot({"tool": name, "arguments": dict(arguments)}, "prompt"),
            deadline=deadline_after(at, tool.deadline_seconds),
            assignee=tool.assignee,
        )
    if tool.executor != "server":
        return outside_wait(tool, call_id, name, arguments, at)
    return None


def outside_wait(
    tool: Tool, call_id: str, name: str, arguments: Mapping[str, Any] | None, at: str
) -> CallSuspended:
    """Return the wait for a client or a person who carries the call out."""
    prompt: dict[str, Any] = {"tool": name, "text": tool.doc}
    if arguments is not None:
        prompt["arguments"] = dict(arguments)
    return CallSuspended(
        call_id=call_id,
        kind="client" if tool.executor == "client" else "question",
        prompt=slot(prompt, "prompt"),
        schema=None if tool.returns is None else slot(dict(tool.returns), "schema"),
        deadline=deadline_after(at, tool.deadline_seconds),
        assignee=tool.assignee,
    )


def unknown_wait(call_id: str, name: str) -> CallSuspended:
    """Return the wait for a person who knows what became of a call that a crash cut off."""
    text = f"the process ended during {name}: did it take effect, and what did it return?"
    return CallSuspended(
        call_id=call_id,
        kind="unknown",
        prompt=slot({"tool": name, "text": text}, "prompt"),
        reason="the outcome is unknown",
    )
