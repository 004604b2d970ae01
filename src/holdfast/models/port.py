"""The one way in which the runtime asks a model: a request in, a reply out.

A request says everything that the answer may depend on, so that a scripted or recorded model can
be a pure function of it. A reply says what is worth recording: the message, what it used and cost
(None where unknown, never zero), and every attempt that was made on the way. Nothing in either is
a provider's type. Calls are cancellable: cancelling the awaiting task ends the transport too.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

from holdfast.core.messages import Message

logger = logging.getLogger("holdfast.models")

Purpose: TypeAlias = Literal["step", "leaf", "summary"]


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as a model is told of it; `parameters` is a JSON Schema object."""

    name: str
    description: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One question to a model.

    `ordinal` is the number of steps (for a leaf: of leaf calls, for a summary: of compactions) that
    the session's log held when this one was issued, so the first is 0 and a resumed session asks
    with the same number again.
    `first_user_text` is the text of the session's first user message, for a leaf as for a step.
    `parent` is the session that a child was asked for by, and the id of that call in it.
    `retry` says how often a failure is tried again before the deadline, as the setting does, where
    the model itself was not given a policy; `max_charged_attempts` is how many attempts may be made
    that the provider may charge for. `tool_choice` is `auto`, `required` (call one), `none`, or the
    name of the tool to call. With `output_schema`, a JSON Schema of an object, the reply's text is
    JSON of that form as far as the provider sees to it; whoever asks validates it.
    """

    messages: tuple[Message, ...]
    system: str = ""
    purpose: Purpose = "step"
    session_id: str = ""
    ordinal: int = 0
    first_user_text: str = ""
    parent: tuple[str, str] | None = None
    cache_id: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    max_output_tokens: int | None = None
    deadline_seconds: float = 120.0
    retry: str = "deadline"
    max_charged_attempts: int | None = None
    tools: tuple[ToolSpec, ...] = ()
    tool_choice: str = "auto"
    output_schema: Mapping[str, Any] | None = None

    @property
    def prompt(self) -> str:
        """Return the text of the last user message: what a leaf call asks."""
        for message in reversed(self.messages):
            if message.role == "user":
                return message.text
        return ""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens as the provider counted them; None is unknown.

    `input_tokens` includes those read from and written to the provider's cache, and
    `output_tokens` includes reasoning.
    """

    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None

    @property
    def total_tokens(self) -> int | None:
        """Return input plus output, or None when either is unknown."""
        return _sum(self.input_tokens, self.output_tokens)

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            _sum(self.input_tokens, other.input_tokens),
            _sum(self.output_tokens, other.output_tokens),
            _sum(self.cached_tokens, other.cached_tokens),
            _sum(self.cache_write_tokens, other.cache_write_tokens),
            _sum(self.reasoning_tokens, other.reasoning_tokens),
        )

    def to_record(self) -> dict[str, int | None]:
        """Return the stored form."""
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_record(cls, record: Mapping[str, int | None]) -> Usage:
        """Return the usage of a stored form; what it does not name is unknown."""
        return cls(**{name: record.get(name) for name in cls.__slots__})


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try at the provider: when, after which wait, for how long, and what came of it.

    `accepted` is false where the provider never took the request on, so that it costs nothing. What
    is not known to be so may have cost something (`holdfast.models.spend`).
    """

    started_at: str
    wait_ms: int
    duration_ms: int
    outcome: Literal["ok", "error", "timeout"]
    error: str | None = None
    message: str | None = None
    accepted: bool = True

    def to_record(self) -> dict[str, str | int | None]:
        """Return the stored form."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class ModelReply:
    """A model's answer, with what is known about how it came to be."""

    message: Message
    model: str
    usage: Usage = Usage()
    cost_usd: str | None = None
    price_table: str | None = None
    latency_ms: int = 0
    attempts: tuple[Attempt, ...] = ()
    finish_reason: str | None = None
    response_id: str | None = None


@dataclass(frozen=True, slots=True)
class Delta:
    """A piece of a reply that is still being written; shown, never stored.

    `restart` means that the attempt was given up: what was shown so far is void. Deltas of a tool
    call are pieces of its arguments; several calls may be written at once, told apart by `call_id`.
    """

    kind: Literal["text", "reasoning", "tool_call", "restart"]
    text: str = ""
    call_id: str | None = None
    name: str | None = None


OnDelta: TypeAlias = Callable[[Delta], None]


@runtime_checkable
class Model(Protocol):
    """Something that answers requests."""

    @property
    def name(self) -> str:
        """Return the name under which the model was chosen, as settings store it."""
        ...

    def ceiling_usd(self, input_tokens: int, output_tokens: int) -> str | None:
        """Return the most that a call of this size can cost; None where nobody knows."""
        ...

    async def request(
        self, request: ModelRequest, *, on_delta: OnDelta | None = None
    ) -> ModelReply:
        """Return the reply, or raise a `ProviderError` that carries every attempt."""
        ...

    async def close(self) -> None:
        """Let go of connections; may be called more than once."""
        ...


def show(on_delta: OnDelta | None, delta: Delta) -> None:
    """Hand a delta to whoever watches; a watcher that fails does not fail the call it watches."""
    if on_delta is None:
        return
    try:
        on_delta(delta)
    except Exception:
        logger.warning("a delta watcher failed", exc_info=True)


def _sum(left: int | None, right: int | None) -> int | None:
    return None if left is None or right is None else left + right
