"""The ledger of calls: what leaves a cell or a model is requested before, and resolved after.

A call from code is known by its function, the digest of its arguments and how often the cell has
made that call, never by its position. The intent is recorded before dispatch and the one outcome
after it. `pure` calls may simply be made again, until the cell makes a call that is recorded: from
there on, a re-run must see what the cell saw, so the answers of its pure calls are recorded too,
earlier ones in the batch of that call. After a crash between intent and outcome, the effect class
decides what happens.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from holdfast.core.events import Event
from holdfast.core.facts import (
    CallApproved,
    CallKind,
    CallRequested,
    CallResolved,
    CallSuspended,
    Effect,
    Executor,
    Fact,
    LeafCalled,
    Outcome,
    UnknownPolicy,
)
from holdfast.core.payloads import Slot, slot, slot_of_bytes
from holdfast.kernels.port import CallKey, Encoded, FileRead, HostAnswer, HostCall, RecordedCall
from holdfast.runtime.journal import Journal
from holdfast.runtime.scope import Guards
from holdfast.stores.port import SessionStore

PAGE_EVENTS = 1000
SHOWN_CHARACTERS = 120
OUTCOME_UNKNOWN = "OutcomeUnknown"

Reads = list[list[str]]


def nanoseconds(at: str) -> int:
    """Return a record's time as nanoseconds, for the clock inside a cell."""
    moment = datetime.fromisoformat(at)
    return int(moment.timestamp()) * 1_000_000_000 + moment.microsecond * 1000


def read_before(call: HostCall) -> Reads:
    """Return the files that a cell read before a call, as a fact stores them."""
    return [[item.path, item.digest] for item in call.files]


def files_of(stored: Reads, contents: Mapping[str, bytes] | None = None) -> tuple[FileRead, ...]:
    """Return stored file reads as a kernel takes them, with the contents that were kept."""
    kept = contents or {}
    return tuple(FileRead(path, digest, kept.get(digest)) for path, digest in stored)


async def pages(
    store: SessionStore, session_id: str, after: int, types: Sequence[str]
) -> AsyncIterator[Event]:
    """Yield events of some types after a position, read page by page."""
    while page := await store.read_events(session_id, after=after, limit=PAGE_EVENTS, types=types):
        for event in page:
            yield event
        after = page[-1].seq


def id_of(eval: int, key: CallKey) -> str:
    """Return the id of a call that a cell makes, the same whenever it makes it."""
    return f"c{eval}-{key.function}-{key.digest[-12:]}-{key.ordinal}"


@dataclass(slots=True)
class Recorded:
    """One call of a cell as the log has it."""

    request: CallRequested
    approved: CallApproved | None = None
    resolved: CallResolved | None = None
    moved: asyncio.Future[Event] | None = None  # what ends its present wait
    seq: int = 0  # of the outcome
    at: str = ""  # of the outcome

    def take_approval(self, fact: CallApproved) -> None:
        """Keep the approval of a gate, which comes first; later ones let a tool go on."""
        if self.request.approval and self.approved is None:
            self.approved = fact


