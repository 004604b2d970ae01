"""Tool calls from code: functions of the embedder, run in this process.

The intent is recorded before dispatch and the outcome after it. After a crash between the two,
`idempotent` calls are repeated with the same call id, `once` calls never: the code is told that
the outcome is unknown.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from holdfast.core import values
from holdfast.core.errors import FileNotKept, HoldfastError, UnsupportedValue
from holdfast.core.facts import Outcome
from holdfast.kernels.port import Encoded, HostAnswer, HostCall, RecordedCall
from holdfast.runtime.calls import Ledger, nanoseconds
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
        """Dispatch one call, or settle one whose outcome a crash took with it."""
        tool = find(self.toolsets, call.function)
        ledger = self.ledger
        call_id = ledger.call_id(call)
        if tool.effect == "pure":
            return await ledger.pure(call, *await self._run(tool, call, call_id))
        known = ledger.calls.get(call.key)
        if known is None:
            try:
                await ledger.keep_files(call)
            except FileNotKept as error:
                at = nanoseconds(ledger.journal.state.updated_at)
                return HostAnswer.failed("CallError", str(error), at)
            await ledger.request(ledger.requested(call, executor=tool.executor, effect=tool.effect))
        elif "once" in (tool.effect, known.request.effect):
            return await ledger.resolve(known.request.call_id, "unknown")
        # Fencing protects the log, not the world: look at the lease right before the effect.
        await self.renew()
        started = time.monotonic()
        ran = await self._run(tool, call, call_id)
        elapsed = int((time.monotonic() - started) * 1000)
        return await ledger.resolve(call_id, *ran, elapsed)

    async def _run(self, tool: Tool, call: HostCall, call_id: str) -> Ran:
        journal = self.ledger.journal
        args, kwargs = call.args, dict(call.kwargs)
        if tool.context is not None:
            try:
                args, kwargs = (), tool.bind(args, kwargs)
            except TypeError as error:
                return "error", None, f"TypeError: {error}"
            kwargs[tool.context] = CallContext(
                call_id=call_id,
                session=journal.session,
                epoch=journal.lease.epoch,
                tenant=journal.state.tenant,
                turn=self.ledger.turn,
            )
        return await run(tool, args, kwargs, call.function)


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
