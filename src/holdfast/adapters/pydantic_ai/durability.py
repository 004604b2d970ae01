"""Durability of one run: each model request and tool call through the ledger of a session.

What is recorded is answered from the log and neither asked nor done again. A lost request is made
again; a lost tool call follows its effect class. Approvals and external calls wait in the log
for people and clients, and the run ends with `RunSuspended` until they are answered.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter
from pydantic_ai import RunContext
from pydantic_ai.capabilities import AbstractCapability, CapabilityOrdering
from pydantic_ai.exceptions import ApprovalRequired, CallDeferred, ToolFailed, ToolRetryError
from pydantic_ai.messages import (
    ModelMessagesTypeAdapter,
    ModelResponse,
    RetryFeedbackPart,
    ToolCallPart,
    ToolReturn,
    ToolReturnPart,
)
from pydantic_ai.tools import (
    DeferredToolRequests,
    DeferredToolResults,
    ToolApproved,
    ToolDefinition,
    ToolDenied,
)
from pydantic_core import to_jsonable_python

import holdfast
from holdfast.adapters.pydantic_ai.source import Effect, effect_of
from holdfast.errors import CallFailed, CallWaits, HoldfastError

ANY = "(**arguments)"
UNKNOWN = "the process ended during this call: whether it took effect is unknown"
_RETRY: TypeAdapter[Any] = TypeAdapter(RetryFeedbackPart | ToolReturnPart)
_RETURN: TypeAdapter[ToolReturn[Any]] = TypeAdapter(ToolReturn)


class RunSuspended(HoldfastError):
    """A run waits for people or clients; run it again once its calls are answered."""

    @property
    def calls(self) -> list[str]:
        """Return the ids of the calls that wait, by which they are answered."""
        return list(self.details.get("calls", ()))


class Durability(AbstractCapability[Any]):
    """Records one run in its session."""

    def __init__(
        self, session: holdfast.Session[Any], run_id: str, effects: Mapping[str, Effect]
    ) -> None:
        self._session = session
        self._run = run_id
        self._effects = effects

    def get_ordering(self) -> CapabilityOrdering:
        """Stand next to the model and the tools: what others change is seen here."""
        return CapabilityOrdering(position="innermost")

    async def wrap_model_request(
        self, ctx: RunContext[Any], *, request_context: Any, handler: Any
    ) -> ModelResponse:
        """Ask the model, or return what it answered before; errors of a provider are asked anew."""
        failures: list[BaseException] = []

        async def request(**arguments: Any) -> Any:
            try:
                response = await handler(request_context)
            except BaseException as error:
                failures.append(error)
                raise
            return ModelMessagesTypeAdapter.dump_python([response], mode="json")

        tool = holdfast.Tool("model_request", request, ANY, effect="idempotent")
        about = {"run": self._run, "step": ctx.run_step}
        attempt = 0
        while True:
            attempt += 1
            key = f"{self._run}:model:{ctx.run_step}:{attempt}"
            try:
                found = await self._session.call(tool, about, key=key)
            except CallFailed:
                if failures:
                    raise failures[0] from None
                continue  # it failed in an earlier life of the run
            response = ModelMessagesTypeAdapter.validate_python(found)[0]
            assert isinstance(response, ModelResponse)
            return response

    async def wrap_tool_execute(
        self,
        ctx: RunContext[Any],
        *,
        call: ToolCallPart,
        tool_def: ToolDefinition,
        args: Any,
        handler: Any,
    ) -> Any:
        """Run a tool once by its effect class, or return what came of it before."""
        failures: list[BaseException] = []

        async def run(**arguments: Any) -> Any:
            try:
                return _told(await handler(args))
            except ToolRetryError as error:
                return {"retry": _RETRY.dump_python(error.tool_retry, mode="json")}
            except ToolFailed as error:
                return {"failed": str(error)}
            except (CallDeferred, ApprovalRequired) as error:
                failures.append(error)
                metadata = to_jsonable_python(error.metadata)
                return {"deferred": type(error).__name__, "metadata": metadata}
            except Exception as error:
                failures.append(error)
                raise

        effect, _ = effect_of(tool_def.name, tool_def.metadata, self._effects)
        round_ = "approved" if ctx.tool_call_approved else "1"
        key = f"{self._run}:tool:{ctx.run_step}:{call.tool_call_id}:{round_}"
        given = to_jsonable_python(args)
        try:
            told = await self._session.call(
                holdfast.Tool("tool", run, ANY, effect=effect), given, key=key, name=tool_def.name
            )
        except CallFailed as failed:
            if failures:
                raise failures[0] from None
            if failed.outcome == "unknown":
                raise ToolFailed(UNKNOWN) from failed
            raise
        return _as_said(told)

    async def handle_deferred_tool_calls(
        self, ctx: RunContext[Any], *, requests: DeferredToolRequests
    ) -> DeferredToolResults | None:
        """Let approvals and external calls wait in the log; return what they came to."""
        results = DeferredToolResults()
        waiting: list[str] = []
        for call in requests.approvals:
            try:
                results.approvals[call.tool_call_id] = await self._approved(ctx, call)
            except CallWaits as waits:
                waiting.append(waits.call_id)
        for call in requests.calls:
            tool = holdfast.Tool("tool", None, ANY, executor="client", doc="an external tool")
            try:
                results.calls[call.tool_call_id] = await self._wait(ctx, tool, call, "external")
            except CallWaits as waits:
                waiting.append(waits.call_id)
            except CallFailed as failed:
                results.calls[call.tool_call_id] = ToolFailed(str(failed))
        if waiting:
            raise RunSuspended(
                f"run {self._run!r} of session {self._session.id!r} waits for "
                f"{', '.join(waiting)}; answer each, then run it again",
                session=self._session.id,
                run=self._run,
                calls=waiting,
            )
        return results

    async def _approved(
        self, ctx: RunContext[Any], call: ToolCallPart
    ) -> ToolApproved | ToolDenied:
        async def arguments_of(**arguments: Any) -> Any:
            return arguments

        tool = holdfast.Tool("tool", arguments_of, ANY, effect="pure", approval=True)
        try:
            approved = await self._wait(ctx, tool, call, "approval")
        except CallFailed as failed:
            return ToolDenied(str(failed))
        same = approved == to_jsonable_python(call.args_as_dict())
        return ToolApproved() if same else ToolApproved(override_args=approved)

    async def _wait(
        self, ctx: RunContext[Any], tool: holdfast.Tool, call: ToolCallPart, kind: str
    ) -> Any:
        key = f"{self._run}:{kind}:{ctx.run_step}:{call.tool_call_id}"
        given = to_jsonable_python(call.args_as_dict())
        return await self._session.call(tool, given, key=key, name=call.tool_name)


def _told(value: Any) -> dict[str, Any]:
    if isinstance(value, ToolReturn):
        return {"tool_return": _RETURN.dump_python(value, mode="json")}
    return {"value": to_jsonable_python(value)}


def _as_said(told: dict[str, Any]) -> Any:
    """Return what a tool returned, or raise what it raised."""
    if "retry" in told:
        raise ToolRetryError(_RETRY.validate_python(told["retry"]))
    if "failed" in told:
        raise ToolFailed(told["failed"])
    if "deferred" in told:
        kinds = {"CallDeferred": CallDeferred, "ApprovalRequired": ApprovalRequired}
        raise kinds[told["deferred"]](metadata=told["metadata"])
    if "tool_return" in told:
        return _RETURN.validate_python(told["tool_return"])
    return told["value"]
