"""Questions from code: `x = ask(...)` waits for a person, for as long as that takes.

The question is a call that waits from its start. The cell is given up meanwhile; once the answer is
in the log it runs again from its start, and goes on after the question with `x` bound, in whichever
process that is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from holdfast.core.errors import FileNotKept, InvalidInput
from holdfast.core.facts import CallSuspended
from holdfast.core.payloads import slot
from holdfast.kernels.port import HostAnswer, HostCall, HostFunction, RecordedCall
from holdfast.runtime import schemas
from holdfast.runtime.calls import Ledger, nanoseconds
from holdfast.runtime.scope import Guards

SIGNATURE = (
    "(question: str, schema: dict | None = None, *, default=None, "
    "timeout_seconds: float | None = None)"
)
FUNCTIONS = (HostFunction("ask", signature=SIGNATURE),)
NAMES = frozenset(function.name for function in FUNCTIONS)
MAX_QUESTION_CHARACTERS = 20_000


def deadline_after(at: str, seconds: float | None) -> str | None:
    """Return the moment that lies so many seconds after another, as records write it."""
    if seconds is None:
        return None
    moment = datetime.fromisoformat(at) + timedelta(seconds=seconds)
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


@dataclass(slots=True)
class QuestionHandler:
    """The questions of one evaluation."""

    ledger: Ledger

    async def recorded(self) -> list[tuple[int, RecordedCall]]:
        """Return nothing: the ledger has them among the other calls."""
        return []

    async def call(self, call: HostCall) -> HostAnswer:
        """Ask a person, or go on waiting for the answer to a question that was asked."""
        ledger = self.ledger
        at = ledger.journal.state.updated_at
        if call.key not in ledger.calls:
            try:
                wait = _wait(ledger.call_id(call), at, *call.args, **call.kwargs)
                wait = _redacted(ledger.guards, wait)
                await ledger.keep_files(call)
            except (TypeError, InvalidInput, FileNotKept) as error:
                return HostAnswer.failed("ValueError", str(error), nanoseconds(at))
            intent = ledger.requested(
                call, executor="human", effect="once", kind="question", deadline=wait.deadline
            )
            await ledger.request(intent, wait)
        answer = await ledger.moved_on(call)
        assert answer is not None
        return answer


def _redacted(guards: Guards, wait: CallSuspended) -> CallSuspended:
    default = wait.default
    return replace(
        wait,
        prompt=None if wait.prompt is None else guards.redacted_slot("question", wait.prompt),
        default=None if default is None else guards.redacted_slot("answer", default),
    )


def _wait(
    call_id: str,
    at: str,
    question: Any,
    schema: Any = None,
    *,
    default: Any = None,
    timeout_seconds: Any = None,
) -> CallSuspended:
    if not isinstance(question, str) or not question.strip():
        raise TypeError("ask() takes a question as a string that is not empty")
    if len(question) > MAX_QUESTION_CHARACTERS:
        raise TypeError(f"ask() takes a question of at most {MAX_QUESTION_CHARACTERS} characters")
    if timeout_seconds is not None and not isinstance(timeout_seconds, int | float):
        raise TypeError("ask() takes timeout_seconds as a number")
    if schema is not None:
        schemas.of(schema)
        if default is not None:
            schemas.check(schema, default)
    return CallSuspended(
        call_id=call_id,
        kind="question",
        prompt=slot(question, "prompt"),
        schema=None if schema is None else slot(schema, "schema"),
        deadline=deadline_after(at, timeout_seconds),
        default=None if default is None else slot(default, "answer"),
    )
