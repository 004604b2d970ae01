"""`HoldfastSaver`: a LangGraph checkpointer, sync and async, over any of the stores.

A thread is a session, and each `put` or `put_writes` one batch of its log. Two runs that go on from
the same checkpoint of a thread do not overwrite each other: what a run read last is remembered for
it, and a put that follows something else is refused as a conflict.
"""

from __future__ import annotations

import builtins
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    get_checkpoint_metadata,
)
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

import holdfast
from holdfast.adapters.langgraph import channels
from holdfast.adapters.langgraph.packing import Packer
from holdfast.adapters.langgraph.threads import (
    AGENT,
    CHECKPOINT,
    SUBGRAPH,
    WRITES,
    Thread,
    Threads,
    batch,
    key_of,
    kind_of,
    ns_key,
    reachable,
    references,
)
from holdfast.adapters.loop_thread import LoopThread

_OWN = frozenset(
    {"v", "id", "ts", "channel_values", "channel_versions", "versions_seen", "updated_channels"}
)


@dataclass(slots=True)
class _Seen:
    """Which record of a root checkpoint a run goes on from; moved on by its own puts."""

    number: int


_seen: ContextVar[dict[str, _Seen] | None] = ContextVar("holdfast_langgraph_seen", default=None)


class HoldfastSaver(BaseCheckpointSaver[Any]):
    """Keeps the threads of graphs as sessions of a store.

    Use `HoldfastSaver.open(STORE)` with `with` or `async with`. Loading runs no code: beside plain
    data and LangChain's messages, only types whose modules are `allowed` come back as themselves.
    A `serde` of your own, for example an encrypted one, serialises everything.
    """

    def __init__(
        self,
        loop: LoopThread,
        *,
        serde: SerializerProtocol | None = None,
        allowed: Collection[tuple[str, ...] | type] = (),
    ) -> None:
        given = serde or JsonPlusSerializer(allowed_msgpack_modules=list(allowed) or None)
        super().__init__(serde=given)
        self._loop = loop
        self._readable = serde is None
        self._threads_of: tuple[SerializerProtocol, Threads] | None = None

    @classmethod
    def open(
        cls,
        store: str | Path | Any | None = None,
        *,
        serde: SerializerProtocol | None = None,
        allowed: Collection[tuple[str, ...] | type] = (),
    ) -> HoldfastSaver:
        """Return a saver on a store; it opens with its `with` or `async with` block."""
        loop = LoopThread(lambda: holdfast.open(store, agents=[AGENT]))
        return cls(loop, serde=serde, allowed=allowed)

    def __enter__(self) -> HoldfastSaver:
        """Open the store."""
        self._loop.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the store."""
        self._loop.close()

    async def __aenter__(self) -> HoldfastSaver:
        """Open the store."""
        return self.__enter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the store."""
        self._loop.close()

    def get_next_version(self, current: int | str | None, channel: None) -> int | str:
        """Return the version after another one, in its own form."""
        if isinstance(current, str):
            count = int(current.split(".")[0]) + 1
            return f"{count:032}"
        return (current or 0) + 1

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return the checkpoint that a config names, or the newest of its thread."""
        return self._noted(config, self._loop.call(self._get_tuple(config)))

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return the checkpoint that a config names, or the newest of its thread."""
        return self._noted(config, await self._loop.run(self._get_tuple(config)))

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Yield checkpoints, the newest first."""
        for thread, number in self._loop.call(self._found(config, before)):
            if limit is not None and limit <= 0:
                return
            found = self._loop.call(self._matching(thread, number, filter))
            if found is not None:
                limit = None if limit is None else limit - 1
                yield found

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """Yield checkpoints, the newest first."""
        for thread, number in await self._loop.run(self._found(config, before)):
            if limit is not None and limit <= 0:
                return
            found = await self._loop.run(self._matching(thread, number, filter))
            if found is not None:
                limit = None if limit is None else limit - 1
                yield found

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint; RecordConflict where another run was faster."""
        seen = self._seen_of(config, metadata)
        return self._loop.call(self._put(config, checkpoint, metadata, new_versions, seen))

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint; RecordConflict where another run was faster."""
        seen = self._seen_of(config, metadata)
        return await self._loop.run(self._put(config, checkpoint, metadata, new_versions, seen))

    def put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Store what a task wrote, before the next checkpoint."""
        self._loop.call(self._put_writes(config, writes, task_id, task_path))

    async def aput_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Store what a task wrote, before the next checkpoint."""
        await self._loop.run(self._put_writes(config, writes, task_id, task_path))

    def delete_thread(self, thread_id: str) -> None:
        """Delete a thread with all that it stored."""
        self._loop.call(self._threads().delete(str(thread_id)))

    async def adelete_thread(self, thread_id: str) -> None:
        """Delete a thread with all that it stored."""
        await self._loop.run(self._threads().delete(str(thread_id)))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Retract the checkpoints and writes of runs, in every thread."""
        self._loop.call(self._delete_for_runs(run_ids))

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Retract the checkpoints and writes of runs, in every thread."""
        await self._loop.run(self._delete_for_runs(run_ids))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy all checkpoints and writes of a thread to another one."""
        self._loop.call(self._copy(source_thread_id, target_thread_id))

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy all checkpoints and writes of a thread to another one."""
        await self._loop.run(self._copy(source_thread_id, target_thread_id))

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Delete threads, or all of them but what their newest checkpoints need."""
        self._loop.call(self._prune(thread_ids, strategy))

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Delete threads, or all of them but what their newest checkpoints need."""
        await self._loop.run(self._prune(thread_ids, strategy))

    def _packer(self) -> Packer:
        return Packer(self.serde, readable=self._readable)

    def _threads(self) -> Threads:
        # A copy of this saver with another serializer has threads of its own.
        key = self.serde
        if self._threads_of is None or self._threads_of[0] is not key:
            self._threads_of = (key, Threads(self._loop.runtime, self._packer()))
        return self._threads_of[1]

    def _noted(
        self, config: RunnableConfig, found: tuple[CheckpointTuple | None, int]
    ) -> CheckpointTuple | None:
        """Remember, for this run, what it read last of its thread."""
        where = config["configurable"]
        if not where.get("checkpoint_ns"):
            known = dict(_seen.get() or {})
            if where.get("checkpoint_id"):
                known.pop(self._seen_key(where), None)  # a checkpoint chosen on purpose
            else:
                known[self._seen_key(where)] = _Seen(found[1])
            _seen.set(known)
        return found[0]

    def _seen_of(self, config: RunnableConfig, metadata: CheckpointMetadata) -> _Seen | None:
        where = config["configurable"]
        if where.get("checkpoint_ns") or metadata.get("source") in ("fork", "update"):
            return None
        return (_seen.get() or {}).get(self._seen_key(where))

    def _seen_key(self, where: dict[str, Any]) -> str:
        return f"{id(self._loop)}/{where['thread_id']}"

    async def _get_tuple(self, config: RunnableConfig) -> tuple[CheckpointTuple | None, int]:
        name, ns, checkpoint_id = _address(config)
        thread = await self._threads().find(name)
        if thread is None:
            return None, 0
        last = await thread.last_number()
        view = await (thread.checkpoint(ns, checkpoint_id) if checkpoint_id else thread.latest(ns))
        return (None if view is None else await self._tuple(thread, view)), last

    async def _tuple(self, thread: Thread, view: holdfast.RecordView) -> CheckpointTuple:
        data, packer = view.value, self._packer()
        values = {
            name: await thread.channels.value(number) for name, number in references(view).items()
        }
        rest: dict[str, Any] = packer.unpack(data["rest"])
        checkpoint: Any = {
            "v": data["v"],
            "id": data["id"],
            "ts": data["ts"],
            "channel_values": values,
            "channel_versions": data["versions"],
            "versions_seen": data["seen"],
            "updated_channels": data["updated"],
            **rest,
        }
        parent = data["parent"]
        return CheckpointTuple(
            _config(data, data["id"]),
            checkpoint,
            packer.unpack(data["metadata"]),
            None if parent is None else _config(data, parent),
            await self._pending(thread, data["ns"], data["id"]),
        )

    async def _pending(self, thread: Thread, ns: str, checkpoint_id: str) -> builtins.list[Any]:
        """Return writes in order; of those with a special index the last counts, else the first."""
        found: dict[tuple[str, str, int], tuple[str, str, Any]] = {}
        packer = self._packer()
        for view in await thread.writes(ns, checkpoint_id):
            data = view.value
            for index, channel, packed in data["writes"]:
                key = (data["task_path"], data["task_id"], index)
                if index < 0 or key not in found:
                    found[key] = (data["task_id"], channel, packer.unpack(packed))
        return [found[key] for key in sorted(found)]

    async def _put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
        seen: _Seen | None,
    ) -> RunnableConfig:
        name, ns, parent = _address(config)
        thread, packer = await self._threads().create(name), self._packer()
        before = await thread.checkpoint(ns, parent) if parent else None
        refs = {} if before is None else references(before)
        drafts: builtins.list[tuple[str, channels.Draft]] = []
        kept: dict[str, int] = {}
        for channel in checkpoint["channel_versions"]:
            if channel not in checkpoint["channel_values"]:
                continue
            if channel in refs and channel not in new_versions:
                kept[channel] = refs[channel]
                continue
            value = checkpoint["channel_values"][channel]
            draft = await thread.channels.draft(channel, value, refs.get(channel))
            if draft is None:
                kept[channel] = refs[channel]
            else:
                drafts.append((channel, draft))
        # Those of this batch are counted back from the checkpoint's own record.
        kept |= {channel: place - len(drafts) for place, (channel, _) in enumerate(drafts)}
        given: dict[str, Any] = {**checkpoint}
        data = {
            "thread": name,
            "ns": ns,
            "id": checkpoint["id"],
            "parent": parent,
            "v": checkpoint["v"],
            "ts": checkpoint["ts"],
            "channels": kept,
            "versions": dict(checkpoint["channel_versions"]),
            "seen": {node: dict(seen) for node, seen in checkpoint["versions_seen"].items()},
            "updated": given.get("updated_channels"),
            "metadata": packer.pack(dict(get_checkpoint_metadata(config, metadata))),
            "rest": packer.pack({key: given[key] for key in given if key not in _OWN}),
        }
        kind = kind_of(ns)
        views = await thread.session.record_all(
            [*batch(drafts), holdfast.Record(kind, data, key=key_of(ns, checkpoint["id"]))],
            expected=None if seen is None else {CHECKPOINT: seen.number},
        )
        for view, (_, draft) in zip(views, drafts, strict=False):
            thread.channels.remember(view.number, draft)
        if seen is not None:
            seen.number = views[-1].number
        return _config(data, checkpoint["id"])

    async def _put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str,
    ) -> None:
        name, ns, checkpoint_id = _address(config)
        assert checkpoint_id is not None
        thread, packer = await self._threads().create(name), self._packer()
        packed = [
            [WRITES_IDX_MAP.get(channel, place), channel, packer.pack(value)]
            for place, (channel, value) in enumerate(writes)
        ]
        data = {
            "thread": name,
            "ns": ns,
            "checkpoint": checkpoint_id,
            "task_id": task_id,
            "task_path": task_path,
            "writes": packed,
        }
        await thread.session.record(WRITES, data, key=key_of(ns, checkpoint_id))

    async def _found(
        self, config: RunnableConfig | None, before: RunnableConfig | None
    ) -> builtins.list[tuple[Thread, int]]:
        """Return thread and number of the checkpoints that a config names, the newest first."""
        threads = self._threads()
        where: dict[str, Any] = {} if config is None else config.get("configurable", {})
        if "thread_id" in where:
            thread = await threads.find(str(where["thread_id"]))
            chosen = [] if thread is None else [thread]
        else:
            chosen = await threads.all()
        ns, wanted = where.get("checkpoint_ns"), where.get("checkpoint_id")
        limit = None if before is None else before["configurable"].get("checkpoint_id")
        found = []
        for thread in chosen:
            for kind in (CHECKPOINT, SUBGRAPH) if ns is None else (kind_of(ns),):
                prefix = "" if ns is None else ns_key(ns) + "/"
                for number, key in await thread.session.record_keys(kind, prefix=prefix):
                    checkpoint_id = key.rpartition("/")[2]
                    if wanted is not None and key_of("", wanted) != f"root/{checkpoint_id}":
                        continue
                    if limit is None or checkpoint_id < limit:
                        found.append((checkpoint_id, number, thread))
        found.sort(key=lambda item: item[:2], reverse=True)
        return [(thread, number) for _, number, thread in found]

    async def _matching(
        self, thread: Thread, number: int, wanted: dict[str, Any] | None
    ) -> CheckpointTuple | None:
        """Return a checkpoint if its metadata has what a filter names."""
        view = await channels.read(thread.session, number)
        metadata = self._packer().unpack(view.value["metadata"])
        for key, value in (wanted or {}).items():
            if key not in metadata or metadata[key] != value:
                return None
        return await self._tuple(thread, view)

    async def _checkpoints(self, thread: Thread) -> builtins.list[holdfast.RecordView]:
        return [
            await channels.read(thread.session, number)
            for kind in (CHECKPOINT, SUBGRAPH)
            for number, _ in await thread.session.record_keys(kind)
        ]

    async def _delete_for_runs(self, run_ids: Sequence[str]) -> None:
        wanted, packer = {str(run) for run in run_ids}, self._packer()
        for thread in await self._threads().all() if wanted else ():
            gone: builtins.list[holdfast.RecordView] = []
            left: builtins.list[holdfast.RecordView] = []
            for view in await self._checkpoints(thread):
                run = packer.unpack(view.value["metadata"]).get("run_id")
                (gone if run in wanted else left).append(view)
            if not gone:
                continue
            needed = await self._needed(thread, left)
            every = await self._channel_numbers(thread)
            retracts = [view.number for view in gone] + sorted(every - needed)
            for view in gone:
                data = view.value
                retracts += [w.number for w in await thread.writes(data["ns"], data["id"])]
            await thread.session.retract(*retracts)

    async def _copy(self, source: str, target: str) -> None:
        thread = await self._threads().find(str(source))
        if thread is not None:
            await self._threads().copy(thread, await self._threads().create(str(target)), None)

    async def _prune(self, thread_ids: Sequence[str], strategy: str) -> None:
        if strategy not in ("keep_latest", "delete"):
            raise holdfast.errors.InvalidInput(
                f"{strategy!r} is not a way to prune; use 'keep_latest' or 'delete'"
            )
        threads = self._threads()
        for thread_id in thread_ids:
            thread = await threads.find(str(thread_id))
            if thread is None:
                continue
            if strategy == "delete":
                await threads.delete(str(thread_id))
                continue
            views = await self._kept_by_prune(await self._checkpoints(thread))
            keep = {view.number for view in views} | await self._needed(thread, views)
            for view in views:
                data = view.value
                keep |= {w.number for w in await thread.writes(data["ns"], data["id"])}
            await threads.prune(thread, keep)

    async def _kept_by_prune(
        self, views: Sequence[holdfast.RecordView]
    ) -> builtins.list[holdfast.RecordView]:
        """Return the newest checkpoint of each namespace, and what its delta channels build on."""
        by_id = {(view.value["ns"], view.value["id"]): view for view in views}
        newest: dict[str, holdfast.RecordView] = {}
        for (ns, _), view in sorted(by_id.items(), key=lambda item: item[0]):
            newest[ns] = view
        kept: dict[int, holdfast.RecordView] = {}
        for view in newest.values():
            kept[view.number] = view
            metadata = self._packer().unpack(view.value["metadata"])
            missing = set(metadata.get("counters_since_delta_snapshot") or ())
            missing -= view.value["channels"].keys()
            above: holdfast.RecordView | None = view
            while missing and above is not None:
                above = by_id.get((above.value["ns"], above.value["parent"]))
                if above is not None:
                    kept[above.number] = above
                    missing -= above.value["channels"].keys()
        return list(kept.values())

    async def _needed(self, thread: Thread, checkpoints: Sequence[holdfast.RecordView]) -> set[int]:
        async def base(number: int) -> int | None:
            return channels.base_of(number, (await channels.read(thread.session, number)).value)

        return await reachable(thread, checkpoints, base)

    async def _channel_numbers(self, thread: Thread) -> set[int]:
        return {number for number, _ in await thread.session.record_keys(channels.KIND)}


def _address(config: RunnableConfig) -> tuple[str, str, str | None]:
    """Return thread, namespace and checkpoint of a config."""
    where = config["configurable"]
    return (
        str(where["thread_id"]),
        where.get("checkpoint_ns") or "",
        where.get("checkpoint_id") or None,
    )


def _config(data: dict[str, Any], checkpoint_id: str) -> RunnableConfig:
    return {
        "configurable": {
            "thread_id": data["thread"],
            "checkpoint_ns": data["ns"],
            "checkpoint_id": checkpoint_id,
        }
    }
