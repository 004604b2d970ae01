"""Recordings: what a log has of one session, as a replay needs it.

The replies of models, the calls of every cell with their answers, when each cell started, what the
turns were asked, and where the transcript was compacted. Everything is read from a store, so a live
session, a store of another run and an export are recordings alike.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import Any, cast

from msgspec import structs

from holdfast.core.errors import NotFound, SessionDeleted
from holdfast.core.events import Event
from holdfast.core.facts import (
    CallApproved,
    CallRequested,
    CallResolved,
    EvalAdded,
    LeafCalled,
    MessageAppended,
    SessionCompacted,
    SessionConfigured,
    SessionStarted,
    StepPut,
    StepStarted,
    TurnPut,
    TurnReopened,
    TurnStarted,
)
from holdfast.core.messages import Message, assistant
from holdfast.core.payloads import Slot, manifest_slots
from holdfast.core.state import empty
from holdfast.kernels.port import CallKey, HostAnswer, HostCall
from holdfast.models.port import ModelReply, Usage
from holdfast.models.recorded import LeafKey, RecordedAnswer, RecordedSession, Recording
from holdfast.runtime import strategies
from holdfast.runtime.calls import Ledger, nanoseconds, pages
from holdfast.runtime.input_files import KIND
from holdfast.runtime.journal import Journal
from holdfast.stores.port import SessionStore
from holdfast.views.messages import Kept, kept_entries, read_message
from holdfast.views.values import hydrate

TYPES = (
    *(TurnStarted.TYPE, TurnPut.TYPE, StepStarted.TYPE, StepPut.TYPE, MessageAppended.TYPE),
    *(EvalAdded.TYPE, LeafCalled.TYPE, CallRequested.TYPE, CallResolved.TYPE),
    *(CallApproved.TYPE, SessionCompacted.TYPE, TurnReopened.TYPE),
    *(SessionStarted.TYPE, SessionConfigured.TYPE),
)
EPOCH = "1970-01-01T00:00:00Z"
NOT_REPEATED = frozenset({"died", "diverged", "unknown", "limit"})
"""How cells end that a second run need not end by."""


@dataclass(slots=True)
class RecordedTurn:
    """One turn: what it was asked, and how it ended."""

    turn: int
    inputs: dict[str, Any]
    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    message: Message | None = None
    status: str = "open"
    error: Any = None
    broken: str = ""  # why it cannot be replayed to its end
    configured: int = 1  # the event that had the settings in force when it ended
    inherited: bool = False  # a fork inside a turn: nobody sent it a message


@dataclass(slots=True)
class RecordedCell:
    """One evaluated cell: when it started and which calls it made."""

    started_at: str = ""
    status: str = ""
    functions: set[str] = field(default_factory=set)
    broken_off: set[CallKey] = field(default_factory=set)  # calls that had no outcome
    events: list[Event] = field(default_factory=list)  # of its calls


@dataclass(slots=True)
class NativeCall:
    """One native tool call: what was asked, let through and answered."""

    request: CallRequested
    approved: CallApproved | None = None
    resolved: CallResolved | None = None


@dataclass(slots=True)
class SessionRecording:
    """All that a replay takes from the log of one session."""

    store: SessionStore
    session: str
    model: RecordedSession
    leaves: dict[LeafKey, deque[RecordedAnswer]] = field(default_factory=dict)
    turns: list[RecordedTurn] = field(default_factory=list)
    cells: dict[int, RecordedCell] = field(default_factory=dict)
    requests: list[str | None] = field(default_factory=list)
    compactions: dict[int, tuple[SessionCompacted, int]] = field(default_factory=dict)
    native: dict[int, dict[int, NativeCall]] = field(default_factory=dict)
    """Native tool calls: by the step that asked for them, counted from 0, and by their index."""
    output_schema: Any = None
    unrecorded: list[tuple[int, str]] = field(default_factory=list)

    def recording(self) -> Recording:
        """Return the model calls."""
        return Recording([self.model], self.leaves)

    def started_at(self, number: int) -> str | None:
        """Return when a cell started; None where there is no such cell."""
        found = self.cells.get(number)
        return None if found is None else found.started_at

    def ledger(self, number: int) -> Ledger:
        """Return the calls of a cell, as the log has them."""
        found = self.cells.get(number) or RecordedCell(EPOCH)
        journal = cast(Journal, _Reader(self.store, self.session, found.started_at))
        ledger = Ledger(journal, 0, 0, number)
        ledger.take(found.events)
        return ledger

    async def refuse(self, number: int, call: HostCall) -> HostAnswer:
        """Take note of a call that the recording does not have; nothing is dispatched."""
        found = self.cells.get(number)
        if found is not None and call.key in found.broken_off and found.status:
            # It was in flight when its cell ended, and is until this one does.
            await asyncio.Event().wait()
        if found is None or found.status or call.function not in found.functions:
            self.unrecorded.append((number, call.function))
        at = nanoseconds(found.started_at) if found is not None and found.started_at else 0
        text = f"the recording has no such call of {call.function}"
        return HostAnswer.failed("ReplayDivergence", text, at)

    async def whole(self, item: Slot | None) -> Any:
        """Return a slot of the recording with its bytes."""
        return None if item is None else await hydrate(self.store, self.session, item)

    async def compaction(self, message: int) -> tuple[SessionCompacted, list[Slot], int] | None:
        """Return the compaction that was made as this message, with the bytes that it refers to.

        And up to which message it stands for what was said.
        """
        found = self.compactions.get(message)
        if found is None:
            return None
        fact, last = found
        content = await hydrate(self.store, self.session, fact.content)
        queue, payloads = [content], [content]
        while queue:
            item = queue.pop()
            for part in manifest_slots(item, item.data or b""):
                whole = await hydrate(self.store, self.session, part)
                payloads.append(whole)
                queue.append(whole)
        return fact, payloads, last


class _Reader:
    """The part of a journal that reads values; a recording is never written."""

    def __init__(self, store: SessionStore, session: str, at: str) -> None:
        self.store, self.session = store, session
        self.state = structs.replace(empty(session), updated_at=at)

    async def hydrate(self, item: Slot) -> Slot:
        return await hydrate(self.store, self.session, item)

    async def value(self, item: Slot) -> object:
        return (await self.hydrate(item)).value()


async def load_recording(store: SessionStore, session: str) -> SessionRecording:
    """Read the recording of a session from its log."""
    reader = _Loader(store, session)
    async for event in pages(store, session, 0, TYPES):
        await reader.take(event, event.fact())
    return reader.found


async def subtree(store: SessionStore, session: str) -> list[str]:
    """Return a session and every child below it, in the order of their parents' calls.

    Children that are not in the store any more, or never began, are left out.
    """
    tree = [session]
    for one in tree:  # which grows by the children of each
        async for event in pages(store, one, 0, [CallRequested.TYPE]):
            fact = event.fact()
            if isinstance(fact, CallRequested) and fact.child and await _has_begun(store, fact):
                tree.append(fact.child)
    return tree


async def load_tree(store: SessionStore, session: str) -> Recording:
    """Read the model calls of a session and of every child below it."""
    found = Recording()
    for one in await subtree(store, session):
        recording = await load_recording(store, one)
        found.sessions.append(recording.model)
        for key, answers in recording.leaves.items():
            found.leaves.setdefault(key, deque()).extend(answers)
    return found


async def _has_begun(store: SessionStore, call: CallRequested) -> bool:
    try:
        return (await store.load_state(call.child or "")).counters.get("turn", 0) > 0
    except (NotFound, SessionDeleted):
        return False


def _key(fact: CallRequested) -> CallKey:
    return CallKey(fact.name, fact.digest or "", fact.occurrence or 0)


class _Loader:
    def __init__(self, store: SessionStore, session: str) -> None:
        self.found = SessionRecording(store, session, RecordedSession(session, ""))
        self._store, self._session = store, session
        self._cell_at = ""
        self._asked: dict[str, CallRequested] = {}
        self._native: dict[str, NativeCall] = {}
        self._configured = 1
        self._digest: str | None = None
        self._messages: list[tuple[int, int]] = []  # seq and number
        self._reply: Message | None = None

    async def _value(self, item: Slot | None) -> Any:
        if item is None:
            return None
        return (await hydrate(self._store, self._session, item)).value()

    def _cell(self, number: int) -> RecordedCell:
        return self.found.cells.setdefault(number, RecordedCell(self._cell_at))

    async def take(self, event: Event, fact: Any) -> None:
        found = self.found
        match fact:
            case TurnStarted() | TurnReopened() | TurnPut() | SessionStarted():
                await self._turn(fact)
            case SessionConfigured():
                self._configured = event.seq
                if found.turns and found.turns[-1].status == "open":
                    found.turns[-1].configured = event.seq  # its parent granted more
            case MessageAppended():
                await self._message(event, fact)
            case StepStarted():
                self._digest = fact.request
            case StepPut():
                await self._step(event, fact)
            case EvalAdded():
                self._cell(fact.eval).status = fact.status
                self._cell_at = event.at
                if fact.status in NOT_REPEATED and found.turns:
                    found.turns[-1].broken = f"cell {fact.eval} ended as {fact.status}"
            case SessionCompacted():
                await self._compacted(event, fact)
            case _:
                await self._call(event, fact)

    async def _turn(self, fact: Any) -> None:
        found = self.found
        match fact:
            case SessionStarted():
                if fact.parent is not None:
                    found.model.parent = (fact.parent["session"], fact.parent["call"])
                if fact.turn is not None:
                    found.turns.append(RecordedTurn(1, {}, inherited=True))
            case TurnStarted():
                given = {name: await self._value(item) for name, item in fact.inputs.items()}
                kinds = {name: item.kind for name, item in fact.inputs.items()}
                files = {name: given.pop(name) for name in kinds if kinds[name] == KIND}
                found.turns.append(
                    RecordedTurn(fact.turn, given, files, configured=self._configured)
                )
                found.output_schema = await self._value(fact.output_schema)
            case TurnReopened():
                found.turns[-1].broken = "it was tried again"
            case TurnPut() if fact.status not in ("open", "interrupted"):
                found.turns[-1].status = fact.status
                found.turns[-1].error = await self._value(fact.error)

    async def _call(self, event: Event, fact: Any) -> None:
        match fact:
            case LeafCalled():
                await self._leaf(event, fact)
            case CallRequested():
                self._asked[fact.call_id] = fact
                if fact.eval is not None:
                    cell = self._cell(fact.eval)
                    cell.events.append(event)
                    cell.functions.add(fact.name)
                    cell.broken_off.add(_key(fact))
                elif fact.kind in ("tool", "child"):
                    made = self._native[fact.call_id] = NativeCall(fact)
                    step = len(self.found.requests) - 1
                    self.found.native.setdefault(step, {})[fact.index] = made
            case CallApproved() if fact.call_id in self._asked:
                asked = self._asked[fact.call_id]
                if asked.eval is not None:
                    self._cell(asked.eval).events.append(event)
                elif fact.call_id in self._native:
                    self._native[fact.call_id].approved = fact
            case CallResolved():
                self._resolved(event, fact)

    async def _message(self, event: Event, fact: MessageAppended) -> None:
        self._messages.append((event.seq, fact.message))
        message = await read_message(self._store, self._session, fact.role, fact.content)
        if fact.role == "assistant":
            self._reply = message
        elif fact.role == "user":
            self._asked_by(message, fact)

    def _asked_by(self, message: Message, fact: MessageAppended) -> None:
        found = self.found
        if not found.model.first_user_text:
            found.model.first_user_text = message.text
        if found.turns and found.turns[-1].message is None and fact.turn == found.turns[-1].turn:
            found.turns[-1].message = message
        elif found.turns and fact.input is not None:
            found.turns[-1].broken = f"message {fact.message} came while it was worked on"

    async def _step(self, event: Event, fact: StepPut) -> None:
        self._cell_at = event.at
        if fact.status == "unknown":
            return  # lost in a crash, and made again
        self.found.requests.append(self._digest)
        if fact.status == "replied" and self._reply is not None:
            reply = ModelReply(
                self._reply,
                fact.model or "recorded",
                usage=Usage.from_record(fact.usage or {}),
                cost_usd=fact.cost_usd,
                price_table=fact.price_table,
                latency_ms=fact.latency_ms or 0,
                finish_reason=fact.finish_reason,
            )
            self.found.model.steps.append(RecordedAnswer(reply))
        else:
            problem = await self._value(fact.error) or {}
            answer = RecordedAnswer(None, problem.get("code", ""), problem.get("message", ""))
            self.found.model.steps.append(answer)
        self._reply = None

    async def _leaf(self, event: Event, fact: LeafCalled) -> None:
        self._cell(fact.eval).events.append(event)
        cell, key_of_call = (
            self._cell(fact.eval),
            CallKey(fact.function, fact.digest, fact.occurrence),
        )
        if fact.status == "unknown":
            cell.broken_off.add(key_of_call)
            return
        cell.broken_off.discard(key_of_call)
        asked = await self._value(fact.request)
        key = (asked["prompt"], asked.get("system", ""))
        answer = RecordedAnswer()
        if fact.reply is not None:
            usage = Usage.from_record(fact.usage or {})
            text = assistant(str(await self._value(fact.reply)))
            answer = RecordedAnswer(
                ModelReply(text, fact.model or "recorded", usage=usage, cost_usd=fact.cost_usd)
            )
        else:
            problem = await self._value(fact.error) or {}
            answer = RecordedAnswer(None, problem.get("code", ""), problem.get("message", ""))
        self.found.leaves.setdefault(key, deque()).append(answer)

    def _resolved(self, event: Event, fact: CallResolved) -> None:
        asked = self._asked.get(fact.call_id)
        if asked is None:
            return
        if asked.eval is None:
            if fact.call_id in self._native:
                self._native[fact.call_id].resolved = fact
            return
        cell = self._cell(asked.eval)
        cell.events.append(event)
        if fact.outcome not in ("cancelled", "unknown"):
            cell.broken_off.discard(_key(asked))

    async def _compacted(self, event: Event, fact: SessionCompacted) -> None:
        span = fact.span[1] if len(fact.span) == 2 else event.seq
        last = max((number for seq, number in self._messages if seq <= span), default=0)
        self._messages.append((event.seq, fact.message))
        self.found.compactions[fact.message] = (fact, last)
        if fact.prompt_version is None:
            return
        kept: list[Kept] = [
            item async for item in kept_entries(self._store, self._session, event.seq, event.seq)
        ]
        frame = kept[0]
        message = await read_message(self._store, self._session, frame.role, frame.content)
        notes = strategies.earlier_notes([strategies.Entry(frame, message)])
        reply = ModelReply(assistant(notes), fact.model or "recorded", cost_usd=fact.cost_usd)
        self.found.model.summaries.append(RecordedAnswer(reply))
