"""A model that answers from a script: offline, free, and the same every time.

A scripted reply is a pure function of the request. There is no cursor: a session is served line
number `request.ordinal` of the lines meant for it, so parallel sessions do not disturb each other
and a session resumed after a kill is served the same line again. A script counts four characters
as a token and costs nothing, unless a line says otherwise.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from holdfast.core.messages import Message, Text, ToolCall, assistant
from holdfast.models.errors import KINDS, InvalidScript, ProviderError, ScriptExhausted
from holdfast.models.port import Delta, ModelReply, ModelRequest, OnDelta, Usage, show
from holdfast.models.retry import ONCE, RetryPolicy, elapsed_ms, with_retries

Answer: TypeAlias = str | Message | ModelReply
Responder: TypeAlias = Callable[[ModelRequest], Answer | Awaitable[Answer]]


class ScriptCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One tool call of a line; arguments that are text are passed on as they are, valid or not."""

    name: str
    arguments: dict[str, Any] | str = {}
    id: str | None = None

    def part(self, default_id: str) -> ToolCall:
        """Return the part of the reply."""
        text = self.arguments
        if not isinstance(text, str):
            text = json.dumps(text, ensure_ascii=False, separators=(",", ":"))
        return ToolCall(self.id or default_id, self.name, text)


class ScriptLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One line of a script file."""

    reply: str | None = None
    tool_calls: list[ScriptCall] = []
    match: str | None = None
    leaf: bool = False
    summary: bool = False
    error: str | None = None
    delay_ms: int = 0
    usage: dict[str, int] | None = None
    cost_usd: Decimal | None = None

    @property
    def purpose(self) -> str:
        """Return the kind of call that this line answers."""
        return "leaf" if self.leaf else "summary" if self.summary else "step"

    def fits(self, request: ModelRequest) -> bool:
        """Say whether this line is meant for the request: the right kind, and matched if asked."""
        if self.purpose != request.purpose:
            return False
        text = request.prompt if self.leaf else request.first_user_text
        return self.match is None or re.search(self.match, text) is not None


@dataclass(frozen=True, slots=True)
class Script:
    """The lines of a script file, usable as a responder."""

    path: str
    lines: tuple[ScriptLine, ...]

    @classmethod
    def load(cls, path: str | Path) -> Script:
        """Read a JSONL script; a bad line is an error that names it."""
        try:
            # With or without the mark that some editors put in front.
            text = Path(path).read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidScript(f"script {str(path)!r} cannot be read: {error}") from error
        # Not splitlines(): JSON text may hold other line separators than the newline.
        lines = [
            _parse(line, f"{path}:{number}")
            for number, line in enumerate(text.split("\n"), start=1)
            if line.strip()
        ]
        if not lines:
            raise InvalidScript(f"script {str(path)!r} has no lines")
        return cls(str(path), tuple(lines))

    def line_for(self, request: ModelRequest) -> ScriptLine:
        """Return the line that serves the request.

        That is number `ordinal` of the lines that fit. Leaf calls with different prompts share one
        ordinal, so past the end the last leaf line that asked for a match keeps answering; so does
        the last summary.
        """
        fitting = [line for line in self.lines if line.fits(request)]
        if request.ordinal < len(fitting):
            return fitting[request.ordinal]
        if request.purpose != "step":
            for line in reversed(fitting):
                if line.match is not None or line.summary:
                    return line
        raise ScriptExhausted(
            f"script {self.path!r} has {len(fitting)} {request.purpose} line(s) for this request "
            f"and none with ordinal {request.ordinal} (counted from 0): add lines",
            path=self.path,
            ordinal=request.ordinal,
            purpose=request.purpose,
        )

    async def __call__(self, request: ModelRequest) -> Answer:
        line = self.line_for(request)
        if line.delay_ms:
            await asyncio.sleep(line.delay_ms / 1000)
        if line.error is not None:
            error = KINDS.get(line.error)
            raise error() if error else ProviderError(line.error)
        calls = [
            call.part(f"call-{request.ordinal}-{number}")
            for number, call in enumerate(line.tool_calls, start=1)
        ]
        text = [] if line.reply is None else [Text(line.reply)]
        message = Message("assistant", (*text, *calls))
        usage = _usage(request, message) if line.usage is None else Usage.from_record(line.usage)
        cost_usd = format(line.cost_usd or Decimal(0), "f")
        return ModelReply(message, f"script:{self.path}", usage=usage, cost_usd=cost_usd)


class ScriptedModel:
    """A `Model` over a responder: a Python function of the request, or a `Script`."""

    def __init__(
        self,
        responder: Responder,
        *,
        name: str = "scripted",
        latency_seconds: float = 0.0,
        retry: RetryPolicy = ONCE,
    ) -> None:
        self._responder = responder
        self._name = name
        self._latency_seconds = latency_seconds
        self._retry = retry

    @classmethod
    def from_file(cls, path: str | Path, *, latency_seconds: float = 0.0) -> ScriptedModel:
        """Return the model of a script file; its name holds the absolute path, to be reopened."""
        script = Script.load(Path(path).absolute())
        return cls(script, name=f"script:{script.path}", latency_seconds=latency_seconds)

    @property
    def name(self) -> str:
        """Return the name under which the model was chosen."""
        return self._name

    def ceiling_usd(self, input_tokens: int, output_tokens: int) -> str | None:
        """Return the cost of a script's dearest line; what a function may charge is unknown."""
        if not isinstance(self._responder, Script):
            return None
        return format(max(line.cost_usd or Decimal(0) for line in self._responder.lines), "f")

    async def request(
        self, request: ModelRequest, *, on_delta: OnDelta | None = None
    ) -> ModelReply:
        """Return the scripted reply, or raise the scripted error."""
        reply, attempts = await with_retries(
            lambda: self._answer(request, on_delta),
            deadline_seconds=request.deadline_seconds,
            policy=self._retry,
            max_charged=request.max_charged_attempts,
            on_retry=lambda: show(on_delta, Delta("restart")),
        )
        return replace(reply, attempts=attempts, latency_ms=elapsed_ms(attempts))

    async def close(self) -> None:
        """Do nothing: a script holds no connection."""

    async def _answer(self, request: ModelRequest, on_delta: OnDelta | None) -> ModelReply:
        if self._latency_seconds:
            await asyncio.sleep(self._latency_seconds)
        answer = self._responder(request)
        if inspect.isawaitable(answer):
            answer = await answer
        if isinstance(answer, str):
            answer = assistant(answer)
        if isinstance(answer, Message):
            answer = ModelReply(answer, self._name, usage=_usage(request, answer), cost_usd="0")
        if isinstance(answer.message, Message):  # else whoever asked says what is wrong with it
            if text := answer.message.text:
                show(on_delta, Delta("text", text))
            for call in answer.message.tool_calls:
                show(on_delta, Delta("tool_call", call.arguments, call.call_id, call.name))
        return answer


