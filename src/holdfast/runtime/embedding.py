"""What programs built on top write: records, and calls through the ledger.

Adapters and other harnesses keep their own things in a session's log without driving it here. A
record is a value of a kind, found again by its key; retracting one is another record, so the log
stays whole. A writer that expects a certain latest record finds out if someone else was faster.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.core.errors import InvalidInput, LeaseLost, check_kind
from holdfast.core.facts import Fact, RecordPut
from holdfast.core.payloads import Slot, slot
from holdfast.core.state import State
from holdfast.runtime.program_calls import ProgramCalls
from holdfast.runtime.scope import Guards, scope_of
from holdfast.runtime.session import AnySession, id_of
from holdfast.runtime.tools import Tool, tool_of
from holdfast.runtime.writing import Writers
from holdfast.stores.port import SessionStore
from holdfast.views.reads import Reads
from holdfast.views.records import RecordIndex, RecordView, check_name

ATTEMPTS = 3
Latest = str | tuple[str, str]
"""Which latest record is expected: that of a kind, or of a kind and a key."""


@dataclass(frozen=True, slots=True)
class Record:
    """A value to keep: of which kind, and under which key."""

    kind: str
    value: Any
    key: str | None = None

    def __post_init__(self) -> None:
        check_name(self.kind, "kind")
        if self.key is not None:
            check_name(self.key, "key")


class Embedding(Reads):
    """Records and calls of programs, in the sessions of one store."""

    def __init__(self, store: SessionStore, writers: Writers, guards: Guards) -> None:
        super().__init__(store)
        self._writers = writers
        self._program_calls = ProgramCalls(store, writers, guards)

    async def call(
        self,
        session: AnySession,
        tool: Callable[..., Any] | Tool,
        arguments: Mapping[str, Any] | None = None,
        *,
        key: str,
        name: str | None = None,
        scope: Any = None,
    ) -> Any:
        """Make a call through the ledger, once per key, and return its value.

        It is recorded before and after. The same call with the same key is answered from the log;
        another one is CallConflict. After a kill in between, the effect class of the tool decides:
        made again, or an outcome that is unknown. Any outcome but a value is raised as CallFailed.
        A call that waits for a person or a client is CallWaits until it is answered.
        """
        acts_for = scope_of(scope)
        return await self._program_calls.call(
            id_of(session),
            tool_of(tool),
            dict(arguments or {}),
            key=key,
            name=name,
            scope=acts_for,
        )

    async def record(
        self,
        session: AnySession,
        kind: str,
        value: Any,
        *,
        key: str | None = None,
        expected: int | None = None,
    ) -> RecordView:
        """Keep a value in a session's log, under a kind and a key of the program's own.

        `expected` is the number of the latest record of that kind, and key if there is one; 0 for
        none. Where another is the latest, RecordConflict is raised and nothing is written.
        """
        latest: Latest = kind if key is None else (kind, key)
        views = await self.record_all(
            session,
            [Record(kind, value, key)],
            expected=None if expected is None else {latest: expected},
        )
        return views[0]

    async def record_all(
        self,
        session: AnySession,
        records: Sequence[Record],
        *,
        retracts: Sequence[int] = (),
        expected: Mapping[Latest, int] | None = None,
    ) -> list[RecordView]:
        """Keep several values, and retract earlier records, all in one batch or not at all."""
        for item in records:
            check_kind(item, Record, "record")
        if not records and not retracts:
            raise InvalidInput("nothing to record: pass records, or numbers to retract")
        session_id = id_of(session)
        slots = [slot(item.value, "record") for item in records]
        for attempt in range(1, ATTEMPTS + 1):
            async with self._writers.writing(session_id, in_turn=True) as driver:
                index = await self._records.of(session_id)
                async with index.writing:
                    await index.catch_up(self._store)

                    def build(state: State, index: RecordIndex = index) -> list[Fact]:
                        for latest, wanted in (expected or {}).items():
                            kind, key = latest if isinstance(latest, tuple) else (latest, None)
                            index.check_latest(kind, key, wanted)
                        index.check_there(retracts)
                        return _facts(index, state.next("record"), records, slots, retracts)

                    try:
                        done = await driver.journal.append(build)
                        index.take(done.events)
                        break
                    except LeaseLost:
                        # Nothing was written: the turn whose journal it is has just ended.
                        if attempt == ATTEMPTS:
                            raise
        return [
            RecordView(
                event.seq, event.at, event.data["record"], item.kind, item.key, content.value()
            )
            for event, item, content in zip(done.events, records, slots, strict=False)
        ]

    async def retract(self, session: AnySession, *numbers: int) -> None:
        """Leave records out of every later read; the log keeps them until they are erased."""
        await self.record_all(session, (), retracts=numbers)


def _facts(
    index: RecordIndex,
    number: int,
    records: Sequence[Record],
    slots: Sequence[Slot],
    retracts: Sequence[int],
) -> list[Fact]:
    """Return the facts of one batch; the first of them brings the retractions."""
    gone = list(dict.fromkeys(retracts))
    if not records:
        return [RecordPut(record=number, kind=index.places[gone[0]].kind, retracts=gone)]
    return [
        RecordPut(
            record=number + place,
            kind=item.kind,
            key=item.key,
            value=content,
            retracts=[] if place else gone,
        )
        for place, (item, content) in enumerate(zip(records, slots, strict=True))
    ]
