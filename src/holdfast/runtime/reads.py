"""Paged reads of a session's history, for people and programs.

Everything that grows with history is read here from the log, in pages, without a lease and beside
a live driver. Entities that are replaced by `*.put` are shown as they stand at the end of the page
they began in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from holdfast.core import facts
from holdfast.core.events import Event
from holdfast.core.facts import Fact
from holdfast.core.messages import Message
from holdfast.core.payloads import Slot, check_slot
from holdfast.runtime.journal import hydrate
from holdfast.runtime.transcript import read_message
from holdfast.stores.port import SessionStore

_F = TypeVar("_F", bound=Fact)


@dataclass(frozen=True, slots=True)
class Entry(Generic[_F]):
    """One fact at its place in the log."""

    seq: int
    at: str
    fact: _F


@dataclass(frozen=True, slots=True)
class TurnView:
    """A turn: how it began and how it stands."""

    seq: int
    at: str
    started: facts.TurnStarted
    put: facts.TurnPut | None = None

    @property
    def status(self) -> str:
        """Return the turn's status; `open` until it is settled."""
        return "open" if self.put is None else self.put.status


@dataclass(frozen=True, slots=True)
class StepView:
    """A step: how it began and what came of it."""

    seq: int
    at: str
    started: facts.StepStarted
    put: facts.StepPut | None = None

    @property
    def status(self) -> str:
        """Return the step's status; `open` until it is settled."""
        return "open" if self.put is None else self.put.status


@dataclass(frozen=True, slots=True)
class CallView:
    """A call: what was asked and its outcome."""

    seq: int
    at: str
    requested: facts.CallRequested
    resolved: facts.CallResolved | None = None


@dataclass(frozen=True, slots=True)
class MessageView:
    """A message of the transcript."""

    seq: int
    at: str
    number: int
    turn: int | None
    message: Message


class Reads:
    """The history of the sessions of one store."""

    def __init__(self, store: SessionStore) -> None:
        self._store = store

    async def messages(
        self, session_id: str, *, after: int = 0, limit: int = 100
    ) -> list[MessageView]:
        """Return messages after a position of the log."""
        entries = await self._entries(session_id, facts.MessageAppended, after, limit)
        return [
            MessageView(
                item.seq,
                item.at,
                item.fact.message,
                item.fact.turn,
                await read_message(self._store, session_id, item.fact.role, item.fact.content),
            )
            for item in entries
        ]

    async def turns(self, session_id: str, *, after: int = 0, limit: int = 100) -> list[TurnView]:
        """Return turns that began after a position of the log."""
        begun = await self._entries(session_id, facts.TurnStarted, after, limit)
        puts = await self._latest(session_id, begun, facts.TurnPut, "turn")
        return [TurnView(e.seq, e.at, e.fact, puts.get(e.fact.turn)) for e in begun]

    async def steps(self, session_id: str, *, after: int = 0, limit: int = 100) -> list[StepView]:
        """Return steps that began after a position of the log."""
        begun = await self._entries(session_id, facts.StepStarted, after, limit)
        puts = await self._latest(session_id, begun, facts.StepPut, "step")
        return [StepView(e.seq, e.at, e.fact, puts.get(e.fact.step)) for e in begun]

    async def calls(self, session_id: str, *, after: int = 0, limit: int = 100) -> list[CallView]:
        """Return calls that were requested after a position of the log."""
        begun = await self._entries(session_id, facts.CallRequested, after, limit)
        ends = await self._latest(session_id, begun, facts.CallResolved, "call_id")
        return [CallView(e.seq, e.at, e.fact, ends.get(e.fact.call_id)) for e in begun]

    async def evals(
        self, session_id: str, *, after: int = 0, limit: int = 100
    ) -> list[Entry[facts.EvalAdded]]:
        """Return evaluated cells after a position of the log."""
        return await self._entries(session_id, facts.EvalAdded, after, limit)

    async def leaves(
        self, session_id: str, *, after: int = 0, limit: int = 100
    ) -> list[Entry[facts.LeafCalled]]:
        """Return leaf calls after a position of the log."""
        return await self._entries(session_id, facts.LeafCalled, after, limit)

    async def heads(
        self, session_id: str, *, after: int = 0, limit: int = 100
    ) -> list[Entry[facts.HeadPublished]]:
        """Return heads after a position of the log."""
        return await self._entries(session_id, facts.HeadPublished, after, limit)

    async def edges(
        self, session_id: str, *, after: int = 0, limit: int = 100
    ) -> list[Entry[facts.LineageAdded]]:
        """Return lineage edges after a position of the log."""
        return await self._entries(session_id, facts.LineageAdded, after, limit)

    async def events(
        self,
        session_id: str,
        *,
        after: int = 0,
        before: int | None = None,
        limit: int = 1000,
        reverse: bool = False,
        types: Sequence[str] | None = None,
    ) -> list[Event]:
        """Return raw events between positions of the log."""
        return await self._store.read_events(
            session_id, after=after, before=before, limit=limit, reverse=reverse, types=types
        )

    async def value(self, session_id: str, item: Slot) -> Any:
        """Return the value of a slot."""
        check_slot(item)
        return (await hydrate(self._store, session_id, item)).value()

    async def payload(self, session_id: str, payload_id: str) -> bytes:
        """Return the bytes of a payload that the session refers to."""
        return await self._store.get_payload(session_id, payload_id)

    async def _entries(
        self, session_id: str, kind: type[_F], after: int, limit: int
    ) -> list[Entry[_F]]:
        events = await self._store.read_events(
            session_id, after=after, limit=limit, types=[kind.TYPE]
        )
        found: list[Entry[_F]] = []
        for event in events:
            if event.known:
                fact = event.fact()
                assert isinstance(fact, kind)
                found.append(Entry(event.seq, event.at, fact))
        return found

    async def _latest(
        self, session_id: str, begun: Sequence[Entry[Any]], kind: type[_F], key: str
    ) -> dict[Any, _F]:
        """Return the last fact of a kind for each entity that a page holds."""
        if not begun:
            return {}
        wanted = {getattr(item.fact, key) for item in begun}
        found: dict[Any, _F] = {}
        after = begun[0].seq
        while page := await self._store.read_events(session_id, after=after, types=[kind.TYPE]):
            for event in page:
                fact = event.fact()
                if isinstance(fact, kind) and getattr(fact, key) in wanted:
                    found[getattr(fact, key)] = fact
            after = page[-1].seq
            if len(found) == len(wanted):
                break
        return found
