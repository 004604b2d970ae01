"""Calls of surface functions from code: the ledger of what left the sandbox.

The intent is recorded before dispatch and the one outcome after it; a `pure` call leaves only its
outcome in the re-run's memory and may simply be made again. After a crash between the two, the
effect class decides: `idempotent` is repeated with the same call id, `once` is never repeated and
the code is told that its outcome is unknown.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from holdfast.core import values
from holdfast.core.errors import UnsupportedValue
from holdfast.core.events import Event
from holdfast.core.facts import CallRequested, CallResolved, Outcome
from holdfast.core.payloads import slot, slot_of_bytes
from holdfast.kernels.port import Encoded, HostAnswer, HostCall, RecordedCall
from holdfast.kernels.surfaces import Surface, SurfaceFunction, find
from holdfast.runtime.journal import Journal
from holdfast.runtime.leaves import files_of, nanoseconds, read_before

call_id_of_this_call: ContextVar[str] = ContextVar("holdfast_call_id")
"""Inside a surface function: the id to use as an idempotency key."""


@dataclass(slots=True)
class SurfaceCalls:
    """The surface calls of one evaluation."""

    journal: Journal
    surfaces: tuple[Surface, ...]
    turn: int
    step: int
    eval: int
    renew: Callable[[], Any]
    requested: dict[tuple[str, str, int], CallRequested] = field(default_factory=dict)
    resolved: dict[str, tuple[str, CallResolved]] = field(default_factory=dict)

    def remember(self, events: Sequence[Event]) -> None:
        """Take up what the log has of this evaluation's calls."""
        for event in events:
            fact = event.fact()
            if isinstance(fact, CallRequested) and fact.eval == self.eval:
                self.requested[fact.name, fact.digest or "", fact.occurrence or 0] = fact
            elif isinstance(fact, CallResolved):
                self.resolved[fact.call_id] = (event.at, fact)

    async def recorded_calls(self) -> list[RecordedCall]:
        """Return the recorded calls of this evaluation in the order of their outcomes."""
        calls: list[tuple[str, RecordedCall]] = []
        for key, request in self.requested.items():
            at, outcome = self.resolved.get(request.call_id, ("~", None))
            answer = None if outcome is None else await self._answer(at, outcome)
            files = files_of(request.files)
            calls.append((at, RecordedCall(*key, pure=False, answer=answer, files=files)))
        return [call for _, call in sorted(calls, key=lambda pair: pair[0])]

    async def call(self, call: HostCall) -> HostAnswer:
        """Dispatch one call, or settle one whose outcome a crash took with it."""
        function = find(self.surfaces, call.function)
        if function.effect == "pure":
            outcome, value, error = await self._run(function, call, "")
            at = nanoseconds(self.journal.state.updated_at)
            return _as_answer(outcome, value, error, at)
        request = self.requested.get(call.key)
        if request is None:
            call_id = f"c{self.eval}-{call.function}-{call.digest[-12:]}-{call.ordinal}"
            await self.journal.append(
                lambda _: [
                    CallRequested(
                        call_id=call_id,
                        name=call.function,
                        executor="server",
                        effect=function.effect,
                        arguments=slot_of_bytes(
                            call.arguments.encoding, call.arguments.data, "arguments"
                        ),
                        turn=self.turn,
                        step=self.step,
                        eval=self.eval,
                        digest=call.digest,
                        occurrence=call.ordinal,
                        files=read_before(call),
                    )
                ]
            )
        elif function.effect == "once":
            return await self._settle(request.call_id, "unknown", None, None, None)
        else:
            call_id = request.call_id
        # Fencing protects the log, not the world: look at the lease right before the effect.
        await self.renew()
        started = time.monotonic()
        outcome, value, error = await self._run(function, call, call_id)
        elapsed = int((time.monotonic() - started) * 1000)
        return await self._settle(call_id, outcome, value, error, elapsed)

    async def _run(
        self, function: SurfaceFunction, call: HostCall, call_id: str
    ) -> tuple[Outcome, Encoded | None, str | None]:
        token = call_id_of_this_call.set(call_id)
        try:
            if inspect.iscoroutinefunction(function.call):
                result: Any = await function.call(*call.args, **call.kwargs)
            else:
                result = await _in_thread(function.call, call)
                if inspect.isawaitable(result):
                    result = await result
            return "ok", Encoded(*values.encode(result)), None
        except UnsupportedValue as error:
            return (
                "error",
                None,
                f"TypeError: {call.function} returned what cannot be kept: {error}",
            )
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # Cancelled inside of the function: to its caller that is a failure as any other.
            return "error", None, f"CancelledError: {error}"
        except SystemExit as error:
            # Code of the embedder must not end the event loop that drives every session.
            return "error", None, f"RuntimeError: the function raised SystemExit({error})"
        except Exception as error:
            return "error", None, f"{type(error).__name__}: {_text_of(error)}"
        finally:
            call_id_of_this_call.reset(token)

    async def _settle(
        self,
        call_id: str,
        outcome: Outcome,
        value: Encoded | None,
        error: str | None,
        elapsed_ms: int | None,
    ) -> HostAnswer:
        result = None if value is None else slot_of_bytes(value.encoding, value.data, "answer")
        done = await self.journal.append(
            lambda _: [
                CallResolved(
                    call_id=call_id,
                    outcome=outcome,
                    result=result,
                    error=None if error is None else slot(error, "error"),
                    latency_ms=elapsed_ms,
                )
            ]
        )
        at = nanoseconds(done.events[0].at)
        return _as_answer(outcome, value, error, at)

    async def _answer(self, at: str, fact: CallResolved) -> HostAnswer:
        value = None
        if fact.result is not None:
            stored = await self.journal.hydrate(fact.result)
            value = Encoded(stored.encoding, stored.data or b"")
        error = None if fact.error is None else str(await self.journal.value(fact.error))
        return _as_answer(fact.outcome, value, error, nanoseconds(at))


async def _in_thread(function: Callable[..., Any], call: HostCall) -> Any:
    """Call a function that may block; whatever it raises is an ordinary exception here."""

    def work() -> Any:
        try:
            return function(*call.args, **call.kwargs)
        except StopIteration as error:
            # No future takes one (before Python 3.12 it would never be done).
            raise RuntimeError(f"the function raised StopIteration({error.value!r})") from error
        except (SystemExit, KeyboardInterrupt) as error:
            # Nor may these end it: see `_run`.
            raise RuntimeError(f"the function raised {type(error).__name__}({error})") from error

    return await asyncio.to_thread(work)


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return "(its text cannot be made)"


def _as_answer(outcome: str, value: Encoded | None, error: str | None, at_ns: int) -> HostAnswer:
    if outcome == "ok" and value is not None:
        return HostAnswer.ok(value, at_ns)
    if outcome == "unknown":
        message = "the process ended during this call: whether it took effect is unknown"
        return HostAnswer.failed("OutcomeUnknown", message, at_ns)
    name, _, message = (error or "RuntimeError: the call failed").partition(": ")
    return HostAnswer.failed(name, message, at_ns)
