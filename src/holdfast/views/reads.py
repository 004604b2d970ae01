"""Paged reads of a session's history, for people and programs.

Everything that grows with history is read here from the log, in pages, without a lease and beside
a live driver. Entities that are replaced by `*.put` are shown as they stand at the end of the log.
Events that this release does not know are left out of these pages; `events` has all of them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from holdfast.core import facts
from holdfast.core.events import Event
from holdfast.core.facts import Fact
from holdfast.core.payloads import Slot
from holdfast.stores.port import SessionStore
from holdfast.views.calls import CallView, call_view, pending_calls, read_later
from holdfast.views.context import ContextView, read_context
from holdfast.views.families import Family, read_family
from holdfast.views.lineage import EdgeView, HeadView, edge_view, head_view
from holdfast.views.messages import MessageView, inherited_messages, read_message
from holdfast.views.records import RecordIndexes, RecordView, check_name, read_records
from holdfast.views.transcript import TurnTranscript, transcript
from holdfast.views.turns import (
    EvalView,
    LeafView,
    StepView,
    TurnView,
    eval_view,
    leaf_view,
    step_view,
    turn_view,
)
from holdfast.views.values import read_value
from holdfast.views.variables import VariablesView, read_variables

_F = TypeVar("_F", bound=Fact)


@dataclass(frozen=True, slots=True)
class _Entry(Generic[_F]):
    """One fact at its place in the log."""

    seq: int
    at: str
    fact: _F


class Reads:
    """The history of the sessions of one store."""

    def __init__(self, store: SessionStore) -> None:
        self._store = store
        self._records = RecordIndexes(store)

    async def messages(
        self, session_id: str, *, after: int = 0, limit: int = 100
    ) -> list[MessageView]:
        """Return messages after a position of the log.

        Those that a fork inherited come first, in one page, at the position of its first event.
        """
        inherited = [] if after else await inherited_messages(self._store, session_id)
        entries = await self._entries(session_id, facts.MessageAppended, after, limit)
        return inherited + [
            MessageView(
                item.seq,
                item.at,
                item.fact.message,
                item.fact.turn,
                await read_message(self._store, session_id, item.fact.role, item.fact.content),
            )
            for item in entries
        ]

    async def context(self, session_id: str) -> ContextView:
        """Return what the model would be sent now, and why each part is in or out."""
        return await read_context(self._store, session_id)

    async def turns(self, session_id: str, *, after: int = 0, limit: int = 100) -> list[TurnView]:
        """Return turns that began after a position of the log."""
        begun = await self._entries(session_id, facts.TurnStarted, after, limit)
        for event in [] if after else await self._store.read_events(session_id, limit=1):
            if event.data.get("turn"):  # a fork inside a turn begins with it
                open_turn = _Entry(event.seq, event.at, facts.TurnStarted(turn=1))
                begun = [open_turn, *begun][:limit]
        puts = await self._latest(session_id, begun, facts.TurnPut, "turn")
        return [turn_view(e.seq, e.at, e.fact, puts.get(e.fact.turn)) for e in begun]

    async def steps(self, session_id: str, *, after: int = 0, limit: int = 100) -> list[StepView]:
        """Return steps that began after a position of the log."""
        begun = await self._entries(session_id, facts.StepStarted, after, limit)
        puts = await self._latest(session_id, begun, facts.StepPut, "step")
        return [step_view(e.seq, e.at, e.fact, puts.get(e.fact.step)) for e in begun]

    async def calls(self, session_id: str, *, after: int = 0, limit: int = 100) -> list[CallView]:
        """Return calls that were requested after a position of the log."""
        begun = await self._entries(session_id, facts.CallRequested, after, limit)
        wanted = [entry.fact.call_id for entry in begun]
        said = await read_later(self._store, session_id, begun[0].seq if begun else 0, wanted)
        return [call_view(e.seq, e.at, e.fact, said[e.fact.call_id]) for e in begun]

    async def open_calls(self, session_id: str) -> list[CallView]:
        """Return the calls that have no outcome, oldest first."""
        return await pending_calls(self._store, await self._store.load_state(session_id))

    async def evals(self, session_id: str, *, after: int = 0, limit: int = 100) -> list[EvalView]:
        """Return evaluated cells after a position of the log."""
        entries = await self._entries(session_id, facts.EvalAdded, after, limit)
        return [eval_view(e.seq, e.at, e.fact) for e in entries]

    async def leaves(self, session_id: str, *, after: int = 0, limit: int = 100) -> list[LeafView]:
        """Return leaf calls after a position of the log."""
        entries = await self._entries(session_id, facts.LeafCalled, after, limit)
        return [leaf_view(e.seq, e.at, e.fact) for e in entries]

    async def records(
        self,
        session_id: str,
        kind: str | None = None,
        *,
        key: str | None = None,
        prefix: str | None = None,
        numbers: Sequence[int] | None = None,
        after: int = 0,
        before: int | None = None,
        limit: int = 100,
        reverse: bool = False,
    ) -> list[RecordView]:
        """Return records that are not retracted: of a kind, with a key, a prefix, or by number.

        `after` and `before` are positions of the log, as for `events`.
        """
        return await read_records(
            self._store,
            await self._records.of(session_id),
            kind=kind,
            key=key,
            prefix=prefix,
            numbers=numbers,
            after=after,
            before=before,
            limit=limit,
            reverse=reverse,
        )

    async def latest(self, session_id: str, kind: str, key: str | None = None) -> RecordView | None:
        """Return the latest record of a kind, or of one of its keys; None where there is none."""
        found = await self.records(session_id, kind, key=key, limit=1, reverse=True)
        return found[0] if found else None

    async def record_keys(
        self, session_id: str, kind: str, *, prefix: str = ""
    ) -> list[tuple[int, str]]:
        """Return number and key of the records of a kind that have one, without their values."""
        index = await self._records.of(session_id)
        return [
            (number, place.key)
            for number, place in index.found(check_name(kind, "kind"), None, prefix, None, False)
            if place.key is not None
        ]

    async def heads(self, session_id: str, *, after: int = 0, limit: int = 100) -> list[HeadView]:
        """Return heads after a position of the log."""
        entries = await self._entries(session_id, facts.HeadPublished, after, limit)
        return [head_view(e.seq, e.at, e.fact) for e in entries]

    async def edges(self, session_id: str, *, after: int = 0, limit: int = 100) -> list[EdgeView]:
        """Return lineage edges after a position of the log."""
        entries = await self._entries(session_id, facts.LineageAdded, after, limit)
        return [edge_view(e.seq, e.at, e.fact) for e in entries]

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

    def transcript(
        self, session_id: str, *, turn: int | None = None
    ) -> AsyncIterator[TurnTranscript | Event]:
        """Yield turns with all that happened in them, oldest first; only one where it is named.

        An event before the first turn that this release does not know comes as it is.
        """
        return transcript(self._store, session_id, turn=turn)

    async def variables(self, session_id: str) -> VariablesView:
        """Return the namespace at the last checkpoint; nothing is run or loaded."""
        return await read_variables(self._store, session_id)

    async def tree(self, session_id: str | None = None) -> Family:
        """Return the family of a session, or every family of the store, with its relations."""
        return await read_family(self._store, session_id)

    async def value(self, session_id: str, item: Slot) -> Any:
        """Return the value of a slot."""
        return await read_value(self._store, session_id, item)

    async def payload(self, session_id: str, payload_id: str) -> bytes:
        """Return the bytes of a payload that the session refers to."""
        return await self._store.get_payload(session_id, payload_id)

    async def _entries(
        self, session_id: str, kind: type[_F], after: int, limit: int
    ) -> list[_Entry[_F]]:
        found: list[_Entry[_F]] = []
        # A page may hold events of newer versions only: what follows them is still to be read.
        while len(found) < limit:
            events = await self._store.read_events(
                session_id, after=after, limit=limit - len(found), types=[kind.TYPE]
            )
            if not events:
                break
            for event in events:
                fact = event.fact() if event.known else None
                if isinstance(fact, kind):
                    found.append(_Entry(event.seq, event.at, fact))
            after = events[-1].seq
        return found

    async def _latest(
        self, session_id: str, begun: Sequence[_Entry[Any]], kind: type[_F], key: str
    ) -> dict[Any, _F]:
        """Return the last fact of a kind for each entity that a page holds.

        Entities follow one another: nothing is said of one after the next one has begun.
        """
        found: dict[Any, _F] = {}
        if not begun:
            return found
        after, last = begun[0].seq, begun[-1]
        following = await self._store.read_events(
            session_id, after=last.seq, limit=1, types=[last.fact.TYPE]
        )
        before = following[0].seq if following else None
        while page := await self._store.read_events(
            session_id, after=after, before=before, types=[kind.TYPE]
        ):
            for event in page:
                fact = event.fact() if event.known else None
                if isinstance(fact, kind):
                    found[getattr(fact, key)] = fact
            after = page[-1].seq
        return found
