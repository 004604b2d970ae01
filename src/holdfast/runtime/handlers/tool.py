"""Tool calls from code: recorded before and after, carried out by whoever the tool says.

A `server` tool runs in this process; a `client` tool is run by a connected program and a `human`
one is a question, and both wait for their answer. A tool with an approval rule waits for a person
first. After a crash between intent and outcome, `idempotent` calls are repeated with the same call
id, `once` calls never: by the tool's policy the code is told that the outcome is unknown, or a
person is asked for it.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from holdfast.core import values
from holdfast.core.errors import FileNotKept, HoldfastError, UnsupportedValue
from holdfast.core.facts import CallApproved, CallDispatched, CallSuspended, Outcome
from holdfast.core.payloads import slot
from holdfast.kernels.port import Encoded, HostAnswer, HostCall, RecordedCall
from holdfast.runtime.calls import Ledger, Recorded, nanoseconds
from holdfast.runtime.handlers.question import deadline_after
from holdfast.runtime.tools import CallContext, Tool, Toolset, find

Ran = tuple[Outcome, Encoded | None, str | None]


@dataclass(slots=True)
class ToolHandler:
    """The tool calls of one evaluation."""

    ledger: Ledger
    toolsets: tuple[Toolset, ...]
    renew: Callable[[], Awaitable[None]]

    async def recorded(self) -> list[tuple[int, RecordedCall]]:
        """Return the recorded calls of this evaluation."""
        return await self.ledger.recorded_calls()

    async def call(self, call: HostCall) -> HostAnswer:
        """Carry out one call, or go on with one that the log has without an outcome."""
        tool = find(self.toolsets, call.function)
        if tool.effect == "pure" and tool.executor == "server" and not tool.approval:
            ran = await self._run(tool, call, self.ledger.call_id(call), None)
            return await self.ledger.pure(call, *ran)
        known = self.ledger.calls.get(call.key)
        if known is None:
            refusal = await self._request(tool, call)
            if refusal is not None:
                return refusal
            known = self.ledger.calls[call.key]
            pending = self.ledger.journal.state.calls.get(known.request.call_id)
            if pending is not None and pending.stage == "dispatched":
                return await self._dispatch(tool, call, known.request.call_id, None)
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
        )
        wait = first_wait(tool, intent.call_id, call.function, arguments, approval, at)
        await ledger.request(intent, *([] if wait is None else [wait]))
        return None

    async def _go_on(self, tool: Tool, call: HostCall, known: Recorded) -> HostAnswer:
        """Go on with a call that is requested: wait, dispatch, repeat, or say it is unknown."""
        ledger, call_id = self.ledger, known.request.call_id
        pending = ledger.journal.state.calls.get(call_id)
        if pending is not None and pending.stage == "dispatched":
            if "once" not in (tool.effect, known.request.effect):
                return await self._dispatch(tool, call, call_id, known.approved)
            if tool.unknown != "ask":
                return await ledger.resolve(call_id, "unknown")
            await ledger.suspend(call, unknown_wait(call_id, call.function))
        moved = await ledger.moved_on(call)
        if isinstance(moved, HostAnswer):
            return moved
        if tool.executor != "server":
            at = ledger.journal.state.updated_at
            await ledger.suspend(call, outside_wait(tool, call_id, call.function, None, at))
            answer = await ledger.moved_on(call)
            assert isinstance(answer, HostAnswer)
            return answer
        await ledger.journal.append(lambda _: [CallDispatched(calls=[call_id])])
        return await self._dispatch(tool, call, call_id, moved)

    async def _dispatch(
        self, tool: Tool, call: HostCall, call_id: str, approved: CallApproved | None
    ) -> HostAnswer:
        # Fencing protects the log, not the world: look at the lease right before the effect.
        await self.renew()
        edited = None
        if approved is not None and approved.arguments is not None:
            edited = await self.ledger.journal.value(approved.arguments)
        started = time.monotonic()
        ran = await self._run(tool, call, call_id, edited)
        elapsed = int((time.monotonic() - started) * 1000)
        return await self.ledger.resolve(call_id, *ran, elapsed)

    async def _run(self, tool: Tool, call: HostCall, call_id: str, edited: Any) -> Ran:
        args, kwargs = call.args, dict(call.kwargs)
        if isinstance(edited, dict):
            args, kwargs = (), edited
        if tool.context is not None:
            journal = self.ledger.journal
            try:
                args, kwargs = (), tool.bind(args, kwargs)
            except TypeError as error:
                return "error", None, f"TypeError: {error}"
            pending = journal.state.calls.get(call_id)
            deadline = None if pending is None else pending.deadline
            kwargs[tool.context] = CallContext(
                call_id=call_id,
                session=journal.session,
                epoch=journal.lease.epoch,
                tenant=journal.state.tenant,
                turn=self.ledger.turn,
                deadline=None if deadline is None else datetime.fromisoformat(deadline),
            )
        return await run(tool, args, kwargs, call.function)


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


async def run(tool: Tool, args: tuple[Any, ...], kwargs: dict[str, Any], name: str) -> Ran:
    """Run a tool's function; whatever it raises is an outcome, and none of it ends the loop."""
    assert tool.call is not None
    try:
        if inspect.iscoroutinefunction(tool.call):
            result: Any = await tool.call(*args, **kwargs)
        else:
            result = await _in_thread(tool.call, args, kwargs)
            if inspect.isawaitable(result):
                result = await result
        return "ok", Encoded(*values.encode(result)), None
    except UnsupportedValue as error:
        return "error", None, f"TypeError: {name} returned what cannot be kept: {error}"
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        # Cancelled inside of the function: to its caller that is a failure as any other.
        return "error", None, f"CancelledError: {error}"
    except HoldfastError as error:
        return "error", None, f"{type(error).__name__}: {error}"
    except Exception as error:
        return "error", None, f"{type(error).__name__}: {_text_of(error)}"
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        # Code of the embedder must not end the event loop that drives every session.
        return "error", None, f"RuntimeError: the function raised {type(error).__name__}({error})"


async def _in_thread(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Call a function that may block; whatever it raises is an ordinary exception here."""

    def work() -> Any:
        try:
            return function(*args, **kwargs)
        except StopIteration as error:
            # No future takes one (before Python 3.12 it would never be done).
            raise RuntimeError(f"the function raised StopIteration({error.value!r})") from error
        except Exception:
            raise
        except BaseException as error:
            raise RuntimeError(f"the function raised {type(error).__name__}({error})") from error

    return await asyncio.to_thread(work)


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return "(its text cannot be made)"
