"""What a tool may say instead of returning: that it needs an answer first, or that all is unclear.

A tool that raises `NeedsAnswer` is not over: its call waits for a person, however long, and
the tool is called again with the same arguments and with all answers so far in its
`CallContext`. One that raises `OutcomeLost` says that nobody knows whether it took effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.core.facts import CallSuspended, InputAdmitted
from holdfast.core.payloads import slot
from holdfast.runtime.calls import pages
from holdfast.runtime.handlers.question import deadline_after
from holdfast.runtime.journal import Journal
from holdfast.runtime.tools import GivenAnswer


class NeedsAnswer(Exception):
    """A tool cannot go on without an answer; it is called again once there is one.

    `schema` is the JSON schema that the answer must fit. `state` is any plain data that the tool
    gets back with the answer; it stands in the log.
    """

    def __init__(
        self,
        question: str,
        *,
        schema: Mapping[str, Any] | None = None,
        state: Any = None,
        deadline_seconds: float | None = None,
        assignee: str | None = None,
    ) -> None:
        super().__init__(question)
        self.question = question
        self.schema = None if schema is None else dict(schema)
        self.state = state
        self.deadline_seconds = deadline_seconds
        self.assignee = assignee


class OutcomeLost(Exception):
    """Nobody knows whether the call took effect.

    The outcome of a `once` tool is then unknown; a call of any other tool has failed, and is made
    again as often as its `retry` says.
    """


def answer_wait(call_id: str, name: str, need: NeedsAnswer, at: str) -> CallSuspended:
    """Return the wait for the answer that a tool needs."""
    prompt = {"tool": name, "question": need.question}
    if need.state is not None:
        prompt["state"] = need.state
    return CallSuspended(
        call_id=call_id,
        kind="question",
        prompt=slot(prompt, "prompt"),
        schema=None if need.schema is None else slot(need.schema, "schema"),
        deadline=deadline_after(at, need.deadline_seconds),
        assignee=need.assignee,
    )


@dataclass(frozen=True, slots=True)
class _Asked:
    state: Any


async def answers_of(journal: Journal, call_id: str) -> tuple[GivenAnswer, ...]:
    """Return what a running call was answered so far, oldest first."""
    pending = journal.state.calls.get(call_id)
    if pending is None or not pending.wait:
        return ()
    asked: dict[int, _Asked] = {}
    given: list[GivenAnswer] = []
    types = [CallSuspended.TYPE, InputAdmitted.TYPE]
    async for event in pages(journal.store, journal.session, pending.seq, types):
        fact = event.fact()
        match fact:
            case CallSuspended(kind="question", prompt=prompt) if fact.call_id == call_id:
                told: Any = None if prompt is None else await journal.value(prompt)
                asked[fact.wait] = _Asked(told.get("state") if isinstance(told, dict) else None)
            case InputAdmitted(kind="answer", content=content, wait=int(wait)) if (
                fact.call_id == call_id and wait in asked and content is not None
            ):
                said: Any = await journal.value(content)
                given.append(
                    GivenAnswer(said.get("value"), asked[wait].state, said.get("declined"))
                )
    return tuple(given)
