"""Threads as sessions: which session holds a thread, and what its records say.

A session's id is never used again once it was deleted, a thread's is; so a thread that was deleted
goes on in the session of its next generation. Checkpoints of the root graph and of subgraphs are
records of two kinds, by namespace and id; writes are records by the checkpoint that they are for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import holdfast
from holdfast.adapters import naming
from holdfast.adapters.langgraph import channels
from holdfast.adapters.langgraph.channels import Channels, Draft
from holdfast.adapters.langgraph.packing import Packer

CHECKPOINT, SUBGRAPH, WRITES = "langgraph.checkpoint", "langgraph.subgraph", "langgraph.writes"
AGENT = holdfast.Agent("langgraph", external=True)
LABEL = "langgraph.thread"
PAGE = 200
_KEY = re.compile(r"[!-.0-~]{1,90}")


def kind_of(ns: str) -> str:
    """Return the kind of record that holds checkpoints of a namespace."""
    return SUBGRAPH if ns else CHECKPOINT


def key_of(ns: str, checkpoint_id: str) -> str:
    """Return the key of a checkpoint: its namespace, a slash, its id."""
    return f"{ns_key(ns)}/{_short(checkpoint_id)}"


def ns_key(ns: str) -> str:
    """Return how keys begin in a namespace."""
    return _short(ns) if ns else "root"


def _short(text: str) -> str:
    return text if _KEY.fullmatch(text) else naming.hashed(text)


class Thread:
    """One generation of a thread: its session, and the values of its channels."""

    def __init__(self, name: str, session: holdfast.Session[Any], packer: Packer) -> None:
        self.name = name
        self.session = session
        self.channels = Channels(session, packer)

    async def checkpoint(self, ns: str, checkpoint_id: str) -> holdfast.RecordView | None:
        """Return the record of a checkpoint."""
        return await self.session.latest(kind_of(ns), key_of(ns, checkpoint_id))

    async def latest(self, ns: str) -> holdfast.RecordView | None:
        """Return the record of the checkpoint with the greatest id in a namespace."""
        keys = await self.session.record_keys(kind_of(ns), prefix=ns_key(ns) + "/")
        if not keys:
            return None
        number, _ = max(keys, key=lambda item: (item[1], item[0]))
        return await channels.read(self.session, number)

    async def last_number(self) -> int:
        """Return the number of the last record of a checkpoint of the root graph, 0 for none."""
        keys = await self.session.record_keys(CHECKPOINT)
        return keys[-1][0] if keys else 0

    async def writes(self, ns: str, checkpoint_id: str) -> list[holdfast.RecordView]:
        """Return the records of writes for a checkpoint, oldest first."""
        return await self.session.records(WRITES, key=key_of(ns, checkpoint_id), limit=100_000)


class Threads:
    """The threads of one store."""

    def __init__(self, runtime: holdfast.Runtime, packer: Packer) -> None:
        self._runtime = runtime
        self._packer = packer
        self._known: dict[str, Thread] = {}

    async def find(self, name: str) -> Thread | None:
        """Return a thread, None where nothing was ever put there or all was deleted."""
        thread = await self._current(name)
        try:
            await self._runtime.store.session_info(thread.session.id)
        except holdfast.errors.SessionNotFound:
            return None
        return thread

    async def create(self, name: str) -> Thread:
        """Return a thread that can be written to."""
        thread = await self._current(name)
        await thread.session
        return thread

    async def all(self) -> list[Thread]:
        """Return every thread of the store."""
        found: dict[str, Thread] = {}
        cursor = None
        while True:
            page = await self._runtime.sessions(
                holdfast.SessionFilter(agent=AGENT.name), limit=PAGE, cursor=cursor
            )
            for info in page.sessions:
                name = info.labels.get(LABEL)
                if name is not None and name not in found:
                    thread = await self.find(name)
                    if thread is not None:
                        found[name] = thread
            cursor = page.cursor
            if cursor is None:
                return list(found.values())

    async def delete(self, name: str) -> None:
        """Delete a thread's sessions, leftovers of an interrupted prune included."""
        while (thread := await self.find(name)) is not None:
            await self._runtime.store.delete(thread.session.id)

    async def copy(self, source: Thread, target: Thread, keep: Collection[int] | None) -> None:
        """Copy records, all of them or those named, with the references among them."""
        numbers: dict[int, int] = {}
        after = 0
        while page := await source.session.records(after=after, limit=PAGE):
            after = page[-1].seq
            chosen = [view for view in page if keep is None or view.number in keep]
            places = {view.number: place for place, view in enumerate(chosen)}
            records = [
                holdfast.Record(
                    view.kind,
                    _moved(view, target.name, numbers, places),
                    view.key,
                )
                for view in chosen
            ]
            if records:
                views = await target.session.record_all(records)
                numbers |= {a.number: b.number for a, b in zip(chosen, views, strict=True)}

    async def prune(self, thread: Thread, keep: Collection[int]) -> None:
        """Keep only these records: they are copied to a new session, and the old one is deleted."""
        following = self._thread(thread.name, _generation(thread.session.id) + 1)
        while True:  # what an interrupted prune left is not taken for the copy
            try:
                await self._runtime.store.session_info(following.session.id)
                await self._runtime.store.delete(following.session.id)
            except holdfast.errors.SessionDeleted:
                pass
            except holdfast.errors.SessionNotFound:
                break
            following = self._thread(thread.name, _generation(following.session.id) + 1)
        await following.session
        await self.copy(thread, following, keep)
        await self._runtime.store.delete(thread.session.id)

    async def _current(self, name: str) -> Thread:
        """Return the first generation of a thread that was not deleted."""
        thread = self._known.get(name) or self._thread(name, 1)
        while True:
            try:
                await self._runtime.store.session_info(thread.session.id)
            except holdfast.errors.SessionNotFound:
                pass
            except holdfast.errors.SessionDeleted:
                thread = self._thread(name, _generation(thread.session.id) + 1)
                continue
            self._known[name] = thread
            return thread

    def _thread(self, name: str, generation: int) -> Thread:
        base = naming.session_id("langgraph", name)
        session = self._runtime.session(
            base if generation == 1 else f"{base}.{generation}",
            agent=AGENT,
            create=True,
            labels={LABEL: name},
        )
        return Thread(name, session, self._packer)


