"""An endpoint for front ends that speak AG-UI: threads are sessions, runs are messages.

The session of a thread follows from tenant, agent and thread, and the id of a run is the key of its
message, so that a run which is repeated is worked once. Calls that wait end a run as interrupts;
the next run of the thread brings their answers.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from ag_ui.core import (
    BaseEvent,
    Interrupt,
    RunAgentInput,
    RunErrorEvent,
    RunFinishedEvent,
    RunFinishedInterruptOutcome,
    RunFinishedSuccessOutcome,
    RunStartedEvent,
    TextMessageContentEvent,
    TextMessageEndEvent,
    TextMessageStartEvent,
    ToolCallArgsEvent,
    ToolCallEndEvent,
    ToolCallResultEvent,
    ToolCallStartEvent,
)
from ag_ui.encoder import EventEncoder
from fastapi import APIRouter
from starlette.responses import Response, StreamingResponse

from holdfast.core import facts
from holdfast.core.errors import HoldfastError, InvalidInput
from holdfast.core.events import Event
from holdfast.core.ids import check_key
from holdfast.core.status import SUSPENDED
from holdfast.runtime.results import Final, Pending, Queued, TurnResult
from holdfast.server import waits
from holdfast.server.rendering import text_form
from holdfast.server.requests import Actor, Caller
from holdfast.stores.port import Transient
from holdfast.views.messages import read_message
from holdfast.views.values import value_form, value_or_erased

router = APIRouter(tags=["ag-ui"])


@router.post("/ag-ui/{agent}", response_class=Response)
async def run_agent(asked: Actor, agent: str, body: RunAgentInput) -> Response:
    """Run an agent for an AG-UI front end; the answer is a stream of its events."""
    thread, run = body.thread_id, check_key(body.run_id, "run id")
    session_id = asked.hub.new_id(asked.principal.tenant, f"ag-ui:{agent}", thread)
    runtime = asked.runtime
    await runtime.session(session_id, agent=agent, create=True, labels={"ag_ui": "thread"})
    text = _asked(body)
    if not text and not body.resume:
        raise InvalidInput("the run has no message of the user, and no answers")
    after = (await runtime.state(session_id)).seq
    for entry in body.resume or ():
        given = {"cancel": True} if entry.status == "cancelled" else {"value": entry.payload}
        by, drives = asked.principal.name, asked.hub.drives
        call = entry.interrupt_id
        await waits.apply(runtime, session_id, call, given, by, drives=drives)
    if not body.resume:
        await asked.hub.leave(runtime, session_id, text, {}, "queue", run)
    encoder = EventEncoder()

    async def lines() -> AsyncIterator[bytes]:
        yield encoder.encode(RunStartedEvent(thread_id=thread, run_id=run)).encode()
        try:
            key = None if body.resume else run
            async for event in _events(asked, session_id, after, thread, run, key):
                yield encoder.encode(event).encode()
        except HoldfastError as error:
            yield encoder.encode(RunErrorEvent(message=str(error), code=error.code)).encode()

    return StreamingResponse(lines(), media_type="text/event-stream")


def _asked(body: RunAgentInput) -> str:
    """Return the last message of the user; what was said before stands in the session."""
    for message in reversed(body.messages):
        if message.role == "user":
            content = message.content
            if isinstance(content, str):
                return content
            return "\n".join(getattr(part, "text", "") or "" for part in content)
    return ""


async def _events(
    asked: Caller, session_id: str, after: int, thread: str, run: str, key: str | None
) -> AsyncIterator[BaseEvent]:
    """Yield what happens in a session until its turn has ended or waits for someone."""
    runtime, streamed = asked.runtime, ""
    asking = False  # whether a step was begun whose reply is not stored: other deltas are late
    async with runtime.subscribe(session_id, after=after) as moving:
        async for item in moving:
            if isinstance(item, Event):
                async for event in _stored(asked, session_id, item, streamed):
                    yield event
                if item.type in (facts.StepStarted.TYPE, facts.MessageAppended.TYPE):
                    asking, streamed = item.type == facts.StepStarted.TYPE, ""
                ended = await _ended(asked, session_id, thread, run, key)
                if ended is not None:
                    yield ended
                    return
            elif asking and (text := _delta(item)):
                if not streamed:
                    number = (await runtime.state(session_id)).next("message")
                    streamed = f"{session_id}-{number}"
                    yield TextMessageStartEvent(message_id=streamed, role="assistant")
                yield TextMessageContentEvent(message_id=streamed, delta=text)


def _delta(item: Any) -> str:
    """Return the text of a token delta; nothing of any other item."""
    if not isinstance(item, Transient) or not isinstance(item.data, dict):
        return ""
    return str(item.data.get("text") or "") if item.data.get("kind") == "text" else ""


async def _stored(
    asked: Caller, session_id: str, item: Event, streamed: str
) -> AsyncIterator[BaseEvent]:
    store = asked.runtime.store
    fact = item.fact() if item.known else None
    match fact:
        case facts.MessageAppended(role="assistant"):
            message = await read_message(store, session_id, fact.role, fact.content)
            name = streamed or f"{session_id}-{fact.message}"
            if not streamed and message.text:
                yield TextMessageStartEvent(message_id=name, role="assistant")
                yield TextMessageContentEvent(message_id=name, delta=message.text)
            if streamed or message.text:
                yield TextMessageEndEvent(message_id=name)
        case facts.CallRequested():
            arguments = value_form(await value_or_erased(store, session_id, fact.arguments))
            yield ToolCallStartEvent(tool_call_id=fact.call_id, tool_call_name=fact.name)
            yield ToolCallArgsEvent(tool_call_id=fact.call_id, delta=text_form(arguments))
            yield ToolCallEndEvent(tool_call_id=fact.call_id)
        case facts.CallResolved():
            value = await value_or_erased(store, session_id, fact.result or fact.error)
            yield ToolCallResultEvent(
                message_id=f"{session_id}-r{item.seq}",
                tool_call_id=fact.call_id,
                content=text_form(value),
                role="tool",
            )


async def _ended(
    asked: Caller, session_id: str, thread: str, run: str, key: str | None
) -> BaseEvent | None:
    """Return the event that ends a run, where its turn has ended or waits for someone."""
    runtime = asked.runtime
    state = await runtime.state(session_id)
    if state.status == SUSPENDED:
        outcome = RunFinishedInterruptOutcome(interrupts=await _interrupts(asked, session_id))
        return RunFinishedEvent(thread_id=thread, run_id=run, outcome=outcome)
    if state.turn is not None:
        return None
    result: TurnResult | None = None
    if key is not None:
        result = await runtime.result(session_id, key)
        if isinstance(result, Queued | Pending):
            return None
    turn = (await runtime.turns(session_id, limit=1000))[-1]
    if turn.status == "final":
        value = result.value if isinstance(result, Final) else None
        if value is None and turn.final is not None:
            value = await value_or_erased(runtime.store, session_id, turn.final)
        done = RunFinishedSuccessOutcome()
        return RunFinishedEvent(
            thread_id=thread, run_id=run, result=value_form(value), outcome=done
        )
    error = await value_or_erased(runtime.store, session_id, turn.error)
    return RunErrorEvent(message=text_form(error or turn.status), code=turn.status)


async def _interrupts(asked: Caller, session_id: str) -> list[Interrupt]:
    found: list[Interrupt] = []
    for call in await asked.runtime.open_calls(session_id):
        if call.waits is None or call.waits.kind == "child":
            continue
        wait = await waits.find_wait(asked.runtime, session_id, call.call_id)
        schema: Any = value_form(wait.schema)
        found.append(
            Interrupt(
                id=call.call_id,
                reason=wait.suspended.kind,
                message=text_form(wait.prompt) if wait.prompt is not None else None,
                tool_call_id=call.call_id,
                response_schema=schema if isinstance(schema, dict) else None,
                expires_at=call.deadline,
            )
        )
    return found