@dataclass(slots=True)
class Ledger:
    """The calls of one evaluation: those that the log has, and those that are made now."""

    journal: Journal
    turn: int
    step: int
    eval: int
    guards: Guards = field(default_factory=Guards)
    calls: dict[CallKey, Recorded] = field(default_factory=dict)
    leaves: list[tuple[Event, LeafCalled]] = field(default_factory=list)
    children: dict[CallKey, dict[int, Recorded]] = field(default_factory=dict)
    _recording: bool = False
    _counted: float = field(default_factory=time.monotonic)  # up to when driving time is recorded
    _kept: dict[str, Slot] = field(default_factory=dict)  # contents of files, by digest
    _pure: list[tuple[HostCall, Outcome, Encoded | None, str | None]] = field(default_factory=list)

    def driven_ms(self) -> int:
        """Return how long the cell was driven since this was asked last, to be recorded now.

        A cell that waits may be given up: what it was driven for until then is told with its wait.
        """
        since, self._counted = self._counted, time.monotonic()
        return int((self._counted - since) * 1000)

    async def load(self) -> None:
        """Take up what the log has of this evaluation's calls."""
        state, turn = self.journal.state, self.journal.state.turn
        assert turn is not None
        if state.calls_made == turn.cell_calls:
            return  # the cell has not begun, or has made no call that is recorded
        types = [CallRequested.TYPE, CallApproved.TYPE, CallResolved.TYPE, LeafCalled.TYPE]
        events = pages(self.journal.store, self.journal.session, turn.step_seq, types)
        self.take([event async for event in events])

    def take(self, events: Iterable[Event]) -> None:
        """Take up the calls of this evaluation among events of a log."""
        by_id: dict[str, Recorded] = {}
        for event in events:
            fact = event.fact()
            if isinstance(fact, LeafCalled) and fact.eval == self.eval:
                self.leaves.append((event, fact))
            elif isinstance(fact, CallRequested) and fact.eval == self.eval:
                key = CallKey(fact.name, fact.digest or "", fact.occurrence or 0)
                made = by_id[fact.call_id] = Recorded(fact)
                if fact.kind == "child":
                    self.children.setdefault(key, {})[fact.index] = made
                else:
                    self.calls[key] = made
            elif isinstance(fact, CallApproved) and fact.call_id in by_id:
                by_id[fact.call_id].take_approval(fact)
            elif isinstance(fact, CallResolved) and fact.call_id in by_id:
                done = by_id[fact.call_id]
                done.resolved, done.seq, done.at = fact, event.seq, event.at
        self._recording = bool(self.calls or self.leaves or self.children)

    async def recorded_calls(self) -> list[tuple[int, RecordedCall]]:
        """Return the recorded calls, each with the position of its outcome."""
        found: list[tuple[int, RecordedCall]] = []
        contents = await self.kept_contents()
        for key, item in self.calls.items():
            answer = None if item.resolved is None else await self._answer(item.at, item.resolved)
            pure = item.request.effect == "pure"
            files = files_of(item.request.files, contents)
            made = RecordedCall(*key, pure=pure, answer=answer, files=files)
            found.append((item.seq if answer else 2**53, made))
        return found

    @property
    def _all(self) -> list[Recorded]:
        items = [item for items in self.children.values() for item in items.values()]
        return [*self.calls.values(), *items]

    async def kept_contents(self) -> dict[str, bytes]:
        """Return the content of the files that the cell had read, as far as it was kept."""
        found: dict[str, bytes] = {}
        for item in self._all:
            for digest, kept in item.request.contents.items():
                found[digest] = (await self.journal.hydrate(kept)).data or b""
        return found

    def call_id(self, call: HostCall) -> str:
        """Return the id of a call, the same whenever the cell makes it."""
        return id_of(self.eval, call.key)

    def unsaved(self) -> list[Fact]:
        """Return the pure calls so far, which a batch must bring that makes the cell recorded."""
        self._recording = True
        kept, self._pure = self._pure, []
        return [fact for made in kept for fact in self._pure_facts(*made)]

    async def pure(
        self,
        call: HostCall,
        outcome: Outcome,
        value: Encoded | None,
        error: str | None,
        *,
        keep: bool = False,
    ) -> HostAnswer:
        """Answer a pure call, and record it where a re-run must see the same answer.

        `keep` records it in any case: nobody could make the same answer again.
        """
        if not self._recording and not keep:
            self._pure.append((call, outcome, value, error))
            return as_answer(outcome, value, error, nanoseconds(self.journal.state.updated_at))
        made = self._pure_facts(call, outcome, value, error)
        done = await self.journal.append(lambda _: [*self.unsaved(), *made])
        return as_answer(outcome, value, error, nanoseconds(done.events[-1].at))

    def _pure_facts(
        self, call: HostCall, outcome: Outcome, value: Encoded | None, error: str | None
    ) -> list[Fact]:
        request = self.requested(call, executor="server", effect="pure")
        return [request, _resolution(request.call_id, outcome, value, error, None)]

    def requested(
        self,
        call: HostCall,
        *,
        executor: Executor,
        effect: Effect,
        kind: CallKind = "tool",
        approval: bool = False,
        deadline: str | None = None,
        policy: UnknownPolicy = "tell",
    ) -> CallRequested:
        """Return the intent of a call."""
        given = slot_of_bytes(call.arguments.encoding, call.arguments.data, "arguments")
        return CallRequested(
            call_id=self.call_id(call),
            name=call.function,
            executor=executor,
            effect=effect,
            kind=kind,
            arguments=self.guards.redacted_slot("arguments", given),
            turn=self.turn,
            step=self.step,
            eval=self.eval,
            digest=call.digest,
            occurrence=call.ordinal,
            files=read_before(call),
            approval=approval,
            deadline=deadline,
            policy=policy,
        )

    async def keep_files(self, call: HostCall) -> None:
        """Keep the content of the files that the cell has read, for a re-run from this call on.

        Raise FileNotKept where one is too large: the call is to be refused.
        """
        for digest, data in (await call.contents()).items():
            if digest not in self._kept:
                self._kept[digest] = slot_of_bytes("bytes", data, "chunk")

    def contents(self) -> dict[str, Slot]:
        """Return the contents of files that no call has recorded yet."""
        told = {digest for item in self._all for digest in item.request.contents}
        return {digest: item for digest, item in self._kept.items() if digest not in told}

    async def request(self, intent: CallRequested, *more: Fact) -> None:
        """Record an intent, with the pure calls and the files that led to it."""
        intent = replace(intent, contents=self.contents())
        known = Recorded(intent)
        more = tuple(
            replace(fact, driven_ms=self.driven_ms()) if isinstance(fact, CallSuspended) else fact
            for fact in more
        )
        if any(isinstance(fact, CallSuspended) for fact in more):
            # Before it can be answered: whoever admits the answer finds someone who waits.
            known.moved = self.journal.outcome(intent.call_id)
        await self.journal.append(lambda _: [*self.unsaved(), intent, *more])
        self.calls[CallKey(intent.name, intent.digest or "", intent.occurrence or 0)] = known

    async def resolve(
        self,
        call_id: str,
        outcome: Outcome,
        value: Encoded | None = None,
        error: str | None = None,
        latency_ms: int | None = None,
    ) -> HostAnswer:
        """Record the one outcome of a call, and return it as the cell's answer."""
        fact = _resolution(call_id, outcome, value, error, latency_ms)
        done = await self.journal.append(lambda _: [fact])
        event = done.events[0]
        for item in self.calls.values():
            if item.request.call_id == call_id:
                item.resolved, item.seq, item.at = fact, event.seq, event.at
        return as_answer(outcome, value, error, nanoseconds(event.at))

    async def suspend(self, call: HostCall, wait: CallSuspended) -> None:
        """Record that an open call waits for someone, once more."""
        self.calls[call.key].moved = self.journal.outcome(wait.call_id)
        driven = self.driven_ms()
        await self.journal.append(
            lambda state: [replace(wait, wait=state.calls[wait.call_id].wait + 1, driven_ms=driven)]
        )

    async def moved_on(self, call: HostCall) -> HostAnswer | None:
        """Wait until someone answers a call, or lets it go ahead; the cell may be given up.

        Return None where it may go ahead.
        """
        known = self.calls[call.key]
        call_id = known.request.call_id
        pending = self.journal.state.calls.get(call_id)
        if known.moved is None and pending is not None and pending.stage == "suspended":
            known.moved = self.journal.outcome(call_id)
        if known.moved is not None:
            if not known.moved.done():
                call.suspend()
            event = await known.moved
            known.moved = None
            fact = event.fact()
            if isinstance(fact, CallApproved):
                known.take_approval(fact)
                return None
            assert isinstance(fact, CallResolved)
            known.resolved, known.seq, known.at = fact, event.seq, event.at
        elif known.resolved is None:
            return None
        assert known.resolved is not None
        return await self._answer(known.at, known.resolved)

    async def _answer(self, at: str, fact: CallResolved) -> HostAnswer:
        value = None
        if fact.result is not None:
            stored = await self.journal.hydrate(fact.result)
            value = Encoded(stored.encoding, stored.data or b"")
        error = None if fact.error is None else str(await self.journal.value(fact.error))
        return as_answer(fact.outcome, value, error, nanoseconds(at))

    async def account(self) -> list[str]:
        """Return a line on each call that was made, for the model: what came of it."""
        lines = []
        for item in self._all:
            if item.request.effect != "pure":
                lines.append(await self._line(item))
        for _, leaf in self.leaves:
            lines.append(f"{leaf.function} (item {leaf.item}): {leaf.status}")
        return lines

    async def _line(self, item: Recorded) -> str:
        arguments = _short(await self.journal.value(item.request.arguments))
        resolved = item.resolved
        told: str = "unknown" if resolved is None else resolved.outcome
        if resolved is not None and resolved.result is not None:
            told += f", {_short(await self.journal.value(resolved.result))}"
        return f"{item.request.name}({arguments}): {told}"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"


