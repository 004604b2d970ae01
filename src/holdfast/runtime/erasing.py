"""Erasing a value of a session, and with an input all that the runtime copied from it.

A store erases one value by its content id. Of an input the runtime makes copies: the message as it
waited in the inbox, the card that the model is told, the checkpoints whose variables show it, and
the frame of a compaction that lists them. Those go with it, in every store by the same rule.
What a program or a model made of the input is a value of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from holdfast.core.errors import PayloadNotFound
from holdfast.core.facts import (
    InputAdmitted,
    MessageAppended,
    SessionCompacted,
    TurnStarted,
    VarsCheckpointed,
)
from holdfast.core.payloads import Slot, from_record
from holdfast.runtime.strategies import card
from holdfast.stores.port import SessionStore
from holdfast.views.values import read_value
from holdfast.views.variables import VariableView, variables_of

PAGE_EVENTS = 500


@dataclass(frozen=True, slots=True)
class Erasure:
    """What was erased: in how many places the value stood, and how many copies of it went along."""

    payload: str
    places: int  # 0 where it was erased before
    copies: int


@dataclass(slots=True)
class _Found:
    """What the log of a session says about an input, oldest first."""

    copies: list[Slot] = field(default_factory=list)  # whole, whatever they say
    bound: list[tuple[Slot, frozenset[str]]] = field(default_factory=list)  # with the input's names
    namespaces: dict[str, Slot] = field(default_factory=dict)  # from the first of those on
    compacted: list[Slot] = field(default_factory=list)


async def erase(store: SessionStore, session_id: str, payload_id: str, rule: str) -> Erasure:
    """Erase a value; what is left half done by a failure is completed by erasing again."""
    found = await _find(store, session_id, payload_id)
    read = _Reader(store, session_id)
    previews = {
        item.preview
        for manifest, names in found.bound
        for item in await read.variables(manifest)
        if item.name in names
    }
    showing: dict[str, Slot] = {item.id: item for item in found.copies}
    lines: set[str] = set()
    for manifest in found.namespaces.values() if previews else ():
        shown = [one for one in await read.variables(manifest) if one.preview in previews]
        if shown:
            showing[manifest.id] = manifest
            lines.update(line for one in shown for line in card([one]))
    for item in found.compacted if lines else ():
        showing |= {part.id: part for part in await read.frames(item, lines)}
    copies = 0
    # The checkpoint that tells what the preview is stands first, and goes after all that show it.
    for copy in reversed([one for one in showing.values() if one.id != payload_id]):
        copies += await store.erase(session_id, copy.id, rule) > 0
    return Erasure(payload_id, await store.erase(session_id, payload_id, rule), copies)


async def _find(store: SessionStore, session_id: str, payload_id: str) -> _Found:
    """Read the log for the turns that took a value as an input, and what may show it."""
    found = _Found()
    names: frozenset[str] = frozenset()
    turn: int | None = None
    admitted: Slot | None = None
    after = 0
    while page := await store.read_events(session_id, after=after, limit=PAGE_EVENTS):
        for fact in (event.fact() for event in page):
            if isinstance(fact, TurnStarted):
                names = frozenset(name for name, one in fact.inputs.items() if one.id == payload_id)
                turn = fact.turn if names else None
                # What admitted a message stands right before the turn that it opened.
                found.copies += [admitted] if names and admitted is not None else []
            elif isinstance(fact, MessageAppended) and fact.turn == turn and fact.role == "user":
                found.copies += [fact.card] if turn is not None and fact.card is not None else []
            elif isinstance(fact, VarsCheckpointed) and names:
                found.bound.append((fact.vars, names))
                names = frozenset()  # the first checkpoint of a turn is that of its inputs
            elif isinstance(fact, SessionCompacted):
                found.compacted.append(fact.content)
            admitted = fact.content if isinstance(fact, InputAdmitted) else None
            namespace = getattr(fact, "vars", None)
            if found.bound and isinstance(namespace, Slot):
                found.namespaces.setdefault(namespace.id, namespace)
        after = page[-1].seq
    return found


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads what is still there."""

    store: SessionStore
    session: str

    async def variables(self, manifest: Slot) -> list[VariableView]:
        return variables_of(await self._value(manifest) or {})

    async def frames(self, content: Slot, lines: Iterable[str]) -> list[Slot]:
        """Return the messages of a compaction that say one of some lines."""
        parts = [content]
        if content.kind == "transcript":
            parts = list(_messages(await self._value(content)))
        texts = [(part, await self._value(part)) for part in parts]
        wanted = set(lines)
        return [
            part
            for part, text in texts
            if isinstance(text, str) and wanted.intersection(text.split("\n"))
        ]

    async def _value(self, item: Slot) -> Any:
        """Return a value; None where it was erased."""
        try:
            return await read_value(self.store, self.session, item)
        except PayloadNotFound:
            return None


def _messages(record: Any) -> Iterator[Slot]:
    for entry in () if record is None else record["messages"]:
        yield from_record(entry["content"])
