"""Asking a model that anyone may have written: its reply is checked, its deadline enforced.

A model is code from outside. What it returns goes into a log that is read for years, so a reply is
checked before it is stored, and one that is not valid fails the call like any other failure of a
provider. So does whatever a model raises, a cancellation that nobody asked for included. A model
that does not keep to its deadline is cut off here, a little later, so that one that does can report
its attempts first.
"""

from __future__ import annotations

import asyncio
import logging
from decimal import Decimal, InvalidOperation
from typing import Any

from holdfast.core.errors import ModelError
from holdfast.core.events import now
from holdfast.core.messages import Message, Reasoning, Text, ToolCall
from holdfast.core.values import is_text
from holdfast.models.errors import MalformedReply, ModelTimeout
from holdfast.models.port import Attempt, Model, ModelReply, ModelRequest, OnDelta, Usage

logger = logging.getLogger("holdfast.models")

GRACE_SECONDS = 1.0


async def ask(
    model: Model, request: ModelRequest, *, on_delta: OnDelta | None = None
) -> ModelReply:
    """Return a model's reply as it can be stored; ModelTimeout soon after the deadline.

    Whatever else the model raises is a ModelError.
    """
    try:
        async with asyncio.timeout(request.deadline_seconds + GRACE_SECONDS) as clock:
            reply = await model.request(request, on_delta=on_delta)
    except ModelError as error:
        proper = _proper(error)
        raise proper from (None if proper is error else error)
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise _failure(error) from error
    except (Exception, SystemExit) as error:  # which would end the loop that drives every session
        if isinstance(error, TimeoutError) and clock.expired():
            raise ModelTimeout(
                f"no reply within the deadline of {request.deadline_seconds:g} s"
            ) from None
        raise _failure(error) from error
    return checked(reply)


def ceiling_of(model: Model, input_tokens: int, output_tokens: int) -> str | None:
    """Return the most that a call can cost; None where the model does not say it."""
    try:
        said: Any = model.ceiling_usd(input_tokens, output_tokens)
    except Exception:
        logger.warning("model %r does not say what a call can cost", model.name, exc_info=True)
        return None
    if said is not None and not _is_amount(said):
        logger.warning("model %r says that a call costs at most %a", model.name, said)
        return None
    return None if said is None else str(said)


def _proper(error: ModelError) -> ModelError:
    """Return a model's own error, or one in its place that has a code and words."""
    try:
        str(error)
        said = is_text(error.code)
    except Exception:
        said = False
    return error if said else _failure(error)


def attempts_of(error: ModelError) -> tuple[Attempt, ...]:
    """Return the attempts that an error carries; one that it stands for where it carries none."""
    attempts: Any = getattr(error, "attempts", ())
    if not _are_attempts(attempts):
        logger.warning("a model's error has invalid attempts: %s", ascii(attempts)[:200])
        attempts = ()
    if attempts:
        return tuple(attempts)
    accepted = getattr(error, "accepted", True) is not False
    return (Attempt(now(), 0, 0, "error", error.code, str(error), accepted),)


def _failure(error: BaseException) -> ModelError:
    try:
        told = str(error)
    except Exception:
        told = "(it does not say why)"
    return ModelError(f"{type(error).__name__}: {told}")


def checked(reply: Any) -> ModelReply:
    """Return a reply if it is one; MalformedReply says what is wrong with it."""
    if not isinstance(reply, ModelReply):
        raise MalformedReply(f"the model returned a {type(reply).__name__}, not a ModelReply")
    attempts = reply.attempts
    if not _are_attempts(attempts):
        told = ascii(attempts)[:200]
        raise MalformedReply(f"the reply's attempts are {told}, not a tuple of Attempt")
    wrong = _wrong(reply)
    if wrong is not None:
        raise MalformedReply(f"the reply's {wrong}", attempts=attempts)
    return reply


def _wrong(reply: ModelReply) -> str | None:
    message: Any = reply.message
    if not isinstance(message, Message) or message.role != "assistant":
        return f"message is {message!r}, not a Message of role 'assistant'"
    if (part := _wrong_part(message)) is not None:
        return part
    if not is_text(reply.model):
        return f"model is {reply.model!a}, not a name"
    if not isinstance(reply.usage, Usage):
        return f"usage is {reply.usage!r}, not a Usage"
    for name, count in reply.usage.to_record().items():
        if count is not None and not _is_count(count):
            return f"usage has {name} {count!r}; use a whole number, or None where it is unknown"
    if reply.cost_usd is not None and not _is_amount(reply.cost_usd):
        return f"cost_usd is {reply.cost_usd!r}; use text like '0.0042', or None if it is unknown"
    if not _is_count(reply.latency_ms):
        return f"latency_ms is {reply.latency_ms!r}, not a whole number"
    for name in ("price_table", "finish_reason"):
        text: Any = getattr(reply, name)
        if text is not None and not is_text(text):
            return f"{name} is {text!a}, not text"
    return None


def _wrong_part(message: Message) -> str | None:
    for part in message.parts:
        if isinstance(part, Text | Reasoning) and not isinstance(part.text, str):
            return f"message has the part {part!r}, whose text is not a string"
        if isinstance(part, ToolCall):
            texts: list[Any] = [part.call_id, part.name, part.arguments]
            if not all(map(is_text, texts)):
                return f"message has the part {part!a}, whose id, name or arguments are not text"
    ids = [call.call_id for call in message.tool_calls]
    return f"message has two tool calls with one id: {ids!a}" if len(set(ids)) < len(ids) else None


def _are_attempts(attempts: Any) -> bool:
    return isinstance(attempts, tuple) and all(map(_is_attempt, attempts))


def _is_attempt(one: Any) -> bool:
    if not isinstance(one, Attempt):
        return False
    texts: list[Any] = [one.error, one.message]
    return (
        is_text(one.started_at)
        and _is_count(one.wait_ms)
        and _is_count(one.duration_ms)
        and one.outcome in ("ok", "error", "timeout")
        and all(text is None or is_text(text) for text in texts)
        and type(one.accepted) is bool
    )


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**53


def _is_amount(value: Any) -> bool:
    try:
        amount = Decimal(value) if is_text(value) else Decimal(-1)
    except InvalidOperation:
        return False
    if not amount.is_finite() or amount < 0:
        return False
    _, digits, exponent = amount.as_tuple()
    return len(digits) <= 40 and -30 <= int(exponent) <= 15  # as sums are kept exactly