def _usage(request: ModelRequest, reply: Message) -> Usage:
    asked = len(request.system) + sum(len(message.text) for message in request.messages)
    written = len(reply.text) + sum(len(call.arguments) for call in reply.tool_calls)
    return Usage(
        input_tokens=-(-asked // 4),
        output_tokens=-(-written // 4),
        cached_tokens=0,
        cache_write_tokens=0,
        reasoning_tokens=0,
    )


def _parse(text: str, place: str) -> ScriptLine:
    try:
        line = msgspec.json.decode(text.encode(), type=ScriptLine)
    except (msgspec.MsgspecError, UnicodeEncodeError) as error:
        raise InvalidScript(f"{place}: not a script line: {error}") from error
    if problem := _problem(line):
        raise InvalidScript(f"{place}: {problem}")
    return line


def _problem(line: ScriptLine) -> str | None:
    if line.reply is None and line.error is None and not line.tool_calls:
        return "a line needs a 'reply', 'tool_calls' or an 'error'"
    if line.delay_ms < 0:
        return "'delay_ms' must not be negative"
    if line.cost_usd is not None and not (line.cost_usd.is_finite() and line.cost_usd >= 0):
        return "'cost_usd' must be an amount of dollars"
    unknown = set(line.usage or ()) - set(Usage.__slots__)
    if unknown or any(count < 0 for count in (line.usage or {}).values()):
        return f"'usage' holds counts of {', '.join(Usage.__slots__)}"
    try:
        re.compile(line.match or "")
    except re.error as error:
        return f"'match' is not a regular expression: {error}"
    return None
