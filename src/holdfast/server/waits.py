"""Waits as people answer them: what is asked, in which form, and until when.

The API and the inbox pages take an answer through `apply`, which names the principal itself: who
answers is never what a client says.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from holdfast.core.errors import CallNotFound, InvalidInput
from holdfast.core.facts import CallSuspended
from holdfast.runtime import answers
from holdfast.runtime.answers import Approve, Deny, Fail
from holdfast.runtime.runtime import Runtime
from holdfast.stores.port import PendingWait, SessionStore
from holdfast.views.calls import CallView
from holdfast.views.documents import Document, pending_document
from holdfast.views.values import value_form, value_or_erased


@dataclass(frozen=True, slots=True)
class Wait:
    """A call that waits, with everything a person needs to answer it."""

    session: str
    call: CallView
    suspended: CallSuspended
    prompt: Any
    schema: Any
    arguments: Any

    @property
    def digest(self) -> str:
        """Return the digest of the arguments that are shown, which an approval names."""
        return self.call.arguments.id


async def find_wait(runtime: Runtime, session_id: str, call_id: str) -> Wait:
    """Return a call that waits; CallNotFound where none of this id does."""
    for call in await runtime.open_calls(session_id):
        if call.call_id == call_id and call.waits is not None:
            store = runtime.store
            return Wait(
                session_id,
                call,
                call.waits,
                await value_or_erased(store, session_id, call.waits.prompt),
                await value_or_erased(store, session_id, call.waits.schema),
                await value_or_erased(store, session_id, call.arguments),
            )
    raise CallNotFound(f"session {session_id!r} has no call {call_id!r} that waits")


def wait_document(wait: Wait) -> Document:
    """Return the document of a call that waits."""
    return {
        "session": wait.session,
        "call": wait.call.call_id,
        "wait": wait.suspended.wait,
        "kind": wait.suspended.kind,
        "tool": wait.call.name,
        "effect": wait.call.effect,
        "assignee": wait.suspended.assignee,
        "deadline": wait.call.deadline,
        "prompt": value_form(wait.prompt),
        "schema": value_form(wait.schema),
        "arguments": value_form(wait.arguments),
        "digest": wait.digest,
    }


async def pending_row(store: SessionStore, wait: PendingWait) -> Document:
    """Return one row of the waits of all sessions."""
    return pending_document(wait, await value_or_erased(store, wait.session, wait.prompt))


async def apply(
    runtime: Runtime,
    session_id: str,
    call_id: str,
    given: dict[str, Any],
    by: str,
    *,
    drives: bool = True,
) -> None:
    """Take one answer: exactly one of value, approve, deny, fail, extend, cancel.

    An approval must name the wait and the digest of the arguments that were shown. The session
    goes on here, or without `drives` where a worker takes it up.
    """
    wait = given.get("wait")
    chosen = [
        name
        for name in ("value", "approve", "deny", "fail", "extend", "cancel")
        if name in given and (name == "value" or given[name] not in (None, False))
    ]
    if len(chosen) != 1:
        raise InvalidInput("say exactly one of value, approve, deny, fail, extend, cancel")
    match chosen[0]:
        case "extend":
            deadline = _moment(given["extend"])
            if drives:
                await runtime.extend(session_id, call_id, deadline, by=by)
            else:
                await answers.extend(runtime.store, session_id, call_id, deadline, by)
            return
        case "cancel":
            if drives:
                await runtime.cancel(session_id, call_id, by=by)
            else:
                await answers.cancel(runtime.store, session_id, call_id, by)
            return
        case "approve":
            if wait is None or given.get("digest") is None:
                raise InvalidInput("an approval names the wait and the digest that were shown")
            edited = given.get("arguments")
            said: Any = Approve(None if edited is None else by_name(edited), given["digest"])
        case "deny":
            said = Deny(given["deny"])
        case "fail":
            said = Fail(given["fail"])
        case _:
            said = given["value"]
    if drives:
        await runtime.answer(session_id, call_id, said, wait=wait, by=by)
        return
    redact = runtime.engine.guards.redacted
    await answers.answer(runtime.store, session_id, call_id, said, wait=wait, by=by, redact=redact)


def by_name(arguments: Any) -> Any:
    """Return the arguments of a call by name, whether code or a model made the call."""
    if isinstance(arguments, dict) and set(arguments) == {"args", "kwargs"}:
        if arguments["args"]:
            raise InvalidInput("edited arguments are given by name, as a JSON object")
        return arguments["kwargs"]
    return arguments


def _moment(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidInput(f"{text[:60]!r} is not a valid time; write it as ISO 8601") from error
