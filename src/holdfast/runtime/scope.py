"""Scope: for whom a call acts, given with each request and never stored.

A scope is whatever the program's tools need to know of a user: it goes from `send`, `resume` or
`answer` to the tools of that turn, in memory alone. Turns outlive processes, so a scope may have a
reference, a text that is stored with the message or the approval; a hook of the program turns it
into a scope again at dispatch. Without either, the system acts: tools get None. Secrets follow the
same way: a tool names them, and they are looked up when it is called.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from holdfast.core import values
from holdfast.core.errors import (
    HoldfastError,
    InvalidInput,
    InvalidSettings,
    ScopeMissing,
    SecretMissing,
)
from holdfast.core.messages import Message, Text, ToolCall
from holdfast.core.payloads import Slot, slot
from holdfast.models.port import Model, ModelReply, ModelRequest, OnDelta

logger = logging.getLogger("holdfast.runtime")

MAX_REFERENCE_CHARACTERS = 1000
KINDS = (
    *("message", "input", "reply", "result", "error", "answer"),
    *("arguments", "question", "output", "value", "final", "audit", "progress"),
)
"""The kinds of values that a redact hook gets."""
REDACTION_FAILED = "[not stored: the redact hook failed]"
SHORTEST_SECRET = 4
"""Shorter values are not looked for in results: they occur in ordinary text."""


@dataclass(frozen=True, slots=True)
class Scope:
    """Who a request is for: `value` goes to tools and is never stored, `reference` may be."""

    value: Any = field(default=None, repr=False)
    reference: str | None = None

    def __post_init__(self) -> None:
        text = self.reference
        if text is not None and not (
            isinstance(text, str) and 0 < len(text) <= MAX_REFERENCE_CHARACTERS
        ):
            raise InvalidInput(
                f"the reference of a scope is a text of 1 to {MAX_REFERENCE_CHARACTERS} characters"
            )


def scope_of(given: Any) -> Scope | None:
    """Return what a caller gave as a scope; None for the system scope."""
    return given if given is None or isinstance(given, Scope) else Scope(given)


@dataclass(frozen=True, slots=True)
class Secret:
    """Names a secret: `key: Annotated[str, Secret("stripe")]` hides that argument from models.

    The value is looked up when the tool is called, and taken out of what it returns or raises.
    """

    name: str


@dataclass(frozen=True, slots=True)
class Guards:
    """What a program lets look at scopes, secrets and values; each may be async but `redact`.

    `scopes` turns a stored reference into a scope, `secrets` a name into a value. `redact` gets the
    kind of a value (`KINDS`) and the value, and returns what is stored and worked with instead.
    Secrets that were looked up here are taken out of all of them.
    """

    scopes: Callable[[str], Any] | None = None
    secrets: Callable[[str], Any] | None = None
    redact: Callable[[str, Any], Any] | None = None
    found: dict[str, Any] = field(default_factory=dict, repr=False)
    """Secrets that were looked up, by name."""

    def __post_init__(self) -> None:
        for name in ("scopes", "secrets", "redact"):
            value = getattr(self, name)
            if value is not None and not callable(value):
                raise InvalidSettings(f"{name} is a {type(value).__name__}, not a function")

    async def scope(self, scope: Scope | None) -> Any:
        """Return the scope that a tool gets: the value at hand, else what the reference leads to.

        A reference that cannot be resolved is ScopeMissing.
        """
        if scope is None or scope.value is not None or scope.reference is None:
            return None if scope is None else scope.value
        if self.scopes is None:
            raise ScopeMissing(
                f"the scope {scope.reference!r} cannot be resolved: open the runtime with scopes=…"
            )
        try:
            found = self.scopes(scope.reference)
            return await found if inspect.isawaitable(found) else found
        except Exception as error:
            raise ScopeMissing(
                f"the scope {scope.reference!r} was not resolved: {type(error).__name__}"
            ) from error

    async def secret(self, name: str) -> Any:
        """Return a secret by its name; SecretMissing where there is none."""
        if self.secrets is None:
            raise SecretMissing(f"secret {name!r} is not here: open the runtime with secrets=…")
        try:
            found = self.secrets(name)
            found = await found if inspect.isawaitable(found) else found
        except Exception as error:
            # The text of the error may hold what must not be stored.
            raise SecretMissing(f"secret {name!r} was not found: {type(error).__name__}") from error
        if found is None:
            raise SecretMissing(f"secret {name!r} was not found")
        self.found[name] = found
        return found

    @property
    def active(self) -> bool:
        """Tell whether anything is looked for in values."""
        return self.redact is not None or bool(self.found)

    def redacted(self, kind: str, value: Any) -> Any:
        """Return what is stored for a value; a hook that fails keeps the value out of the log."""
        value = without_secrets(value, self.found)
        if self.redact is None:
            return value
        try:
            return self.redact(kind, value)
        except Exception:
            logger.warning("the redact hook failed for a value of kind %s", kind, exc_info=True)
            return REDACTION_FAILED

    def redacted_text(self, kind: str, text: str) -> str:
        """Return what is stored for a text."""
        return str(self.redacted(kind, text)) if self.active else text

    def redacted_slot(self, kind: str, item: Slot) -> Slot:
        """Return a slot with what is stored for its value; what is no plain value stays."""
        if not self.active or item.data is None:
            return item
        try:
            value = values.decode(item.encoding, item.data)
        except HoldfastError:
            return item
        return slot(self.redacted(kind, value), item.kind)

    def redacted_message(self, kind: str, message: Message) -> Message:
        """Return a message with its texts, and the arguments of its tool calls, redacted."""
        if not self.active:
            return message
        parts: list[Any] = []
        for part in message.parts:
            if isinstance(part, Text):
                parts.append(replace(part, text=str(self.redacted(kind, part.text))))
            elif isinstance(part, ToolCall):
                parts.append(replace(part, arguments=str(self.redacted(kind, part.arguments))))
            else:
                parts.append(part)
        return replace(message, parts=tuple(parts))


def without_secrets(value: Any, secrets: Mapping[str, Any]) -> Any:
    """Return a value in which the texts of secrets are replaced by their names."""
    known = {
        text: f"[secret {name}]"
        for name, text in secrets.items()
        if isinstance(text, str) and len(text) >= SHORTEST_SECRET
    }
    return _replaced(value, known) if known else value


def _replaced(value: Any, known: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        for text, name in known.items():
            value = value.replace(text, name)
        return value
    if type(value) is dict:
        return {_replaced(key, known): _replaced(item, known) for key, item in value.items()}
    if type(value) in (list, tuple, set, frozenset):
        return type(value)(_replaced(item, known) for item in value)
    return value


class RedactedModel:
    """A model whose replies are redacted before anyone stores or acts on them."""

    def __init__(self, inner: Model, guards: Guards) -> None:
        self._inner = inner
        self._guards = guards

    @property
    def name(self) -> str:
        """Return the name under which the model was chosen."""
        return self._inner.name

    def ceiling_usd(self, input_tokens: int, output_tokens: int) -> str | None:
        """Return the most that a call of this size can cost."""
        return self._inner.ceiling_usd(input_tokens, output_tokens)

    async def request(
        self, request: ModelRequest, *, on_delta: OnDelta | None = None
    ) -> ModelReply:
        """Return the reply with its texts redacted; what is streamed is not stored."""
        reply = await self._inner.request(request, on_delta=on_delta)
        if not isinstance(reply, ModelReply):
            return reply  # whoever asked says what is wrong with it
        return replace(reply, message=self._guards.redacted_message("reply", reply.message))

    async def close(self) -> None:
        """Let go of connections."""
        await self._inner.close()
