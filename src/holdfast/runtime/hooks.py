"""Hooks: code of the program around a turn, which may add to a request, halt or just look.

They run before a model call, after a reply, before and after a tool, and at the end of a turn. What
one adds to a request is shown that once and never stored: it is asked again after a kill and in a
replay. One that halts ends the turn with its reason. One that fails or is slow is left out, unless
it is `required`; an observer is not even waited for.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.core.errors import InvalidSettings
from holdfast.core.messages import Message
from holdfast.views.messages import estimate_tokens

logger = logging.getLogger("holdfast.runtime")

HALTED = "halted"
OBSERVATIONS = 1000
"""So many calls of observers may wait in one drive; further ones are left out."""
OBSERVED_SECONDS = 1.0
"""How long the end of a drive waits for its observers."""


class Halted(Exception):
    """A hook ended the turn."""


@dataclass(frozen=True, slots=True)
class Halt:
    """What a hook returns to end the turn."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HookContext:
    """Where a hook is called; `replayed` says that the model's replies come from a recording."""

    session: str
    tenant: str
    agent: str
    turn: int
    step: int
    scope: Any = field(default=None, repr=False)
    replayed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolUse:
    """A tool call as hooks see it; `outcome` and what follows are set after it."""

    call_id: str
    name: str
    arguments: Mapping[str, Any]
    outcome: str | None = None
    value: Any = None
    error: str | None = None


class Hook:
    """Override what is needed; each method may be async. Names of classes name hooks in errors.

    `before_model` may add up to `tokens` to a request, which are kept free for it. More than that
    halts the turn. A hook is waited for at most `timeout_seconds`.
    """

    tokens: int = 4000
    timeout_seconds: float = 5.0
    required: bool = False
    """Whether the turn is halted where the hook fails or takes too long."""
    observer: bool = False
    """Whether it only looks: nobody waits for it, and what it returns is left out."""

    def before_model(self, context: HookContext, messages: Sequence[Message]) -> Any:
        """Return text to add to this request, a Halt, or None."""

    def after_reply(self, context: HookContext, reply: Message) -> Any:
        """Return a Halt, or None."""

    def before_tool(self, context: HookContext, use: ToolUse) -> Any:
        """Return a Halt, or None; the tool has not run."""

    def after_tool(self, context: HookContext, use: ToolUse) -> Any:
        """Return a Halt, or None; the outcome is recorded."""

    def turn_ended(self, context: HookContext, result: Any) -> Any:
        """Look at the result of a turn."""


def check_hooks(hooks: Sequence[Any]) -> tuple[Hook, ...]:
    """Return hooks; refuse what is none."""
    for hook in hooks:
        if not isinstance(hook, Hook):
            raise InvalidSettings(f"{ascii(hook)[:80]} is not a valid hook; derive it from Hook")
    return tuple(hooks)


def reserve(hooks: Sequence[Hook]) -> int:
    """Return how many tokens of a request are kept free for what hooks add to it."""
    return sum(hook.tokens for hook in hooks if _overrides(hook, "before_model"))


def _overrides(hook: Hook, name: str) -> bool:
    return getattr(type(hook), name) is not getattr(Hook, name)


@dataclass(slots=True)
class Hooks:
    """The hooks of one drive."""

    hooks: tuple[Hook, ...] = ()
    _observing: asyncio.Task[None] | None = None
    _waiting: int = 0

    async def injected(self, context: HookContext, messages: Sequence[Message]) -> str:
        """Return what hooks add to a request; raise Halted where one ends the turn."""
        texts = []
        for hook in self.hooks:
            said = await self._call(hook, "before_model", context, tuple(messages))
            if not isinstance(said, str) or not said:
                continue
            size = estimate_tokens(said)
            if size > hook.tokens:
                name = type(hook).__name__
                raise Halted(f"hook {name} added about {size} tokens; it may add {hook.tokens}")
            texts.append(said)
        return "\n\n".join(texts)

    async def tell(self, name: str, context: HookContext, *about: Any) -> None:
        """Call one method of every hook; raise Halted where one ends the turn."""
        for hook in self.hooks:
            await self._call(hook, name, context, *about)

    def has(self, name: str) -> bool:
        """Tell whether any hook has this method."""
        return any(_overrides(hook, name) for hook in self.hooks)

    async def close(self) -> None:
        """Give observers a little time to finish, then end them."""
        task, self._observing = self._observing, None
        if task is not None:
            await asyncio.wait({task}, timeout=OBSERVED_SECONDS)
            task.cancel()

    async def _call(self, hook: Hook, name: str, context: HookContext, *about: Any) -> Any:
        if not _overrides(hook, name):
            return None
        if hook.observer:
            self._observe(hook, name, context, *about)
            return None
        try:
            said = await _answer(hook, name, context, *about)
        except Exception as error:
            why = "took too long" if isinstance(error, TimeoutError) else "failed"
            logger.warning("hook %s %s in %s", type(hook).__name__, why, name, exc_info=True)
            if hook.required:
                raise Halted(f"hook {type(hook).__name__}, which is required, {why}") from error
            return None
        if isinstance(said, Halt):
            raise Halted(f"hook {type(hook).__name__}: {said.reason}")
        return said

    def _observe(self, hook: Hook, name: str, context: HookContext, *about: Any) -> None:
        """Let an observer look after those that are looking already, without waiting for it."""
        if self._waiting >= OBSERVATIONS:
            logger.warning("observer %s is too slow; one call is left out", type(hook).__name__)
            return
        before = self._observing
        self._waiting += 1

        async def look() -> None:
            if before is not None:
                await asyncio.wait({before})
            try:
                await _answer(hook, name, context, *about)
            except Exception:
                logger.warning("observer %s failed", type(hook).__name__, exc_info=True)
            finally:
                self._waiting -= 1

        self._observing = asyncio.ensure_future(look())


async def _answer(hook: Hook, name: str, context: HookContext, *about: Any) -> Any:
    """Call a method of a hook within its time; one that blocks does so in a thread."""
    method = getattr(hook, name)
    async with asyncio.timeout(hook.timeout_seconds):
        if inspect.iscoroutinefunction(method):
            return await method(context, *about)
        return await asyncio.to_thread(method, context, *about)