def _resolution(
    call_id: str,
    outcome: Outcome,
    value: Encoded | None,
    error: str | None,
    latency_ms: int | None,
) -> CallResolved:
    result: Slot | None = None
    if value is not None:
        result = slot_of_bytes(value.encoding, value.data, "answer")
    return CallResolved(
        call_id=call_id,
        outcome=outcome,
        result=result,
        error=None if error is None else slot(error, "error"),
        latency_ms=latency_ms,
    )


def in_order(calls: Iterable[tuple[int, RecordedCall]]) -> list[RecordedCall]:
    """Return recorded calls in the order of their outcomes in the log."""
    return [call for _, call in sorted(calls, key=lambda pair: pair[0])]


def as_answer(outcome: str, value: Encoded | None, error: str | None, at_ns: int) -> HostAnswer:
    """Return an outcome as the cell gets it: a value, or an exception that it can catch."""
    if outcome == "ok":
        return HostAnswer.ok(value or Encoded("json", b"null"), at_ns)
    if outcome == "unknown":
        message = "the process ended during this call: whether it took effect is unknown"
        return HostAnswer.failed(OUTCOME_UNKNOWN, message, at_ns)
    if outcome in ("denied", "expired", "cancelled"):
        name = {"denied": "PermissionError", "expired": "TimeoutError"}.get(outcome, "CallError")
        return HostAnswer.failed(name, error or f"the call was {outcome}", at_ns)
    name, _, message = (error or "RuntimeError: the call failed").partition(": ")
    return HostAnswer.failed(name, message, at_ns)
