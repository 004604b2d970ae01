"""Values of a run: outputs, inputs and errors, found by the event that has them.

The state of a run names events; this is where they are turned into values. Scheduling is pure, so
it asks for what is at hand and, where something is not, stops with `ValuesMissing`: its driver
loads that and schedules again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from holdfast.core.events import Event
from holdfast.core.facts import CallResolved, Fact
from holdfast.core.payloads import Slot, from_record, manifest, slot, to_record
from holdfast.core.records import parse
from holdfast.core.run_facts import BranchFinished, NodeFinished
from holdfast.core.run_state import RunState
from holdfast.core.values import decode
from holdfast.workflows.batch import Batch

MAX_MESSAGE = 300
"""How much of an error's message the output of a fan-out keeps; the event has all of it."""


MAX_FACTS = 20_000
"""How many facts are kept at hand."""


class ValuesMissing(Exception):
    """Something is not at hand: events by number, payloads, or the ended branches of a fan-out."""

    def __init__(
        self,
        events: Iterable[int] = (),
        payloads: Iterable[Slot] = (),
        fork: tuple[int, int] | None = None,
        foreign: tuple[str, str] | None = None,
        reused: int | None = None,
        continued: tuple[int, NodeFinished, CallResolved | None] | None = None,
    ) -> None:
        super().__init__("values are to be loaded")
        self.events = tuple(events)
        self.payloads = tuple(payloads)
        self.fork = fork  # the execution, and the event after which its branches ended
        self.foreign = foreign  # a session, and the id of its final value
        self.continued = continued  # how a node ended whose conversation goes on
        self.reused = reused  # an event of the run that this one was rewound from


class Values:
    """What is at hand of a run's history."""

    def __init__(self) -> None:
        self._facts: dict[int, Fact] = {}
        self._payloads: dict[str, bytes] = {}
        self._decoded: dict[tuple[str, str], Any] = {}
        self._ended: dict[int, list[tuple[int, BranchFinished]]] = {}
        self._foreign: dict[str, Slot] = {}

    def learn_foreign(self, item: Slot) -> None:
        """Take in a value of another session, with its bytes."""
        self._foreign[item.id] = item

    def foreign(self, session: str, payload: str) -> Slot:
        """Return a value of another session, with its bytes."""
        if payload not in self._foreign:
            raise ValuesMissing(foreign=(session, payload))
        return self._foreign[payload]

    def learn(self, seq: int, fact: Fact) -> None:
        """Take in a fact of the log."""
        self._facts[seq] = fact
        if len(self._facts) > MAX_FACTS:
            del self._facts[next(iter(self._facts))]  # the one that was learned first

    def learn_events(self, events: Iterable[Event]) -> None:
        """Take in events of the log."""
        for event in events:
            if event.known:
                self.learn(event.seq, event.fact())

    def learn_batch(self, after: int, facts: Iterable[Fact]) -> None:
        """Take in the facts of an append that went well, from the event after a number on."""
        for seq, fact in enumerate(facts, after + 1):
            self.learn(seq, fact)
            if isinstance(fact, BranchFinished) and fact.fork in self._ended:
                self._ended[fact.fork].append((seq, fact))

    def learn_payload(self, item: Slot, data: bytes) -> None:
        """Take in the bytes of a payload."""
        self._payloads[item.id] = data

    def learn_ended(self, fork: int, ended: Sequence[tuple[int, BranchFinished]]) -> None:
        """Take in the branches of a fan-out that ended, with the numbers of their events."""
        self._ended[fork] = list(ended)

    def lacks(self, run: RunState) -> list[int]:
        """Return the events that open cursors refer to and that are not at hand."""
        wanted = {run.started}
        for cursor in run.cursors.values():
            wanted.update(cursor.fired)
            wanted.update((cursor.started, cursor.outcome or 0, cursor.resolved or 0))
        return sorted(seq for seq in wanted if seq and seq not in self._facts)

    def forget(self) -> None:
        """Give back the memory; everything can be loaded again."""
        for part in (self._facts, self._payloads, self._decoded, self._ended):
            part.clear()

    def fact(self, seq: int, batch: Batch) -> Fact:
        """Return a fact by the number of its event."""
        found = batch.fact(seq) or self._facts.get(seq)
        if found is None:
            raise ValuesMissing(events=[seq])
        return found

    def value(self, item: Slot) -> Any:
        """Return the value of a slot; that of a fan-out's output is put together."""
        key = (item.id, item.encoding)
        if key not in self._decoded:
            data = item.data if item.data is not None else self._payloads.get(item.id)
            if data is None:
                raise ValuesMissing(payloads=[item])
            is_list = item.encoding == "manifest"
            self._decoded[key] = self._collected(data) if is_list else decode(item.encoding, data)
        return self._decoded[key]

    def _collected(self, data: bytes) -> Any:
        record = parse(data)
        parts = [from_record(part) for part in record["items"]]
        missing = [part for part in parts if part.data is None and part.id not in self._payloads]
        if missing:
            raise ValuesMissing(payloads=missing)
        return {
            "items": [self.value(part) for part in parts],
            "failed": self.value(from_record(record["failed"])),
        }

    def ended(self, fork: int, since: int, batch: Batch) -> list[BranchFinished]:
        """Return how the branches of a fan-out ended, in order of their index."""
        if fork not in self._ended:
            raise ValuesMissing(fork=(fork, since))
        found = {fact.index: fact for seq, fact in self._ended[fork] if seq > since}
        for fact in batch.facts:
            if isinstance(fact, BranchFinished) and fact.fork == fork:
                found[fact.index] = fact
        return [found[index] for index in sorted(found)]


def collected(ended: Iterable[BranchFinished], values: Values) -> tuple[Slot, Slot]:
    """Return the output of a fan-out, its items by ref, and the list of what failed beside it."""
    items: list[Slot] = []
    failed: list[dict[str, Any]] = []
    for fact in ended:
        if fact.status == "ok" and fact.output is not None:
            items.append(fact.output)
        elif fact.status == "failed":
            error = values.value(fact.error) if fact.error is not None else {}
            failed.append(
                {
                    "index": fact.index,
                    "key": str(fact.index) if fact.key is None else fact.key,
                    "code": fact.code or "failed",
                    "message": str(error.get("message", ""))[:MAX_MESSAGE],
                }
            )
    told = slot(failed, "error")
    record = {"items": [to_record(item) for item in items], "failed": to_record(told)}
    return manifest(record, "output"), told