def _generation(session_id: str) -> int:
    parts = session_id.split(".")
    return int(parts[2]) if len(parts) == 3 else 1


def _moved(
    view: holdfast.RecordView, thread: str, numbers: dict[int, int], places: dict[int, int]
) -> Any:
    """Return a record's data with its references as they are in the copy."""
    data = dict(view.value)
    if "thread" in data:
        data["thread"] = thread
    place = places[view.number]

    def moved(number: int) -> int:
        return numbers[number] if number in numbers else places[number] - place

    if view.kind == channels.KIND:
        base = channels.base_of(view.number, data)
        if base is not None:
            data["base"] = moved(base)
    if view.kind in (CHECKPOINT, SUBGRAPH):
        refs = references(view)
        data["channels"] = {name: moved(number) for name, number in refs.items()}
    return data


def references(view: holdfast.RecordView) -> dict[str, int]:
    """Return the numbers of the records that hold a checkpoint's channels."""
    refs: dict[str, int] = view.value["channels"]
    return {name: channels.absolute(view.number, ref) for name, ref in refs.items()}


async def reachable(
    thread: Thread, checkpoints: Iterable[holdfast.RecordView], bases: Callable[[int], Any]
) -> set[int]:
    """Return the numbers of the channel records that checkpoints need, bases included."""
    needed: set[int] = set()
    for view in checkpoints:
        for number in references(view).values():
            at: int | None = number
            while at is not None and at not in needed:
                needed.add(at)
                at = await bases(at)
    return needed


def batch(drafts: Sequence[tuple[str, Draft]]) -> list[holdfast.Record]:
    """Return the records of new channel values."""
    return [holdfast.Record(channels.KIND, draft.data, key=_short(name)) for name, draft in drafts]
