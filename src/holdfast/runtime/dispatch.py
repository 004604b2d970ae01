"""Dispatch: one run of a tool that acts here, with whom it acts for and what it may see.

Both harnesses come here once a call is recorded as dispatched. The scope is resolved, secrets are
looked up and hooks are told; where one of them is missing the call fails before the function runs.
What comes back is freed of secrets and redacted before anyone stores it.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from holdfast.core import values
from holdfast.core.errors import (
    HoldfastError,
    ScopeMissing,
    SecretMissing,
    UnsupportedValue,
)
from holdfast.core.facts import CallApproved, Outcome
from holdfast.kernels.port import Encoded
from holdfast.runtime.hooks import Halted, HookContext, Hooks, ToolUse
from holdfast.runtime.journal import Journal
from holdfast.runtime.scope import Guards, Scope, without_secrets
from holdfast.runtime.signals import NeedsAnswer, OutcomeLost, answers_of
from holdfast.runtime.tools import CallContext, Tool
from holdfast.stores.port import Transient

PROGRESS = "tool.progress"
RETRY_SECONDS = 0.1
MAX_RETRY_SECONDS = 5.0

Ran = tuple[Outcome, Encoded | None, str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """One call that is to be run: its tool, and what the log has of it."""

    tool: Tool
    name: str
    call_id: str
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    turn: int | None = None
    step: int = 0
    deadline: str | None = None
    approved: CallApproved | None = None


@dataclass(slots=True)
class Dispatcher:
    """What the tools of one drive run with."""

    journal: Journal
    guards: Guards = field(default_factory=Guards)
    hooks: Hooks = field(default_factory=Hooks)
    scope: Scope | None = None
    """Of the open turn."""
    replayed: bool = False

    def context(self, scope: Any = None) -> HookContext:
        """Return where the turn stands, for hooks."""
        state = self.journal.state
        turn = state.turn
        return HookContext(
            session=self.journal.session,
            tenant=state.tenant,
            agent=state.agent,
            turn=state.counters.get("turn", 0) if turn is None else turn.turn,
            step=0 if turn is None else turn.step,
            scope=scope,
            replayed=self.replayed,
        )

    async def hook_context(self) -> HookContext:
        """Return where the turn stands, with its scope where that can be resolved."""
        return self.context(await self._shown_scope(self.scope))

    async def allow(self, call: Running) -> None:
        """Ask the hooks before a call runs; raise Halted where one ends the turn."""
        if self.hooks.has("before_tool"):
            context = self.context(await self._shown_scope(self._scope_of(call)))
            await self.hooks.tell("before_tool", context, _use(call))

    async def run(self, call: Running) -> Ran:
        """Run a call, again where its tool says so; whatever it raises is an outcome.

        Only NeedsAnswer is none: the call is to wait, and to be run again.
        """
        tool = call.tool
        try:
            kwargs, secrets = await self._arguments(call)
        except (ScopeMissing, SecretMissing, TypeError) as error:
            return "error", None, f"{type(error).__name__}: {error}"
        args = call.args if not (tool.context or tool.secrets) else ()
        outcome, value, failure = await self._tried(call, args, kwargs)
        guards = self.guards
        if outcome == "unknown":
            return outcome, None, None
        if outcome == "ok":
            value = guards.redacted("result", without_secrets(value, secrets))
            return _stored(call.name, value)
        text = without_secrets(failure or "", secrets)
        return outcome, None, str(guards.redacted("error", text))

    async def _tried(
        self, call: Running, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Outcome, Any, str | None]:
        """Run a function until it returns, as often as its tool says and until its deadline."""
        left = None
        if call.deadline is not None:
            due = datetime.fromisoformat(call.deadline)
            left = max(0.0, (due - datetime.now(UTC)).total_seconds())
        try:
            async with asyncio.timeout(left) as clock:
                ran = await run(call.tool, args, kwargs, call.name)
                for attempt in range(call.tool.retry):
                    if ran[0] == "ok":
                        break
                    await asyncio.sleep(min(RETRY_SECONDS * 2**attempt, MAX_RETRY_SECONDS))
                    ran = await run(call.tool, args, kwargs, call.name)
                return ran
        except TimeoutError:
            if not clock.expired():
                raise
            if call.tool.effect == "once":
                return "unknown", None, None  # it may still take effect
            return "expired", None, f"{call.name} did not return by its deadline"

    async def told(self, call: Running, ran: Ran) -> None:
        """Tell the hooks after the outcome of a call is recorded."""
        if self.hooks.has("after_tool"):
            outcome, encoded, error = ran
            value = None if encoded is None else values.decode(encoded.encoding, encoded.data)
            use = replace(_use(call), outcome=outcome, value=value, error=error)
            context = self.context(await self._shown_scope(self._scope_of(call)))
            await self.hooks.tell("after_tool", context, use)

    def _scope_of(self, call: Running) -> Scope | None:
        """Return whom a call acts for: an approved one for its approver, others for the turn."""
        if call.approved is None:
            return self.scope
        reference = call.approved.scope
        return None if reference is None else Scope(reference=reference)

    async def _shown_scope(self, scope: Scope | None) -> Any:
        try:
            return await self.guards.scope(scope)
        except ScopeMissing:
            return None

    async def _arguments(self, call: Running) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return what the function is called with, and the secrets among it by their names."""
        tool, kwargs = call.tool, dict(call.kwargs)
        scope = None
        if tool.context is not None or tool.needs_scope:
            scope = await self._resolved(call)
        if tool.context is None and not tool.secrets:
            return kwargs, {}
        if call.args:
            kwargs = tool.bind(call.args, kwargs)
        if tool.context is not None:
            deadline = call.deadline
            kwargs[tool.context] = CallContext(
                call_id=call.call_id,
                session=self.journal.session,
                epoch=self.journal.lease.epoch,
                tenant=self.journal.state.tenant,
                turn=call.turn,
                deadline=None if deadline is None else datetime.fromisoformat(deadline),
                scope=scope,
                answers=await answers_of(self.journal, call.call_id),
                progress=self._progress(call),
            )
        secrets = {}
        for argument, name in tool.secrets.items():
            secrets[name] = kwargs[argument] = await self.guards.secret(name)
        return kwargs, secrets

    def _progress(self, call: Running) -> Callable[[Any], None]:
        """Return what tells watchers how far a call is, for as long as it is open."""
        loop, journal = asyncio.get_running_loop(), self.journal

        def tell(data: Any) -> None:
            if call.tool.effect != "pure" and call.call_id not in journal.state.calls:
                return  # a thread that outlived its call
            about = {"call": call.call_id, "tool": call.name, "data": data}
            journal.store.notify(Transient(journal.session, PROGRESS, about))

        def progress(data: Any) -> None:
            data = self.guards.redacted("progress", data)
            with suppress(RuntimeError):  # the loop is closed: nobody drives any more
                loop.call_soon_threadsafe(tell, data)

        return progress

    async def _resolved(self, call: Running) -> Any:
        try:
            scope = await self.guards.scope(self._scope_of(call))
        except ScopeMissing:
            if call.tool.needs_scope:
                raise
            scope = None
        if scope is None and call.tool.needs_scope:
            raise ScopeMissing(
                f"tool {call.name!r} acts for a user, and this call has the system scope"
            )
        return scope


