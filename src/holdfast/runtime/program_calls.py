"""Calls of programs built on top: the ledger of requested, dispatched and resolved, by key.

A call is known by the key that the program gives it. It is requested before and resolved after; the
same key again is answered from the log. Found dispatched without an outcome, it is taken for lost:
`pure` and `idempotent` calls are made again with the same call id, a `once` call never is.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from holdfast.core.errors import CallConflict, CallFailed, CallWaits, InvalidInput
from holdfast.core.facts import (
    CallApproved,
    CallDispatched,
    CallRequested,
    CallResolved,
    CallSuspended,
    Fact,
)
from holdfast.core.ids import check_key
from holdfast.core.payloads import slot, slot_of_bytes
from holdfast.core.state import PendingCall, State
from holdfast.runtime import inbox
from holdfast.runtime.dispatch import Dispatcher, Running
from holdfast.runtime.handlers import tool as tools
from holdfast.runtime.journal import Journal
from holdfast.runtime.scope import Guards, Scope
from holdfast.runtime.signals import NeedsAnswer, answer_wait
from holdfast.runtime.tools import Tool
from holdfast.runtime.writing import Writers
from holdfast.stores.port import SessionStore
from holdfast.views.values import read_value

PREFIX = "key:"
INDEXED_SESSIONS = 256
PAGE_EVENTS = 1000


@dataclass(slots=True)
class _Made:
    """One call as the log has it."""

    request: CallRequested
    approved: CallApproved | None = None
    resolved: CallResolved | None = None


@dataclass(slots=True)
class _Index:
    """The calls of one session that have a key; the log only grows, so it is only added to."""

    session: str
    seq: int = 0
    calls: dict[str, _Made] = field(default_factory=dict)

    async def catch_up(self, store: SessionStore) -> None:
        types = [CallRequested.TYPE, CallApproved.TYPE, CallResolved.TYPE]
        while page := await store.read_events(
            self.session, after=self.seq, limit=PAGE_EVENTS, types=types
        ):
            for event in page:
                if event.seq > self.seq:
                    self._add(event.fact() if event.known else None)
                    self.seq = event.seq

    def _add(self, fact: Fact | None) -> None:
        if isinstance(fact, CallRequested):
            if fact.call_id.startswith(PREFIX):
                self.calls[fact.call_id] = _Made(fact)
        elif isinstance(fact, CallApproved | CallResolved) and fact.call_id in self.calls:
            made = self.calls[fact.call_id]
            if isinstance(fact, CallApproved):
                # The first is the gate's; later ones let a tool that asked go on.
                if made.request.approval:
                    made.approved = made.approved or fact
            else:
                made.resolved = fact


class ProgramCalls:
    """The calls that programs make in the sessions of one runtime."""

    def __init__(self, store: SessionStore, writers: Writers, guards: Guards) -> None:
        self._store = store
        self._guards = guards
        self._writers = writers
        self._indexes: OrderedDict[str, _Index] = OrderedDict()
        self._in_flight: dict[tuple[str, str], asyncio.Event] = {}

    async def call(
        self,
        session_id: str,
        tool: Tool,
        arguments: dict[str, Any],
        *,
        key: str,
        name: str | None,
        scope: Scope | None,
    ) -> Any:
        """Make a call, or return the outcome of the one that has its key."""
        call_id = check_key(f"{PREFIX}{check_key(key, 'key of a call')}", "key of a call")
        try:
            tool.bind((), arguments)
        except TypeError as error:
            raise InvalidInput(f"{tool.name} cannot be called so: {error}") from error
        given = slot(arguments, "arguments")
        intent = CallRequested(
            call_id=call_id,
            name=tool.name if name is None else name,
            executor=tool.executor,
            effect=tool.effect,
            arguments=given,
            digest=given.id,
            approval=tool.needs_approval(arguments),
            policy=tool.unknown,
        )
        place = (session_id, call_id)
        while place in self._in_flight:  # made here by another task: its outcome is ours
            await self._in_flight[place].wait()
        over = self._in_flight[place] = asyncio.Event()
        try:
            made = (await self._index(session_id)).calls.get(call_id)
            if made is not None and made.resolved is not None:
                _check_same(session_id, made.request, intent)
                return await self._value(session_id, intent, made.resolved)
            async with self._writers.writing(session_id) as driver:
                resolved = await self._outcome(driver.journal, tool, intent, scope)
            return await self._value(session_id, intent, resolved)
        finally:
            del self._in_flight[place]
            over.set()

    async def _outcome(
        self, journal: Journal, tool: Tool, intent: CallRequested, scope: Scope | None
    ) -> CallResolved:
        """Return the outcome of a call: from the log, or by making it."""
        made = (await self._index(journal.session)).calls.get(intent.call_id)
        if made is None:
            return await self._begin(journal, tool, intent, scope)
        _check_same(journal.session, made.request, intent)
        if made.resolved is None and _pending(journal.state, intent).stage == "suspended":
            await inbox.admit(journal)
            made = (await self._index(journal.session)).calls[intent.call_id]
        if made.resolved is not None:
            return made.resolved
        call = _pending(journal.state, intent)
        if call.stage == "suspended":
            raise _waits(journal.session, call)
        if call.stage == "dispatched":
            if "once" in (call.effect, intent.effect):
                return await self._lost(journal, intent, made.request)
            return await self._dispatch(journal, tool, intent, made.approved, scope)
        if tool.executor != "server":
            moment = _now()
            wait = tools.outside_wait(tool, intent.call_id, intent.name, None, moment)
            await _suspend(journal, wait)
            raise _waits(journal.session, _pending(journal.state, intent))
        await journal.append(lambda _: [CallDispatched(calls=[intent.call_id])])
        return await self._dispatch(journal, tool, intent, made.approved, scope)

    async def _begin(
        self, journal: Journal, tool: Tool, intent: CallRequested, scope: Scope | None
    ) -> CallResolved:
        arguments: Any = intent.arguments.value()
        if tool.executor == "server" and not intent.approval:
            started: list[Fact] = [intent, CallDispatched(calls=[intent.call_id])]
            if tool.effect == "pure":
                return await self._dispatch(journal, tool, intent, None, scope, before=started)
            await journal.append(lambda _: started)
            return await self._dispatch(journal, tool, intent, None, scope)
        wait = tools.first_wait(
            tool, intent.call_id, intent.name, arguments, intent.approval, _now()
        )
        assert wait is not None
        await journal.append(lambda _: [intent, wait])
        raise _waits(journal.session, _pending(journal.state, intent))

    async def _dispatch(
        self,
        journal: Journal,
        tool: Tool,
        intent: CallRequested,
        approved: CallApproved | None,
        scope: Scope | None,
        before: list[Fact] | None = None,
    ) -> CallResolved:
        arguments: Any = intent.arguments.value()
        if approved is not None and approved.arguments is not None:
            arguments = await journal.value(approved.arguments)
        pending = journal.state.calls.get(intent.call_id)
        running = Running(
            tool=tool,
            name=intent.name,
            call_id=intent.call_id,
            kwargs=arguments,
            deadline=None if pending is None else pending.deadline,
            approved=approved,
        )
        # Fencing protects the log, not the world: look at the lease right before the effect.
        await journal.store.renew(journal.lease)
        started = time.monotonic()
        dispatcher = Dispatcher(journal, self._guards, scope=scope)
        try:
            outcome, value, error = await dispatcher.run(running)
        except NeedsAnswer as need:
            if before:
                await journal.append(lambda _: before)
            await _suspend(journal, answer_wait(intent.call_id, intent.name, need, _now()))
            raise _waits(journal.session, _pending(journal.state, intent)) from None
        resolved = CallResolved(
            call_id=intent.call_id,
            outcome=outcome,
            result=None if value is None else slot_of_bytes(value.encoding, value.data, "answer"),
            error=None if error is None else slot(error, "error"),
            latency_ms=int((time.monotonic() - started) * 1000),
        )
        await journal.append(lambda _: [*(before or ()), resolved])
        return resolved

    async def _lost(
        self, journal: Journal, intent: CallRequested, request: CallRequested
    ) -> CallResolved:
        """Settle a call that may have taken effect once, by the policy of its tool."""
        if "ask" in (intent.policy, request.policy):
            await _suspend(journal, tools.unknown_wait(intent.call_id, intent.name))
            raise _waits(journal.session, _pending(journal.state, intent))
        resolved = CallResolved(call_id=intent.call_id, outcome="unknown")
        await journal.append(lambda _: [resolved])
        return resolved

    async def _value(self, session_id: str, intent: CallRequested, resolved: CallResolved) -> Any:
        """Return the value that a call came to; raise CallFailed for any other outcome."""
        if resolved.outcome == "ok":
            result = resolved.result
            return None if result is None else await read_value(self._store, session_id, result)
        if resolved.error is not None:
            told = str(await read_value(self._store, session_id, resolved.error))
        elif resolved.outcome == "unknown":
            told = "the process ended during it: whether it took effect is unknown"
        else:
            told = f"it was {resolved.outcome}"
        raise CallFailed(
            f"{intent.name}: {told}",
            session=session_id,
            call_id=intent.call_id,
            outcome=resolved.outcome,
        )

    async def _index(self, session_id: str) -> _Index:
        index = self._indexes.pop(session_id, None) or _Index(session_id)
        self._indexes[session_id] = index
        if len(self._indexes) > INDEXED_SESSIONS:
            self._indexes.popitem(last=False)
        await index.catch_up(self._store)
        return index


def _check_same(session_id: str, recorded: CallRequested, asked: CallRequested) -> None:
    if (recorded.name, recorded.digest) != (asked.name, asked.digest):
        raise CallConflict(
            f"key {asked.call_id.removeprefix(PREFIX)!r} of session {session_id!r} was used for a "
            f"call of {recorded.name!r} with other arguments; give this call a key of its own",
            session=session_id,
            call_id=asked.call_id,
        )


def _pending(state: State, intent: CallRequested) -> PendingCall:
    return state.calls[intent.call_id]


async def _suspend(journal: Journal, wait: CallSuspended) -> None:
    await journal.append(lambda state: [replace(wait, wait=state.calls[wait.call_id].wait + 1)])


def _waits(session_id: str, call: PendingCall) -> CallWaits:
    return CallWaits(
        f"call {call.call_id!r} ({call.name}) of session {session_id!r} waits for "
        f"{'an approval' if call.waits_for == 'approval' else 'an answer'}; answer it, then ask "
        "again with the same key",
        session=session_id,
        call_id=call.call_id,
        waits_for=call.waits_for,
    )


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