def _use(call: Running) -> ToolUse:
    arguments = dict(call.kwargs)
    if call.args:
        try:
            arguments = call.tool.bind(call.args, call.kwargs)
        except TypeError:
            arguments["*"] = list(call.args)
    return ToolUse(call_id=call.call_id, name=call.name, arguments=arguments)


def _stored(name: str, value: Any) -> Ran:
    try:
        return "ok", Encoded(*values.encode(value)), None
    except UnsupportedValue as error:
        return "error", None, f"TypeError: {name} returned what cannot be kept: {error}"


async def run(
    tool: Tool, args: tuple[Any, ...], kwargs: dict[str, Any], name: str
) -> tuple[Outcome, Any, str | None]:
    """Run a tool's function; whatever it raises is an outcome, and none of it ends the loop."""
    assert tool.call is not None
    try:
        if inspect.iscoroutinefunction(tool.call):
            result: Any = await tool.call(*args, **kwargs)
        else:
            result = await _in_thread(tool.call, args, kwargs)
            if inspect.isawaitable(result):
                result = await result
        return "ok", result, None
    except (Halted, NeedsAnswer):
        raise
    except OutcomeLost as error:
        lost = tool.effect == "once"
        return ("unknown", None, None) if lost else ("error", None, f"OutcomeLost: {error}")
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
